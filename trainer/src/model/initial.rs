//! Initial weights: a function of seed, tensor and element.

use zbelastic_kernels::{HostThreads, NormalDraws};

use super::config::ModelConfig;
use super::tensors::{LayerSpec, TensorInit, TensorSpec, model_layers};
use crate::random::RandomStream;

/// The initial parameters of a layer, in the order in which they lie.
#[must_use]
pub fn initial_weights(spec: &LayerSpec, seed: u64) -> Vec<f32> {
    let mut weights = vec![0.0; spec.len()];
    draw_weights(&HostThreads::one(), spec, seed, &mut weights);
    weights
}

/// The same, written to `weights`, on all threads of the host.
///
/// # Panics
/// If `weights` is not as long as the layer.
pub fn draw_weights(host: &HostThreads, spec: &LayerSpec, seed: u64, weights: &mut [f32]) {
    assert_eq!(weights.len(), spec.len(), "as many weights as the layer has");
    for tensor in &spec.tensors {
        let to = &mut weights[tensor.range.clone()];
        match tensor.initial {
            TensorInit::Constant(x) => to.fill(x),
            TensorInit::Normal(deviation) => {
                let stream = stream(seed, tensor);
                let key = stream.key();
                let subject = stream.subject();
                host.draw(NormalDraws { key, subject, deviation }, to);
            }
            TensorInit::Uniform(bound) => draw_uniform(stream(seed, tensor), bound, to),
        }
    }
}

fn stream(seed: u64, tensor: &TensorSpec) -> RandomStream {
    RandomStream::new(seed, tensor.draw.purpose, tensor.draw.subject)
}

/// Uniform numbers, four of each block.
fn draw_uniform(stream: RandomStream, bound: f64, to: &mut [f32]) {
    for (position, four) in (0..).zip(to.chunks_mut(4)) {
        for (to, word) in four.iter_mut().zip(stream.block(position)) {
            // In the middle of an interval of 2 to the power of -32.
            let uniform = (f64::from(word) + 0.5) / 4_294_967_296.0;
            *to = (bound * (2.0 * uniform - 1.0)) as f32;
        }
    }
}

/// Draws the adapters of a model whose other weights are `layers`; those stay.
///
/// # Panics
/// If they are not the model's.
pub fn draw_adapters(model: &ModelConfig, seed: u64, layers: &mut [Vec<f32>]) {
    if model.lora.is_none() {
        return;
    }
    for (spec, weights) in model_layers(model).iter().zip(layers) {
        draw_layer_adapters(spec, seed, weights);
    }
}

/// Draws the adapters of a layer, if it has any, in its floats; all else stays.
pub(crate) fn draw_layer_adapters(spec: &LayerSpec, seed: u64, weights: &mut [f32]) {
    let mut adapters = spec.clone();
    adapters.tensors.retain(TensorSpec::is_adapter);
    if !adapters.tensors.is_empty() {
        draw_weights(&HostThreads::one(), &adapters, seed, weights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomPurpose;

    #[test]
    fn weights_are_those_of_their_stream_pair_by_pair() {
        let stream = RandomStream::new(u64::MAX / 3, RandomPurpose::Weights, 9);
        let key = stream.key();
        let subject = stream.subject();
        let mut found = vec![0.0; 20_001];
        HostThreads::one().draw(NormalDraws { key, subject, deviation: 0.02 }, &mut found);
        for (position, pair) in found.chunks(2).enumerate() {
            let expected = stream.normal_pair(position as u64).map(|draw| (draw * 0.02) as f32);
            assert_eq!(pair, &expected[..pair.len()], "pair {position}");
        }
    }
}
