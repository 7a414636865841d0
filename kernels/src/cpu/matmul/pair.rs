//! A linear layer's matrix packed twice: for the forward product and for the input's gradient.

use std::ops::Range;

use super::super::instruction_set::InstructionSet;
use super::chain_factors;
use super::packed::{PackedMatrix, PanelSource, pack_as_is, pack_transposed};
use crate::backend::{AllocateError, MatrixShape};
use crate::cpu::buffer::CpuArena;
use crate::cpu::shared::SharedRows;
use crate::panels::{PANEL, packed_lens, padded};
use crate::precision::Precision;

/// Rows of the matrix that are packed as one piece: a few panels of the forward product. They
/// divide a block of the other one.
pub(crate) const PIECE_ROWS: usize = 3 * PANEL;

const _: () = assert!(chain_factors(Precision::F32).is_multiple_of(PIECE_ROWS));
const _: () = assert!(chain_factors(Precision::Bf16).is_multiple_of(PIECE_ROWS));

/// A matrix of `outputs` rows and `inputs` columns in both packings.
pub(crate) struct MatrixPair {
    shape: MatrixShape,
    /// `inputs` deep, `outputs` columns.
    pub(crate) forward: PackedMatrix,
    /// `outputs` deep, `inputs` columns.
    pub(crate) backward: PackedMatrix,
}

impl MatrixPair {
    pub(crate) fn zeroed(
        arena: &CpuArena,
        shape: MatrixShape,
        precision: Precision,
    ) -> Result<Self, AllocateError> {
        Ok(Self {
            shape,
            forward: PackedMatrix::zeroed(arena, shape.inputs, shape.outputs, precision)?,
            backward: PackedMatrix::zeroed(arena, shape.outputs, shape.inputs, precision)?,
        })
    }

    pub(crate) fn shape(&self) -> MatrixShape {
        self.shape
    }

    /// Opens the matrix for tasks that each write other rows.
    pub(crate) fn writer(&mut self) -> PairWriter<'_> {
        let precision = self.forward.precision();
        let [forward, backward] = packed_lens(self.shape, precision);
        PairWriter {
            shape: self.shape,
            precision,
            forward: SharedRows::new(self.forward.words_mut(), forward.max(1)),
            backward: SharedRows::new(self.backward.words_mut(), backward.max(1)),
        }
    }
}

/// A matrix whose pieces are written by tasks.
pub(crate) struct PairWriter<'a> {
    shape: MatrixShape,
    precision: Precision,
    forward: SharedRows<'a>,
    backward: SharedRows<'a>,
}

impl PairWriter<'_> {
    /// The number of columns of the matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.shape.inputs
    }

    /// Row ranges that tasks write: together all rows, each a piece.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let outputs = self.shape.outputs;
        (0..outputs).step_by(PIECE_ROWS).map(move |row| row..outputs.min(row + PIECE_ROWS))
    }

    /// Packs the rows of a piece, given in row-major order, in both ways.
    ///
    /// # Safety
    /// No other task writes this piece.
    pub(crate) unsafe fn write(&self, set: InstructionSet, rows: Range<usize>, floats: &[f32]) {
        let MatrixShape { outputs, inputs } = self.shape;
        assert_eq!(floats.len(), rows.len() * inputs);
        assert!(rows.start.is_multiple_of(PIECE_ROWS));
        let precision = self.precision;
        let chain = chain_factors(precision);
        for start in (0..inputs).step_by(chain) {
            let depth = chain.min(inputs - start);
            let words = precision.words(depth);
            let at = precision.words(start) * padded(outputs) + rows.start * words;
            // SAFETY: this piece's panels of the block, which no other piece has.
            let to = unsafe { self.forward.piece(0, at, words * padded(rows.len())) };
            let columns = 0..rows.len();
            let floats = &floats[start..];
            let source = PanelSource { floats, stride: inputs, columns, rows: depth, precision };
            pack_transposed(set, source, to);
        }
        let block = rows.start / chain * chain;
        let depth = precision.words(chain.min(outputs - block));
        let first = precision.words(rows.start - block);
        for column in (0..inputs).step_by(PANEL) {
            let columns = column..inputs.min(column + PANEL);
            let width = padded(columns.len());
            let at = precision.words(block) * padded(inputs) + column * depth + first * width;
            // SAFETY: this piece's rows of the panel, which no other piece has.
            let to = unsafe { self.backward.piece(0, at, precision.words(rows.len()) * width) };
            let source =
                PanelSource { floats, stride: inputs, columns, rows: rows.len(), precision };
            pack_as_is(set, source, to);
        }
    }
}
