//! Where moments and gradients of a layer's parameters lie.
//!
//! A parameter that has moments has them in the order of the parameters, without gaps: so a layer whose
//! parameters all have moments has each where the parameter is. Of a gradient there is place for each
//! operation some of whose parameters have moments, for W of an operation writes all of it.

use std::ops::Range;

use zbelastic_kernels::StateRange;

use super::config::ModelConfig;
use super::parts::{LayerParts, LinearParts, NormParts};
use super::tensors::{LayerSpec, TensorSpec};
use crate::layer_image::StateLen;

/// Gives the tensors of a layer their places.
pub(super) fn place_state(model: &ModelConfig, spec: &mut LayerSpec) {
    let parts = LayerParts::new(model, spec);
    let has_moments = |tensor: &TensorSpec| !model.without_moments.contains(tensor.index);
    let operations = parts.operations().into_iter().filter(|operation| {
        let mut within = spec.tensors.iter().filter(|tensor| has_part(operation, &tensor.range));
        within.any(has_moments)
    });
    let written: Vec<Range<usize>> = operations.flatten().cloned().collect();
    let mut moments_end = 0;
    let mut gradient_end = 0;
    for tensor in &mut spec.tensors {
        let is_written = written.iter().any(|range| has_part(&[range], &tensor.range));
        tensor.moments = has_moments(tensor).then(|| take(&mut moments_end, tensor.range.len()));
        tensor.gradient = is_written.then(|| take(&mut gradient_end, tensor.range.len()));
    }
}

/// Whether an operation has these parameters.
fn has_part(operation: &[&Range<usize>], tensor: &Range<usize>) -> bool {
    operation.iter().any(|range| range.start <= tensor.start && tensor.end <= range.end)
}

fn take(end: &mut usize, len: usize) -> Range<usize> {
    *end += len;
    *end - len..*end
}

impl LayerParts {
    /// The parameters of each operation whose W writes them together.
    fn operations(&self) -> Vec<Vec<&Range<usize>>> {
        let linears = self.matrices().into_iter().flat_map(linear_operations);
        let others: Vec<Vec<&Range<usize>>> = match self {
            Self::Embed { tokens, positions } => {
                vec![std::iter::once(tokens).chain(positions).collect()]
            }
            Self::Attention { norm, qk_norm, .. } => {
                let of_norm = std::iter::once(norm_operation(norm));
                of_norm.chain(qk_norm.iter().map(|weights| vec![weights])).collect()
            }
            Self::Mlp { norm, .. } | Self::Head { norm, .. } => vec![norm_operation(norm)],
        };
        linears.chain(others).collect()
    }
}

fn norm_operation(norm: &NormParts) -> Vec<&Range<usize>> {
    std::iter::once(&norm.weight).chain(&norm.bias).collect()
}

/// The matrix with its bias, and each matrix of its adapters.
fn linear_operations(linear: &LinearParts) -> Vec<Vec<&Range<usize>>> {
    let own = std::iter::once(&linear.weight).chain(&linear.bias).collect();
    let adapters = linear.adapters.iter().flat_map(|adapter| [&adapter.a, &adapter.b]);
    std::iter::once(own).chain(adapters.map(|matrix| vec![matrix])).collect()
}

impl TensorSpec {
    /// The tensor, and where its state lies.
    ///
    /// # Panics
    /// If it has no moments: it is frozen.
    #[must_use]
    pub fn state_range(&self) -> StateRange {
        let moments = self.moments.as_ref().expect("what is trained has moments");
        let gradient = self.gradient.as_ref().expect("what has moments has a gradient");
        let weights = self.range.clone();
        StateRange { weights, moments_start: moments.start, gradient_start: gradient.start }
    }
}

impl LayerSpec {
    /// Floats of the layer's weights and of each of its moments.
    #[must_use]
    pub fn state_len(&self) -> StateLen {
        let moments = self.tensors.iter().filter_map(|tensor| tensor.moments.as_ref());
        StateLen { weights: self.len(), moments: moments.map(|range| range.end).max().unwrap_or(0) }
    }

    /// Floats of the layer's gradient.
    #[must_use]
    pub fn gradient_len(&self) -> usize {
        let gradients = self.tensors.iter().filter_map(|tensor| tensor.gradient.as_ref());
        gradients.map(|range| range.end).max().unwrap_or(0)
    }

    /// Where the gradient of neighbouring parameters at `range` lies.
    ///
    /// # Panics
    /// If they have none.
    #[must_use]
    pub fn gradient_of(&self, range: &Range<usize>) -> Range<usize> {
        let first = self.tensors.iter().find(|tensor| tensor.range.contains(&range.start));
        let first = first.and_then(|tensor| Some((tensor, tensor.gradient.as_ref()?)));
        let (tensor, gradient) = first.expect("an operation whose W runs has a gradient");
        let start = gradient.start + (range.start - tensor.range.start);
        start..start + range.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, FrozenTensors, LlamaFeatures, frozen_tensors, model_layers};

    fn model(family: Family) -> ModelConfig {
        ModelConfig {
            family,
            blocks: 2,
            width: 8,
            heads: 2,
            kv_heads: 2,
            head_width: 4,
            mlp_width: 16,
            features: LlamaFeatures::NONE,
            vocabulary: 10,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    fn freezing(patterns: &[&str]) -> Vec<LayerSpec> {
        let model = model(Family::Gpt2);
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let frozen = frozen_tensors(&model, &patterns).expect("there are such");
        model_layers(&model.freezing(frozen))
    }

    #[test]
    fn everything_lies_alike_where_everything_has_moments() {
        for family in [Family::Gpt2, Family::Llama] {
            for spec in model_layers(&model(family)) {
                let len = spec.len();
                assert_eq!(spec.state_len(), StateLen { weights: len, moments: len });
                assert_eq!(spec.gradient_len(), len);
                for tensor in &spec.tensors {
                    assert_eq!(tensor.state_range(), StateRange::from(tensor.range.clone()));
                }
            }
        }
    }

    #[test]
    fn frozen_tensors_have_no_moments_and_a_gradient_only_beside_trained_ones() {
        // Queries, keys and values are one product, with their biases; so are weight and bias of a norm.
        let layers = freezing(&["embed", "layers.0.attn.k", "layers.0.norm1.weight", "layers.1"]);
        let [embed, attention, _, frozen, ..] = &layers[..] else { panic!("two blocks") };
        for spec in [embed, frozen] {
            assert_eq!((spec.state_len().moments, spec.gradient_len()), (0, 0));
        }
        let place = |name: &str| {
            let tensor = attention.tensors.iter().find(|tensor| tensor.name.ends_with(name));
            let TensorSpec { moments, gradient, .. } = tensor.expect("it is there");
            (moments.clone(), gradient.clone())
        };
        assert_eq!(place("norm1"), (None, Some(0..8)));
        assert_eq!(place("norm1.bias"), (Some(0..8), Some(8..16)));
        assert_eq!(place("attn.q"), (Some(8..72), Some(16..80)));
        assert_eq!(place("attn.k"), (None, Some(80..144)));
        assert_eq!(place("attn.v"), (Some(72..136), Some(144..208)));
        let whole = attention.len();
        assert_eq!(attention.gradient_len(), whole);
        assert_eq!(attention.state_len().moments, whole - 8 - 64 - 8);
        assert_eq!(attention.gradient_of(&(16..208)), 16..208);
    }
}
