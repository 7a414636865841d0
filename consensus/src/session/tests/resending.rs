//! Events of the runtime are sent again until they are known to be agreed, and no longer.

use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, Step};

use super::harness::{BriefingContent, CONTROLLERS, SessionHarness, TIMING, briefing};
use crate::entry::{Entry, ReadyRecord};
use crate::fixture::{FixtureLog, digest, digests, fingerprints, spec, sum};
use crate::member::MemberChange;
use crate::message::{Briefing, HeldLayer, HeldUpdate, LoadFault, Message, WorkerActivity};
use crate::session::{SessionInput, WorkerEvent};
use crate::validation::{GradientReport, Turn};

fn running() -> (FixtureLog, SessionHarness) {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let harness = SessionHarness::briefed(&log);
    (log, harness)
}

fn report(turn: Turn) -> GradientReport {
    let sums = vec![sum(LayerId(0), 0.25), sum(LayerId(1), 0.5)];
    GradientReport { turn, stage: StageIndex(0), sums, loss_sum: None }
}

fn held(turn: Turn) -> HeldUpdate {
    HeldUpdate { turn, of: StageIndex(1), sums: vec![sum(LayerId(2), 0.25)], state: Vec::new() }
}

/// Events are sent to the leader at once, and to all controllers until a briefing shows that they
/// are known.
fn check_resent(harness: &mut SessionHarness, event: WorkerEvent, expected: &Message) {
    harness.take_messages();
    harness.event(event);
    assert_eq!(harness.take_messages(), [(CONTROLLERS[0], expected.clone())]);
    assert_eq!(harness.resent_messages(), std::slice::from_ref(expected));
    assert_eq!(harness.resent_messages(), std::slice::from_ref(expected));
}

#[test]
fn reports_and_held_updates_are_told_until_their_turn_is_sealed() {
    let (mut log, mut harness) = running();
    let (holder, turn) = (log.holder(1), log.state.open_turn());
    let (report, state) = (report(turn), fingerprints([LayerId(0)], 0));
    let reported = Message::Report { holder, report: report.clone(), state: state.clone() };
    check_resent(&mut harness, WorkerEvent::Reported { report, state }, &reported);
    let update = held(turn);
    harness.event(WorkerEvent::UpdateHeld(update.clone()));
    let expected = [reported, Message::Held { holder, update }];
    assert_eq!(harness.resent_messages(), expected);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), expected, "it is not sealed yet");
    log.keep(1);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), []);
}

#[test]
fn an_update_of_the_turn_that_follows_is_kept_when_the_one_before_is_sealed() {
    let (mut log, mut harness) = running();
    let (holder, turn) = (log.holder(1), log.state.open_turn());
    let next = held(Turn { step: turn.step.next(), ..turn });
    harness.event(WorkerEvent::UpdateHeld(next.clone()));
    log.keep(1);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), [Message::Held { holder, update: next }]);
}

#[test]
fn to_whom_nobody_is_known_to_lead_everybody_is_told() {
    let (log, mut harness) = running();
    let nobody = Briefing { leader: None, ..briefing(&log, BriefingContent::Changes) };
    harness.try_brief(CONTROLLERS[1], nobody).expect("it belongs");
    harness.event(WorkerEvent::UpdateHeld(held(log.state.open_turn())));
    let to: Vec<NodeId> = harness.take_messages().into_iter().map(|(to, _)| to).collect();
    assert_eq!(to, CONTROLLERS);
}

#[test]
fn that_a_plan_is_loaded_is_told_until_it_runs() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let mut harness = SessionHarness::briefed(&log);
    let ready: ReadyRecord = log.ready(0);
    let ReadyRecord { generation, layers, copies, .. } = ready.clone();
    check_resent(
        &mut harness,
        WorkerEvent::Loaded { generation, layers, copies },
        &Message::Ready(ready.clone()),
    );
    log.apply(Entry::Ready(ready.clone()));
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), [Message::Ready(ready)]);
    log.apply(Entry::Ready(log.ready(1)));
    log.resume();
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), []);
}

#[test]
fn that_a_layer_cannot_be_had_is_told_until_there_is_another_plan() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let mut harness = SessionHarness::briefed(&log);
    let (holder, generation, layer) = (log.holder(1), log.state.generation(), LayerId(1));
    let cause = LoadFault::Source;
    let failed = Message::LoadFailed { holder, generation, layer, cause };
    check_resent(&mut harness, WorkerEvent::LoadFailed { generation, layer, cause }, &failed);
    log.adopt(log.plan(&[2, 1]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.resent_messages(), []);
}

