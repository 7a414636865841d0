//! Initial weights: a function of seed, tensor and element.

use super::tensors::{Initial, LayerSpec};
use crate::random::{Purpose, Stream};

/// The initial parameters of a layer, in the order in which they lie.
#[must_use]
pub fn initial_weights(spec: &LayerSpec, seed: u64) -> Vec<f32> {
    let mut weights = vec![0.0; spec.len()];
    draw_weights(spec, seed, &mut weights);
    weights
}

/// The same, written where they are wanted.
///
/// # Panics
/// If `weights` is not as long as the layer.
pub fn draw_weights(spec: &LayerSpec, seed: u64, weights: &mut [f32]) {
    assert_eq!(weights.len(), spec.len(), "as many weights as the layer has");
    for tensor in &spec.tensors {
        let to = &mut weights[tensor.range.clone()];
        match tensor.initial {
            Initial::Constant(x) => to.fill(x),
            Initial::Normal(deviation) => {
                let stream = Stream::new(seed, Purpose::Weights, tensor.index.0);
                for (position, pair) in to.chunks_mut(2).enumerate() {
                    let draws = stream.normal_pair(position as u64);
                    for (to, draw) in pair.iter_mut().zip(draws) {
                        *to = (draw * deviation) as f32;
                    }
                }
            }
        }
    }
}
