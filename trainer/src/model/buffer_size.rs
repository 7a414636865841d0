//! The size of a buffer that a pass needs on a device.

use zbelastic_kernels::{AllocateError, Backend, ByteCounts};

/// A number of elements, and what they are: a device may hold activations in a smaller type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferSize {
    /// Activations and their gradients: rows, a token each ([`DeviceMemory::allocate_rows`]).
    Rows(usize),
    /// Sums and statistics, floats everywhere ([`DeviceMemory::allocate`]).
    Sums(usize),
}

impl BufferSize {
    /// How many numbers it takes, of whichever type.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::Rows(count) | Self::Sums(count) => count,
        }
    }

    /// Bytes of as much that is offloaded, where an activation takes `row_bytes`.
    #[must_use]
    pub const fn offloaded_bytes(self, row_bytes: u64) -> u64 {
        match self {
            Self::Rows(count) => count as u64 * row_bytes,
            Self::Sums(count) => count as u64 * 4,
        }
    }

    /// A size of zero, of the same kind.
    #[must_use]
    pub const fn emptied(self) -> Self {
        match self {
            Self::Rows(_) => Self::Rows(0),
            Self::Sums(_) => Self::Sums(0),
        }
    }

    /// A buffer for it, filled with zeros.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn allocate<B: Backend>(self, backend: &B) -> Result<B::Buffer, AllocateError> {
        match self {
            Self::Rows(count) => backend.allocate_rows(count),
            Self::Sums(count) => backend.allocate(count),
        }
    }

    /// Bytes of that buffer.
    #[must_use]
    pub fn bytes<B: ByteCounts>(self, backend: &B) -> u64 {
        match self {
            Self::Rows(count) => backend.rows_bytes(count),
            Self::Sums(count) => backend.buffer_bytes(count),
        }
    }
}
