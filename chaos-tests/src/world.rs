//! A life: a whole cluster in one thread, in virtual time.
//!
//! The machines here are shells and nothing else. They carry the outputs of the cores, lose the
//! state that a crash loses, and make no decision of the protocol. After every event the checker
//! looks.

mod applied;
mod controller_states;
mod controllers;
mod crash;
mod damage;
mod ending;
mod flipped_layers;
mod island_folders;
mod long_work;
mod machines;
mod numbers;
mod planning;
mod program_versions;
mod storm;
mod surroundings;
mod worker_facts;
mod worker_runtimes;
mod workers;

use std::sync::Arc;

use zbelastic_consensus::core::Input;
use zbelastic_consensus::job::{JobPhase, JobSpec};
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::session::SessionInput;
use zbelastic_islands::ExchangeRun;
use zbelastic_planner::ReviewedPlan;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::PeerFrame;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{Generation, NodeId};

use self::controllers::Controllers;
use self::storm::StormFaults;
use self::surroundings::Surroundings;
use self::workers::Workers;
use crate::case::LifeCase;
use crate::check::InvariantChecker;
use crate::crash_points::CrashPointCounts;
use crate::failure::LifeFailure;
use crate::islands::SimulatedIslands;
use crate::log::EventLog;
use crate::markers::Markers;
use crate::numeric_faults::NumericFaults;
use crate::options::LifeOptions;
use crate::queue::VirtualTime;
use crate::reference::LifeReference;
use crate::store::PieceKey;
use crate::work_durations::{BEAT_US, LONG_US_MAX};

/// Between two looks of the operator of the cluster.
const ADMIN_US: u64 = 500_000;
/// After the storm, how long no step may be sealed for good.
const CALM_US_MAX: u64 = 30_000_000;
/// After the storm, the longest that a life may last.
const LIFE_US_MAX: u64 = 400_000_000;
/// How much longer both may be where work is long: all of it, and an operation that hangs, which
/// is given twice the longest.
const LONG_LIFE_US: u64 = LONG_US_MAX + 2 * 1_000 * BEAT_US;
/// Events of a life at most: one that goes in circles is a failure, not a loop.
const EVENTS_MAX: u64 = 20_000_000;

/// A packet that travels between machines.
#[derive(Clone, Debug)]
pub(crate) enum SimulatedPacket {
    Control(Box<Envelope>),
    Peer {
        frame: Box<PeerFrame>,
        /// Whether it has a layer whose state had a flipped bit at its sender.
        is_flipped: bool,
    },
}

/// An event that happens at a moment.
enum WorldEvent {
    Tick(NodeId, u64),
    Packet {
        from: NodeId,
        to: NodeId,
        packet: SimulatedPacket,
    },
    Synced {
        node: NodeId,
        life: u64,
    },
    Solved {
        node: NodeId,
        life: u64,
        number: u64,
        solution: Box<SolutionResult>,
    },
    /// A plan in force was judged.
    Reviewed {
        node: NodeId,
        life: u64,
        reviewed: Box<ReviewedPlan>,
    },
    OpDone {
        node: NodeId,
        life: u64,
        number: u64,
    },
    ReadDone {
        node: NodeId,
        life: u64,
        key: PieceKey,
    },
    /// The exchanges of a process with other islands look into their folders.
    IslandsPolled {
        node: NodeId,
        life: u64,
    },
    WriteDone {
        node: NodeId,
        life: u64,
        key: PieceKey,
        /// The plan under which the version was sealed.
        generation: Generation,
    },
    /// A layer that was served for long leaves.
    Served {
        node: NodeId,
        life: u64,
        to: NodeId,
        frame: Box<PeerFrame>,
    },
    /// The operator of the cluster sends a controller an input, or a connection of it closed.
    Command {
        node: NodeId,
        life: u64,
        input: Box<Input>,
    },
    /// The operator of the cluster sends a worker an input.
    Advice {
        node: NodeId,
        life: u64,
        input: Box<SessionInput>,
    },
    Fault(usize),
    StaleDisk {
        node: NodeId,
        imaged_at: VirtualTime,
    },
    Restart(NodeId),
    Leave {
        node: NodeId,
        life: u64,
    },
    HealLinks(Vec<(NodeId, NodeId)>),
    DiskRecovers(NodeId),
    RemoveReplaced(NodeId),
    Retired(NodeId),
    StoreRecovers,
    Recover,
    Calm,
    Admin,
}

