//! Injects the faults of a life into its world.

use zbelastic_consensus::core::{Input, OperatorCommand};
use zbelastic_consensus::session::SessionInput;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::NodeId;

use super::machines::WorkerMachine;
use super::{World, WorldEvent};
use crate::crash_points::{CrashPoint, CrashPointCounts};
use crate::faults::{PartitionKind, SimulatedFault};
use crate::markers::Marker;
use crate::numeric_faults::NumericFault;
use crate::queue::VirtualTime;

/// How long a controller that was replaced goes on.
const RETIRED_US: u64 = 8_000_000;
/// Machines of workers there may be.
const WORKERS_MAX: usize = 10;
/// Workers that may come to a large life.
const WORKERS_MORE: usize = 5;

/// Until a majority is to be lost again, if the voters did not agree on the set of voters.
const MAJORITY_RETRY_US: u64 = 500_000;

/// A point at which the next process dies.
pub(super) struct ArmedCrashPoint {
    pub(super) point: CrashPoint,
    pub(super) passes: u32,
    pub(super) down_us: u64,
    pub(super) is_hit: bool,
}

/// The effects of faults, and the conditions that they still wait for.
#[derive(Default)]
pub(super) struct Storm {
    pub(super) armed: Vec<ArmedCrashPoint>,
    /// How often processes died at each crash point.
    pub(super) crash_points: CrashPointCounts,
    /// Faults that changed something.
    pub(super) faults: u64,
    /// Those of them that found the job running.
    pub(super) faults_in_training: u64,
    /// A controller that comes, and the one that goes for it.
    pub(super) replaced: Option<(NodeId, NodeId)>,
    /// The controller that a partition waits for to have caught up, and how long it is to last.
    pub(super) cut_at_install: Option<(NodeId, u64)>,
    /// A disk was set back: until it is found out, nothing else happens.
    pub(super) undisturbed_until: VirtualTime,
    pub(super) is_majority_lost: bool,
}

/// Injects faults into a world.
pub(super) struct StormFaults<'w, 'a, M: StageFactory, S> {
    pub(super) world: &'w mut World<'a, M, S>,
}

impl<M: StageFactory, S: BatchSource + Clone> StormFaults<'_, '_, M, S> {
    pub(super) fn inject(&mut self, index: usize) {
        if self.world.env.is_calm {
            return;
        }
        let fault = self.world.env.case.faults[index].fault;
        self.world.env.note(|| format!("fault {fault:?}"));
        if self.apply_fault(index, fault) {
            self.world.note_injected();
        }
    }

    /// Injects a fault. Yields whether that changed anything; a fault that only waits for its
    /// moment is counted then.
    fn apply_fault(&mut self, index: usize, fault: SimulatedFault) -> bool {
        match fault {
            SimulatedFault::CrashController { draw, down_us } => {
                self.crash_some_controller(draw, down_us)
            }
            SimulatedFault::CrashLeader { down_us } => self.crash_leader(down_us),
            SimulatedFault::CrashWorkers { draw, count, contiguous, down_us } => {
                self.crash_workers(draw, count as usize, contiguous, down_us)
            }
            SimulatedFault::AllButOne { draw, down_us } => self.crash_all_but_one(draw, down_us),
            SimulatedFault::PowerCycle { down_us } => self.power_cycle(down_us),
            SimulatedFault::CrashAt { point, passes, down_us } => {
                self.world.env.storm.armed.push(ArmedCrashPoint {
                    point,
                    passes,
                    down_us,
                    is_hit: false,
                });
                false
            }
            SimulatedFault::Pause { draw, us } => self.pause(draw, us),
            SimulatedFault::Partition { cut, draw, us } => self.partition(cut, draw, us),
            SimulatedFault::Slow { draw, factor, us } => self.slow_worker(draw, factor, us),
            SimulatedFault::Hang { draw } => self.hang_worker(draw),
            SimulatedFault::Close { draw } => self.close_some_connection(draw),
            SimulatedFault::SlowDisk { draw, sync_us, us } => self.slow_disk(draw, sync_us, us),
            SimulatedFault::FailDisk { draw } => self.fail_disk(draw),
            SimulatedFault::StaleDisk { draw, age_us } => self.set_disk_back_later(draw, age_us),
            SimulatedFault::LostDisk { draw } => self.lose_disk(draw),
            SimulatedFault::FlipDisk { draw } => self.flip_disk(draw),
            SimulatedFault::FailStore { us } => self.fail_store(us),
            SimulatedFault::FlipStore => self.flip_store(),
            SimulatedFault::Mark { draw, infinite, times } => {
                self.mark_gradients(draw, infinite, times)
            }
            SimulatedFault::WrongSum { draw, factor } => {
                self.spoil(draw, NumericFault::SumFactor(factor))
            }
            SimulatedFault::FlipState { draw, bit } => self.flip_state(draw, bit),
            SimulatedFault::AlwaysWrong { draw } => self.break_device(draw),
            SimulatedFault::Join { count } => self.join(count),
            SimulatedFault::Drain { draw, grace_us } => self.drain(draw, grace_us),
            SimulatedFault::LoseMajority { draw } => self.lose_majority_soon(index, draw),
            SimulatedFault::Retire { draw, cut_us } => self.retire(draw, cut_us),
            SimulatedFault::Transfer { draw } => self.transfer(draw),
        }
    }

