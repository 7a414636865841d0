//! The embedding.

use zbelastic_kernels::{Accumulate, Backend, EmbedGradient};

use super::Context;
use crate::data::Batch;
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

/// F of the embedding.
pub(in crate::model) fn embed_forward<B: Backend>(
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
pub(in crate::model) fn embed_weights<B: Backend>(
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
