//! The three passes of each kind of layer.
//!
//! F leaves in the stash what B and W need. B computes the gradient of the layer's input in place
//! of that input. W adds to the weights' gradient, in microbatch order, whenever it runs.

use zbelastic_kernels::{
    Accumulate, Backend, BackwardEpilogue, EmbedGradient, ForwardEpilogue, LinearGradient,
    NormGradient, Rows, Turn,
};

use super::config::{Family, ModelConfig};
use super::parts::{LayerParts, LinearParts, NormParts};
use super::state::LayerState;
use crate::data::Batch;

/// The shape of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicrobatchShape {
    /// Sequences.
    pub sequences: usize,
    /// Tokens a sequence.
    pub sequence_len: usize,
}

impl MicrobatchShape {
    /// Tokens.
    #[must_use]
    pub const fn rows(self) -> usize {
        self.sequences * self.sequence_len
    }
}

/// What every pass needs beside the layer itself.
pub struct Context<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The model.
    pub model: &'a ModelConfig,
    /// The microbatch.
    pub shape: MicrobatchShape,
    /// Rotary angles, if the family has them.
    pub angles: Option<&'a B::Buffer>,
}

impl<B: Backend> Context<'_, B> {
    fn rows(&self) -> Rows {
        Rows { count: self.shape.rows(), width: self.model.width as usize }
    }

    fn hidden_rows(&self) -> Rows {
        Rows { count: self.shape.rows(), width: self.model.mlp_width as usize }
    }
}

/// What F of an attention layer leaves.
pub struct AttentionStash<T> {
    normed: NormedStash<T>,
    qkv: T,
    out: T,
    log_sums: T,
}

/// What F of an MLP layer leaves. GELU keeps what it was given, SwiGLU its gate and up.
pub struct MlpStash<T> {
    normed: NormedStash<T>,
    before: T,
    hidden: T,
}

/// What a normalisation leaves: its result, its statistics, and from B on this microbatch's share
/// of its parameters' gradient.
pub struct NormedStash<T> {
    y: T,
    statistics: T,
    partials: T,
}

/// What F of the head leaves, without its logits.
pub struct HeadStash<T>(NormedStash<T>);

/// The logits of a microbatch, and from B on their gradient: as large as all the rest together.
pub struct Logits<T> {
    logits: T,
    log_sums: T,
}

/// Memory for gradients that live within one pass.
pub struct Scratch<T> {
    rows: T,
    queries: T,
    hidden: T,
}

/// Sizes of everything a pass keeps, in floats, each handed to `make`. What it makes is memory, or
/// just a count.
pub struct Sizes<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The microbatch.
    pub shape: MicrobatchShape,
}

impl Sizes<'_> {
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
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<NormedStash<T>, E> {
        let norm = self.model.norm();
        let parameters = self.model.width as usize * if norm.has_bias() { 2 } else { 1 };
        Ok(NormedStash {
            y: make(self.residual())?,
            statistics: make(self.rows() * norm.statistics_per_row())?,
            partials: make(parameters)?,
        })
    }

    /// An attention layer's stash.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn attention<T, E>(
        &self,
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<AttentionStash<T>, E> {
        Ok(AttentionStash {
            normed: self.normed(make)?,
            qkv: make(self.rows() * self.model.qkv_matrix().outputs)?,
            out: make(self.rows() * self.model.query_width())?,
            log_sums: make(self.rows() * self.model.heads as usize)?,
        })
    }

    /// An MLP layer's stash.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn mlp<T, E>(
        &self,
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<MlpStash<T>, E> {
        Ok(MlpStash {
            normed: self.normed(make)?,
            before: make(self.rows() * self.model.up_matrix().outputs)?,
            hidden: make(self.rows() * self.model.mlp_width as usize)?,
        })
    }

    /// The head's stash.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn head<T, E>(
        &self,
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<HeadStash<T>, E> {
        Ok(HeadStash(self.normed(make)?))
    }

    /// The logits.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn logits<T, E>(
        &self,
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<Logits<T>, E> {
        let logits = make(self.rows() * self.model.vocabulary as usize)?;
        Ok(Logits { logits, log_sums: make(self.rows())? })
    }

    /// A stage's scratch memory.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn scratch<T, E>(
        &self,
        make: &mut impl FnMut(usize) -> Result<T, E>,
    ) -> Result<Scratch<T>, E> {
        let hidden = match self.model.family {
            Family::Gpt2 => 0,
            Family::Llama => self.rows() * self.model.mlp_width as usize,
        };
        Ok(Scratch {
            rows: make(self.residual())?,
            queries: make(self.rows() * self.model.query_width())?,
            hidden: make(hidden)?,
        })
    }
}

