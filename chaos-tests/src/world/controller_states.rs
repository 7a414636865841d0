//! Which controllers run, lead and agree, and how one dies.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::core::{Core, Input};
use zbelastic_consensus::job::JobPhase;
use zbelastic_consensus::member::{MemberChange, Role};
use zbelastic_consensus::raft::Members;
use zbelastic_consensus::state::{PlanPhase, StateChange};
use zbelastic_consensus::validation::Turn;
use zbelastic_types::{ClusterId, NodeId};

use super::WorldEvent;
use super::controllers::Controllers;
use super::machines::ControllerMachine;
use super::surroundings::Surroundings;
use super::worker_facts::WorkerFacts;
use crate::crash_points::CrashPoint;
use crate::markers::Marker;
use crate::queue::VirtualTime;

/// The newest state of a cluster that any of these machines has applied.
pub(super) fn newest_of(
    machines: &BTreeMap<NodeId, ControllerMachine>,
    cluster: ClusterId,
) -> Option<&Core> {
    let cores = machines.values().filter_map(|machine| machine.core.as_ref());
    let own = cores.filter(|core| core.state().cluster() == cluster);
    own.max_by_key(|core| core.state().applied())
}

impl Controllers {
    /// The newest state that any controller has applied.
    pub(super) fn newest_core(&self, env: &Surroundings<'_>) -> Option<&Core> {
        newest_of(&self.machines, env.cluster)
    }

    pub(super) fn job_phase(&self, env: &Surroundings<'_>) -> Option<JobPhase> {
        self.newest_core(env)?.state().job().map(|job| job.phase)
    }

