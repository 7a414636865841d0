//! What the host reports is sent again until it is known to be agreed, and no longer.

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
    let bench = SessionHarness::briefed(&log);
    (log, bench)
}

fn report(turn: Turn) -> GradientReport {
    let sums = vec![sum(LayerId(0), 0.25), sum(LayerId(1), 0.5)];
    GradientReport { turn, stage: StageIndex(0), sums, loss_sum: None }
}

fn held(turn: Turn) -> HeldUpdate {
    HeldUpdate { turn, of: StageIndex(1), sums: vec![sum(LayerId(2), 0.25)], state: Vec::new() }
}

/// News are sent to the leader at once, and to all controllers until a briefing shows that they are known.
fn check_resent(bench: &mut SessionHarness, news: WorkerEvent, expected: &Message) {
    bench.take_messages();
    bench.event(news);
    assert_eq!(bench.take_messages(), [(CONTROLLERS[0], expected.clone())]);
    assert_eq!(bench.resent_messages(), std::slice::from_ref(expected));
    assert_eq!(bench.resent_messages(), std::slice::from_ref(expected));
}

#[test]
fn reports_and_held_updates_are_told_until_their_turn_is_sealed() {
    let (mut log, mut bench) = running();
    let (holder, turn) = (log.holder(1), log.state.open_turn());
    let (report, state) = (report(turn), fingerprints([LayerId(0)], 0));
    let reported = Message::Report { holder, report: report.clone(), state: state.clone() };
    check_resent(&mut bench, WorkerEvent::Reported { report, state }, &reported);
    let update = held(turn);
    bench.event(WorkerEvent::UpdateHeld(update.clone()));
    let told = [reported, Message::Held { holder, update }];
    assert_eq!(bench.resent_messages(), told);
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), told, "it is not sealed yet");
    log.keep(1);
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), []);
}

#[test]
fn an_update_of_the_turn_that_follows_is_kept_when_the_one_before_is_sealed() {
    let (mut log, mut bench) = running();
    let (holder, turn) = (log.holder(1), log.state.open_turn());
    let next = held(Turn { step: turn.step.next(), ..turn });
    bench.event(WorkerEvent::UpdateHeld(next.clone()));
    log.keep(1);
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), [Message::Held { holder, update: next }]);
}

#[test]
fn to_whom_nobody_is_known_to_lead_everybody_is_told() {
    let (log, mut bench) = running();
    let nobody = Briefing { leader: None, ..briefing(&log, BriefingContent::Changes) };
    bench.try_brief(CONTROLLERS[1], nobody).expect("it belongs");
    bench.event(WorkerEvent::UpdateHeld(held(log.state.open_turn())));
    let to: Vec<NodeId> = bench.take_messages().into_iter().map(|(to, _)| to).collect();
    assert_eq!(to, CONTROLLERS);
}

#[test]
fn that_a_plan_is_loaded_is_told_until_it_runs() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let mut bench = SessionHarness::briefed(&log);
    let ready: ReadyRecord = log.ready(0);
    let ReadyRecord { generation, layers, copies, .. } = ready.clone();
    check_resent(
        &mut bench,
        WorkerEvent::Loaded { generation, layers, copies },
        &Message::Ready(ready.clone()),
    );
    log.apply(Entry::Ready(ready.clone()));
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), [Message::Ready(ready)]);
    log.apply(Entry::Ready(log.ready(1)));
    log.resume();
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), []);
}

#[test]
fn that_a_layer_cannot_be_had_is_told_until_there_is_another_plan() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let mut bench = SessionHarness::briefed(&log);
    let (holder, generation, layer) = (log.holder(1), log.state.generation(), LayerId(1));
    let cause = LoadFault::Source;
    let failed = Message::LoadFailed { holder, generation, layer, cause };
    check_resent(&mut bench, WorkerEvent::LoadFailed { generation, layer, cause }, &failed);
    log.adopt(log.plan(&[2, 1]));
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.resent_messages(), []);
}

#[test]
fn an_inventory_is_told_until_there_is_another_plan() {
    let (mut log, mut bench) = running();
    let held = HeldLayer { layer: LayerId(0), version: Step(0), digest: digest(0, 0) };
    let (holder, index, layers) = (log.holder(1), log.state.applied(), vec![held]);
    let told = Message::Inventory { holder, index, layers: layers.clone() };
    check_resent(&mut bench, WorkerEvent::Inventory { index, layers }, &told);
    log.adopt(log.plan(&[2, 1]));
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.resent_messages(), []);
}

