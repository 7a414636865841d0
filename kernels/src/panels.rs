//! How long a matrix is that the processor backend has packed for its products: panels of columns, the
//! last one filled up with zeros.

use crate::shapes::MatrixShape;

/// Columns of a packed panel: a vector for each factor.
pub(crate) const PANEL: usize = 16;

/// Floats that panels of `columns` columns have for each factor.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(PANEL)
}

/// Floats of a right factor of `depth` rows and `columns` columns.
pub(crate) fn packed_len(depth: usize, columns: usize) -> usize {
    depth * padded(columns)
}

/// Floats that a linear layer's matrix takes in both packings: for the forward product, and for the
/// input's gradient.
pub(crate) fn packed_lens(shape: MatrixShape) -> [usize; 2] {
    [packed_len(shape.inputs, shape.outputs), packed_len(shape.outputs, shape.inputs)]
}
