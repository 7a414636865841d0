//! A new leader begins without any reports, and workers send them again.

use crate::duty::LeaderAction;
use crate::entry::Entry;
use crate::fixture::spec;
use crate::validation::{Seal, Verdict};

use super::harness::DutiesHarness;

/// The seal that is proposed once all stages have reported in this order.
fn sealed(harness: &mut DutiesHarness, order: &[usize]) -> Seal {
    for stage in order {
        harness.report(*stage);
        harness.hold(*stage);
    }
    let proposed = harness.act();
    let [Entry::Seal(seal)] = proposed[..] else { panic!("{proposed:?}") };
    seal
}

#[test]
fn a_leader_elected_anew_knows_nothing_until_it_is_told_again() {
    let mut harness = DutiesHarness::running(spec(), &[1, 2]);
    harness.report(0);
    harness.hold(0);
    harness.report(1);
    harness.elect_anew();
    assert_eq!(
        harness.duties.withheld(&harness.log.state),
        None,
        "it does not know that there is any"
    );
    harness.hold(1);
    assert_eq!(harness.act(), [], "what was told to the leader before does not count");
    harness.report(1);
    assert_eq!(harness.act(), []);
    let seal = sealed(&mut harness, &[0]);
    assert_eq!(seal.verdict, Verdict::Keep);
}

/// N5: leaders that receive the same reports in any order propose the same seal, so it does not
/// matter which of them leads.
#[test]
fn whoever_leads_proposes_the_same_seal() {
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    let seals = orders.map(|order| sealed(&mut DutiesHarness::running(spec(), &[1, 2, 3]), &order));
    assert!(seals.iter().all(|seal| *seal == seals[0]), "{seals:?}");
}

/// A leader dies after its proposal: the same fold gives the same verdict, and the step is sealed
/// once.
#[test]
fn r8_a_seal_that_two_leaders_proposed_is_applied_once() {
    let mut harness = DutiesHarness::running(spec(), &[1, 2]);
    harness.report_all();
    let Some(LeaderAction::Propose(Entry::Seal(seal))) = harness.decide() else {
        panic!("all is told")
    };
    harness.elect_anew();
    harness.report_all();
    assert_eq!(harness.act(), [Entry::Seal(seal)]);
    let (open, applied) = (harness.log.state.open_turn(), harness.log.state.applied());
    harness.agree(Entry::Seal(seal));
    assert_eq!(harness.log.state.open_turn(), open, "the proposal of the first comes late");
    assert_eq!(harness.log.state.applied(), applied + 1);
    harness.report_all();
    assert_eq!(harness.act().len(), 1, "and the next step goes on");
}

#[test]
fn a_new_leader_takes_a_plan_up_where_it_stands() {
    let mut log = crate::fixture::FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    log.apply(Entry::Ready(log.ready(0)));
    let mut harness = DutiesHarness::new(log);
    assert_eq!(harness.act(), [], "it waits for the other");
    let ready = harness.log.ready(1);
    harness.duties.handle_ready(&harness.log.state, ready.clone()).expect("it loads");
    let generation = ready.generation;
    assert_eq!(harness.act(), [Entry::Ready(ready), Entry::Resume { generation }]);
}
