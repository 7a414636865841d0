//! Bytes that things take on a device, counted without one: what plans are made of. Whoever allocates
//! counts by the same functions, and the trainer asserts that both agree.

use crate::backend::MatrixShape;
use crate::cpu::CpuBuffer;
use crate::precision::Precision;

/// How many bytes things take.
pub trait ByteCounts {
    /// Bytes a matrix of this shape takes beside its parameters.
    fn matrix_bytes(&self, shape: MatrixShape) -> u64;

    /// Bytes a buffer of `len` floats takes.
    fn buffer_bytes(&self, len: usize) -> u64;

    /// Bytes a buffer of `len` activations takes.
    fn rows_bytes(&self, len: usize) -> u64;

    /// Bytes of one activation that is away.
    fn row_bytes(&self) -> u64;

    /// Whether a candidate of a matrix is the form that products read, and no copy in floats beside it
    /// ([`crate::Backend::form_optimizer`]).
    fn has_candidates_in_forms(&self) -> bool;
}

/// Buffers of an NVIDIA device start on a multiple of this, which the choice of a product's algorithm
/// relies on.
pub(crate) const CUDA_ALIGNMENT: u64 = 256;

/// A kind of devices, as far as bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSizes {
    /// Processor cores: floats, and matrices packed in both directions beside their parameters.
    Processors,
    /// NVIDIA devices: activations, and a copy of each matrix, in a type of their own.
    Cuda(Precision),
}

impl ByteCounts for DeviceSizes {
    fn row_bytes(&self) -> u64 {
        match self {
            Self::Processors => 4,
            Self::Cuda(precision) => precision.bytes() as u64,
        }
    }

    fn has_candidates_in_forms(&self) -> bool {
        match self {
            Self::Processors => false,
            Self::Cuda(_) => true,
        }
    }

    fn matrix_bytes(&self, shape: MatrixShape) -> u64 {
        match self {
            Self::Processors => crate::cpu::matrix_bytes(shape),
            Self::Cuda(_) => self.rows_bytes(shape.outputs * shape.inputs),
        }
    }

    fn buffer_bytes(&self, len: usize) -> u64 {
        match self {
            Self::Processors => CpuBuffer::bytes(len),
            Self::Cuda(_) => (4 * len as u64).next_multiple_of(CUDA_ALIGNMENT),
        }
    }

    fn rows_bytes(&self, len: usize) -> u64 {
        match self {
            Self::Processors => self.buffer_bytes(len),
            Self::Cuda(_) => (self.row_bytes() * len as u64).next_multiple_of(CUDA_ALIGNMENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteCounts, DeviceSizes, MatrixShape};
    use crate::precision::Precision;

    #[test]
    fn halves_take_half_of_what_is_rows_and_nothing_less_of_what_is_sums() {
        let (whole, half) = (DeviceSizes::Cuda(Precision::F32), DeviceSizes::Cuda(Precision::Bf16));
        assert_eq!((whole.rows_bytes(1024), half.rows_bytes(1024)), (4096, 2048));
        assert_eq!((whole.buffer_bytes(1024), half.buffer_bytes(1024)), (4096, 4096));
        let shape = MatrixShape { outputs: 64, inputs: 32 };
        assert_eq!((whole.matrix_bytes(shape), half.matrix_bytes(shape)), (8192, 4096));
        assert_eq!((half.rows_bytes(1), half.buffer_bytes(1), half.rows_bytes(0)), (256, 256, 0));
    }
}
