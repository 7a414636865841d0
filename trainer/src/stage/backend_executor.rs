//! A stage's device with everything on it: the executor of a stage.

mod gradients;
mod passes;
mod state;
mod update;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use zbelastic_kernels::{AllocateError, Backend, DeviceFault, Pending, TensorHandle};
use zbelastic_schedule::{Flow, Pass, Placement, PlacementShards, live_passes_on};
use zbelastic_types::{Bytes, ChunkIndex, StageIndex};

use super::chunk_workspace::{ChunkWorkspace, StageLayers};
use super::events::StageSetup;
use super::executor::{OperationClock, StageExecutor};
use super::lane_sums::LaneSums;
use super::offload_target::OffloadTarget;
use super::pass_pool::PassPool;
use super::stash_store::StashStore;
use crate::layer_image::LayerImage;
use crate::model::{
    BufferSize, Chunk, LayerState, LayerTimer, MicrobatchShape, ModelConfig, PassContext,
    PassScratch, Recompute, Span, StageTimings, slice_angles,
};
use crate::optimizer::OptimizerConfig;
use crate::plan::{
    LaneOrder, OffloadClaim, SliceCut, claim_stage, device_claim, offload_claims, stage_memory,
};

/// A stage's device with everything on it.
pub struct BackendExecutor<B: Backend> {
    backend: B,
    model: ModelConfig,
    /// Shape of a whole microbatch, before it is cut into slices.
    shape: MicrobatchShape,
    placement: Placement,
    cut: SliceCut,
    lane_order: LaneOrder,
    chunks: BTreeMap<ChunkIndex, ChunkWorkspace<B>>,
    /// By the length of slices.
    scratch: BTreeMap<usize, PassScratch<B::Buffer>>,
    /// By slice, if the family has them.
    angles: Vec<B::Buffer>,
    /// The result of the last F or B, until a transfer sends it.
    result: Option<(Flow, Pass, TensorHandle)>,
    recompute: Recompute,
    offload_target: OffloadTarget<B>,
    optimizer: OptimizerConfig,
    step_count: u64,
    timer: LayerTimer,
}

impl<B: Backend> BackendExecutor<B> {
    /// The executor of a stage at the beginning of a run.
    ///
    /// # Errors
    /// If the device's memory does not hold the plan's claim.
    pub fn new(setup: &StageSetup, stage: StageIndex, backend: B) -> Result<Self, AllocateError> {
        let layers = StageLayers::Initial(&setup.weights);
        Self::build(setup, stage, backend, layers, OffloadTarget::of_device)
    }

