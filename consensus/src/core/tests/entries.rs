//! What the log holds and cannot be applied: by a newer program, by a broken one, or too late.

use super::super::{ConnectionEnd, Core, CoreRefusal, Event, FatalCause, Input, Output};
use super::in_process::{CONTROLLER, disk, leader, n, persist, recover, setup};
use crate::codec::{self, DecodeError, Format};
use crate::duty::{NoPlan, PlanSolution};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, chunks, program, solution, spec};
use crate::job::JobChange;
use crate::message::{Envelope, Message};
use crate::plan::PlanRefusal;
use crate::state::{EntryRefusal, State};
use zbelastic_schedule::Window;

const TICKS_WITHOUT_A_PLAN: u32 = 5;

/// A controller that starts from `state` and finds these entries agreed.
fn with_later(state: &State, later: &[Vec<u8>]) -> Core {
    let node = n(CONTROLLER);
    let log = disk(node, &[node], state.encode(), later);
    Core::new(setup(node), recover(log)).expect("the disk is usable")
}

fn state() -> State {
    FixtureLog::running(spec(), &[1, 2])
        .state
        .with_controllers(crate::fixture::controllers(&[n(CONTROLLER)]))
}

fn pause() -> Vec<u8> {
    codec::encode(&Entry::Job(JobChange::Pause))
}

/// An entry that this program does not read ends it: leaving it out would be another history.
fn check_fatal(bad: Vec<u8>, expected: DecodeError) {
    let mut core = with_later(&state(), &[pause(), bad, pause()]);
    let outputs = persist(&mut core);
    let mut good = state();
    good.apply(1001, Entry::Job(JobChange::Pause)).expect("it fits");
    assert_eq!(codec::encode(core.state()), codec::encode(&good), "what came before is applied");
    let last = Output::Fatal(FatalCause::Version(expected));
    assert_eq!(outputs.last(), Some(&last));
    for input in [Input::Tick, Input::Closed { node: n(1), end: ConnectionEnd::Closed }] {
        assert!(matches!(core.handle(input), Err(CoreRefusal::Stopped)));
    }
    assert_eq!((core.poll_output(), core.duties().is_none()), (None, true));
}

#[test]
fn an_entry_of_an_unknown_version_is_fatal_before_it_is_applied() {
    let found = Format::NEWEST.number() + 1;
    let newer = [&[found], &pause()[1..]].concat();
    check_fatal(newer, DecodeError::Version { newest: Format::NEWEST, found });
}

#[test]
fn an_entry_that_is_none_is_fatal_before_it_is_applied() {
    check_fatal(vec![Format::NEWEST.number(), 0xff], DecodeError::Form);
    check_fatal([pause(), vec![0]].concat(), DecodeError::Trailing { count: 1 });
}

#[test]
fn entries_on_disk_are_applied_as_they_were_the_first_time() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let seal = Entry::Seal(log.seal(crate::validation::Verdict::Keep));
    let mut core = with_later(&state(), &[pause(), codec::encode(&seal)]);
    persist(&mut core);
    let mut expected = state();
    expected.apply(1001, Entry::Job(JobChange::Pause)).expect("it fits");
    expected.apply(1002, seal).expect("it fits");
    assert_eq!(core.state(), &expected);
}

/// The leader of a job without a plan requests one; the workers hold nothing, and report that.
fn leader_that_requested_plan() -> (Core, u64) {
    let log = FixtureLog::with_job(spec(), &[1, 2]);
    let node = n(CONTROLLER);
    let log_state = log.state.clone().with_controllers(crate::fixture::controllers(&[node]));
    let recovered = disk(node, &[node], log_state.encode(), &[]);
    let mut core = Core::new(setup(node), recover(recovered)).expect("the disk is usable");
    let mut outputs = Vec::new();
    while core.duties().is_none() {
        outputs.extend(persist(&mut core));
        core.handle(Input::Tick).expect("a tick is taken");
    }
    outputs.extend(persist(&mut core));
    let number = requested_number(&outputs).expect("a plan is asked for");
    for worker in [1, 2] {
        let (holder, index) = (log.holder(worker), core.state().applied());
        let message = Message::Inventory { holder, index, layers: Vec::new() };
        let message = Envelope { cluster: core.state().cluster(), message };
        let input = Input::Message { from: n(worker), message: Box::new(message) };
        core.handle(input).expect("it was requested");
    }
    persist(&mut core);
    (core, number)
}

