//! What is agreed, turned into commands: each once, in the sequence in which they must be executed.

use zbelastic_types::{StageIndex, Step};

use super::harness::{BriefingContent, CONTROLLERS, SessionHarness, briefing};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, spec};
use crate::job::{JobChange, JobSpec};
use crate::message::{Briefing, Message};
use crate::session::{BriefingRefusal, LoadCommand, WorkerCommand, WorkerEvent};
use crate::validation::Verdict;

/// The command to load the part of node 1 in the plan in force.
fn load(log: &FixtureLog, stage: u32) -> WorkerCommand {
    load_and_write(log, stage, false)
}

fn load_and_write(log: &FixtureLog, stage: u32, is_pending: bool) -> WorkerCommand {
    let plan = log.state.plan().expect("there is a plan").record.clone();
    let spec = log.state.job().expect("there is a job").spec.clone();
    let (turn, updates) = (log.state.open_turn(), log.state.ledger().updates());
    WorkerCommand::Load(Box::new(LoadCommand {
        plan,
        stage: StageIndex(stage),
        spec,
        turn,
        updates,
        is_pending,
    }))
}

fn run(log: &FixtureLog) -> WorkerCommand {
    WorkerCommand::Run { generation: log.state.generation() }
}

fn loading() -> FixtureLog {
    let mut log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    log.adopt(log.plan(&[2, 1]));
    log
}

#[test]
fn a_plan_is_loaded_once_and_run_once() {
    let mut log = loading();
    let mut harness = SessionHarness::briefed(&log);
    assert_eq!(harness.take_commands(), [load(&log, 1)]);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), []);
    log.load();
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [run(&log)]);
    for content in [BriefingContent::Changes, BriefingContent::All] {
        harness.brief(&log, content);
        assert_eq!(harness.take_commands(), []);
    }
}

/// A session that comes late, or lost every briefing but the last, issues the same commands in the
/// same order.
#[test]
fn one_briefing_is_enough_to_load_and_run() {
    let mut log = loading();
    log.load();
    let mut harness = SessionHarness::briefed(&log);
    assert_eq!(harness.take_commands(), [load(&log, 1), run(&log)]);
}

#[test]
fn a_new_plan_stops_the_work_and_then_loads() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.keep(1);
    harness.brief(&log, BriefingContent::Changes);
    harness.take_commands();
    log.adopt(log.plan(&[2, 1]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Stop, load(&log, 1)]);
    log.load();
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [run(&log)]);
}

#[test]
fn who_has_no_part_in_a_new_plan_stops_and_has_nothing_to_load() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.adopt(log.plan(&[2]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Stop]);
    log.load();
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Release]);
    log.adopt(log.plan(&[2]));
    harness.brief(&log, BriefingContent::All);
    log.load();
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [], "there is no work to stop");
}

/// R8: however often a seal is sent, and by whichever controller, the runtime applies it once.
#[test]
fn r8_a_seal_is_settled_once_however_often_it_is_told() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    for verdict in [Verdict::Keep, Verdict::Replay, Verdict::Skip, Verdict::Keep] {
        let seal = log.seal(verdict);
        log.apply(Entry::Seal(seal));
        harness.brief(&log, BriefingContent::Changes);
        assert_eq!(harness.take_commands(), [WorkerCommand::ApplySeal(seal)]);
        harness.brief(&log, BriefingContent::Changes);
        harness
            .try_brief(CONTROLLERS[1], briefing(&log, BriefingContent::All))
            .expect("it belongs");
        assert_eq!(harness.take_commands(), []);
    }
}

/// R2: a seal of the plan before is not passed to a runtime that runs the next one.
#[test]
fn r2_a_seal_of_the_plan_before_is_not_settled_under_the_next() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(2);
    log.run_plan(&[2, 1]);
    let mut harness = SessionHarness::briefed(&log);
    assert!(log.state.training().seals().last_seal().is_some());
    assert_eq!(harness.take_commands(), [load(&log, 1), run(&log)]);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), []);
}

/// The step under way when a plan was to follow is finished first: apply its seal, stop, load.
#[test]
fn the_seal_before_a_planned_change_is_settled_before_the_work_stops() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let next = log.plan(&[2, 1]);
    let from_step = log.state.open_turn().step.next();
    log.adopt(crate::plan::PlanRecord { from_step, ..next });
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [], "training goes on");
    let seal = log.seal(Verdict::Keep);
    log.apply(Entry::Seal(seal));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(
        harness.take_commands(),
        [WorkerCommand::ApplySeal(seal), WorkerCommand::Stop, load(&log, 1)]
    );
}

