//! The memory of a stage on its device: claimed by the plan before anything is allocated, and
//! asserted when it is.

use std::collections::BTreeSet;
use std::ops::Range;

use zbelastic_kernels::{
    AllocateError, Backend, ByteCounts, DeviceSizes, MemoryClaim, ScratchOperation,
};
use zbelastic_schedule::{
    LivePasses, MemoryOp, Op, Pass, Program, Reduction, TreeExchange, live_passes_on,
};
use zbelastic_types::{Bytes, ChunkIndex, StageIndex};

use super::device_claim::{DeviceClaim, device_claim, muon_updates, squares, state_sums};
use super::{Plan, SliceCut};
use crate::model::{
    BufferSize, Family, LayerRange, LayerSpec, ModelConfig, PassSizes, PassStash, Recompute,
    count_bytes, layer_bytes, model_layers, offload_sizes, replayed_bytes, sharded_bytes,
};
use crate::optimizer::OptimizerKind;

/// Memory that a stage claims, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMemory {
    /// Weights, candidate, moments, gradient, sums of lanes that wait to be joined with it, and the
    /// packed weights that products read.
    pub state: Bytes,
    /// Activations that passes keep between F and W, for as many microbatches as are alive at once.
    pub stash: Bytes,
    /// Buffers that live within one pass.
    pub scratch: Bytes,
    /// Boundary tensors in flight to this stage, and the gradients of replicas and of tied ends.
    pub messages: Bytes,
    /// Copies of other stages' layers, the largest that it may have to keep; on a processor their
    /// gradients on their way here too.
    pub copies: Bytes,
    /// Weights that an exchange with other islands holds, where the host's memory is the limit: in the last
    /// round of all layers.
    pub islands: Bytes,
    /// Memory that a device needs beside these: scratch of single operations, the workspace of
    /// products, and the rest of the pages that it hands out.
    pub fixed: Bytes,
    /// The most that is offloaded to the second store at once. It is not part of any sum here.
    pub offload: Bytes,
}

impl StageMemory {
    /// The bytes that lie on the device in buffers.
    #[must_use]
    pub fn device(&self) -> Bytes {
        self.state + self.stash + self.scratch
    }

    /// The claim of a stage that needs this much, and `beside` buffers.
    #[must_use]
    pub fn claim<'a>(&self, beside: &'a DeviceClaim) -> MemoryClaim<'a> {
        let DeviceClaim { operations, staging_buffers } = beside;
        MemoryClaim { buffers: self.device().0, operations, staging: staging_buffers }
    }

    /// The parts of the claim on a device that used `opening` bytes before, with their names for
    /// users.
    #[must_use]
    pub fn parts(&self, opening: u64) -> Vec<(&'static str, u64)> {
        vec![
            ("weights, packed weights, gradients and moments", self.state.0),
            ("what passes keep", self.stash.0),
            ("gradients within a pass", self.scratch.0),
            ("boundary tensors", self.messages.0),
            ("scratch of operations", self.fixed.0.saturating_sub(opening)),
        ]
    }

    /// The memory that does not depend on the activations of passes.
    pub(super) fn beside_passes(&self) -> Bytes {
        Bytes(self.total().0 - (self.stash + self.messages).0)
    }

    /// Every part but the offloaded activations.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.device() + self.messages + self.copies + self.islands + self.fixed
    }
}

/// What a stage holds beside its own layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBeside {
    /// Other stages whose layers it keeps copies of.
    pub copies: u32,
    /// Whether it exchanges weights with other islands.
    pub is_island: bool,
}

impl HeldBeside {
    /// Copies of so many other stages, in a run that is alone.
    #[must_use]
    pub const fn copies(copies: u32) -> Self {
        Self { copies, is_island: false }
    }
}

