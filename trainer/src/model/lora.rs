//! Low-rank adapters: which linear layers have one, and of what shape (LoRA: Hu et al., arXiv
//! 2106.09685, section 4.1).
//!
//! An adapted matrix is `W + s * B * A`, with `s` of [`LoraConfig::scale`]. `A` has `rank` rows and is drawn, `B` has as many
//! columns and begins as zeros, and these two are all that is trained. Passes read the sum as one
//! matrix ([`super::LayerState`]); there is no dropout between them, which could not be.
//!
//! The two tensors of an adapter lie behind all others of their layer, so that these lie, and are drawn,
//! as without it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use zbelastic_kernels::MatrixShape;

use super::config::{Family, LayerKind, ModelConfig};

/// The linear layers of a block that can have an adapter, by what PEFT finds in transformers: GPT-2 has
/// queries, keys and values as one layer, Llama has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoraLinear {
    /// Queries, keys and values together.
    Qkv,
    /// Queries alone.
    Query,
    /// Keys alone.
    Key,
    /// Values alone.
    Value,
    /// The matrix after attention.
    Out,
    /// The gate of SwiGLU.
    Gate,
    /// The matrix into the MLP; of SwiGLU without the gate.
    Up,
    /// The matrix out of the MLP.
    Down,
}

/// What the first matrix of an adapter begins as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoraInit {
    /// Uniform up to one over the root of the inputs: PEFT's default, `kaiming_uniform_` with a slope
    /// of the root of 5 (He et al., arXiv 1502.01852).
    #[default]
    Kaiming,
    /// Normal with a deviation of one over the rank: PEFT's `init_lora_weights="gaussian"`.
    Gaussian,
}

/// What an adapter's product is multiplied by, beside `alpha`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoraScaling {
    /// One over the rank (Hu et al., arXiv 2106.09685, section 4.1).
    #[default]
    Standard,
    /// One over the root of the rank, so that gradients do not shrink with it (rsLoRA: Kalajdzievski, arXiv
    /// 2312.03732, section 3).
    RsLora,
}

impl LoraScaling {
    /// Whether it is that of adapters of which nothing else is said.
    #[must_use]
    pub const fn is_standard(&self) -> bool {
        match self {
            Self::Standard => true,
            Self::RsLora => false,
        }
    }
}

/// The blocks in which one linear layer is adapted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraTarget {
    /// The linear layer.
    pub linear: LoraLinear,
    /// Neighbouring blocks together: the first, and the one behind the last. In order, and apart.
    pub blocks: Vec<[u32; 2]>,
}

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// Rows of each adapter's first matrix, and columns of its second.
    pub rank: u32,
    /// The product of the two is multiplied by this, over the rank or its root.
    pub alpha: f64,
    /// Over which of them.
    #[serde(default, skip_serializing_if = "LoraScaling::is_standard")]
    pub scaling: LoraScaling,
    /// What first matrices begin as.
    #[serde(default)]
    pub init: LoraInit,
    /// Each linear layer once, in order.
    pub targets: Vec<LoraTarget>,
}

impl LoraConfig {
    /// The factor of an adapter's product.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scaling.factor(self.alpha, self.rank) as f32
    }

    /// Whether a linear layer of a block has an adapter.
    #[must_use]
    pub fn adapts(&self, linear: LoraLinear, block: u32) -> bool {
        let target = self.targets.iter().find(|target| target.linear == linear);
        let mut runs = target.into_iter().flat_map(|target| &target.blocks);
        runs.any(|[first, end]| (*first..*end).contains(&block))
    }
}

impl LoraScaling {
    /// The factor of the product of adapters of a rank, from 1.
    #[must_use]
    pub fn factor(self, alpha: f64, rank: u32) -> f64 {
        let rank = f64::from(rank);
        alpha / if self.is_standard() { rank } else { rank.sqrt() }
    }
}

