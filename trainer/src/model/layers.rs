//! The three passes of each kind of layer, and the activations that they keep. Each kind has a file
//! below this one.
//!
//! F leaves in the stash the operands of B and W. B computes the gradient of the layer's input in
//! place of that input. W adds to the weights' gradient, in microbatch order, whenever it runs.

mod attention;
mod documents;
mod embed;
mod head;
mod mlp;
mod stash;

pub(super) use documents::FirstKeys;
pub(super) use embed::{embed_forward, embed_weights};
pub(super) use stash::StashPartsMut;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use zbelastic_kernels::{
    Accumulate, AttentionShape, Backend, BackwardEpilogue, ForwardEpilogue, LinearGradient,
    NormGradient, RowsShape,
};
use zbelastic_types::SliceIndex;

use super::buffer_size::BufferSize;
use super::config::{Family, LayerKind, ModelConfig};
use super::layer_times::{LayerOp, LayerTimer};
use super::lora::LoraConfig;
use super::parts::{LayerParts, LinearParts, NormParts};
use super::state::LayerState;
use super::tensors::LayerSpec;
use crate::data::MicrobatchShape;

/// Which slice of its sequences a pass is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlicePosition {
    /// Index of the slice within its sequences.
    pub slice: SliceIndex,
    /// Slices of the sequences.
    pub count: u32,
    /// Where in its sequence the slice begins.
    pub first_position: usize,
}

impl SlicePosition {
    /// Sequences that are not cut.
    pub const WHOLE: Self = Self { slice: SliceIndex(0), count: 1, first_position: 0 };

    /// Whether there are others.
    pub(super) fn is_cut(self) -> bool {
        self.count > 1
    }

    /// Whether none comes behind it.
    pub(crate) fn is_last(self) -> bool {
        self.slice.0 + 1 == self.count
    }
}

/// The context of every pass beside the layer itself.
pub struct PassContext<'a, B: Backend> {
    /// The device that the pass runs on.
    pub backend: &'a B,
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// The microbatch, or the slice of it.
    pub shape: MicrobatchShape,
    /// Which slice that is.
    pub place: SlicePosition,
    /// Rotary angles of its positions, if the family has them.
    pub angles: Option<&'a B::Buffer>,
    /// The timer that is called where layers begin and end.
    pub timer: Option<&'a LayerTimer>,
}

impl<B: Backend> PassContext<'_, B> {
    /// The first layer of a pass begins.
    pub(super) fn begin(&self) {
        self.timer.inspect(|timer| timer.begin(self.backend));
    }

    /// A layer is done, and the next one begins.
    pub(super) fn pass(&self, kind: LayerKind, part: LayerOp) {
        self.timer.inspect(|timer| timer.pass(self.backend, kind, part));
    }

    fn rows(&self) -> RowsShape {
        RowsShape { count: self.shape.rows(), width: self.model.width as usize }
    }

    fn attention_shape(&self) -> AttentionShape {
        self.model.attention_shape(self.shape.sequences, self.shape.sequence_len)
    }

    fn hidden_rows(&self) -> RowsShape {
        RowsShape { count: self.shape.rows(), width: self.model.mlp_width as usize }
    }
}

/// Whether a forward pass makes queries, keys and values, or finds them: R of a slice does, because
/// other slices read them and they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projections {
    Made,
    Found,
}

/// The activations that F of an attention layer leaves.
pub struct AttentionStash<T> {
    normed: NormedStash<T>,
    qk_norm: QkNormStash<T>,
    qkv: T,
    out: T,
    log_sums: T,
    /// The shares that later slices add to the gradients of keys and values; empty where there are
    /// none.
    key_value_gradient: T,
}

/// What B of QK-norm reads, and the share of its weights' gradient; empty where there is no such
/// norm.
pub struct QkNormStash<T> {
    before: T,
    statistics: T,
    partials: T,
}

