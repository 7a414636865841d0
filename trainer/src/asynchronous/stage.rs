//! One stage of an asynchronous run: frames in, the next operation run, frames out.
//!
//! A state machine like [`crate::stage::StageEngine`], and smaller, because nothing is ever rolled
//! back: it never blocks, its owner moves its outputs, and the same program gives the same
//! bits in whatever order frames arrive. On a device it waits once an update, for sums of squares:
//! the weights that passes read are kept, predicted and averaged there, and boundary tensors go as
//! tensor handles.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbelastic_kernels::{
    Accumulate, AllocateError, Backend, BufferView, DeviceFault, LossScale, Pending, TensorHandle,
};
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncOp, AsyncProgram, DynamicRegion, WeightVersion,
};
use zbelastic_schedule::{Compute, Flow, Pass, Transfer};
use zbelastic_types::{Bytes, ChunkIndex, MicrobatchIndex, StageIndex, Step};

use super::setup::{AsyncSetup, context};
use super::state::AsyncState;
use super::weight_versions::{WeightVersions, WeightVersionsPlan};
use crate::data::{BatchSource, StepTargets, TokenBatch};
use crate::model::{
    BufferSize, LayerTimer, Logits, PassScratch, PassSizes, PassStash, model_layers, rotary_angles,
};
use crate::plan::claim_stage;
use crate::stage::SlotPool;

/// A boundary tensor on its way from stage to stage.
#[derive(Clone, Debug)]
pub struct AsyncFrame {
    /// Whether the tensor is an activation or a gradient.
    pub flow: Flow,
    /// The pass that reads it.
    pub pass: Pass,
    /// The tensor, `rows` by `width`.
    pub tensor: TensorHandle,
}

/// An update that a chunk made, or left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsyncUpdate {
    /// The version it made.
    pub version: WeightVersion,
    /// Learning rate of the update.
    pub lr: f64,
    /// The norm of the chunk's gradient, before clipping.
    pub norm: f64,
    /// The factor of the gradient; `None` if it was not finite and the update left out.
    pub coefficient: Option<f32>,
}

/// A message or a result that the stage's owner delivers.
#[derive(Clone, Debug)]
pub enum AsyncOutput {
    /// A boundary tensor for another stage.
    Frame {
        /// Stage that the tensor is sent to.
        to: StageIndex,
        /// The tensor, with the pass that reads it.
        frame: AsyncFrame,
    },
    /// The sum of cross-entropies over a microbatch as [`StepTargets::reported_sum`] reports it, from
    /// the stage with the head; of a device with the next update, which is waited for anyway.
    Loss {
        /// Index of the microbatch in the run.
        microbatch: MicrobatchIndex,
        /// Sum of cross-entropies over the microbatch.
        loss_sum: f64,
    },
    /// A chunk has a new version.
    Update(AsyncUpdate),
}

/// The outcome of [`AsyncStage::run_next`].
#[derive(Clone, Debug, PartialEq)]
pub enum AsyncProgress {
    /// This operation of the program ran.
    Ran(AsyncOp),
    /// It waits for a frame.
    Blocked,
    /// No operation is left.
    Finished,
    /// The device gave up. Nothing that was computed since is a result, and nothing of it leaves.
    Faulted(DeviceFault),
}

/// The position of a stage in its program.
enum ProgramPosition {
    /// At this operation of its list.
    List(usize),
    /// In a region whose order is found at run time.
    Found(Box<DynamicRegion>),
}

/// The slots of a chunk's passes.
struct ChunkSlots<T> {
    stashes: SlotPool<PassStash<T>>,
    logits: Option<SlotPool<Logits<T>>>,
}

/// The targets of the minibatch that was counted last.
#[derive(Default)]
struct CountedMinibatch(Option<(u32, StepTargets)>);

impl CountedMinibatch {
    /// Those of the minibatch that a microbatch is of, counted unless they were counted last.
    fn of<S: BatchSource>(
        &mut self,
        setup: &AsyncSetup,
        source: &S,
        microbatch: MicrobatchIndex,
    ) -> StepTargets {
        let program = &setup.plan.program;
        let minibatch = program.minibatch_of(microbatch);
        let known = self.0.filter(|(of, _)| *of == minibatch);
        let count =
            || (minibatch, source.targets(Step(minibatch.into()), program.microbatch_count));
        self.0.insert(known.unwrap_or_else(count)).1
    }
}

