//! Low-rank adapters of matrices (LoRA: Hu et al., arXiv 2106.09685, section 4.1).

use std::ops::Range;

use super::{BufferView, DeviceMemory};

/// A product of two thin matrices, `b * a`, which is added to some rows of a matrix with a factor.
#[derive(Debug)]
pub struct AdapterView<'a, B> {
    /// The adapted rows (outputs) of the matrix.
    pub rows: Range<usize>,
    /// Columns of `b`, and rows of `a`.
    pub rank: usize,
    /// The factor of the product.
    pub scale: f32,
    /// `rank` by the matrix's inputs.
    pub a: BufferView<'a, B>,
    /// The adapted rows by `rank`.
    pub b: BufferView<'a, B>,
}

/// What adapters need of a device beside the products of [`super::Backend`]: passes read a matrix that
/// has its adapters in it, and W goes over some columns of the gradient of its result.
pub trait AdapterArithmetic: DeviceMemory {
    /// Loads `base + scale * b * a`, row by row, into a matrix. An element's products are added in the order of the
    /// rank from zero, each with a fused multiply-add, and their sum is multiplied and added with one more;
    /// rows without an adapter are those of `base`.
    fn load_adapted_matrix(
        &self,
        base: BufferView<'_, Self::Buffer>,
        adapters: &[AdapterView<'_, Self::Buffer>],
        matrix: &mut Self::Matrix,
    );

    /// `to = scale * from`, of these columns of `from`, a row of which has `width` floats.
    fn scale_columns(
        &self,
        from: &Self::Buffer,
        width: usize,
        columns: Range<usize>,
        scale: f32,
        to: &mut Self::Buffer,
    );
}
