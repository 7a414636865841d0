//! Where the parameters of a layer's operations lie in its buffer.

use std::ops::Range;

use zbelastic_kernels::{AdapterView, BufferView, MatrixShape};

use super::config::{LayerKind, ModelConfig};
use super::lora::adapted_linears;
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
    /// Those of its rows that have adapters.
    pub adapters: Vec<AdapterParts>,
}

/// Where the parameters of an adapter of some rows of a matrix lie.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterParts {
    /// Its index among the adapters of its layer.
    pub index: usize,
    /// The adapted rows: outputs of the linear layer.
    pub rows: Range<usize>,
    /// Rows of its first matrix, and columns of its second.
    pub rank: usize,
    /// The factor of their product.
    pub scale: f32,
    /// Floats of the first matrix, `rank` by inputs.
    pub a: Range<usize>,
    /// Floats of the second matrix, adapted rows by `rank`.
    pub b: Range<usize>,
}

impl AdapterParts {
    /// The shapes of both matrices, of an adapter of a layer with so many inputs.
    #[must_use]
    pub fn shapes(&self, inputs: usize) -> [MatrixShape; 2] {
        let a = MatrixShape { outputs: self.rank, inputs };
        [a, MatrixShape { outputs: self.rows.len(), inputs: self.rank }]
    }

    /// Where both lie, for a device.
    pub(super) fn view<'a, B>(
        &self,
        view: impl Fn(&Range<usize>) -> BufferView<'a, B>,
    ) -> AdapterView<'a, B> {
        let Self { rows, rank, scale, a, b, .. } = self;
        AdapterView { rows: rows.clone(), rank: *rank, scale: *scale, a: view(a), b: view(b) }
    }
}

impl LinearParts {
    /// Elements of matrices that W of a row multiplies by: those of the matrix if its W runs, and for
    /// an adapter both of its matrices twice.
    #[must_use]
    pub fn weight_gradient_products(&self, spec: &LayerSpec) -> usize {
        let of_matrix = if self.is_trained(spec) { self.weight.len() } else { 0 };
        let adapters = self.adapters.iter().map(|adapter| 2 * (adapter.a.len() + adapter.b.len()));
        of_matrix + adapters.sum::<usize>()
    }

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
        let mut parts = Self::of_base(model, &mut cursor);
        for (index, linear) in adapted_linears(model, spec.kind).into_iter().enumerate() {
            let lora = model.lora.as_ref().expect("something is adapted");
            let adapter = AdapterParts {
                index,
                rows: linear.rows(model),
                rank: lora.rank as usize,
                scale: lora.scale(),
                a: cursor.take(1),
                b: cursor.take(1),
            };
            parts.matrices_mut()[linear.product()].adapters.push(adapter);
        }
        parts
    }

    /// Without adapters.
    fn of_base(model: &ModelConfig, cursor: &mut TensorCursor<'_>) -> Self {
        let spec = cursor.spec;
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
                let head = LinearParts { shape, weight, bias: None, adapters: Vec::new() };
                Self::Head { norm, head }
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

    fn matrices_mut(&mut self) -> Vec<&mut LinearParts> {
        match self {
            Self::Embed { .. } => vec![],
            Self::Attention { qkv, out, .. } => vec![qkv, out],
            Self::Mlp { up, down, .. } => vec![up, down],
            Self::Head { head, .. } => vec![head],
        }
    }

    /// The adapters of all matrices in the order in which they lie, each with the inputs of what it adapts.
    #[must_use]
    pub fn adapters(&self) -> Vec<(&AdapterParts, usize)> {
        let all = self.matrices().into_iter().flat_map(|linear| {
            let inputs = linear.shape.inputs;
            linear.adapters.iter().map(move |adapter| (adapter, inputs))
        });
        all.collect()
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
        let bias = has_biases.then(|| self.take(count));
        LinearParts { shape, weight, bias, adapters: Vec::new() }
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
                without_moments: FrozenTensors::NONE,
                lora: None,
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
