//! Initial weights: a function of seed, tensor and element.

use zbelastic_kernels::{HostThreads, NormalDraws};

use super::tensors::{LayerSpec, TensorInit};
use crate::random::{RandomPurpose, RandomStream};

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
                let stream = RandomStream::new(seed, RandomPurpose::Weights, tensor.index.0);
                let key = stream.key();
                let subject = stream.subject();
                host.draw(NormalDraws { key, subject, deviation }, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