/// One stage of an asynchronous run.
pub struct AsyncStage<B: Backend, S> {
    setup: Arc<AsyncSetup>,
    stage: StageIndex,
    backend: B,
    source: S,
    /// By chunk and pipeline.
    weights: BTreeMap<(ChunkIndex, u32), WeightVersions<B>>,
    memory: BTreeMap<ChunkIndex, ChunkSlots<B::Buffer>>,
    /// The chunks' layers of the reference model (AvgPipe); else empty.
    references: BTreeMap<ChunkIndex, Vec<B::Buffer>>,
    scratch: PassScratch<B::Buffer>,
    angles: Option<B::Buffer>,
    inbox: BTreeMap<(Flow, Pass), TensorHandle>,
    frames_max: usize,
    /// The result of the last F or BW, until a transfer sends it.
    result: Option<(Flow, Pass, TensorHandle)>,
    /// Losses that a device still computes: no more than microbatches are alive or in an update.
    losses: VecDeque<(MicrobatchIndex, Pending<f64>)>,
    /// Targets of the minibatch that was counted last.
    counted: CountedMinibatch,
    position: ProgramPosition,
    outbox: VecDeque<AsyncOutput>,
    /// Of a device that runs enqueued work later: its clock, and the time of passes by it so far.
    timer: LayerTimer,
    worked_us: f64,
}

impl<B: Backend, S: BatchSource> AsyncStage<B, S> {
    /// A stage before its first operation.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If the optimizer is not AdamW alone; configurations refuse others.
    pub fn new(
        setup: Arc<AsyncSetup>,
        stage: StageIndex,
        backend: B,
        source: S,
    ) -> Result<Self, AllocateError> {
        assert!(setup.optimizer.kind.is_adamw(), "versions of weights are updated by AdamW");
        let plan = &setup.plan;
        let model = &setup.model;
        let sizes = PassSizes::whole(model, plan.batch.microbatch);
        let live = plan.program.live_passes();
        let specs = model_layers(model);
        let counted = plan.stage_memory(&backend, model, stage);
        let counted = claim_stage(&backend, counted, &plan.device_claim(model, stage))?;
        let mut allocated = Bytes(0);
        let mut make = |size: BufferSize| {
            allocated += Bytes(size.bytes(&backend));
            size.allocate(&backend)
        };
        let scratch = sizes.scratch(&mut make)?;
        let mut weights = BTreeMap::new();
        let mut memory = BTreeMap::new();
        let mut references = BTreeMap::new();
        for (chunk, layers) in plan.chunks_of(stage) {
            let slots = 0..live[chunk.index()];
            let stashes = slots.clone().map(|_| PassStash::build(&sizes, layers, &mut make));
            let stashes = SlotPool::new(stashes.collect::<Result<_, _>>()?);
            let has_head = layers.ids().end == model.layer_count();
            let logits = has_head.then(|| slots.map(|_| sizes.logits(&mut make)).collect());
            let logits = logits.transpose()?.map(SlotPool::new);
            memory.insert(chunk, ChunkSlots { stashes, logits });
            let specs = &specs[layers.ids().start as usize..layers.ids().end as usize];
            for replica in 0..plan.program.replica_count {
                let delay = correction_delay(&plan.program, chunk);
                let kept_max = plan.program.kept_max(chunk);
                let plan = WeightVersionsPlan { setup: &setup, specs, replica, kept_max, delay };
                weights.insert((chunk, replica), WeightVersions::new(&backend, &plan)?);
            }
            if plan.program.kind == AsyncKind::AvgPipe {
                references.insert(chunk, weights[&(chunk, 0)].reference(&backend)?);
            }
        }
        let angles = rotary_angles(&backend, model, plan.batch.microbatch)?;
        if let Some(angles) = &angles {
            allocated += Bytes(backend.buffer_bytes(backend.len(angles)));
        }
        allocated +=
            weights.values().map(|of: &WeightVersions<B>| of.allocated_bytes(&backend)).sum();
        let of_references = references.values().flatten();
        allocated += of_references.map(|w| Bytes(backend.buffer_bytes(backend.len(w)))).sum();
        assert_eq!(allocated, counted.device(), "the plan claims what is allocated");
        let position = first_position(&plan.program, stage);
        // A device that is behind has a clock of its own, and this one is not read.
        let clock = backend.is_asynchronous().then(|| LayerTimer::new(Box::new(|| 0.0)));
        let timer = clock.unwrap_or_default();
        Ok(Self {
            stage,
            backend,
            source,
            weights,
            memory,
            references,
            scratch,
            angles,
            inbox: BTreeMap::new(),
            frames_max: frames_max(&setup.plan.program, stage),
            result: None,
            losses: VecDeque::new(),
            counted: CountedMinibatch::default(),
            position,
            outbox: VecDeque::new(),
            timer,
            worked_us: 0.0,
            setup,
        })
    }

