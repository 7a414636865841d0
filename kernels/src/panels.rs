//! How long a matrix is that the processor backend has packed for its products: panels of columns, the
//! last one filled up with zeros.

use crate::precision::Precision;
use crate::shapes::MatrixShape;

/// Columns of a packed panel: a vector for each word of factors.
pub(crate) const PANEL: usize = 16;

impl Precision {
    /// Factors of a product that lie in one word of 32 bits.
    pub(crate) const fn factors_per_word(self) -> usize {
        4 / self.bytes()
    }

    /// Words that hold so many factors, the last one filled up with zeros.
    pub(crate) const fn words(self, factors: usize) -> usize {
        factors.div_ceil(self.factors_per_word())
    }
}

/// Words that panels of `columns` columns have for each word of a column.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(PANEL)
}

/// Words of a right factor of `depth` rows and `columns` columns.
pub(crate) fn packed_len(depth: usize, columns: usize, precision: Precision) -> usize {
    precision.words(depth) * padded(columns)
}

/// Words that a linear layer's matrix takes in both packings: for the forward product, and for the
/// input's gradient.
pub(crate) fn packed_lens(shape: MatrixShape, precision: Precision) -> [usize; 2] {
    let MatrixShape { outputs, inputs } = shape;
    [packed_len(inputs, outputs, precision), packed_len(outputs, inputs, precision)]
}
