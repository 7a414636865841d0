//! A device that computes nothing and lasts exactly as long as configured: the engine, the protocol
//! and the threads around it are those of a run, so the measured time is theirs alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::validation::TensorSum;
use zbelastic_kernels::{
    AllocateError, DeviceFault, LossScale, Pending, PendingFloats, TensorHandle,
};
use zbelastic_local::executor_factory::ExecutorFactory;
use zbelastic_schedule::{Flow, Pass, Placement, TreeSide};
use zbelastic_trainer::data::TokenBatch;
use zbelastic_trainer::elastic::LayerImage;
use zbelastic_trainer::model::{LayerSpec, TiedEnd, TiedParts, model_layers};
use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::stage::{
    GradientExecutor, Injection, OperationClock, OuterExecutor, PassExecutor, SealedState,
    StageExecutor, StageSetup, StashStoreError, UpdateExecutor, UpdateRequest,
};
use zbelastic_types::{ChunkIndex, Digest, LayerId, SliceIndex, StageIndex, Step};

/// Durations of a stage's passes, all its chunks together.
#[derive(Clone, Copy, Debug)]
pub struct PassDurations {
    /// Time of the forward passes (F).
    pub f: Duration,
    /// Time of the backward passes for activations (B).
    pub b: Duration,
    /// Time of the backward passes for weights (W).
    pub w: Duration,
}

/// Floats of a boundary tensor; their values are not read.
const FRAME_LEN: usize = 16;
/// Every gradient is this, squared and summed.
const SQUARE_SUM: f64 = 1e-6;

impl ExecutorFactory for PassDurations {
    type Executor = PacedExecutor;

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
    ) -> Result<PacedExecutor, AllocateError> {
        let specs = model_layers(&setup.model);
        let of_chunk = |layers: zbelastic_types::LayerRange| {
            layers.ids().map(|layer| specs[layer as usize].clone()).collect()
        };
        let chunks: BTreeMap<ChunkIndex, Vec<LayerSpec>> =
            setup.plan.chunks_of(stage).map(|(chunk, layers)| (chunk, of_chunk(layers))).collect();
        let share = chunks.len() as u32 / setup.plan.placement().direction_count();
        let Self { f, b, w } = *self;
        Ok(PacedExecutor {
            times: Self { f: f / share, b: b / share, w: w / share },
            placement: setup.plan.placement().clone(),
            chunks,
            under_way: BTreeSet::new(),
            version: Step(0),
        })
    }

    fn name(&self, _: StageIndex) -> String {
        "a clock".to_owned()
    }

    fn weights(executor: &PacedExecutor) -> Vec<(LayerId, Vec<f32>)> {
        executor.layers().map(|layer| (layer.layer, Vec::new())).collect()
    }
}

/// The stage executor of one stage.
pub struct PacedExecutor {
    /// Times of the passes of one chunk.
    times: PassDurations,
    placement: Placement,
    chunks: BTreeMap<ChunkIndex, Vec<LayerSpec>>,
    under_way: BTreeSet<Pass>,
    version: Step,
}

impl PacedExecutor {
    /// Those of the first replica.
    fn layers(&self) -> impl Iterator<Item = &LayerSpec> {
        let is_first = |chunk: &ChunkIndex| self.placement.replica_of(*chunk) == 0;
        self.chunks.iter().filter(move |(chunk, _)| is_first(chunk)).flat_map(|(_, layers)| layers)
    }
}

/// Sleeps until so long after it was called.
fn take(duration: Duration) {
    let end = Instant::now() + duration;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    {
        thread::sleep(left);
    }
}

impl StageExecutor for PacedExecutor {
    fn chunk_indices(&self) -> Vec<ChunkIndex> {
        self.chunks.keys().copied().collect()
    }

    fn has_chunk(&self, chunk: ChunkIndex) -> bool {
        self.chunks.contains_key(&chunk)
    }
}

impl PassExecutor for PacedExecutor {
    fn frame_len(&self, _slice: SliceIndex) -> usize {
        FRAME_LEN
    }

    fn slots_in_use(&self) -> usize {
        self.under_way.len()
    }

    fn drop_passes(&mut self) {
        self.under_way.clear();
    }

