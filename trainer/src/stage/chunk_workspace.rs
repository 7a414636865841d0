//! A chunk with the memory its passes work in, acquired and released as the program runs. Slices
//! of one length share a pool of slots; where sequences are cut evenly or not at all there is one.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_kernels::{AllocateError, Backend, HostThreads};
use zbelastic_types::{Bytes, LayerRange, SliceIndex};

use super::initial_weights::InitialWeights;
use super::lane_sums::LaneSums;
pub(super) use super::pass_pool::MicrobatchSlice;
use super::pass_pool::PassPool;
use crate::layer_image::LayerImage;
use crate::model::{
    Chunk, LayerState, Logits, ModelConfig, PassStash, ShardPart, model_layers, offload_parts,
    settle,
};
use crate::plan::{LaneAddition, LaneOrder, SliceCut};

/// The part of a pass that was offloaded beside its stash.
#[derive(Clone, Copy, Debug)]
struct OffloadedPass {
    has_recomputed: bool,
    has_logits: bool,
}

/// The chunk, and the memory that a pass works in.
pub(super) struct PassWorkingSet<'a, B: Backend> {
    pub(super) chunk: &'a mut Chunk<B>,
    /// The sums that its gradient is joined with.
    pub(super) lanes: &'a mut LaneSums<B>,
    pub(super) stash: &'a mut PassStash<B::Buffer>,
    /// Those of the slices before, in order.
    pub(super) earlier: Vec<&'a mut PassStash<B::Buffer>>,
    pub(super) logits: Option<&'a mut Logits<B::Buffer>>,
}

/// A chunk with the memory its passes work in.
///
/// Of several chunks of the same layers on a stage each has a gradient and passes of its own, and all
/// have the same weights and moments: these lie in one of the workspaces, and go to another when it
/// works ([`Self::receive`]).
pub(super) struct ChunkWorkspace<B: Backend> {
    /// The layers, with this chunk's gradient; none while they lie in another workspace.
    pub(super) chunk: Chunk<B>,
    /// This chunk's gradient, by layer, while the layers lie in another workspace.
    pub(super) gradients: Vec<B::Buffer>,
    lanes: LaneSums<B>,
    /// By the length of slices.
    pools: BTreeMap<usize, PassPool<B>>,
    cut: SliceCut,
    offloaded: BTreeMap<MicrobatchSlice, OffloadedPass>,
    /// Whether a copy may still use memory of passes.
    has_offloaded: bool,
    /// Weight gradients added so far this step: the order rule.
    pub(super) accumulated: u32,
    pub(super) head_accumulated: u32,
}

impl<B: Backend> ChunkWorkspace<B> {
    /// A chunk with pools for each length of `cut`.
    pub(super) fn new(
        (chunk, lanes): (Chunk<B>, LaneSums<B>),
        pools: BTreeMap<usize, PassPool<B>>,
        cut: SliceCut,
    ) -> Self {
        Self {
            chunk,
            gradients: Vec::new(),
            lanes,
            pools,
            cut,
            offloaded: BTreeMap::new(),
            has_offloaded: false,
            accumulated: 0,
            head_accumulated: 0,
        }
    }

