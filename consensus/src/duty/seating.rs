//! Assignment of nodes to stages: as few bytes as possible move between nodes.

use std::collections::BTreeSet;

use zbelastic_schedule::{Placement, Program};
use zbelastic_types::{LayerId, StageIndex};

use super::PlanSolution;
use crate::contact::FailureDomain;
use crate::job::JobSpec;
use crate::member::{Holder, Resources};
use crate::plan::{LayerSource, PlanRecord, copies_beside, counted_holders};
use crate::pre_copy::{held_layers, needed_layers};

/// The cost of a stage that no holder may get. Those of all stages together are below 2^62.
const FORBIDDEN: u64 = 1 << 55;

/// Holders in the order of stages. A holder that stays keeps its place in the order, a new one
/// fills the place of one that went, and holders that are left over go to the end.
#[must_use]
pub(super) fn seating(before: Option<&PlanRecord>, available: &[Holder]) -> Vec<Holder> {
    let stages = before.map_or(&[][..], |plan| &plan.stages);
    let is_new = |holder: &&Holder| !stages.contains(holder);
    let mut newcomers = available.iter().filter(is_new).copied();
    let stays = |holder: &Holder| available.contains(holder).then_some(*holder);
    let mut ordered: Vec<Holder> =
        stages.iter().filter_map(|holder| stays(holder).or_else(|| newcomers.next())).collect();
    ordered.extend(newcomers);
    ordered
}

/// Holders in the order of stages, those of the same resources exchanged so that as few bytes as
/// possible move; of two such orders, one in which fewer holders change places. Behind the stages
/// of the solution nothing changes, unless there are several pipelines: whoever is left of one may be
/// of more use than another of its place.
#[must_use]
pub(super) fn reseated(
    before: &PlanRecord,
    nodes: &[Holder],
    resources: impl Fn(&Holder) -> Resources,
    (solution, copies): (&PlanSolution, &[Vec<StageIndex>]),
    spec: &JobSpec,
) -> Vec<Holder> {
    let stage_count = copies.len().min(nodes.len());
    let needed: Vec<BTreeSet<LayerId>> =
        (0..stage_count).map(|stage| needed_at(solution, copies, stage)).collect();
    let columns = |program: &Program| program.placement.column_count();
    let has_columns = columns(&before.program).max(columns(&solution.program)) > 1;
    let used = if has_columns { nodes } else { &nodes[..stage_count] };
    let held: Vec<_> = used.iter().map(|holder| held_layers(before, *holder)).collect();
    let cost = |stage: usize, from: usize| {
        let Some(needed) = needed.get(stage) else { return u64::from(from != stage) };
        if resources(&used[from]) != resources(&used[stage]) {
            return FORBIDDEN;
        }
        let moved = bytes_of(spec, needed.difference(&held[from]));
        // No number of holders that change places is worth a byte.
        (moved * (used.len() as u64 + 1) + u64::from(from != stage)).min(FORBIDDEN)
    };
    let assigned = assignment(used.len(), cost);
    assigned.into_iter().map(|from| used[from]).chain(nodes[used.len()..].iter().copied()).collect()
}

/// The fewest bytes that had to move between nodes from one plan to the next, whichever of its
/// nodes had got which stage. Bytes from a checkpoint are left out.
#[must_use]
pub fn least_moved(before: &PlanRecord, plan: &PlanRecord, spec: &JobSpec) -> u64 {
    let is_held = |layer: &LayerId| match &plan.sources[layer.index()] {
        LayerSource::Nodes(_) => true,
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    let needed = |stage| -> BTreeSet<LayerId> {
        needed_layers(plan, stage).into_iter().filter(is_held).collect()
    };
    let needed: Vec<_> = plan.stage_indices().map(needed).collect();
    let held: Vec<_> = plan.stages.iter().map(|holder| held_layers(before, *holder)).collect();
    let cost = |stage: usize, from: usize| {
        bytes_of(spec, needed[stage].difference(&held[from])).min(FORBIDDEN)
    };
    let assigned = assignment(needed.len(), cost);
    assigned.into_iter().enumerate().map(|(stage, from)| cost(stage, from)).sum()
}

fn bytes_of<'a>(spec: &JobSpec, layers: impl Iterator<Item = &'a LayerId>) -> u64 {
    layers.map(|layer| spec.layer_bytes.get(layer.index()).copied().unwrap_or(1).max(1)).sum()
}

