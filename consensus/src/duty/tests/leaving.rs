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

fn drain(harness: &mut DutiesHarness, node: u64) {
    let holder = harness.log.holder(node);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
}

#[test]
fn the_last_to_go_save_what_they_hold_and_whoever_comes_goes_on_from_it() {
    let mut harness = DutiesHarness::running(seldom(), &[1, 2]);
    harness.log.keep(5);
    drain(&mut harness, 1);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Draining { count: 1 })));
    drain(&mut harness, 2);
    assert_eq!(harness.need(), None, "there is nobody to plan with");
    assert_eq!(harness.act(), [Entry::Keep { version: Step(6) }]);
    harness.report_all();
    assert!(matches!(harness.act()[..], [Entry::Seal(_)]));
    harness.report_all();
    assert_eq!(harness.act(), [], "nothing is sealed that would not be saved");
    assert_eq!(harness.duties.withheld(&harness.log.state), Some(WithheldReason::Leaving));
    let holders = [1, 2].map(|node| harness.log.holder(node));
    save(&mut harness, 6, 0);
    let then = harness.act();
    assert!(!then.iter().any(|entry| matches!(entry, Entry::Seal(_))), "nobody holds it: {then:?}");
    assert!(holders.iter().all(|holder| !harness.log.state.is_live(*holder)), "they may go");
    assert_eq!(harness.log.checkpoint_versions(), [6]);

    harness.agree(Entry::Members(vec![admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[3]);
    harness.act();
    harness.solve();
    harness.report_held(3, &[], 6);
    let plan = adopted(&harness.act());
    let is_read = |source: &LayerSource| source.is_checkpoint(Step(6));
    assert!(plan.sources.iter().all(is_read), "{:?}", plan.sources);
    assert_eq!(plan.from_step, Step(6), "no sealed step is lost");
}

#[test]
fn who_leaves_fewer_than_a_run_needs_saves_as_well_and_the_others_stay() {
    let mut harness = DutiesHarness::running(JobSpec { workers_min: 2, ..seldom() }, &[1, 2]);
    drain(&mut harness, 2);
    assert_eq!(harness.act(), [Entry::Keep { version: Step(1) }]);
    harness.report_all();
    harness.act();
    let holders = [1, 2].map(|node| harness.log.holder(node));
    save(&mut harness, 1, 0);
    harness.act();
    assert_eq!(holders.map(|holder| harness.log.state.is_live(holder)), [true, false]);
}

#[test]
fn somebody_who_comes_meanwhile_takes_over_and_steps_are_sealed_again() {
    let mut harness = DutiesHarness::running(seldom(), &[1]);
    drain(&mut harness, 1);
    assert_eq!(harness.act(), [Entry::Keep { version: Step(1) }]);
    harness.report_all();
    harness.act();
    harness.report_all();
    assert_eq!(harness.act(), []);
    harness.agree(Entry::Members(vec![admit(2, 1)]));
    harness.tick(1, &[1, 2]);
    let sealed = harness.act();
    assert!(sealed.iter().any(|entry| matches!(entry, Entry::Seal(_))), "{sealed:?}");
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Draining { count: 1 })));
}

/// A plan that was to begin later never does: nothing is sealed any more.
#[test]
fn a_plan_that_is_to_come_holds_nobody_who_leaves() {
    let mut harness = DutiesHarness::running(seldom(), &[1, 2]);
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    harness.act();
    harness.solve();
    adopted(&harness.act());
    assert!(harness.log.state.next_plan().is_some());
    let holders = [1, 2, 3].map(|node| harness.log.holder(node));
    [1, 2, 3].into_iter().for_each(|node| drain(&mut harness, node));
    assert_eq!(harness.act(), [Entry::Keep { version: Step(1) }]);
    harness.report_all();
    harness.act();
    save(&mut harness, 1, 0);
    harness.act();
    assert!(holders.iter().all(|holder| !harness.log.state.is_live(*holder)), "they may go");
}
