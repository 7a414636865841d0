//! The embedding layer: F and W, of token and position embeddings.

use std::ops::Range;

use zbelastic_kernels::{Accumulate, Backend, BufferViewMut, EmbedGradient};

use super::PassContext;
use crate::data::TokenBatch;
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

/// F of the embedding.
pub(in crate::model) fn embed_forward<B: Backend>(
    context: &PassContext<'_, B>,
    state: &LayerState<B>,
    batch: &TokenBatch,
    y: &mut B::Buffer,
) {
    let LayerParts::Embed { tokens, positions } = &state.parts else { unreachable!() };
    let positions = positions.as_ref().map(|table| state.view(&of_slice(context, table)));
    let len = context.shape.sequence_len;
    context.backend.embed_forward(len, &batch.inputs, state.view(tokens), positions, y);
}

/// W of the embedding.
pub(in crate::model) fn embed_weights<B: Backend>(
    context: &PassContext<'_, B>,
    state: &mut LayerState<B>,
    batch: &TokenBatch,
    gradient: &B::Buffer,
    accumulate: Accumulate,
) {
    let LayerParts::Embed { tokens, positions } = &state.parts else { unreachable!() };
    if let Some(table) = positions
        && context.place.is_cut()
        && accumulate == Accumulate::Start
    {
        // The operation begins the gradient of this slice's positions only.
        let zeros = vec![0.0; table.len()];
        context.backend.upload(&zeros, BufferViewMut::new(&mut state.g, table.clone()));
    }
    let to = EmbedGradient {
        buffer: &mut state.g,
        tokens: tokens.clone(),
        positions: positions.as_ref().map(|table| of_slice(context, table)),
    };
    let len = context.shape.sequence_len;
    context.backend.embed_backward_weights(len, &batch.inputs, gradient, to, accumulate);
}

/// The part of a table of positions from where the slice begins on.
fn of_slice<B: Backend>(context: &PassContext<'_, B>, table: &Range<usize>) -> Range<usize> {
    let first = context.place.first_position * context.model.width as usize;
    table.start + first..table.end
}
