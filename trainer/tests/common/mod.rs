//! A whole cluster in one thread: stage engines, the leader's half of validation, and a network
//! that delivers in whatever order a seed draws.

#![allow(dead_code)]

pub mod documents;
mod models;
mod plans;
pub mod serial;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use zbelastic_consensus::validation::{
    GuardPolicy, LayerFingerprint, LeaderHalf, Ledger, NonfinitePolicy, Seal, Turn, Verdict,
};
use zbelastic_kernels::{Backend, BufferView, CpuBackend, HostThreads};
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule,
};
use zbelastic_schedule::{
    ChunkMemory, CopyLanes, Costs, LowerOptions, OffloadChunks, OffloadRequest, ScheduleKind,
    Window, check, lower, offload, tie_ends,
};
use zbelastic_trainer::data::{BatchSource, Corpus, CorpusConfig};
use zbelastic_trainer::digest::{StateDigest, state_digest};
use zbelastic_trainer::elastic::{
    BackendStageFactory, DeviceUse, FrameLimits, GradientPart, LayerCopy, LayerGradient,
    StageFactory, layer_digest, layer_fingerprint,
};
use zbelastic_trainer::model::{
    MicrobatchShape, ModelConfig, TensorSpec, model_layers, model_size,
};
use zbelastic_trainer::optimizer::{
    DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope,
};
use zbelastic_trainer::outer::{OuterRequest, OuterWeights};
use zbelastic_trainer::plan::{
    BatchShape, LaneCount, Plan, PlanRequest, ReplicaCount, SliceBalance,
};
use zbelastic_trainer::random::{RandomPurpose, RandomStream};
use zbelastic_trainer::stage::{
    BackendExecutor, EngineProgress, Event, InitialWeights, Output, SealedState, StageEngine,
    StageSetup,
};
use zbelastic_types::{Generation, LayerId, StageIndex, Step};

#[allow(unused_imports)]
pub use models::{decay_rate, decay_rates, featured_model, tiny_model};
#[allow(unused_imports)]
pub use plans::{every_plain_plan, every_plan, plan_of_chunks};

/// Twelve microbatches: every schedule exists for one to four stages.
pub const BATCH: BatchShape = BatchShape {
    microbatch: MicrobatchShape { sequences: 2, sequence_len: 8 },
    microbatch_count: 12,
    cut_by: SliceBalance::Tokens,
    lanes: LaneCount::ONE,
};

/// The same in as many lanes as the schedule has directions.
pub fn batch_for(kind: ScheduleKind) -> BatchShape {
    let lanes = LaneCount::new(kind.replica_count()).expect("one direction, or two");
    BatchShape { lanes, ..BATCH }
}

pub fn optimizer() -> OptimizerConfig {
    OptimizerConfig {
        kind: OptimizerKind::AdamW,
        lr: 1e-2,
        lr_min: 0.0,
        warmup: 2,
        decay: LrDecay::Cosine,
        decay_steps: 0,
        betas: [0.9, 0.95],
        epsilon: 1e-8,
        weight_decay: 0.1,
        decay_on: WeightDecayScope::Matrices,
        decay_rates: DecayRates::NONE,
    }
}

pub fn setup(model: ModelConfig, plan: Plan, step_count: u64) -> StageSetup {
    StageSetup {
        model,
        plan,
        optimizer: optimizer(),
        z_loss: 0.0,
        clip_norm: Some(1.0),
        step_count,
        evaluate_every: 0,
        weights: InitialWeights::Drawn { seed: 3 },
        injections: Vec::new(),
        copies_wanted: false,
        attest_every: 0,
        outer: None,
    }
}

pub fn plan(model: &ModelConfig, kind: ScheduleKind, stage_count: u32, window: Window) -> Plan {
    plan_of_chunks(model, kind, None, stage_count, window)
}

/// A plan of the schedule with as many chunks as it has by itself and four slices if it has any, if
/// there is one of so many stages.
pub fn plan_if_any(
    model: &ModelConfig,
    kind: ScheduleKind,
    stage_count: u32,
    window: Window,
) -> Option<Plan> {
    let request = PlanRequest {
        model,
        batch: batch_for(kind),
        kind,
        chunks_per_stage: None,
        slice_count: kind.is_sliced().then_some(4),
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    };
    Plan::new(request).ok()
}

