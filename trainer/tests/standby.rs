//! A worker that keeps layers on standby while another trains them: real kernels, and a test that
//! seals. A layer on standby must be what is trained, bit for bit, whatever order messages come in.

mod late;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_consensus::job::{JobSpec, WindowPolicy};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise, PromiseOff};
use zbelastic_consensus::pre_copy::{FollowedLayer, PreCopyPlan};
use zbelastic_consensus::session::{LoadCommand, WorkerCommand, WorkerEvent};
use zbelastic_consensus::validation::{LeaderHalf, Ledger, NonfinitePolicy, Seal, Turn};
use zbelastic_kernels::{AllocateError, CpuBackend, HostThreads};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::elastic::{
    BackendStageFactory, DeviceUse, FrameLimits, LayerCopy, LayerImage, StageFactory, layer_digest,
};
use zbelastic_trainer::model::{Family, model_layers, model_size};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::runtime::{
    PeerBody, PeerFrame, PeerFrameRefusal, RuntimeInput, RuntimeOutput, RuntimeSetup, WorkerRuntime,
};
use zbelastic_trainer::stage::{EngineProgress, SealedState, StageSetup};
use zbelastic_types::{
    Attempt, Digest, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

const STEPS: u64 = 12;
const GENERATION: Generation = Generation(1);
const OWNER: u64 = 1;
const STANDBY: u64 = 2;
/// Operations until a run counts as stuck.
const OPERATIONS_MAX: usize = 20_000;

type CpuStageFactory = BackendStageFactory<fn(DeviceUse) -> CpuBackend>;
type TightWorker = WorkerRuntime<TightStageFactory, Arc<Corpus>>;

/// A model on a machine whose memory holds stages, and copies as long as it is not full.
struct TightStageFactory {
    model: CpuStageFactory,
    is_full: Rc<Cell<bool>>,
}

impl StageFactory for TightStageFactory {
    type Executor = <CpuStageFactory as StageFactory>::Executor;
    type Copy = <CpuStageFactory as StageFactory>::Copy;

    fn initial(&self, layer: LayerId) -> LayerImage {
        self.model.initial(layer)
    }

    fn fits(&self, image: &LayerImage) -> bool {
        self.model.fits(image)
    }

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
        layers: &[Arc<LayerImage>],
    ) -> Result<Self::Executor, AllocateError> {
        self.model.executor(setup, stage, layers)
    }

    fn copy(&self, image: &LayerImage) -> Result<Self::Copy, AllocateError> {
        match self.is_full.get() {
            true => Err(AllocateError::of_bytes(4 * image.w.len() as u64)),
            false => self.model.copy(image),
        }
    }
}

fn holder(node: u64) -> Holder {
    Holder { node: NodeId(node), incarnation: Incarnation(node) }
}

fn runtime(injection: Option<&str>, is_full: Rc<Cell<bool>>) -> TightWorker {
    let model = crate::common::tiny_model(Family::Llama);
    let plan = crate::common::plan(&model, ScheduleKind::ZbH1, 1, Window::One);
    let mut stage = crate::common::setup(model.clone(), plan, STEPS);
    stage.injections = injection.into_iter().map(|i| i.parse().expect("legal")).collect();
    let optimizer = stage.optimizer.clone();
    let weights = stage.weights.clone();
    let device: fn(DeviceUse) -> CpuBackend = |_| CpuBackend::new(1).expect("one thread");
    let factory = BackendStageFactory {
        model,
        optimizer,
        step_count: STEPS,
        weights,
        drawn: Arc::default(),
        device,
        host: HostThreads::one(),
        store: None,
        clock: None,
    };
    WorkerRuntime::new(
        RuntimeSetup { stage, gradient_limits: FrameLimits { parts: 2, floats: 100 } },
        TightStageFactory { model: factory, is_full },
        crate::common::corpus(),
    )
}

