//! The parameter tensors: their names, where they lie, how they begin.
//!
//! A layer's parameters lie side by side in one buffer, in canonical order; matrices that a kernel
//! reads as one (queries, keys and values; gate and up) are neighbours. Canonical order over the
//! whole model is layer by layer in this order, whatever stage holds what.
//!
//! Where the head is tied to the embedding, the head's buffer ends with the token embedding once
//! more, under its name and its number: it is one tensor, and the embedding owns it.

use std::ops::Range;

use zbelastic_kernels::MatrixShape;
use zbelastic_types::{LayerId, TensorIndex};

use super::config::{Family, LayerKind, ModelConfig, TOKENS_INDEX};
use super::lora::{LoraInit, adapted_linears};
use super::state_places::place_state;
use crate::random::RandomPurpose;

/// The values of a tensor before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TensorInit {
    /// Each element is this number.
    Constant(f32),
    /// Normal with mean zero and this deviation.
    Normal(f64),
    /// Uniform, no further from zero than this.
    Uniform(f64),
}

/// The random numbers that a tensor's values are drawn from. They are not numbered as tensors are: what has
/// no adapters is drawn as in a model without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDraw {
    /// Weights, or those of adapters.
    pub purpose: RandomPurpose,
    /// A tensor's number in a model without adapters, or of an adapted linear layer.
    pub subject: u32,
}

/// One parameter tensor of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// The name a person meets: `layers.2.mlp.up`, or with `.bias` behind it.
    pub name: String,
    /// Its number in canonical order.
    pub index: TensorIndex,
    /// Whether it is a tensor of an earlier layer once more. It has the name, the number, the
    /// gradient and the update of that one, and is counted and reported there alone.
    pub is_shared: bool,
    /// Whether training leaves it as it is: it has no gradient and no update, and its moments are
    /// not written.
    pub is_frozen: bool,
    /// Rows and columns of a matrix, or the length of a vector.
    pub shape: Vec<usize>,
    /// Where it lies in its layer's buffer.
    pub range: Range<usize>,
    /// Where its moments lie in the buffer of each, if it has some.
    pub moments: Option<Range<usize>>,
    /// Where its gradient lies in the buffer of gradients, if it has one, or W writes it with others.
    pub gradient: Option<Range<usize>>,
    /// How its values are set before the first step.
    pub initial: TensorInit,
    /// The random numbers for that.
    pub draw: TensorDraw,
}

impl TensorSpec {
    /// Whether it is a matrix; what is not is left out of weight decay by default.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// Whether it is of an adapter, and not of the model that is adapted.
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        ADAPTER_SUFFIXES.iter().any(|suffix| self.name.ends_with(suffix))
    }

    /// Rows and columns of a matrix.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn matrix_shape(&self) -> MatrixShape {
        assert!(self.is_matrix(), "{} is a matrix", self.name);
        MatrixShape { outputs: self.shape[0], inputs: self.shape[1] }
    }
}

/// The tensors of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Id of the layer in model order.
    pub layer: LayerId,
    /// Embedding, attention, MLP or head.
    pub kind: LayerKind,
    /// In the order in which they lie.
    pub tensors: Vec<TensorSpec>,
}

impl LayerSpec {
    /// Floats of the layer's buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.range.end)
    }

    /// Whether the layer has no parameters; none is like that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensors that are counted and reported with this layer: all that it owns.
    pub fn own_tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().filter(|tensor| !tensor.is_shared)
    }

    /// Whether a tensor that lies within `range` is trained.
    #[must_use]
    pub fn trains(&self, range: &Range<usize>) -> bool {
        let is_within = |of: &Range<usize>| range.start <= of.start && of.end <= range.end;
        self.trained_tensors().any(|tensor| is_within(&tensor.range))
    }

    /// Its tensors that are not frozen, those of an earlier layer included.
    pub fn trained_tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().filter(|tensor| !tensor.is_frozen)
    }

    /// Floats of its tensors that are not frozen.
    #[must_use]
    pub fn trained_floats(&self) -> usize {
        self.trained_tensors().map(|tensor| tensor.range.len()).sum()
    }

    /// Where the matrix lies that a tied head shares with the embedding, if this layer is one of
    /// the two.
    #[must_use]
    pub fn tied_range(&self) -> Option<Range<usize>> {
        let tensor = match self.kind {
            LayerKind::Embed => self.tensors.first(),
            LayerKind::Head => self.tensors.last().filter(|tensor| tensor.is_shared),
            LayerKind::Attention { .. } | LayerKind::Mlp { .. } => None,
        };
        tensor.map(|tensor| tensor.range.clone())
    }

    /// Where the `count` tensors from number `first` of the layer on lie, as one piece.
    #[must_use]
    pub fn span(&self, first: usize, count: usize) -> Range<usize> {
        self.tensors[first].range.start..self.tensors[first + count - 1].range.end
    }
}

