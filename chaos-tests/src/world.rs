//! A life: a whole cluster in one thread, in virtual time.
//!
//! The machines here are shells and nothing else. They carry what the cores put out, lose what a
//! crash loses, and take no decision of the protocol. After every event the checker looks.

mod applied;
mod controllers;
mod crash;
mod damage;
mod ending;
mod long_work;
mod machines;
mod numbers;
mod planning;
mod program_versions;
mod storm;
mod worker_runtimes;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::core::{Core, Input};
use zbelastic_consensus::job::{JobPhase, JobSpec};
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::session::SessionInput;
use zbelastic_planner::ReviewedPlan;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::PeerFrame;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{ClusterId, Generation, NodeId, Step};

use crate::case::LifeCase;
use crate::check::InvariantChecker;
use crate::crash_points::CrashPointCounts;
use crate::failure::LifeFailure;
use crate::log::EventLog;
use crate::markers::{Marker, Markers};
use crate::network::{NetworkLane, SimulatedNetwork};
use crate::numeric_faults::NumericFaults;
use crate::options::LifeOptions;
use crate::queue::{VirtualTime, VirtualTimeQueue};
use crate::random::{DrawPurpose, Draws};
use crate::reference::LifeReference;
use crate::store::{PieceKey, SimulatedStore};
use crate::work_durations::{BEAT_US, LONG_US_MAX};
use machines::{ControllerMachine, WorkerMachine, WorkerProcess};
use storm::Storm;

/// A tick of a clock that is right, in microseconds.
pub const TICK_US: u64 = 50_000;
/// Between two looks of the operator of the cluster.
const ADMIN_US: u64 = 500_000;
/// After the storm, how long no step may be sealed for good.
const CALM_US_MAX: u64 = 30_000_000;
/// After the storm, how long a life may take at most.
const LIFE_US_MAX: u64 = 400_000_000;
/// How much longer both may be where work takes long: all of it, and an operation that hangs, which
/// is given twice the longest.
const LONG_LIFE_US: u64 = LONG_US_MAX + 2 * 1_000 * BEAT_US;
/// Events of a life at most: one that goes in circles is a failure, not a loop.
const EVENTS_MAX: u64 = 20_000_000;

/// What travels between machines.
#[derive(Clone, Debug)]
pub(crate) enum SimulatedPacket {
    Control(Box<Envelope>),
    Peer(Box<PeerFrame>),
}

/// What happens at a moment.
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
    WriteDone {
        node: NodeId,
        life: u64,
        key: PieceKey,
        /// The plan under which the version was sealed.
        generation: Generation,
    },
    /// A layer that took long leaves.
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
    /// The node whose process the event is for. What happens to a machine happens to one that
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

/// What a life is made of.
pub struct LifeSetup<M, S> {
    /// What is trained, and how.
    pub spec: Arc<JobSpec>,
    /// What each stage is set up with.
    pub stage: StageSetup,
    /// Makes what a worker computes with.
    pub model: Box<dyn Fn(&NumericFaults) -> M>,
    /// The text that is trained on.
    pub source: S,
}

/// A life in progress.
pub struct World<'a, M: StageFactory, S> {
    case: &'a LifeCase,
    setup: LifeSetup<M, S>,
    now: VirtualTime,
    queue: VirtualTimeQueue<WorldEvent>,
    network: SimulatedNetwork<SimulatedPacket>,
    store: SimulatedStore,
    draws_disk: Draws,
    draws_work: Draws,
    draws_target: Draws,
    draws_store: Draws,
    draws_pace: Draws,
    programs: program_versions::ProgramVersions,
    /// What is left of the time for long work.
    long_us_left: u64,
    /// The version that waits for its seal, once one was sealed.
    open: Option<long_work::OpenVersion>,
    cluster: ClusterId,
    controllers: BTreeMap<NodeId, ControllerMachine>,
    workers: BTreeMap<NodeId, WorkerMachine<M, S>>,
    /// Controllers whose disks are gone, to be removed by an operator.
    dead: BTreeSet<NodeId>,
    /// Workers that were declared lost and live on.
    fenced: BTreeSet<NodeId>,
    node_next: u64,
    controller_next: u64,
    boot_next: u64,
    storm: Storm,
    checker: InvariantChecker,
    markers: Markers,
    log: &'a mut EventLog,
    is_calm: bool,
    /// More happened than anything is promised for.
    is_excused: bool,
    calm_at: VirtualTime,
    /// The last index whose consequences for the store were drawn.
    store_index: u64,
    /// Checkpoints that the log refers to.
    referred: BTreeMap<Step, CheckpointRecord>,
    /// The version that becomes a checkpoint because time has passed.
    timed_checkpoint: Option<Step>,
    /// What is copied ahead.
    pre_copy: Option<Arc<zbelastic_consensus::pre_copy::PreCopyPlan>>,
    failure: Option<LifeFailure>,
}