/// A schedule without steps, for what those refuse.
pub const PIPEDREAM: AsyncRequest = AsyncRequest {
    kind: AsyncKind::PipeDream,
    stage_count: 2,
    minibatch_count: 4,
    microbatch_count: 1,
    replica_count: 1,
    dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 1, update_every: 1 },
    variant: AsyncVariant::Usual,
};

/// The plan with copies that take `k` times the passes of their chunk; with 0, everything leaves.
pub fn offloaded(plan: &Plan, k: f64) -> Plan {
    let placement = plan.placement();
    let mut costs = Costs::even(placement, 1.0, 1.0, 1.0, 0.0).with_round_trip(placement, 3.0 * k);
    costs.memory.lanes = CopyLanes::Alternating;
    let one = ChunkMemory {
        after_forward: 1.0,
        after_drop: 0.5,
        after_input_gradient: 1.0,
        after_early_weights: 0.5,
    };
    let memory = vec![one; placement.chunk_count() as usize];
    let chunks = OffloadChunks::First(placement.chunks_per_stage());
    let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits: None };
    let order = offload(&plan.program, request).expect("a plan's program runs");
    let window = plan.program.window.expect("a plan is lowered");
    let early_head_weights = plan.program.kind.splits_backward();
    let options = LowerOptions { window, early_head_weights };
    let lowered = lower(&order, options);
    let program = if plan.program.is_tied() { tie_ends(&lowered) } else { lowered };
    assert_eq!(check(&program), Ok(()));
    Plan { program, ..plan.clone() }
}

/// Text of letters with some structure to learn.
pub fn corpus() -> Arc<Corpus> {
    corpus_for(BATCH, 0.05)
}

/// The same text in other pieces.
pub fn corpus_for(batch: BatchShape, held_out_share: f64) -> Arc<Corpus> {
    let words = ["the ", "pipe ", "waits ", "for ", "no ", "one ", "at ", "all. "];
    let draws = RandomStream::new(1, RandomPurpose::Sampling, 0);
    let text: Vec<u8> =
        (0..900).flat_map(|i| words[draws.block(i)[0] as usize % words.len()].bytes()).collect();
    let cut = CorpusConfig {
        shape: batch.microbatch,
        microbatch_count: batch.microbatch_count,
        held_out_share,
        seed: 5,
        vocabulary: 128,
    };
    Arc::new(Corpus::new(text, &cut).expect("long enough"))
}

pub fn policy(clip_norm: Option<f64>, nonfinite: NonfinitePolicy) -> GuardPolicy {
    GuardPolicy { clip_norm, nonfinite, replays_max: 1, spike_deviations: None }
}

/// What a run showed.
pub struct PipelineOutcome {
    pub digest: StateDigest,
    pub seals: Vec<Seal>,
    /// Steps done and mean loss of each evaluation.
    pub evaluations: Vec<(u64, f64)>,
    /// Steps in which a candidate was dropped.
    pub rollbacks: usize,
    /// Events that were refused, by stage.
    pub refusals: usize,
    /// Layers of later replicas, each equal to the first one's.
    pub twins: usize,
    /// Fingerprints that stages reported, each that of the state as it lay there.
    pub attested: usize,
    /// Those that a processor's copy of the layer had as well.
    pub witnessed: usize,
    /// The bits of each gradient that was sent for copies.
    pub gradients: BTreeMap<(Turn, LayerId), Vec<u32>>,
}

impl PipelineOutcome {
    pub fn verdicts(&self, name: &str) -> usize {
        self.seals.iter().filter(|seal| seal.verdict.name() == name).count()
    }
}

/// A cluster of stages on this thread.
pub struct StageCluster<B: Backend = CpuBackend> {
    engines: Vec<StageEngine<BackendExecutor<B>, Arc<dyn BatchSource>>>,
    /// By sender and receiver; the leader is number `u32::MAX`.
    wires: BTreeMap<(u32, u32), VecDeque<StageWire>>,
    ledger: Ledger,
    leader: LeaderHalf,
    draws: RandomStream,
    drawn: u64,
    halt_after: Option<u64>,
    is_apart: bool,
    copies: BTreeMap<LayerId, Box<dyn LayerCopy>>,
    /// By stage, the gradients that were sent last and are not read yet.
    carried: BTreeMap<usize, Vec<Arc<LayerGradient>>>,
    /// What the other islands send, if the run is one of several.
    exchange: Option<Arc<RecordedExchange>>,
}

