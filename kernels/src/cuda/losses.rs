//! Losses, and sums of fingerprints, that wait on a device until they are read: a forward pass of
//! the last stage does not stop the host then, nor does a COMMIT.

use std::sync::Arc;

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress, Stream};
use super::error::DeviceFault;
use super::pinned_buffers::{PendingCopy, PinnedBufferPool};
use crate::pending::{DeviceValue, Pending};
use crate::scratch::STATE_SUMS_BYTES;

/// Unread losses and sums of a backend: those of the largest step, and of one before that
/// was dropped. One more is waited for at once.
const LOSSES_MAX: usize = 1 << 13;

/// The pinned buffers for them. How many bytes a loss takes follows from the rows of a microbatch.
pub(super) fn pinned_buffers<D: Device>() -> PinnedBufferPool<D> {
    PinnedBufferPool::new((LOSSES_MAX, u64::MAX))
}

impl<D: Device> DeviceValue<f64> for PendingCopy<D> {
    fn read(&self) -> Result<f64, DeviceFault> {
        self.bytes().map(|bytes| sum(&bytes))
    }
}

impl<D: Device> DeviceValue<[u64; 2]> for PendingCopy<D> {
    fn read(&self) -> Result<[u64; 2], DeviceFault> {
        self.bytes().map(|bytes| pair(&bytes))
    }
}

/// The sum of losses in the order of rows.
fn sum(bytes: &[u8]) -> f64 {
    let (losses, _) = bytes.as_chunks::<8>();
    losses.iter().map(|loss| f64::from_le_bytes(*loss)).sum()
}

fn pair(bytes: &[u8]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

/// The loss of these rows, later; at once if too many were left unread.
pub(super) fn pending_loss<D: Device>(
    backend: &CudaBackend<D>,
    (rows, count): (DeviceAddress, usize),
) -> Result<Pending<f64>, DeviceFault> {
    let bytes = count * 8;
    Ok(match enqueue_copy(backend, rows, bytes)? {
        Some(copy) => Pending::OnDevice(Arc::new(copy)),
        None => sum(&read(backend, rows, bytes)?).into(),
    })
}

/// The two sums that lie there, later; at once if too many were left unread.
pub(super) fn pending_sums<D: Device>(
    backend: &CudaBackend<D>,
    sums: DeviceAddress,
) -> Result<Pending<[u64; 2]>, DeviceFault> {
    Ok(match enqueue_copy(backend, sums, STATE_SUMS_BYTES)? {
        Some(copy) => Pending::OnDevice(Arc::new(copy)),
        None => pair(&read(backend, sums, STATE_SUMS_BYTES)?).into(),
    })
}

fn read<D: Device>(
    backend: &CudaBackend<D>,
    from: DeviceAddress,
    bytes: usize,
) -> Result<Vec<u8>, DeviceFault> {
    let mut found = vec![0; bytes];
    backend.device().read(from, &mut found)?;
    Ok(found)
}

/// Enqueues a copy of numbers to the host, if there is a pinned buffer for them. They are so few
/// that the copy need not be beside the work; and what comes next may reuse the memory.
fn enqueue_copy<D: Device>(
    backend: &CudaBackend<D>,
    from: DeviceAddress,
    bytes: usize,
) -> Result<Option<PendingCopy<D>>, DeviceFault> {
    backend.losses().enqueue_copy(backend, Stream::Compute, (from, bytes as u64))
}
