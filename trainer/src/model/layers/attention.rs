//! Attention with the normalisation before it.

use zbelastic_kernels::{
    Accumulate, AttentionMask, Backend, BackwardEpilogue, EarlierSlice, ForwardEpilogue,
    NormGradient, RotaryDirection,
};

use super::{
    AttentionStash, PassContext, PassScratch, Projections, QkNormStash, WeightGradients,
    adapted_weights, norm_backward, norm_forward, norm_weights,
};
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

impl<T> AttentionStash<T> {
    /// What later slices attend to.
    pub(in crate::model) fn qkv(&self) -> &T {
        &self.qkv
    }

    /// What later slices attend to and add to.
    pub(in crate::model) fn as_earlier(&mut self) -> EarlierSlice<'_, T> {
        let Self { qkv, key_value_gradient, .. } = self;
        EarlierSlice { qkv, key_value_gradient }
    }

    /// F, of queries that see what the mask leaves, with the queries, keys and values of earlier
    /// slices.
    pub(in crate::model) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        (projections, mask, earlier): (Projections, AttentionMask<'_>, &[&T]),
        x: &T,
        y: &mut T,
    ) {
        let LayerParts::Attention { norm, out, .. } = &state.parts else { unreachable!() };
        norm_forward(context, state, norm, x, &mut self.normed);
        match projections {
            Projections::Made => self.project(context, state),
            Projections::Found => {}
        }
        self.attend(context, mask, earlier);
        let bias = out.bias.as_ref().map(|bias| state.view(bias));
        let add = ForwardEpilogue::Add { skip: x };
        let rows = context.shape.rows();
        context.backend.linear_forward(rows, &self.out, state.matrix(1), bias, add, y);
    }

    /// Queries, keys and values of what was normalised.
    fn project<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
    ) {
        let LayerParts::Attention { qkv, .. } = &state.parts else { unreachable!() };
        let backend = context.backend;
        let rows = context.shape.rows();
        let bias = qkv.bias.as_ref().map(|bias| state.view(bias));
        let plain = ForwardEpilogue::Plain;
        backend.linear_forward(rows, &self.normed.y, state.matrix(0), bias, plain, &mut self.qkv);
        self.qk_norm_forward(context, state);
        if let Some(angles) = context.angles {
            backend.rotate(
                context.attention_shape(),
                angles,
                RotaryDirection::Forward,
                &mut self.qkv,
            );
        }
    }

    /// Normalises queries and keys head by head, if the model does.
    fn qk_norm_forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
    ) {
        let LayerParts::Attention { qk_norm, .. } = &state.parts else { unreachable!() };
        let Some(weights) = qk_norm else { return };
        let QkNormStash { before, statistics, .. } = &mut self.qk_norm;
        context.backend.qk_norm_forward(
            context.model.norm(),
            context.attention_shape(),
            state.view(weights),
            &mut self.qkv,
            before,
            statistics,
        );
    }

    /// B of that, in place of the gradients of queries and keys.
    fn qk_norm_backward<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
    ) {
        let LayerParts::Attention { qk_norm, .. } = &state.parts else { unreachable!() };
        let Some(weights) = qk_norm else { return };
        let QkNormStash { before, statistics, partials } = &mut self.qk_norm;
        context.backend.qk_norm_backward_input(
            context.model.norm(),
            context.attention_shape(),
            statistics,
            state.view(weights),
            before,
            &mut self.qkv,
            partials,
        );
    }

    /// Attention itself, to earlier slices as well.
    pub(super) fn attend<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        mask: AttentionMask<'_>,
        earlier: &[&T],
    ) {
        let Self { qkv, out, log_sums, .. } = self;
        let shape = context.attention_shape();
        context.backend.attention_slice_forward(shape, mask, earlier, qkv, out, log_sums);
    }

    /// B, which adds to the gradients of earlier slices.
    pub(in crate::model) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        (mask, earlier): (AttentionMask<'_>, &mut [EarlierSlice<'_, T>]),
        gradient: &T,
        x_then_gradient: &mut T,
        scratch: &mut PassScratch<T>,
    ) {
        let LayerParts::Attention { norm, .. } = &state.parts else { unreachable!() };
        let backend = context.backend;
        let rows = context.shape.rows();
        let shape = context.attention_shape();
        let to = BackwardEpilogue::Plain { gradient: &mut scratch.queries };
        backend.linear_backward_input(rows, gradient, state.matrix(1), to);
        let later = (!context.place.is_last()).then_some(&self.key_value_gradient);
        backend.attention_slice_backward(
            shape,
            mask,
            earlier,
            later,
            &self.out,
            &self.log_sums,
            &scratch.queries,
            &mut self.qkv,
        );
        if let Some(angles) = context.angles {
            backend.rotate(shape, angles, RotaryDirection::Backward, &mut self.qkv);
        }
        self.qk_norm_backward(context, state);
        let to = BackwardEpilogue::Plain { gradient: &mut scratch.rows };
        backend.linear_backward_input(rows, &self.qkv, state.matrix(0), to);
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
        let LayerParts::Attention { norm, qkv, qk_norm, out } = parts else { unreachable!() };
        adapted_weights(context, &mut to, out, &self.out, gradient, scratch, accumulate);
        adapted_weights(context, &mut to, qkv, &self.normed.y, &self.qkv, scratch, accumulate);
        if let Some(weights) = to.trained(qk_norm) {
            let partials = &self.qk_norm.partials;
            let place = to.place(weights);
            let to = NormGradient { buffer: to.g, weight: place, bias: None };
            let norm = context.model.norm();
            context.backend.norm_backward_weights(norm, weights.len(), partials, to, accumulate);
        }
        norm_weights(context, &mut to, norm, &self.normed, accumulate);
    }
}
