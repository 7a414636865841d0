//! Behind the last step: the last checkpoint is written, whichever worker is lost meanwhile.

use zbelastic_types::{LayerId, Step};

use super::harness::{DutiesHarness, TIMING};
use crate::duty::PlanNeed;
use crate::entry::Entry;
use crate::fixture::{SETTLE_TICKS, digests, spec};
use crate::job::JobPhase;
use crate::plan::PlanReason;

/// Everything is sealed, and nothing of the last checkpoint is durable.
fn bench() -> DutiesHarness {
    let mut bench = DutiesHarness::running(spec(), &[1, 2]);
    let steps = spec().step_count;
    for _ in 0..steps {
        bench.report_all();
        assert!(matches!(bench.act()[..], [Entry::Seal(_)]));
    }
    assert!(bench.log.state.is_all_sealed());
    bench
}

fn phase(bench: &DutiesHarness) -> JobPhase {
    bench.log.state.job().expect("there is one").phase
}

/// A worker has written its stage of the plan in force.
fn save(bench: &mut DutiesHarness, stage: usize) {
    let plan = bench.plan();
    let layers = plan.layers_of(zbelastic_types::StageIndex(stage as u32));
    let (holder, version) = (plan.stages[stage], bench.log.state.open_turn().step);
    let (generation, layers) = (plan.generation, digests(layers, version.0));
    let told =
        bench.duties.handle_saved(&bench.log.state, holder, (version, generation), (layers, 0));
    told.expect("it is awaited");
}

#[test]
fn who_is_left_writes_the_last_checkpoint_when_a_worker_is_lost() {
    let mut bench = bench();
    save(&mut bench, 0);
    bench.act();
    bench.agree(Entry::Members(vec![crate::fixture::lost(bench.log.holder(2))]));
    let plan = bench.replan_now();
    assert_eq!((plan.stages.len(), plan.from_step), (1, Step(12)));
    bench.load();
    assert_eq!(phase(&bench), JobPhase::Running);
    assert_eq!(bench.log.pending_versions().last(), Some(&12), "under the new plan");
    save(&mut bench, 0);
    bench.act();
    assert_eq!(phase(&bench), JobPhase::Done);
    assert_eq!(bench.log.checkpoint_versions().last(), Some(&12));
    assert_eq!(bench.need(), None);
}

#[test]
fn a_last_checkpoint_that_nobody_gets_on_with_is_written_anew() {
    let mut bench = bench();
    bench.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(bench.need(), None, "who writes may take longer than a step");
    bench.tick(1, &[1, 2]);
    let ticks = TIMING.progress_ticks + 1;
    assert_eq!(bench.need(), Some(PlanNeed::Now(PlanReason::Stalled { ticks })));
}

#[test]
fn who_gets_on_with_the_last_checkpoint_is_waited_for() {
    let mut bench = bench();
    bench.tick(TIMING.progress_ticks, &[1, 2]);
    let (version, holder) = (12, bench.log.holder(1));
    let first = digests([LayerId(0)], version);
    bench.agree(bench.log.durable(version, holder, first));
    bench.tick(TIMING.progress_ticks, &[1, 2]);
    assert_eq!(bench.need(), None);
    bench.tick(1, &[1, 2]);
    assert!(matches!(bench.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))));
}

#[test]
fn nobody_is_planned_in_behind_the_last_step() {
    let mut bench = bench();
    bench.agree(Entry::Members(vec![crate::fixture::admit(3, 1)]));
    bench.tick(SETTLE_TICKS, &[1, 2, 3]);
    assert_eq!(bench.need(), None);
}