    fn forward(
        &mut self,
        pass: Pass,
        _batch: &TokenBatch,
        _input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        self.under_way.insert(pass);
        take(self.times.f);
        Ok(self.placement.is_last(pass.chunk).then_some(Pending::Ready(1.0)))
    }

    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let loss = self.forward(pass, batch, input);
        self.under_way.remove(&pass);
        loss
    }

    fn backward_input(
        &mut self,
        _pass: Pass,
        _loss: (&TokenBatch, LossScale),
        _gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault> {
        take(self.times.b);
        Ok(())
    }

    fn head_weights(&mut self, _pass: Pass) {}

    fn backward_weights(&mut self, pass: Pass, _batch: &TokenBatch) {
        take(self.times.w);
        self.under_way.remove(&pass);
    }

    fn drop_activations(&mut self, _pass: Pass) {}

    fn recompute(&mut self, _pass: Pass, _batch: &TokenBatch) {
        take(self.times.f);
    }

    /// Copies run beside the passes of a device that is as fast as it is planned.
    fn offload(&mut self, _pass: Pass) -> Result<(), StashStoreError> {
        Ok(())
    }

    fn reload(&mut self, _pass: Pass) -> Result<(), StashStoreError> {
        Ok(())
    }

    fn take_result(&mut self, _flow: Flow, _pass: Pass) -> TensorHandle {
        vec![0.0; FRAME_LEN].into()
    }
}

impl GradientExecutor for PacedExecutor {
    fn layer_lens(&self, _chunk: ChunkIndex) -> Vec<usize> {
        vec![FRAME_LEN]
    }

    fn partial(&self, _chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        vec![0.0; floats.len()]
    }

    fn reduce(&mut self, _chunk: ChunkIndex, _other: (usize, &[f32]), _own_side: TreeSide) {}

    fn gather(&mut self, _chunk: ChunkIndex, _sums: (usize, &[f32])) {}

    fn tied_len(&self) -> usize {
        FRAME_LEN
    }

    fn tied_part(&self, _chunk: ChunkIndex, _end: TiedEnd) -> Vec<f32> {
        vec![0.0; FRAME_LEN]
    }

    fn tie(&mut self, _ends: &[(ChunkIndex, TiedEnd)], _parts: TiedParts) {}

    fn freeze(&mut self) {}

    fn inject(&mut self, _injection: &Injection) {}

    fn square_sums(&mut self) -> Vec<TensorSum> {
        let tensors = self.layers().flat_map(LayerSpec::own_tensors);
        let sum = |tensor: &zbelastic_trainer::model::TensorSpec| TensorSum {
            tensor: tensor.index,
            square_sum: SQUARE_SUM,
            nonfinite: 0,
        };
        tensors.map(sum).collect()
    }

    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)> {
        self.layers().map(|layer| (layer.layer, Vec::new().into())).collect()
    }
}

impl UpdateExecutor for PacedExecutor {
    fn compute_candidate(&mut self, _order: UpdateRequest) {}

    fn drop_candidate(&mut self) {}

    fn candidates(&self, _chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        vec![0.0; floats.len()]
    }

    fn gather_candidates(&mut self, _chunk: ChunkIndex, _weights: (usize, &[f32])) {}

    fn commit(&mut self, request: UpdateRequest) {
        self.version = request.step.next();
    }

    fn skip(&mut self, step: Step) {
        self.version = step.next();
    }
}

impl SealedState for PacedExecutor {
    fn version(&self) -> Step {
        self.version
    }

    fn images(&self) -> Vec<LayerImage> {
        let image = |layer: &LayerSpec| LayerImage {
            layer: layer.layer,
            version: self.version,
            w: Vec::new().into(),
            m: Vec::new().into(),
            v: Vec::new().into(),
        };
        self.layers().map(image).collect()
    }

    fn digests(&self) -> Vec<LayerDigest> {
        let mut layers: Vec<LayerId> = self.layers().map(|layer| layer.layer).collect();
        layers.sort_unstable();
        layers.into_iter().map(|layer| (layer, Digest([0; 32]))).collect()
    }
}

impl OuterExecutor for PacedExecutor {
    fn trained_weights(&self, _layer: LayerId) -> Vec<f32> {
        Vec::new()
    }

    fn mix_outer(&mut self, _outer: &OuterWeights) {}
}

impl OperationClock for PacedExecutor {}
