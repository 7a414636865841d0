//! The second compute model: a small transformer with the real kernels.

use std::ops::Range;
use std::sync::Arc;

use zbelastic_consensus::validation::{LayerFingerprint, Seal, TensorSum};
use zbelastic_kernels::{
    AllocateError, CpuBackend, DeviceFault, LossScale, Pending, PendingFloats, TensorHandle,
};
use zbelastic_schedule::{Flow, Pass, TreeSide};
use zbelastic_trainer::data::TokenBatch;
use zbelastic_trainer::elastic::{
    BackendCopy, BackendStageFactory, DeviceUse, LayerImage, StageFactory, layer_digest,
};
use zbelastic_trainer::model::{TiedEnd, TiedParts};
use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{
    BackendExecutor, Corruption, GradientExecutor, Injection, OperationClock, OuterExecutor,
    PassExecutor, SealedState, StageExecutor, StageSetup, StashStoreError, UpdateExecutor,
    UpdateRequest,
};
use zbelastic_types::{ChunkIndex, Digest, LayerId, SliceIndex, StageIndex, Step};

use crate::bug::{self, Bug};
use crate::float_source::FloatSource;
use crate::islands::SimulatedIslands;
use crate::numeric_faults::NumericFaults;
use crate::reference_sums::ReferenceSums;

/// Makes a device of one thread.
pub type CpuBackendFactory = fn(DeviceUse) -> CpuBackend;

/// A device of one thread.
///
/// # Panics
/// If no thread can be had.
#[must_use]
pub fn one_thread(_: DeviceUse) -> CpuBackend {
    CpuBackend::new(1).expect("one thread can be had")
}

/// The float model of one node.
pub struct FloatModel {
    /// The model of the product on the processor's kernels.
    pub model: BackendStageFactory<CpuBackendFactory>,
    /// The faults of this node's numbers.
    pub faults: NumericFaults,
}

impl StageFactory for FloatModel {
    type Executor = FloatStageExecutor;
    type Copy = BackendCopy<CpuBackend>;

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
    ) -> Result<FloatStageExecutor, AllocateError> {
        let executor = self.model.executor(setup, stage, layers)?;
        let faults = self.faults.clone();
        let is_copied = setup.copies_wanted;
        Ok(FloatStageExecutor { executor, faults, is_copied, dropped: 0 })
    }

    fn copy(&self, image: &LayerImage) -> Result<Self::Copy, AllocateError> {
        self.model.copy(image)
    }
}

/// The product's stage executor, with numeric faults injected by plan.
pub struct FloatStageExecutor {
    executor: BackendExecutor<CpuBackend>,
    faults: NumericFaults,
    /// Whether another node keeps a copy, and would notice a wrong number.
    is_copied: bool,
    /// Candidates dropped: only a known bug looks at them.
    dropped: u64,
}

impl StageExecutor for FloatStageExecutor {
    fn chunk_indices(&self) -> Vec<ChunkIndex> {
        self.executor.chunk_indices()
    }

    fn has_chunk(&self, chunk: ChunkIndex) -> bool {
        self.executor.has_chunk(chunk)
    }
}

impl PassExecutor for FloatStageExecutor {
    fn frame_len(&self, slice: SliceIndex) -> usize {
        self.executor.frame_len(slice)
    }

    fn slots_in_use(&self) -> usize {
        self.executor.slots_in_use()
    }

    fn drop_passes(&mut self) {
        self.executor.drop_passes();
    }

    fn forward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        self.executor.forward(pass, batch, input)
    }

    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        self.executor.forward_only(pass, batch, input)
    }

    fn backward_input(
        &mut self,
        pass: Pass,
        loss: (&TokenBatch, LossScale),
        gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault> {
        self.executor.backward_input(pass, loss, gradient)
    }

    fn head_weights(&mut self, pass: Pass) {
        self.executor.head_weights(pass);
    }

    fn backward_weights(&mut self, pass: Pass, batch: &TokenBatch) {
        self.executor.backward_weights(pass, batch);
    }

    fn drop_activations(&mut self, pass: Pass) {
        self.executor.drop_activations(pass);
    }

    fn recompute(&mut self, pass: Pass, batch: &TokenBatch) {
        self.executor.recompute(pass, batch);
    }

    fn offload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        self.executor.offload(pass)
    }

    fn reload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        self.executor.reload(pass)
    }

    fn take_result(&mut self, flow: Flow, pass: Pass) -> TensorHandle {
        self.executor.take_result(flow, pass)
    }
}

impl GradientExecutor for FloatStageExecutor {
    fn layer_lens(&self, chunk: ChunkIndex) -> Vec<usize> {
        self.executor.layer_lens(chunk)
    }

    fn partial(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        self.executor.partial(chunk, floats)
    }

    fn reduce(&mut self, chunk: ChunkIndex, other: (usize, &[f32]), own_side: TreeSide) {
        self.executor.reduce(chunk, other, own_side);
    }

    fn gather(&mut self, chunk: ChunkIndex, sums: (usize, &[f32])) {
        self.executor.gather(chunk, sums);
    }

    fn tied_len(&self) -> usize {
        self.executor.tied_len()
    }

    fn tied_part(&self, chunk: ChunkIndex, end: TiedEnd) -> Vec<f32> {
        self.executor.tied_part(chunk, end)
    }

    fn tie(&mut self, ends: &[(ChunkIndex, TiedEnd)], parts: TiedParts) {
        self.executor.tie(ends, parts);
    }