    /// The same for a chunk whose layers lie in another workspace, with a gradient of its own.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub(super) fn beside(
        (backend, layers): (&B, &[LayerState<B>]),
        lanes: LaneSums<B>,
        pools: BTreeMap<usize, PassPool<B>>,
        cut: SliceCut,
    ) -> Result<Self, AllocateError> {
        let gradient = |layer: &LayerState<B>| backend.allocate(layer.spec.gradient_len());
        let gradients = layers.iter().map(gradient).collect::<Result<_, _>>()?;
        Ok(Self { gradients, ..Self::new((Chunk::new(Vec::new()), lanes), pools, cut) })
    }

    /// Whether the layers lie here.
    pub(super) fn has_layers(&self) -> bool {
        !self.chunk.layers().is_empty()
    }

    /// The layers, for another workspace, which is to return the gradient that was with them.
    pub(super) fn lend(&mut self) -> Chunk<B> {
        std::mem::replace(&mut self.chunk, Chunk::new(Vec::new()))
    }

    /// The layers of another workspace lie here from now on, with this chunk's gradient; returns the
    /// other's.
    pub(super) fn receive(&mut self, mut layers: Chunk<B>) -> Vec<B::Buffer> {
        let own = std::mem::take(&mut self.gradients);
        assert_eq!(own.len(), layers.layers().len(), "chunks of the same layers");
        let exchange = |(layer, own): (&mut LayerState<B>, _)| std::mem::replace(&mut layer.g, own);
        let others = layers.layers_mut().iter_mut().zip(own).map(exchange).collect();
        self.chunk = layers;
        others
    }

    /// Bytes of the layers' state, of the gradient, and of the sums of lanes.
    pub(super) fn state_bytes(&self, backend: &B) -> Bytes {
        let layers = self.chunk.layers().iter().map(|layer| layer.allocated_bytes(backend));
        let gradients = self.gradients.iter().map(|g| backend.buffer_bytes(backend.len(g)));
        layers.sum::<Bytes>() + Bytes(gradients.sum()) + self.lanes.allocated_bytes(backend)
    }

    fn pool(&mut self, part: MicrobatchSlice) -> &mut PassPool<B> {
        self.pools.get_mut(&self.cut.len_of(part.1)).expect("each length has a pool")
    }

    /// Slots that passes hold on the device, and passes that are offloaded.
    pub(super) fn slots_in_use(&self) -> usize {
        self.pools.values().map(PassPool::slots_in_use).sum::<usize>() + self.offloaded.len()
    }

    /// The chunk, and the memory that a pass works in, once no copy uses it any more.
    pub(super) fn working(&mut self, backend: &B, part: MicrobatchSlice) -> PassWorkingSet<'_, B> {
        let has_offloaded = self.has_offloaded;
        let mut working = self.held(part);
        if has_offloaded {
            let PassWorkingSet { stash, earlier, logits, .. } = &mut working;
            earlier.iter_mut().for_each(|stash| settle(backend, stash, None));
            settle(backend, stash, logits.as_deref_mut());
        }
        working
    }

    fn held(&mut self, part: MicrobatchSlice) -> PassWorkingSet<'_, B> {
        let first = (part.0, SliceIndex(0));
        let mut held = Vec::new();
        let mut logits = None;
        for PassPool { stashes, logits: of_pool, .. } in self.pools.values_mut() {
            held.extend(stashes.held(first..=part));
            logits = logits.or_else(|| of_pool.find(part));
        }
        held.sort_unstable_by_key(|(holder, _)| *holder);
        assert_eq!(held.len(), part.1.index() + 1, "earlier slices have their slots");
        let mut earlier: Vec<&mut PassStash<B::Buffer>> =
            held.into_iter().map(|(_, stash)| stash).collect();
        let stash = earlier.pop().expect("a slot a slice");
        PassWorkingSet { chunk: &mut self.chunk, lanes: &mut self.lanes, stash, earlier, logits }
    }

    /// Acquires the slots of a pass, as F begins.
    pub(super) fn open(&mut self, part: MicrobatchSlice) {
        self.pool(part).open(part);
    }

    /// Releases the slots of a pass, once W is done.
    pub(super) fn close(&mut self, part: MicrobatchSlice) {
        self.pool(part).close(part);
    }

    /// The logits are not read any more: their slot is free.
    pub(super) fn close_logits(&mut self, part: MicrobatchSlice) {
        self.pool(part).logits.release(part);
    }

    /// Releases the slot of the parts that can be recomputed: they are not read any more.
    pub(super) fn release_recomputed(&mut self, part: MicrobatchSlice) {
        self.pool(part).release_recomputed(part);
    }

    /// Releases the slots of the parts that R recomputes, as DROP runs.
    pub(super) fn drop_recomputed(&mut self, part: MicrobatchSlice) {
        self.pool(part).drop_recomputed(part);
    }

    /// Acquires again the slots that DROP released, as R begins.
    pub(super) fn reopen(&mut self, part: MicrobatchSlice) {
        self.pool(part).reopen(part);
    }

    /// The buffers that are offloaded with a pass, or were, part by part.
    pub(super) fn offload_parts(
        &mut self,
        backend: &B,
        part: MicrobatchSlice,
    ) -> Vec<&mut B::Buffer> {
        let PassWorkingSet { stash, logits, .. } = self.held(part);
        offload_parts(backend, stash, logits)
    }

    /// Releases the slots of a pass that was offloaded.
    pub(super) fn release_offloaded(&mut self, part: MicrobatchSlice) {
        let pool = self.pool(part);
        let has_recomputed = pool.release_recomputed(part);
        let has_logits = pool.logits.find(part).is_some();
        if has_logits {
            pool.logits.release(part);
        }
        pool.stashes.release(part);
        self.offloaded.insert(part, OffloadedPass { has_recomputed, has_logits });
        self.has_offloaded = true;
    }

    /// Acquires slots again for the offloaded parts of a pass.
    pub(super) fn acquire_reloaded(&mut self, part: MicrobatchSlice) {
        let left = self.offloaded.remove(&part);
        let OffloadedPass { has_recomputed, has_logits } =
            left.expect("what is reloaded was offloaded");
        let pool = self.pool(part);
        pool.stashes.acquire(part);
        if has_recomputed {
            pool.acquire_recomputed(part);
        }
        if has_logits {
            pool.logits.acquire(part);
        }
    }

    /// The turn was dropped: all slots are free.
    pub(super) fn release_all(&mut self) {
        self.pools.values_mut().for_each(PassPool::release_all);
        self.offloaded.clear();
        (self.accumulated, self.head_accumulated) = (0, 0);
    }
}