fn requested_number(outputs: &[Output]) -> Option<u64> {
    outputs.iter().rev().find_map(|output| {
        let Output::Solve(request) = output else { return None };
        Some(request.number)
    })
}

/// The plan is not proposed, the reason is reported and counted, and none is requested again.
fn check_refused(solution: PlanSolution, is_expected: impl Fn(&PlanRefusal) -> bool) {
    let (mut core, number) = leader_that_requested_plan();
    let before = codec::encode(core.state());
    let solution = Box::new(Ok(solution));
    core.handle(Input::Solved { number, solution }).expect("it was requested");
    let mut outputs = persist(&mut core);
    for _ in 0..TICKS_WITHOUT_A_PLAN {
        core.handle(Input::Tick).expect("a tick is taken");
        outputs.extend(persist(&mut core));
    }
    assert_eq!(codec::encode(core.state()), before);
    let is_reason = |output: &&Output| {
        let Output::Event(Event::NoPlan(NoPlan::Refused(EntryRefusal::Plan(found)))) = output
        else {
            return false;
        };
        is_expected(found)
    };
    assert_eq!(outputs.iter().filter(is_reason).count(), 1, "{outputs:#?}");
    assert_eq!((requested_number(&outputs), core.refusals()["plan-refused"]), (None, 1));
}

#[test]
fn a_solution_that_would_be_refused_is_not_proposed() {
    let good = solution(2, Window::One);
    let check =
        |solution, expected: PlanRefusal| check_refused(solution, |found| *found == expected);
    let other_batch = zbelastic_schedule::generate(zbelastic_schedule::ScheduleKind::ZbH1, 2, 4);
    let other_batch = PlanSolution { program: other_batch.expect("it is legal"), ..good.clone() };
    check(other_batch, PlanRefusal::Microbatches { expected: 2, found: 4 });
    let window = PlanSolution { program: program(2, Window::Zero), ..good.clone() };
    check(window, PlanRefusal::Window { found: Some(Window::Zero) });
    let chunks = PlanSolution { chunks: chunks(4), ..good.clone() };
    check(chunks, PlanRefusal::Chunks { expected: 2, found: 4, end: 4, layer_count: 4 });
    check(solution(3, Window::One), PlanRefusal::Stages { expected: 3, found: 2, copies: 2 });
    let mut short = good;
    short.program.stages[1].pop();
    check_refused(short, |found| matches!(found, PlanRefusal::Program { .. }));
}

/// A plan that the leader found sound and that does not fit what was agreed meanwhile.
#[test]
fn a_plan_that_fails_its_check_when_applied_changes_nothing() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let record = crate::plan::PlanRecord { chunks: chunks(4), ..log.plan(&[1, 2]) };
    let mut core = with_later(&state(), &[codec::encode(&Entry::Adopt(Box::new(record)))]);
    let outputs = persist(&mut core);
    let mut before = state();
    before.pass(core.state().applied());
    assert_eq!(codec::encode(core.state()), codec::encode(&before));
    let refusal = PlanRefusal::Chunks { expected: 2, found: 4, end: 4, layer_count: 4 };
    let (expected, why) = (before.applied(), EntryRefusal::Plan(refusal));
    let is_refused = |output: &Output| {
        let Output::Event(Event::Refused { index, entry, refusal, .. }) = output else {
            return false;
        };
        (*index, *entry, refusal) == (expected, "adopt", &why)
    };
    assert!(outputs.iter().any(is_refused), "{outputs:#?}");
}

/// A plan that is to begin at a later step is checked the same way.
#[test]
fn a_planned_solution_for_more_nodes_than_were_offered_changes_nothing() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.join(2);
    let mut core = leader(&log.state);
    let mut outputs = Vec::new();
    for _ in 0..20 {
        for worker in [1, 2] {
            let holder = log.holder(worker);
            let (known, generation) = (u64::MAX, log.state.generation());
            let message =
                Message::Beat { holder, known, generation, contacts: 0, pulse: Default::default() };
            let message = Box::new(Envelope { cluster: core.state().cluster(), message });
            core.handle(Input::Message { from: n(worker), message })
                .expect("a heartbeat is accepted");
        }
        core.handle(Input::Tick).expect("a tick is taken");
        outputs.extend(persist(&mut core));
    }
    let number = requested_number(&outputs).expect("a plan with both is asked for");
    let solution = Box::new(Ok(solution(3, Window::One)));
    let before = codec::encode(core.state());
    core.handle(Input::Solved { number, solution }).expect("it was requested");
    let outputs = persist(&mut core);
    assert_eq!((requested_number(&outputs), core.refusals()["plan-refused"]), (None, 1));
    assert_eq!(codec::encode(core.state()), before);
}