fn plan(generation: Generation, node: u64, from: u64, source: LayerSource) -> PlanRecord {
    let model = crate::common::tiny_model(Family::Llama);
    let plan = crate::common::plan(&model, ScheduleKind::ZbH1, 1, Window::One);
    let layers = model_layers(&model).len();
    PlanRecord {
        generation,
        stages: vec![holder(node)],
        copies: vec![Vec::new()],
        promise: Promise::Off(PromiseOff::Configured),
        chunks: plan.chunks,
        program: plan.program,
        from_step: Step(from),
        sources: vec![source; layers],
        expected: vec![None; layers],
        op_ticks_max: 1,
        reason: PlanReason::First,
    }
}

fn load(plan: PlanRecord, updates: u64) -> RuntimeInput {
    let BatchShape { microbatch_count, .. } = crate::common::BATCH;
    let spec = JobSpec {
        run: zbelastic_types::RunId(1),
        name: "a-run".to_owned(),
        from: None,
        document: Vec::new(),
        workers_min: 1,
        lost_after_ticks: 100,
        settle_ticks: 10,
        config: Digest([0; 32]),
        layer_tensors: vec![1; plan.sources.len()],
        layer_bytes: Vec::new(),
        microbatch_count,
        step_count: STEPS,
        policy: crate::common::policy(Some(1.0), NonfinitePolicy::Replay),
        window: WindowPolicy::Fixed(Window::One),
        copies: 0,
        checkpoint_every: 0,
        checkpoint_ticks: 0,
        checkpoints_kept: 1,
        attest_every: 0,
        device: zbelastic_consensus::class::DeviceKind::Processors,
        stages_max: 1,
    };
    let turn = Turn { generation: plan.generation, attempt: Attempt(0), step: plan.from_step };
    let plan = Arc::new(plan);
    let spec = Arc::new(spec);
    let stage = StageIndex(0);
    let command = LoadCommand { plan, stage, spec, turn, updates, is_pending: false };
    RuntimeInput::Command(WorkerCommand::Load(Box::new(command)))
}

fn send(runtime: &mut TightWorker, command: WorkerCommand) {
    runtime.handle(RuntimeInput::Command(command)).expect("a command");
}

/// An owner that trains, a worker with standby layers, and the leader and ledger that seal.
struct OwnerAndStandby {
    owner: TightWorker,
    standby: TightWorker,
    /// Whether the memory of the standby worker takes no more copies.
    is_full: Rc<Cell<bool>>,
    ledger: Ledger,
    leader: LeaderHalf,
    seals: Vec<Seal>,
    /// Frames on their way to the standby worker.
    frames: Vec<PeerFrame>,
    /// Layers that the standby worker reported to keep.
    reported_layers: Vec<LayerId>,
    floats_ahead: usize,
    /// The layers that the owner has written, in order.
    written: Vec<(Step, LayerId, Digest)>,
}

impl OwnerAndStandby {
    fn new(clip_norm: f64, injection: Option<&str>) -> Self {
        let model = crate::common::tiny_model(Family::Llama);
        let ledger = Ledger::new(GENERATION, Step(0), 0);
        let policy = crate::common::policy(Some(clip_norm), NonfinitePolicy::Replay);
        let leader = LeaderHalf::new(&ledger, model_size(&model).0, policy);
        let is_full = Rc::new(Cell::new(false));
        let mut owner = runtime(injection, Rc::default());
        let standby = runtime(None, is_full.clone());
        owner.handle(load(plan(GENERATION, OWNER, 0, LayerSource::Initial), 0)).expect("a command");
        send(&mut owner, WorkerCommand::Run { generation: GENERATION });
        let seals = Vec::new();
        let frames = Vec::new();
        Self {
            owner,
            standby,
            is_full,
            ledger,
            leader,
            seals,
            frames,
            reported_layers: Vec::new(),
            floats_ahead: 0,
            written: Vec::new(),
        }
    }

    fn layers(&self) -> u32 {
        model_layers(&crate::common::tiny_model(Family::Llama)).len() as u32
    }

