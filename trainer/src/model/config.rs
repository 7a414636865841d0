//! What a model looks like.

use serde::{Deserialize, Serialize};
use zbelastic_kernels::{AttentionShape, HEAD_WIDTH_MAX, MatrixShape, Norm};
use zbelastic_types::{LayerId, TensorIndex};

use super::features::{AttentionBias, LlamaFeatures, RopeScaling};
use super::frozen::FrozenTensors;
use super::lora::LoraConfig;
use crate::layer_image::FLOATS_MAX;

/// The token embedding, which is the first tensor of every model.
pub(super) const TOKENS_INDEX: TensorIndex = TensorIndex(0);

/// The two families of decoder-only transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// LayerNorm, learned positions, GELU in its tanh form, biases (Radford et al., 2019).
    Gpt2,
    /// RMSNorm, rotary positions, SwiGLU, grouped queries (Touvron et al., arXiv 2302.13971), and
    /// the [`LlamaFeatures`] of later models.
    Llama,
}

/// A model's shape. Sizes are counts of floats, tokens or pieces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Architecture family, which decides normalisation, positions, activation and biases.
    pub family: Family,
    /// Transformer blocks; each is an attention layer and an MLP layer.
    pub blocks: u32,
    /// Floats of a token in the residual stream.
    pub width: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Floats of one head.
    pub head_width: u32,
    /// Floats of a token in the hidden layer of the MLP.
    pub mlp_width: u32,
    /// What the model has beyond its family, which is Llama then.
    #[serde(default, skip_serializing_if = "LlamaFeatures::is_none")]
    pub features: LlamaFeatures,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Keys that a query sees at most, its own included; without it, all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<u32>,
    /// The longest sequence; GPT-2 learns a row for each position.
    pub positions: u32,
    /// Number added inside normalisations.
    pub norm_epsilon: f32,
    /// The base of rotary frequencies.
    pub rope_theta: f64,
    /// Whether the head's matrix is the token embedding once more: one tensor, at both ends.
    pub tied: bool,
    /// Tensors that training leaves as they are.
    #[serde(default, skip_serializing_if = "FrozenTensors::is_none")]
    pub frozen: FrozenTensors,
    /// Those of them that have neither moments nor a gradient. A run that began before frozen tensors were
    /// without has all, and so has what goes on from it.
    #[serde(default, skip_serializing_if = "FrozenTensors::is_none")]
    pub without_moments: FrozenTensors,
    /// Low-rank adapters, which are trained while all else is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
}

/// What kind of layer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Token and position embedding.
    Embed,
    /// The attention half of a block.
    Attention {
        /// Index of the block, from 0.
        block: u32,
    },
    /// The MLP half of a block.
    Mlp {
        /// Index of the block, from 0.
        block: u32,
    },
    /// The final normalisation, the output head and the loss.
    Head,
}

/// What is wrong with a model's shape.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A size is zero.
    #[error("{name} must be at least 1")]
    Zero {
        /// Name of the size that is zero.
        name: &'static str,
    },
    /// Heads do not divide the width, and no head width is given.
    #[error("{heads} heads do not divide a width of {width}")]
    Heads {
        /// Number of query heads.
        heads: u32,
        /// Floats of a token in the residual stream.
        width: u32,
    },
    /// Key heads do not divide the query heads.
    #[error("{kv_heads} key and value heads do not divide {heads} query heads")]
    KvHeads {
        /// Number of heads that keys and values have.
        kv_heads: u32,
        /// Number of query heads.
        heads: u32,
    },
    /// Rotary embedding turns pairs.
    #[error("rotary positions need an even head width, found {head_width}")]
    OddHeadWidth {
        /// Floats of one head.
        head_width: u32,
    },
    /// The attention kernel holds a head's queries in one strip.
    #[error("a head of {head_width} is wider than the {max} a kernel holds")]
    WideHead {
        /// Floats of one head.
        head_width: u32,
        /// Floats of the widest head that a kernel holds.
        max: usize,
    },
    /// GPT-2 shares keys with no other head.
    #[error("the gpt2 family has as many key heads as query heads: {heads}, found {kv_heads}")]
    GroupedGpt2 {
        /// Number of query heads.
        heads: u32,
        /// Number of heads that keys and values have.
        kv_heads: u32,
    },
    /// Later models of the Llama family have these, GPT-2 has not.
    #[error(
        "the gpt2 family has no attention_bias, mlp_bias, qk_norm, rope_scaling or sliding_window of its own"
    )]
    Gpt2Features,
    /// A combination that no other tool could load.
    #[error(
        "no model of transformers has this combination: mlp_bias goes with neither qk_norm nor \
         attention_bias \"qkv\", and these two do not go together; sliding_window without qk_norm goes \
         with neither mlp_bias nor attention_bias \"all\""
    )]
    Features,
    /// A layer that could not be written.
    #[error("layer {layer} has {found} weights, at most {FLOATS_MAX} fit into a checkpoint")]
    LargeLayer {
        /// Id of the layer in model order.
        layer: LayerId,
        /// Floats that the layer has.
        found: u64,
    },
    /// A number that cannot be used.
    #[error("{name} must be a finite number above 0, found {found}")]
    NotPositive {
        /// Name of the number.
        name: &'static str,
        /// Value that was given.
        found: f64,
    },
}