    /// The executor of a stage that goes on with layers that travelled here, in the order of
    /// chunks. Floats of them that lie where the device reads them are not copied until they are
    /// written.
    ///
    /// # Errors
    /// If the device's memory does not hold the plan's claim.
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
    /// If the device's memory does not hold the plan's claim.
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
        let optimizer = setup.optimizer.kind;
        let counted = stage_memory(&backend, model, optimizer, plan, stage);
        let beside = device_claim(model, optimizer, plan, stage);
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
            let live = live_passes_on(&plan.program, stage, |slice| cut.len_of(slice) == len);
            scratch.insert(len, sizes.scratch(&mut make)?);
            for (chunk, layers) in plan.chunks_of(stage) {
                let has_head = layers.ids().end == model.layer_count();
                let (of, live) = ((&sizes, layers, has_head), live[chunk.index()]);
                let pool = PassPool::new(of, live, plan.recompute, &mut make)?;
                pools.entry(chunk).or_default().insert(len, pool);
            }
        }
        let lane_order = plan.lane_order();
        let mut chunks = BTreeMap::new();
        for (chunk, range) in plan.chunks_of(stage) {
            let pools = pools.remove(&chunk).expect("made above");
            let first = plan.placement().table().first_on_stage(chunk);
            let first: Option<&ChunkWorkspace<B>> = chunks.get(&first);
            let workspace = if let Some(first) = first {
                layers.skip(range);
                let held = first.chunk.layers();
                let lanes = LaneSums::new(&backend, held, lane_order.levels())?;
                ChunkWorkspace::beside((&backend, held), lanes, pools, cut.clone())?
            } else {
                let part_of = |layer| plan.shard_part(stage, chunk, layer);
                let held = layers.build(&backend, model, range, part_of)?;
                let lanes = LaneSums::new(&backend, &held, lane_order.levels())?;
                ChunkWorkspace::new((Chunk::new(held), lanes), pools, cut.clone())
            };
            chunks.insert(chunk, workspace);
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
        let of_chunk = |chunk: &ChunkWorkspace<B>| chunk.state_bytes(&backend);
        let state: Bytes = chunks.values().map(of_chunk).sum();
        assert_eq!(state, claim.state, "the plan claims what layers take");
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
            lane_order,
            chunks,
            scratch,
            angles,
            result: None,
            recompute: plan.recompute,
            offload_target,
            optimizer,
            step_count,
            timer: LayerTimer::default(),
        })
    }

    /// The same with a clock for its layers.
    #[must_use]
    pub fn with_timer(self, timer: LayerTimer) -> Self {
        Self { timer, ..self }
    }

    /// The times measured since the last call, if there is a clock.
    #[must_use]
    pub fn times(&self) -> StageTimings {
        self.timer.take(&self.backend)
    }

    /// The device that the stage computes on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The layers that this stage speaks for, in model order within each chunk: those of first replicas, or of
    /// the first that update them.
    pub fn layers(&self) -> impl Iterator<Item = &LayerState<B>> {
        self.layers_in(OWNED)
    }

    /// The layers that this stage updates beside another, which speaks for them.
    pub fn twin_layers(&self) -> impl Iterator<Item = &LayerState<B>> {
        self.layers_in(TWINS)
    }

    /// The layers of each chunk that are in a part of them.
    fn layers_in(&self, part: LayerPart) -> impl Iterator<Item = &LayerState<B>> {
        self.chunks.keys().flat_map(move |chunk| {
            let layers = self.layers_at(*chunk);
            let within = part(self.placement.shards(), *chunk, 0..layers.len() as u32);
            &layers[within.start as usize..within.end as usize]
        })
    }

    /// The chunk in whose workspace the layers of `chunk` lie.
    fn holder_of(&self, chunk: ChunkIndex) -> ChunkIndex {
        let has_layers =
            |found: &ChunkIndex| self.chunks.get(found).is_some_and(ChunkWorkspace::has_layers);
        let holder = self.placement.group_of(chunk).find(has_layers);
        holder.expect("the layers of a chunk of this stage lie in one of its workspaces")
    }

    /// The layers of `chunk`, wherever they lie. Their gradient need not be this chunk's.
    fn layers_at(&self, chunk: ChunkIndex) -> &[LayerState<B>] {
        self.chunks[&self.holder_of(chunk)].chunk.layers()
    }

    /// The layers of `chunk`, each with the gradient of this chunk.
    fn gradients_of(
        &self,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = (&LayerState<B>, &B::Buffer)> {
        let workspace = &self.chunks[&chunk];
        let here = workspace.chunk.layers().iter().map(|layer| &layer.g);
        self.layers_at(chunk).iter().zip(here.chain(&workspace.gradients))
    }

    /// Puts the layers of `chunk` into its workspace, with its gradient.
    fn bring_layers(&mut self, chunk: ChunkIndex) {
        let holder = self.holder_of(chunk);
        if holder == chunk {
            return;
        }
        let layers = self.workspace(holder).lend();
        let gradients = self.workspace(chunk).receive(layers);
        self.workspace(holder).gradients = gradients;
    }

    fn workspace(&mut self, chunk: ChunkIndex) -> &mut ChunkWorkspace<B> {
        self.chunks.get_mut(&chunk).expect("a chunk of this stage")
    }

    /// Puts the layers that this stage speaks for into the workspaces of the chunks that it does for.
    fn bring_owned(&mut self) {
        for chunk in self.chunk_indices() {
            if self.placement.shards().speaks(chunk) {
                self.bring_layers(chunk);
            }
        }
    }

    /// The device with its timer and its settings, and the layers that this stage speaks for.
    fn owned_layers(&mut self) -> (&B, impl Iterator<Item = &mut LayerState<B>>) {
        self.bring_owned();
        let Self { backend, chunks, placement, .. } = self;
        let owned = chunks.iter_mut().flat_map(|(chunk, workspace)| {
            let layers = workspace.chunk.layers_mut();
            let within = placement.shards().owned(*chunk, 0..layers.len() as u32);
            &mut layers[within.start as usize..within.end as usize]
        });
        (backend, owned)
    }

    /// The device, and the layers to be updated, each once.
    fn update_layers(&mut self) -> (&B, impl Iterator<Item = &mut LayerState<B>>) {
        let layers = self.chunks.values_mut().flat_map(|workspace| workspace.chunk.layers_mut());
        (&self.backend, layers)
    }

    /// Layers with the sums of their states, in the order of layers. The sums are not waited for.
    fn layers_with_sums(&self, part: LayerPart) -> Vec<(&LayerState<B>, Pending<[u64; 2]>)> {
        let layers = self.layers_in(part);
        let with_sums = layers.map(|layer| (layer, layer.state_sums(&self.backend)));
        let mut with_sums: Vec<_> = with_sums.collect();
        with_sums.sort_unstable_by_key(|(layer, _)| layer.spec.layer);
        with_sums
    }

    fn context(
        &mut self,
        pass: Pass,
    ) -> (PassContext<'_, B>, &mut ChunkWorkspace<B>, &mut PassScratch<B::Buffer>) {
        self.bring_layers(pass.chunk);
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

/// Which layers of a chunk are meant, of all of them.
type LayerPart = fn(PlacementShards<'_>, ChunkIndex, Range<u32>) -> Range<u32>;

/// Those that the chunk's replica speaks for.
const OWNED: LayerPart = |shards, chunk, layers| shards.owned(chunk, layers);
/// Those that it updates beside the one that speaks for them.
const TWINS: LayerPart = |shards, chunk, layers| shards.twins(chunk, layers);

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

    fn flush(&mut self) {
        self.timer.end(&self.backend);
        self.backend.flush();
    }
}

impl<B: Backend> OperationClock for BackendExecutor<B> {
    fn spans_recorded(&self) -> usize {
        self.timer.spans_recorded()
    }

    fn spans(&self) -> Vec<Span> {
        self.timer.take(&self.backend).spans
    }

    fn device_now_us(&self) -> Option<f64> {
        self.backend.record_timestamp().then(|| self.backend.read_timestamps().pop())?
    }
}
