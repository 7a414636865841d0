//! Processes die, machines start again, power goes, a majority is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::codec;
use zbelastic_consensus::core::{Core, Input};
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::raft::Members;
use zbelastic_consensus::session::SessionInput;
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::{ClusterId, NodeId};

use super::storm::ArmedCrashPoint;
use super::{World, WorldEvent};
use crate::crash_points::CrashPoint;
use crate::markers::Marker;
use crate::queue::VirtualTime;

/// Bytes of a manifest at most.
const MANIFEST_BYTES_MAX: usize = 1 << 20;

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    /// Whether a process that comes to a point is to die there.
    pub(super) fn hits(&mut self, point: CrashPoint) -> bool {
        let Some(index) = self.storm.armed.iter().position(|armed| armed.point == point) else {
            return false;
        };
        if self.now < self.storm.undisturbed_until {
            return false;
        }
        if self.storm.armed[index].passes > 0 {
            self.storm.armed[index].passes -= 1;
            return false;
        }
        self.storm.armed[index].is_hit = true;
        true
    }

    /// Kills the process that has just come to a crash point, and disarms the point.
    pub(super) fn crash_here(&mut self, node: NodeId) {
        let armed = self.disarm();
        self.crash(node, Some(armed.down_us));
    }

    /// Takes away the crash point that was hit, and counts it.
    pub(super) fn disarm(&mut self) -> ArmedCrashPoint {
        let index = self.storm.armed.iter().position(|armed| armed.is_hit);
        let armed = self.storm.armed.remove(index.expect("a crash point was hit"));
        self.storm.crash_points.hit(armed.point);
        self.note_injected();
        self.note(|| format!("dies at {:?}", armed.point));
        armed
    }

    /// Kills whatever runs on a machine; it starts again after a while, or never. Yields whether
    /// anything ran.
    pub(super) fn crash(&mut self, node: NodeId, down_us: Option<u64>) -> bool {
        let ran = if self.controllers.contains_key(&node) {
            self.crash_controller(node)
        } else {
            self.crash_worker(node)
        };
        if let Some(down_us) = down_us {
            self.queue.push(self.now.after(down_us), WorldEvent::Restart(node));
        }
        ran
    }

    fn crash_controller(&mut self, node: NodeId) -> bool {
        let open = self.newest_core().map(|core| core.state().open_turn());
        let machine = self.controllers.get_mut(&node).expect("a controller");
        let Some(core) = machine.core.take() else { return false };
        machine.life += 1;
        machine.paused_until = VirtualTime(0);
        let damage = machine.disk.crash(&mut self.draws_disk);
        self.note(|| {
            format!("n{node} dies ({} records lost, torn {})", damage.lost, damage.is_torn)
        });
        self.check_quorum(&core.status().members.voters, open);
        true
    }

    fn check_quorum(&mut self, voters: &BTreeSet<NodeId>, open: Option<Turn>) {
        let is_up = |voter: &&NodeId| self.controllers.get(voter).is_some_and(|m| m.core.is_some());
        let is_majority = voters.iter().filter(is_up).count() * 2 > voters.len();
        if let Some(open) = open.filter(|_| !is_majority) {
            self.checker.quorum_is_down(open);
        }
    }

    fn crash_worker(&mut self, node: NodeId) -> bool {
        let Some(machine) = self.workers.get_mut(&node) else { return false };
        if machine.process.take().is_none() {
            return false;
        }
        machine.life += 1;
        machine.paused_until = VirtualTime(0);
        // What it did not report is gone with it.
        machine.faults.borrow_mut().take_effects();
        machine.faults.borrow_mut().forget_flip();
        self.store.writer_crashed(node, &mut self.draws_store);
        self.note(|| format!("w{node} dies"));
        self.checker.damage.disturbed(node, self.now);
        self.close_connection(node);
        true
    }

    /// Half of the time a leader notices at once. Yields whether one did.
    pub(super) fn close_connection(&mut self, node: NodeId) -> bool {
        let Some(leader) = self.leader().filter(|_| self.draws_target.chance(0.5)) else {
            return false;
        };
        self.command(leader, Input::Closed { node });
        true
    }

    pub(super) fn restart(&mut self, node: NodeId) {
        if !self.controllers.contains_key(&node) {
            self.restart_worker(node);
            return;
        }
        let machine = &self.controllers[&node];
        if machine.is_condemned {
            return;
        }
        // One that was never admitted has nothing to come back to.
        if machine.was_admitted {
            self.restart_controller(node);
        } else if self.controllers[&node].core.is_none() {
            self.condemn(node);
        }
    }

    /// Whether a controller can be taken away for good, and a majority of voters stays.
    pub(super) fn can_lose(&self, node: NodeId) -> bool {
        let Some(core) = self.leader().and_then(|leader| self.controllers[&leader].core.as_ref())
        else {
            return false;
        };
        let members = core.status().members;
        let Members { voters, outgoing, .. } = &members;
        // A controller that does not know of a change yet would count on those that went with it.
        let knows = |core: &Core| core.status().members == members;
        let up = voters.iter().filter_map(|voter| self.controllers.get(voter)).filter(|machine| {
            let is_fit =
                !machine.is_retiring && machine.paused_until <= self.now && !machine.disk.fails;
            is_fit && machine.core.as_ref().is_some_and(knows)
        });
        let is_whole = up.count() == voters.len() && voters.len() >= 3 && outgoing.is_empty();
        is_whole && voters.contains(&node) && self.dead.iter().all(|dead| !voters.contains(dead))
    }

    /// A majority of the voters and their disks are gone; the operator of the cluster notices, sees
    /// that nothing moves, and begins anew from the newest checkpoint.
    pub(super) fn lose_majority(&mut self, draw: u64) -> bool {
        let is_possible = |nodes: &Vec<NodeId>| !self.storm.is_majority_lost && !nodes.is_empty();
        let Some(nodes) = self.settled_voters().filter(is_possible) else { return false };
        self.storm.is_majority_lost = true;
        let count = nodes.len() / 2 + 1;
        let cores = self.controllers.values().filter_map(|machine| machine.core.as_ref());
        let last_index = cores.map(|core| core.status().last_index).max().unwrap_or(0);
        for offset in 0..count {
            let node = nodes[(draw as usize + offset) % nodes.len()];
            self.crash(node, None);
            let machine = self.controllers.get_mut(&node).expect("a controller");
            machine.is_condemned = true;
        }
        self.note(|| format!("{count} of {} voters are gone for good", nodes.len()));
        self.checker.quorum_is_lost(last_index);
        let wait = self.draws_target.between(2_000_000, 6_000_000);
        self.queue.push(self.now.after(wait), WorldEvent::Recover);
        true
    }

    /// The voters, if all voters agree on them.
    fn settled_voters(&self) -> Option<Vec<NodeId>> {
        let members = self.newest_core()?.status().members;
        let cores = self.controllers.values().filter_map(|machine| machine.core.as_ref());
        let mut known = cores.map(|core| core.status().members);
        let agrees = |found: Members| found.voters.is_empty() || found == members;
        let is_settled = members.outgoing.is_empty() && known.all(agrees);
        is_settled.then(|| members.voters.into_iter().collect())
    }

    pub(super) fn recover_by_force(&mut self) {
        let left: Vec<NodeId> = self.controllers.keys().copied().collect();
        for node in left {
            self.crash(node, None);
            self.controllers.get_mut(&node).expect("a controller").is_condemned = true;
        }
        self.dead.clear();
        let cluster = ClusterId(self.cluster.0.wrapping_add(2));
        self.cluster = cluster;
        self.referred.clear();
        let state = self.newest_manifest().map(|(spec, checkpoint)| {
            self.checker.recovered_from(checkpoint.version);
            self.referred.insert(checkpoint.version, checkpoint.clone());
            State::recovered(cluster, spec, checkpoint)
        });
        if state.is_none() {
            self.checker.recovered_from(zbelastic_types::Step(0));
        }
        self.note(|| format!("a new cluster begins, with a checkpoint: {}", state.is_some()));
        self.mark(Marker::RecoveredByForce);
        (self.store_index, self.open) = (0, None);
        self.create_controllers(self.case.options.controllers, state);
        let controllers = self.controllers_in_use();
        let workers: Vec<NodeId> = self.workers.keys().copied().collect();
        for node in workers {
            let controllers = controllers.clone();
            self.send_operator_input(node, SessionInput::Controllers { cluster, controllers });
        }
    }

    /// The newest checkpoint that can be read to the last byte.
    fn newest_manifest(&self) -> Option<(Arc<JobSpec>, CheckpointRecord)> {
        let manifests = self
            .store
            .manifests()
            .filter(|(version, _)| self.checker.is_restorable(&self.store, *version));
        let decode = |(_, bytes): (_, &[u8])| codec::decode(bytes, MANIFEST_BYTES_MAX).ok();
        manifests.into_iter().find_map(decode)
    }

    /// The storm is over: faults end, machines come back, and progress must return.
    pub(super) fn calm(&mut self) {
        self.is_calm = true;
        self.calm_at = self.now;
        self.note(|| "the storm is over".to_owned());
        self.storm.armed.clear();
        self.network.calm();
        self.store.fails = false;
        for machine in self.controllers.values_mut() {
            machine.sync_us_extra = 0;
            machine.disk.fails = false;
        }
        let hung: Vec<NodeId> = self.workers.keys().copied().collect();
        for machine in self.workers.values_mut() {
            machine.slow_factor = 1;
            machine.hangs_next = false;
            machine.faults.borrow_mut().clear();
        }
        let controllers: Vec<NodeId> = self.controllers.keys().copied().collect();
        controllers.into_iter().chain(hung).for_each(|node| self.restart(node));
        // Workers that were taken for untrusted stay away; one worker must be there.
        self.add_worker();
    }
}