    fn begin_pre_copy(&mut self) {
        let planned =
            |layer| FollowedLayer { layer, follower: holder(STANDBY), owner: holder(OWNER) };
        let layers = (0..self.layers()).map(|layer| planned(LayerId(layer))).collect();
        let pre_copy = Some(Arc::new(PreCopyPlan { generation: GENERATION, layers }));
        let of = |node, pre_copy| WorkerCommand::PreCopy { holder: holder(node), pre_copy };
        send(&mut self.owner, of(OWNER, pre_copy.clone()));
        send(&mut self.standby, of(STANDBY, pre_copy));
    }

    /// Delivers the outputs of both; frames to the standby worker wait.
    fn deliver(&mut self) {
        for output in std::iter::from_fn(|| self.standby.poll_output()).collect::<Vec<_>>() {
            match output {
                RuntimeOutput::Peer { frame, .. } => {
                    self.owner.handle(RuntimeInput::Peer(frame)).expect("it is served");
                }
                RuntimeOutput::Event(WorkerEvent::Following { layers, .. }) => {
                    self.reported_layers = layers;
                }
                RuntimeOutput::Event(_)
                | RuntimeOutput::Read { .. }
                | RuntimeOutput::Write { .. }
                | RuntimeOutput::Outer(_)
                | RuntimeOutput::Evaluated { .. } => {}
            }
        }
        for output in std::iter::from_fn(|| self.owner.poll_output()).collect::<Vec<_>>() {
            match output {
                RuntimeOutput::Peer { frame, .. } => {
                    if let PeerBody::StandbyLayer { image, .. } = &frame.body {
                        self.floats_ahead += image.float_count();
                    }
                    self.frames.push(frame);
                }
                RuntimeOutput::Event(WorkerEvent::Reported { report, .. }) => {
                    let counted = self.leader.handle_report(&self.ledger, &report);
                    if let Some(proposal) = counted.expect("in turn") {
                        self.ledger.apply(&proposal.seal).expect("in turn");
                        self.seals.push(proposal.seal);
                        send(&mut self.owner, WorkerCommand::ApplySeal(proposal.seal));
                    }
                }
                RuntimeOutput::Write { image, .. } => {
                    self.written.push((image.version, image.layer, layer_digest(&image)));
                }
                RuntimeOutput::Event(_)
                | RuntimeOutput::Read { .. }
                | RuntimeOutput::Outer(_)
                | RuntimeOutput::Evaluated { .. } => {}
            }
        }
    }

    /// Lets the owner train until so many steps are carried out.
    fn train_until(&mut self, version: u64, deliver: impl Fn(&mut Vec<PeerFrame>)) {
        for _ in 0..OPERATIONS_MAX {
            if self.version() >= Step(version) {
                return;
            }
            assert!(!matches!(self.owner.run_next(), Some(EngineProgress::Finished)), "it ended");
            self.deliver();
            let mut frames = std::mem::take(&mut self.frames);
            deliver(&mut frames);
            for frame in frames {
                let _ = self.standby.handle(RuntimeInput::Peer(frame));
            }
            self.check();
        }
        panic!("it stands still at {:?}", self.version());
    }

    fn version(&self) -> Step {
        self.owner.active_stage().expect("it trains").engine().executor().version()
    }

    /// The digests that the owner had at each version are those of the standby worker.
    fn check(&mut self) {
        let executor = self.owner.active_stage().expect("it trains").engine().executor();
        let version = executor.version();
        let expected = executor.digests();
        let expected: BTreeMap<LayerId, Digest> = expected.into_iter().collect();
        let attested = executor.attested().expect("no fault");
        let attested: BTreeMap<_, _> = attested.into_iter().collect();
        for copy in self.standby.standby_copies().filter(|copy| copy.version() == version) {
            assert_eq!(copy.digest(), expected[&copy.layer()], "at version {version}");
            assert_eq!(copy.fingerprint(), Ok(attested[&copy.layer()]), "at version {version}");
        }
    }