/// What islands published and what came of it, by layer and version, as the serial reference had it.
#[derive(Default)]
pub struct RecordedExchange {
    pub island: u32,
    pub published: BTreeMap<(LayerId, Step), Vec<Vec<f32>>>,
    pub outer: BTreeMap<(LayerId, Step), OuterWeights>,
}

impl RecordedExchange {
    /// The answer to a request. What is published must be what the reference published.
    fn answer(&self, request: OuterRequest) -> Event {
        match request {
            OuterRequest::Publish { layer, version, weights } => {
                let expected = &self.published[&(layer, version)][self.island as usize];
                assert!(weights[..] == expected[..], "layer {layer} at {version}");
                Event::Published { layer, version }
            }
            OuterRequest::Forget => unreachable!("a runtime sends it, and no stage"),
            OuterRequest::Await { layer, round, .. } => {
                Event::Outer(self.outer[&(layer, round.mixed)].clone())
            }
        }
    }
}

enum StageWire {
    Event(Event),
    Report(zbelastic_consensus::validation::GradientReport),
}

const LEADER: u32 = u32::MAX;

impl StageCluster {
    pub fn new(setup: &StageSetup, policy: GuardPolicy, threads: usize, seed: u64) -> Self {
        Self::with_corpus(setup, policy, threads, seed, corpus())
    }

    pub fn with_corpus(
        setup: &StageSetup,
        policy: GuardPolicy,
        threads: usize,
        seed: u64,
        corpus: Arc<dyn BatchSource>,
    ) -> Self {
        let backend = |_| CpuBackend::new(threads).expect("threads");
        Self::on_backends(setup, policy, seed, corpus, backend)
    }
}

impl<B: Backend> StageCluster<B> {
    pub fn on_backends(
        setup: &StageSetup,
        policy: GuardPolicy,
        seed: u64,
        corpus: Arc<dyn BatchSource>,
        mut backend: impl FnMut(StageIndex) -> B,
    ) -> Self {
        let shared = Arc::new(setup.clone());
        let stages = (0..setup.plan.placement().stage_count()).map(StageIndex);
        let engine = |stage| {
            StageEngine::new(shared.clone(), stage, backend(stage), corpus.clone()).expect("memory")
        };
        let engines = stages.map(engine).collect();
        let ledger = Ledger::new(Generation(0), Step(0), 0);
        let leader = LeaderHalf::new(&ledger, model_size(&setup.model).0, policy)
            .of_stages(setup.plan.placement().stage_count());
        let draws = RandomStream::new(seed, RandomPurpose::Sampling, 7);
        let wires = BTreeMap::new();
        Self {
            engines,
            wires,
            ledger,
            leader,
            draws,
            drawn: 0,
            halt_after: None,
            is_apart: false,
            copies: BTreeMap::new(),
            carried: BTreeMap::new(),
            exchange: None,
        }
    }

    /// A processor keeps a copy of each layer. The setup is that of the stages, which send
    /// gradients.
    pub fn witnessed(self, setup: &StageSetup) -> Self {
        self.witnessed_by(setup, |_: DeviceUse| CpuBackend::new(1).expect("one thread"))
    }

