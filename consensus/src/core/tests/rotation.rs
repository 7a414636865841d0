//! A change of authority over leaders that go in the middle of it, with workers that learn of it
//! from briefings, as of everything.

use std::collections::BTreeMap;

use zbelastic_types::{Digest, NodeId};

use super::super::{Input, OperatorCommand};
use super::in_process::InProcessCluster;
use crate::access::{
    AccessChange, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession,
};

const NEW: Digest = Digest([2; 32]);
const NOW_S: u64 = 1000;

fn order(change: AuthorityChange) -> OperatorCommand {
    OperatorCommand::Access(AccessChange::Authority(change))
}

fn announced() -> OperatorCommand {
    let succession = Succession { key: NEW, certificate: vec![2], bridge: vec![3], old: vec![1] };
    order(AuthorityChange::Announced { succession: Box::new(succession), is_forced: true })
}

fn phase(pump: &InProcessCluster) -> Option<RotationPhase> {
    let leader = pump.leader()?;
    let rotation = pump.controllers[&leader].state().access().rotation();
    rotation.map(|rotation| rotation.phase)
}

/// What a member reports that knows this rotation.
fn report(rotation: Option<&Rotation>) -> Option<AuthorityReport> {
    let rotation = rotation?;
    let (key, is_certified) = (rotation.succession.key, rotation.is_issuing());
    Some(AuthorityReport { key, believes: true, is_certified, has_key: true })
}

/// What members know, as they would report it to the leader.
fn reports(pump: &InProcessCluster) -> BTreeMap<NodeId, AuthorityReport> {
    let there = |node: &NodeId| !pump.cut.contains(node);
    let controllers = pump.controllers.iter().filter(|(node, _)| there(node));
    let controllers = controllers
        .filter_map(|(node, core)| Some((*node, report(core.state().access().rotation())?)));
    let workers = pump.workers.iter().filter(|(node, _)| there(node));
    let workers = workers.filter_map(|(node, worker)| {
        Some((*node, report(worker.session.contacts().rotation.as_ref())?))
    });
    controllers.chain(workers).collect()
}

/// What the process of the leader does each time it looks.
fn advance_rotation(pump: &mut InProcessCluster) {
    let Some(leader) = pump.leader() else { return };
    let reports = reports(pump);
    let change = match pump.controllers[&leader].state().rotation_step(&reports, NOW_S) {
        RotationStep::Issue => AuthorityChange::Issues { key: NEW, until_s: NOW_S + 1 },
        RotationStep::Retire => AuthorityChange::Retired { key: NEW },
        RotationStep::Nothing | RotationStep::Wait { .. } => return,
        RotationStep::AnnounceAnew => panic!("somebody has the key"),
    };
    // A leader that is not one any more is refused, and the next one looks.
    let _ = pump.input(leader, Input::Command(order(change)));
}

fn run_until_phase(pump: &mut InProcessCluster, expected: RotationPhase) {
    for _ in 0..2000 {
        advance_rotation(pump);
        pump.rounds(1);
        if phase(pump) == Some(expected) {
            return;
        }
    }
    panic!("{:?} instead of {expected:?}", phase(pump));
}

#[test]
fn the_next_leader_goes_on_where_the_last_one_stopped() {
    let mut pump = InProcessCluster::new(3, 2);
    pump.until("workers are there", |pump| {
        pump.leader().is_some() && pump.state().live_workers().count() == 2
    });
    pump.command(announced());
    pump.until("it is announced", |pump| phase(pump).is_some());
    let issuing = RotationPhase::Issuing { until_s: NOW_S + 1 };
    for expected in [issuing, RotationPhase::Retired] {
        let leader = pump.leader().expect("it leads");
        pump.cut.insert(leader);
        pump.until("another leads", |pump| pump.leader().is_some_and(|next| next != leader));
        // A worker that is away is called lost by the next leader before anything is decided
        // without it, or comes back.
        pump.cut.remove(&leader);
        run_until_phase(&mut pump, expected);
    }
    pump.until("workers know", |pump| {
        pump.workers.values().all(|worker| {
            let rotation = worker.session.contacts().rotation.as_ref();
            rotation.is_some_and(|rotation| rotation.phase == RotationPhase::Retired)
        })
    });
}
