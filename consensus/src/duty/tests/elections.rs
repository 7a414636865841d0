//! A new leader begins without any reports, and workers send them again.

use crate::duty::LeaderAction;
use crate::entry::Entry;
use crate::fixture::spec;
use crate::validation::{Seal, Verdict};

use super::harness::DutiesHarness;

/// The seal that is proposed once all stages have reported in this order.
fn sealed(bench: &mut DutiesHarness, order: &[usize]) -> Seal {
    for stage in order {
        bench.report(*stage);
        bench.hold(*stage);
    }
    let proposed = bench.act();
    let [Entry::Seal(seal)] = proposed[..] else { panic!("{proposed:?}") };
    seal
}

#[test]
fn a_leader_elected_anew_knows_nothing_until_it_is_told_again() {
    let mut bench = DutiesHarness::running(spec(), &[1, 2]);
    bench.report(0);
    bench.hold(0);
    bench.report(1);
    bench.elect_anew();
    assert_eq!(bench.duties.withheld(&bench.log.state), None, "it does not know that there is any");
    bench.hold(1);
    assert_eq!(bench.act(), [], "what was told to the leader before does not count");
    bench.report(1);
    assert_eq!(bench.act(), []);
    let seal = sealed(&mut bench, &[0]);
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
    let mut bench = DutiesHarness::running(spec(), &[1, 2]);
    bench.report_all();
    let Some(LeaderAction::Propose(Entry::Seal(seal))) = bench.decide() else {
        panic!("all is told")
    };
    bench.elect_anew();
    bench.report_all();
    assert_eq!(bench.act(), [Entry::Seal(seal)]);
    let (open, applied) = (bench.log.state.open_turn(), bench.log.state.applied());
    bench.agree(Entry::Seal(seal));
    assert_eq!(bench.log.state.open_turn(), open, "the proposal of the first comes late");
    assert_eq!(bench.log.state.applied(), applied + 1);
    bench.report_all();
    assert_eq!(bench.act().len(), 1, "and the next step goes on");
}

#[test]
fn a_new_leader_takes_a_plan_up_where_it_stands() {
    let mut log = crate::fixture::FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    log.apply(Entry::Ready(log.ready(0)));
    let mut bench = DutiesHarness::new(log);
    assert_eq!(bench.act(), [], "it waits for the other");
    let ready = bench.log.ready(1);
    bench.duties.handle_ready(&bench.log.state, ready.clone()).expect("it loads");
    let generation = ready.generation;
    assert_eq!(bench.act(), [Entry::Ready(ready), Entry::Resume { generation }]);
}
