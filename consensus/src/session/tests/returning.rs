//! A worker that was declared lost and lives on: what its next life does with the layers that it
//! holds.

use zbelastic_types::ClusterId;

use super::harness::{BOOT, BriefingContent, CONTROLLERS, SessionHarness, briefing};
use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, admit, spec};
use crate::message::{Briefing, Message};
use crate::session::{SessionInput, WorkerCommand, WorkerEvent};

/// Worker 1 trained two steps, was declared lost, and learned of it.
fn fenced() -> (FixtureLog, SessionHarness) {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(2);
    harness.brief(&log, BriefingContent::Changes);
    harness.take_commands();
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [WorkerCommand::EndLife]);
    (log, harness)
}

/// Its next life is admitted, and learns of it with a request for its inventory.
fn return_with_request(log: &mut FixtureLog, harness: &mut SessionHarness) -> Vec<WorkerCommand> {
    log.apply(Entry::Members(vec![admit(1, BOOT + 1)]));
    let requested = Briefing { requests_inventory: true, ..briefing(log, BriefingContent::All) };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    harness.take_commands()
}

fn inventory(log: &FixtureLog) -> WorkerCommand {
    WorkerCommand::TakeInventory { holder: log.holder(1), index: log.state.applied() }
}

/// The plan in force is the one that it was lost from, so the layers are not let go of.
#[test]
fn a_life_that_ended_leaves_its_layers_to_the_next_one() {
    let (mut log, mut harness) = fenced();
    let commands = return_with_request(&mut log, &mut harness);
    assert_eq!(commands, [inventory(&log)], "no layer is given up");
    let (index, layers) = (log.state.applied(), Vec::new());
    harness.event(WorkerEvent::Inventory { index, layers: layers.clone() });
    let holder = log.holder(1);
    assert_eq!(harness.resent_messages(), [Message::Inventory { holder, index, layers }]);
}

/// It had reported the step, and was lost before it learned that this was sealed. Nobody may have
/// the gradient of the step any more.
#[test]
fn the_last_seal_is_applied_before_a_life_ends() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(1);
    harness.take_commands();
    let seal = *log.state.training().seals().last_seal().expect("a step is sealed");
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    let expected = [WorkerCommand::ApplySeal(seal), WorkerCommand::EndLife];
    assert_eq!(harness.take_commands(), expected);
}

/// What was held before a rewind is not believed, in whatever life.
#[test]
fn layers_from_before_a_rewind_are_given_up_before_the_next_life_reports_any() {
    let (mut log, mut harness) = fenced();
    log.apply(log.rewind(0));
    let commands = return_with_request(&mut log, &mut harness);
    assert_eq!(commands, [WorkerCommand::Rewind, inventory(&log)]);
}

/// A plan that runs without it has every layer; one that loads may yet need them.
#[test]
fn the_layers_are_let_go_of_when_a_later_plan_runs_without_them() {
    let (mut log, mut harness) = fenced();
    log.adopt(log.plan(&[2]));
    assert_eq!(return_with_request(&mut log, &mut harness), [inventory(&log)]);
    log.load();
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [WorkerCommand::Release]);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [], "once");
    let (mut log, mut harness) = fenced();
    log.run_plan(&[2]);
    let commands = return_with_request(&mut log, &mut harness);
    assert_eq!(commands, [WorkerCommand::Release, inventory(&log)], "it runs already");
}

/// Lives that end without a plan in between, as when heartbeats are lost again and again.
#[test]
fn the_layers_outlast_several_lives() {
    let (mut log, mut harness) = fenced();
    for boot in [BOOT + 1, BOOT + 2] {
        log.apply(Entry::Members(vec![admit(1, boot)]));
        harness.brief(&log, BriefingContent::All);
        assert_eq!(harness.take_commands(), []);
        log.lose(1);
        harness.brief(&log, BriefingContent::Changes);
        assert_eq!(harness.take_commands(), [WorkerCommand::EndLife]);
    }
    log.run_plan(&[2]);
    log.apply(Entry::Members(vec![admit(1, BOOT + 3)]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Release]);
}

/// The layers of a cluster that is no more are forgotten by a process that waits to be admitted to
/// it as well.
#[test]
fn layers_of_another_cluster_are_forgotten_between_two_lives() {
    let (_, mut harness) = fenced();
    let (cluster, controllers) = (ClusterId(CLUSTER.0 + 1), CONTROLLERS.to_vec());
    for expected in [vec![WorkerCommand::Forget], vec![]] {
        let controllers = controllers.clone();
        harness.input(SessionInput::Controllers { cluster, controllers }).expect("it is accepted");
        assert_eq!(harness.take_commands(), expected);
    }
}

/// The answer to a request of the life before names layers that the process no longer has as it had
/// them.
#[test]
fn an_inventory_that_a_life_before_was_requested_is_not_reported_by_the_next() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    let index = log.state.applied();
    let requested = Briefing { requests_inventory: true, ..briefing(&log, BriefingContent::All) };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    log.apply(Entry::Members(vec![admit(1, BOOT + 1)]));
    harness.brief(&log, BriefingContent::All);
    harness.event(WorkerEvent::Inventory { index, layers: Vec::new() });
    assert_eq!(harness.resent_messages(), []);
}