impl LoraLinear {
    /// Those of a family, in the order in which they lie.
    #[must_use]
    pub const fn of_family(family: Family) -> &'static [Self] {
        match family {
            Family::Gpt2 => &[Self::Qkv, Self::Out, Self::Up, Self::Down],
            Family::Llama => {
                &[Self::Query, Self::Key, Self::Value, Self::Out, Self::Gate, Self::Up, Self::Down]
            }
        }
    }

    /// Whether it is a part of attention, and not of the MLP.
    const fn is_of_attention(self) -> bool {
        match self {
            Self::Qkv | Self::Query | Self::Key | Self::Value | Self::Out => true,
            Self::Gate | Self::Up | Self::Down => false,
        }
    }

    /// The name of the layer within its block, as tensors have it.
    pub(super) const fn local_name(self) -> &'static str {
        match self {
            Self::Qkv => "attn.qkv",
            Self::Query => "attn.q",
            Self::Key => "attn.k",
            Self::Value => "attn.v",
            Self::Out => "attn.out",
            Self::Gate => "mlp.gate",
            Self::Up => "mlp.up",
            Self::Down => "mlp.down",
        }
    }

    /// The index of the product that reads it, of the two of its layer.
    pub(super) const fn product(self) -> usize {
        match self {
            Self::Qkv | Self::Query | Self::Key | Self::Value | Self::Gate | Self::Up => 0,
            Self::Out | Self::Down => 1,
        }
    }

    /// Its rows in the matrix of that product.
    pub(super) fn rows(self, model: &ModelConfig) -> Range<usize> {
        let queries = model.query_width();
        let keys = (model.kv_heads * model.head_width) as usize;
        let hidden = model.mlp_width as usize;
        match self {
            Self::Qkv => 0..queries + 2 * keys,
            Self::Query => 0..queries,
            Self::Key => queries..queries + keys,
            Self::Value => queries + keys..queries + 2 * keys,
            Self::Out => 0..model.out_matrix().outputs,
            Self::Gate => 0..hidden,
            Self::Up => model.up_matrix().outputs - hidden..model.up_matrix().outputs,
            Self::Down => 0..model.down_matrix().outputs,
        }
    }

    /// Outputs and inputs of the layer.
    #[must_use]
    pub fn shape(self, model: &ModelConfig) -> MatrixShape {
        let products = match self.is_of_attention() {
            true => [model.qkv_matrix(), model.out_matrix()],
            false => [model.up_matrix(), model.down_matrix()],
        };
        MatrixShape { outputs: self.rows(model).len(), inputs: products[self.product()].inputs }
    }

    /// Its module within a block of transformers.
    #[must_use]
    pub const fn module(self, family: Family) -> &'static str {
        match (family, self) {
            (Family::Gpt2, Self::Qkv | Self::Query | Self::Key | Self::Value) => "attn.c_attn",
            (Family::Gpt2, Self::Out) => "attn.c_proj",
            (Family::Gpt2, Self::Gate | Self::Up) => "mlp.c_fc",
            (Family::Gpt2, Self::Down) => "mlp.c_proj",
            (Family::Llama, Self::Qkv | Self::Query) => "self_attn.q_proj",
            (Family::Llama, Self::Key) => "self_attn.k_proj",
            (Family::Llama, Self::Value) => "self_attn.v_proj",
            (Family::Llama, Self::Out) => "self_attn.o_proj",
            (Family::Llama, Self::Gate) => "mlp.gate_proj",
            (Family::Llama, Self::Up) => "mlp.up_proj",
            (Family::Llama, Self::Down) => "mlp.down_proj",
        }
    }

    /// Its module within a causal language model of transformers.
    #[must_use]
    pub fn module_of(self, family: Family, block: u32) -> String {
        let blocks = match family {
            Family::Gpt2 => "transformer.h",
            Family::Llama => "model.layers",
        };
        format!("{blocks}.{block}.{}", self.module(family))
    }
}

/// The adapted linear layers of a model's layer, in the order in which their adapters lie.
pub(crate) fn adapted_linears(model: &ModelConfig, kind: LayerKind) -> Vec<LoraLinear> {
    let (block, is_attention) = match kind {
        LayerKind::Attention { block } => (block, true),
        LayerKind::Mlp { block } => (block, false),
        LayerKind::Embed | LayerKind::Head => return Vec::new(),
    };
    let adapted = |linear: &LoraLinear| {
        linear.is_of_attention() == is_attention
            && model.lora.as_ref().is_some_and(|lora| lora.adapts(*linear, block))
    };
    LoraLinear::of_family(model.family).iter().copied().filter(adapted).collect()
}