impl ModelConfig {
    /// Everything wrong with this shape.
    #[must_use]
    pub fn errors(&self) -> Vec<ModelError> {
        let sizes = [
            ("layers", self.blocks),
            ("width", self.width),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_width),
            ("mlp_width", self.mlp_width),
            ("vocab", self.vocabulary),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
            ("the sequence length", self.positions),
        ];
        let zero = sizes.into_iter().filter(|(_, size)| *size == 0);
        let mut errors: Vec<_> = zero.map(|(name, _)| ModelError::Zero { name }).collect();
        let heads = self.heads;
        let kv_heads = self.kv_heads;
        let head_width = self.head_width;
        if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            errors.push(ModelError::KvHeads { kv_heads, heads });
        }
        if head_width as usize > HEAD_WIDTH_MAX {
            errors.push(ModelError::WideHead { head_width, max: HEAD_WIDTH_MAX });
        }
        match self.family {
            Family::Gpt2 if heads != kv_heads => {
                errors.push(ModelError::GroupedGpt2 { heads, kv_heads });
            }
            Family::Llama if !head_width.is_multiple_of(2) => {
                errors.push(ModelError::OddHeadWidth { head_width });
            }
            Family::Gpt2 | Family::Llama => {}
        }
        errors.extend(self.feature_errors());
        let numbers = [("norm_eps", f64::from(self.norm_epsilon)), ("rope_theta", self.rope_theta)];
        for (name, found) in numbers {
            if !(found.is_finite() && found > 0.0) {
                errors.push(ModelError::NotPositive { name, found });
            }
        }
        if errors.is_empty() {
            errors.extend(self.large_layer());
        }
        errors
    }

    fn feature_errors(&self) -> Vec<ModelError> {
        let features = &self.features;
        let wrong = features.rope_scaling.map(RopeScaling::wrong_numbers).unwrap_or_default();
        let wrong = wrong.into_iter();
        let mut errors: Vec<_> =
            wrong.map(|(name, found)| ModelError::NotPositive { name, found }).collect();
        match self.family {
            Family::Gpt2 if !features.is_none() || self.sliding_window.is_some() => {
                errors.push(ModelError::Gpt2Features);
            }
            Family::Llama if !features.is_of_transformers(self.sliding_window) => {
                errors.push(ModelError::Features);
            }
            Family::Gpt2 | Family::Llama => {}
        }
        errors
    }

    fn large_layer(&self) -> Option<ModelError> {
        let mut layers = super::model_layers(self).into_iter();
        let large = layers.find(|spec| spec.len() as u64 > FLOATS_MAX)?;
        Some(ModelError::LargeLayer { layer: large.layer, found: large.len() as u64 })
    }

    /// Layers in all: the embedding, two for each block, the head.
    #[must_use]
    pub const fn layer_count(&self) -> u32 {
        2 * self.blocks + 2
    }

    /// The kind of layer that `layer` is.
    ///
    /// # Panics
    /// If the model has no such layer.
    #[must_use]
    pub fn layer_kind(&self, layer: LayerId) -> LayerKind {
        let last = self.layer_count() - 1;
        assert!(layer.0 <= last, "layer {layer} of {last}");
        match layer.0 {
            0 => LayerKind::Embed,
            id if id == last => LayerKind::Head,
            id if id % 2 == 1 => LayerKind::Attention { block: (id - 1) / 2 },
            id => LayerKind::Mlp { block: (id - 2) / 2 },
        }
    }

    /// The family's normalisation, with the model's epsilon.
    #[must_use]
    pub const fn norm(&self) -> Norm {
        match self.family {
            Family::Gpt2 => Norm::Layer { epsilon: self.norm_epsilon },
            Family::Llama => Norm::Rms { epsilon: self.norm_epsilon },
        }
    }

    /// Whether the projections to queries, keys and values have biases.
    #[must_use]
    pub const fn has_qkv_bias(&self) -> bool {
        match (self.family, self.features.attention_bias) {
            (Family::Gpt2, _) | (Family::Llama, AttentionBias::Qkv | AttentionBias::All) => true,
            (Family::Llama, AttentionBias::None) => false,
        }
    }

    /// Whether the projection after attention has a bias.
    #[must_use]
    pub const fn has_out_bias(&self) -> bool {
        match (self.family, self.features.attention_bias) {
            (Family::Gpt2, _) | (Family::Llama, AttentionBias::All) => true,
            (Family::Llama, AttentionBias::None | AttentionBias::Qkv) => false,
        }
    }

    /// Whether the MLP's projections have biases.
    #[must_use]
    pub const fn has_mlp_bias(&self) -> bool {
        match self.family {
            Family::Gpt2 => true,
            Family::Llama => self.features.mlp_bias,
        }
    }

    /// Whether the other model has the same tensors, whichever of them are trained: a branch may
    /// freeze others than the run that it goes on from.
    #[must_use]
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let frozen = self.frozen.clone();
        *self == Self { frozen, without_moments: self.without_moments.clone(), ..other.clone() }
    }

    /// The same with these tensors frozen, which have no moments.
    #[must_use]
    pub fn freezing(self, frozen: FrozenTensors) -> Self {
        Self { without_moments: frozen.clone(), frozen, ..self }
    }

    /// Whether the two ends of the model have a part each of one gradient: the head is tied to the
    /// embedding, and their matrix is trained.
    #[must_use]
    pub fn ties_gradients(&self) -> bool {
        self.tied && !self.frozen.contains(TOKENS_INDEX)
    }

    /// The frequency of a pair of a head's floats, in radians a position.
    #[must_use]
    pub fn rotary_frequency(&self, pair: usize) -> f64 {
        let exponent = -((2 * pair) as f64) / f64::from(self.head_width);
        let frequency = libm::pow(self.rope_theta, exponent);
        self.features.rope_scaling.map_or(frequency, |scaling| scaling.scaled(frequency))
    }

    /// Attention over a microbatch.
    #[must_use]
    pub const fn attention_shape(&self, sequences: usize, sequence_len: usize) -> AttentionShape {
        AttentionShape {
            sequences,
            sequence_len,
            heads: self.heads as usize,
            kv_heads: self.kv_heads as usize,
            head_width: self.head_width as usize,
        }
    }

    /// Floats of a row of queries.
    #[must_use]
    pub const fn query_width(&self) -> usize {
        self.heads as usize * self.head_width as usize
    }

    /// The matrix that makes queries, keys and values.
    #[must_use]
    pub const fn qkv_matrix(&self) -> MatrixShape {
        let keys = self.kv_heads as usize * self.head_width as usize;
        MatrixShape { outputs: self.query_width() + 2 * keys, inputs: self.width as usize }
    }

    /// The matrix after attention.
    #[must_use]
    pub const fn out_matrix(&self) -> MatrixShape {
        MatrixShape { outputs: self.width as usize, inputs: self.query_width() }
    }

    /// The matrix into the MLP; for SwiGLU gate and up in one.
    #[must_use]
    pub const fn up_matrix(&self) -> MatrixShape {
        let outputs = match self.family {
            Family::Gpt2 => self.mlp_width as usize,
            Family::Llama => 2 * self.mlp_width as usize,
        };
        MatrixShape { outputs, inputs: self.width as usize }
    }

    /// The matrix out of the MLP.
    #[must_use]
    pub const fn down_matrix(&self) -> MatrixShape {
        MatrixShape { outputs: self.width as usize, inputs: self.mlp_width as usize }
    }

    /// The matrix that makes logits from the residual stream.
    #[must_use]
    pub const fn head_matrix(&self) -> MatrixShape {
        MatrixShape { outputs: self.vocabulary as usize, inputs: self.width as usize }
    }
}