fn norm_forward<B: Backend>(
    context: &Context<'_, B>,
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

/// B of a normalisation: `gradient` of its result becomes the gradient of its input, added to what
/// came along the residual stream.
fn norm_backward<B: Backend>(
    context: &Context<'_, B>,
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

fn norm_weights<B: Backend>(
    context: &Context<'_, B>,
    g: &mut B::Buffer,
    norm: &NormParts,
    stash: &NormedStash<B::Buffer>,
    accumulate: Accumulate,
) {
    let to = NormGradient { buffer: g, weight: norm.weight.clone(), bias: norm.bias.clone() };
    let width = context.model.width as usize;
    let norm = context.model.norm();
    context.backend.norm_backward_weights(norm, width, &stash.partials, to, accumulate);
}

fn linear_weights<B: Backend>(
    context: &Context<'_, B>,
    g: &mut B::Buffer,
    linear: &LinearParts,
    x: &B::Buffer,
    gradient: &B::Buffer,
    accumulate: Accumulate,
) {
    let LinearParts { shape, weight, bias } = linear;
    let to = LinearGradient { buffer: g, weight: weight.clone(), bias: bias.clone() };
    let rows = context.shape.rows();
    context.backend.linear_backward_weights(rows, *shape, x, gradient, to, accumulate);
}

/// F of the embedding.
pub(super) fn embed_forward<B: Backend>(
    context: &Context<'_, B>,
    state: &LayerState<B>,
    batch: &Batch,
    y: &mut B::Buffer,
) {
    let LayerParts::Embed { tokens, positions } = &state.parts else { unreachable!() };
    let positions = positions.as_ref().map(|positions| state.view(positions));
    let len = context.shape.sequence_len;
    context.backend.embed_forward(len, &batch.inputs, state.view(tokens), positions, y);
}

/// W of the embedding.
pub(super) fn embed_weights<B: Backend>(
    context: &Context<'_, B>,
    state: &mut LayerState<B>,
    batch: &Batch,
    gradient: &B::Buffer,
    accumulate: Accumulate,
) {
    let LayerParts::Embed { tokens, positions } = &state.parts else { unreachable!() };
    let to = EmbedGradient {
        buffer: &mut state.g,
        tokens: tokens.clone(),
        positions: positions.clone(),
    };
    let len = context.shape.sequence_len;
    context.backend.embed_backward_weights(len, &batch.inputs, gradient, to, accumulate);
}

impl<T> AttentionStash<T> {
    /// F.
    pub(super) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        x: &T,
        y: &mut T,
    ) {
        let LayerParts::Attention { norm, qkv, out } = &state.parts else { unreachable!() };
        let (backend, rows) = (context.backend, context.shape.rows());
        let shape =
            context.model.attention_shape(context.shape.sequences, context.shape.sequence_len);
        norm_forward(context, state, norm, x, &mut self.normed);
        let bias = qkv.bias.as_ref().map(|bias| state.view(bias));
        let plain = ForwardEpilogue::Plain;
        backend.linear_forward(rows, &self.normed.y, state.matrix(0), bias, plain, &mut self.qkv);
        if let Some(angles) = context.angles {
            backend.rotate(shape, angles, Turn::Forward, &mut self.qkv);
        }
        backend.attention_forward(shape, &self.qkv, &mut self.out, &mut self.log_sums);
        let bias = out.bias.as_ref().map(|bias| state.view(bias));
        let add = ForwardEpilogue::Add { skip: x };
        backend.linear_forward(rows, &self.out, state.matrix(1), bias, add, y);
    }

    /// B.
    pub(super) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        gradient: &T,
        x_then_gradient: &mut T,
        scratch: &mut Scratch<T>,
    ) {
        let LayerParts::Attention { norm, .. } = &state.parts else { unreachable!() };
        let (backend, rows) = (context.backend, context.shape.rows());
        let shape =
            context.model.attention_shape(context.shape.sequences, context.shape.sequence_len);
        let to = BackwardEpilogue::Plain { gradient: &mut scratch.queries };
        backend.linear_backward_input(rows, gradient, state.matrix(1), to);
        let queries = &scratch.queries;
        backend.attention_backward(shape, &self.out, &self.log_sums, queries, &mut self.qkv);
        if let Some(angles) = context.angles {
            backend.rotate(shape, angles, Turn::Backward, &mut self.qkv);
        }
        let to = BackwardEpilogue::Plain { gradient: &mut scratch.rows };
        backend.linear_backward_input(rows, &self.qkv, state.matrix(0), to);
        let (through, skip) = (&scratch.rows, Some(gradient));
        norm_backward(context, state, norm, through, skip, &mut self.normed, x_then_gradient);
    }

    /// W.
    pub(super) fn backward_weights<B: Backend<Buffer = T>>(
        &self,
        context: &Context<'_, B>,
        state: &mut LayerState<B>,
        gradient: &T,
        accumulate: Accumulate,
    ) {
        let LayerParts::Attention { norm, qkv, out } = &state.parts else { unreachable!() };
        let g = &mut state.g;
        linear_weights(context, g, out, &self.out, gradient, accumulate);
        linear_weights(context, g, qkv, &self.normed.y, &self.qkv, accumulate);
        norm_weights(context, g, norm, &self.normed, accumulate);
    }
}

