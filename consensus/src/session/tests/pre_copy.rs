//! Commands of a session about layers that are copied ahead of a planned change.

use std::sync::Arc;

use zbelastic_types::{Generation, LayerId};

use crate::entry::Entry;
use crate::fixture::{FixtureLog, spec};
use crate::message::{Briefing, Message};
use crate::pre_copy::{FollowedLayer, PreCopyPlan};
use crate::session::{WorkerCommand, WorkerEvent};
use crate::validation::Verdict;

use super::harness::{BriefingContent, CONTROLLERS, SessionHarness, briefing};

/// Nodes 2 and 3 run a plan, and node 1 has come.
fn joined() -> FixtureLog {
    let mut log = FixtureLog::running(spec(), &[2, 3]);
    log.keep(1);
    log.join(1);
    log
}

/// Node 1 is to follow a layer of node 2.
fn pre_copy_plan(log: &FixtureLog) -> Arc<PreCopyPlan> {
    let (follower, owner) = (log.holder(1), log.holder(2));
    let layers = vec![FollowedLayer { layer: LayerId(0), follower, owner }];
    Arc::new(PreCopyPlan { generation: log.state.generation(), layers })
}

fn pre_copy_briefing(log: &FixtureLog, pre_copy_plan: Option<&Arc<PreCopyPlan>>) -> Briefing {
    Briefing { pre_copy: pre_copy_plan.cloned(), ..briefing(log, BriefingContent::Changes) }
}

/// A session whose worker follows a layer.
fn following(log: &FixtureLog) -> SessionHarness {
    let mut harness = SessionHarness::briefed(log);
    harness.take_commands();
    harness
        .try_brief(CONTROLLERS[0], pre_copy_briefing(log, Some(&pre_copy_plan(log))))
        .expect("it belongs");
    let (holder, pre_copy) = (log.holder(1), Some(pre_copy_plan(log)));
    assert_eq!(harness.take_commands(), [WorkerCommand::PreCopy { holder, pre_copy }]);
    // The seal before is one that no worker waits for any more.
    harness
        .try_brief(CONTROLLERS[0], pre_copy_briefing(log, Some(&self::pre_copy_plan(log))))
        .expect("it belongs");
    assert!(matches!(harness.take_commands()[..], [WorkerCommand::ApplySeal(_)]));
    harness
}

#[test]
fn what_is_copied_ahead_is_ordered_once() {
    let log = joined();
    let mut harness = following(&log);
    harness
        .try_brief(CONTROLLERS[1], pre_copy_briefing(&log, Some(&pre_copy_plan(&log))))
        .expect("it belongs");
    assert_eq!(harness.take_commands(), []);
}

#[test]
fn who_is_not_named_is_ordered_nothing_nor_is_what_is_of_another_plan() {
    let log = joined();
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let mut other = (*pre_copy_plan(&log)).clone();
    other.layers[0].follower = log.holder(3);
    harness
        .try_brief(CONTROLLERS[0], pre_copy_briefing(&log, Some(&Arc::new(other))))
        .expect("it belongs");
    let mut later = (*pre_copy_plan(&log)).clone();
    later.generation = Generation(9);
    harness
        .try_brief(CONTROLLERS[0], pre_copy_briefing(&log, Some(&Arc::new(later))))
        .expect("it belongs");
    assert_eq!(harness.take_commands(), []);
}

/// A controller that does not lead does not know what is planned.
#[test]
fn only_who_leads_ends_it() {
    let log = joined();
    let mut harness = following(&log);
    harness.try_brief(CONTROLLERS[1], pre_copy_briefing(&log, None)).expect("it belongs");
    assert_eq!(harness.take_commands(), []);
    harness.try_brief(CONTROLLERS[0], pre_copy_briefing(&log, None)).expect("it belongs");
    let holder = log.holder(1);
    assert_eq!(harness.take_commands(), [WorkerCommand::PreCopy { holder, pre_copy: None }]);
}

#[test]
fn who_follows_learns_of_seals_once_though_it_has_no_stage() {
    let mut log = joined();
    let mut harness = following(&log);
    let seal = log.seal(Verdict::Keep);
    log.apply(Entry::Seal(seal));
    for _ in 0..2 {
        harness
            .try_brief(CONTROLLERS[0], pre_copy_briefing(&log, Some(&pre_copy_plan(&log))))
            .expect("it belongs");
    }
    assert_eq!(harness.take_commands(), [WorkerCommand::ApplySeal(seal)]);
}

#[test]
fn that_it_follows_is_told_until_nothing_is_followed() {
    let log = joined();
    let mut harness = following(&log);
    let (generation, layers) = (log.state.generation(), vec![LayerId(0)]);
    harness.sent.clear();
    harness.event(WorkerEvent::Following { generation, layers: layers.clone() });
    let holder = log.holder(1);
    let message = Message::Following { holder, generation, layers };
    assert_eq!(harness.take_messages(), [(CONTROLLERS[0], message.clone())]);
    assert_eq!(harness.resent_messages(), [message]);
    harness.try_brief(CONTROLLERS[0], pre_copy_briefing(&log, None)).expect("it belongs");
    assert_eq!(harness.resent_messages(), []);
}

/// The last seal comes before the command to load: what is followed is then where the layers begin.
#[test]
fn a_plan_that_begins_is_loaded_behind_its_last_seal() {
    let mut log = joined();
    let mut harness = following(&log);
    let seal = log.seal(Verdict::Keep);
    log.apply(Entry::Seal(seal));
    log.adopt(log.plan(&[2, 1]));
    harness.brief(&log, BriefingContent::All);
    let commands = harness.take_commands();
    assert!(
        matches!(
            &commands[..],
            [WorkerCommand::ApplySeal(of), WorkerCommand::Load(_)] if *of == seal
        ),
        "{commands:?}"
    );
}

#[test]
fn a_plan_without_it_ends_what_it_follows() {
    let mut log = joined();
    let mut harness = following(&log);
    log.adopt(log.plan(&[3, 2]));
    harness.brief(&log, BriefingContent::All);
    let holder = log.holder(1);
    assert_eq!(harness.take_commands(), [WorkerCommand::PreCopy { holder, pre_copy: None }]);
}

/// What was followed may be all that is left of its owner's layers. It is let go of like others that this
/// node held, once a later plan runs without it.
#[test]
fn what_was_followed_is_held_until_a_later_plan_runs() {
    let mut log = joined();
    let mut harness = following(&log);
    let changes = briefing(&log, BriefingContent::Changes);
    let requested = Briefing { requests_inventory: true, ..changes };
    harness.try_brief(CONTROLLERS[0], requested).expect("it belongs");
    let (holder, index) = (log.holder(1), log.state.applied());
    assert_eq!(harness.take_commands(), [WorkerCommand::TakeInventory { holder, index }]);
    log.adopt(log.plan(&[2, 3]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.take_commands(), [], "others load it");
    log.load();
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [WorkerCommand::Release]);
}
