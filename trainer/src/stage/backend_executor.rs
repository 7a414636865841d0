//! F, B and W on this stage's chunks, and boundary tensors in and out.

mod update;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::validation::{LayerFingerprint, TensorSum};
use zbelastic_kernels::{
    AllocateError, Backend, BufferView, BufferViewMut, DeviceFault, Pending, PendingFloats,
    TensorHandle,
};
use zbelastic_schedule::{Flow, Pass, Placement, live_passes_of};
use zbelastic_types::{Bytes, ChunkIndex, LayerId, SliceIndex, StageIndex, Step};

use super::chunk_workspace::{
    ChunkWorkspace, MicrobatchSlice, PassWorkingSet, StageLayers, next_in_order,
};
use super::engine::StageSetup;
use super::executor::{StageExecutor, UpdateRequest};
use super::injection::Injection;
use super::offload_target::OffloadTarget;
use super::pass_pool::PassPool;
use super::stash_store::{StashStore, StashStoreError};
use crate::data::TokenBatch;
use crate::elastic::{LayerImage, PendingImage};
use crate::model::{
    AfterCommit, BufferSize, Chunk, LayerOp, LayerState, LayerTimer, MicrobatchShape, ModelConfig,
    PassContext, PassScratch, PassSizes, Recompute, Span, StageTimings, slice_angles,
};
use crate::optimizer::{
    OptimizerConfig, compute_candidate, drop_candidate, skip, square_sums, square_sums_ahead,
};
use crate::plan::{
    OffloadClaim, SliceCut, claim_stage, device_claim, offload_claims, stage_memory,
};

/// A stage's device with everything on it.
pub struct BackendExecutor<B: Backend> {
    backend: B,
    model: ModelConfig,
    /// Shape of a whole microbatch, before it is cut into slices.
    shape: MicrobatchShape,
    placement: Placement,
    cut: SliceCut,
    chunks: BTreeMap<ChunkIndex, ChunkWorkspace<B>>,
    /// By the length of slices.
    scratch: BTreeMap<usize, PassScratch<B::Buffer>>,
    /// By slice, if the family has them.
    angles: Vec<B::Buffer>,
    /// What the last F or B left, until a transfer takes it.
    result: Option<(Flow, Pass, TensorHandle)>,
    recompute: Recompute,
    offload_target: OffloadTarget<B>,
    optimizer: OptimizerConfig,
    step_count: u64,
    /// One over the tokens of a step: the loss is their mean.
    loss_scale: f32,
    timer: LayerTimer,
}

impl<B: Backend> BackendExecutor<B> {
    /// The executor of a stage at the beginning of a run.
    ///
    /// # Errors
    /// If the device's memory does not hold what the plan claims.
    pub fn new(setup: &StageSetup, stage: StageIndex, backend: B) -> Result<Self, AllocateError> {
        let layers = StageLayers::Initial(&setup.weights);
        Self::build(setup, stage, backend, layers, OffloadTarget::of_device)
    }

    /// The executor of a stage that goes on with layers that travelled here, in the order of
    /// chunks. What of them lies where the device reads it is not copied until it is written.
    ///
    /// # Errors
    /// If the device's memory does not hold what the plan claims.
    ///
    /// # Panics
    /// If they are not those of this stage.
    pub fn resumed(
        setup: &StageSetup,
        stage: StageIndex,
        backend: B,
        layers: &[Arc<LayerImage>],
        make: Option<impl FnOnce(Bytes) -> Box<dyn StashStore>>,
    ) -> Result<Self, AllocateError> {
        let layers = StageLayers::Images(layers);
        Self::build(
            setup,
            stage,
            backend,
            layers,
            |backend: &B, claims: &[OffloadClaim]| match make {
                Some(make) => Ok(OffloadTarget::in_store(make, claims)),
                None => OffloadTarget::of_device(backend, claims),
            },
        )
    }