#[test]
fn what_is_durable_is_told_until_nobody_waits_for_it() {
    let (log, mut bench) = running();
    let (holder, generation) = (log.holder(1), log.state.generation());
    let saved = |version| {
        let layers = digests([LayerId(0)], version);
        Message::Saved { holder, version: Step(version), generation, layers, busy_milliticks: 0 }
    };
    for version in [4, 8] {
        let layers = digests([LayerId(0)], version);
        bench.event(WorkerEvent::Saved {
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
        bench.try_brief(CONTROLLERS[0], briefing).expect("it belongs");
        bench.resent_messages()
    };
    assert_eq!(brief(&[4], 7), [saved(4), saved(8)], "8 is not open yet there");
    assert_eq!(brief(&[4, 8], 9), [saved(4), saved(8)]);
    assert_eq!(brief(&[8], 9), [saved(8)]);
    assert_eq!(brief(&[], 9), []);
}

#[test]
fn so_many_versions_are_told_and_the_oldest_is_given_up() {
    let (log, mut bench) = running();
    let generation = log.state.generation();
    for version in (1..=5).map(Step) {
        bench.event(WorkerEvent::Saved {
            version,
            generation,
            layers: Vec::new(),
            busy_milliticks: 0,
        });
    }
    let versions: Vec<_> = bench.resent_messages();
    let version = |message: &Message| {
        let Message::Saved { version, .. } = message else { panic!("{message:?}") };
        version.0
    };
    assert_eq!(versions.iter().map(version).collect::<Vec<_>>(), [2, 3, 4, 5]);
}

#[test]
fn a_plan_that_ends_takes_what_was_about_it_along_but_not_what_is_durable() {
    let (mut log, mut bench) = running();
    let (turn, generation) = (log.state.open_turn(), log.state.generation());
    bench.event(WorkerEvent::Reported { report: report(turn), state: Vec::new() });
    bench.event(WorkerEvent::UpdateHeld(held(turn)));
    let version = Step(4);
    bench.event(WorkerEvent::Saved { version, generation, layers: Vec::new(), busy_milliticks: 0 });
    log.adopt(log.plan(&[2, 1]));
    bench.brief(&log, BriefingContent::All);
    let holder = log.holder(1);
    assert_eq!(
        bench.resent_messages(),
        [Message::Saved { holder, version, generation, layers: vec![], busy_milliticks: 0 }]
    );
}

/// R2: what a host still reports of a plan that is over is not sent.
#[test]
fn r2_news_of_another_plan_are_not_told() {
    let (log, mut bench) = running();
    let turn = Turn { generation: Generation(9), ..log.state.open_turn() };
    let generation = turn.generation;
    for news in [
        WorkerEvent::Reported { report: report(turn), state: Vec::new() },
        WorkerEvent::UpdateHeld(held(turn)),
        WorkerEvent::Loaded { generation, layers: Vec::new(), copies: Vec::new() },
        WorkerEvent::LoadFailed { generation, layer: LayerId(0), cause: LoadFault::Source },
    ] {
        bench.event(news);
    }
    assert_eq!((bench.take_messages(), bench.resent_messages()), (vec![], vec![]));
}

#[test]
fn that_the_machine_is_about_to_go_is_told_on() {
    let (mut log, mut bench) = running();
    let holder = log.holder(1);
    bench.input(SessionInput::Drain).expect("it is taken");
    let drain = Message::Drain { holder };
    assert_eq!(bench.take_messages(), CONTROLLERS.map(|to| (to, drain.clone())));
    assert_eq!(bench.resent_messages(), std::slice::from_ref(&drain));
    log.apply(Entry::Members(vec![MemberChange::Drain { holder }]));
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.resent_messages(), [drain], "until it goes; a leader that knows refuses it");
}

#[test]
fn who_is_no_member_has_nothing_to_tell() {
    let mut bench = SessionHarness::new();
    let (log, _) = running();
    bench.event(WorkerEvent::UpdateHeld(held(log.state.open_turn())));
    assert_eq!(bench.take_messages(), []);
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.resent_messages(), []);
}

fn pulse(bench: &mut SessionHarness) -> WorkerActivity {
    bench.sent.clear();
    bench.tick(TIMING.beat_ticks);
    let Some((_, Message::Beat { pulse, .. })) = bench.sent.first() else { panic!("no beat") };
    *pulse
}

#[test]
fn the_heart_says_how_long_an_operation_takes_and_how_long_a_verdict_was_waited_for() {
    let (_, mut bench) = running();
    assert_eq!(pulse(&mut bench), WorkerActivity::default());
    bench.event(WorkerEvent::Busy { is_busy: true });
    assert_eq!(pulse(&mut bench).busy_ticks, 1 + TIMING.beat_ticks);
    assert_eq!(pulse(&mut bench).busy_ticks, 1 + 2 * TIMING.beat_ticks);
    bench.event(WorkerEvent::Busy { is_busy: true });
    assert_eq!(pulse(&mut bench).busy_ticks, 1 + TIMING.beat_ticks, "another operation");
    bench.event(WorkerEvent::Busy { is_busy: false });
    bench.event(WorkerEvent::VerdictWaited { ticks: 3 });
    assert_eq!(pulse(&mut bench), WorkerActivity { wait_ticks: 3, ..WorkerActivity::default() });
}

/// Progress costs no message of its own.
#[test]
fn the_heart_says_how_much_was_done() {
    let (_, mut bench) = running();
    bench.sent.clear();
    bench.event(WorkerEvent::Progress { done: 1 });
    bench.event(WorkerEvent::Progress { done: 70_000 });
    assert_eq!(bench.sent, []);
    assert_eq!(pulse(&mut bench).progress, 70_000);
    assert_eq!(pulse(&mut bench).progress, 70_000, "it is a count, and no rate");
}