    /// Stores a frame until the pass that reads it runs.
    ///
    /// # Panics
    /// If it is not a frame that the plan has a neighbour send here: frames of one process are our
    /// own.
    pub fn handle(&mut self, frame: AsyncFrame) {
        let AsyncFrame { flow, pass, tensor } = frame;
        let sizes = PassSizes::whole(&self.setup.model, self.setup.plan.batch.microbatch);
        assert_eq!(tensor.len(), sizes.residual(), "a frame is as long as the plan says");
        assert!(self.memory.contains_key(&pass.chunk), "{pass:?} is on this stage");
        let limit = self.frames_max;
        assert!(self.inbox.len() < limit, "no more than {limit} frames wait");
        let before = self.inbox.insert((flow, pass), tensor);
        assert!(before.is_none(), "the operand of {pass:?} comes once");
    }

    /// The fault that ended the device, if any.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.backend.fault()
    }

    /// The time of passes by the device's own clock, as far as updates have waited for them.
    /// Nothing where an operation is done when it returns.
    #[must_use]
    pub fn worked_us(&self) -> Option<f64> {
        self.backend.is_asynchronous().then_some(self.worked_us)
    }

    /// The next output for the stage's owner to deliver, in order. Nothing leaves a device that
    /// gave up.
    pub fn poll_output(&mut self) -> Option<AsyncOutput> {
        if self.backend.fault().is_some() {
            self.outbox.clear();
        }
        self.outbox.pop_front()
    }

    /// Runs the next operation.
    pub fn run_next(&mut self) -> AsyncProgress {
        let progress = self.run_next_op().unwrap_or_else(AsyncProgress::Faulted);
        self.backend.fault().map_or(progress, AsyncProgress::Faulted)
    }

    fn run_next_op(&mut self) -> Result<AsyncProgress, DeviceFault> {
        let Some(op) = self.next_op() else {
            return Ok(if self.is_finished() {
                AsyncProgress::Finished
            } else {
                AsyncProgress::Blocked
            });
        };
        if let AsyncOp::Transfer(Transfer::Receive, flow, pass) = op
            && !self.inbox.contains_key(&(flow, pass))
        {
            return Ok(AsyncProgress::Blocked);
        }
        self.run(op)?;
        match &mut self.position {
            ProgramPosition::List(position) => *position += 1,
            ProgramPosition::Found(region) => region.finish_op(),
        }
        if self.is_finished() {
            self.queue_losses()?;
        }
        self.timer.end(&self.backend);
        self.backend.flush();
        Ok(AsyncProgress::Ran(op))
    }

    /// Whether every operation has run.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.position {
            ProgramPosition::List(position) => *position == self.ops().len(),
            ProgramPosition::Found(region) => region.is_done(),
        }
    }

    /// The order that a dynamic region found; `None` if the stage has a list.
    #[must_use]
    pub fn found(&self) -> Option<&[AsyncOp]> {
        match &self.position {
            ProgramPosition::List(_) => None,
            ProgramPosition::Found(region) => Some(region.executed_ops()),
        }
    }

    /// The state of the stage's layers.
    #[must_use]
    pub fn state(&self) -> AsyncState {
        let mut state = AsyncState::default();
        for ((chunk, replica), versions) in &self.weights {
            let images = versions.newest.layers().iter().map(|layer| layer.image(&self.backend));
            let layers = images.map(|image| (*replica, image)).collect();
            let ids = self.setup.plan.chunks[chunk.index()].layers();
            let reference = self.references.get(chunk).filter(|_| *replica == 0);
            let whole = |w| self.backend.download(BufferView::new(w, 0..self.backend.len(w)));
            let reference = ids.zip(reference.into_iter().flatten().map(whole)).collect();
            state.extend(AsyncState { layers, reference, updates: versions.updates });
        }
        state
    }

    fn ops(&self) -> &[AsyncOp] {
        &self.setup.plan.program.stages[self.stage.index()]
    }

    fn next_op(&mut self) -> Option<AsyncOp> {
        if let ProgramPosition::List(position) = self.position {
            return self.ops().get(position).copied();
        }
        let ProgramPosition::Found(region) = &mut self.position else {
            unreachable!("a list was handled above")
        };
        if region.next_op().is_none() {
            let arrived = self.inbox.keys().map(|(flow, pass)| (*flow, pass.microbatch));
            region.choose(&arrived.collect());
        }
        region.next_op()
    }

    fn run(&mut self, op: AsyncOp) -> Result<(), DeviceFault> {
        match op {
            AsyncOp::Compute(Compute::F, pass, version) => self.forward(pass, version)?,
            AsyncOp::Compute(Compute::BW, pass, version) => self.backward(pass, version)?,
            AsyncOp::Compute(Compute::B | Compute::W | Compute::WE | Compute::R, ..) => {
                unreachable!("a checked program has F and BW alone")
            }
            AsyncOp::Transfer(Transfer::Receive, ..) => {}
            AsyncOp::Transfer(Transfer::Send | Transfer::Local, flow, pass) => {
                self.pass_on(flow, pass);
            }
            AsyncOp::Step(chunk, version) => {
                // The update waits for the same passes.
                let spans = self.timer.take(&self.backend).spans;
                self.worked_us += spans.iter().map(|span| span.end_us - span.start_us).sum::<f64>();
                let versions =
                    self.weights.get_mut(&(chunk, version.replica)).expect("a chunk here");
                let update = versions.step(&self.setup, &self.backend);
                assert_eq!(update.version, version, "versions are counted one by one");
                self.queue_losses()?;
                self.outbox.push_back(AsyncOutput::Update(update));
            }
            AsyncOp::Predict(chunk, rule, version) => {
                let versions =
                    self.weights.get_mut(&(chunk, version.replica)).expect("a chunk here");
                versions.predict(&self.setup, &self.backend, rule, version);
            }
            AsyncOp::Stash(chunk, version) => {
                let versions =
                    self.weights.get_mut(&(chunk, version.replica)).expect("a chunk here");
                versions.stash(&self.backend);
            }
            AsyncOp::Free(chunk, version) => {
                self.weights
                    .get_mut(&(chunk, version.replica))
                    .expect("a chunk here")
                    .free(version);
            }
            AsyncOp::Average(chunk, version) => {
                let versions =
                    self.weights.get_mut(&(chunk, version.replica)).expect("a chunk here");
                let reference = self.references.get_mut(&chunk).expect("there is a reference");
                versions.average(&self.backend, reference, self.setup.knobs.elastic_alpha);
            }
            AsyncOp::Dynamic(..) => unreachable!("a region is run as what it finds"),
        }
        Ok(())
    }

    /// Waits for the losses that a device still computes, and passes them on.
    fn queue_losses(&mut self) -> Result<(), DeviceFault> {
        for (microbatch, loss) in self.losses.drain(..) {
            let loss_sum =
                self.counted.of(&self.setup, &self.source, microbatch).reported_sum(loss.wait()?);
            self.outbox.push_back(AsyncOutput::Loss { microbatch, loss_sum });
        }
        Ok(())
    }

    fn batch(&self, microbatch: MicrobatchIndex) -> TokenBatch {
        let program = &self.setup.plan.program;
        let step = Step(program.minibatch_of(microbatch).into());
        self.source.training(step, MicrobatchIndex(microbatch.0 % program.microbatch_count))
    }

    fn forward(&mut self, pass: Pass, version: WeightVersion) -> Result<(), DeviceFault> {
        let batch = self.batch(pass.microbatch);
        let operand = self.inbox.remove(&(Flow::Forward, pass));
        let context = context(&self.setup, &self.backend, &self.angles, Some(&self.timer));
        let chunk = self.weights[&(pass.chunk, version.replica)].reading(version);
        let memory = self.memory.get_mut(&pass.chunk).expect("a chunk here");
        let stash = memory.stashes.acquire(pass.microbatch);
        if let Some(input) = operand {
            chunk.take_input(&self.backend, input, stash)?;
        }
        let logits = memory.logits.as_mut().map(|slots| slots.acquire(pass.microbatch));
        let microbatch = pass.microbatch;
        match chunk.forward_slice(&context, &batch, &[], stash, logits) {
            Some(loss) if loss.is_on_device() => self.losses.push_back((microbatch, loss)),
            Some(loss) => {
                let targets = self.counted.of(&self.setup, &self.source, microbatch);
                let loss_sum = targets.reported_sum(loss.into_value()?);
                self.outbox.push_back(AsyncOutput::Loss { microbatch, loss_sum });
            }
            None => {
                let output = chunk.send_output(&self.backend, stash);
                self.result = Some((Flow::Forward, pass, output));
            }
        }
        Ok(())
    }

    fn backward(&mut self, pass: Pass, version: WeightVersion) -> Result<(), DeviceFault> {
        let batch = self.batch(pass.microbatch);
        let operand = self.inbox.remove(&(Flow::Backward, pass));
        let context = context(&self.setup, &self.backend, &self.angles, Some(&self.timer));
        let versions = self.weights.get_mut(&(pass.chunk, version.replica)).expect("a chunk here");
        let memory = self.memory.get_mut(&pass.chunk).expect("a chunk here");
        let stash = memory.stashes.get(pass.microbatch);
        let mut logits = memory.logits.as_mut().map(|slots| slots.get(pass.microbatch));
        let chunk = versions.reading(version);
        if let Some(gradient) = operand {
            chunk.take_gradient(&self.backend, gradient, stash)?;
        }
        let scale = if logits.is_some() {
            let targets = self.counted.of(&self.setup, &self.source, pass.microbatch);
            self.setup.loss_scale(targets)
        } else {
            LossScale::of_cross_entropy(1.0)
        };
        let loss = (&batch, scale);
        chunk.backward_input(&context, loss, stash, logits.as_deref_mut(), &mut self.scratch);
        if !chunk.has_embedding() {
            let output = chunk.send_gradient(&self.backend, stash);
            self.result = Some((Flow::Backward, pass, output));
        }
        // The gradient of the weights reads operands alone, so it goes where the next update is.
        let accumulate =
            if versions.accumulated == 0 { Accumulate::Start } else { Accumulate::Add };
        versions.accumulated += 1;
        if let Some(logits) = logits {
            versions.newest.head_weights(&context, stash, logits, accumulate);
        }
        versions.newest.backward_weights(&context, &batch, stash, &mut self.scratch, accumulate);
        memory.stashes.release(pass.microbatch);
        if let Some(slots) = &mut memory.logits {
            slots.release(pass.microbatch);
        }
        Ok(())
    }

    fn pass_on(&mut self, flow: Flow, pass: Pass) {
        let (of_flow, of_pass, tensor) = self.result.take().expect("a result is passed on at once");
        assert_eq!((of_flow, of_pass), (flow, pass), "the result that was made last");
        let neighbour = match flow {
            Flow::Forward => pass.chunk.0 + 1,
            Flow::Backward => pass.chunk.0.checked_sub(1).expect("the first chunk has no result"),
        };
        let pass = Pass { chunk: ChunkIndex(neighbour), ..pass };
        let placement = &self.setup.plan.program.placement;
        let to = placement.stage_of(pass.chunk).expect("a chunk of the model");
        let frame = AsyncFrame { flow, pass, tensor };
        if to == self.stage {
            self.handle(frame);
        } else {
            self.outbox.push_back(AsyncOutput::Frame { to, frame });
        }
    }
}

