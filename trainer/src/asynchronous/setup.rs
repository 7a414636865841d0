//! The configuration of an asynchronous run: the same for all stages, and for the reference.

use zbelastic_kernels::{Backend, ByteCounts, DeviceSizes, LossScale};
use zbelastic_schedule::asynchronous::{
    AsyncGenerateError, AsyncKind, AsyncProgram, AsyncRequest, AsyncViolation, check_async,
    generate_async,
};
use zbelastic_types::{Bytes, ChunkIndex, StageIndex, Step};

use super::weight_versions::change_bytes;
use crate::data::{StepTargets, loss_scale};
use crate::model::{
    Family, LayerRange, LayerSpec, LayerTimer, ModelConfig, PassContext, PassSizes, PassStash,
    SlicePosition, count_bytes, frozen_bytes, layer_bytes, model_layers,
};
use crate::optimizer::OptimizerConfig;
use crate::plan::{
    BatchShape, DeviceClaim, LaneCount, LayerWork, StageMemory, asynchronous_claim, layer_work,
    partition,
};
use crate::stage::{InitialWeights, Injection};

/// Numbers that single methods have beside their schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsyncHyperparameters {
    /// Updates over which PipeMare lets the learning rate of a stage rise to its full height.
    pub anneal_updates: u64,
    /// The share of the difference between them by which a model and the reference pull each other
    /// (AvgPipe).
    pub elastic_alpha: f32,
}

/// Which chunk has which layers, and the program of each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct AsyncPlan {
    /// The program of the whole run.
    pub program: AsyncProgram,
    /// The layers of each chunk, in model order.
    pub chunks: Vec<LayerRange>,
    /// The shape of a minibatch.
    pub batch: BatchShape,
}

/// Why an asynchronous plan cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AsyncPlanError {
    /// More chunks than the model has blocks.
    #[error("{chunk_count} chunks for {blocks} layers")]
    Chunks {
        /// Chunks of all stages.
        chunk_count: u32,
        /// Transformer blocks of the model.
        blocks: u32,
    },
    /// The schedule does not exist for this size.
    #[error(transparent)]
    Generate(#[from] AsyncGenerateError),
    /// The two ends of a tied model would be updated at different times.
    #[error(
        "{kind} updates each chunk by itself, and a head tied to the token embedding is updated \
             together with it; every schedule with steps does that"
    )]
    Tied {
        /// The schedule that was requested.
        kind: AsyncKind,
    },
    /// Its updates read and write whole layers.
    #[error(
        "{kind} updates whole layers, and trains all tensors of a model; every schedule with \
             steps leaves frozen ones as they are"
    )]
    Frozen {
        /// The schedule that was requested.
        kind: AsyncKind,
    },
    /// Its updates add up their microbatches as one chain.
    #[error(
        "{kind} adds up the gradient of an update in 1 lane, found {lanes}; every schedule with steps has lanes"
    )]
    Lanes {
        /// The schedule that was requested.
        kind: AsyncKind,
        /// Lanes of the batch.
        lanes: LaneCount,
    },
    /// An order that was found is of another run.
    #[error("expected the order of a run `{expected}`, found one of `{found}`")]
    OtherRun {
        /// The beginning of the run's program.
        expected: String,
        /// The beginning of the order.
        found: String,
    },
    /// An order that was found breaks rules, which no order of a run does.
    #[error("{violation}")]
    Order {
        /// The first of them.
        violation: AsyncViolation,
    },
}

impl AsyncPlan {
    /// A plan with layers spread so that the busiest stage has as little to do as can be.
    ///
    /// # Errors
    /// If there are more chunks than blocks, or the schedule does not exist for this size.
    pub fn new(
        model: &ModelConfig,
        batch: BatchShape,
        request: AsyncRequest,
    ) -> Result<Self, AsyncPlanError> {
        if model.tied {
            return Err(AsyncPlanError::Tied { kind: request.kind });
        }
        if !model.frozen.is_none() {
            return Err(AsyncPlanError::Frozen { kind: request.kind });
        }
        if !batch.lanes.is_one() {
            return Err(AsyncPlanError::Lanes { kind: request.kind, lanes: batch.lanes });
        }
        let blocks = model.blocks;
        let placement = request.kind.placement(request.stage_count);
        let chunk_count = placement.chunk_count();
        if chunk_count > blocks {
            return Err(AsyncPlanError::Chunks { chunk_count, blocks });
        }
        let program = generate_async(request)?;
        assert_eq!(check_async(&program), Ok(()), "what is generated is legal");
        let work: Vec<f64> =
            layer_work(model, batch.microbatch).iter().map(LayerWork::total).collect();
        let speeds = vec![1.0; request.stage_count as usize];
        Ok(Self { program, chunks: partition(&work, &placement, &speeds), batch })
    }