/// The activations that F of an MLP layer leaves. GELU keeps its input, SwiGLU its gate and up.
pub struct MlpStash<T> {
    normed: NormedStash<T>,
    before: T,
    hidden: T,
}

/// The results of a normalisation: its output, its statistics, and from B on this microbatch's
/// share of its parameters' gradient.
pub struct NormedStash<T> {
    y: T,
    statistics: T,
    partials: T,
}

/// The activations that F of the head leaves, without its logits.
pub struct HeadStash<T>(NormedStash<T>);

/// The logits of a microbatch, and from B on their gradient: as large as all the rest together.
pub struct Logits<T> {
    logits: T,
    log_sums: T,
}

/// Memory for gradients that live within one pass.
pub struct PassScratch<T> {
    rows: T,
    queries: T,
    hidden: T,
    /// Of a model that has adapters.
    adapters: Option<AdapterScratch<T>>,
}

/// Memory for W of one adapter after the other.
struct AdapterScratch<T> {
    /// The scaled gradient of adapted rows, by how many there are.
    columns: BTreeMap<usize, T>,
    /// As many floats of a token as the rank.
    narrow: T,
}

/// Sizes of everything a pass keeps, in floats, each handed to `make`. `make` returns memory, or
/// just a count.
pub struct PassSizes<'a> {
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// The microbatch, or a slice of it.
    pub shape: MicrobatchShape,
    /// Whether it is a slice.
    pub is_cut: bool,
}

impl<'a> PassSizes<'a> {
    /// Of passes over whole sequences.
    #[must_use]
    pub fn whole(model: &'a ModelConfig, shape: MicrobatchShape) -> Self {
        Self { model, shape, is_cut: false }
    }

    fn rows(&self) -> usize {
        self.shape.rows()
    }

    /// A boundary between layers.
    #[must_use]
    pub fn residual(&self) -> usize {
        self.rows() * self.model.width as usize
    }

    fn normed<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<NormedStash<T>, E> {
        let norm = self.model.norm();
        let parameters = self.model.width as usize * if norm.has_bias() { 2 } else { 1 };
        Ok(NormedStash {
            y: make(BufferSize::Rows(self.residual()))?,
            statistics: make(BufferSize::Sums(self.rows() * norm.statistics_per_row()))?,
            partials: make(BufferSize::Sums(parameters))?,
        })
    }

    fn qk_norm<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<QkNormStash<T>, E> {
        let shape = self.model.attention_shape(self.shape.sequences, self.shape.sequence_len);
        let of_norm = |floats| if self.model.features.qk_norm { floats } else { 0 };
        Ok(QkNormStash {
            before: make(BufferSize::Rows(of_norm(self.rows() * shape.qk_width())))?,
            statistics: make(BufferSize::Sums(of_norm(self.rows() * shape.qk_heads())))?,
            partials: make(BufferSize::Sums(of_norm(2 * shape.head_width)))?,
        })
    }

    /// Floats of the keys and values of a slice.
    fn key_values(&self) -> usize {
        self.rows() * (self.model.qkv_matrix().outputs - self.model.query_width())
    }