/// The memory of each stage under `plan`, with what it holds beside its layers.
#[must_use]
pub fn plan_memory<B: ByteCounts>(
    backend: &B,
    model: &ModelConfig,
    optimizer: OptimizerKind,
    plan: &Plan,
    beside: HeldBeside,
) -> Vec<StageMemory> {
    let stages = || (0..plan.program.placement.stage_count()).map(StageIndex);
    let specs = model_layers(model);
    let is_exchanged = match backend.sizes() {
        DeviceSizes::Processors(_) => beside.is_island,
        DeviceSizes::Cuda(_) => false,
    };
    let of_layers = |layers: Range<u32>| {
        let of_layer = |layer: u32| {
            let spec = &specs[layer as usize];
            let copy = copy_bytes(backend, spec, optimizer) + arriving_bytes(backend, spec);
            let mixed = if is_exchanged { spec.trained_floats() } else { 0 };
            copy + Bytes::of_f32(mixed)
        };
        layers.map(of_layer).sum()
    };
    let of_stage = |stage| {
        // Copies are kept of what a stage speaks for.
        let own = plan.chunks_of(stage).map(|(chunk, _)| plan.owned_layers(chunk));
        own.map(of_layers).sum()
    };
    let sizes: Vec<Bytes> = stages().map(of_stage).collect();
    let with_copies = |stage: StageIndex| {
        let mut others = sizes.clone();
        others.remove(stage.index());
        others.sort_unstable();
        let copies = others.into_iter().rev().take(beside.copies as usize).sum();
        let islands = match is_exchanged {
            true => islands_bytes(&specs, plan, (stage, beside.copies)),
            false => Bytes(0),
        };
        let own = memory_of_layers(backend, (model, &specs), optimizer, plan, stage);
        StageMemory { copies, islands, ..own }
    };
    stages().map(with_copies).collect()
}

/// Floats that the owner of a layer holds for each trained parameter at most: what is sent, the sum of what
/// came, and what is mixed in. Others hold what is mixed in.
const EXCHANGED_FLOATS: usize = 3;
/// The same in an outer step: the state before it with its momentum, the state behind it, the weights of
/// another island, and the outcome on its way. Layers come one after the other.
const OUTER_STEP_FLOATS: usize = 6;
/// The same of a layer whose copy is kept: the outer state as it is read, and the outcome on its way.
const OUTER_READ_FLOATS: usize = 3;

/// What an exchange with other islands holds at most, which is in the last round: of all layers. What is mixed
/// into copies is counted with them.
fn islands_bytes(specs: &[LayerSpec], plan: &Plan, (stage, copies): (StageIndex, u32)) -> Bytes {
    let (mut held, mut largest) = (0, 0);
    for (chunk, layers) in plan.chunks_of(stage) {
        let owned = plan.owned_layers(chunk);
        for layer in layers.ids() {
            let floats = specs[layer as usize].trained_floats();
            held += if owned.contains(&layer) { EXCHANGED_FLOATS * floats } else { floats };
            largest = largest.max(floats);
        }
    }
    let of_any = specs.iter().map(LayerSpec::trained_floats).max().unwrap_or(0);
    let read = if copies > 0 { OUTER_READ_FLOATS * of_any } else { 0 };
    Bytes::of_f32(held + OUTER_STEP_FLOATS * largest + read)
}

/// The memory of one pass over a chunk while it is alive.
pub(super) struct PassMemory {
    /// From F to W.
    pub(super) stash: Bytes,
    /// From F to DROP and from R to W.
    pub(super) recomputed: Bytes,
    /// From F to WE.
    pub(super) logits: Bytes,
    /// One boundary tensor a microbatch may wait at either end.
    pub(super) message: Bytes,
}

fn pass_memory<B: ByteCounts>(
    backend: &B,
    sizes: &PassSizes<'_>,
    layers: LayerRange,
    recompute: Recompute,
) -> PassMemory {
    let has_head = layers.ids().end == sizes.model.layer_count();
    let logits = || count_bytes(backend, |mut make| sizes.logits(&mut make));
    PassMemory {
        stash: count_bytes(backend, |mut make| {
            PassStash::build_kept(sizes, layers, recompute, &mut make)
        }),
        recomputed: if recompute.is_any() {
            count_bytes(backend, |mut make| {
                PassStash::build_recomputed(sizes, layers, recompute, &mut make)
            })
        } else {
            Bytes(0)
        },
        logits: if has_head { logits() } else { Bytes(0) },
        message: Bytes::of_f32(sizes.residual()),
    }
}

