//! Processes die, machines start again, power goes, a majority is lost.

use zbelastic_consensus::core::{ConnectionEnd, Input, OperatorCommand};
use zbelastic_consensus::job::JobChange;
use zbelastic_consensus::session::SessionInput;
use zbelastic_consensus::state::State;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::{ClusterId, NodeId, Step};

use super::surroundings::CrashedWorker;
use super::{World, WorldEvent};
use crate::markers::Marker;

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    /// Kills the process that runs on a machine; it starts again after a while, or never. Yields
    /// whether anything ran.
    pub(super) fn crash(&mut self, node: NodeId, down_us: Option<u64>) -> bool {
        let ran = if self.controllers.machines.contains_key(&node) {
            self.controllers.crash_controller(&mut self.env, node)
        } else {
            let ran = self.workers.crash_worker(&mut self.env, node);
            if ran {
                self.close_connection(node);
            }
            ran
        };
        if let Some(down_us) = down_us {
            self.env.queue.push(self.env.now.after(down_us), WorldEvent::Restart(node));
        }
        ran
    }

    /// Half of the time a leader notices at once. Yields whether one did.
    pub(super) fn close_connection(&mut self, node: NodeId) -> bool {
        let Some(leader) = self.controllers.leader().filter(|_| self.env.draws_target.chance(0.5))
        else {
            return false;
        };
        self.command(leader, Input::Closed { node, end: ConnectionEnd::Closed });
        true
    }

    pub(super) fn restart(&mut self, node: NodeId) {
        if !self.controllers.machines.contains_key(&node) {
            let controllers = self.controllers.controllers_in_use();
            self.workers.restart_worker(&mut self.env, node, controllers);
            return;
        }
        let machine = &self.controllers.machines[&node];
        if machine.is_condemned {
            return;
        }
        // One that was never admitted has nothing to come back to.
        if machine.was_admitted {
            self.restart_controller(node);
        } else if self.controllers.machines[&node].core.is_none() {
            self.condemn(node);
        }
    }

    /// A majority of the voters and their disks are gone; the operator of the cluster notices, sees
    /// that nothing moves, and begins anew from the newest checkpoint.
    pub(super) fn lose_majority(&mut self, draw: u64) -> bool {
        let is_possible =
            |nodes: &Vec<NodeId>| !self.env.storm.is_majority_lost && !nodes.is_empty();
        let Some(nodes) = self.controllers.settled_voters(&self.env).filter(is_possible) else {
            return false;
        };
        self.env.storm.is_majority_lost = true;
        let count = nodes.len() / 2 + 1;
        let cores = self.controllers.machines.values().filter_map(|machine| machine.core.as_ref());
        let last_index = cores.map(|core| core.status().last_index).max().unwrap_or(0);
        for offset in 0..count {
            let node = nodes[(draw as usize + offset) % nodes.len()];
            self.crash(node, None);
            let machine = self.controllers.machines.get_mut(&node).expect("a controller");
            machine.is_condemned = true;
        }
        self.env.note(|| format!("{count} of {} voters are gone for good", nodes.len()));
        self.env.checker.quorum_is_lost(last_index);
        let wait = self.env.draws_target.between(2_000_000, 6_000_000);
        self.env.queue.push(self.env.now.after(wait), WorldEvent::Recover);
        true
    }

    pub(super) fn recover_by_force(&mut self) {
        let left: Vec<NodeId> = self.controllers.machines.keys().copied().collect();
        for node in left {
            self.crash(node, None);
            self.controllers.machines.get_mut(&node).expect("a controller").is_condemned = true;
        }
        self.controllers.dead.clear();
        let cluster = ClusterId(self.env.cluster.0.wrapping_add(2));
        self.env.cluster = cluster;
        self.env.rewound_at = 0;
        let manifest = self.env.newest_manifest();
        let checkpoint = manifest.as_ref().map(|(_, checkpoint)| checkpoint);
        self.env.checker.recovered_from(checkpoint.map_or(Step(0), |found| found.version));
        self.controllers.record.recovered(checkpoint);
        let state = manifest.map(|(spec, checkpoint)| State::recovered(cluster, spec, checkpoint));
        self.env.note(|| format!("a new cluster begins, with a checkpoint: {}", state.is_some()));
        self.env.mark(Marker::RecoveredByForce);
        let count = self.env.case.options.controllers;
        self.controllers.create_controllers(&mut self.env, &self.workers, count, state);
        self.settle();
        let controllers = self.controllers.controllers_in_use();
        let workers: Vec<NodeId> = self.workers.machines.keys().copied().collect();
        for node in workers {
            let controllers = controllers.clone();
            self.send_operator_input(node, SessionInput::Controllers { cluster, controllers });
        }
    }

    /// The store takes what is written again, which members notice.
    pub(super) fn recover_store(&mut self) {
        self.env.store.fails = false;
        self.send_to_controllers(&Input::DiskAmple);
    }

    /// Every controller that runs gets an input of its own node, unless it stands still.
    pub(super) fn send_to_controllers(&mut self, input: &Input) {
        let now = self.env.now;
        let running =
            self.controllers.machines.iter().filter(|(_, machine)| machine.core.is_some());
        let running: Vec<(NodeId, u64)> =
            running.map(|(node, machine)| (*node, machine.life)).collect();
        for (node, life) in running {
            let input = Box::new(input.clone());
            self.env.queue.push(now, WorldEvent::Command { node, life, input });
        }
    }

    /// The storm is over: faults end, machines come back, and progress must return.
    pub(super) fn calm(&mut self) {
        self.env.is_calm = true;
        self.env.calm_at = self.env.now;
        self.env.note(|| "the storm is over".to_owned());
        self.env.storm.armed.clear();
        self.env.network.calm();
        self.recover_store();
        for machine in self.controllers.machines.values_mut() {
            machine.sync_us_extra = 0;
            machine.disk.fails = false;
        }
        let hung: Vec<NodeId> = self.workers.machines.keys().copied().collect();
        for machine in self.workers.machines.values_mut() {
            machine.slow_factor = 1;
            machine.hangs_next = false;
            machine.faults.borrow_mut().clear();
        }
        let controllers: Vec<NodeId> = self.controllers.machines.keys().copied().collect();
        controllers.into_iter().chain(hung).for_each(|node| self.restart(node));
        // Workers that were declared untrusted stay away; one worker must be there.
        self.add_worker();
    }

    /// Everybody learns of other controllers.
    pub(super) fn send_controllers(&mut self) {
        let cluster = self.env.cluster;
        let controllers = self.controllers.controllers_in_use();
        let nodes: Vec<NodeId> = self.workers.machines.keys().copied().collect();
        for node in nodes {
            let input = SessionInput::Controllers { cluster, controllers: controllers.clone() };
            self.send_operator_input(node, input);
        }
    }

    pub(super) fn handle_leave(&mut self, node: NodeId, life: u64) {
        let Some(machine) = self.workers.machines.get_mut(&node) else { return };
        if machine.life == life {
            machine.is_gone = true;
            self.crash(node, None);
        }
    }

    /// Starts the job once there is a leader; removes controllers that are gone for good.
    pub(super) fn administer(&mut self) {
        self.env.queue.push(self.env.now.after(super::ADMIN_US), WorldEvent::Admin);
        self.controllers.record.audit_checkpoints(&mut self.env);
        let Some(leader) = self.controllers.leader() else { return };
        let core = self.controllers.machines[&leader].core.as_ref().expect("it leads");
        let has_job = core.state().job().is_some();
        let is_member = |node: &&NodeId| core.state().membership().is_controller(**node);
        let dead = self.controllers.dead.iter().find(is_member).copied();
        if !has_job {
            let spec = self.workers.setup.spec.clone();
            let command = OperatorCommand::Job(JobChange::Start(spec));
            self.command(leader, Input::Command(command));
        } else if let Some(dead) = dead {
            self.command(leader, Input::Command(OperatorCommand::Remove(dead)));
        }
    }

    /// The operator of the cluster removes the old one as soon as the new one is admitted.
    pub(super) fn remove_replaced(&mut self, old: NodeId) {
        if let Some(leader) = self.controllers.leader() {
            self.command(leader, Input::Command(OperatorCommand::Remove(old)));
        }
    }

    pub(super) fn retired(&mut self, node: NodeId) {
        self.crash(node, None);
        self.controllers.machines.get_mut(&node).expect("a controller").is_condemned = true;
        self.controllers.dead.insert(node);
        self.send_controllers();
    }

    /// Carries out the work that machines which have just run left to others: connections of
    /// workers that died are closed, and workers learn of other controllers.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some(crashed) = self.env.crashed.pop_front() {
                self.bury(&crashed);
            } else if self.env.announcements > 0 {
                self.env.announcements -= 1;
                self.send_controllers();
            } else {
                return;
            }
        }
    }

    fn bury(&mut self, crashed: &CrashedWorker) {
        if crashed.is_injected {
            self.note_injected();
        }
        if crashed.ran {
            self.close_connection(crashed.node);
        }
        let at = self.env.now.after(crashed.down_us);
        self.env.queue.push(at, WorldEvent::Restart(crashed.node));
    }

    /// Something changed for the worse.
    pub(super) fn note_injected(&mut self) {
        let phase = self.controllers.job_phase(&self.env);
        self.env.note_injected(phase);
    }

    /// The operator of the cluster sends a controller an input.
    pub(super) fn command(&mut self, node: NodeId, input: Input) {
        self.controllers.command(&mut self.env, &self.workers, node, input);
        self.settle();
    }

    /// The operator of the cluster sends a worker an input.
    pub(super) fn send_operator_input(&mut self, node: NodeId, input: SessionInput) {
        self.workers.send_operator_input(&mut self.env, node, input);
        self.settle();
    }

    /// A controller that was not there before.
    pub(super) fn add_controller(&mut self) -> NodeId {
        let new = self.controllers.add_controller(&mut self.env, &self.workers, &[]);
        self.settle();
        new
    }

    /// A worker that was not there before.
    pub(super) fn add_worker(&mut self) {
        let controllers = self.controllers.controllers_in_use();
        self.workers.add_worker(&mut self.env, controllers);
    }

    /// A controller with a disk that is not to be used comes back as another node.
    pub(super) fn condemn(&mut self, node: NodeId) {
        self.controllers.condemn(&mut self.env, &self.workers, node);
        self.settle();
    }

    /// Starts a controller from its disk.
    pub(super) fn restart_controller(&mut self, node: NodeId) {
        self.controllers.restart_controller(&mut self.env, &self.workers, node);
        self.settle();
    }
}