    /// Workers with a running process.
    fn up_workers(&self) -> Vec<NodeId> {
        let up =
            self.world.workers.machines.iter().filter(|(_, machine)| machine.process.is_some());
        up.map(|(node, _)| *node).collect()
    }

    /// Workers that have a running process and a part in the plan in force, in the order of their
    /// stages.
    fn staged_workers(&self) -> Vec<NodeId> {
        let plan = self
            .world
            .controllers
            .newest_core(&self.world.env)
            .and_then(|core| core.state().plan());
        let Some(plan) = plan else { return Vec::new() };
        let up = self.up_workers();
        let mut staged: Vec<NodeId> = plan.record.stages.iter().map(|holder| holder.node).collect();
        staged.retain(|node| up.contains(node));
        staged
    }

    /// A worker that computes: a fault in the work of others changes nothing.
    pub(super) fn some_worker(&mut self, draw: u64) -> Option<&mut WorkerMachine<M, S>> {
        let node = pick(&self.staged_workers(), draw)?;
        self.world.workers.machines.get_mut(&node)
    }

    fn crash_some_controller(&mut self, draw: u64, down_us: u64) -> bool {
        let node = pick(&self.world.controllers.controllers_in_use(), draw);
        node.is_some_and(|node| self.world.crash(node, Some(down_us)))
    }

    fn crash_leader(&mut self, down_us: u64) -> bool {
        self.world
            .controllers
            .leader()
            .is_some_and(|leader| self.world.crash(leader, Some(down_us)))
    }

    fn crash_workers(&mut self, draw: u64, count: usize, contiguous: bool, down_us: u64) -> bool {
        let nodes = if contiguous {
            side_by_side(&self.staged_workers(), draw, count)
        } else {
            scattered(self.up_workers(), draw, count)
        };
        let died = nodes.into_iter().filter(|node| self.world.crash(*node, Some(down_us))).count();
        died > 0
    }

    fn crash_all_but_one(&mut self, draw: u64, down_us: u64) -> bool {
        let up = self.up_workers();
        let stays = pick(&up, draw);
        let others = up.into_iter().filter(|node| Some(*node) != stays);
        others.filter(|node| self.world.crash(*node, Some(down_us))).count() > 0
    }

    fn slow_worker(&mut self, draw: u64, factor: u32, us: u64) -> bool {
        let Some(node) = pick(&self.staged_workers(), draw) else { return false };
        let until = self.world.env.now.after(us);
        let machine = self.world.workers.machines.get_mut(&node).expect("it is up");
        machine.slow_factor = u64::from(factor);
        machine.slow_until = until;
        true
    }

    fn hang_worker(&mut self, draw: u64) -> bool {
        let Some(machine) = self.some_worker(draw) else { return false };
        machine.hangs_next = true;
        true
    }

    fn close_some_connection(&mut self, draw: u64) -> bool {
        let Some(node) = pick(&self.up_workers(), draw) else { return false };
        self.world.close_connection(node)
    }

    fn join(&mut self, count: u32) -> bool {
        let there = self.world.workers.machines.values().filter(|machine| !machine.is_gone).count();
        let workers = self.world.env.case.options.workers as usize;
        let free_places = WORKERS_MAX.max(workers + WORKERS_MORE).saturating_sub(there);
        let count = (count as usize).min(free_places);
        for _ in 0..count {
            self.world.add_worker();
        }
        count > 0
    }

    fn transfer(&mut self, draw: u64) -> bool {
        let to = pick(&self.world.controllers.controllers_in_use(), draw);
        let (Some(leader), Some(to)) = (self.world.controllers.leader(), to) else { return false };
        self.world.command(leader, Input::Command(OperatorCommand::TransferLeader(to)));
        leader != to
    }

    /// Voters that do not agree on the set of voters cannot be counted: later they do.
    fn lose_majority_soon(&mut self, index: usize, draw: u64) -> bool {
        let is_lost = self.world.lose_majority(draw);
        if !is_lost && !self.world.env.storm.is_majority_lost {
            self.world
                .env
                .queue
                .push(self.world.env.now.after(MAJORITY_RETRY_US), WorldEvent::Fault(index));
        }
        is_lost
    }

    fn power_cycle(&mut self, down_us: u64) -> bool {
        self.world.env.mark(Marker::PowerCycled);
        let nodes: Vec<NodeId> = self
            .world
            .controllers
            .machines
            .keys()
            .chain(self.world.workers.machines.keys())
            .copied()
            .collect();
        let mut died = 0;
        for node in nodes {
            let extra = self.world.env.draws_target.below(1_500_000);
            died += usize::from(self.world.crash(node, Some(down_us + extra)));
        }
        died > 0
    }