fn message_from(core: &Core, from: u64, message: Message) -> Input {
    let message = Box::new(Envelope { cluster: core.state().cluster(), message });
    Input::Message { from: n(from), message }
}

fn refused_entries(outputs: &[Output]) -> usize {
    let is_refused = |output: &&Output| matches!(output, Output::Event(Event::Refused { .. }));
    outputs.iter().filter(is_refused).count()
}

/// A worker repeats a report that does not fit: each time may cost an entry, and no more than one.
#[test]
fn a_ready_record_that_is_refused_is_not_proposed_again_by_itself() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let mut core = leader(&log.state);
    let wrong = crate::entry::ReadyRecord { layers: Vec::new(), ..log.ready(0) };
    for _ in 0..3 {
        let input = message_from(&core, 1, Message::Ready(wrong.clone()));
        core.handle(input).expect("it stands at a stage of the plan");
        assert_eq!(refused_entries(&persist(&mut core)), 1);
    }
    for (worker, stage) in [(1, 0), (2, 1)] {
        let input = message_from(&core, worker, Message::Ready(log.ready(stage)));
        core.handle(input).expect("it stands at a stage of the plan");
        assert_eq!(refused_entries(&persist(&mut core)), 0);
    }
    assert!(core.state().is_running());
}

/// Owner and copy made the same layer durable, with different bits.
#[test]
fn a_durable_record_that_is_refused_is_not_proposed_again_by_itself() {
    use crate::fixture::{digest, digests};
    use zbelastic_types::{LayerId, Step};
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(4);
    let mut core = leader(&log.state);
    let version = Step(4);
    let generation = log.state.generation();
    let saved = |worker, layers| {
        let holder = log.holder(worker);
        Message::Saved { holder, version, generation, layers, busy_milliticks: 0 }
    };
    let input = message_from(&core, 1, saved(1, digests([LayerId(0)], 4)));
    core.handle(input).expect("a checkpoint is under way");
    assert_eq!(refused_entries(&persist(&mut core)), 0);
    let other = [vec![(LayerId(0), digest(9, 9))], digests([LayerId(1)], 4)].concat();
    for _ in 0..3 {
        let input = message_from(&core, 2, saved(2, other.clone()));
        core.handle(input).expect("a checkpoint is under way");
        assert_eq!(refused_entries(&persist(&mut core)), 1);
    }
}

/// What is too large to be an entry is refused when it comes: the leader would otherwise find it to
/// be next forever, and do nothing else.
#[test]
fn what_could_not_be_an_entry_does_not_stand_in_the_way() {
    use crate::fixture::digest;
    use zbelastic_types::{LayerId, Step};
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(4);
    let mut core = leader(&log.state);
    let layers = vec![(LayerId(0), digest(0, 4)); 40_000];
    let (holder, version, generation) = (log.holder(1), Step(4), log.state.generation());
    let input = message_from(
        &core,
        1,
        Message::Saved { holder, version, generation, layers, busy_milliticks: 0 },
    );
    core.handle(input).expect_err("there are four layers");
    assert_eq!(core.refusals()["too-many-layers"], 1);
    core.handle(Input::Closed { node: n(2), end: ConnectionEnd::Closed }).expect("it is noted");
    let outputs = persist(&mut core);
    assert!(
        requested_number(&outputs).is_some(),
        "a plan without node 2 is asked for: {outputs:#?}"
    );
}

/// A connection that was given up because nothing came shows no more than silent heartbeats do, and
/// their silence has bounds of its own.
#[test]
fn r9_a_connection_that_ended_in_silence_is_no_loss() {
    for (end, is_loss) in [(ConnectionEnd::Silent, false), (ConnectionEnd::Closed, true)] {
        let mut core = leader(&FixtureLog::running(spec(), &[1, 2]).state);
        persist(&mut core);
        core.handle(Input::Closed { node: n(2), end }).expect("it is noted");
        assert_eq!(requested_number(&persist(&mut core)).is_some(), is_loss, "{end:?}");
    }
}