/// The memory of one microbatch's passes over a chunk of a plan: one, or those of its slices.
pub(super) fn microbatch_memory<B: ByteCounts>(
    backend: &B,
    model: &ModelConfig,
    plan: &Plan,
    layers: LayerRange,
) -> PassMemory {
    let cut = plan.cut(model);
    let of_slice = |slice| {
        let sizes = cut.sizes(model, plan.batch.microbatch, cut.len_of(slice));
        pass_memory(backend, &sizes, layers, plan.recompute)
    };
    let sum = |a: PassMemory, b: PassMemory| PassMemory {
        stash: a.stash + b.stash,
        recomputed: a.recomputed + b.recomputed,
        logits: a.logits + b.logits,
        message: a.message + b.message,
    };
    cut.slices().map(of_slice).reduce(sum).expect("a cut has a slice")
}

/// The bytes of a layer's part of a pass that are offloaded, if nothing of it was dropped.
pub(super) fn offload_bytes(sizes: &PassSizes<'_>, layer: u32) -> Bytes {
    let has_head = layer + 1 == sizes.model.layer_count();
    let layers = LayerRange::new(layer, layer + 1);
    let sizes = offload_sizes(sizes, layers, Recompute::None, has_head);
    Bytes::of_f32(sizes.iter().map(|size| size.count()).sum())
}

/// The most bytes of a pass that are offloaded: less than all of it if every pass that is offloaded
/// was dropped before.
fn offload_sizes_max(
    program: &Program,
    sizes: &PassSizes<'_>,
    layers: LayerRange,
    recompute: Recompute,
) -> Vec<BufferSize> {
    let dropped: BTreeSet<Pass> =
        program.passes_with(MemoryOp::Drop).map(|(_, pass)| pass).collect();
    let are_dropped =
        program.passes_with(MemoryOp::Offload).all(|(_, pass)| dropped.contains(&pass));
    let dropped = if are_dropped { recompute } else { Recompute::None };
    let has_head = layers.ids().end == sizes.model.layer_count();
    offload_sizes(sizes, layers, dropped, has_head && !dropped.recomputes_logits())
}

/// The memory for passes of one length over a chunk that are offloaded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadClaim {
    /// Index of the chunk.
    pub chunk: ChunkIndex,
    /// Tokens of a sequence that a pass is over.
    pub slice_len: usize,
    /// Passes that are offloaded at once, at most.
    pub count: u32,
    /// Numbers that are offloaded with one pass, at most.
    pub pass_len: usize,
    /// The same in the types that the device keeps them in.
    pub pass_bytes: Bytes,
}

impl OffloadClaim {
    /// Bytes of all passes that are offloaded at once.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.pass_bytes * u64::from(self.count)
    }
}

/// The most that `stage` has offloaded at once under `plan`.
#[must_use]
pub fn offload_claims<B: ByteCounts>(
    backend: &B,
    model: &ModelConfig,
    plan: &Plan,
    stage: StageIndex,
) -> Vec<OffloadClaim> {
    let cut = plan.cut(model);
    let mut claims = Vec::new();
    for slice_len in cut.lens() {
        let sizes = cut.sizes(model, plan.batch.microbatch, slice_len);
        let live = live_passes_on(&plan.program, stage, |slice| cut.len_of(slice) == slice_len);
        let offloading =
            plan.chunks_of(stage).filter(|(chunk, _)| live[chunk.index()].offloaded > 0);
        claims.extend(offloading.map(|(chunk, layers)| {
            let pass_sizes = offload_sizes_max(&plan.program, &sizes, layers, plan.recompute);
            let bytes =
                pass_sizes.iter().map(|size| size.offloaded_bytes(backend.row_bytes())).sum();
            OffloadClaim {
                chunk,
                slice_len,
                count: live[chunk.index()].offloaded,
                pass_len: pass_sizes.iter().map(|size| size.count()).sum(),
                pass_bytes: Bytes(bytes),
            }
        }));
    }
    claims
}

