//! The memory that a stage needs of a device beside buffers: scratch of the operations of its
//! passes and updates, and staging buffers for boundary tensors. Processors allocate both as they
//! come.

use zbelastic_kernels::{RowsShape, ScratchOperation, StagingReservation};
use zbelastic_schedule::{LivePasses, live_passes_of};
use zbelastic_types::{ChunkIndex, StageIndex};

use super::Plan;
use crate::model::{
    Family, LayerKind, LayerParts, LayerRange, LayerSpec, ModelConfig, PassSizes, model_layers,
};
use crate::optimizer::OptimizerKind;

/// The memory that a stage needs of its device beside buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceClaim {
    /// Operations that use scratch, each once.
    pub operations: Vec<ScratchOperation>,
    /// Staging buffers for boundary tensors, by their length.
    pub staging_buffers: Vec<StagingReservation>,
}

/// The memory that `stage` needs under `plan` beside buffers.
#[must_use]
pub fn device_claim(
    model: &ModelConfig,
    optimizer: OptimizerKind,
    plan: &Plan,
    stage: StageIndex,
) -> DeviceClaim {
    let specs = model_layers(model);
    let layers = plan.states_at(stage).flat_map(|layers| layers.ids());
    let layers: Vec<&LayerSpec> = layers.map(|layer| &specs[layer as usize]).collect();
    let mut operations = vec![ScratchOperation::Timestamps, squares(layers.iter().copied())];
    operations.extend(layers.iter().map(|spec| state_sums(spec)));
    add_once(&mut operations, layers.iter().flat_map(|spec| muon_updates(spec, optimizer)));
    let cut = plan.cut(model);
    let mut staging_buffers = Vec::new();
    for len in cut.lens() {
        let sizes = cut.sizes(model, plan.batch.microbatch, len);
        add_operations(&mut operations, &sizes, &layers);
        let live = live_passes_of(&plan.program, |slice| cut.len_of(slice) == len);
        let unread = unread_of(model, plan, stage, &live);
        staging_buffers.extend(StagingReservation::for_unread(sizes.residual(), unread));
    }
    DeviceClaim { operations, staging_buffers }
}

/// Adds the operations of these layers' passes of one length, each once.
fn add_operations(
    operations: &mut Vec<ScratchOperation>,
    sizes: &PassSizes<'_>,
    layers: &[&LayerSpec],
) {
    add_once(operations, layers.iter().flat_map(|spec| layer_operations(sizes, spec)));
}

fn add_once(operations: &mut Vec<ScratchOperation>, more: impl Iterator<Item = ScratchOperation>) {
    for operation in more {
        if !operations.contains(&operation) {
            operations.push(operation);
        }
    }
}

/// The memory beside buffers of a stage that trains these layers without steps, with so many
/// boundary tensors that are not read yet.
#[must_use]
pub fn asynchronous_claim(
    sizes: &PassSizes<'_>,
    layers: &[&LayerSpec],
    unread: usize,
) -> DeviceClaim {
    let mut operations = vec![ScratchOperation::Timestamps, squares(layers.iter().copied())];
    add_operations(&mut operations, sizes, layers);
    let staging_buffers =
        StagingReservation::for_unread(sizes.residual(), unread).into_iter().collect();
    DeviceClaim { operations, staging_buffers }
}

/// Sums of squares of all gradients of these layers.
pub(super) fn squares<'a>(layers: impl IntoIterator<Item = &'a LayerSpec>) -> ScratchOperation {
    let tensors = layers.into_iter().flat_map(|spec| spec.tensors.iter());
    ScratchOperation::squares(tensors.map(|tensor| tensor.range.len()))
}

/// The fingerprint of a layer's state.
pub(super) fn state_sums(spec: &LayerSpec) -> ScratchOperation {
    ScratchOperation::state_sums(spec.tensors.iter().map(|tensor| tensor.range.len()))
}

/// Muon's updates of a layer's matrices.
pub(super) fn muon_updates(
    spec: &LayerSpec,
    optimizer: OptimizerKind,
) -> impl Iterator<Item = ScratchOperation> {
    let matrices = spec.trained_tensors();
    let matrices = matrices.filter(move |it| optimizer.muon_momentum(spec, it).is_some());
    matrices.map(|tensor| ScratchOperation::Muon { shape: tensor.matrix_shape() })
}

/// The operations of a layer's passes of one length.
fn layer_operations(sizes: &PassSizes<'_>, spec: &LayerSpec) -> Vec<ScratchOperation> {
    let model = sizes.model;
    let shape = sizes.shape;
    let rows = |width| RowsShape { count: shape.rows(), width };
    let parts = LayerParts::new(model, spec);
    let biased = parts.matrices().into_iter().filter(|linear| linear.bias.is_some());
    let mut operations: Vec<ScratchOperation> =
        biased.map(|linear| ScratchOperation::Bias { rows: rows(linear.shape.outputs) }).collect();
    let norm = ScratchOperation::Norm { norm: model.norm(), rows: rows(model.width as usize) };
    operations.extend(match spec.kind {
        LayerKind::Embed => vec![ScratchOperation::Embed { rows: shape.rows() }],
        LayerKind::Attention { .. } => {
            let shape = model.attention_shape(shape.sequences, shape.sequence_len);
            let qk_norm = model.features.qk_norm.then(|| ScratchOperation::Norm {
                norm: model.norm(),
                rows: rows(2 * shape.head_width),
            });
            [norm, ScratchOperation::Attention(shape)].into_iter().chain(qk_norm).collect()
        }
        LayerKind::Mlp { .. } => match model.family {
            Family::Gpt2 => {
                vec![norm, ScratchOperation::Gelu { rows: rows(model.mlp_width as usize) }]
            }
            Family::Llama => vec![norm],
        },
        LayerKind::Head => vec![norm, ScratchOperation::Head { rows: shape.rows() }],
    });
    operations
}

/// Boundary tensors that may be on their way from a stage, or to it, at once. An activation that is
/// not read yet is of a pass that is alive where it was made; a gradient is of one that is alive
/// where it goes.
fn unread_of(model: &ModelConfig, plan: &Plan, stage: StageIndex, live: &[LivePasses]) -> usize {
    let unread = |chunk: ChunkIndex| {
        let live = live[chunk.index()];
        (live.slots + live.offloaded) as usize
    };
    let of_chunk = |(chunk, layers): (ChunkIndex, LayerRange)| {
        let before = (layers.ids().start > 0).then(|| unread(ChunkIndex(chunk.0 - 1)));
        let after = (layers.ids().end < model.layer_count()).then(|| unread(chunk));
        before.unwrap_or(0) + after.unwrap_or(0)
    };
    plan.chunks_of(stage).map(of_chunk).sum()
}