    /// An attention layer's stash.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn attention<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<AttentionStash<T>, E> {
        Ok(AttentionStash {
            normed: self.normed(make)?,
            qk_norm: self.qk_norm(make)?,
            qkv: make(BufferSize::Rows(self.rows() * self.model.qkv_matrix().outputs))?,
            out: make(BufferSize::Rows(self.rows() * self.model.query_width()))?,
            log_sums: make(BufferSize::Sums(self.rows() * self.model.heads as usize))?,
            key_value_gradient: make(BufferSize::Sums(if self.is_cut {
                self.key_values()
            } else {
                0
            }))?,
        })
    }

    /// An MLP layer's stash.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn mlp<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<MlpStash<T>, E> {
        Ok(MlpStash {
            normed: self.normed(make)?,
            before: make(BufferSize::Rows(self.rows() * self.model.up_matrix().outputs))?,
            hidden: make(BufferSize::Rows(self.rows() * self.model.mlp_width as usize))?,
        })
    }

    /// Memory for the activations that F of the head leaves, without its logits.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn head<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<HeadStash<T>, E> {
        Ok(HeadStash(self.normed(make)?))
    }

    /// Memory for the logits of a microbatch, and the sums that go with them.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn logits<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<Logits<T>, E> {
        let logits = make(BufferSize::Rows(self.rows() * self.model.vocabulary as usize))?;
        Ok(Logits { logits, log_sums: make(BufferSize::Sums(self.rows()))? })
    }

    fn adapters<T, E>(
        &self,
        lora: &LoraConfig,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<AdapterScratch<T>, E> {
        let narrow = make(BufferSize::Rows(self.rows() * lora.rank as usize))?;
        let mut columns = BTreeMap::new();
        for target in &lora.targets {
            let outputs = target.linear.shape(self.model).outputs;
            if let Entry::Vacant(place) = columns.entry(outputs) {
                place.insert(make(BufferSize::Rows(self.rows() * outputs))?);
            }
        }
        Ok(AdapterScratch { columns, narrow })
    }

    /// A stage's scratch memory.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn scratch<T, E>(
        &self,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<PassScratch<T>, E> {
        let hidden = match self.model.family {
            Family::Gpt2 => 0,
            Family::Llama => self.rows() * self.model.mlp_width as usize,
        };
        Ok(PassScratch {
            rows: make(BufferSize::Rows(self.residual()))?,
            queries: make(BufferSize::Rows(self.rows() * self.model.query_width()))?,
            hidden: make(BufferSize::Rows(hidden))?,
            adapters: self.model.lora.as_ref().map(|lora| self.adapters(lora, make)).transpose()?,
        })
    }
}

fn norm_forward<B: Backend>(
    context: &PassContext<'_, B>,
    state: &LayerState<B>,
    norm: &NormParts,
    x: &B::Buffer,
    stash: &mut NormedStash<B::Buffer>,
) {
    context.backend.norm_forward(
        context.model.norm(),
        context.rows(),
        x,
        state.view(&norm.weight),
        norm.bias.as_ref().map(|bias| state.view(bias)),
        &mut stash.y,
        &mut stash.statistics,
    );
}

/// B of a normalisation: `gradient` of its result becomes the gradient of its input, added to the
/// gradient that came along the residual stream.
fn norm_backward<B: Backend>(
    context: &PassContext<'_, B>,
    state: &LayerState<B>,
    norm: &NormParts,
    gradient: &B::Buffer,
    skip: Option<&B::Buffer>,
    stash: &mut NormedStash<B::Buffer>,
    x_then_gradient: &mut B::Buffer,
) {
    context.backend.norm_backward_input(
        context.model.norm(),
        context.rows(),
        gradient,
        skip,
        state.view(&norm.weight),
        &stash.statistics,
        x_then_gradient,
        &mut stash.partials,
    );
}

/// The gradient of a layer as W adds to it. An operation all of whose parameters are frozen does not
/// run. One that computes trained and frozen parameters together, as the product of queries, keys
/// and values, leaves numbers in the places of the frozen ones that nothing reads.
struct WeightGradients<'a, B: Backend> {
    spec: &'a LayerSpec,
    g: &'a mut B::Buffer,
    /// Both matrices of each adapter.
    adapters: &'a [[B::Matrix; 2]],
}

impl<'a, B: Backend> WeightGradients<'a, B> {
    /// The gradient of a layer, and where its parameters lie.
    fn of(state: &'a mut LayerState<B>) -> (Self, &'a LayerParts) {
        let LayerState { spec, parts, g, adapters, .. } = state;
        (Self { spec, g, adapters }, parts)
    }

    /// Where the gradient of parameters lies that W of an operation writes.
    fn place(&self, range: &Range<usize>) -> Range<usize> {
        self.spec.gradient_of(range)
    }

