//! Workers of a play: a session and a runtime, whose operations take no time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use chaos_tests::digest_executor::DigestModel;
use chaos_tests::digest_model::DigestSource;
use chaos_tests::numeric_faults::NumericFaults;
use chaos_tests::store::{PieceReach, SimulatedStore};
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::{BOOTS_PER_START, Resources};
use zbelastic_consensus::session::{
    SessionInput, SessionOutput, SessionSetup, SessionTiming, WorkerCommand, WorkerEvent,
    WorkerSession,
};
use zbelastic_schedule::{Compute, Op};
use zbelastic_trainer::elastic::{GRADIENT_FRAME_LIMITS, LoadedLayer, layer_digest};
use zbelastic_trainer::runtime::{
    ActiveStage, PeerFrameRefusal, RuntimeInput, RuntimeOutput, RuntimeSetup, WorkerRuntime,
};
use zbelastic_trainer::stage::{EngineActivity, EngineProgress, SealedState};
use zbelastic_types::{Bytes, NodeId, Step};

use super::network::{PlayMessage, PlayNetwork, PlayPacket};
use super::record::PlayRecord;
use super::{CLUSTER, Play};

const TIMING: SessionTiming = SessionTiming { beat_ticks: 4, resend_ticks: 5 };

type PlayActiveStage = ActiveStage<DigestModel, DigestSource>;

/// The machine of a worker.
#[derive(Default)]
pub struct PlayWorker {
    pub process: Option<PlayProcess>,
    pub faults: NumericFaults,
    /// Whether it works on something that it does not report: its heartbeats show that it gets on.
    pub is_at_work: bool,
}

/// What runs on it.
pub struct PlayProcess {
    node: NodeId,
    session: WorkerSession,
    runtime: WorkerRuntime<DigestModel, DigestSource>,
    /// The work it has done.
    done: u64,
    /// Whether it has ended, because the leader will never admit it.
    has_ended: bool,
}

/// What a process reaches.
struct PlaySurroundings<'a> {
    network: &'a mut PlayNetwork,
    store: &'a mut SimulatedStore,
    record: &'a mut PlayRecord,
}

impl PlayProcess {
    pub fn active_stage(&self) -> Option<&PlayActiveStage> {
        self.runtime.active_stage()
    }

    fn session_input(&mut self, input: SessionInput, around: &mut PlaySurroundings<'_>) {
        if self.has_ended {
            return;
        }
        if self.session.handle(input).is_err() {
            around.record.refused("briefing");
        }
        self.drive(around);
    }

    fn runtime_input(&mut self, input: RuntimeInput, around: &mut PlaySurroundings<'_>) {
        if self.has_ended {
            return;
        }
        match self.runtime.handle(input) {
            Ok(()) => {}
            Err(PeerFrameRefusal::OtherGeneration { .. } | PeerFrameRefusal::Stranger { .. }) => {
                around.record.refused("stale-frame");
            }
            Err(
                PeerFrameRefusal::NoStage
                | PeerFrameRefusal::Lacking { .. }
                | PeerFrameRefusal::Unrequested { .. }
                | PeerFrameRefusal::WrongShape { .. }
                | PeerFrameRefusal::Gradient { .. }
                | PeerFrameRefusal::Lost(_)
                | PeerFrameRefusal::Engine(_),
            ) => around.record.refused("frame"),
        }
        self.drive(around);
    }

    /// Handles the outputs of the session and the runtime, until there is none left.
    fn drive(&mut self, around: &mut PlaySurroundings<'_>) {
        loop {
            if let Some(output) = self.session.poll_output() {
                match output {
                    SessionOutput::Send { to, message } => {
                        self.send(to, PlayPacket::Control(message), around);
                    }
                    SessionOutput::Command(command) => {
                        self.runtime_input(RuntimeInput::Command(command), around);
                    }
                    SessionOutput::End(_) => self.has_ended = true,
                }
            } else if let Some(output) = self.runtime.poll_output() {
                self.perform(output, around);
            } else {
                return;
            }
        }
    }

    fn perform(&mut self, output: RuntimeOutput, around: &mut PlaySurroundings<'_>) {
        match output {
            RuntimeOutput::Event(event) => self.session_input(SessionInput::Event(event), around),
            RuntimeOutput::Peer { to, frame } => {
                around.record.sent(&frame.body);
                self.send(to, PlayPacket::Peer(Box::new(frame)), around);
            }
            RuntimeOutput::Read { version, layer, digest } => {
                let bytes = around.store.get((version, layer, digest));
                let read = bytes.and_then(|bytes| LoadedLayer::decode(&bytes).ok()).map(Box::new);
                self.runtime_input(RuntimeInput::Read { version, layer, read }, around);
            }
            RuntimeOutput::Write { image, generation } => {
                let version = image.version;
                let layer = image.layer;
                let bytes = image.encode();
                let digest = layer_digest(&image);
                around.store.put((version, layer, digest), bytes, self.node, PieceReach::All);
                let durable = around.store.finish((version, layer, digest)).then_some(digest);
                let written = RuntimeInput::Written { version, layer, generation, durable };
                self.runtime_input(written, around);
            }
            RuntimeOutput::Outer(_) | RuntimeOutput::Evaluated { .. } => {}
        }
    }

    fn send(&self, to: NodeId, packet: PlayPacket, around: &mut PlaySurroundings<'_>) {
        around.network.send(PlayMessage { from: self.node, to, packet });
    }