/// The memory of `stage` under `plan`, without copies of others.
///
/// Slots, scratch memory and waiting frames have the length of a slice: where lengths differ, each
/// has its own, for as many passes as are alive of that length.
#[must_use]
pub fn stage_memory<B: ByteCounts>(
    backend: &B,
    model: &ModelConfig,
    optimizer: OptimizerKind,
    plan: &Plan,
    stage: StageIndex,
) -> StageMemory {
    memory_of_layers(backend, (model, &model_layers(model)), optimizer, plan, stage)
}

/// The same, of a model with these layers.
fn memory_of_layers<B: ByteCounts>(
    backend: &B,
    (model, specs): (&ModelConfig, &[LayerSpec]),
    optimizer: OptimizerKind,
    plan: &Plan,
    stage: StageIndex,
) -> StageMemory {
    let mut state = Bytes(0);
    let mut messages = Bytes(0);
    for (chunk, layers) in plan.chunks_of(stage) {
        for layer in layers.ids() {
            let spec = &specs[layer as usize];
            let gradient = backend.buffer_bytes(spec.gradient_len());
            let sums = plan.lane_order().levels() as u64 * gradient;
            // Chunks of the same layers have one state, and a gradient each.
            let is_first = plan.placement().table().first_on_stage(chunk) == chunk;
            let own = match plan.shard_part(stage, chunk, layer) {
                _ if !is_first => Bytes(gradient),
                Some(part) => sharded_bytes(backend, model, spec, part),
                None => layer_bytes(backend, model, spec),
            };
            state += own + Bytes(sums);
        }
        // In each exchange what is on its way to the sibling, and what came of it: it may be there before
        // the exchange before it is over.
        let shards = plan.shard_lens_of(chunk, specs);
        let placement = plan.placement();
        for exchange in TreeExchange::all_of(placement) {
            let sibling = placement.sibling_at(chunk, exchange.level());
            let moved = |chunk| exchange.merged_floats(placement, chunk, &shards).len();
            messages += Bytes::of_f32(moved(chunk) + sibling.map_or(0, moved));
        }
        if plan.program.ops(stage).contains(&Op::Reduce(Reduction::Tie, chunk)) {
            let matrix = model.head_matrix();
            // One part on its way out, the other end's that came, and the own one that is added to
            // it. Where both ends are here there are two, and none is on its way.
            messages += Bytes::of_f32(3 * matrix.outputs * matrix.inputs);
        }
    }
    let cut = plan.cut(model);
    let mut claim = StageMemory {
        state,
        stash: Bytes(0),
        scratch: angle_bytes(backend, model, &cut),
        messages,
        copies: Bytes(0),
        islands: Bytes(0),
        fixed: Bytes(0),
        offload: offload_claims(backend, model, plan, stage).iter().map(OffloadClaim::bytes).sum(),
    };
    for len in cut.lens() {
        let sizes = cut.sizes(model, plan.batch.microbatch, len);
        let live = live_passes_on(&plan.program, stage, |slice| cut.len_of(slice) == len);
        claim.scratch += count_bytes(backend, |mut make| sizes.scratch(&mut make));
        for (chunk, layers) in plan.chunks_of(stage) {
            claim.add_passes(backend, plan, (&sizes, layers), live[chunk.index()]);
        }
    }
    match backend.sizes() {
        DeviceSizes::Processors(_) => claim,
        DeviceSizes::Cuda(_) => {
            claim.on_device(backend, &device_claim(model, optimizer, plan, stage))
        }
    }
}

impl StageMemory {
    /// The same on a device, where messages lie in staging buffers, and gradients of replicas on
    /// the host.
    pub(crate) fn on_device<B: ByteCounts>(self, backend: &B, beside: &DeviceClaim) -> Self {
        let messages = Bytes(backend.staging_bytes(&beside.staging_buffers));
        let taken = backend.claim_bytes(&self.claim(beside)) + backend.opening_bytes();
        Self { messages, fixed: Bytes(taken - (self.device() + messages).0), ..self }
    }
}