#[test]
fn an_inventory_is_told_until_there_is_another_plan() {
    let (mut log, mut harness) = running();
    let held = HeldLayer { layer: LayerId(0), version: Step(0), digest: digest(0, 0) };
    let (holder, index, layers) = (log.holder(1), log.state.applied(), vec![held]);
    let requested =
        Briefing { requests_inventory: true, ..briefing(&log, BriefingContent::Changes) };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    let expected = Message::Inventory { holder, index, layers: layers.clone() };
    check_resent(&mut harness, WorkerEvent::Inventory { index, layers }, &expected);
    log.adopt(log.plan(&[2, 1]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.resent_messages(), []);
}

#[test]
fn what_is_durable_is_told_until_nobody_waits_for_it() {
    let (log, mut harness) = running();
    let (holder, generation) = (log.holder(1), log.state.generation());
    let saved = |version| {
        let layers = digests([LayerId(0)], version);
        Message::Saved { holder, version: Step(version), generation, layers, busy_milliticks: 0 }
    };
    for version in [4, 8] {
        let layers = digests([LayerId(0)], version);
        harness.event(WorkerEvent::Saved {
            version: Step(version),
            generation,
            layers,
            busy_milliticks: 0,
        });
    }
    let step = |step| Turn { step: Step(step), ..log.state.open_turn() };
    let mut brief = |pending: &[u64], open: u64| {
        let pending = pending.iter().copied().map(Step).collect();
        let briefing =
            Briefing { pending, open: step(open), ..briefing(&log, BriefingContent::Changes) };
        harness.try_brief(CONTROLLERS[0], briefing).expect("it belongs");
        harness.resent_messages()
    };
    assert_eq!(brief(&[4], 7), [saved(4), saved(8)], "8 is not open yet there");
    assert_eq!(brief(&[4, 8], 9), [saved(4), saved(8)]);
    assert_eq!(brief(&[8], 9), [saved(8)]);
    assert_eq!(brief(&[], 9), []);
}

#[test]
fn so_many_versions_are_told_and_the_oldest_is_given_up() {
    let (log, mut harness) = running();
    let generation = log.state.generation();
    for version in (1..=5).map(Step) {
        harness.event(WorkerEvent::Saved {
            version,
            generation,
            layers: Vec::new(),
            busy_milliticks: 0,
        });
    }
    let versions: Vec<_> = harness.resent_messages();
    let version = |message: &Message| {
        let Message::Saved { version, .. } = message else { panic!("{message:?}") };
        version.0
    };
    assert_eq!(versions.iter().map(version).collect::<Vec<_>>(), [2, 3, 4, 5]);
}

#[test]
fn a_plan_that_ends_takes_what_was_about_it_along_but_not_what_is_durable() {
    let (mut log, mut harness) = running();
    let (turn, generation) = (log.state.open_turn(), log.state.generation());
    harness.event(WorkerEvent::Reported { report: report(turn), state: Vec::new() });
    harness.event(WorkerEvent::UpdateHeld(held(turn)));
    let version = Step(4);
    harness.event(WorkerEvent::Saved {
        version,
        generation,
        layers: Vec::new(),
        busy_milliticks: 0,
    });
    log.adopt(log.plan(&[2, 1]));
    harness.brief(&log, BriefingContent::All);
    let holder = log.holder(1);
    assert_eq!(
        harness.resent_messages(),
        [Message::Saved { holder, version, generation, layers: vec![], busy_milliticks: 0 }]
    );
}

/// R2: what a runtime still reports of a plan that is over is not sent.
#[test]
fn r2_news_of_another_plan_are_not_told() {
    let (log, mut harness) = running();
    let turn = Turn { generation: Generation(9), ..log.state.open_turn() };
    let generation = turn.generation;
    for event in [
        WorkerEvent::Reported { report: report(turn), state: Vec::new() },
        WorkerEvent::UpdateHeld(held(turn)),
        WorkerEvent::Loaded { generation, layers: Vec::new(), copies: Vec::new() },
        WorkerEvent::LoadFailed { generation, layer: LayerId(0), cause: LoadFault::Source },
    ] {
        harness.event(event);
    }
    assert_eq!((harness.take_messages(), harness.resent_messages()), (vec![], vec![]));
}

#[test]
fn that_the_machine_is_about_to_go_is_told_on() {
    let (mut log, mut harness) = running();
    let holder = log.holder(1);
    harness.input(SessionInput::Drain).expect("it is taken");
    let drain = Message::Drain { holder };
    assert_eq!(harness.take_messages(), CONTROLLERS.map(|to| (to, drain.clone())));
    assert_eq!(harness.resent_messages(), std::slice::from_ref(&drain));
    log.apply(Entry::Members(vec![MemberChange::Drain { holder }]));
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.resent_messages(), [drain], "until it goes; a leader that knows refuses it");
}

#[test]
fn who_is_no_member_has_nothing_to_tell() {
    let mut harness = SessionHarness::new();
    let (log, _) = running();
    harness.event(WorkerEvent::UpdateHeld(held(log.state.open_turn())));
    assert_eq!(harness.take_messages(), []);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.resent_messages(), []);
}

fn pulse(harness: &mut SessionHarness) -> WorkerActivity {
    harness.sent.clear();
    harness.tick(TIMING.beat_ticks);
    let Some((_, Message::Beat { pulse, .. })) = harness.sent.first() else { panic!("no beat") };
    *pulse
}

#[test]
fn the_heart_says_how_long_an_operation_takes_and_how_long_a_verdict_was_waited_for() {
    let (_, mut harness) = running();
    assert_eq!(pulse(&mut harness), WorkerActivity::default());
    harness.event(WorkerEvent::Busy { is_busy: true });
    assert_eq!(pulse(&mut harness).busy_ticks, 1 + TIMING.beat_ticks);
    assert_eq!(pulse(&mut harness).busy_ticks, 1 + 2 * TIMING.beat_ticks);
    harness.event(WorkerEvent::Busy { is_busy: true });
    assert_eq!(pulse(&mut harness).busy_ticks, 1 + TIMING.beat_ticks, "another operation");
    harness.event(WorkerEvent::Busy { is_busy: false });
    harness.event(WorkerEvent::VerdictWaited { ticks: 3 });
    assert_eq!(pulse(&mut harness), WorkerActivity { wait_ticks: 3, ..WorkerActivity::default() });
}

/// Progress costs no message of its own.
#[test]
fn the_heart_says_how_much_was_done() {
    let (_, mut harness) = running();
    harness.sent.clear();
    harness.event(WorkerEvent::Progress { done: 1 });
    harness.event(WorkerEvent::Progress { done: 70_000 });
    assert_eq!(harness.sent, []);
    assert_eq!(pulse(&mut harness).progress, 70_000);
    assert_eq!(pulse(&mut harness).progress, 70_000, "it is a count, and no rate");
}
