//! The second compute model: a small transformer with the real kernels.

use std::sync::Arc;

use zbelastic_consensus::validation::{LayerFingerprint, Seal, TensorSum};
use zbelastic_kernels::{AllocateError, CpuBackend, HostFloats, Loss, Parcel};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::data::{Batch, Corpus};
use zbelastic_trainer::elastic::{
    BackendCopy, BackendModel, ComputeModel, DeviceUse, LayerImage, layer_digest,
};
use zbelastic_trainer::reference::Reference;
use zbelastic_trainer::stage::{
    Bench, Corruption, Injection, StageSetup, StoreError, UpdateOrder, Workbench,
};
use zbelastic_types::{ChunkIndex, Digest, LayerId, SliceIndex, StageIndex, Step};

use crate::bug::{self, Bug};
use crate::numeric::NumericFaults;
use crate::reference::ReferenceSums;

/// Makes a device of one thread.
pub type MakeBackend = fn(DeviceUse) -> CpuBackend;

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
    pub model: BackendModel<MakeBackend>,
    /// What goes wrong on this node.
    pub faults: NumericFaults,
}

impl ComputeModel for FloatModel {
    type Workbench = FloatBench;
    type Copy = BackendCopy<CpuBackend>;

    fn initial(&self, layer: LayerId) -> LayerImage {
        self.model.initial(layer)
    }

    fn fits(&self, image: &LayerImage) -> bool {
        self.model.fits(image)
    }

    fn workbench(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
        layers: &[Arc<LayerImage>],
    ) -> Result<FloatBench, AllocateError> {
        let bench = self.model.workbench(setup, stage, layers)?;
        let (faults, is_copied) = (self.faults.clone(), setup.copies_wanted);
        Ok(FloatBench { bench, faults, is_copied, dropped: 0 })
    }

    fn copy(&self, image: &LayerImage) -> Result<Self::Copy, AllocateError> {
        self.model.copy(image)
    }
}

/// The real workbench, with numbers that go wrong on order.
pub struct FloatBench {
    bench: Bench<CpuBackend>,
    faults: NumericFaults,
    /// Whether another node keeps a copy, and would notice a wrong number.
    is_copied: bool,
    /// Candidates dropped: what only a known bug looks at.
    dropped: u64,
}

impl Workbench for FloatBench {
    fn chunk_indices(&self) -> Vec<ChunkIndex> {
        self.bench.chunk_indices()
    }

    fn has_chunk(&self, chunk: ChunkIndex) -> bool {
        self.bench.has_chunk(chunk)
    }

    fn frame_len(&self, slice: SliceIndex) -> usize {
        self.bench.frame_len(slice)
    }

    fn slots_taken(&self) -> usize {
        self.bench.slots_taken()
    }

    fn drop_passes(&mut self) {
        self.bench.drop_passes();
    }

    fn forward(&mut self, pass: Pass, batch: &Batch, input: Option<Parcel>) -> Option<Loss> {
        self.bench.forward(pass, batch, input)
    }

    fn forward_only(&mut self, pass: Pass, batch: &Batch, input: Option<Parcel>) -> Option<Loss> {
        self.bench.forward_only(pass, batch, input)
    }

    fn backward_input(&mut self, pass: Pass, batch: &Batch, gradient: Option<Parcel>) {
        self.bench.backward_input(pass, batch, gradient);
    }

    fn head_weights(&mut self, pass: Pass) {
        self.bench.head_weights(pass);
    }

    fn backward_weights(&mut self, pass: Pass, batch: &Batch) {
        self.bench.backward_weights(pass, batch);
    }

    fn drop_activations(&mut self, pass: Pass) {
        self.bench.drop_activations(pass);
    }

    fn recompute(&mut self, pass: Pass, batch: &Batch) {
        self.bench.recompute(pass, batch);
    }

    fn offload(&mut self, pass: Pass) -> Result<(), StoreError> {
        self.bench.offload(pass)
    }

    fn reload(&mut self, pass: Pass) -> Result<(), StoreError> {
        self.bench.reload(pass)
    }

    fn take_result(&mut self, flow: Flow, pass: Pass) -> Parcel {
        self.bench.take_result(flow, pass)
    }

    fn partial_len(&self, chunk: ChunkIndex) -> usize {
        self.bench.partial_len(chunk)
    }

    fn partial(&self, chunk: ChunkIndex) -> Vec<f32> {
        self.bench.partial(chunk)
    }

    fn reduce(&mut self, chunk: ChunkIndex, twin: &[f32]) {
        self.bench.reduce(chunk, twin);
    }

    fn freeze(&mut self, microbatch_count: u32) {
        self.bench.freeze(microbatch_count);
        if let Some(mark) = self.faults.borrow_mut().gradient_mark() {
            let name = self.bench.layers().next().map(|layer| layer.spec.tensors[0].name.clone());
            let tensor = name.expect("a stage has layers");
            let corruption = if mark.is_nan() { Corruption::Nan } else { Corruption::Infinity };
            self.bench.inject(&Injection { step: 0, tensor, corruption, attempts: 1 });
        }
    }

    fn inject(&mut self, injection: &Injection) {
        self.bench.inject(injection);
    }

    fn square_sums(&mut self) -> Vec<TensorSum> {
        let mut sums = self.bench.square_sums();
        let factor = self.is_copied.then(|| self.faults.borrow_mut().sum_factor()).flatten();
        if let Some(factor) = factor {
            sums[0].square_sum *= factor;
        }
        sums
    }

    fn compute_candidate(&mut self, order: UpdateOrder) {
        let ahead = if bug::is(Bug::M14UpdatesNotRolledBack) { self.dropped } else { 0 };
        let order = UpdateOrder { number: order.number + ahead, ..order };
        self.bench.compute_candidate(order);
    }

    fn drop_candidate(&mut self) {
        self.dropped += 1;
        self.bench.drop_candidate();
    }

    fn commit(&mut self, order: UpdateOrder) {
        self.bench.commit(order);
    }

    fn commit_to_attest(&mut self, order: UpdateOrder) {
        self.bench.commit_to_attest(order);
    }

    fn skip(&mut self, step: Step) {
        self.bench.skip(step);
    }

    fn version(&self) -> Step {
        self.bench.version()
    }

    fn images(&self) -> Vec<LayerImage> {
        self.bench.images()
    }

    fn twin_images(&self) -> Vec<LayerImage> {
        self.bench.twin_images()
    }

    fn attested(&self) -> Vec<LayerFingerprint> {
        self.bench.attested()
    }

    fn gradients(&mut self) -> Vec<(LayerId, HostFloats)> {
        self.bench.gradients()
    }
}

/// The trainer's own serial run, one step behind the seals.
pub struct FloatReference {
    setup: StageSetup,
    corpus: Arc<Corpus>,
    run: Reference<CpuBackend, Arc<Corpus>>,
    versions: Vec<Vec<Digest>>,
}

impl FloatReference {
    /// A run before its first step.
    ///
    /// # Panics
    /// If memory does not hold it.
    #[must_use]
    pub fn new(setup: StageSetup, corpus: Arc<Corpus>) -> Self {
        let run = Reference::new(&setup, one_thread(DeviceUse::Stage), corpus.clone());
        let run = run.expect("memory holds a small model");
        let mut reference = Self { setup, corpus, run, versions: Vec::new() };
        reference.remember();
        reference
    }

    /// Back to before the first step.
    pub fn restart(&mut self) {
        *self = Self::new(self.setup.clone(), self.corpus.clone());
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
