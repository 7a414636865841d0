//! R9 and R10: nothing sealed is given up without evidence, and waiting ends with lack of progress.

use zbelastic_types::{LayerId, NodeId, Step};

use crate::duty::{AwaitedAnswer, AwaitedMember, PlanNeed};
use crate::entry::{Entry, RewindReason};
use crate::fixture::{FixtureLog, admit, lost};
use crate::job::JobSpec;
use crate::member::{LossReason, MemberChange};
use crate::message::LoadFault;
use crate::plan::{LayerSource, PlanReason};

use super::harness::{DutiesHarness, TIMING};
use super::planning::{adopted, loading, long};

/// R10: as long as any worker in the plan does something, it moves; and so it does while an operation is
/// under way that the plan allows.
#[test]
fn r10_a_plan_whose_members_get_on_is_not_given_up_however_long_they_take() {
    let long_time = 20 * TIMING.progress_ticks;
    for mut bench in [DutiesHarness::running(long(), &[1, 2]), loading()] {
        for _ in 0..long_time {
            bench.progress += 1;
            bench.beat(1, 0, 0);
            bench.progress -= 1;
            bench.tick(1, &[2]);
            assert_eq!(bench.need(), None, "the first gets on");
            bench.progress += 1;
        }
    }
    let mut bench = DutiesHarness::running(long(), &[1, 2]);
    for _ in 0..long_time {
        bench.tick(1, &[2]);
        bench.beat(1, bench.plan().op_ticks_max, 0);
        assert_eq!(bench.need(), None, "an operation is under way");
    }
    bench.tick(TIMING.progress_ticks + 1, &[1, 2]);
    assert!(matches!(bench.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))));
}

/// A worker that works beside the plan does not show that the plan moves.
#[test]
fn progress_of_others_is_none_of_the_plan() {
    let mut bench = DutiesHarness::running(JobSpec { stages_max: 1, ..long() }, &[1]);
    bench.agree(Entry::Members(vec![admit(2, 1)]));
    for _ in 0..=TIMING.progress_ticks {
        bench.tick(1, &[1]);
        bench.progress += 1;
        bench.beat(2, 0, 0);
        bench.progress -= 1;
    }
    let members = bench.act();
    assert!(matches!(bench.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))), "{members:?}");
}

/// Two are left of three, and only the third's copy of a layer may be where the second has it.
fn with_a_late_holder() -> DutiesHarness {
    let mut log = FixtureLog::running(long(), &[1, 2, 3]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(2);
    let mut bench = DutiesHarness::new(log);
    bench.agree(Entry::Members(vec![lost(bench.log.holder(2))]));
    bench.act();
    bench.solve();
    bench.report_held(1, &[0, 1], 6);
    bench
}

#[test]
fn r9_a_holder_that_is_late_is_waited_for_before_anything_sealed_is_given_up() {
    let mut bench = with_a_late_holder();
    bench.work(100 * TIMING.inventory_ticks, &[1, 3]);
    assert_eq!(bench.act(), [], "it may hold what nobody else does");
    let (node, answer, still_ticks) = (NodeId(3), AwaitedAnswer::Inventory, 1);
    let awaited = bench.duties.awaited_members(&bench.log.state);
    assert_eq!(awaited, [AwaitedMember { node, answer, still_ticks }]);
    bench.report_held(3, &[2, 3], 6);
    let plan = adopted(&bench.act());
    assert_eq!(plan.from_step, Step(6), "and it did");
}

#[test]
fn r9_the_run_goes_back_once_every_holder_has_answered_or_is_gone() {
    let rewind = |bench: &mut DutiesHarness| {
        let proposed = bench.act();
        let [.., Entry::Rewind { to, reason, .. }] = &proposed[..] else { panic!("{proposed:?}") };
        assert_eq!((*to, *reason), (Step(4), RewindReason::LayerLost { layer: LayerId(2) }));
    };
    let mut bench = with_a_late_holder();
    bench.report_held(3, &[0], 6);
    rewind(&mut bench);
    let mut bench = with_a_late_holder();
    bench.agree(Entry::Members(vec![lost(bench.log.holder(3))]));
    bench.act();
    bench.solve();
    bench.report_held(1, &[0, 1], 6);
    rewind(&mut bench);
}

/// R10: otherwise it would be waited for for ever.
#[test]
fn r10_who_owes_an_answer_and_gets_no_further_is_lost() {
    let mut bench = with_a_late_holder();
    bench.work(3 * TIMING.progress_ticks, &[1, 3]);
    bench.tick(TIMING.progress_ticks - 1, &[1, 3]);
    assert_eq!(bench.act(), []);
    bench.tick(1, &[1, 3]);
    let ticks = TIMING.progress_ticks + 1;
    let (holder, reason) = (bench.log.holder(3), LossReason::NoProgress { ticks });
    let lost = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
    assert_eq!(bench.act()[0], lost);
    let mut bench = loading();
    bench.duties.handle_ready(&bench.log.state, bench.log.ready(0)).expect("it loads");
    bench.act();
    bench.work(3 * TIMING.progress_ticks, &[1, 2]);
    bench.tick(TIMING.progress_ticks, &[1, 2]);
    let (holder, reason) = (bench.log.holder(2), LossReason::NoProgress { ticks });
    let lost = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
    assert_eq!(bench.act()[0], lost);
}

fn complain(bench: &mut DutiesHarness, node: u64) {
    let (state, holder) = (&bench.log.state, bench.log.holder(node));
    let fault = (LayerId(1), LoadFault::Source);
    let told = bench.duties.handle_load_failed(state, holder, state.generation(), fault);
    told.expect("it loads");
}

/// R10: a layer that others hold is on its way as long as they get on.
#[test]
fn r10_a_layer_that_does_not_come_is_given_up_when_neither_side_gets_on() {
    let mut log = FixtureLog::running(long(), &[1, 2]);
    log.keep(2);
    log.adopt(log.plan(&[2, 1]));
    let mut bench = DutiesHarness::new(log);
    let is_of_nodes = |source: &LayerSource| matches!(source, LayerSource::Nodes(_));
    assert!(bench.plan().sources.iter().all(is_of_nodes));
    bench.duties.handle_ready(&bench.log.state, bench.log.ready(0)).expect("it loads");
    bench.act();
    for _ in 0..5 * TIMING.progress_ticks {
        bench.work(1, &[1, 2]);
        complain(&mut bench, 1);
        assert_eq!((bench.need(), bench.act()), (None, Vec::new()));
    }
    bench.tick(TIMING.progress_ticks - 1, &[1, 2]);
    complain(&mut bench, 1);
    assert_eq!(bench.need(), None);
    bench.tick(1, &[2, 1]);
    complain(&mut bench, 1);
    let layer = LayerId(1);
    assert_eq!(bench.need(), Some(PlanNeed::Now(PlanReason::LoadFailed { layer })));
    assert_eq!(
        (bench.act(), bench.solve_request.is_some()),
        (Vec::new(), true),
        "nobody is lost for it"
    );
}
