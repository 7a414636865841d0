//! Assignment of nodes to stages: as few bytes as possible move between nodes.

use std::collections::BTreeSet;

use zbelastic_schedule::Program;
use zbelastic_types::{ChunkIndex, LayerId, StageIndex};

use super::PlanSolution;
use crate::job::JobSpec;
use crate::member::{Holder, Resources};
use crate::plan::{LayerSource, PlanRecord};
use crate::pre_copy::{held_layers, needed_layers};

/// The cost of a stage that no holder may get. Those of all stages together are below 2^62.
pub(super) const FORBIDDEN: u64 = 1 << 55;

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

pub(super) fn bytes_of<'a>(spec: &JobSpec, layers: impl Iterator<Item = &'a LayerId>) -> u64 {
    layers.map(|layer| spec.layer_bytes.get(layer.index()).copied().unwrap_or(1).max(1)).sum()
}

/// The layers that a stage updates, and those it keeps copies of. With a sharded optimizer those are left out that
/// it only gets the candidates of: nobody holds them who does not update them.
fn needed_at(
    solution: &PlanSolution,
    copies: &[Vec<StageIndex>],
    stage: usize,
) -> BTreeSet<LayerId> {
    let placement = &solution.program.placement;
    let is_kept = |of: &usize| copies[*of].iter().any(|by| by.index() == stage);
    let kept = (0..copies.len()).filter(is_kept).map(|of| StageIndex(of as u32));
    let kept = kept.flat_map(|of| placement.chunks_of(of));
    let layers = |chunk: ChunkIndex| solution.chunks[chunk.index()].ids();
    let kept = kept.flat_map(|of| placement.shards().owned(of, layers(of)));
    let own = placement.chunks_of(StageIndex(stage as u32));
    let own = own.flat_map(|of| placement.shards().updated(of, layers(of)));
    own.chain(kept).map(LayerId).collect()
}

/// For each row the column it is given, each once, at the least cost in all: the Hungarian method
/// with potentials, rows added one after the other.
pub(super) fn assignment(count: usize, cost: impl Fn(usize, usize) -> u64) -> Vec<usize> {
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

#[cfg(test)]
mod tests {
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    use zbelastic_schedule::Window;

    use super::{assignment, reseated};
    use crate::duty::PlanSolution;
    use crate::fixture::{
        FixtureLog, four_in_two_shards, side_by_side_twice, solution, spec, without_the_third,
    };
    use crate::job::JobSpec;
    use crate::member::{Holder, Resources};
    use crate::plan::PlanRecord;
    use crate::pre_copy::held_layers;

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

    /// Of four replicas in two shards the third is lost: the first one has the moments of both places.
    #[test]
    fn who_updates_a_shard_is_seated_where_it_is_updated() {
        let spec = JobSpec { copies: 0, microbatch_count: 4, ..spec() };
        let log = FixtureLog::with_job(spec.clone(), &[1, 2, 3, 4]);
        let mut before = log.plan(&[1, 2, 3, 4]);
        four_in_two_shards(&mut before);
        let mut shared = before.clone();
        without_the_third(&mut shared);
        let PlanRecord { program, chunks, copies, .. } = shared;
        let stage_nodes = vec![0, 1, 2];
        let solution = PlanSolution { program, chunks, stage_nodes, op_ticks_max: 50 };
        let nodes = [2, 1, 4].map(|node| log.holder(node));
        let alike = |_: &Holder| Resources::NONE;
        let seated = reseated(&before, &nodes, alike, (&solution, &copies), &spec);
        assert_eq!(seated, [1, 2, 4].map(|node| log.holder(node)));
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
}