    /// The same with a second store, made for the bytes of the floats that are offloaded.
    ///
    /// # Errors
    /// If the device's memory does not hold what the plan claims.
    pub fn storing(
        setup: &StageSetup,
        stage: StageIndex,
        backend: B,
        make: impl FnOnce(Bytes) -> Box<dyn StashStore>,
    ) -> Result<Self, AllocateError> {
        let in_store = |_: &B, claims: &[OffloadClaim]| Ok(OffloadTarget::in_store(make, claims));
        Self::build(setup, stage, backend, StageLayers::Initial(&setup.weights), in_store)
    }

    fn build(
        setup: &StageSetup,
        stage: StageIndex,
        backend: B,
        mut layers: StageLayers<'_>,
        make_target: impl FnOnce(&B, &[OffloadClaim]) -> Result<OffloadTarget<B>, AllocateError>,
    ) -> Result<Self, AllocateError> {
        let StageSetup { model, plan, .. } = setup;
        let (cut, microbatch) = (plan.cut(model), plan.batch.microbatch);
        let counted = stage_memory(&backend, &setup.model, &setup.plan, stage);
        let beside = device_claim(&setup.model, &setup.plan, stage);
        let claim = claim_stage(&backend, counted, &beside)?;
        let mut allocated = Bytes(0);
        let mut make = |size: BufferSize| {
            allocated += Bytes(size.bytes(&backend));
            size.allocate(&backend)
        };
        let mut scratch = BTreeMap::new();
        let mut pools: BTreeMap<ChunkIndex, BTreeMap<usize, PassPool<B>>> = BTreeMap::new();
        for len in cut.lens() {
            let sizes = cut.sizes(model, microbatch, len);
            let live = live_passes_of(&plan.program, |slice| cut.len_of(slice) == len);
            scratch.insert(len, sizes.scratch(&mut make)?);
            for (chunk, layers) in plan.chunks_of(stage) {
                let has_head = layers.ids().end == model.layer_count();
                let (of, live) = ((&sizes, layers, has_head), live[chunk.index()]);
                let pool = PassPool::new(of, live, plan.recompute, &mut make)?;
                pools.entry(chunk).or_default().insert(len, pool);
            }
        }
        let mut chunks = BTreeMap::new();
        for (chunk, range) in plan.chunks_of(stage) {
            let held = Chunk::new(layers.build(&backend, model, range)?);
            let pools = pools.remove(&chunk).expect("made above");
            chunks.insert(chunk, ChunkWorkspace::new(held, pools, cut.clone()));
        }
        layers.finish();
        let mut angles = Vec::new();
        for slice in cut.slices() {
            let shape = cut.shape_of(microbatch, slice);
            angles.extend(slice_angles(&backend, model, shape, cut.place(slice))?);
        }
        let of_angles = angles.iter().map(|angles| backend.buffer_bytes(backend.len(angles)));
        allocated += Bytes(of_angles.sum());
        assert_eq!(allocated, claim.stash + claim.scratch, "the plan claims what is allocated");
        let layers = chunks.values().flat_map(|of: &ChunkWorkspace<B>| of.chunk.layers());
        let state: Bytes = layers.map(|layer| layer.allocated_bytes(&backend)).sum();
        assert_eq!(state, claim.state, "the plan claims what layers take");
        let loss_scale = (1.0 / plan.batch.tokens() as f64) as f32;
        let claims = offload_claims(&backend, model, plan, stage);
        let (model, shape) = (model.clone(), microbatch);
        let placement = plan.placement().clone();
        let (optimizer, step_count) = (setup.optimizer.clone(), setup.step_count);
        let offload_target = make_target(&backend, &claims)?;
        Ok(Self {
            backend,
            model,
            shape,
            placement,
            cut,
            chunks,
            scratch,
            angles,
            result: None,
            recompute: plan.recompute,
            offload_target,
            optimizer,
            step_count,
            loss_scale,
            timer: LayerTimer::default(),
        })
    }

    /// The same with a clock for its layers.
    #[must_use]
    pub fn with_timer(self, timer: LayerTimer) -> Self {
        Self { timer, ..self }
    }

    /// What was timed since the last call, if there is a clock.
    #[must_use]
    pub fn times(&self) -> StageTimings {
        self.timer.take(&self.backend)
    }

