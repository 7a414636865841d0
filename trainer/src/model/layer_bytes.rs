//! The bytes of a layer's state on a device: claimed by plans, asserted where it is allocated.

use zbelastic_kernels::ByteCounts;
use zbelastic_types::Bytes;

use super::config::ModelConfig;
use super::parts::{LayerParts, NonMatrixLayout};
use super::state::ShardPart;
use super::tensors::LayerSpec;
use crate::layer_image::StateLen;

/// The bytes of a layer that is trained: weights, candidate, both moments, gradient, and its
/// matrices in the form products read.
#[must_use]
pub fn layer_bytes<B: ByteCounts>(backend: &B, model: &ModelConfig, spec: &LayerSpec) -> Bytes {
    let of_candidate = match backend.has_packed_candidates() {
        true => NonMatrixLayout::new(&LayerParts::new(model, spec), spec).floats(),
        false => spec.len(),
    };
    let candidate = Bytes(backend.buffer_bytes(of_candidate));
    replayed_bytes(backend, spec)
        + candidate
        + matrix_bytes(backend, model, spec)
        + adapter_bytes(backend, model, spec)
}

/// The same of a layer whose updates replicas share: its candidate has a place of its own, and where it is
/// gathered there are no moments.
#[must_use]
pub fn sharded_bytes<B: ByteCounts>(
    backend: &B,
    model: &ModelConfig,
    spec: &LayerSpec,
    part: ShardPart,
) -> Bytes {
    let moments = match part {
        ShardPart::Updated => spec.state_len().moments,
        ShardPart::Gathered => 0,
    };
    let lens = [spec.len(), spec.len(), moments, moments, spec.gradient_len()];
    Bytes(lens.map(|len| backend.buffer_bytes(len)).iter().sum())
        + matrix_bytes(backend, model, spec)
        + adapter_bytes(backend, model, spec)
}

/// The bytes of a layer on which the optimizer is replayed: weights, both moments and gradient.
#[must_use]
pub fn replayed_bytes<B: ByteCounts>(backend: &B, spec: &LayerSpec) -> Bytes {
    let StateLen { weights, moments } = spec.state_len();
    let lens = [weights, moments, moments, spec.gradient_len()];
    Bytes(lens.map(|len| backend.buffer_bytes(len)).iter().sum())
}

/// The bytes of a layer that is read and not trained.
#[must_use]
pub fn frozen_bytes<B: ByteCounts>(backend: &B, model: &ModelConfig, spec: &LayerSpec) -> Bytes {
    Bytes(backend.buffer_bytes(spec.len())) + matrix_bytes(backend, model, spec)
}

fn matrix_bytes<B: ByteCounts>(backend: &B, model: &ModelConfig, spec: &LayerSpec) -> Bytes {
    let parts = LayerParts::new(model, spec);
    let matrices = parts.matrices().into_iter();
    Bytes(matrices.map(|linear| backend.matrix_bytes(linear.shape)).sum())
}

/// Both matrices of each adapter, which W reads.
fn adapter_bytes<B: ByteCounts>(backend: &B, model: &ModelConfig, spec: &LayerSpec) -> Bytes {
    let parts = LayerParts::new(model, spec);
    let shapes = parts.adapters().into_iter().flat_map(|(adapter, inputs)| adapter.shapes(inputs));
    Bytes(shapes.map(|shape| backend.matrix_bytes(shape)).sum())
}
