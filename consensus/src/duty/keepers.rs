//! Which stages keep copies of which other stages' layers.

use zbelastic_schedule::Placement;
use zbelastic_types::{LayerId, StageIndex};

use super::draft::Planning;
use super::planning::copies_wanted;
use super::seating::{FORBIDDEN, assignment, bytes_of};
use crate::contact::FailureDomain;
use crate::job::JobSpec;
use crate::member::Holder;
use crate::plan::{LayerSource, PlanRecord, copies_beside, counted_holders};
use crate::state::State;

/// The most kibibytes that a keeper is taken to lack: 8 TiB.
const MISSING_KIB_MAX: u64 = 1 << 33;
/// The cost of another holder in one zone: more than that of all bytes that one keeper may lack, times
/// the stages that there may be.
const ZONE_COST: u64 = 1 << 43;
/// The cost of another holder on one machine, and the most of them that count.
const HOST_COST: u64 = 1 << 46;
const SHARED_MAX: u64 = 7;

impl Planning {
    /// For each stage, the stages that keep copies of its layers. As long as nodes are in doubt
    /// that does not depend on their stages: others must be paired until it is known which is at
    /// fault.
    pub(super) fn copies_of(
        &self,
        state: &State,
        placement: &Placement,
        stages: &[Holder],
    ) -> Vec<Vec<StageIndex>> {
        let domains = self.domains_of(state, stages);
        copies(&domains, placement, (copies_wanted(state), self.blame.total()))
    }

    /// Exchanges the keepers of a plan's copies so that as few bytes as possible move.
    pub(super) fn keep_copies_in_place(&self, state: &State, record: &mut PlanRecord) {
        if let Some(spec) = state.running_spec().filter(|_| !self.blame.has_doubts()) {
            record.copies = copies_in_place(&self.domains_of(state, &record.stages), record, spec);
        }
    }

    fn domains_of(&self, state: &State, stages: &[Holder]) -> Vec<FailureDomain> {
        let domain = |holder: &Holder| match state.members().get(&holder.node) {
            Some(member) if !self.blame.has_doubts() => member.contact.place.clone(),
            Some(_) | None => FailureDomain::default(),
        };
        stages.iter().map(domain).collect()
    }
}