/// The layers of a stage, and those it keeps copies of: of replicas the first one's.
fn needed_at(
    solution: &PlanSolution,
    copies: &[Vec<StageIndex>],
    stage: usize,
) -> BTreeSet<LayerId> {
    let placement = &solution.program.placement;
    let is_kept = |of: &usize| copies[*of].iter().any(|by| by.index() == stage);
    let kept = (0..copies.len()).filter(is_kept).map(|of| StageIndex(of as u32));
    let kept = kept.flat_map(|of| placement.chunks_of(of).collect::<Vec<_>>());
    let kept = kept.filter(|chunk| placement.replica_of(*chunk) == 0);
    let chunks = placement.chunks_of(StageIndex(stage as u32)).chain(kept);
    chunks.flat_map(|chunk| solution.chunks[chunk.index()].layers().collect::<Vec<_>>()).collect()
}

/// For each row the column it is given, each once, at the least cost in all: the Hungarian method
/// with potentials, rows added one after the other.
fn assignment(count: usize, cost: impl Fn(usize, usize) -> u64) -> Vec<usize> {
    // Each is computed once: a search looks at them again and again.
    let cells = (0..count).flat_map(|row| (0..count).map(move |column| (row, column)));
    let costs: Vec<i64> = cells.map(|(row, column)| cost(row, column) as i64).collect();
    let cost = |row: usize, column: usize| costs[row * count + column];
    // Row and column 0 stand for none; others are counted from 1.
    let mut rows = vec![0_i64; count + 1];
    let mut columns = vec![0_i64; count + 1];
    let mut row_of = vec![0; count + 1];
    for row in 1..=count {
        row_of[0] = row;
        let mut least = vec![i64::MAX; count + 1];
        let mut before = vec![0; count + 1];
        let mut is_used = vec![false; count + 1];
        let mut column = 0;
        while row_of[column] != 0 {
            is_used[column] = true;
            let from = row_of[column];
            let mut delta = i64::MAX;
            let mut next = 0;
            for to in (1..=count).filter(|to| !is_used[*to]) {
                let reduced = cost(from - 1, to - 1) - rows[from] - columns[to];
                if reduced < least[to] {
                    (least[to], before[to]) = (reduced, column);
                }
                if least[to] < delta {
                    (delta, next) = (least[to], to);
                }
            }
            for to in 0..=count {
                if is_used[to] {
                    rows[row_of[to]] += delta;
                    columns[to] -= delta;
                } else {
                    least[to] = least[to].saturating_sub(delta);
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut given = vec![0; count];
    (1..=count).for_each(|column| given[row_of[column] - 1] = column - 1);
    given
}

/// For each stage the stages that keep copies of it, each of whose failure domains is given. They
/// are in other zones and on other machines than the stages that have it already, as far as there
/// are such and none of them keeps more than one copy more than its share; of several the next ones
/// behind `offset`, in a ring of the others. Another offset makes other pairs.
#[must_use]
pub(super) fn copies(
    domains: &[FailureDomain],
    placement: &Placement,
    (wanted, offset): (u32, u32),
) -> Vec<Vec<StageIndex>> {
    let stage_count = domains.len() as u32;
    let others = stage_count.saturating_sub(1);
    let mut kept = vec![0; domains.len()];
    let choose = |stage: u32| {
        let count = copies_beside(wanted, placement, StageIndex(stage));
        let holders = counted_holders(placement, StageIndex(stage));
        let mut has: Vec<usize> = holders.iter().map(|stage| stage.index()).collect();
        let own = has.len();
        for _ in 0..count {
            let ring = (0..others).map(|place| stage + 1 + (offset % others + place) % others);
            let free = ring.map(|at| (at % stage_count) as usize).filter(|at| !has.contains(at));
            let cost = |at: &usize| {
                let shared = |is: fn(&FailureDomain, &FailureDomain) -> bool| {
                    has.iter().filter(|other| is(&domains[*at], &domains[**other])).count()
                };
                let load: u32 = kept[*at];
                let crowded = (load > count, shared(FailureDomain::shares_host));
                (crowded, shared(FailureDomain::shares_zone), load >= count)
            };
            let by = free.min_by_key(cost).expect("there are as many others");
            kept[by] += 1;
            has.push(by);
        }
        has[own..].iter().map(|at| StageIndex(*at as u32)).collect()
    };
    (0..stage_count).map(choose).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    use zbelastic_schedule::{Placement, PlacementShape, Window};
    use zbelastic_types::StageIndex;

    use super::{assignment, reseated};
    use crate::contact::FailureDomain;
    use crate::fixture::{FixtureLog, side_by_side_twice, solution, spec};
    use crate::job::{COPIES_MAX, JobSpec};
    use crate::member::{Holder, Resources};
    use crate::pre_copy::held_layers;

    fn copies(stage_count: u32, wanted: u32, offset: u32) -> Vec<Vec<StageIndex>> {
        let domains = vec![FailureDomain::default(); stage_count as usize];
        super::copies(&domains, &Placement::line(stage_count), (wanted, offset))
    }

    /// Places of as many stages: the letters are zones, two stages to a machine if they are paired.
    fn domains(zones: &str, is_paired: bool) -> Vec<FailureDomain> {
        let host = |at: usize| if is_paired { at / 2 + 1 } else { at + 1 } as u64;
        let place =
            |(at, zone): (usize, char)| FailureDomain { zone: zone.to_string(), host: host(at) };
        zones.chars().enumerate().map(place).collect()
    }

    /// The least cost of all orders.
    fn least(count: usize, used: &mut Vec<usize>, cost: &impl Fn(usize, usize) -> u64) -> u64 {
        let row = used.len();
        if row == count {
            return 0;
        }
        let mut best = u64::MAX;
        for column in 0..count {
            if !used.contains(&column) {
                used.push(column);
                best = best.min(cost(row, column) + least(count, used, cost));
                used.pop();
            }
        }
        best
    }

    #[test]
    fn an_assignment_costs_the_least_of_all() {
        let mut draws = SplitMix64::seed_from_u64(1);
        for count in 0..6 {
            for _ in 0..40 {
                let costs: Vec<u64> =
                    (0..count * count).map(|_| (draws.next_u64() >> 60).pow(2)).collect();
                let cost = |row: usize, column: usize| costs[row * count + column];
                let found = assignment(count, cost);
                let total: u64 =
                    found.iter().enumerate().map(|(row, column)| cost(row, *column)).sum();
                assert_eq!(total, least(count, &mut Vec::new(), &cost));
                let mut sorted = found;
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "each once");
            }
        }
    }

    #[test]
    fn a_copy_is_never_at_home_and_offsets_make_other_pairs() {
        for wanted in 0..=COPIES_MAX {
            assert_eq!(copies(1, wanted, 0), [[]; 1], "there is no elsewhere");
            for (stage_count, offset) in (2..6).flat_map(|count| (0..6).map(move |o| (count, o))) {
                for (stage, by) in copies(stage_count, wanted, offset).into_iter().enumerate() {
                    assert_eq!(by.len() as u32, wanted.min(stage_count - 1));
                    let keepers: BTreeSet<_> = by.iter().map(|by| by.index()).collect();
                    assert_eq!(keepers.len(), by.len(), "each another one");
                    assert!(!keepers.contains(&stage));
                    assert!(keepers.iter().all(|keeper| *keeper < stage_count as usize));
                }
            }
        }
        assert_ne!(copies(3, 1, 0), copies(3, 1, 1));
        assert_ne!(copies(4, 2, 0), copies(4, 2, 1));
    }

    /// Stages whose layers two nodes of one zone have, stages whose layers two on one machine have,
    /// and the most copies that one node keeps.
    fn shared(domains: &[FailureDomain], wanted: u32, offset: u32) -> (usize, usize, usize) {
        let placement = Placement::line(domains.len() as u32);
        let found = super::copies(domains, &placement, (wanted, offset));
        let mut zones = 0;
        let mut hosts = 0;
        let mut kept = vec![0; domains.len()];
        for (stage, by) in found.iter().enumerate() {
            by.iter().for_each(|by| kept[by.index()] += 1);
            let mut has: Vec<usize> = by.iter().map(|by| by.index()).collect();
            has.push(stage);
            let of = |is: fn(&FailureDomain, &FailureDomain) -> bool| {
                let differ = |one: &usize, other: &usize| {
                    one != other && is(&domains[*one], &domains[*other])
                };
                has.iter().any(|one| has.iter().any(|other| differ(one, other)))
            };
            zones += usize::from(of(FailureDomain::shares_zone));
            hosts += usize::from(of(FailureDomain::shares_host));
        }
        (zones, hosts, kept.into_iter().max().unwrap_or(0))
    }

    #[test]
    fn copies_stand_in_other_zones_and_on_other_machines_where_there_are_some() {
        for offset in 0..9 {
            for (zones, is_paired, wanted) in
                [("aaaabbbb", false, 1), ("abababab", false, 1), ("aabbcc", false, 2)]
            {
                let (zones, hosts, most) = shared(&domains(zones, is_paired), wanted, offset);
                assert_eq!((zones, hosts), (0, 0), "offset {offset}");
                assert!(most <= wanted as usize + 1, "{most} copies at one");
            }
            let (_, hosts, most) = shared(&domains("aaaaaaaa", true), 1, offset);
            assert!(hosts == 0 && most <= 2, "one zone, four machines");
            let (zones, hosts, most) = shared(&domains("aaaaaaab", false), 1, offset);
            assert!(hosts == 0 && most <= 2, "one is not to keep all copies");
            assert_eq!(zones, 5, "the one in the other zone keeps two, and its own go elsewhere");
        }
    }

    /// Of two pipelines of two stages one node is lost: of the three that are left two go on without a
    /// layer moved, whichever was lost.
    #[test]
    fn who_is_left_of_two_pipelines_keeps_its_layers() {
        let spec = JobSpec { copies: 0, ..spec() };
        let log = FixtureLog::with_job(spec.clone(), &[1, 2, 3, 4]);
        let mut before = log.plan(&[1, 2, 3, 4]);
        side_by_side_twice(&mut before);
        let mut two = solution(2, Window::One);
        two.chunks = before.chunks[..2].to_vec();
        let copies = vec![Vec::new(); 2];
        for lost in 1..=4 {
            let left: Vec<Holder> =
                (1..=4).filter(|node| *node != lost).map(|node| log.holder(node)).collect();
            let alike = |_: &Holder| Resources::NONE;
            let seated = reseated(&before, &left, alike, (&two, &copies), &spec);
            let mut plan = log.plan(&[1, 2]);
            plan.program = two.program.clone();
            plan.chunks = two.chunks.clone();
            plan.stages = seated[..2].to_vec();
            plan.copies = copies.clone();
            for (stage, holder) in plan.stage_indices().zip(&plan.stages) {
                let held = held_layers(&before, *holder);
                assert!(plan.layers_of(stage).all(|layer| held.contains(&layer)), "without {lost}");
            }
        }
    }

    /// Two pipelines hold each layer twice: of two other holders one keeps a copy, and is none of them.
    #[test]
    fn a_layer_that_two_pipelines_train_needs_a_copy_less() {
        let copies = |columns, stages, wanted, offset| {
            let domains = vec![FailureDomain::default(); stages as usize];
            let placement = Placement::of_columns(PlacementShape::Line, columns, stages, stages);
            super::copies(&domains, &placement.expect("legal"), (wanted, offset))
        };
        for offset in 0..5 {
            assert_eq!(copies(2, 4, 1, offset), vec![Vec::new(); 4], "no copy");
            let found = copies(2, 4, 2, offset);
            assert!(found[2..].iter().all(Vec::is_empty), "they speak for no layer");
            for (stage, by) in found[..2].iter().enumerate() {
                assert!(by.len() == 1 && by[0].index() % 2 != stage, "{by:?} of {stage}");
            }
        }
        assert_eq!(copies(4, 4, 3, 0), vec![Vec::new(); 4], "four pipelines of one stage");
        assert_eq!(copies(2, 4, 3, 0)[0].len(), 2, "all others");
    }

    #[test]
    fn no_zones_make_the_ring_of_before() {
        for (count, wanted, offset) in [(5_u32, 1_u32, 0_u32), (5, 2, 3), (2, 1, 7), (9, 2, 4)] {
            let ring = |stage: u32, place: u32| {
                let others = count - 1;
                StageIndex((stage + 1 + (offset % others + place) % others) % count)
            };
            let of = |stage| (0..wanted).map(|place| ring(stage, place)).collect::<Vec<_>>();
            assert_eq!(copies(count, wanted, offset), (0..count).map(of).collect::<Vec<_>>());
        }
    }
}