    /// The same with the order that a region found in another run of it, to be run as a list.
    ///
    /// # Errors
    /// If the order is not of such a run, or breaks a rule.
    pub fn with_order(self, order: AsyncProgram) -> Result<Self, AsyncPlanError> {
        let empty = |program: &AsyncProgram| AsyncProgram { stages: Vec::new(), ..program.clone() };
        let expected = empty(&self.program);
        let found = empty(&order);
        if expected != found {
            let header = |program: AsyncProgram| program.to_string().trim_end().to_owned();
            let expected = header(expected);
            let found = header(found);
            return Err(AsyncPlanError::OtherRun { expected, found });
        }
        match check_async(&order) {
            Ok(()) => Ok(Self { program: order, ..self }),
            Err(violations) => {
                let violation = violations.into_iter().next().expect("there is one at least");
                Err(AsyncPlanError::Order { violation })
            }
        }
    }

    /// The chunks of `stage` with their layers.
    pub fn chunks_of(
        &self,
        stage: StageIndex,
    ) -> impl Iterator<Item = (ChunkIndex, LayerRange)> + '_ {
        let chunks = self.program.placement.chunks_of(stage);
        chunks.map(|chunk| (chunk, self.chunks[chunk.index()]))
    }

    /// The memory of `stage`: the state of every pipeline it is part of with the versions kept
    /// beside it and the buffers of its method, and the activations of passes.
    #[must_use]
    pub fn stage_memory<B: ByteCounts>(
        &self,
        backend: &B,
        model: &ModelConfig,
        stage: StageIndex,
    ) -> StageMemory {
        let sizes = PassSizes::whole(model, self.batch.microbatch);
        let live = self.program.live_passes();
        let mut state = Bytes(0);
        let mut stash = Bytes(0);
        let mut messages = Bytes(0);
        for (chunk, layers) in self.chunks_of(stage) {
            state += self.chunk_state(backend, model, chunk, layers);
            let mut pass =
                count_bytes(backend, |mut make| PassStash::build(&sizes, layers, &mut make));
            if layers.ids().end == model.layer_count() {
                pass += count_bytes(backend, |mut make| sizes.logits(&mut make));
            }
            stash += pass * u64::from(live[chunk.index()]);
            // One boundary tensor a microbatch may wait at either end.
            messages += Bytes::of_f32(2 * sizes.residual()) * u64::from(live[chunk.index()]);
        }
        let mut scratch = count_bytes(backend, |mut make| sizes.scratch(&mut make));
        if model.family == Family::Llama {
            let angles = self.batch.microbatch.sequence_len * model.head_width as usize;
            scratch += Bytes(backend.buffer_bytes(angles));
        }
        let none = Bytes(0);
        let memory = StageMemory {
            state,
            stash,
            scratch,
            messages,
            copies: none,
            islands: none,
            fixed: none,
            offload: none,
        };
        match backend.sizes() {
            DeviceSizes::Processors(_) => memory,
            DeviceSizes::Cuda(_) => memory.on_device(backend, &self.device_claim(model, stage)),
        }
    }

    /// The memory that `stage` needs of a device beside buffers.
    #[must_use]
    pub fn device_claim(&self, model: &ModelConfig, stage: StageIndex) -> DeviceClaim {
        let specs = model_layers(model);
        let live = self.program.live_passes();
        let mut layers = Vec::new();
        let mut unread = 0;
        for (chunk, range) in self.chunks_of(stage) {
            layers.extend(range.ids().map(|layer| &specs[layer as usize]));
            // Where a tensor waits, the pass that made it or reads it is alive.
            let before = (range.ids().start > 0).then(|| live[chunk.index() - 1]);
            let after = (range.ids().end < model.layer_count()).then(|| live[chunk.index()]);
            unread += before.unwrap_or(0) + after.unwrap_or(0);
        }
        asynchronous_claim(
            &PassSizes::whole(model, self.batch.microbatch),
            &layers,
            unread as usize,
        )
    }

    /// Weights of a chunk in all pipelines and versions, with the buffers that train them.
    fn chunk_state<B: ByteCounts>(
        &self,
        backend: &B,
        model: &ModelConfig,
        chunk: ChunkIndex,
        layers: LayerRange,
    ) -> Bytes {
        let specs = &model_layers(model)[layers.ids().start as usize..layers.ids().end as usize];
        let kept = self.program.kept_max(chunk) as u64;
        let remembered = match self.program.kind {
            AsyncKind::PipeMare if self.program.ahead_of(chunk) > 0 => change_bytes(backend, specs),
            AsyncKind::AvgPipe => {
                specs.iter().map(|spec| Bytes(backend.buffer_bytes(spec.len()))).sum()
            }
            AsyncKind::PipeMare
            | AsyncKind::PipeDream
            | AsyncKind::PipeDream2Bw
            | AsyncKind::XPipe
            | AsyncKind::SpecTrain
            | AsyncKind::WPipe
            | AsyncKind::AmpNet => Bytes(0),
        };
        let of_layer = |spec: &LayerSpec| {
            layer_bytes(backend, model, spec) + frozen_bytes(backend, model, spec) * kept
        };
        let versions: Bytes = specs.iter().map(of_layer).sum();
        versions * u64::from(self.program.replica_count) + remembered
    }
}

