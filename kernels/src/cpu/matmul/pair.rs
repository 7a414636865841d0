//! A linear layer's matrix packed twice: for the forward product and for the input's gradient.

use std::ops::Range;

use super::super::instruction_set::InstructionSet;
use super::BLOCK_DEPTH;
use super::packed::{PackedMatrix, PanelSource, pack_as_is, pack_transposed};
use crate::backend::{AllocateError, MatrixShape};
use crate::cpu::buffer::CpuArena;
use crate::cpu::shared::SharedRows;
use crate::panels::{PANEL, packed_lens, padded};

/// Rows of the matrix that are packed as one piece: a few panels of the forward product. They
/// divide a block of the other one.
pub(crate) const PIECE_ROWS: usize = 3 * PANEL;

const _: () = assert!(BLOCK_DEPTH.is_multiple_of(PIECE_ROWS));

/// A matrix of `outputs` rows and `inputs` columns in both packings.
pub(crate) struct MatrixPair {
    shape: MatrixShape,
    /// `inputs` deep, `outputs` columns.
    pub(crate) forward: PackedMatrix,
    /// `outputs` deep, `inputs` columns.
    pub(crate) backward: PackedMatrix,
}

impl MatrixPair {
    pub(crate) fn zeroed(arena: &CpuArena, shape: MatrixShape) -> Result<Self, AllocateError> {
        Ok(Self {
            shape,
            forward: PackedMatrix::zeroed(arena, shape.inputs, shape.outputs)?,
            backward: PackedMatrix::zeroed(arena, shape.outputs, shape.inputs)?,
        })
    }

    pub(crate) fn shape(&self) -> MatrixShape {
        self.shape
    }

    /// Opens the matrix for tasks that each write other rows.
    pub(crate) fn writer(&mut self) -> PairWriter<'_> {
        let [forward, backward] = packed_lens(self.shape);
        PairWriter {
            shape: self.shape,
            forward: SharedRows::new(self.forward.floats_mut(), forward.max(1)),
            backward: SharedRows::new(self.backward.floats_mut(), backward.max(1)),
        }
    }
}

/// A matrix whose pieces are written by tasks.
pub(crate) struct PairWriter<'a> {
    shape: MatrixShape,
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
        for start in (0..inputs).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(inputs - start);
            let at = start * padded(outputs) + rows.start * depth;
            // SAFETY: this piece's panels of the block, which no other piece has.
            let to = unsafe { self.forward.piece(0, at, depth * padded(rows.len())) };
            let floats = &floats[start..];
            let source =
                PanelSource { floats, stride: inputs, columns: 0..rows.len(), rows: depth };
            pack_transposed(set, source, to);
        }
        let block = rows.start / BLOCK_DEPTH * BLOCK_DEPTH;
        let depth = BLOCK_DEPTH.min(outputs - block);
        for column in (0..inputs).step_by(PANEL) {
            let columns = column..inputs.min(column + PANEL);
            let width = padded(columns.len());
            let at = block * padded(inputs) + column * depth + (rows.start - block) * width;
            // SAFETY: this piece's rows of the panel, which no other piece has.
            let to = unsafe { self.backward.piece(0, at, rows.len() * width) };
            let source = PanelSource { floats, stride: inputs, columns, rows: rows.len() };
            pack_as_is(set, source, to);
        }
    }
}
