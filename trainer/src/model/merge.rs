//! Adapters added to the matrices that they adapt.

use zbelastic_kernels::{HostThreads, LowRankProduct};

use super::config::ModelConfig;
use super::parts::LayerParts;
use super::tensors::LayerSpec;

/// The weights of a layer of [`ModelConfig::without_lora`] that compute what `layer` of `model` does: to the bits
/// that passes on processors read.
///
/// # Panics
/// If it is not the model's.
#[must_use]
pub fn merge_layer(
    host: &HostThreads,
    model: &ModelConfig,
    spec: &LayerSpec,
    layer: &[f32],
) -> Vec<f32> {
    let mut weights = layer[..spec.base_len()].to_vec();
    for linear in LayerParts::new(model, spec).matrices() {
        let inputs = linear.shape.inputs;
        for adapter in &linear.adapters {
            let product = LowRankProduct {
                a: &layer[adapter.a.clone()],
                b: &layer[adapter.b.clone()],
                rank: adapter.rank,
                scale: adapter.scale,
            };
            let rows = &adapter.rows;
            let matrix = &mut weights[linear.weight.clone()];
            host.add_low_rank(product, &mut matrix[rows.start * inputs..rows.end * inputs]);
        }
    }
    weights
}

impl LayerSpec {
    /// Floats of the layer without its adapters, which lie behind all else.
    #[must_use]
    pub fn base_len(&self) -> usize {
        let base = self.tensors.iter().filter(|tensor| !tensor.is_adapter());
        base.map(|tensor| tensor.range.end).max().unwrap_or(0)
    }
}