#[test]
fn a_plan_that_is_named_but_not_told_is_asked_for_and_nothing_is_done() {
    let mut log = loading();
    let mut harness = SessionHarness::new();
    let found = log.state.generation();
    let named = briefing(&log, BriefingContent::Changes);
    let refusal = BriefingRefusal::UnknownPlan { found };
    assert_eq!(harness.try_brief(CONTROLLERS[0], named), Err(refusal.clone()));
    let without_job = Briefing { spec: None, ..briefing(&log, BriefingContent::All) };
    assert_eq!(harness.try_brief(CONTROLLERS[0], without_job), Err(refusal));
    assert_eq!(harness.take_commands(), []);
    assert_eq!(
        (harness.session.holder(), harness.session.spec()),
        (None, None),
        "nothing of it is taken in"
    );
    log.load();
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [load(&log, 1), run(&log)]);
}

/// Requests an inventory at this index, and yields the commands.
fn request_inventory(
    harness: &mut SessionHarness,
    log: &FixtureLog,
    index: u64,
    content: BriefingContent,
) -> Vec<WorkerCommand> {
    let requested = Briefing { requests_inventory: true, index, ..briefing(log, content) };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    harness.take_commands()
}

/// Each beat is answered with the request until the inventory is there. One at a time is taken, and
/// none again at an index at which one was: that answer is resent until it is known.
#[test]
fn an_inventory_is_taken_once_however_often_it_is_asked_for() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let first = log.state.applied();
    let holder = log.holder(1);
    let take = |index| vec![WorkerCommand::TakeInventory { holder, index }];
    assert_eq!(request_inventory(&mut harness, &log, first, BriefingContent::Changes), take(first));
    assert_eq!(request_inventory(&mut harness, &log, first, BriefingContent::Changes), []);
    assert_eq!(
        request_inventory(&mut harness, &log, first + 1, BriefingContent::Changes),
        [],
        "one is being taken"
    );
    harness.event(WorkerEvent::Inventory { index: first, layers: Vec::new() });
    assert_eq!(
        request_inventory(&mut harness, &log, first + 1, BriefingContent::Changes),
        take(first + 1),
        "requested anew"
    );
    harness.event(WorkerEvent::Inventory { index: first + 1, layers: Vec::new() });
    assert_eq!(request_inventory(&mut harness, &log, first + 1, BriefingContent::Changes), []);
    let (index, layers) = (first + 1, Vec::new());
    let answer = Message::Inventory { holder, index, layers };
    assert_eq!(harness.resent_messages(), [answer], "a lost answer is sent again");
}

/// What was requested under the plan before is not waited for under the next.
#[test]
fn an_inventory_is_taken_anew_under_another_plan() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let index = log.state.applied();
    assert_eq!(request_inventory(&mut harness, &log, index, BriefingContent::Changes).len(), 1);
    log.adopt(log.plan(&[2, 1]));
    let index = log.state.applied();
    let inventory = WorkerCommand::TakeInventory { holder: log.holder(1), index };
    let expected = [WorkerCommand::Stop, load(&log, 1), inventory];
    assert_eq!(request_inventory(&mut harness, &log, index, BriefingContent::All), expected);
}

/// After a rewind the session waits for the plan that follows; a seal that it applied is not
/// applied again, and nothing that was held before is reported or given away.
#[test]
fn a_rewind_takes_away_what_is_held_and_orders_nothing_until_the_next_plan() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(2);
    harness.brief(&log, BriefingContent::Changes);
    harness.take_commands();
    log.apply(log.rewind(0));
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [WorkerCommand::Rewind]);
    log.adopt(log.plan(&[1, 2]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [load(&log, 0)]);
}

/// A worker that received nothing while the plan that names it was adopted and given up learns of
/// it late.
#[test]
fn a_plan_that_a_rewind_has_closed_is_not_loaded() {
    let mut log = FixtureLog::running(spec(), &[2, 3]);
    log.join(1);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(2);
    log.adopt(log.plan(&[1, 2]));
    log.apply(log.rewind(0));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Rewind]);
    log.run_plan(&[1, 2]);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [load(&log, 0), run(&log)]);
}