impl WorldEvent {
    /// The node of the process that the event is for. A fault of a machine happens to one that
    /// stands still too.
    fn addressee(&self) -> Option<NodeId> {
        match self {
            Self::Tick(node, _)
            | Self::Packet { to: node, .. }
            | Self::Synced { node, .. }
            | Self::Solved { node, .. }
            | Self::Reviewed { node, .. }
            | Self::OpDone { node, .. }
            | Self::ReadDone { node, .. }
            | Self::IslandsPolled { node, .. }
            | Self::WriteDone { node, .. }
            | Self::Served { node, .. }
            | Self::Command { node, .. }
            | Self::Advice { node, .. } => Some(*node),
            Self::Fault(_)
            | Self::StaleDisk { .. }
            | Self::Restart(_)
            | Self::Leave { .. }
            | Self::HealLinks(_)
            | Self::DiskRecovers(_)
            | Self::RemoveReplaced(_)
            | Self::Retired(_)
            | Self::StoreRecovers
            | Self::Recover
            | Self::Calm
            | Self::Admin => None,
        }
    }
}

type SolutionResult =
    Result<zbelastic_consensus::duty::PlanSolution, zbelastic_consensus::duty::PlanUnsolvable>;

/// The parts that a life is made of.
pub struct LifeSetup<M, S> {
    /// The job to be trained.
    pub spec: Arc<JobSpec>,
    /// The setup of each stage.
    pub stage: StageSetup,
    /// Makes the model that a worker computes with.
    pub model: Box<dyn Fn(&NumericFaults) -> M>,
    /// The text that is trained on.
    pub source: S,
}

/// A life in progress.
pub struct World<'a, M: StageFactory, S> {
    env: Surroundings<'a>,
    controllers: Controllers,
    workers: Workers<M, S>,
}

/// The outcome of a life.
#[derive(Clone, Debug)]
pub struct LifeOutcome {
    /// Why it failed, if it did.
    pub failure: Option<LifeFailure>,
    /// Markers that the life has set.
    pub markers: Markers,
    /// How often processes died at each crash point.
    pub crash_points: CrashPointCounts,
    /// Number of sealed steps.
    pub steps: u64,
    /// Number of faults that were injected.
    pub faults: u64,
    /// Faults that were injected before the last step was sealed.
    pub faults_in_training: u64,
    /// Virtual time, in microseconds.
    pub virtual_us: u64,
    /// Number of events that happened.
    pub events: u64,
}

