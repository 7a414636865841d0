//! The MLP with the normalisation before it.

use zbelastic_kernels::{Accumulate, Backend, BackwardEpilogue, ForwardEpilogue};

use super::{
    MlpStash, PassContext, PassScratch, WeightGradients, adapted_weights, norm_backward,
    norm_forward, norm_weights,
};
use crate::model::config::Family;
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

impl<T> MlpStash<T> {
    pub(in crate::model) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        x: &T,
        y: &mut T,
    ) {
        let LayerParts::Mlp { norm, up, down } = &state.parts else { unreachable!() };
        let backend = context.backend;
        let rows = context.shape.rows();
        norm_forward(context, state, norm, x, &mut self.normed);
        let bias = up.bias.as_ref().map(|bias| state.view(bias));
        let matrix = state.matrix(0);
        let normed = &self.normed.y;
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

    pub(in crate::model) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        gradient: &T,
        x_then_gradient: &mut T,
        scratch: &mut PassScratch<T>,
    ) {
        let LayerParts::Mlp { norm, .. } = &state.parts else { unreachable!() };
        let backend = context.backend;
        let rows = context.shape.rows();
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
        let through = &scratch.rows;
        let skip = Some(gradient);
        norm_backward(context, state, norm, through, skip, &mut self.normed, x_then_gradient);
    }

    pub(in crate::model) fn backward_weights<B: Backend<Buffer = T>>(
        &self,
        context: &PassContext<'_, B>,
        state: &mut LayerState<B>,
        gradient: &T,
        scratch: &mut PassScratch<T>,
        accumulate: Accumulate,
    ) {
        let (mut to, parts) = WeightGradients::of(state);
        let LayerParts::Mlp { norm, up, down } = parts else { unreachable!() };
        adapted_weights(context, &mut to, down, &self.hidden, gradient, scratch, accumulate);
        adapted_weights(context, &mut to, up, &self.normed.y, &self.before, scratch, accumulate);
        norm_weights(context, &mut to, norm, &self.normed, accumulate);
    }
}