/// The ends of the names of an adapter's two tensors, which are PEFT's.
const ADAPTER_SUFFIXES: [&str; 2] = [".lora_A", ".lora_B"];

/// The name of the token embedding.
const TOKENS: &str = "embed.tokens";

/// Draws of adapters that a layer has at most: a [`super::LoraLinear`] each.
const LORA_LINEARS: u32 = 8;

/// Deviation of initial weights (Radford et al., 2019, section 2.3).
const DEVIATION: f64 = 0.02;

/// All layers of a model, in order.
#[must_use]
pub fn model_layers(model: &ModelConfig) -> Vec<LayerSpec> {
    let mut next = NextTensor { index: TensorIndex(0), subject: 0 };
    let layers = (0..model.layer_count()).map(LayerId);
    layers
        .map(|layer| {
            let kind = model.layer_kind(layer);
            let mut builder = SpecBuilder { next, tensors: Vec::new() };
            builder.layer(model, kind);
            builder.adapters(model, layer, kind);
            next = builder.next;
            let mut tensors = builder.tensors;
            for tensor in &mut tensors {
                tensor.is_frozen = model.frozen.contains(tensor.index);
            }
            let mut spec = LayerSpec { layer, kind, tensors };
            place_state(model, &mut spec);
            spec
        })
        .collect()
}

/// The number of tensors and of parameters of a model. What two layers share counts once.
#[must_use]
pub fn model_size(model: &ModelConfig) -> (u32, u64) {
    let layers = model_layers(model);
    let own = || layers.iter().flat_map(LayerSpec::own_tensors);
    (own().count() as u32, own().map(|tensor| tensor.range.len() as u64).sum())
}

/// The number of the next tensor, and what it is drawn as.
#[derive(Clone, Copy)]
struct NextTensor {
    index: TensorIndex,
    subject: u32,
}

struct SpecBuilder {
    next: NextTensor,
    tensors: Vec<TensorSpec>,
}

impl SpecBuilder {
    fn add(&mut self, name: String, shape: &[usize], initial: TensorInit) {
        let draw = TensorDraw { purpose: RandomPurpose::Weights, subject: self.next.subject };
        self.next.subject += 1;
        self.add_drawn(name, shape, initial, draw);
    }

    fn add_drawn(&mut self, name: String, shape: &[usize], initial: TensorInit, draw: TensorDraw) {
        let start = self.tensors.last().map_or(0, |tensor| tensor.range.end);
        let range = start..start + shape.iter().product::<usize>();
        let index = self.next.index;
        self.next.index = index.next();
        let shape = shape.to_vec();
        self.tensors.push(TensorSpec {
            name,
            index,
            is_shared: false,
            is_frozen: false,
            shape,
            range,
            moments: None,
            gradient: None,
            initial,
            draw,
        });
    }

    /// The last tensor is the one of number `owned` once more.
    fn share_last(&mut self, owned: TensorIndex) {
        let last = self.tensors.last_mut().expect("a tensor was added");
        (last.index, last.is_shared) = (owned, true);
        last.draw.subject = owned.0;
    }

    fn norm(&mut self, model: &ModelConfig, name: &str) {
        let width = [model.width as usize];
        self.add(name.to_owned(), &width, TensorInit::Constant(1.0));
        if model.norm().has_bias() {
            self.add(format!("{name}.bias"), &width, TensorInit::Constant(0.0));
        }
    }

    /// Matrices that lie side by side, then their biases.
    fn linears(&mut self, matrices: &[(String, usize, usize)], has_biases: bool, deviation: f64) {
        for (name, outputs, inputs) in matrices {
            self.add(name.clone(), &[*outputs, *inputs], TensorInit::Normal(deviation));
        }
        if has_biases {
            for (name, outputs, _) in matrices {
                self.add(format!("{name}.bias"), &[*outputs], TensorInit::Constant(0.0));
            }
        }
    }