    /// Versions of the layers on standby.
    fn versions(&self) -> Vec<u64> {
        self.standby.standby_copies().map(|copy| copy.version().0).collect()
    }
}

fn in_order(_: &mut Vec<PeerFrame>) {}

#[test]
fn what_is_on_standby_is_what_is_trained_whatever_the_verdict() {
    for (clip_norm, injection) in [
        (1e9, None),
        (0.5, None),
        (1e9, Some("step=4,tensor=layers.1.mlp.up,value=nan,attempts=1")),
        (0.5, Some("step=4,tensor=layers.1.mlp.up,value=nan,attempts=5")),
    ] {
        let mut pair = OwnerAndStandby::new(clip_norm, injection);
        pair.train_until(2, in_order);
        pair.begin_pre_copy();
        pair.train_until(3, in_order);
        assert_eq!(
            pair.reported_layers.len() as u32,
            pair.layers(),
            "every layer came within a step"
        );
        pair.train_until(7, in_order);
        assert_eq!(pair.versions(), vec![6; pair.layers() as usize], "one step behind");
        let verdict = |name| pair.seals.iter().any(|seal| seal.verdict.name() == name);
        assert_eq!(verdict("clip"), clip_norm < 1.0);
        assert_eq!(verdict("replay"), injection.is_some());
        let model = crate::common::tiny_model(Family::Llama);
        let floats: usize = model_layers(&model).iter().map(|layer| layer.len()).sum();
        assert_eq!(pair.floats_ahead, 3 * floats, "each layer moves once");
    }
}

#[test]
fn layers_that_come_behind_their_updates_are_kept_all_the_same() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    pair.train_until(7, |frames| frames.reverse());
    assert_eq!(pair.versions(), vec![6; pair.layers() as usize]);
}

/// A worker that lacks an update of a standby layer waits for it while few others wait behind it,
/// then gets the layer again.
#[test]
fn a_standby_layer_that_falls_behind_is_sent_again() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(1, in_order);
    pair.begin_pre_copy();
    pair.train_until(2, in_order);
    let once = pair.floats_ahead;
    let is_kept = |frame: &PeerFrame| !matches!(frame.body, PeerBody::StandbyUpdate { .. });
    pair.train_until(3, |frames| frames.retain(is_kept));
    pair.train_until(6, in_order);
    assert_eq!(pair.versions(), vec![1; pair.layers() as usize]);
    assert_eq!(pair.floats_ahead, once);
    pair.train_until(STEPS - 1, in_order);
    assert_eq!(pair.versions(), vec![STEPS - 2; pair.layers() as usize]);
    assert_eq!(pair.floats_ahead, 2 * once);
}

/// At the boundary the standby worker has received the last seal, and needs no other node.
#[test]
fn a_plan_begins_with_its_standby_layers_and_nothing_moves() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    pair.train_until(5, in_order);
    let last = *pair.seals.last().expect("steps are sealed");
    send(&mut pair.standby, WorkerCommand::ApplySeal(last));
    let nodes = LayerSource::Nodes(vec![NodeId(OWNER), NodeId(STANDBY)]);
    let next = GENERATION.next();
    let updates = pair.ledger.updates();
    let from = pair.ledger.open_turn().step.0;
    pair.standby.handle(load(plan(next, STANDBY, from, nodes), updates)).expect("a command");
    let outputs: Vec<_> = std::iter::from_fn(|| pair.standby.poll_output()).collect();
    assert!(
        !outputs.iter().any(|output| matches!(output, RuntimeOutput::Peer { .. })),
        "nothing moves"
    );
    let is_loaded =
        |output: &RuntimeOutput| matches!(output, RuntimeOutput::Event(WorkerEvent::Loaded { .. }));
    assert!(outputs.iter().any(is_loaded));
    assert_eq!(pair.standby.standby_copies().count(), 0, "it has served");
    while pair.version() < Step(from) {
        pair.owner.run_next();
        pair.deliver();
    }
    let digests = |runtime: &TightWorker| {
        runtime.active_stage().expect("a stage").engine().executor().digests()
    };
    assert_eq!(digests(&pair.standby), digests(&pair.owner));
}