    fn freeze(&mut self) {
        self.executor.freeze();
        if let Some(mark) = self.faults.borrow_mut().gradient_mark() {
            let trained =
                self.executor.layers().flat_map(|layer| layer.spec.trained_tensors()).next();
            // Where all is frozen there is no gradient that could be wrong.
            if let Some(tensor) = trained.map(|tensor| tensor.name.clone()) {
                let corruption = if mark.is_nan() { Corruption::Nan } else { Corruption::Infinity };
                self.executor.inject(&Injection { step: 0, tensor, corruption, attempts: 1 });
            }
        }
    }

    fn inject(&mut self, injection: &Injection) {
        self.executor.inject(injection);
    }

    fn square_sums(&mut self) -> Vec<TensorSum> {
        let mut sums = self.executor.square_sums();
        let factor = self.is_copied.then(|| self.faults.borrow_mut().sum_factor()).flatten();
        let computed = sums.iter_mut().find(|sum| sum.square_sum != 0.0);
        if let Some((factor, sum)) = factor.zip(computed) {
            sum.square_sum *= factor;
        }
        sums
    }

    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)> {
        self.executor.gradients()
    }
}

impl UpdateExecutor for FloatStageExecutor {
    fn compute_candidate(&mut self, update: UpdateRequest) {
        let ahead = if bug::is(Bug::M14UpdatesNotRolledBack) { self.dropped } else { 0 };
        let update = UpdateRequest { number: update.number + ahead, ..update };
        self.executor.compute_candidate(update);
    }

    fn drop_candidate(&mut self) {
        self.dropped += 1;
        self.executor.drop_candidate();
    }

    fn candidates(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        self.executor.candidates(chunk, floats)
    }

    fn gather_candidates(&mut self, chunk: ChunkIndex, weights: (usize, &[f32])) {
        self.executor.gather_candidates(chunk, weights);
    }

    fn commit(&mut self, update: UpdateRequest) {
        self.executor.commit(update);
    }

    fn commit_to_attest(&mut self, update: UpdateRequest) {
        self.executor.commit_to_attest(update);
    }

    fn skip(&mut self, step: Step) {
        self.executor.skip(step);
    }
}

impl SealedState for FloatStageExecutor {
    fn version(&self) -> Step {
        self.executor.version()
    }

    fn images(&self) -> Vec<LayerImage> {
        self.executor.images()
    }

    fn twin_images(&self) -> Vec<LayerImage> {
        self.executor.twin_images()
    }

    fn attested(&self) -> Result<Vec<LayerFingerprint>, DeviceFault> {
        self.executor.attested()
    }
}

impl OuterExecutor for FloatStageExecutor {
    fn trained_weights(&self, layer: LayerId) -> Vec<f32> {
        self.executor.trained_weights(layer)
    }

    fn mix_outer(&mut self, outer: &OuterWeights) {
        self.executor.mix_outer(outer);
    }
}

impl OperationClock for FloatStageExecutor {}

/// The trainer's own serial run, one step behind the seals.
pub struct FloatReference {
    setup: StageSetup,
    source: FloatSource,
    run: SerialReference<CpuBackend, FloatSource>,
    /// The other island of the life, if there is one.
    islands: Option<SimulatedIslands>,
    versions: Vec<Vec<Digest>>,
}

impl FloatReference {
    /// A run before its first step.
    ///
    /// # Panics
    /// If memory does not hold it.
    #[must_use]
    pub fn new(setup: StageSetup, source: FloatSource, islands: Option<SimulatedIslands>) -> Self {
        let run = SerialReference::new(&setup, one_thread(DeviceUse::Stage), source.clone());
        let run = run.expect("memory holds a small model");
        let mut reference = Self { setup, source, run, islands, versions: Vec::new() };
        reference.exchange(Step(0));
        reference.remember();
        reference
    }

    /// Back to before the first step.
    pub fn restart(&mut self) {
        *self = Self::new(self.setup.clone(), self.source.clone(), self.islands.clone());
    }

    /// Mixes what came of the other island into a version, and publishes what is this one's.
    fn exchange(&mut self, version: Step) {
        let Some(islands) = &self.islands else { return };
        for layer in (0..self.run.layers().len() as u32).map(LayerId) {
            if let Some(outer) = islands.mixed_at(layer, version) {
                self.run.mix_outer(&outer);
            }
            if islands.publishes(layer, version) {
                // After a rewind what was published before stays.
                let _ = islands.publish(layer, version, &self.run.trained_weights(layer));
            }
        }
    }

    /// The digests of a version, if the reference is that far.
    #[must_use]
    pub fn version(&self, version: Step) -> Option<&[Digest]> {
        self.versions.get(version.index()).map(Vec::as_slice)
    }

    /// The next step; it is left out if the seal skips it.
    pub fn advance(&mut self, seal: &Seal) -> ReferenceSums {
        let is_skipped = seal.verdict.coefficient().is_none();
        let found = self.run.step(seal.turn.step, is_skipped);
        self.exchange(seal.turn.step.next());
        self.remember();
        ReferenceSums { square_sum: found.square_sum, loss_sum: found.loss_sum }
    }

    fn remember(&mut self) {
        let version = Step(self.versions.len() as u64);
        let digests =
            self.run.layers().iter().map(|layer| {
                layer_digest(&LayerImage { version, ..layer.image(self.run.backend()) })
            });
        let digests = digests.collect();
        self.versions.push(digests);
    }
}
