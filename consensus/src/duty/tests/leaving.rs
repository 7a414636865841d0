//! The workers that hold the layers are about to go, and too few are there to hand them over to.

use zbelastic_types::Step;

use super::checkpoint_timer::save;
use super::harness::DutiesHarness;
use super::planning::{adopted, long};
use crate::duty::{PlanNeed, WithheldReason};
use crate::entry::Entry;
use crate::fixture::{SETTLE_TICKS, admit};
use crate::job::JobSpec;
use crate::member::MemberChange;
use crate::plan::{LayerSource, PlanReason};

/// No checkpoint is due for long, neither by steps nor by time.
fn seldom() -> JobSpec {
    JobSpec { checkpoint_every: 1000, checkpoint_ticks: 0, ..long() }
}

fn drain(bench: &mut DutiesHarness, node: u64) {
    let holder = bench.log.holder(node);
    bench.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
}

#[test]
fn the_last_to_go_save_what_they_hold_and_whoever_comes_goes_on_from_it() {
    let mut bench = DutiesHarness::running(seldom(), &[1, 2]);
    bench.log.keep(5);
    drain(&mut bench, 1);
    assert_eq!(bench.need(), Some(PlanNeed::Planned(PlanReason::Draining { count: 1 })));
    drain(&mut bench, 2);
    assert_eq!(bench.need(), None, "there is nobody to plan with");
    assert_eq!(bench.act(), [Entry::Keep { version: Step(6) }]);
    bench.report_all();
    assert!(matches!(bench.act()[..], [Entry::Seal(_)]));
    bench.report_all();
    assert_eq!(bench.act(), [], "nothing is sealed that would not be saved");
    assert_eq!(bench.duties.withheld(&bench.log.state), Some(WithheldReason::Leaving));
    let holders = [1, 2].map(|node| bench.log.holder(node));
    save(&mut bench, 6, 0);
    let then = bench.act();
    assert!(!then.iter().any(|entry| matches!(entry, Entry::Seal(_))), "nobody holds it: {then:?}");
    assert!(holders.iter().all(|holder| !bench.log.state.is_live(*holder)), "they may go");
    assert_eq!(bench.log.checkpoint_versions(), [6]);

    bench.agree(Entry::Members(vec![admit(3, 1)]));
    bench.tick(SETTLE_TICKS, &[3]);
    bench.act();
    bench.solve();
    bench.report_held(3, &[], 6);
    let plan = adopted(&bench.act());
    let is_read = |source: &LayerSource| source.is_checkpoint(Step(6));
    assert!(plan.sources.iter().all(is_read), "{:?}", plan.sources);
    assert_eq!(plan.from_step, Step(6), "no sealed step is lost");
}

#[test]
fn who_leaves_fewer_than_a_run_needs_saves_as_well_and_the_others_stay() {
    let mut bench = DutiesHarness::running(JobSpec { workers_min: 2, ..seldom() }, &[1, 2]);
    drain(&mut bench, 2);
    assert_eq!(bench.act(), [Entry::Keep { version: Step(1) }]);
    bench.report_all();
    bench.act();
    let holders = [1, 2].map(|node| bench.log.holder(node));
    save(&mut bench, 1, 0);
    bench.act();
    assert_eq!(holders.map(|holder| bench.log.state.is_live(holder)), [true, false]);
}

#[test]
fn somebody_who_comes_meanwhile_takes_over_and_steps_are_sealed_again() {
    let mut bench = DutiesHarness::running(seldom(), &[1]);
    drain(&mut bench, 1);
    assert_eq!(bench.act(), [Entry::Keep { version: Step(1) }]);
    bench.report_all();
    bench.act();
    bench.report_all();
    assert_eq!(bench.act(), []);
    bench.agree(Entry::Members(vec![admit(2, 1)]));
    bench.tick(1, &[1, 2]);
    let sealed = bench.act();
    assert!(sealed.iter().any(|entry| matches!(entry, Entry::Seal(_))), "{sealed:?}");
    assert_eq!(bench.need(), Some(PlanNeed::Planned(PlanReason::Draining { count: 1 })));
}

/// A plan that was to begin later never does: nothing is sealed any more.
#[test]
fn a_plan_that_is_to_come_holds_nobody_who_leaves() {
    let mut bench = DutiesHarness::running(seldom(), &[1, 2]);
    bench.agree(Entry::Members(vec![admit(3, 1)]));
    bench.tick(SETTLE_TICKS, &[1, 2, 3]);
    bench.act();
    bench.solve();
    adopted(&bench.act());
    assert!(bench.log.state.next_plan().is_some());
    let holders = [1, 2, 3].map(|node| bench.log.holder(node));
    [1, 2, 3].into_iter().for_each(|node| drain(&mut bench, node));
    assert_eq!(bench.act(), [Entry::Keep { version: Step(1) }]);
    bench.report_all();
    bench.act();
    save(&mut bench, 1, 0);
    bench.act();
    assert!(holders.iter().all(|holder| !bench.log.state.is_live(*holder)), "they may go");
}