/// What a life came to.
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
        reference: LifeReference,
        log: &'a mut EventLog,
    ) -> Self {
        let (seed, options) = (case.seed, &case.options);
        let draws = |purpose| Draws::new(seed, purpose);
        let checker = InvariantChecker::new(reference, setup.spec.clone());
        let mut world = Self {
            case,
            now: VirtualTime(0),
            queue: VirtualTimeQueue::default(),
            network: SimulatedNetwork::new(options.network, draws(DrawPurpose::Network)),
            store: SimulatedStore::default(),
            draws_disk: draws(DrawPurpose::Disk),
            draws_work: draws(DrawPurpose::Work),
            programs: program_versions::ProgramVersions::new(case.seed),
            draws_target: draws(DrawPurpose::Targets),
            draws_store: draws(DrawPurpose::Store),
            draws_pace: draws(DrawPurpose::Pace),
            long_us_left: LONG_US_MAX,
            open: None,
            cluster: ClusterId(seed | 1),
            controllers: BTreeMap::new(),
            workers: BTreeMap::new(),
            dead: BTreeSet::new(),
            fenced: BTreeSet::new(),
            node_next: 1 + u64::from(options.controllers),
            controller_next: 1,
            boot_next: 1,
            setup,
            storm: Storm::default(),
            checker,
            markers: Markers::default(),
            log,
            is_calm: false,
            is_excused: false,
            calm_at: VirtualTime(options.storm_us),
            store_index: 0,
            referred: BTreeMap::new(),
            timed_checkpoint: None,
            pre_copy: None,
            failure: None,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let options = self.case.options.clone();
        self.create_controllers(options.controllers, None);
        for _ in 0..options.workers {
            self.add_worker();
        }
        for (index, timed) in self.case.faults.iter().enumerate() {
            self.queue.push(VirtualTime(timed.at_us), WorldEvent::Fault(index));
        }
        self.queue.push(self.calm_at, WorldEvent::Calm);
        self.queue.push(VirtualTime(ADMIN_US), WorldEvent::Admin);
    }

    /// Lives until the job is done, or something is wrong.
    #[must_use]
    pub fn run(mut self) -> LifeOutcome {
        let mut events = 0;
        while self.failure.is_none() {
            let Some((at, event)) = self.queue.pop() else {
                self.fail(LifeFailure::liveness("nothing is left to happen"));
                break;
            };
            self.now = at;
            events += 1;
            self.log.mix(at.0);
            self.handle(event);
            if !self.is_calm && self.is_little_left() {
                self.calm();
            }
            if let Some(failure) = self.checker.take_failure() {
                self.fail(failure);
            }
            if self.is_over(events) {
                break;
            }
        }
        if self.failure.is_none() {
            self.audit();
        }
        self.log.mix(self.network.sent());
        LifeOutcome {
            failure: self.failure,
            markers: self.markers,
            crash_points: self.storm.crash_points,
            steps: self.checker.sealed(),
            faults: self.storm.faults,
            faults_in_training: self.storm.faults_in_training,
            virtual_us: self.now.0,
            events,
        }
    }

    /// Whether the storm has to end, so that some steps are left for the time after it.
    fn is_little_left(&self) -> bool {
        let LifeOptions { steps, steps_after, .. } = self.case.options;
        steps_after > 0 && self.checker.sealed() + steps_after >= steps
    }

    /// Whether the life ends here, well or not.
    fn is_over(&mut self, events: u64) -> bool {
        if self.is_excused {
            return true;
        }
        if !self.is_calm {
            return false;
        }
        if let Some(phase) = self.job_phase() {
            match phase {
                JobPhase::Done if self.is_settled() => return true,
                JobPhase::Halted(reason) => {
                    self.check_halt(reason);
                    return true;
                }
                JobPhase::Done | JobPhase::Running | JobPhase::Paused | JobPhase::Stopped => {}
            }
        }
        let moved = self.checker.progressed_at().max(self.calm_at);
        let slack_us = if self.case.options.pace.is_some() { LONG_LIFE_US } else { 0 };
        if self.now.0 > moved.0 + CALM_US_MAX + slack_us {
            let last = self.describe();
            self.fail(LifeFailure::liveness(format!("nothing moves after the storm: {last}")));
        } else if self.now.0 > self.calm_at.0 + LIFE_US_MAX + slack_us || events > EVENTS_MAX {
            self.fail(LifeFailure::liveness("the life does not end"));
        }
        self.failure.is_some()
    }

    fn fail(&mut self, failure: LifeFailure) {
        self.note(|| format!("FAILED {failure}"));
        self.failure.get_or_insert(failure);
    }

    /// A line about a change, if the log has a reader.
    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.log.line(|| format!("{now} {}", line()));
    }

    /// Whatever is for a process that stands still waits until it goes on.
    fn handle(&mut self, event: WorldEvent) {
        if let Some(until) = event.addressee().and_then(|node| self.paused_until(node)) {
            self.queue.push(until, event);
            return;
        }
        match event {
            WorldEvent::Tick(node, life) => self.handle_tick(node, life),
            WorldEvent::Packet { from, to, packet } => self.handle_packet(from, to, packet),
            WorldEvent::Synced { node, life } => self.handle_synced(node, life),
            WorldEvent::Reviewed { node, life, reviewed } => {
                self.handle_reviewed(node, life, *reviewed);
            }
            WorldEvent::Solved { node, life, number, solution } => {
                self.handle_solved(node, life, number, solution);
            }
            WorldEvent::OpDone { node, life, number } => self.handle_op_done(node, life, number),
            WorldEvent::ReadDone { node, life, key } => self.handle_read_done(node, life, key),
            WorldEvent::WriteDone { node, life, key, generation } => {
                self.handle_write_done((node, life), (key, generation));
            }
            WorldEvent::Served { node, life, to, frame } => {
                self.handle_served(node, life, to, *frame)
            }
            WorldEvent::Command { node, life, input } => self.handle_command(node, life, *input),
            WorldEvent::Advice { node, life, input } => {
                self.handle_operator_input(node, life, *input)
            }
            WorldEvent::Fault(index) if self.now < self.storm.undisturbed_until => {
                self.queue.push(self.storm.undisturbed_until, WorldEvent::Fault(index));
            }
            WorldEvent::Fault(index) => self.inject(index),
            WorldEvent::StaleDisk { node, imaged_at } => self.set_disk_back(node, imaged_at),
            WorldEvent::Restart(node) => self.restart(node),
            WorldEvent::Leave { node, life } => self.handle_leave(node, life),
            WorldEvent::HealLinks(links) => {
                links.iter().for_each(|(from, to)| self.network.heal(*from, *to));
                self.note(|| "links are whole".to_owned());
            }
            WorldEvent::DiskRecovers(node) => {
                if let Some(machine) = self.controllers.get_mut(&node) {
                    machine.sync_us_extra = 0;
                }
            }
            WorldEvent::RemoveReplaced(node) => self.remove_replaced(node),
            WorldEvent::Retired(node) => self.retired(node),
            WorldEvent::StoreRecovers => self.store.fails = false,
            WorldEvent::Recover => self.recover_by_force(),
            WorldEvent::Calm if self.is_calm => {}
            WorldEvent::Calm => self.calm(),
            WorldEvent::Admin => self.administer(),
        }
    }

    fn handle_tick(&mut self, node: NodeId, life: u64) {
        if self.controllers.contains_key(&node) {
            self.tick_controller(node, life);
        } else {
            self.tick_worker(node, life);
        }
    }

    fn handle_packet(&mut self, from: NodeId, to: NodeId, packet: SimulatedPacket) {
        match packet {
            SimulatedPacket::Control(envelope) if self.controllers.contains_key(&to) => {
                self.controller_message(from, to, envelope);
            }
            SimulatedPacket::Control(envelope) => self.session_message(from, to, envelope),
            SimulatedPacket::Peer(frame) => self.peer_frame(to, *frame),
        }
    }

    /// When a machine that stands still goes on.
    fn paused_until(&self, node: NodeId) -> Option<VirtualTime> {
        let controller = self.controllers.get(&node).map(|machine| machine.paused_until);
        let until =
            controller.or_else(|| self.workers.get(&node).map(|machine| machine.paused_until));
        until.filter(|until| *until > self.now)
    }

    fn send(&mut self, from: NodeId, to: NodeId, lane: NetworkLane, packet: SimulatedPacket) {
        let Self { network, queue, now, .. } = self;
        network.send((*now, from, to), lane, packet, |at, from, packet| {
            queue.push(at, WorldEvent::Packet { from, to, packet });
        });
    }

    /// The newest state that any controller has applied.
    fn newest_core(&self) -> Option<&Core> {
        let cores = self.controllers.values().filter_map(|machine| machine.core.as_ref());
        let own = cores.filter(|core| core.state().cluster() == self.cluster);
        own.max_by_key(|core| core.state().applied())
    }

    fn job_phase(&self) -> Option<JobPhase> {
        self.newest_core()?.state().job().map(|job| job.phase)
    }

    /// The controller that leads, as itself sees it.
    fn leader(&self) -> Option<NodeId> {
        let leads = |machine: &ControllerMachine| {
            machine.core.as_ref().is_some_and(|core| core.duties().is_some())
        };
        self.controllers.iter().find(|(_, machine)| leads(machine)).map(|(node, _)| *node)
    }

    fn mark(&mut self, marker: Marker) {
        self.markers.hit(marker);
    }
}