/// The order rule: gradients add up in microbatch order, and slices of a microbatch from the last
/// to the first, whenever W runs. `place` counts them, those of one replica.
pub(super) fn next_in_order(order: &LaneOrder, place: u32, accumulated: &mut u32) -> LaneAddition {
    assert_eq!(place, *accumulated, "W adds microbatches in order, and slices in reverse");
    *accumulated += 1;
    order.at(place)
}

/// Where the layers of a stage come from.
#[derive(Clone, Copy)]
pub(super) enum StageLayers<'a> {
    /// Made anew, as they are before the first step.
    Initial(&'a InitialWeights),
    /// As they travelled here, in the order of chunks.
    Images(&'a [Arc<LayerImage>]),
}

impl StageLayers<'_> {
    /// Those of the next chunk, taken out of the layers that are left. `part_of` says what the stage does of a
    /// layer's updates, if the optimizer is sharded.
    ///
    /// # Panics
    /// If the layers that travelled here are not of this stage.
    pub(super) fn build<B: Backend>(
        &mut self,
        backend: &B,
        model: &ModelConfig,
        layers: LayerRange,
        part_of: impl Fn(u32) -> Option<ShardPart>,
    ) -> Result<Vec<LayerState<B>>, AllocateError> {
        let specs = model_layers(model);
        let state = |spec, image: &LayerImage, layer| match part_of(layer) {
            Some(part) => LayerState::of_sharded(backend, model, spec, image, part),
            None => LayerState::of_image(backend, model, spec, image),
        };
        let build = |layer: u32| {
            let spec = specs[layer as usize].clone();
            match self {
                Self::Initial(weights) => {
                    let image = weights.image_of(&HostThreads::one(), &spec);
                    state(spec, &image, layer)
                }
                Self::Images(images) => {
                    let image = images.split_off_first().expect("as many layers as the stage has");
                    state(spec, image, layer)
                }
            }
        };
        layers.ids().map(build).collect()
    }

    /// Leaves out the layers of the next chunk: another chunk of the stage has them.
    ///
    /// # Panics
    /// If fewer travelled here.
    pub(super) fn skip(&mut self, layers: LayerRange) {
        match self {
            Self::Initial(_) => {}
            Self::Images(images) => {
                let skipped = images.split_off(..layers.ids().len());
                skipped.expect("as many layers as the stage has");
            }
        }
    }

    /// All chunks have theirs.
    ///
    /// # Panics
    /// If more travelled here.
    pub(super) fn finish(self) {
        match self {
            Self::Initial(_) => {}
            Self::Images(left) => assert!(left.is_empty(), "as many layers as the stage has"),
        }
    }
}