/// Two versions are being written. The third waits until one is done, as long as it is the sealed
/// one: the last one of a run, and the one that it is held at, stay to be written.
#[test]
fn a_version_whose_write_is_deferred_is_written_later_unless_the_run_goes_on() {
    for goes_on in [false, true] {
        let mut pair = OwnerAndStandby::new(0.5, None);
        for version in 1..=3 {
            pair.train_until(version, in_order);
            let version = Step(version);
            send(&mut pair.owner, WorkerCommand::Save { generation: GENERATION, version });
            pair.deliver();
        }
        let versions = |pair: &OwnerAndStandby| {
            pair.written.iter().map(|(version, ..)| version.0).collect::<BTreeSet<_>>()
        };
        assert_eq!(versions(&pair), BTreeSet::from([1, 2]));
        if goes_on {
            pair.train_until(4, in_order);
        }
        let first: Vec<_> =
            pair.written.iter().copied().filter(|(version, ..)| *version == Step(1)).collect();
        for (version, layer, digest) in first {
            let generation = GENERATION;
            let durable = Some(digest);
            let written = RuntimeInput::Written { version, layer, generation, durable };
            pair.owner.handle(written).expect("it is awaited");
        }
        pair.deliver();
        let expected = if goes_on { BTreeSet::from([1, 2]) } else { BTreeSet::from([1, 2, 3]) };
        assert_eq!(versions(&pair), expected);
    }
}

/// What memory does not hold is given up: it is not requested again, the updates behind it are
/// dropped, and it comes when the plan begins. What is held is used all the same.
#[test]
fn what_memory_does_not_hold_is_fetched_when_the_plan_begins() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    // The first layers come, then memory is full.
    while pair.standby.standby_copies().count() == 0 {
        pair.owner.run_next();
        pair.deliver();
        for frame in std::mem::take(&mut pair.frames) {
            let _ = pair.standby.handle(RuntimeInput::Peer(frame));
        }
    }
    pair.is_full.set(true);
    pair.train_until(6, in_order);
    let versions = pair.versions();
    assert!((1..pair.layers() as usize).contains(&versions.len()), "{versions:?}");
    assert!(versions.iter().all(|version| *version == 5), "what is held goes on: {versions:?}");
    let model = crate::common::tiny_model(Family::Llama);
    let floats: usize = model_layers(&model).iter().map(|layer| layer.len()).sum();
    assert_eq!(pair.floats_ahead, 3 * floats, "each layer came once");
    let held: Vec<LayerId> = pair.standby.standby_copies().map(LayerCopy::layer).collect();
    assert_eq!(pair.reported_layers, held, "a layer that is not kept is left out");
    let last = *pair.seals.last().expect("steps are sealed");
    send(&mut pair.standby, WorkerCommand::ApplySeal(last));
    let nodes = LayerSource::Nodes(vec![NodeId(OWNER), NodeId(STANDBY)]);
    let next = GENERATION.next();
    let updates = pair.ledger.updates();
    let from = pair.ledger.open_turn().step.0;
    pair.standby.handle(load(plan(next, STANDBY, from, nodes), updates)).expect("a command");
    let fetched = fetched(&mut pair.standby);
    let expected: Vec<LayerId> =
        (0..pair.layers()).map(LayerId).filter(|layer| !held.contains(layer)).collect();
    assert_eq!(fetched, expected);
}

/// Layers that a worker requests from others.
fn fetched(runtime: &mut TightWorker) -> Vec<LayerId> {
    let outputs = std::iter::from_fn(|| runtime.poll_output());
    let requested = outputs.filter_map(|output| match output {
        RuntimeOutput::Peer {
            frame: PeerFrame { body: PeerBody::Fetch { layer, .. }, .. },
            ..
        } => Some(layer),
        RuntimeOutput::Peer { .. }
        | RuntimeOutput::Event(_)
        | RuntimeOutput::Read { .. }
        | RuntimeOutput::Write { .. }
        | RuntimeOutput::Outer(_)
        | RuntimeOutput::Evaluated { .. } => None,
    });
    requested.collect()
}