    /// The controller that leads, as itself sees it.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let leads = |machine: &ControllerMachine| {
            machine.core.as_ref().is_some_and(|core| core.duties().is_some())
        };
        self.machines.iter().find(|(_, machine)| leads(machine)).map(|(node, _)| *node)
    }

    /// Controllers that may be named to a worker.
    pub(super) fn controllers_in_use(&self) -> Vec<NodeId> {
        let in_use = self.machines.iter().filter(|(_, machine)| !machine.is_condemned);
        in_use.map(|(node, _)| *node).collect()
    }

    pub(super) fn crash_controller(&mut self, env: &mut Surroundings<'_>, node: NodeId) -> bool {
        let open = self.newest_core(env).map(|core| core.state().open_turn());
        let machine = self.machines.get_mut(&node).expect("a controller");
        let Some(core) = machine.core.take() else { return false };
        machine.life += 1;
        machine.paused_until = VirtualTime(0);
        let damage = machine.disk.crash(&mut env.draws_disk);
        env.note(|| {
            format!("n{node} dies ({} records lost, torn {})", damage.lost, damage.is_torn)
        });
        self.check_quorum(env, &core.status().members.voters, open);
        true
    }

    pub(super) fn check_quorum(
        &mut self,
        env: &mut Surroundings<'_>,
        voters: &BTreeSet<NodeId>,
        open: Option<Turn>,
    ) {
        let is_up = |voter: &&NodeId| self.machines.get(voter).is_some_and(|m| m.core.is_some());
        let is_majority = voters.iter().filter(is_up).count() * 2 > voters.len();
        if let Some(open) = open.filter(|_| !is_majority) {
            env.checker.quorum_is_down(open);
        }
    }

    /// Whether a controller can be removed for good, and a majority of voters stays.
    pub(super) fn can_lose(&self, env: &Surroundings<'_>, node: NodeId) -> bool {
        let Some(core) = self.leader().and_then(|leader| self.machines[&leader].core.as_ref())
        else {
            return false;
        };
        let members = core.status().members;
        let Members { voters, outgoing, .. } = &members;
        // A controller that does not know of a change yet would count on those that went with it.
        let knows = |core: &Core| core.status().members == members;
        let up = voters.iter().filter_map(|voter| self.machines.get(voter)).filter(|machine| {
            let is_fit =
                !machine.is_retiring && machine.paused_until <= env.now && !machine.disk.fails;
            is_fit && machine.core.as_ref().is_some_and(knows)
        });
        let is_whole = up.count() == voters.len() && voters.len() >= 3 && outgoing.is_empty();
        is_whole && voters.contains(&node) && self.dead.iter().all(|dead| !voters.contains(dead))
    }

    /// The voters, if all voters agree on them.
    pub(super) fn settled_voters(&self, env: &Surroundings<'_>) -> Option<Vec<NodeId>> {
        let members = self.newest_core(env)?.status().members;
        let cores = self.machines.values().filter_map(|machine| machine.core.as_ref());
        let mut known = cores.map(|core| core.status().members);
        let agrees = |found: Members| found.voters.is_empty() || found == members;
        let is_settled = members.outgoing.is_empty() && known.all(agrees);
        is_settled.then(|| members.voters.into_iter().collect())
    }

    /// Cuts a controller that has just caught up and the leader off from all other controllers.
    pub(super) fn cut_newcomer(&mut self, env: &mut Surroundings<'_>, new: NodeId) {
        let Some((_, us)) = env.storm.cut_at_install.take_if(|(node, _)| *node == new) else {
            return;
        };
        let Some(leader) = self.leader() else { return };
        let inside = [leader, new];
        let mut outside = self.controllers_in_use();
        outside.retain(|node| !inside.contains(node));
        let pairs = outside.iter().flat_map(|out| inside.map(|within| (*out, within)));
        let links = pairs.flat_map(|(one, other)| [(one, other), (other, one)]).collect();
        env.note(|| format!("n{leader} and n{new} are cut off from {outside:?}"));
        env.cut(links, us);
    }

    /// When a machine that stands still goes on.
    pub(super) fn paused_until(&self, env: &Surroundings<'_>, node: NodeId) -> Option<VirtualTime> {
        let until = self.machines.get(&node).map(|machine| machine.paused_until);
        until.filter(|until| *until > env.now)
    }

    /// Kills the process that has just come to a crash point, and disarms the point.
    pub(super) fn crash_here(&mut self, env: &mut Surroundings<'_>, node: NodeId) {
        let armed = env.disarm();
        env.note_injected(self.job_phase(env));
        self.crash_controller(env, node);
        env.queue.push(env.now.after(armed.down_us), WorldEvent::Restart(node));
    }

    /// A controller learns which program a node has that reaches it.
    pub(super) fn connect(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        to: NodeId,
        node: NodeId,
    ) {
        if !env.case.options.old_programs {
            return;
        }
        let reads = env.reads(node);
        let core = self.machines.get(&to).and_then(|machine| machine.core.as_ref());
        if core.is_some_and(|core| core.reads(node) != Some(reads)) {
            self.controller_input(env, workers, to, Input::Connected { node, reads });
        }
    }

    /// Records the changes of an entry, if it is the first time that it was applied anywhere.
    pub(super) fn apply_change(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        index: u64,
        change: &StateChange,
    ) {
        let core = self.machines[&node].core.as_ref().expect("it applied something");
        let newest = newest_of(&self.machines, env.cluster);
        if !self.record.applied(env, workers, (core, newest), index, change) {
            return;
        }
        let StateChange::Members(changes) = change else { return };
        for change in changes {
            if let MemberChange::Admit { node, .. } = change
                && let Some(machine) = self.machines.get_mut(node)
            {
                machine.was_admitted = true;
            }
        }
    }

    /// The crash points that lie right behind an applied entry.
    pub(super) fn die_when_applied(
        &mut self,
        env: &mut Surroundings<'_>,
        node: NodeId,
        change: &StateChange,
    ) {
        let leads = self.leader() == Some(node);
        let sealed =
            if let StateChange::Sealed { seal, .. } = change { Some(seal.turn) } else { None };
        let point = match change {
            StateChange::Sealed { .. } => Some(CrashPoint::AfterCommitBeforeBroadcast),
            StateChange::Adopted(_) => Some(CrashPoint::PlanCommittedBeforeLoad),
            StateChange::Ready(_) => {
                is_half_ready(self.machines[&node].core.as_ref()).then_some(CrashPoint::BarrierHalf)
            }
            StateChange::Members(changes) => {
                changes.iter().any(admits_worker).then_some(CrashPoint::AdmittedBeforePlan)
            }
            StateChange::Planned(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => None,
        };
        let dies =
            point.is_some_and(|point| leads && env.hits(point)) || env.hits(CrashPoint::AfterApply);
        if dies {
            if leads && sealed.is_some() {
                env.mark(Marker::LeaderLostBeforeBroadcast);
            }
            self.crash_here(env, node);
        } else if leads && sealed.is_some() {
            self.machines.get_mut(&node).expect("a controller").unsent_seal = sealed;
        }
    }
}

/// Whether some holders of a plan are ready and others are not.
fn is_half_ready(core: Option<&Core>) -> bool {
    match core.and_then(|core| core.state().plan()).map(|plan| &plan.phase) {
        Some(PlanPhase::Loading(slots)) => {
            slots.iter().any(Option::is_some) && slots.iter().any(Option::is_none)
        }
        Some(PlanPhase::Running | PlanPhase::Closed) | None => false,
    }
}

fn admits_worker(change: &MemberChange) -> bool {
    match change {
        MemberChange::Admit { role, .. } => *role == Role::Worker,
        MemberChange::Lost { .. } | MemberChange::Drain { .. } | MemberChange::Moved { .. } => {
            false
        }
    }
}
