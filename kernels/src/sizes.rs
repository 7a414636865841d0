//! Bytes of buffers, matrices and claims on a device, counted without one: plans are made of these.
//! The code that allocates counts by the same functions, and the trainer asserts that both agree.

use crate::host_memory::block_bytes;
use crate::panels::packed_lens;
use crate::precision::Precision;
use crate::scratch::{CUDA_ALIGNMENT, ScratchOperation, slot_bytes};
use crate::shapes::MatrixShape;

/// A driver allocates memory in pages of this size.
const CUDA_PAGE_BYTES: u64 = 2 << 20;
/// Workspace that the library of products may use while it multiplies, allocated when a device is
/// opened.
const CUDA_WORKSPACE_BYTES: u64 = 32 << 20;

/// Memory for boundary tensors of one length: staging buffers for outgoing tensors and as many for
/// incoming ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingReservation {
    /// Activations in a tensor.
    pub len: usize,
    /// The number of tensors in each direction.
    pub count: usize,
}

impl StagingReservation {
    /// Staging buffers of a backend for outgoing tensors, and as many for incoming ones. A tensor
    /// for which none is free is copied through the host: then the neighbouring stages have left
    /// twice as many unread as any schedule leaves whose microbatches fit into memory.
    pub const COUNT_MAX: usize = 64;
    /// Staging buffers of one length that are free before one of them is reused, where there are as
    /// many.
    pub const ROTATED: usize = 4;

    /// Staging buffers for tensors of this length of which up to `unread` may be under way at once.
    #[must_use]
    pub fn for_unread(len: usize, unread: usize) -> Option<Self> {
        // The one that is filled is one of those under way.
        let count = Self::COUNT_MAX.min(unread + Self::ROTATED - 1);
        (unread > 0).then_some(Self { len, count })
    }
}

/// The memory of a device that is to be allocated at once.
#[derive(Clone, Copy, Debug)]
pub struct MemoryClaim<'a> {
    /// Bytes of all buffers and matrices that are allocated next.
    pub buffers: u64,
    /// Operations that are run later: all that use scratch.
    pub operations: &'a [ScratchOperation],
    /// Staging buffers for boundary tensors.
    pub staging: &'a [StagingReservation],
}

/// Counts the bytes of matrices, buffers and claims on a device.
pub trait ByteCounts {
    /// The kind of devices that this is one of.
    fn sizes(&self) -> DeviceSizes;

    /// Bytes a matrix of this shape needs beside its parameters.
    fn matrix_bytes(&self, shape: MatrixShape) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(precision) => {
                packed_lens(shape, precision).map(block_bytes).iter().sum()
            }
            DeviceSizes::Cuda(_) => self.rows_bytes(shape.outputs * shape.inputs),
        }
    }

    /// Bytes a buffer of `len` floats needs.
    fn buffer_bytes(&self, len: usize) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => block_bytes(len),
            DeviceSizes::Cuda(_) => aligned(4 * len as u64),
        }
    }

    /// Bytes a buffer of `len` activations needs.
    fn rows_bytes(&self, len: usize) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => self.buffer_bytes(len),
            DeviceSizes::Cuda(_) => aligned(self.row_bytes() * len as u64),
        }
    }

    /// Bytes of one activation that is offloaded.
    fn row_bytes(&self) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => 4,
            DeviceSizes::Cuda(precision) => precision.bytes() as u64,
        }
    }

    /// Whether a candidate of a matrix is its packed weights, which products read, and no copy in
    /// floats beside it ([`crate::Optimizer::packed_weights_optimizer`]).
    fn has_packed_candidates(&self) -> bool {
        match self.sizes() {
            DeviceSizes::Processors(_) => false,
            DeviceSizes::Cuda(_) => true,
        }
    }

    /// Bytes that a claim needs in all. Processors allocate memory for scratch and messages when
    /// they need it.
    fn claim_bytes(&self, claim: &MemoryClaim<'_>) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => claim.buffers,
            DeviceSizes::Cuda(precision) => {
                let work = claim.buffers + scratch_bytes(claim.operations, precision);
                region_bytes(work) + region_bytes(staging_bytes(claim.staging, precision))
            }
        }
    }

    /// Bytes of a claim's staging buffers.
    fn staging_bytes(&self, staging: &[StagingReservation]) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => 0,
            DeviceSizes::Cuda(precision) => staging_bytes(staging, precision),
        }
    }

    /// Bytes that a device needs to be opened, beside those of its driver.
    fn opening_bytes(&self) -> u64 {
        match self.sizes() {
            DeviceSizes::Processors(_) => 0,
            DeviceSizes::Cuda(_) => DeviceSizes::WORKSPACE_BYTES,
        }
    }
}

