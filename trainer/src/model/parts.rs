//! Where the parameters of a layer's operations lie in its buffer.

use std::ops::Range;

use zbelastic_kernels::MatrixShape;

use super::config::{LayerKind, ModelConfig};
use super::tensors::LayerSpec;

/// Where a normalisation's parameters lie, as ranges of floats in the layer's buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct NormParts {
    /// Floats of the weight.
    pub weight: Range<usize>,
    /// Floats of the bias, if the family has one.
    pub bias: Option<Range<usize>>,
}

/// Where a linear layer's parameters lie, as ranges of floats in the layer's buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearParts {
    /// Outputs and inputs of the matrix.
    pub shape: MatrixShape,
    /// Floats of the matrix.
    pub weight: Range<usize>,
    /// Floats of the bias, if the family has biases.
    pub bias: Option<Range<usize>>,
}

impl LinearParts {
    /// Whether its W runs: whether some of its parameters are trained. Queries, keys and values, or
    /// gate and up, are one product.
    #[must_use]
    pub fn is_trained(&self, spec: &LayerSpec) -> bool {
        let ranges = std::iter::once(&self.weight).chain(&self.bias);
        ranges.into_iter().any(|range| spec.trains(range))
    }
}

/// The parameters of a layer, by what reads them.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerParts {
    /// Ranges of the embedding.
    Embed {
        /// Floats of the token table.
        tokens: Range<usize>,
        /// The table of positions.
        positions: Option<Range<usize>>,
    },
    /// Ranges of an attention layer.
    Attention {
        /// The normalisation before attention.
        norm: NormParts,
        /// Queries, keys and values.
        qkv: LinearParts,
        /// The weights that heads of queries, and then those that heads of keys are normalised with,
        /// if they are.
        qk_norm: Option<Range<usize>>,
        /// The matrix after attention.
        out: LinearParts,
    },
    /// Ranges of an MLP layer.
    Mlp {
        /// The normalisation before the MLP.
        norm: NormParts,
        /// The matrix into it; for SwiGLU gate and up.
        up: LinearParts,
        /// The matrix out of it.
        down: LinearParts,
    },
    /// Ranges of the head.
    Head {
        /// Parameters of the normalisation before the head.
        norm: NormParts,
        /// The output matrix, whose result are the logits.
        head: LinearParts,
    },
}

impl LayerParts {
    /// The parts of the layer that `spec` describes.
    #[must_use]
    pub fn new(model: &ModelConfig, spec: &LayerSpec) -> Self {
        let mut cursor = TensorCursor { spec, next: 0 };
        match spec.kind {
            LayerKind::Embed => Self::Embed {
                tokens: cursor.take(1),
                positions: (spec.tensors.len() > 1).then(|| cursor.take(1)),
            },
            LayerKind::Attention { .. } => Self::Attention {
                norm: cursor.norm(model),
                qkv: cursor.linear(model.qkv_matrix(), 3, model.has_qkv_bias()),
                qk_norm: model.features.qk_norm.then(|| cursor.take(2)),
                out: cursor.linear(model.out_matrix(), 1, model.has_out_bias()),
            },
            LayerKind::Mlp { .. } => {
                let matrices = model.up_matrix().outputs / model.mlp_width as usize;
                Self::Mlp {
                    norm: cursor.norm(model),
                    up: cursor.linear(model.up_matrix(), matrices, model.has_mlp_bias()),
                    down: cursor.linear(model.down_matrix(), 1, model.has_mlp_bias()),
                }
            }
            LayerKind::Head => {
                let norm = cursor.norm(model);
                let shape = model.head_matrix();
                let weight = cursor.take(1);
                Self::Head { norm, head: LinearParts { shape, weight, bias: None } }
            }
        }
    }

    /// The matrices that products read, in the order in which a layer's state holds them.
    #[must_use]
    pub fn matrices(&self) -> Vec<&LinearParts> {
        match self {
            Self::Embed { .. } => vec![],
            Self::Attention { qkv, out, .. } => vec![qkv, out],
            Self::Mlp { up, down, .. } => vec![up, down],
            Self::Head { head, .. } => vec![head],
        }
    }
}

/// Where what lies in no matrix of a layer would lie without them.
#[derive(Clone, Debug, PartialEq)]
pub struct NonMatrixLayout {
    /// The matrices, in order.
    matrices: Vec<Range<usize>>,
    len: usize,
}

impl NonMatrixLayout {
    /// Of the layer that `spec` describes.
    #[must_use]
    pub fn new(parts: &LayerParts, spec: &LayerSpec) -> Self {
        let ranges = parts.matrices().into_iter().map(|linear| linear.weight.clone());
        let matrices: Vec<Range<usize>> = ranges.collect();
        let of_matrices: usize = matrices.iter().map(Range::len).sum();
        Self { matrices, len: spec.len() - of_matrices }
    }

    /// Floats of all of it.
    #[must_use]
    pub const fn floats(&self) -> usize {
        self.len
    }

    /// Where the floats at `range` of the layer lie.
    ///
    /// # Panics
    /// If some of them are of a matrix.
    #[must_use]
    pub fn place(&self, range: &Range<usize>) -> Range<usize> {
        let before = self.matrices.iter().take_while(|matrix| matrix.start < range.end);
        let skipped = before.map(|matrix| {
            assert!(matrix.end <= range.start, "a matrix is read in the form of products");
            matrix.len()
        });
        let skipped: usize = skipped.sum();
        range.start - skipped..range.end - skipped
    }
}

/// Walks over a layer's tensors in the order in which they lie.
struct TensorCursor<'a> {
    spec: &'a LayerSpec,
    next: usize,
}

impl TensorCursor<'_> {
    fn take(&mut self, count: usize) -> Range<usize> {
        let range = self.spec.span(self.next, count);
        self.next += count;
        range
    }

    fn norm(&mut self, model: &ModelConfig) -> NormParts {
        let weight = self.take(1);
        NormParts { weight, bias: model.norm().has_bias().then(|| self.take(1)) }
    }

    /// `count` matrices side by side, then as many biases.
    fn linear(&mut self, shape: MatrixShape, count: usize, has_biases: bool) -> LinearParts {
        let weight = self.take(count);
        assert_eq!(weight.len(), shape.outputs * shape.inputs, "the matrices lie side by side");
        LinearParts { shape, weight, bias: has_biases.then(|| self.take(count)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, FrozenTensors, LlamaFeatures, model_layers};

    #[test]
    fn what_lies_in_no_matrix_lies_without_gaps() {
        for family in [Family::Gpt2, Family::Llama] {
            let model = ModelConfig {
                family,
                blocks: 2,
                width: 8,
                heads: 2,
                kv_heads: 1,
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
            };
            for spec in model_layers(&model) {
                let parts = LayerParts::new(&model, &spec);
                let rest = NonMatrixLayout::new(&parts, &spec);
                let is_of_matrix = |range: &Range<usize>| {
                    let mut matrices = parts.matrices().into_iter();
                    matrices.any(|linear| {
                        linear.weight.start <= range.start && range.end <= linear.weight.end
                    })
                };
                let mut end = 0;
                for tensor in spec.tensors.iter().filter(|tensor| !is_of_matrix(&tensor.range)) {
                    let place = rest.place(&tensor.range);
                    assert_eq!(
                        (place.start, place.len()),
                        (end, tensor.range.len()),
                        "{}",
                        tensor.name
                    );
                    end = place.end;
                }
                assert_eq!(end, rest.floats());
            }
        }
    }
}
