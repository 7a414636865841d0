//! Behind the last step: the last checkpoint is written, whichever worker is lost meanwhile.

use zbelastic_types::{LayerId, Step};

use super::harness::{DutiesHarness, TIMING};
use crate::duty::PlanNeed;
use crate::entry::Entry;
use crate::fixture::{SETTLE_TICKS, digests, spec};
use crate::job::JobPhase;
use crate::plan::PlanReason;

/// Everything is sealed, and nothing of the last checkpoint is durable.
fn harness() -> DutiesHarness {
    let mut harness = DutiesHarness::running(spec(), &[1, 2]);
    let steps = spec().step_count;
    for _ in 0..steps {
        harness.report_all();
        assert!(matches!(harness.act()[..], [Entry::Seal(_)]));
    }
    assert!(harness.log.state.training().is_all_sealed());
    harness
}

fn phase(harness: &DutiesHarness) -> JobPhase {
    harness.log.state.job().expect("there is one").phase
}

/// A worker has written its stage of the plan in force.
fn save(harness: &mut DutiesHarness, stage: usize) {
    let plan = harness.plan();
    let layers = plan.layers_of(zbelastic_types::StageIndex(stage as u32));
    let (holder, version) = (plan.stages[stage], harness.log.state.open_turn().step);
    let (generation, layers) = (plan.generation, digests(layers, version.0));
    let result =
        harness.duties.handle_saved(&harness.log.state, holder, (version, generation), (layers, 0));
    result.expect("it is awaited");
}

#[test]
fn who_is_left_writes_the_last_checkpoint_when_a_worker_is_lost() {
    let mut harness = harness();
    save(&mut harness, 0);
    harness.act();
    harness.agree(Entry::Members(vec![crate::fixture::lost(harness.log.holder(2))]));
    let plan = harness.replan_now();
    assert_eq!((plan.stages.len(), plan.from_step), (1, Step(12)));
    harness.load();
    assert_eq!(phase(&harness), JobPhase::Running);
    assert_eq!(harness.log.pending_versions().last(), Some(&12), "under the new plan");
    save(&mut harness, 0);
    harness.act();
    assert_eq!(phase(&harness), JobPhase::Done);
    assert_eq!(harness.log.checkpoint_versions().last(), Some(&12));
    assert_eq!(harness.need(), None);
}

#[test]
fn a_last_checkpoint_that_nobody_gets_on_with_is_written_anew() {
    let mut harness = harness();
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(harness.need(), None, "who writes may take longer than a step");
    harness.tick(1, &[1, 2]);
    let ticks = TIMING.progress_ticks + 1;
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { ticks })));
}

#[test]
fn who_gets_on_with_the_last_checkpoint_is_waited_for() {
    let mut harness = harness();
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    let (version, holder) = (12, harness.log.holder(1));
    let first = digests([LayerId(0)], version);
    harness.agree(harness.log.durable(version, holder, first));
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[1, 2]);
    assert!(matches!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))));
}

#[test]
fn nobody_is_planned_in_behind_the_last_step() {
    let mut harness = harness();
    harness.agree(Entry::Members(vec![crate::fixture::admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    assert_eq!(harness.need(), None);
}
