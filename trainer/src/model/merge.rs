//! Adapters added to the matrices that they adapt.

use zbelastic_kernels::{HostThreads, LowRankProduct};

use super::config::ModelConfig;
use super::parts::LayerParts;
use super::tensors::{LayerSpec, model_layers};

/// The weights of [`ModelConfig::without_lora`], layer by layer, that compute what `layers` of `model` do: to the
/// bits that passes on processors read.
///
/// # Panics
/// If they are not the model's.
#[must_use]
pub fn merge_adapters(
    host: &HostThreads,
    model: &ModelConfig,
    layers: &[impl AsRef<[f32]>],
) -> Vec<Vec<f32>> {
    let specs = model_layers(model);
    assert_eq!(specs.len(), layers.len(), "as many layers as the model has");
    let merged = specs.iter().zip(layers).map(|(spec, layer)| {
        let layer = layer.as_ref();
        let mut weights = layer[..spec.base_len()].to_vec();
        merge_layer(host, &LayerParts::new(model, spec), layer, &mut weights);
        weights
    });
    merged.collect()
}

fn merge_layer(host: &HostThreads, parts: &LayerParts, layer: &[f32], weights: &mut [f32]) {
    for linear in parts.matrices() {
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
}

impl LayerSpec {
    /// Floats of the layer without its adapters, which lie behind all else.
    #[must_use]
    pub fn base_len(&self) -> usize {
        let base = self.tensors.iter().filter(|tensor| !tensor.is_adapter());
        base.map(|tensor| tensor.range.end).max().unwrap_or(0)
    }
}
