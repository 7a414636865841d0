//! Faults strike.

use zbelastic_consensus::core::{Command, Input};
use zbelastic_consensus::seat::SeatInput;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::ComputeModel;
use zbelastic_types::NodeId;

use super::{Armed, Event, World};
use crate::faults::{CrashPoint, Cut, Fault};
use crate::markers::Marker;
use crate::numeric::NumericFault;

/// How long a controller that was replaced goes on.
const RETIRED_US: u64 = 8_000_000;
/// Machines of workers there may be.
const WORKERS_MAX: usize = 10;

impl<M: ComputeModel, S: BatchSource + Clone> World<'_, M, S> {
    pub(super) fn strike(&mut self, fault: Fault) {
        if self.is_calm {
            return;
        }
        self.faults_struck += 1;
        self.note(|| format!("fault {fault:?}"));
        match fault {
            Fault::CrashController { draw, down_us } => {
                self.crash_some(self.controllers_in_use(), draw, down_us);
            }
            Fault::CrashLeader { down_us } => {
                if let Some(leader) = self.leader() {
                    self.crash(leader, Some(down_us));
                }
            }
            Fault::CrashWorkers { draw, count, contiguous, down_us } => {
                self.crash_workers(draw, count, contiguous, down_us);
            }
            Fault::AllButOne { draw, down_us } => {
                let up = self.up_workers();
                let stays = pick(&up, draw);
                up.into_iter().filter(|node| Some(*node) != stays).for_each(|node| {
                    self.crash(node, Some(down_us));
                });
            }
            Fault::PowerCycle { down_us } => self.power_cycle(down_us),
            Fault::CrashAt { point, passes, down_us } => {
                self.armed.push(Armed { point, passes, down_us, is_hit: false });
            }
            Fault::Pause { draw, us } => self.pause(draw, us),
            Fault::Partition { cut, draw, us } => self.partition(cut, draw, us),
            Fault::Slow { draw, factor, us } => {
                let until = self.now.after(us);
                if let Some(node) = pick(&self.up_workers(), draw) {
                    let machine = self.workers.get_mut(&node).expect("it is up");
                    (machine.slow_factor, machine.slow_until) = (u64::from(factor), until);
                    self.checker.disturbed(node, until);
                }
            }
            Fault::Hang { draw } => {
                if let Some(machine) = self.some_worker(draw) {
                    machine.hangs_next = true;
                }
            }
            Fault::Close { draw } => {
                if let Some(node) = pick(&self.up_workers(), draw) {
                    self.checker.disturbed(node, self.now);
                    self.close_connection(node);
                }
            }
            Fault::SlowDisk { draw, sync_us, us } => self.slow_disk(draw, sync_us, us),
            Fault::FailDisk { draw } => self.fail_disk(draw),
            Fault::StaleDisk { draw, age_us } => self.set_disk_back_later(draw, age_us),
            Fault::LostDisk { draw } => self.lose_disk(draw),
            Fault::FlipDisk { draw } => self.flip_disk(draw),
            Fault::FailStore { us } => {
                self.store.fails = true;
                self.queue.push(self.now.after(us), Event::StoreRecovers);
            }
            Fault::FlipStore => {
                if let Some((version, layer, _)) = self.store.flip(&mut self.draws_store) {
                    self.checker.store_damaged();
                    self.note(|| format!("layer {layer} of checkpoint {version} is damaged"));
                }
            }
            Fault::Mark { draw, infinite, times } => self.mark_gradients(draw, infinite, times),
            Fault::WrongSum { draw, factor } => {
                self.spoil(draw, NumericFault::SumFactor(factor));
            }
            Fault::FlipState { draw, bit } => self.flip_state(draw, bit),
            Fault::AlwaysWrong { draw } => self.break_device(draw),
            Fault::Join { count } => {
                for _ in 0..count {
                    if self.workers.values().filter(|m| !m.is_gone).count() < WORKERS_MAX {
                        self.add_worker();
                    }
                }
            }
            Fault::Drain { draw, grace_us } => self.drain(draw, grace_us),
            Fault::LoseMajority { draw } => self.lose_majority(draw),
            Fault::Retire { draw, cut_us } => self.retire(draw, cut_us),
            Fault::Transfer { draw } => {
                let to = pick(&self.controllers_in_use(), draw);
                if let (Some(leader), Some(to)) = (self.leader(), to) {
                    self.controller_input(leader, Input::Command(Command::TransferLeader(to)));
                }
            }
        }
    }

    /// Workers whose process runs.
    fn up_workers(&self) -> Vec<NodeId> {
        let up = self.workers.iter().filter(|(_, machine)| machine.process.is_some());
        up.map(|(node, _)| *node).collect()
    }

    pub(super) fn some_worker(&mut self, draw: u64) -> Option<&mut super::WorkerMachine<M, S>> {
        let node = pick(&self.up_workers(), draw)?;
        self.workers.get_mut(&node)
    }

    fn crash_some(&mut self, nodes: Vec<NodeId>, draw: u64, down_us: u64) {
        if let Some(node) = pick(&nodes, draw) {
            self.crash(node, Some(down_us));
        }
    }

    fn crash_workers(&mut self, draw: u64, count: u32, contiguous: bool, down_us: u64) {
        let mut up = self.up_workers();
        if contiguous && let Some(plan) = self.newest_core().and_then(|core| core.state().plan()) {
            let stages: Vec<NodeId> = plan.record.stages.iter().map(|holder| holder.node).collect();
            let place = |node: &NodeId| stages.iter().position(|found| found == node);
            up.sort_by_key(|node| place(node).unwrap_or(usize::MAX));
        }
        for offset in 0..count as usize {
            if !up.is_empty() {
                let node =
                    up.remove((draw as usize + offset * usize::from(!contiguous)) % up.len());
                self.crash(node, Some(down_us));
            }
        }
    }

    fn power_cycle(&mut self, down_us: u64) {
        self.mark(Marker::PowerCycled);
        let nodes: Vec<NodeId> =
            self.controllers.keys().chain(self.workers.keys()).copied().collect();
        for node in nodes {
            let extra = self.draws_target.below(1_500_000);
            self.crash(node, Some(down_us + extra));
        }
    }

    fn pause(&mut self, draw: u64, us: u64) {
        let nodes: Vec<NodeId> =
            self.controllers.keys().chain(self.workers.keys()).copied().collect();
        let Some(node) = pick(&nodes, draw) else { return };
        let until = self.now.after(us);
        if let Some(machine) = self.controllers.get_mut(&node) {
            machine.paused_until = until;
        }
        if let Some(machine) = self.workers.get_mut(&node) {
            machine.paused_until = until;
        }
        self.checker.disturbed(node, until);
    }

    fn partition(&mut self, cut: Cut, draw: u64, us: u64) {
        let controllers = self.controllers_in_use();
        let mut all = controllers.clone();
        all.extend(self.up_workers());
        let (Some(one), Some(other)) = (pick(&all, draw), pick(&all, draw >> 20)) else { return };
        let half = |node: &NodeId| draw >> (node.0 % 48) & 1 == 1;
        let mut links = Vec::new();
        for from in &all {
            for to in all.iter().filter(|to| *to != from) {
                let is_cut = match cut {
                    Cut::Isolate => *from == one || *to == one,
                    Cut::Deaf => *to == one,
                    Cut::Mute => *from == one,
                    Cut::Pair => (*from == one && *to == other) || (*to == one && *from == other),
                    Cut::Controllers => {
                        let both = controllers.contains(from) && controllers.contains(to);
                        both && half(from) != half(to)
                    }
                    Cut::Halves => half(from) != half(to),
                };
                if is_cut {
                    links.push((*from, *to));
                }
            }
        }
        self.cut(links, us);
    }

    /// Cuts whoever has just caught up and the leader off from all other controllers.
    pub(super) fn cut_newcomer(&mut self, new: NodeId) {
        let Some((_, us)) = self.cut_at_install.take_if(|(node, _)| *node == new) else { return };
        let Some(leader) = self.leader() else { return };
        let inside = [leader, new];
        let mut outside = self.controllers_in_use();
        outside.retain(|node| !inside.contains(node));
        let pairs = outside.iter().flat_map(|out| inside.map(|within| (*out, within)));
        let links = pairs.flat_map(|(one, other)| [(one, other), (other, one)]).collect();
        self.note(|| format!("n{leader} and n{new} are cut off from {outside:?}"));
        self.cut(links, us);
    }

    fn cut(&mut self, links: Vec<(NodeId, NodeId)>, us: u64) {
        let until = self.now.after(us);
        for (from, to) in &links {
            self.network.cut(*from, *to);
            self.checker.disturbed(*from, until);
            self.checker.disturbed(*to, until);
        }
        self.queue.push(until, Event::HealLinks(links));
    }

    /// Another controller comes, and one that is well goes for it. Until it is gone it may not have
    /// heard of that, and think that it still votes.
    fn retire(&mut self, draw: u64, cut_us: Option<u64>) {
        let leader = self.leader();
        let mut nodes = self.controllers_in_use();
        nodes.retain(|node| Some(*node) != leader);
        let Some(node) = pick(&nodes, draw).filter(|node| self.can_lose(*node)) else { return };
        self.controllers.get_mut(&node).expect("in use").is_retiring = true;
        let new = self.add_controller(&[]);
        self.replaced = Some((new, node));
        self.queue.push(self.now.after(RETIRED_US), Event::Retired(node));
        self.cut_at_install = cut_us.map(|us| (new, us));
    }

    /// Whoever runs the cluster takes the old one away as soon as the new one is admitted.
    pub(super) fn remove_replaced(&mut self, old: NodeId) {
        if let Some(leader) = self.leader() {
            self.controller_input(leader, Input::Command(Command::Remove(old)));
        }
    }

    pub(super) fn retired(&mut self, node: NodeId) {
        self.crash(node, None);
        self.controllers.get_mut(&node).expect("a controller").is_condemned = true;
        self.dead.insert(node);
        self.tell_controllers();
    }

    fn drain(&mut self, draw: u64, grace_us: u64) {
        let up = self.up_workers();
        let Some(node) = pick(&up, draw).filter(|_| up.len() >= 2) else { return };
        let machine = self.workers.get_mut(&node).expect("it is up");
        let life = machine.life;
        let process = machine.process.as_mut().expect("it is up");
        process.is_draining = true;
        self.seat_input(node, SeatInput::Drain);
        let is_hasty = self.hits(CrashPoint::DrainHalf);
        let grace_us = if is_hasty { grace_us / 8 } else { grace_us };
        if is_hasty {
            self.disarm();
        }
        self.queue.push(self.now.after(grace_us), Event::Leave { node, life });
    }
}

/// Whom a draw names.
pub(super) fn pick(nodes: &[NodeId], draw: u64) -> Option<NodeId> {
    nodes.get(draw as usize % nodes.len().max(1)).copied()
}