/// Frames that may wait for a stage: one for each pass that is alive at either end of a boundary.
#[must_use]
pub fn frames_max(program: &AsyncProgram, stage: StageIndex) -> usize {
    let live = program.live_passes();
    let of_chunk = |chunk: ChunkIndex| {
        let before = chunk.index().checked_sub(1).map_or(0, |before| live[before]);
        (before + live[chunk.index()]) as usize
    };
    program.placement.chunks_of(stage).map(of_chunk).sum()
}

/// How far back, in updates, PipeMare's correction goes: as many microbatches as lie between a
/// chunk's F and B.
fn correction_delay(program: &AsyncProgram, chunk: ChunkIndex) -> f64 {
    match program.kind {
        AsyncKind::PipeMare => f64::from(program.ahead_of(chunk)) / f64::from(program.update_every),
        AsyncKind::PipeDream
        | AsyncKind::PipeDream2Bw
        | AsyncKind::XPipe
        | AsyncKind::SpecTrain
        | AsyncKind::WPipe
        | AsyncKind::AvgPipe
        | AsyncKind::AmpNet => 0.0,
    }
}

fn first_position(program: &AsyncProgram, stage: StageIndex) -> ProgramPosition {
    match program.stages[stage.index()][..] {
        [AsyncOp::Dynamic(chunk, dynamic)] => {
            let microbatches = u32::try_from(program.microbatches_total()).expect("checked");
            let chunk_count = program.placement.chunk_count();
            ProgramPosition::Found(Box::new(DynamicRegion::new(
                dynamic,
                chunk,
                chunk_count,
                microbatches,
            )))
        }
        _ => ProgramPosition::List(0),
    }
}
