//! Attention with the normalisation before it.

use zbelastic_kernels::{Accumulate, Backend, BackwardEpilogue, ForwardEpilogue, Turn};

use super::{
    AttentionStash, Context, Scratch, linear_weights, norm_backward, norm_forward, norm_weights,
};
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

impl<T> AttentionStash<T> {
    /// F.
    pub(in crate::model) fn forward<B: Backend<Buffer = T>>(
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
    pub(in crate::model) fn backward_input<B: Backend<Buffer = T>>(
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
    pub(in crate::model) fn backward_weights<B: Backend<Buffer = T>>(
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
