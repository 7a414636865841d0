//! How much arithmetic a layer takes: multiplications and additions, counted by hand.
//!
//! Causal attention counts half of the square. W of attention's products does not exist: the
//! gradients of queries, keys and values are what B of the layer before it needs.

use zbelastic_kernels::MatrixShape;
use zbelastic_types::LayerId;

use crate::model::{LayerKind, LayerParts, LayerSpec, MicrobatchShape, ModelConfig, model_layers};

/// What one layer's passes take for one microbatch: floating-point operations as they are counted
/// here, or a time where it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerWork {
    /// The forward pass (F).
    pub f: f64,
    /// The backward pass that computes the gradient of the layer's input (B).
    pub b: f64,
    /// The backward pass that computes the gradient of the weights (W).
    pub w: f64,
    /// The share of `w` that WE runs.
    pub w_early: f64,
}

impl LayerWork {
    /// F, B and W together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.f + self.b + self.w
    }

    /// The same where such a share of W runs.
    #[must_use]
    pub(super) fn with_trained_share(self, share: f64) -> Self {
        Self { w: self.w * share, w_early: self.w_early * share, ..self }
    }

    /// So many times as much of each.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let Self { f, b, w, w_early } = self;
        Self { f: f * factor, b: b * factor, w: w * factor, w_early: w_early * factor }
    }
}

impl std::ops::Add for LayerWork {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            f: self.f + other.f,
            b: self.b + other.b,
            w: self.w + other.w,
            w_early: self.w_early + other.w_early,
        }
    }
}

/// Twice the number of pairs of a query and a key that it sees, of the first `tokens` of a sequence:
/// their square, less what lies outside of a sliding window. Documents within a sequence are not
/// known here; with them there are fewer.
pub(super) fn twice_the_pairs(tokens: u128, sliding_window: Option<u32>) -> u128 {
    match sliding_window.map(u128::from) {
        Some(window) if window < tokens => window * window + 2 * window * (tokens - window),
        Some(_) | None => tokens * tokens,
    }
}

/// The work of every layer, in order. W of frozen products does not run.
#[must_use]
pub fn layer_work(model: &ModelConfig, shape: MicrobatchShape) -> Vec<LayerWork> {
    let work = whole_layer_work(model, shape);
    let shares = trained_shares(model).into_iter();
    work.into_iter().zip(shares).map(|(work, share)| work.with_trained_share(share)).collect()
}

/// By layer, the share of its W that runs: of its products, or of the layer where it has none. Adapters
/// run products of their own.
#[must_use]
pub(super) fn trained_shares(model: &ModelConfig) -> Vec<f64> {
    if model.frozen.is_none() {
        return vec![1.0; model.layer_count() as usize];
    }
    let share = |spec: LayerSpec| {
        let parts = LayerParts::new(model, &spec);
        let matrices = parts.matrices();
        let run: usize = matrices.iter().map(|linear| linear.weight_gradient_products(&spec)).sum();
        match matrices.iter().map(|linear| linear.weight.len()).sum::<usize>() {
            0 => f64::from(u8::from(spec.trained_tensors().next().is_some())),
            all => run as f64 / all as f64,
        }
    };
    model_layers(model).into_iter().map(share).collect()
}

/// The work of every layer, all of which is trained.
fn whole_layer_work(model: &ModelConfig, shape: MicrobatchShape) -> Vec<LayerWork> {
    let rows = shape.rows() as f64;
    let product = |matrix: MatrixShape| 2.0 * rows * (matrix.outputs * matrix.inputs) as f64;
    // Scores and weighted values, half of each square: s/2 keys a query, twice.
    let tokens = shape.sequence_len as u128;
    let keys = twice_the_pairs(tokens, model.sliding_window) as f64 / tokens as f64;
    let attention = 2.0 * rows * keys * model.query_width() as f64;
    let layers = (0..model.layer_count()).map(|layer| model.layer_kind(LayerId(layer)));
    layers
        .map(|kind| {
            let linear = match kind {
                LayerKind::Embed => 0.0,
                LayerKind::Attention { .. } => {
                    product(model.qkv_matrix()) + product(model.out_matrix())
                }
                LayerKind::Mlp { .. } => product(model.up_matrix()) + product(model.down_matrix()),
                LayerKind::Head => product(model.head_matrix()),
            };
            let (attention, w_early) = match kind {
                LayerKind::Attention { .. } => (attention, 0.0),
                LayerKind::Head => (0.0, linear),
                LayerKind::Embed | LayerKind::Mlp { .. } => (0.0, 0.0),
            };
            LayerWork { f: linear + attention, b: linear + 2.0 * attention, w: linear, w_early }
        })
        .collect()
}

/// The model's work for one token, all passes, nothing computed twice.
#[must_use]
pub fn model_flop_per_token(model: &ModelConfig, shape: MicrobatchShape) -> f64 {
    let total: f64 = layer_work(model, shape).iter().map(LayerWork::total).sum();
    total / shape.rows() as f64
}

#[cfg(test)]
mod tests {
    use super::model_flop_per_token;
    use crate::model::{Family, FrozenTensors, LlamaFeatures, MicrobatchShape, ModelConfig};

    #[test]
    fn work_is_that_of_the_benchmark_configurations() {
        let check = |blocks, width: u32, heads, sequence_len: usize, vocabulary, expected: f64| {
            let model = ModelConfig {
                family: Family::Gpt2,
                blocks,
                width,
                heads,
                kv_heads: heads,
                head_width: width / heads,
                mlp_width: 4 * width,
                features: LlamaFeatures::NONE,
                vocabulary,
                sliding_window: None,
                positions: sequence_len as u32,
                norm_epsilon: 1e-5,
                rope_theta: 1e4,
                tied: false,
                frozen: FrozenTensors::NONE,
                without_moments: FrozenTensors::NONE,
                lora: None,
            };
            let found =
                model_flop_per_token(&model, MicrobatchShape { sequences: 2, sequence_len }) / 1e6;
            assert!((found / expected - 1.0).abs() < 2e-3, "{found}, expected {expected}");
        };
        check(4, 256, 4, 128, 256, 20.05);
        check(6, 384, 6, 256, 4096, 76.7);
        check(12, 768, 12, 256, 50_304, 755.6);
    }
}