/// A plan that does not name the standby worker is not the one the layers were kept for.
#[test]
fn a_plan_that_does_not_name_the_standby_worker_is_loaded_as_always() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    pair.train_until(5, in_order);
    let last = *pair.seals.last().expect("steps are sealed");
    send(&mut pair.standby, WorkerCommand::ApplySeal(last));
    let nodes = LayerSource::Nodes(vec![NodeId(OWNER)]);
    let from = pair.ledger.open_turn().step.0;
    let input = load(plan(GENERATION.next(), STANDBY, from, nodes), pair.ledger.updates());
    pair.standby.handle(input).expect("a command");
    let outputs: Vec<_> = std::iter::from_fn(|| pair.standby.poll_output()).collect();
    let fetches = |output: &&RuntimeOutput| match output {
        RuntimeOutput::Peer { frame, .. } => matches!(frame.body, PeerBody::Fetch { .. }),
        RuntimeOutput::Event(_)
        | RuntimeOutput::Read { .. }
        | RuntimeOutput::Write { .. }
        | RuntimeOutput::Outer(_)
        | RuntimeOutput::Evaluated { .. } => false,
    };
    assert_eq!(outputs.iter().filter(fetches).count() as u32, pair.layers());
}

/// S3, for what is copied ahead: from its owner, under its plan, of its size; and a stage serves
/// named workers alone.
#[test]
fn what_does_not_belong_is_not_kept_and_strangers_are_not_served() {
    let mut pair = OwnerAndStandby::new(0.5, None);
    pair.train_until(2, in_order);
    pair.begin_pre_copy();
    pair.deliver();
    let good = pair.frames[0].clone();
    let PeerBody::StandbyLayer { open, image } = &good.body else { panic!("{good:?}") };
    let layer = image.layer();
    let version = image.version();
    let open = *open;
    let expected = GENERATION;
    let found = GENERATION.next();
    let mut shorter = image.wait().expect("no fault");
    shorter.w = shorter.w[1..].to_vec().into();
    let body = PeerBody::StandbyLayer { open, image: Arc::new(shorter.into()) };
    let refused = [
        (
            PeerFrame { generation: found, ..good.clone() },
            PeerFrameRefusal::OtherGeneration { expected, found },
        ),
        (
            PeerFrame { sender: holder(3), ..good.clone() },
            PeerFrameRefusal::Stranger { sender: holder(3) },
        ),
        (PeerFrame { body, ..good.clone() }, PeerFrameRefusal::WrongShape { layer }),
    ];
    for (frame, refusal) in refused {
        assert_eq!(pair.standby.handle(RuntimeInput::Peer(frame)), Err(refusal));
    }
    pair.standby.handle(RuntimeInput::Peer(good.clone())).expect("it is awaited");
    let sender = good.sender;
    let again = pair.standby.handle(RuntimeInput::Peer(good));
    assert_eq!(again, Err(PeerFrameRefusal::Unrequested { layer, version, sender }));

    let stranger = holder(3);
    let request = |generation, sender| {
        RuntimeInput::Peer(PeerFrame {
            generation,
            sender,
            body: PeerBody::StandbyRequest { layer },
        })
    };
    let refused = pair.owner.handle(request(GENERATION, stranger));
    assert_eq!(refused, Err(PeerFrameRefusal::Stranger { sender: stranger }));
    let refused = pair.owner.handle(request(found, holder(STANDBY)));
    assert_eq!(refused, Err(PeerFrameRefusal::OtherGeneration { expected, found }));
    assert_eq!(pair.standby.handle(request(GENERATION, stranger)), Err(PeerFrameRefusal::NoStage));
}