    /// The device that the stage computes on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The layers of first replicas on this stage, in model order within each chunk.
    pub fn layers(&self) -> impl Iterator<Item = &LayerState<B>> {
        self.layers_of_replica(|replica| replica == 0)
    }

    /// The layers of second replicas on this stage.
    pub fn twin_layers(&self) -> impl Iterator<Item = &LayerState<B>> {
        self.layers_of_replica(|replica| replica > 0)
    }

    fn layers_of_replica(&self, is_it: fn(u32) -> bool) -> impl Iterator<Item = &LayerState<B>> {
        let chunks =
            self.chunks.iter().filter(move |(chunk, _)| is_it(self.placement.replica_of(**chunk)));
        chunks.flat_map(|(_, workspace)| workspace.chunk.layers())
    }

    /// How many microbatches of a step a chunk sees.
    fn microbatches_of(&self, chunk: ChunkIndex, microbatch_count: u32) -> u32 {
        self.placement.microbatches_of(self.placement.replica_of(chunk), microbatch_count)
    }

    /// The device, and the layers of first replicas on this stage.
    fn first_replica_layers(&mut self) -> (&B, impl Iterator<Item = &mut LayerState<B>>) {
        let Self { backend, chunks, placement, .. } = self;
        let first = chunks.iter_mut().filter(|(chunk, _)| placement.replica_of(**chunk) == 0);
        (backend, first.flat_map(|(_, workspace)| workspace.chunk.layers_mut()))
    }

    /// The device, and the layers to be updated.
    fn update_layers(&mut self) -> (&B, impl Iterator<Item = &mut LayerState<B>>) {
        let layers = self.chunks.values_mut().flat_map(|workspace| workspace.chunk.layers_mut());
        (&self.backend, layers)
    }

    fn context(
        &mut self,
        pass: Pass,
    ) -> (PassContext<'_, B>, &mut ChunkWorkspace<B>, &mut PassScratch<B::Buffer>) {
        let shape = self.cut.shape_of(self.shape, pass.slice);
        let context = PassContext {
            backend: &self.backend,
            model: &self.model,
            shape,
            place: self.cut.place(pass.slice),
            angles: self.angles.get(pass.slice.index()),
            timer: Some(&self.timer),
        };
        let workspace = self.chunks.get_mut(&pass.chunk).expect("a pass of this stage's chunks");
        let scratch = self.scratch.get_mut(&shape.sequence_len);
        (context, workspace, scratch.expect("each length has scratch memory"))
    }
}

impl<B: Backend> StageExecutor for BackendExecutor<B> {
    fn fault(&self) -> Option<DeviceFault> {
        self.backend.fault()
    }

    fn chunk_indices(&self) -> Vec<ChunkIndex> {
        self.chunks.keys().copied().collect()
    }

    fn has_chunk(&self, chunk: ChunkIndex) -> bool {
        self.chunks.contains_key(&chunk)
    }

    fn frame_len(&self, slice: SliceIndex) -> usize {
        PassSizes::whole(&self.model, self.cut.shape_of(self.shape, slice)).residual()
    }

    fn slots_in_use(&self) -> usize {
        self.chunks.values().map(ChunkWorkspace::slots_in_use).sum()
    }

    fn flush(&mut self) {
        self.timer.end(&self.backend);
        self.backend.flush();
    }

    fn spans_recorded(&self) -> usize {
        self.timer.spans_recorded()
    }

    fn spans(&self) -> Vec<Span> {
        self.timer.take(&self.backend).spans
    }

    fn device_now_us(&self) -> Option<f64> {
        self.backend.record_timestamp().then(|| self.backend.read_timestamps().pop())?
    }

    fn drop_passes(&mut self) {
        self.result = None;
        self.offload_target.clear();
        self.chunks.values_mut().for_each(ChunkWorkspace::release_all);
    }

