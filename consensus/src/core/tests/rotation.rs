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

fn authority_command(change: AuthorityChange) -> OperatorCommand {
    OperatorCommand::Access(AccessChange::Authority(change))
}

fn announced() -> OperatorCommand {
    let succession = Succession { key: NEW, certificate: vec![2], bridge: vec![3], old: vec![1] };
    authority_command(AuthorityChange::Announced {
        succession: Box::new(succession),
        is_forced: true,
    })
}

fn phase(cluster: &InProcessCluster) -> Option<RotationPhase> {
    let leader = cluster.leader()?;
    let rotation = cluster.controllers[&leader].state().access().rotation();
    rotation.map(|rotation| rotation.phase)
}

/// What a member reports that knows this rotation.
fn report(rotation: Option<&Rotation>) -> Option<AuthorityReport> {
    let rotation = rotation?;
    let (key, is_certified) = (rotation.succession.key, rotation.is_issuing());
    Some(AuthorityReport { key, believes: true, is_certified, has_key: true })
}

/// What members know, as they would report it to the leader.
fn reports(cluster: &InProcessCluster) -> BTreeMap<NodeId, AuthorityReport> {
    let there = |node: &NodeId| !cluster.cut.contains(node);
    let controllers = cluster.controllers.iter().filter(|(node, _)| there(node));
    let controllers = controllers
        .filter_map(|(node, core)| Some((*node, report(core.state().access().rotation())?)));
    let workers = cluster.workers.iter().filter(|(node, _)| there(node));
    let workers = workers.filter_map(|(node, worker)| {
        Some((*node, report(worker.session.contacts().rotation.as_ref())?))
    });
    controllers.chain(workers).collect()
}

/// What the process of the leader does each time it looks.
fn advance_rotation(cluster: &mut InProcessCluster) {
    let Some(leader) = cluster.leader() else { return };
    let reports = reports(cluster);
    let change =
        match cluster.controllers[&leader].state().membership().rotation_step(&reports, NOW_S) {
            RotationStep::Issue => AuthorityChange::Issues { key: NEW, until_s: NOW_S + 1 },
            RotationStep::Retire => AuthorityChange::Retired { key: NEW },
            RotationStep::Nothing | RotationStep::Wait { .. } => return,
            RotationStep::AnnounceAnew => panic!("somebody has the key"),
        };
    // A leader that is not one any more is refused, and the next one looks.
    let _ = cluster.input(leader, Input::Command(authority_command(change)));
}

fn run_until_phase(cluster: &mut InProcessCluster, expected: RotationPhase) {
    for _ in 0..2000 {
        advance_rotation(cluster);
        cluster.rounds(1);
        if phase(cluster) == Some(expected) {
            return;
        }
    }
    panic!("{:?} instead of {expected:?}", phase(cluster));
}

#[test]
fn the_next_leader_goes_on_where_the_last_one_stopped() {
    let mut cluster = InProcessCluster::new(3, 2);
    cluster.until("workers are there", |cluster| {
        cluster.leader().is_some() && cluster.state().live_workers().count() == 2
    });
    cluster.command(announced());
    cluster.until("it is announced", |cluster| phase(cluster).is_some());
    let issuing = RotationPhase::Issuing { until_s: NOW_S + 1 };
    for expected in [issuing, RotationPhase::Retired] {
        let leader = cluster.leader().expect("it leads");
        cluster.cut.insert(leader);
        cluster
            .until("another leads", |cluster| cluster.leader().is_some_and(|next| next != leader));
        // A worker that is away is called lost by the next leader before anything is decided
        // without it, or comes back.
        cluster.cut.remove(&leader);
        run_until_phase(&mut cluster, expected);
    }
    cluster.until("workers know", |cluster| {
        cluster.workers.values().all(|worker| {
            let rotation = worker.session.contacts().rotation.as_ref();
            rotation.is_some_and(|rotation| rotation.phase == RotationPhase::Retired)
        })
    });
}