    fn pause(&mut self, draw: u64, us: u64) -> bool {
        let nodes: Vec<NodeId> = self
            .world
            .controllers
            .machines
            .keys()
            .chain(self.world.workers.machines.keys())
            .copied()
            .collect();
        let Some(node) = pick(&nodes, draw) else { return false };
        let until = self.world.env.now.after(us);
        let mut is_up = false;
        if let Some(machine) = self.world.controllers.machines.get_mut(&node) {
            machine.paused_until = until;
            is_up |= machine.core.is_some();
        }
        if let Some(machine) = self.world.workers.machines.get_mut(&node) {
            machine.paused_until = until;
            is_up |= machine.process.is_some();
        }
        is_up
    }

    fn partition(&mut self, cut: PartitionKind, draw: u64, us: u64) -> bool {
        let controllers = self.world.controllers.controllers_in_use();
        let mut all = controllers.clone();
        all.extend(self.up_workers());
        let (Some(one), Some(other)) = (pick(&all, draw), pick(&all, draw >> 20)) else {
            return false;
        };
        let half = |node: &NodeId| draw >> (node.0 % 48) & 1 == 1;
        let mut links = Vec::new();
        for from in &all {
            for to in all.iter().filter(|to| *to != from) {
                let is_cut = match cut {
                    PartitionKind::Isolate => *from == one || *to == one,
                    PartitionKind::Deaf => *to == one,
                    PartitionKind::Mute => *from == one,
                    PartitionKind::Pair => {
                        (*from == one && *to == other) || (*to == one && *from == other)
                    }
                    PartitionKind::Controllers => {
                        let both = controllers.contains(from) && controllers.contains(to);
                        both && half(from) != half(to)
                    }
                    PartitionKind::Halves => half(from) != half(to),
                };
                if is_cut {
                    links.push((*from, *to));
                }
            }
        }
        let is_cut = !links.is_empty();
        self.world.env.cut(links, us);
        is_cut
    }

    /// Another controller comes, and one that is well goes for it. Until it is gone it may not have
    /// learned of that, and think that it still votes.
    fn retire(&mut self, draw: u64, cut_us: Option<u64>) -> bool {
        let leader = self.world.controllers.leader();
        let mut nodes = self.world.controllers.controllers_in_use();
        nodes.retain(|node| Some(*node) != leader);
        let Some(node) = pick(&nodes, draw)
            .filter(|node| self.world.controllers.can_lose(&self.world.env, *node))
        else {
            return false;
        };
        self.world.controllers.machines.get_mut(&node).expect("in use").is_retiring = true;
        let new = self.world.add_controller();
        self.world.env.storm.replaced = Some((new, node));
        self.world.env.queue.push(self.world.env.now.after(RETIRED_US), WorldEvent::Retired(node));
        self.world.env.storm.cut_at_install = cut_us.map(|us| (new, us));
        true
    }

    fn drain(&mut self, draw: u64, grace_us: u64) -> bool {
        let up = self.up_workers();
        let Some(node) = pick(&up, draw).filter(|_| up.len() >= 2) else { return false };
        let life = self.world.workers.machines[&node].life;
        self.world.send_operator_input(node, SessionInput::Drain);
        let is_hasty = self.world.env.hits(CrashPoint::DrainHalf);
        let grace_us = if is_hasty { grace_us / 8 } else { grace_us };
        if is_hasty {
            self.world.env.disarm();
            self.world.note_injected();
        }
        self.world
            .env
            .queue
            .push(self.world.env.now.after(grace_us), WorldEvent::Leave { node, life });
        true
    }
}

/// The node that a draw picks.
pub(super) fn pick(nodes: &[NodeId], draw: u64) -> Option<NodeId> {
    nodes.get(draw as usize % nodes.len().max(1)).copied()
}

/// Nodes that follow each other, as many as there are at most.
fn side_by_side(nodes: &[NodeId], draw: u64, count: usize) -> Vec<NodeId> {
    let count = count.min(nodes.len());
    let first = draw as usize % (nodes.len() - count + 1);
    nodes[first..first + count].to_vec()
}

/// Nodes from here and there, as many as there are at most.
fn scattered(mut nodes: Vec<NodeId>, draw: u64, count: usize) -> Vec<NodeId> {
    let count = count.min(nodes.len());
    (0..count).map(|offset| nodes.remove((draw as usize + offset) % nodes.len())).collect()
}

#[cfg(test)]
mod tests {
    use zbelastic_types::NodeId;

    use super::{scattered, side_by_side};

    #[test]
    fn stages_that_are_lost_side_by_side_follow_each_other() {
        let nodes: Vec<NodeId> = [7, 3, 9, 4, 8].map(NodeId).to_vec();
        for draw in 0..20 {
            for count in 1..=6 {
                let lost = side_by_side(&nodes, draw, count);
                assert_eq!(lost.len(), count.min(5));
                assert!(nodes.windows(lost.len()).any(|window| window == lost), "{lost:?}");
                let mut lost = scattered(nodes.clone(), draw, count);
                assert_eq!(lost.len(), count.min(5));
                lost.sort();
                lost.dedup();
                assert_eq!(lost.len(), count.min(5), "each once");
            }
        }
        assert_eq!(side_by_side(&[], 3, 2), []);
    }
}
