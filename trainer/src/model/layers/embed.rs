//! The embedding layer: F and W, of token and position embeddings.

use std::ops::Range;

use zbelastic_kernels::{Accumulate, Backend, BufferViewMut, EmbedGradient, RowPositions};

use super::documents::row_positions;
use super::{PassContext, WeightGradients};
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
    // Only a table needs them.
    let given = positions.as_ref().and_then(|_| row_positions(context, batch));
    let at = PositionRows::new(context, given.as_deref());
    let table = positions.as_ref().map(|table| state.view(&at.part_of(table)));
    context.backend.embed_forward(at.rows, &batch.inputs, state.view(tokens), table, y);
}

/// W of the embedding, unless it is frozen. Tokens' rows are added in the same operation as those of
/// positions, which is left out if they are frozen.
pub(in crate::model) fn embed_weights<B: Backend>(
    context: &PassContext<'_, B>,
    state: &mut LayerState<B>,
    batch: &TokenBatch,
    gradient: &B::Buffer,
    accumulate: Accumulate,
) {
    let (to, parts) = WeightGradients::of(state);
    let LayerParts::Embed { tokens, positions } = parts else { unreachable!() };
    let positions = to.trained(positions);
    if !to.spec.trains(tokens) && positions.is_none() {
        return;
    }
    if let Some(table) = positions
        && context.place.is_cut()
        && accumulate == Accumulate::Start
    {
        // The operation begins the gradient of this slice's positions only.
        let zeros = vec![0.0; table.len()];
        let place = to.place(table);
        context.backend.upload(&zeros, BufferViewMut::new(to.g, place));
    }
    let given = positions.and_then(|_| row_positions(context, batch));
    let at = PositionRows::new(context, given.as_deref());
    let positions = positions.map(|table| to.place(&at.part_of(table)));
    let to = EmbedGradient { tokens: to.place(tokens), buffer: to.g, positions };
    context.backend.embed_backward_weights(at.rows, &batch.inputs, gradient, to, accumulate);
}

/// Where the rows of a pass are in the table of positions.
struct PositionRows<'a> {
    rows: RowPositions<'a>,
    /// Floats of the table before the position that rows count from.
    skipped: usize,
}

impl<'a> PositionRows<'a> {
    /// Rows count from where their slice begins, or the positions of all are given.
    fn new<B: Backend>(context: &PassContext<'_, B>, given: Option<&'a [u32]>) -> Self {
        let sequence_len = context.shape.sequence_len;
        match given {
            Some(given) => Self { rows: RowPositions::Given(given), skipped: 0 },
            None => Self {
                rows: RowPositions::Counted { sequence_len },
                skipped: context.place.first_position * context.model.width as usize,
            },
        }
    }

    fn part_of(&self, table: &Range<usize>) -> Range<usize> {
        table.start + self.skipped..table.end
    }
}