impl<'a, M: StageFactory, S: BatchSource + Clone> World<'a, M, S> {
    /// A cluster that begins.
    #[must_use]
    pub fn new(
        case: &'a LifeCase,
        setup: LifeSetup<M, S>,
        (reference, islands): (LifeReference, Option<(SimulatedIslands, ExchangeRun)>),
        log: &'a mut EventLog,
    ) -> Self {
        let checker = InvariantChecker::new(reference, setup.spec.clone());
        let mut world = Self {
            env: Surroundings::new(case, (checker, islands), log),
            controllers: Controllers::new(setup.stage.clone()),
            workers: Workers::new(setup),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let options = self.env.case.options.clone();
        self.controllers.create_controllers(
            &mut self.env,
            &self.workers,
            options.controllers,
            None,
        );
        for _ in 0..options.workers {
            self.add_worker();
        }
        for (index, timed) in self.env.case.faults.iter().enumerate() {
            self.env.queue.push(VirtualTime(timed.at_us), WorldEvent::Fault(index));
        }
        self.env.queue.push(self.env.calm_at, WorldEvent::Calm);
        self.env.queue.push(VirtualTime(ADMIN_US), WorldEvent::Admin);
    }

    /// Lives until the job is done, or something is wrong.
    #[must_use]
    pub fn run(mut self) -> LifeOutcome {
        let mut events = 0;
        while self.env.failure.is_none() {
            let Some((at, event)) = self.env.queue.pop() else {
                self.env.fail(LifeFailure::liveness("nothing is left to happen"));
                break;
            };
            self.env.now = at;
            events += 1;
            self.env.log.mix(at.0);
            self.handle(event);
            self.settle();
            if !self.env.is_calm && self.is_little_left() {
                self.calm();
            }
            if let Some(failure) = self.env.checker.take_failure() {
                self.env.fail(failure);
            }
            if self.is_over(events) {
                break;
            }
        }
        if self.env.failure.is_none() {
            self.audit();
        }
        self.env.log.mix(self.env.network.sent());
        LifeOutcome {
            failure: self.env.failure,
            markers: self.env.markers,
            crash_points: self.env.storm.crash_points,
            steps: self.env.checker.sealed(),
            faults: self.env.storm.faults,
            faults_in_training: self.env.storm.faults_in_training,
            virtual_us: self.env.now.0,
            events,
        }
    }

    /// Whether the storm has to end, so that some steps are left for the time after it.
    fn is_little_left(&self) -> bool {
        let LifeOptions { steps, steps_after, .. } = self.env.case.options;
        steps_after > 0 && self.env.checker.sealed() + steps_after >= steps
    }

    /// Whether the life ends here, well or not.
    fn is_over(&mut self, events: u64) -> bool {
        if self.env.is_excused {
            return true;
        }
        if !self.env.is_calm {
            return false;
        }
        if let Some(phase) = self.controllers.job_phase(&self.env) {
            match phase {
                JobPhase::Done if self.is_settled() => return true,
                JobPhase::Halted(reason) => {
                    self.check_halt(reason);
                    return true;
                }
                JobPhase::Done | JobPhase::Running | JobPhase::Paused | JobPhase::Stopped => {}
            }
        }
        let moved = self.env.checker.progressed_at().max(self.env.calm_at);
        let slack_us = if self.env.case.options.pace.is_some() { LONG_LIFE_US } else { 0 };
        if self.env.now.0 > moved.0 + CALM_US_MAX + slack_us {
            let last = self.describe();
            self.env.fail(LifeFailure::liveness(format!("nothing moves after the storm: {last}")));
        } else if self.env.now.0 > self.env.calm_at.0 + LIFE_US_MAX + slack_us
            || events > EVENTS_MAX
        {
            self.env.fail(LifeFailure::liveness("the life does not end"));
        }
        self.env.failure.is_some()
    }

    /// An event for a process that stands still waits until it goes on.
    fn handle(&mut self, event: WorldEvent) {
        if let Some(until) = event.addressee().and_then(|node| self.paused_until(node)) {
            self.env.queue.push(until, event);
            return;
        }
        match event {
            WorldEvent::Tick(node, life) => self.handle_tick(node, life),
            WorldEvent::Packet { from, to, packet } => self.handle_packet(from, to, packet),
            WorldEvent::Synced { node, life } => {
                self.controllers.handle_synced(&mut self.env, &self.workers, node, life)
            }
            WorldEvent::Reviewed { node, life, reviewed } => {
                self.controllers.handle_reviewed(
                    &mut self.env,
                    &self.workers,
                    node,
                    life,
                    *reviewed,
                );
            }
            WorldEvent::Solved { node, life, number, solution } => {
                let input = Input::Solved { number, solution };
                self.controllers.handle_command(&mut self.env, &self.workers, node, life, input);
            }
            WorldEvent::OpDone { node, life, number } => {
                self.workers.handle_op_done(&mut self.env, node, life, number)
            }
            WorldEvent::ReadDone { node, life, key } => {
                self.workers.handle_read_done(&mut self.env, node, life, key)
            }
            WorldEvent::IslandsPolled { node, life } => {
                island_folders::poll(&mut self.workers, &mut self.env, (node, life));
            }
            WorldEvent::WriteDone { node, life, key, generation } => {
                let written = (key, generation);
                let failed = self.workers.handle_write_done(&mut self.env, (node, life), written);
                if let Some(version) = failed {
                    self.send_to_controllers(&Input::CheckpointUnplaced { version });
                }
            }
            WorldEvent::Served { node, life, to, frame } => {
                self.workers.handle_served(&mut self.env, node, life, to, *frame)
            }
            WorldEvent::Command { node, life, input } => {
                self.controllers.handle_command(&mut self.env, &self.workers, node, life, *input)
            }
            WorldEvent::Advice { node, life, input } => {
                self.workers.handle_operator_input(&mut self.env, node, life, *input)
            }
            WorldEvent::Fault(index) if self.env.now < self.env.storm.undisturbed_until => {
                self.env.queue.push(self.env.storm.undisturbed_until, WorldEvent::Fault(index));
            }
            WorldEvent::Fault(index) => StormFaults { world: self }.inject(index),
            WorldEvent::StaleDisk { node, imaged_at } => {
                StormFaults { world: self }.set_disk_back(node, imaged_at)
            }
            WorldEvent::Restart(node) => self.restart(node),
            WorldEvent::Leave { node, life } => self.handle_leave(node, life),
            WorldEvent::HealLinks(links) => {
                links.iter().for_each(|(from, to)| self.env.network.heal(*from, *to));
                self.env.note(|| "links are whole".to_owned());
            }
            WorldEvent::DiskRecovers(node) => {
                if let Some(machine) = self.controllers.machines.get_mut(&node) {
                    machine.sync_us_extra = 0;
                }
            }
            WorldEvent::RemoveReplaced(node) => self.remove_replaced(node),
            WorldEvent::Retired(node) => self.retired(node),
            WorldEvent::StoreRecovers => self.recover_store(),
            WorldEvent::Recover => self.recover_by_force(),
            WorldEvent::Calm if self.env.is_calm => {}
            WorldEvent::Calm => self.calm(),
            WorldEvent::Admin => self.administer(),
        }
    }

    fn handle_tick(&mut self, node: NodeId, life: u64) {
        if self.controllers.machines.contains_key(&node) {
            self.controllers.tick_controller(&mut self.env, &self.workers, node, life);
        } else {
            self.workers.tick_worker(&mut self.env, node, life);
        }
    }

    fn handle_packet(&mut self, from: NodeId, to: NodeId, packet: SimulatedPacket) {
        match packet {
            SimulatedPacket::Control(envelope) if self.controllers.machines.contains_key(&to) => {
                self.controllers.controller_message(
                    &mut self.env,
                    &self.workers,
                    from,
                    to,
                    envelope,
                );
            }
            SimulatedPacket::Control(envelope) => {
                self.workers.session_message(&mut self.env, from, to, envelope)
            }
            SimulatedPacket::Peer { frame, is_flipped } => {
                if let Some(machine) = self.workers.machines.get_mut(&to) {
                    machine.note_arrival(&frame, is_flipped);
                }
                self.workers.peer_frame(&mut self.env, to, *frame);
            }
        }
    }

    /// When a machine that stands still goes on.
    fn paused_until(&self, node: NodeId) -> Option<VirtualTime> {
        let controller = self.controllers.paused_until(&self.env, node);
        controller.or_else(|| self.workers.paused_until(&self.env, node))
    }
}