    fn freeze(&mut self, microbatch_count: u32) {
        let chunks: Vec<ChunkIndex> = self.chunks.keys().copied().collect();
        for chunk in chunks {
            let expected = self.microbatches_of(chunk, microbatch_count) * self.cut.slice_count();
            let workspace = self.chunks.get_mut(&chunk).expect("listed above");
            assert_eq!(workspace.accumulated, expected, "every microbatch is in the gradient");
            if workspace.chunk.has_head() {
                assert_eq!(workspace.head_accumulated, expected, "in the head's as well");
            }
            (workspace.accumulated, workspace.head_accumulated) = (0, 0);
        }
    }

    fn inject(&mut self, injection: &Injection) {
        let (backend, layers) = self.update_layers();
        layers.for_each(|layer| injection.apply(backend, layer));
    }

    fn square_sums(&mut self) -> Vec<TensorSum> {
        square_sums(&self.backend, self.layers())
    }

    /// Not where updates are timed: each part is timed alone.
    fn square_sums_ahead(&mut self, request: UpdateRequest) -> Vec<TensorSum> {
        if self.backend.packed_weights_optimizer().is_none() || self.timer.is_timed() {
            return self.square_sums();
        }
        let config = self.optimizer.clone();
        let update = self.update(&config, request);
        let Self { backend, chunks, placement, .. } = self;
        let optimizer = backend.packed_weights_optimizer().expect("checked above");
        let own = chunks.iter_mut().filter(|(chunk, _)| placement.replica_of(**chunk) == 0);
        let layers = own.flat_map(|(_, workspace)| workspace.chunk.layers_mut());
        square_sums_ahead::<B>(optimizer, layers, &update)
    }

    fn compute_candidate(&mut self, request: UpdateRequest) {
        // The report and the step may lie in two turns, of which the second is timed.
        let is_timed = self.timer.is_timed();
        self.with_update(request, LayerOp::Candidate, |backend, layer, update| {
            if is_timed {
                layer.forget_computed_ahead();
            }
            compute_candidate(backend, layer, update);
        });
    }

    fn drop_candidate(&mut self) {
        let (backend, layers) = self.update_layers();
        layers.for_each(|layer| drop_candidate(backend, layer));
    }

    fn commit(&mut self, request: UpdateRequest) {
        self.commit_then(request, AfterCommit::Nothing);
    }

    fn commit_to_attest(&mut self, request: UpdateRequest) {
        self.commit_then(request, AfterCommit::Attest);
    }

    fn skip(&mut self, step: Step) {
        let (_, layers) = self.update_layers();
        layers.for_each(|layer| skip(layer, step));
    }

    fn version(&self) -> Step {
        let mut versions = self.layers().chain(self.twin_layers()).map(LayerState::version);
        let first = versions.next().expect("a stage has layers");
        assert!(versions.all(|version| version == first), "layers of a stage go together");
        first
    }

    fn images(&self) -> Vec<LayerImage> {
        self.layers().map(|layer| layer.image(&self.backend)).collect()
    }

    fn pending_image(&mut self, layer: LayerId) -> Option<PendingImage> {
        let (backend, mut layers) = self.first_replica_layers();
        let found = layers.find(|found| found.spec.layer == layer);
        found.map(|layer| layer.pending_image(backend))
    }

    fn twin_images(&self) -> Vec<LayerImage> {
        self.twin_layers().map(|layer| layer.image(&self.backend)).collect()
    }