    /// `range`, if a tensor in it is trained.
    fn trained<'r>(&self, range: &'r Option<Range<usize>>) -> Option<&'r Range<usize>> {
        range.as_ref().filter(|range| self.spec.trains(range))
    }
}

fn norm_weights<B: Backend>(
    context: &PassContext<'_, B>,
    to: &mut WeightGradients<'_, B>,
    norm: &NormParts,
    stash: &NormedStash<B::Buffer>,
    accumulate: Accumulate,
) {
    let NormParts { weight, bias } = norm;
    if !to.spec.trains(weight) && to.trained(bias).is_none() {
        return;
    }
    let places = (to.place(weight), bias.as_ref().map(|bias| to.place(bias)));
    let to = NormGradient { buffer: to.g, weight: places.0, bias: places.1 };
    let width = context.model.width as usize;
    let norm = context.model.norm();
    context.backend.norm_backward_weights(norm, width, &stash.partials, to, accumulate);
}

fn linear_weights<B: Backend>(
    context: &PassContext<'_, B>,
    to: &mut WeightGradients<'_, B>,
    linear: &LinearParts,
    x: &B::Buffer,
    gradient: &B::Buffer,
    accumulate: Accumulate,
) {
    if !linear.is_trained(to.spec) {
        return;
    }
    let LinearParts { shape, weight, bias, .. } = linear;
    let bias = to.trained(bias).map(|bias| to.place(bias));
    let weight = to.place(weight);
    let to = LinearGradient { buffer: to.g, weight, bias };
    let rows = context.shape.rows();
    context.backend.linear_backward_weights(rows, *shape, x, gradient, to, accumulate);
}

/// W of a linear layer that may have adapters. With `d` the gradient of the layer's result, in the rows that an adapter
/// adapts, and `s` its factor, the gradient of `A` is `(s d B)^T x`, and that of `B` is `(s d)^T (x A^T)`.
fn adapted_weights<B: Backend>(
    context: &PassContext<'_, B>,
    to: &mut WeightGradients<'_, B>,
    linear: &LinearParts,
    x: &B::Buffer,
    gradient: &B::Buffer,
    scratch: &mut PassScratch<B::Buffer>,
    accumulate: Accumulate,
) {
    linear_weights(context, to, linear, x, gradient, accumulate);
    let backend = context.backend;
    let rows = context.shape.rows();
    for adapter in &linear.adapters {
        let AdapterScratch { columns, narrow } = scratch.adapters.as_mut().expect(HAS_ADAPTERS);
        let columns = columns.get_mut(&adapter.rows.len()).expect(HAS_ADAPTERS);
        let [shape_a, shape_b] = adapter.shapes(linear.shape.inputs);
        let [a, b] = &to.adapters[adapter.index];
        let width = linear.shape.outputs;
        backend.scale_columns(gradient, width, adapter.rows.clone(), adapter.scale, columns);
        let through = BackwardEpilogue::Plain { gradient: narrow };
        backend.linear_backward_input(rows, columns, b, through);
        let [of_a, of_b] = [&adapter.a, &adapter.b].map(|matrix| to.place(matrix));
        let of_a = LinearGradient { buffer: to.g, weight: of_a, bias: None };
        backend.linear_backward_weights(rows, shape_a, x, narrow, of_a, accumulate);
        backend.linear_forward(rows, x, a, None, ForwardEpilogue::Plain, narrow);
        let of_b = LinearGradient { buffer: to.g, weight: of_b, bias: None };
        backend.linear_backward_weights(rows, shape_b, narrow, columns, of_b, accumulate);
    }
}

/// Why there is scratch memory for an adapter.
const HAS_ADAPTERS: &str = "a model with adapters has scratch memory for them";

impl<T> Logits<T> {
    /// The logits, `rows` by vocabulary, until B replaces them.
    #[must_use]
    pub fn values(&self) -> &T {
        &self.logits
    }
}