/// The bytes of the copy of a layer.
fn copy_bytes<B: ByteCounts>(backend: &B, spec: &LayerSpec, optimizer: OptimizerKind) -> Bytes {
    let operations = copy_operations(spec, optimizer);
    Bytes(backend.claim_bytes(&copy_claim(backend, spec, &operations)))
}

/// The bytes of a copied layer's gradient until it lies in the copy: all of it may arrive during
/// one pass. It waits in the host's memory.
fn arriving_bytes<B: ByteCounts>(backend: &B, spec: &LayerSpec) -> Bytes {
    match backend.sizes() {
        DeviceSizes::Processors(_) => Bytes::of_f32(spec.gradient_len()),
        DeviceSizes::Cuda(_) => Bytes(0),
    }
}

/// Claims the memory that is counted for a stage, `beside` its buffers as well.
///
/// # Errors
/// If the device's memory does not hold it.
pub(crate) fn claim_stage<B: Backend>(
    backend: &B,
    counted: StageMemory,
    beside: &DeviceClaim,
) -> Result<StageMemory, AllocateError> {
    match backend.claim(&counted.claim(beside)) {
        Ok(()) => Ok(counted),
        Err(error) => Err(error.of_parts(counted.parts(backend.opening_bytes()))),
    }
}

/// Claims the memory that is counted for the copy of a layer.
///
/// # Errors
/// If the device's memory does not hold it.
pub(crate) fn claim_copy<B: Backend>(
    backend: &B,
    spec: &LayerSpec,
    optimizer: OptimizerKind,
) -> Result<(), AllocateError> {
    let operations = copy_operations(spec, optimizer);
    let claim = copy_claim(backend, spec, &operations);
    let parts = || vec![("a copy of another stage's layer", claim.buffers)];
    backend.claim(&claim).map_err(|error| error.of_parts(parts()))
}

/// The operations that run on a copy: sums of squares, the fingerprint of its state, and Muon's updates.
fn copy_operations(spec: &LayerSpec, optimizer: OptimizerKind) -> Vec<ScratchOperation> {
    [squares([spec]), state_sums(spec)].into_iter().chain(muon_updates(spec, optimizer)).collect()
}

/// The optimizer is replayed there.
fn copy_claim<'a, B: ByteCounts>(
    backend: &B,
    spec: &LayerSpec,
    operations: &'a [ScratchOperation],
) -> MemoryClaim<'a> {
    MemoryClaim { buffers: replayed_bytes(backend, spec).0, operations, staging: &[] }
}

/// Rotary angles of all positions, slice by slice.
fn angle_bytes<B: ByteCounts>(backend: &B, model: &ModelConfig, cut: &SliceCut) -> Bytes {
    match model.family {
        Family::Gpt2 => Bytes(0),
        Family::Llama => {
            let floats = |slice| cut.len_of(slice) * model.head_width as usize;
            Bytes(cut.slices().map(|slice| backend.buffer_bytes(floats(slice))).sum())
        }
    }
}

impl StageMemory {
    /// Adds the memory of passes of one length over a chunk.
    fn add_passes<B: ByteCounts>(
        &mut self,
        backend: &B,
        plan: &Plan,
        (sizes, layers): (&PassSizes<'_>, LayerRange),
        live: LivePasses,
    ) {
        let recompute = plan.recompute;
        let LivePasses { slots, early_slots, recomputed_slots, recomputed_early_slots, offloaded } =
            live;
        let early_slots =
            if recompute.recomputes_logits() { recomputed_early_slots } else { early_slots };
        let pass = pass_memory(backend, sizes, layers, recompute);
        self.stash += pass.stash * u64::from(slots)
            + pass.recomputed * u64::from(recomputed_slots)
            + pass.logits * u64::from(early_slots);
        // A pass that is offloaded has read its activation, and its gradient may come before it
        // does.
        self.messages += pass.message * u64::from(slots + offloaded);
    }
}