    fn attested(&self) -> Result<Vec<LayerFingerprint>, DeviceFault> {
        let layers = [|replica| replica == 0, |replica| replica > 0]
            .map(|is_it| self.layers_with_sums(is_it));
        let fingerprint = |(layer, sums): &(&LayerState<B>, Pending<[u64; 2]>)| {
            Ok((layer.spec.layer, layer.fingerprint_of(sums)?))
        };
        layers.iter().flatten().map(fingerprint).collect()
    }

    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)> {
        let (backend, layers) = self.first_replica_layers();
        layers.map(|layer| (layer.spec.layer, backend.begin_download(&mut layer.g))).collect()
    }

    fn gradient(&mut self, layer: LayerId) -> Option<PendingFloats> {
        let (backend, mut layers) = self.first_replica_layers();
        let found = layers.find(|found| found.spec.layer == layer);
        found.map(|layer| backend.begin_download(&mut layer.g))
    }

    /// F; yields the loss if the chunk has the head.
    fn forward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let batch = &self.part_of(batch, pass);
        let (backend, chunks) = (&self.backend, &mut self.chunks);
        let layers = chunks.get_mut(&pass.chunk).into_iter().flat_map(|it| it.chunk.layers_mut());
        layers.for_each(|layer| layer.undo_computed_ahead(backend));
        let (context, workspace, _) = self.context(pass);
        workspace.open(part(pass));
        let PassWorkingSet { chunk, stash, earlier, logits } =
            workspace.working(context.backend, part(pass));
        if let Some(input) = input {
            chunk.take_input(context.backend, input, stash)?;
        }
        let loss = chunk.forward_slice(&context, batch, &earlier, stash, logits);
        if loss.is_none() {
            let output = chunk.send_output(context.backend, stash);
            self.result = Some((Flow::Forward, pass, output));
        }
        Ok(loss)
    }

    /// F whose stash is read by later slices alone.
    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let loss = self.forward(pass, batch, input)?;
        let slices = self.cut.slice_count();
        let (_, workspace, _) = self.context(pass);
        if workspace.chunk.has_head() {
            workspace.close_logits(part(pass));
        }
        // A step may claim slots for no more than the recomputed activations of one pass.
        workspace.release_recomputed(part(pass));
        if pass.slice.0 + 1 == slices {
            let parts = (0..slices).map(|slice| (pass.microbatch, SliceIndex(slice)));
            parts.for_each(|part| workspace.close(part));
        }
        Ok(loss)
    }

    fn backward_input(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault> {
        let batch = &self.part_of(batch, pass);
        let loss = (&**batch, self.loss_scale);
        let (context, workspace, scratch) = self.context(pass);
        let PassWorkingSet { chunk, stash, mut earlier, logits } =
            workspace.working(context.backend, part(pass));
        if let Some(gradient) = gradient {
            chunk.take_gradient(context.backend, gradient, stash)?;
        }
        chunk.backward_input_slice(&context, loss, &mut earlier, stash, logits, scratch);
        if !chunk.has_embedding() {
            let output = chunk.send_gradient(context.backend, stash);
            self.result = Some((Flow::Backward, pass, output));
        }
        Ok(())
    }

    /// W of the head's matrix, after which the logits are not read any more.
    fn head_weights(&mut self, pass: Pass) {
        let place = self.place_in_order(pass);
        let (context, workspace, _) = self.context(pass);
        let accumulate = next_in_order(place, &mut workspace.head_accumulated);
        let PassWorkingSet { chunk, stash, logits, .. } =
            workspace.working(context.backend, part(pass));
        let logits = logits.expect("the head's chunk has logits until here");
        chunk.head_weights(&context, stash, logits, accumulate);
        workspace.close_logits(part(pass));
    }

    /// W of what is left, after which the stash is not read any more.
    fn backward_weights(&mut self, pass: Pass, batch: &TokenBatch) {
        let place = self.place_in_order(pass);
        let batch = &self.part_of(batch, pass);
        let (_, workspace, _) = self.context(pass);
        if workspace.chunk.has_head() && workspace.head_accumulated == place {
            self.head_weights(pass);
        }
        let (context, workspace, _) = self.context(pass);
        let accumulate = next_in_order(place, &mut workspace.accumulated);
        let PassWorkingSet { chunk, stash, .. } = workspace.working(context.backend, part(pass));
        chunk.backward_weights(&context, batch, stash, accumulate);
        workspace.close(part(pass));
    }

    fn drop_activations(&mut self, pass: Pass) {
        self.context(pass).1.drop_recomputed(part(pass));
    }

    fn recompute(&mut self, pass: Pass, batch: &TokenBatch) {
        let (batch, recompute) = (&self.part_of(batch, pass), self.recompute);
        let (context, workspace, _) = self.context(pass);
        workspace.reopen(part(pass));
        let PassWorkingSet { chunk, stash, earlier, logits } =
            workspace.working(context.backend, part(pass));
        chunk.recompute(&context, batch, recompute, &earlier, stash, logits);
    }

    fn offload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let of = (pass, self.cut.len_of(pass.slice));
        let workspace = self.chunks.get_mut(&pass.chunk).expect("a pass of this stage's chunks");
        self.offload_target.offload(&self.backend, workspace, of)
    }

    fn reload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let of = (pass, self.cut.len_of(pass.slice));
        let workspace = self.chunks.get_mut(&pass.chunk).expect("a pass of this stage's chunks");
        self.offload_target.reload(&self.backend, workspace, of)
    }

    fn partial_len(&self, chunk: ChunkIndex) -> usize {
        self.chunks[&chunk].chunk.layers().iter().map(|layer| layer.spec.len()).sum()
    }

    fn partial(&self, chunk: ChunkIndex) -> Vec<f32> {
        let layers = self.chunks[&chunk].chunk.layers().iter();
        layers.flat_map(|layer| self.gradient_of(layer)).collect()
    }

    fn reduce(&mut self, chunk: ChunkIndex, twin: &[f32]) {
        let is_first = self.placement.replica_of(chunk) == 0;
        let own = self.partial(chunk);
        assert_eq!(own.len(), twin.len(), "twins have the same layers");
        let (first, second) = if is_first { (&own[..], twin) } else { (twin, &own[..]) };
        let sum: Vec<f32> = first.iter().zip(second).map(|(a, b)| a + b).collect();
        let workspace = self.chunks.get_mut(&chunk).expect("a chunk of this stage");
        let mut start = 0;
        for layer in workspace.chunk.layers_mut() {
            let end = start + layer.spec.len();
            layer.settle_gradient(&self.backend);
            let to = BufferViewMut::new(&mut layer.g, 0..end - start);
            self.backend.upload(&sum[start..end], to);
            start = end;
        }
    }

    fn receive(&mut self, tensor: TensorHandle) -> TensorHandle {
        self.backend.begin_upload(tensor)
    }

    /// What the last F or B left.
    fn take_result(&mut self, flow: Flow, pass: Pass) -> TensorHandle {
        match self.result.take() {
            Some((of_flow, of_pass, tensor)) if (of_flow, of_pass) == (flow, pass) => tensor,
            other => panic!(
                "the result of {pass:?} is passed on at once, found {:?}",
                other.map(|r| r.1)
            ),
        }
    }
}

