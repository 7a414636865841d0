//! The words in which scenarios are written.
//!
//! A play is a cluster of the product's own cores, sessions, runtimes and engines. One thing
//! happens at a time: a message arrives, or an operation runs. Messages arrive in the order in
//! which they were sent, operations run in turn, disks take no time, and clocks tick after so many
//! turns, or when nothing else can happen. So a play goes the same way each time, and stops exactly
//! where the test stops it.

mod cast;
mod claim;
mod controllers;
mod network;
mod record;
mod workers;

use std::collections::{BTreeMap, VecDeque};

use chaos_tests::numeric_faults::NumericFault;
use chaos_tests::planning::LifePlanner;
use chaos_tests::random::{DrawPurpose, Draws};
use chaos_tests::store::SimulatedStore;
use zbelastic_consensus::core::{ConnectionEnd, Core, Input, OperatorCommand};
use zbelastic_consensus::duty::PlanMeasurement;
use zbelastic_consensus::job::{JobChange, JobPhase};
use zbelastic_consensus::plan::{DriftedPart, PlanReason, PlanRecord};
use zbelastic_consensus::session::SessionInput;
use zbelastic_consensus::state::{PlanPhase, State};
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_trainer::stage::SealedState;
use zbelastic_types::{ClusterId, NodeId, Step};

pub use cast::{PlayOptions, STEPS};
pub use claim::PlayClaim;
pub use network::PlayMessageKind;

use cast::PlaySetup;
use controllers::PlayController;
use network::{PlayMessage, PlayNetwork, PlayPacket};
use record::PlayRecord;
use workers::PlayWorker;

const CLUSTER: ClusterId = ClusterId(7);
/// The first worker's number; controllers count from 1.
const WORKER_FIRST: u64 = 11;
/// Rounds between two ticks: a step takes some four ticks.
const ROUNDS_PER_TICK: u32 = 16;
/// Ticks that a goal may be away while nothing else happens.
const TICKS_MAX: u32 = 1_000;
/// Events between two ticks: what goes in circles is an error.
const EVENTS_MAX: u32 = 200_000;

/// How far to play.
#[derive(Clone, Copy, Debug)]
pub enum PlayGoal {
    /// So many workers are admitted.
    Admitted(usize),
    /// So many steps are sealed, wherever that is known first.
    Sealed(u64),
    /// A worker has begun a step.
    Begun(NodeId, u64),
    /// A worker's layers are of this version.
    Version(NodeId, u64),
    /// The layers of all stages are of this version at least.
    Settled(u64),
    /// So many stages run.
    Stages(usize),
    /// A worker follows layers.
    Follows(NodeId),
    /// A plan waits for its step.
    Planned,
    /// Every step is sealed, and every node has applied that.
    Done,
}

/// What happens next in a play.
enum PlayItem {
    Message,
    Operation(NodeId),
}

/// A cluster in which one thing happens at a time.
pub struct Play {
    cast: PlayOptions,
    script: PlaySetup,
    controllers: BTreeMap<NodeId, PlayController>,
    workers: BTreeMap<NodeId, PlayWorker>,
    network: PlayNetwork,
    store: SimulatedStore,
    planner: LifePlanner,
    record: PlayRecord,
    /// The round under way: every message that was on its way, then an operation of each worker.
    agenda: VecDeque<PlayItem>,
    has_moved: bool,
    rounds: u32,
    boots: u64,
}

impl Play {
    /// A cluster in which every node is admitted and the job is about to begin.
    pub fn new(cast: PlayOptions) -> Self {
        let script = PlaySetup::new(&cast);
        let mut play = Self {
            controllers: BTreeMap::new(),
            workers: BTreeMap::new(),
            network: PlayNetwork::default(),
            store: SimulatedStore::default(),
            planner: LifePlanner::new(&script.options, &script.stage),
            record: PlayRecord::default(),
            agenda: VecDeque::new(),
            has_moved: false,
            rounds: 0,
            boots: 0,
            cast,
            script,
        };
        play.create_controllers();
        for index in 0..play.cast.workers {
            play.start_worker(NodeId(WORKER_FIRST + index));
        }
        play.run_until(PlayGoal::Admitted(play.workers.len()));
        let start = JobChange::Start(play.script.spec.clone());
        play.controller_input(play.leader(), Input::Command(OperatorCommand::Job(start)));
        play
    }

    /// The same with nothing happening, played to its end.
    pub fn undisturbed(cast: PlayOptions) -> Self {
        let mut play = Self::new(cast);
        play.run_until(PlayGoal::Done);
        play
    }