    /// The same with copies on a device.
    pub fn witnessed_by<C: Backend + 'static>(
        mut self,
        setup: &StageSetup,
        device: impl Fn(DeviceUse) -> C,
    ) -> Self {
        assert!(setup.copies_wanted, "copies follow gradients");
        let model = BackendStageFactory {
            model: setup.model.clone(),
            optimizer: setup.optimizer.clone(),
            step_count: setup.step_count,
            weights: setup.weights.clone(),
            drawn: Arc::default(),
            device,
            host: HostThreads::one(),
            store: None,
            clock: None,
        };
        let layers = (0..model_layers(&setup.model).len() as u32).map(LayerId);
        let copy = |layer| -> (LayerId, Box<dyn LayerCopy>) {
            (layer, Box::new(model.copy(&model.initial(layer)).expect("memory")))
        };
        self.copies = layers.map(copy).collect();
        self
    }

    /// One of several islands, whose others did what is recorded.
    pub fn among_islands(mut self, exchange: Arc<RecordedExchange>) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// Ends the run after so many steps.
    pub fn halt_after(mut self, steps: u64) -> Self {
        self.halt_after = Some(steps);
        self
    }

    /// Each stage in a process of its own, as far as tensors see it.
    pub fn apart(mut self) -> Self {
        self.is_apart = true;
        self
    }

    fn draw(&mut self, below: usize) -> usize {
        self.drawn += 1;
        self.draws.block(self.drawn)[0] as usize % below
    }

    fn send(&mut self, from: u32, to: u32, wire: StageWire) {
        self.wires.entry((from, to)).or_default().push_back(wire);
    }

    /// Runs to the end: at each turn either a stage takes its next operation or a message arrives.
    pub fn run(mut self) -> PipelineOutcome {
        let mut outcome = PipelineOutcome {
            digest: StateDigest([0; 32]),
            seals: Vec::new(),
            evaluations: Vec::new(),
            rollbacks: 0,
            refusals: 0,
            twins: 0,
            attested: 0,
            witnessed: 0,
            gradients: BTreeMap::new(),
        };
        let mut idle = 0;
        loop {
            let busy: Vec<_> =
                self.wires.iter().filter(|(_, q)| !q.is_empty()).map(|(k, _)| *k).collect();
            let choice = self.draw(self.engines.len() + busy.len());
            if choice < self.engines.len() {
                match self.engines[choice].run_next() {
                    EngineProgress::Ran(_) => idle = 0,
                    EngineProgress::Blocked(_) | EngineProgress::Finished => idle += 1,
                    EngineProgress::Failed(error) => panic!("{error}"),
                    EngineProgress::Faulted(fault) => panic!("{fault}"),
                }
                self.collect(choice, &mut outcome);
            } else {
                idle = 0;
                self.deliver(busy[choice - self.engines.len()], &mut outcome);
            }
            if self.engines.iter().all(StageEngine::is_finished) {
                break;
            }
            assert!(idle < 10_000, "the cluster stands still");
        }
        (0..self.engines.len()).for_each(|stage| self.read_gradients(stage, &mut outcome));
        let digests: Vec<_> =
            self.engines.iter().flat_map(|engine| engine.executor().digests()).collect();
        let layers: BTreeMap<_, _> = digests.iter().copied().collect();
        assert_eq!(digests.len(), layers.len(), "one stage reports each layer");
        for image in self.engines.iter().flat_map(|engine| engine.executor().twin_images()) {
            assert_eq!(layers[&image.layer], layer_digest(&image), "layer {}", image.layer);
            outcome.twins += 1;
        }
        outcome.digest = state_digest(layers.into_values(), self.ledger.updates());
        for engine in &self.engines {
            assert_eq!(engine.updates(), self.ledger.updates());
        }
        self.check_ends();
        outcome
    }

    /// The two ends of a tied model have one matrix, with its moments and its gradient.
    fn check_ends(&self) {
        let mut ends: Vec<Vec<Vec<u32>>> = Vec::new();
        for engine in &self.engines {
            let tied = engine.layers().filter_map(|l| Some((l, l.spec.tied_range()?)));
            ends.extend(tied.map(|(layer, range)| {
                let tensor = layer.spec.tensors.iter().find(|tensor| tensor.range == range);
                let TensorSpec { moments, gradient, .. } = tensor.expect("it lies there");
                let weights = Some(range.clone());
                let parts = [
                    (&layer.w, &weights),
                    (&layer.m, moments),
                    (&layer.v, moments),
                    (&layer.g, gradient),
                ];
                let bits = |(buffer, place): (_, &Option<Range<usize>>)| {
                    let place = place.clone().unwrap_or(0..0);
                    let floats = engine.backend().download(BufferView::new(buffer, place));
                    floats.into_iter().map(f32::to_bits).collect()
                };
                parts.map(bits).to_vec()
            }));
        }
        if let [one, other] = &ends[..] {
            assert!(one == other, "the ends of the model differ");
        }
    }

    fn collect(&mut self, stage: usize, outcome: &mut PipelineOutcome) {
        while let Some(output) = self.engines[stage].poll_output() {
            let from = stage as u32;
            match output {
                Output::Frame { to, mut frame } => {
                    if self.is_apart {
                        frame.tensor = frame.tensor.into_host().expect("no fault").into();
                    }
                    self.send(from, to.0, StageWire::Event(Event::Frame(frame)));
                }
                Output::Prefix { to, prefix } => {
                    self.send(from, to.0, StageWire::Event(Event::Prefix(prefix)));
                }
                Output::Partial { to, partial } => {
                    self.send(from, to.0, StageWire::Event(Event::Partial(partial)));
                }
                Output::Report { report, state } => {
                    self.check_attested(stage, &state, outcome);
                    self.send(from, LEADER, StageWire::Report(report));
                }
                Output::Gradients { turn, gradients } => {
                    self.read_gradients(stage, outcome);
                    assert!(gradients.iter().all(|gradient| gradient.turn == turn));
                    let gradients: Vec<_> = gradients.into_iter().map(Arc::new).collect();
                    // As on a network, in messages that end anywhere within a layer.
                    let limits = FrameLimits { parts: 3, floats: 997 };
                    for part in GradientPart::messages(&gradients, limits).into_iter().flatten() {
                        if let Some(copy) = self.copies.get_mut(&part.layer()) {
                            copy.hold(&part).expect("of the open turn");
                        }
                    }
                    self.carried.insert(stage, gradients);
                }
                Output::Sealed { .. } => {}
                Output::Outer(request) => {
                    let exchange = self.exchange.clone().expect("an island");
                    let answer = exchange.answer(request);
                    self.send(LEADER - 1, from, StageWire::Event(answer));
                }
                Output::Evaluated { steps_done, loss_sum, token_count } => {
                    outcome.evaluations.push((steps_done, loss_sum / token_count as f64));
                }
            }
        }
    }

    /// What a stage reports is the state as it lies there, word for word, and what copies have.
    fn check_attested(
        &self,
        stage: usize,
        reported: &[LayerFingerprint],
        outcome: &mut PipelineOutcome,
    ) {
        if reported.is_empty() {
            return;
        }
        let executor = self.engines[stage].executor();
        let mut images = executor.images();
        images.sort_unstable_by_key(|image| image.layer);
        let mut twins = executor.twin_images();
        twins.sort_by_key(|image| image.layer);
        images.extend(twins);
        assert_eq!(reported.len(), images.len(), "all layers are reported");
        for ((layer, found), image) in reported.iter().zip(&images) {
            let version = image.version;
            assert_eq!((*layer, *found), (image.layer, layer_fingerprint(image)), "at {version}");
            outcome.attested += 1;
            if let Some(copy) = self.copies.get(layer) {
                assert_eq!(copy.fingerprint(), Ok(*found), "a copy of {layer} at {version}");
                outcome.witnessed += 1;
            }
        }
    }

    /// Reads what a stage sent a step ago: as late as delivery may be.
    fn read_gradients(&mut self, stage: usize, outcome: &mut PipelineOutcome) {
        for gradient in self.carried.remove(&stage).into_iter().flatten() {
            let LayerGradient { layer, turn, ref g } = *gradient;
            let g = g.wait().expect("no fault");
            let bits = g.iter().map(|x| x.to_bits()).collect();
            outcome.gradients.insert((turn, layer), bits);
        }
    }

    fn deliver(&mut self, (from, to): (u32, u32), outcome: &mut PipelineOutcome) {
        let queue = self.wires.get_mut(&(from, to)).expect("chosen because it is there");
        match queue.pop_front().expect("not empty") {
            StageWire::Event(event) => {
                let refused = self.engines[to as usize].handle(event).is_err();
                outcome.refusals += usize::from(refused);
            }
            StageWire::Report(report) => {
                let counted = self.leader.handle_report(&self.ledger, &report);
                let Some(proposal) = counted.expect("reports are in turn") else { return };
                self.ledger.apply(&proposal.seal).expect("in turn");
                outcome.seals.push(proposal.seal);
                for copy in self.copies.values_mut() {
                    copy.apply(&proposal.seal).expect("it holds the gradient");
                }
                let is_kept = proposal.seal.verdict == Verdict::Keep;
                outcome.rollbacks += usize::from(proposal.went_ahead && !is_kept);
                for stage in 0..self.engines.len() as u32 {
                    if self.halt_after == Some(proposal.seal.turn.step.0 + 1) {
                        let after = proposal.seal.turn.step;
                        self.send(LEADER, stage, StageWire::Event(Event::Halt { after }));
                    }
                    self.send(LEADER, stage, StageWire::Event(Event::Seal(proposal.seal)));
                }
            }
        }
    }
}