impl<T> MlpStash<T> {
    /// F.
    pub(super) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        x: &T,
        y: &mut T,
    ) {
        let LayerParts::Mlp { norm, up, down } = &state.parts else { unreachable!() };
        let (backend, rows) = (context.backend, context.shape.rows());
        norm_forward(context, state, norm, x, &mut self.normed);
        let bias = up.bias.as_ref().map(|bias| state.view(bias));
        let (matrix, normed) = (state.matrix(0), &self.normed.y);
        match context.model.family {
            Family::Gpt2 => {
                let gelu = ForwardEpilogue::Gelu { before: &mut self.before };
                backend.linear_forward(rows, normed, matrix, bias, gelu, &mut self.hidden);
            }
            Family::Llama => {
                let plain = ForwardEpilogue::Plain;
                backend.linear_forward(rows, normed, matrix, bias, plain, &mut self.before);
                backend.swiglu_forward(context.hidden_rows(), &self.before, &mut self.hidden);
            }
        }
        let bias = down.bias.as_ref().map(|bias| state.view(bias));
        let add = ForwardEpilogue::Add { skip: x };
        backend.linear_forward(rows, &self.hidden, state.matrix(1), bias, add, y);
    }

    /// B.
    pub(super) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        gradient: &T,
        x_then_gradient: &mut T,
        scratch: &mut Scratch<T>,
    ) {
        let LayerParts::Mlp { norm, .. } = &state.parts else { unreachable!() };
        let (backend, rows) = (context.backend, context.shape.rows());
        match context.model.family {
            Family::Gpt2 => {
                let before_then_gradient = &mut self.before;
                let gelu = BackwardEpilogue::Gelu { before_then_gradient };
                backend.linear_backward_input(rows, gradient, state.matrix(1), gelu);
            }
            Family::Llama => {
                let to = BackwardEpilogue::Plain { gradient: &mut scratch.hidden };
                backend.linear_backward_input(rows, gradient, state.matrix(1), to);
                let hidden_rows = context.hidden_rows();
                backend.swiglu_backward(hidden_rows, &scratch.hidden, &mut self.before);
            }
        }
        let to = BackwardEpilogue::Plain { gradient: &mut scratch.rows };
        backend.linear_backward_input(rows, &self.before, state.matrix(0), to);
        let (through, skip) = (&scratch.rows, Some(gradient));
        norm_backward(context, state, norm, through, skip, &mut self.normed, x_then_gradient);
    }

    /// W.
    pub(super) fn backward_weights<B: Backend<Buffer = T>>(
        &self,
        context: &Context<'_, B>,
        state: &mut LayerState<B>,
        gradient: &T,
        accumulate: Accumulate,
    ) {
        let LayerParts::Mlp { norm, up, down } = &state.parts else { unreachable!() };
        let g = &mut state.g;
        linear_weights(context, g, down, &self.hidden, gradient, accumulate);
        linear_weights(context, g, up, &self.normed.y, &self.before, accumulate);
        norm_weights(context, g, norm, &self.normed, accumulate);
    }
}

impl<T> HeadStash<T> {
    /// F: the sum of cross-entropies over the microbatch.
    pub(super) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        x: &T,
        targets: &[u32],
        logits: &mut Logits<T>,
    ) -> f64 {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        norm_forward(context, state, norm, x, &mut self.0);
        let Logits { logits, log_sums } = logits;
        context.backend.head_forward(&self.0.y, state.matrix(0), targets, logits, log_sums)
    }

    /// B, of `scale` times the loss.
    pub(super) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &Context<'_, B>,
        state: &LayerState<B>,
        (targets, scale): (&[u32], f32),
        logits: &mut Logits<T>,
        x_then_gradient: &mut T,
        scratch: &mut Scratch<T>,
    ) {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        context.backend.head_backward_input(
            targets,
            scale,
            &logits.log_sums,
            state.matrix(0),
            &mut logits.logits,
            &mut scratch.rows,
        );
        norm_backward(context, state, norm, &scratch.rows, None, &mut self.0, x_then_gradient);
    }

    /// W of the head's matrix, which reads the logits' gradient for the last time.
    pub(super) fn matrix_weights<B: Backend<Buffer = T>>(
        &self,
        context: &Context<'_, B>,
        state: &mut LayerState<B>,
        logits: &Logits<T>,
        accumulate: Accumulate,
    ) {
        let LayerParts::Head { head, .. } = &state.parts else { unreachable!() };
        let g = &mut state.g;
        linear_weights(context, g, head, &self.0.y, &logits.logits, accumulate);
    }

    /// W of the final normalisation.
    pub(super) fn norm_weights<B: Backend<Buffer = T>>(
        &self,
        context: &Context<'_, B>,
        state: &mut LayerState<B>,
        accumulate: Accumulate,
    ) {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        norm_weights(context, &mut state.g, norm, &self.0, accumulate);
    }
}

impl<T> Logits<T> {
    /// The logits, `rows` by vocabulary, until B replaces them.
    #[must_use]
    pub fn values(&self) -> &T {
        &self.logits
    }
}