    /// Behind all else, so that it lies as without adapters.
    fn adapters(&mut self, model: &ModelConfig, layer: LayerId, kind: LayerKind) {
        let (Some(lora), LayerKind::Attention { block } | LayerKind::Mlp { block }) =
            (&model.lora, kind)
        else {
            return;
        };
        for linear in adapted_linears(model, kind) {
            let MatrixShape { outputs, inputs } = linear.shape(model);
            let rank = lora.rank as usize;
            let initial = match lora.init {
                LoraInit::Kaiming => TensorInit::Uniform((inputs as f64).sqrt().recip()),
                LoraInit::Gaussian => TensorInit::Normal(f64::from(lora.rank).recip()),
            };
            let subject = layer.0 * LORA_LINEARS + linear as u32;
            let draw = TensorDraw { purpose: RandomPurpose::Adapters, subject };
            let name = |suffix| format!("layers.{block}.{}{suffix}", linear.local_name());
            let [a, b] = ADAPTER_SUFFIXES.map(name);
            self.add_drawn(a, &[rank, inputs], initial, draw);
            self.add_drawn(b, &[outputs, rank], TensorInit::Constant(0.0), draw);
        }
    }

    fn layer(&mut self, model: &ModelConfig, kind: LayerKind) {
        let width = model.width as usize;
        // Projections back into the residual stream start smaller, so that its size does not grow
        // with depth (Radford et al., 2019, section 2.3).
        let residual = DEVIATION / f64::from(2 * model.blocks).sqrt();
        match kind {
            LayerKind::Embed => {
                let tokens = [model.vocabulary as usize, width];
                self.add(TOKENS.into(), &tokens, TensorInit::Normal(DEVIATION));
                if model.family == Family::Gpt2 {
                    let positions = [model.positions as usize, width];
                    self.add("embed.positions".into(), &positions, TensorInit::Normal(DEVIATION));
                }
            }
            LayerKind::Attention { block } => {
                let name = |part: &str| format!("layers.{block}.{part}");
                let keys = (model.kv_heads * model.head_width) as usize;
                let queries = model.query_width();
                self.norm(model, &name("norm1"));
                let qkv = [("attn.q", queries), ("attn.k", keys), ("attn.v", keys)];
                let qkv = qkv.map(|(part, outputs)| (name(part), outputs, width));
                self.linears(&qkv, model.has_qkv_bias(), DEVIATION);
                if model.features.qk_norm {
                    let head = [model.head_width as usize];
                    self.add(name("attn.q_norm"), &head, TensorInit::Constant(1.0));
                    self.add(name("attn.k_norm"), &head, TensorInit::Constant(1.0));
                }
                let out = [(name("attn.out"), width, queries)];
                self.linears(&out, model.has_out_bias(), residual);
            }
            LayerKind::Mlp { block } => {
                let name = |part: &str| format!("layers.{block}.{part}");
                let hidden = model.mlp_width as usize;
                self.norm(model, &name("norm2"));
                let has_bias = model.has_mlp_bias();
                let up = (name("mlp.up"), hidden, width);
                match model.family {
                    Family::Gpt2 => self.linears(&[up], has_bias, DEVIATION),
                    Family::Llama => {
                        let gate = (name("mlp.gate"), hidden, width);
                        self.linears(&[gate, up], has_bias, DEVIATION);
                    }
                }
                self.linears(&[(name("mlp.down"), width, hidden)], has_bias, residual);
            }
            LayerKind::Head => {
                self.norm(model, "norm");
                let head = [model.vocabulary as usize, width];
                let name = if model.tied { TOKENS } else { "head" };
                self.add(name.into(), &head, TensorInit::Normal(DEVIATION));
                if model.tied {
                    self.share_last(TOKENS_INDEX);
                }
            }
        }
    }
}

/// A tensor by the name a person uses, with or without `.weight` behind it.
#[must_use]
pub fn find_tensor<'a>(
    layers: &'a [LayerSpec],
    name: &str,
) -> Option<(&'a LayerSpec, &'a TensorSpec)> {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    layers.iter().find_map(|layer| {
        let tensor = layer.tensors.iter().find(|tensor| tensor.name == name)?;
        Some((layer, tensor))
    })
}