    /// Runs one operation, if one can run.
    fn run_op(&mut self, around: &mut PlaySurroundings<'_>) -> bool {
        let Some(EngineProgress::Ran(activity)) = self.runtime.run_next() else { return false };
        self.done += 1;
        if let EngineActivity::Op { turn, op: Op::Compute(compute, _) } = activity {
            let active = self.runtime.active_stage().expect("it ran an operation");
            let version = active.engine().executor().version();
            match compute {
                Compute::F | Compute::B | Compute::R => {}
                Compute::W | Compute::WE | Compute::BW => {
                    assert_eq!(version, turn.step, "R1: {op:?} ran before its gate", op = compute);
                }
            }
            around.record.ran(self.node, turn);
        }
        self.drive(around);
        true
    }
}

impl Play {
    pub(super) fn start_worker(&mut self, node: NodeId) {
        self.boots += BOOTS_PER_START;
        let setup = SessionSetup {
            cluster: CLUSTER,
            node,
            boot: self.boots,
            resources: Resources {
                memory: Bytes(1 << 30),
                speed_permille: 1000,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
            contact: Contact::of_node(node),
            controllers: self.controllers.keys().copied().collect(),
            timing: TIMING,
        };
        let worker = self.workers.entry(node).or_default();
        assert!(worker.process.is_none(), "worker {node} is up");
        let shape = self.script.shape.clone();
        let source = DigestSource { seed: shape.seed };
        let leftovers = Rc::new(RefCell::new(BTreeMap::new()));
        let model = DigestModel { shape, faults: worker.faults.clone(), leftovers };
        let runtime_setup = RuntimeSetup {
            stage: self.script.stage.clone(),
            gradient_limits: GRADIENT_FRAME_LIMITS,
        };
        let session = WorkerSession::new(setup);
        let runtime = WorkerRuntime::new(runtime_setup, model, source);
        worker.process = Some(PlayProcess { node, session, runtime, done: 0, has_ended: false });
    }

    /// Lets a process act in its surroundings, if it is up. Yields what it yields.
    fn with_process<T: Default>(
        &mut self,
        node: NodeId,
        act: impl FnOnce(&mut PlayProcess, &mut PlaySurroundings<'_>) -> T,
    ) -> T {
        let Self { workers, network, store, record, .. } = self;
        let process = workers.get_mut(&node).and_then(|worker| worker.process.as_mut());
        let mut around = PlaySurroundings { network, store, record };
        process.map_or_else(T::default, |process| act(process, &mut around))
    }

    /// A node works on something for long, from now on or no longer.
    pub fn work(&mut self, node: NodeId, is_at_work: bool) {
        self.workers.get_mut(&node).expect("a worker").is_at_work = is_at_work;
    }

    /// A worker's clock ticks.
    pub(super) fn tick_worker(&mut self, node: NodeId) {
        let is_at_work = self.workers[&node].is_at_work;
        self.with_process(node, |process, around| {
            process.done += u64::from(is_at_work);
            let done = process.done;
            process.session_input(SessionInput::Event(WorkerEvent::Progress { done }), around);
            process.session_input(SessionInput::Tick, around);
            process.runtime_input(RuntimeInput::Tick, around);
        });
    }

    pub(super) fn session_input(&mut self, node: NodeId, input: SessionInput) {
        self.with_process(node, |process, around| process.session_input(input, around));
    }

    pub(super) fn runtime_input(&mut self, node: NodeId, input: RuntimeInput) {
        self.with_process(node, |process, around| process.runtime_input(input, around));
    }

    pub(super) fn run_op(&mut self, node: NodeId) -> bool {
        self.with_process(node, |process, around| process.run_op(around))
    }

    /// A worker that was not there before starts.
    pub fn join(&mut self) -> NodeId {
        let node = NodeId(super::WORKER_FIRST + self.workers.len() as u64);
        self.start_worker(node);
        node
    }

    /// A worker receives the command to drain: it is about to go.
    pub fn drain(&mut self, node: NodeId) {
        self.session_input(node, SessionInput::Drain);
    }

    /// Whether a worker follows layers.
    pub fn follows(&self, node: NodeId) -> bool {
        let process = self.workers.get(&node).and_then(|worker| worker.process.as_ref());
        process.is_some_and(|process| process.runtime.standby_copies().next().is_some())
    }

    /// Sends a worker's runtime, past its session, the command to apply the last seal again.
    pub fn settle_again(&mut self, node: NodeId) {
        let seal = *self
            .state()
            .and_then(|state| state.training().seals().last_seal())
            .expect("something is sealed");
        self.runtime_input(node, RuntimeInput::Command(WorkerCommand::ApplySeal(seal)));
    }

    /// Active stages of the plan in force, with the node of each.
    pub(super) fn active_stages(&self) -> Vec<(NodeId, &PlayActiveStage)> {
        let generation = self.state().map(|state| state.generation());
        let found = self.workers.iter().filter_map(|(node, worker)| {
            let active = worker.process.as_ref()?.active_stage()?;
            (Some(active.plan().generation) == generation).then_some((*node, active))
        });
        found.collect()
    }

    /// The node that stands at a stage.
    pub fn stage(&self, stage: usize) -> NodeId {
        let plan = self.state().and_then(|state| state.plan()).expect("a plan is in force");
        plan.record.stages[stage].node
    }

    /// The version of the layers that a worker has at its stage.
    pub fn version(&self, node: NodeId) -> Step {
        let process = self.workers[&node].process.as_ref().expect("it is up");
        process.active_stage().expect("it stands at a stage").engine().executor().version()
    }
}