/// A kind of devices, as far as bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSizes {
    /// Processor cores: floats, and matrices packed in both directions, in a type of their own, beside
    /// their parameters.
    Processors(Precision),
    /// NVIDIA devices: activations, and a copy of each matrix, in a type of their own.
    Cuda(Precision),
}

impl DeviceSizes {
    /// Bytes of workspace that an NVIDIA device allocates for products when it is opened.
    pub const WORKSPACE_BYTES: u64 = CUDA_WORKSPACE_BYTES;
}

impl ByteCounts for DeviceSizes {
    fn sizes(&self) -> DeviceSizes {
        *self
    }
}

const fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(CUDA_ALIGNMENT)
}

/// Bytes that a region has which must hold so many.
pub(crate) const fn region_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(CUDA_PAGE_BYTES)
}

/// Bytes of all slots of scratch, one behind the other.
pub(crate) fn scratch_bytes(operations: &[ScratchOperation], precision: Precision) -> u64 {
    slot_bytes(operations, precision).into_iter().map(aligned).sum()
}

/// Bytes of the staging buffers for outgoing and for incoming tensors.
pub(crate) fn staging_bytes(reservations: &[StagingReservation], precision: Precision) -> u64 {
    let of_length = |reservation: &StagingReservation| {
        reservation.count as u64 * DeviceSizes::Cuda(precision).rows_bytes(reservation.len)
    };
    2 * reservations.iter().map(of_length).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::{ByteCounts, DeviceSizes, MatrixShape, MemoryClaim, StagingReservation};
    use crate::precision::Precision;
    use crate::scratch::ScratchOperation;

    #[test]
    fn halves_take_half_of_what_is_rows_and_nothing_less_of_what_is_sums() {
        let whole = DeviceSizes::Cuda(Precision::F32);
        let half = DeviceSizes::Cuda(Precision::Bf16);
        assert_eq!((whole.rows_bytes(1024), half.rows_bytes(1024)), (4096, 2048));
        assert_eq!((whole.buffer_bytes(1024), half.buffer_bytes(1024)), (4096, 4096));
        let shape = MatrixShape { outputs: 64, inputs: 32 };
        assert_eq!((whole.matrix_bytes(shape), half.matrix_bytes(shape)), (8192, 4096));
        assert_eq!((half.rows_bytes(1), half.buffer_bytes(1), half.rows_bytes(0)), (256, 256, 0));
    }

    #[test]
    fn a_claim_is_whole_pages_for_work_and_for_staging() {
        const PAGE: u64 = 2 << 20;
        let half = DeviceSizes::Cuda(Precision::Bf16);
        // 40 and 80 bytes of lists and results, at multiples of 256.
        let operations = &[ScratchOperation::Head { rows: 10 }];
        let staging = &[StagingReservation { len: 1 << 17, count: 4 }];
        let claim = |buffers| MemoryClaim { buffers, operations, staging };
        assert_eq!(half.staging_bytes(staging), PAGE);
        assert_eq!(half.claim_bytes(&claim(PAGE - 512)), 2 * PAGE);
        assert_eq!(half.claim_bytes(&claim(PAGE - 511)), 3 * PAGE);
        assert_eq!(DeviceSizes::Processors(Precision::F32).claim_bytes(&claim(5)), 5);
    }

    #[test]
    fn processors_pack_two_halves_in_a_word() {
        let bytes = |precision, outputs, inputs| {
            DeviceSizes::Processors(precision).matrix_bytes(MatrixShape { outputs, inputs })
        };
        assert_eq!(bytes(Precision::F32, 64, 32), 2 * 64 * 32 * 4);
        assert_eq!(bytes(Precision::Bf16, 64, 32), 64 * 32 * 4);
        // An odd depth has a word more than half of it.
        assert_eq!(bytes(Precision::Bf16, 16, 3), (2 * 16 + 8 * 16) * 4);
        let of_rows = |precision| DeviceSizes::Processors(precision).rows_bytes(1024);
        assert_eq!(of_rows(Precision::Bf16), of_rows(Precision::F32));
    }
}