/// The configuration of an asynchronous run.
#[derive(Clone, Debug)]
pub struct AsyncSetup {
    /// Shape of the model.
    pub model: ModelConfig,
    /// The program of the run, and the layers of each chunk.
    pub plan: AsyncPlan,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// Weight of the mean squared log sum in the gradient; 0 for none.
    pub z_loss: f64,
    /// The largest norm of a chunk's gradient that is applied as it is.
    pub clip_norm: Option<f64>,
    /// Weights of the layers before the first step.
    pub weights: InitialWeights,
    /// Gradients corrupted on purpose, at the first update that a minibatch has a share in.
    pub injections: Vec<Injection>,
    /// Numbers of single methods.
    pub knobs: AsyncHyperparameters,
}

impl AsyncSetup {
    /// The minibatch whose microbatch is the first in the update that makes `base + 1` of version
    /// `base`: the learning rate is that of its step.
    #[must_use]
    pub fn minibatch_of_update(&self, replica: u32, base: u32) -> Step {
        let program = &self.plan.program;
        let gradients = u64::from(base) * u64::from(program.update_every);
        let minibatch = gradients / u64::from(program.microbatch_count);
        let replicas = u64::from(program.replica_count);
        Step(minibatch * replicas + u64::from(replica))
    }

    /// The learning rate of that update by its minibatch, before the method changes it.
    #[must_use]
    pub fn lr_of_update(&self, replica: u32, base: u32) -> f64 {
        let minibatch = self.minibatch_of_update(replica, base);
        self.optimizer.lr_at(minibatch, self.plan.program.minibatch_count.into())
    }

    /// Whether gradients are corrupted at that update.
    pub(super) fn injections_at(
        &self,
        replica: u32,
        base: u32,
    ) -> impl Iterator<Item = &Injection> {
        let step = self.minibatch_of_update(replica, base);
        let is_first = base == 0 || self.minibatch_of_update(replica, base - 1) != step;
        self.injections.iter().filter(move |injection| is_first && injection.strikes(step, 0))
    }

    /// What the loss of a microbatch of a minibatch with these targets is multiplied by: an update
    /// has its share of those that count, by the number of its microbatches. Which these are may be
    /// found at run time.
    pub(super) fn loss_scale(&self, targets: StepTargets) -> LossScale {
        let AsyncProgram { update_every, microbatch_count, .. } = self.plan.program;
        let counted = targets.counted.max(1) as f64;
        let share = counted * f64::from(update_every) / f64::from(microbatch_count);
        loss_scale(share, self.z_loss)
    }
}

/// The context of passes beside the layers.
pub(super) fn context<'c, B: Backend>(
    setup: &'c AsyncSetup,
    backend: &'c B,
    angles: &'c Option<B::Buffer>,
    timer: Option<&'c LayerTimer>,
) -> PassContext<'c, B> {
    let shape = setup.plan.batch.microbatch;
    let place = SlicePosition::WHOLE;
    let angles = angles.as_ref();
    PassContext { backend, model: &setup.model, shape, place, angles, timer }
}