/// For each stage the stages that keep copies of it, each of whose failure domains is given. They
/// are in other zones and on other machines than the stages that have it already, as far as there
/// are such and none of them keeps more than one copy more than its share; of several the next ones
/// behind `offset`, in a ring of the others. Another offset makes other pairs.
#[must_use]
pub fn copies(
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

/// The keepers of a plan's copies, exchanged among its stages so that those keep a layer that are among
/// its sources, as far as that is possible without more holders of a layer in one zone or on one machine.
/// Each stage keeps as many copies as before.
#[must_use]
fn copies_in_place(
    domains: &[FailureDomain],
    record: &PlanRecord,
    spec: &JobSpec,
) -> Vec<Vec<StageIndex>> {
    let placement = &record.program.placement;
    let stages: Vec<Vec<LayerId>> =
        record.stage_indices().map(|stage| record.layers_of(stage).collect()).collect();
    let is_missing = |layer: &LayerId, by: usize| match &record.sources[layer.index()] {
        LayerSource::Nodes(nodes) => !nodes.contains(&record.stages[by].node),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    let missing_kib = |of: usize, by: usize| {
        let missing = stages[of].iter().filter(|layer| is_missing(layer, by));
        bytes_of(spec, missing).div_ceil(1024).min(MISSING_KIB_MAX)
    };
    let mut kept = vec![Vec::new(); stages.len()];
    let rounds = record.copies.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        let chosen = record.copies.iter().enumerate();
        let chosen: Vec<(usize, usize)> =
            chosen.filter_map(|(of, by)| Some((of, by.get(round)?.index()))).collect();
        let cost = |row: usize, column: usize| {
            let of = chosen[row].0;
            let by = chosen[column].1;
            let has = holders_beside(placement, &kept, of);
            if has.contains(&by) {
                return FORBIDDEN;
            }
            let shared = |is: fn(&FailureDomain, &FailureDomain) -> bool| {
                let shared = has.iter().filter(|other| is(&domains[by], &domains[**other]));
                (shared.count() as u64).min(SHARED_MAX)
            };
            let places = shared(FailureDomain::shares_host) * HOST_COST
                + shared(FailureDomain::shares_zone) * ZONE_COST;
            // No number of keepers that are exchanged is worth a kibibyte.
            let moved = missing_kib(of, by) * (chosen.len() as u64 + 1);
            places + moved + u64::from(row != column)
        };
        let given = assignment(chosen.len(), cost);
        if given.iter().enumerate().any(|(row, column)| cost(row, *column) == FORBIDDEN) {
            return record.copies.clone();
        }
        for (row, column) in given.into_iter().enumerate() {
            kept[chosen[row].0].push(StageIndex(chosen[column].1 as u32));
        }
    }
    let shared = |copies: &[Vec<StageIndex>]| shared_places(domains, placement, copies);
    if shared(&kept) > shared(&record.copies) { record.copies.clone() } else { kept }
}

/// The stages that have a stage's layers: those that train them, and those that keep copies.
fn holders_beside(placement: &Placement, kept: &[Vec<StageIndex>], of: usize) -> Vec<usize> {
    let trained = counted_holders(placement, StageIndex(of as u32));
    trained.iter().chain(&kept[of]).map(|stage| stage.index()).collect()
}

/// Pairs of holders of a stage's layers on one machine, and those in one zone.
fn shared_places(
    domains: &[FailureDomain],
    placement: &Placement,
    copies: &[Vec<StageIndex>],
) -> (usize, usize) {
    let mut shared = (0, 0);
    for (of, by) in copies.iter().enumerate().filter(|(_, by)| !by.is_empty()) {
        let has = holders_beside(placement, copies, of);
        for keeper in by.iter().map(|by| by.index()) {
            let others = || has.iter().filter(|other| **other != keeper);
            let domain = &domains[keeper];
            shared.0 += others().filter(|other| domain.shares_host(&domains[**other])).count();
            shared.1 += others().filter(|other| domain.shares_zone(&domains[**other])).count();
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use zbelastic_schedule::{Placement, PlacementShape};
    use zbelastic_types::{NodeId, StageIndex};

    use super::*;
    use crate::contact::FailureDomain;
    use crate::fixture::{FixtureLog, spec};
    use crate::job::{COPIES_MAX, JobSpec};

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

    /// A plan of four stages with a layer each; node `n` keeps the layers of the stage of `held[n - 1]`.
    fn plan_of_four(copies: u32, held: &[&[u32]; 4]) -> PlanRecord {
        let mut log = FixtureLog::running(JobSpec { copies, ..spec() }, &[1, 2, 3, 4]);
        log.keep(1);
        let mut record = log.plan(&[1, 2, 3, 4]);
        for (layer, source) in (0..).zip(&mut record.sources) {
            let has = |node: &u64| {
                let held = held[*node as usize - 1];
                layer + 1 == *node as u32 || held.contains(&layer)
            };
            *source = LayerSource::Nodes((1..=4).filter(has).map(NodeId).collect());
        }
        record
    }

    fn keepers(record: &PlanRecord, places: &[FailureDomain]) -> Vec<Vec<u32>> {
        let kept = copies_in_place(places, record, &spec());
        kept.iter().map(|by| by.iter().map(|stage| stage.0).collect()).collect()
    }

    #[test]
    fn those_keep_copies_that_have_them_already() {
        let anywhere = vec![FailureDomain::default(); 4];
        let ring = [[1], [2], [3], [0]];
        let nobody = plan_of_four(1, &[&[]; 4]);
        assert_eq!(keepers(&nobody, &anywhere), ring, "the plan's own");
        let two_on = plan_of_four(1, &[&[2], &[3], &[0], &[1]]);
        assert_eq!(keepers(&two_on, &anywhere), [[2], [3], [0], [1]]);
        let back = plan_of_four(1, &[&[1], &[2], &[3], &[0]]);
        assert_eq!(keepers(&back, &anywhere), [[3], [0], [1], [2]], "the ring the other way");
        // Both would have to be kept by the first: each keeps as many as it did.
        let crowded = plan_of_four(1, &[&[1, 2, 3], &[], &[], &[]]);
        let kept = keepers(&crowded, &anywhere);
        let all: BTreeSet<u32> = kept.iter().flatten().copied().collect();
        assert_eq!(all.len(), 4, "{kept:?}");
        let twice = plan_of_four(2, &[&[1, 2], &[2, 3], &[0, 3], &[0, 1]]);
        let kept = keepers(&twice, &anywhere).into_iter().map(BTreeSet::from_iter);
        let expected = [[2, 3], [0, 3], [0, 1], [1, 2]].map(BTreeSet::from);
        assert_eq!(kept.collect::<Vec<BTreeSet<u32>>>(), expected);
    }

    /// A copy in the owner's zone or on its machine is worth no bytes.
    #[test]
    fn no_copy_stays_where_it_would_be_lost_with_its_owner() {
        let held: [&[u32]; 4] = [&[1], &[0], &[3], &[2]];
        for places in [domains("aabb", false), domains("aaaa", true)] {
            let mut record = plan_of_four(1, &held);
            record.copies = copies_at_places(&places);
            for (of, by) in keepers(&record, &places).into_iter().enumerate() {
                assert_ne!(by[0] as usize / 2, of / 2, "they share their place");
            }
        }
    }

    fn copies_at_places(places: &[FailureDomain]) -> Vec<Vec<StageIndex>> {
        super::copies(places, &Placement::line(places.len() as u32), (1, 0))
    }
}