    /// Plays until a goal is reached, at once if it is.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn run_until(&mut self, goal: PlayGoal) {
        let mut ticks = 0;
        let mut events = 0;
        while !self.is_reached(goal) {
            events += 1;
            if !self.advance() {
                assert!(ticks < TICKS_MAX, "{goal:?} is not reached: {}", self.describe());
                (ticks, events) = (ticks + 1, 0);
                self.tick();
            }
            assert!(events < EVENTS_MAX, "no end of events: {}", self.describe());
        }
    }

    /// Plays until nothing can happen but a tick.
    pub fn run_until_quiet(&mut self) {
        let events = (0..EVENTS_MAX).take_while(|_| self.advance()).count();
        assert!(events < EVENTS_MAX as usize, "no end of events: {}", self.describe());
    }

    /// Plays on until so many things have happened, ticks left out.
    pub fn run_events(&mut self, count: u64) {
        for _ in 0..count {
            if !self.advance() {
                self.tick();
            }
        }
    }

    /// Plays on for so many ticks.
    pub fn run_ticks(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.run_until_quiet();
            self.tick();
        }
        self.run_until_quiet();
    }

    /// Plays to the end.
    pub fn finish(&mut self) {
        self.run_until(PlayGoal::Done);
    }

    /// Holds messages back from now on.
    pub fn hold(&mut self, kind: PlayMessageKind) {
        self.network.hold(kind);
    }

    /// Lets them through again, those held back first.
    pub fn release(&mut self, kind: PlayMessageKind) {
        self.network.release(kind);
    }

    /// Cuts the network around each of these nodes.
    pub fn cut_off(&mut self, nodes: &[NodeId]) {
        nodes.iter().for_each(|node| self.hold(PlayMessageKind::Link(*node)));
    }

    /// Ends that cut.
    pub fn reconnect(&mut self, nodes: &[NodeId]) {
        nodes.iter().for_each(|node| self.release(PlayMessageKind::Link(*node)));
    }

    /// Lets what is held back for one node through to it, and nothing else.
    pub fn deliver(&mut self, kind: PlayMessageKind, to: NodeId) {
        let messages = self.network.take_held(kind, to);
        assert!(!messages.is_empty(), "nothing is held back for node {to}");
        messages.into_iter().for_each(|message| self.deliver_message(message));
    }

    /// Lets messages arrive twice from now on.
    pub fn repeat(&mut self, kind: PlayMessageKind) {
        self.network.repeat(kind);
    }

    /// Ends a process: its memory and its messages in flight are lost. A leader notices
    /// that a worker's connection closes.
    pub fn crash(&mut self, node: NodeId) {
        self.network.forget(node);
        if let Some(controller) = self.controllers.get_mut(&node) {
            assert!(controller.core.take().is_some(), "controller {node} is up");
            return;
        }
        let worker = self.workers.get_mut(&node).expect("a worker");
        assert!(worker.process.take().is_some(), "worker {node} is up");
        self.store.writer_crashed(node, &mut Draws::new(node.0, DrawPurpose::Store));
        let controllers: Vec<NodeId> = self.controllers.keys().copied().collect();
        for controller in controllers {
            self.controller_input(controller, Input::Closed { node, end: ConnectionEnd::Closed });
        }
    }

    /// Starts what has crashed: a controller from its disk, a worker with nothing.
    pub fn restart(&mut self, node: NodeId) {
        if self.controllers.contains_key(&node) {
            self.recover_controller(node);
        } else {
            self.start_worker(node);
        }
    }

    /// Something is wrong with a worker's next numbers.
    pub fn spoil(&mut self, node: NodeId, fault: NumericFault) {
        self.workers[&node].faults.borrow_mut().plan(fault);
    }

    /// A worker's sums are wrong from now on.
    pub fn spoil_for_good(&mut self, node: NodeId) {
        self.workers[&node].faults.borrow_mut().always_wrong = true;
    }

    /// The leader receives a measurement by which a worker has this speed, and another plan is
    /// better. The times are made up; the plan that follows is not.
    pub fn find_slow(&mut self, node: NodeId, speed_permille: u32) {
        let stage = self.plan().stage_indices().find(|stage| self.stage(stage.index()) == node);
        let part = DriftedPart::Stage { stage: stage.expect("it has a stage"), node };
        let expected_us = u64::from(speed_permille);
        let found_us = 1000;
        let drift = Some(PlanReason::Drifted { part, expected_us, found_us, gain_permille: 100 });
        let generation = self.plan().generation;
        let speeds = [(node, speed_permille)].into();
        let measured = Box::new(PlanMeasurement { generation, speeds, drift });
        self.controller_input(self.leader(), Input::Measured(measured));
    }

    /// Layers that a worker trains under the plan in force.
    pub fn layer_count(&self, node: NodeId) -> usize {
        let plan = self.plan();
        let stages = plan.stage_indices().filter(|stage| self.stage(stage.index()) == node);
        stages.map(|stage| plan.layers_of(stage).count()).sum()
    }

    fn plan(&self) -> &PlanRecord {
        &self.state().and_then(State::plan).expect("there is a plan").record
    }

    /// Stages of the plan in force.
    pub fn stages(&self) -> usize {
        self.state().and_then(|state| state.plan()).map_or(0, |plan| plan.record.stages.len())
    }

    /// Steps sealed so far.
    pub fn sealed(&self) -> u64 {
        self.state().map_or(0, |state| state.open_turn().step.0)
    }

    /// The next thing happens. Yields whether there was one.
    fn advance(&mut self) -> bool {
        loop {
            match self.agenda.pop_front() {
                Some(PlayItem::Message) => {
                    if let Some((message, times)) = self.network.next() {
                        (0..times).for_each(|_| self.deliver_message(message.clone()));
                        self.has_moved = true;
                        return true;
                    }
                }
                Some(PlayItem::Operation(node)) => {
                    if self.run_op(node) {
                        self.has_moved = true;
                        return true;
                    }
                }
                None if self.has_moved || self.network.moving() > 0 => self.begin_round(),
                None => return false,
            }
        }
    }

    fn begin_round(&mut self) {
        self.has_moved = false;
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_PER_TICK) {
            self.tick();
        }
        self.agenda.extend((0..self.network.moving()).map(|_| PlayItem::Message));
        self.agenda.extend(self.workers.keys().map(|node| PlayItem::Operation(*node)));
    }

    fn deliver_message(&mut self, message: PlayMessage) {
        let PlayMessage { from, to, packet } = message;
        match packet {
            PlayPacket::Control(message) if self.controllers.contains_key(&to) => {
                self.controller_input(to, Input::Message { from, message });
            }
            PlayPacket::Control(message) => {
                self.session_input(to, SessionInput::Message { from, message })
            }
            PlayPacket::Peer(frame) => self.runtime_input(to, RuntimeInput::Peer(*frame)),
            PlayPacket::Plan(number, solution) => {
                self.controller_input(to, Input::Solved { number, solution });
            }
        }
    }

    fn tick(&mut self) {
        let controllers: Vec<NodeId> = self.controllers.keys().copied().collect();
        controllers.into_iter().for_each(|node| self.controller_input(node, Input::Tick));
        let workers: Vec<NodeId> = self.workers.keys().copied().collect();
        workers.into_iter().for_each(|node| self.tick_worker(node));
    }

    fn is_reached(&self, goal: PlayGoal) -> bool {
        match goal {
            PlayGoal::Admitted(count) => {
                let leads = |core: &&Core| core.duties().is_some();
                let cores = self.controllers.values().filter_map(|c| c.core.as_ref());
                cores.filter(leads).any(|core| core.state().live_workers().count() == count)
            }
            PlayGoal::Sealed(count) => self.sealed() >= count,
            PlayGoal::Begun(node, step) => self.record.has_begun(node, Step(step)),
            PlayGoal::Version(node, version) => {
                self.active_stages().iter().any(|(found, active)| {
                    *found == node && active.engine().executor().version() == Step(version)
                })
            }
            PlayGoal::Settled(version) => {
                let mut active_stages = self.active_stages().into_iter();
                self.sealed() >= version
                    && active_stages
                        .all(|(_, active)| active.engine().executor().version() >= Step(version))
            }
            PlayGoal::Stages(count) => {
                let plan = self.state().and_then(|state| state.plan());
                plan.is_some_and(|plan| {
                    plan.phase == PlanPhase::Running && plan.record.stages.len() == count
                })
            }
            PlayGoal::Follows(node) => self.follows(node),
            PlayGoal::Planned => self.state().is_some_and(|state| state.next_plan().is_some()),
            PlayGoal::Done => self.is_done(),
        }
    }

    /// Sends the leader an operator's command that changes the job.
    pub fn change_job(&mut self, change: JobChange) {
        self.controller_input(self.leader(), Input::Command(OperatorCommand::Job(change)));
    }

    /// The version of the newest checkpoint.
    pub fn checkpoint(&self) -> Option<u64> {
        let newest = self.state().and_then(|state| state.checkpoints().last());
        newest.map(|checkpoint| checkpoint.version.0)
    }

    /// Whether the phase of the job is that it is done.
    pub fn is_over(&self) -> bool {
        let job = self.state().and_then(|state| state.job());
        job.is_some_and(|job| job.phase == JobPhase::Done)
    }

    /// Whether the job is done, at every stage and on every controller that is up.
    fn is_done(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let Some(plan) = state.plan() else { return false };
        let active_stages = self.active_stages();
        let at_end = active_stages
            .iter()
            .filter(|(_, active)| active.engine().executor().version() == Step(STEPS))
            .count();
        let cores = self.controllers.values().filter_map(|controller| controller.core.as_ref());
        let all_applied = cores.map(Core::state).all(|found| found == state);
        self.is_over() && all_applied && at_end == plan.record.stages.len()
    }

    fn describe(&self) -> String {
        let Some(state) = self.state() else { return "no controller is up".to_owned() };
        let phase = state.plan().map(|plan| &plan.phase);
        let versions: Vec<_> = self
            .active_stages()
            .iter()
            .map(|(node, active)| (node.0, active.engine().executor().version().0))
            .collect();
        let cores = self.controllers.values().filter_map(|controller| controller.core.as_ref());
        let duties = cores.filter_map(|core| Some((core, core.duties()?)));
        let waits: Vec<_> = duties
            .map(|(core, duties)| (duties.need(core.state()), duties.withheld(core.state())))
            .collect();
        format!(
            "{}, {phase:?}, job {:?}, workers at {versions:?}, leaders wait for {waits:?}",
            state.open_turn(),
            state.job().map(|job| job.phase)
        )
    }
}