#[test]
fn who_has_no_part_in_a_plan_lets_go_of_its_layers_once_it_runs() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.join(3);
    log.adopt(log.plan(&[2, 3]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [WorkerCommand::Stop], "the others may ask for them");
    log.load();
    for expected in [vec![WorkerCommand::Release], vec![]] {
        harness.brief(&log, BriefingContent::Changes);
        assert_eq!(harness.take_commands(), expected);
    }
}

#[test]
fn a_plan_that_begins_with_a_version_to_be_saved_says_so() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(4);
    assert_eq!(log.pending_versions(), [4]);
    log.adopt(log.plan(&[1, 2]));
    harness.take_commands();
    harness.brief(&log, BriefingContent::All);
    let commands = harness.take_commands();
    let Some(WorkerCommand::Load(command)) = commands.last() else { panic!("{commands:?}") };
    assert!(command.is_pending);
}

/// The configuration does not make version 2 a checkpoint: it is written because the run is held
/// there.
#[test]
fn a_version_that_is_kept_by_order_is_written_once() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(2);
    harness.brief(&log, BriefingContent::Changes);
    harness.take_commands();
    log.apply(Entry::Job(JobChange::Pause));
    let (generation, version) = (log.state.generation(), Step(2));
    for expected in [vec![WorkerCommand::Save { generation, version }], vec![]] {
        harness.brief(&log, BriefingContent::Changes);
        assert_eq!(harness.take_commands(), expected);
    }
    // A runtime that loads it meanwhile gets the version with the plan.
    log.apply(Entry::Job(JobChange::Continue));
    log.run_plan(&[1, 2]);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(
        harness.take_commands(),
        [WorkerCommand::Stop, load_and_write(&log, 0, true), run(&log)]
    );
}

/// A worker that runs gets the command before the version is sealed, and one that loads gets it
/// when it runs.
#[test]
fn a_version_that_follows_is_ordered_to_be_written_by_who_runs() {
    let mut log = FixtureLog::running(JobSpec { checkpoint_ticks: 1, ..spec() }, &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.apply(Entry::Keep { version: Step(1) });
    let due =
        |log: &FixtureLog, content| Briefing { pending: vec![Step(1)], ..briefing(log, content) };
    let (generation, version) = (log.state.generation(), Step(1));
    for expected in [vec![WorkerCommand::Save { generation, version }], vec![]] {
        harness.receive(due(&log, BriefingContent::Changes));
        assert_eq!(harness.take_commands(), expected);
    }
    // A plan that loads is none that seals it; as soon as it runs the command is issued again.
    log.adopt(log.plan(&[1, 2]));
    harness.receive(due(&log, BriefingContent::All));
    let is_save = |command: &WorkerCommand| matches!(command, WorkerCommand::Save { .. });
    assert!(!harness.take_commands().iter().any(is_save), "it cannot be kept in mind there");
    log.load();
    harness.receive(due(&log, BriefingContent::Changes));
    let generation = log.state.generation();
    assert_eq!(harness.take_commands().last(), Some(&WorkerCommand::Save { generation, version }));
}

#[test]
fn what_the_configuration_makes_a_checkpoint_is_written_without_an_order() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    log.keep(4);
    log.apply(Entry::Job(JobChange::Pause));
    assert_eq!(log.pending_versions(), [4]);
    harness.take_commands();
    harness.brief(&log, BriefingContent::Changes);
    let commands = harness.take_commands();
    assert!(
        !commands.iter().any(|command| matches!(command, WorkerCommand::Save { .. })),
        "{commands:?}"
    );
}

/// A worker that received nothing meanwhile learns of it with the next briefing, before the request
/// in it.
#[test]
fn a_rewind_of_long_ago_takes_away_what_is_held_before_it_is_told() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.apply(log.rewind(0));
    log.run_plan(&[2]);
    log.keep(3);
    let requested = Briefing { requests_inventory: true, ..briefing(&log, BriefingContent::All) };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    let (holder, index) = (log.holder(1), log.state.applied());
    assert_eq!(
        harness.take_commands(),
        [WorkerCommand::Rewind, WorkerCommand::TakeInventory { holder, index }]
    );
}