impl<B: Backend> BackendExecutor<B> {
    /// Layers with the sums of their states, in the order of layers. The sums are not waited for.
    fn layers_with_sums(&self, is_it: fn(u32) -> bool) -> Vec<(&LayerState<B>, Pending<[u64; 2]>)> {
        let layers = self.layers_of_replica(is_it);
        let with_sums = layers.map(|layer| (layer, layer.state_sums(&self.backend)));
        let mut with_sums: Vec<_> = with_sums.collect();
        with_sums.sort_unstable_by_key(|(layer, _)| layer.spec.layer);
        with_sums
    }

    fn gradient_of(&self, layer: &LayerState<B>) -> Vec<f32> {
        self.backend.download(BufferView::new(&layer.g, 0..layer.spec.len()))
    }

    /// How many weight gradients of its chunk are added before this one.
    fn place_in_order(&self, pass: Pass) -> u32 {
        let turn = self.placement.turn_of_microbatch(pass.microbatch);
        let slice_count = self.cut.slice_count();
        turn * slice_count + slice_count - 1 - pass.slice.0
    }

    /// The tokens that a pass is over.
    fn part_of<'b>(&self, batch: &'b TokenBatch, pass: Pass) -> Cow<'b, TokenBatch> {
        match self.cut.slice_count() {
            1 => Cow::Borrowed(batch),
            _ => Cow::Owned(batch.slice(self.shape.sequence_len, &self.cut.tokens(pass.slice))),
        }
    }
}

/// What a pass has a slot for.
const fn part(pass: Pass) -> MicrobatchSlice {
    (pass.microbatch, pass.slice)
}
