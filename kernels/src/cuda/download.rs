//! Floats that are downloaded to the host: gradients for the holders of copies, and states of
//! layers.
//!
//! ```text
//!   compute  ... W ─fence─┐              ┌─wait─ the next that writes them
//!   out                   └─▶ copy ─fence┤
//!   a thread that sends or writes them   └─wait─ read
//! ```
//!
//! The stage goes on at once. A buffer holds the copy that still reads it: it may be read
//! meanwhile, and the caller that writes it has the device wait first
//! ([`super::offload::order_after_copies`]).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::backend::CudaBackend;
use super::device::{Device, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, ElementType};
use super::offload::CopyGuard;
use super::pinned_buffers::{PendingCopy, PinnedBufferPool};
use super::source::Precision;
use super::transfer::numbers_of;
use crate::host_floats::{HostFloats, PendingFloats};
use crate::pending::{DeviceValue, Pending};

/// Downloads of a backend that are pending at once: gradient, weights and both moments of 1,024
/// layers.
pub const DOWNLOADS_MAX: usize = 1 << 12;
/// Memory of the host for all of them. What would take more is waited for at once.
pub const DOWNLOAD_BYTES_MAX: u64 = 4 << 30;

/// The limits of what is pending: the number of downloads and their bytes.
pub(super) const LIMITS: (usize, u64) = (DOWNLOADS_MAX, DOWNLOAD_BYTES_MAX);

/// A buffer on its way to the host.
struct PendingDownload<D: Device> {
    precision: Precision,
    /// The bytes of the buffer, until they have been read. Locked by the reader that takes them.
    copied: Mutex<Option<PendingCopy<D>>>,
    element: ElementType,
    floats: OnceLock<Result<HostFloats, DeviceFault>>,
}

impl<D: Device> PendingDownload<D> {
    fn read_copy(&self) -> Result<HostFloats, DeviceFault> {
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner).take();
        let bytes = copied.expect("it is read once").bytes()?;
        Ok(numbers_of(&bytes, self.element, self.precision).into_floats().into())
    }
}

impl<D: Device> DeviceValue<HostFloats> for PendingDownload<D> {
    fn read(&self) -> Result<HostFloats, DeviceFault> {
        self.floats.get_or_init(|| self.read_copy()).clone()
    }
}

/// Begins to copy a buffer's floats to the host; `None` if there is no pinned buffer for them.
pub(super) fn begin_download<D: Device>(
    backend: &CudaBackend<D>,
    pool: &PinnedBufferPool<D>,
    from: &mut CudaBuffer<D>,
) -> Result<Option<PendingFloats>, DeviceFault> {
    let device = backend.shared_device();
    let element = from.element();
    let len = from.len();
    if len == 0 {
        return Ok(Some(Vec::new().into()));
    }
    let bytes = element.bytes(device.precision()) * len as u64;
    device.stream_wait(Stream::Download, &device.record_fence(Stream::Compute)?)?;
    let Some(copied) = pool.enqueue_copy(backend, Stream::Download, (from.at(0), bytes))? else {
        return Ok(None);
    };
    from.set_reader(CopyGuard::new(copied.arrived().clone(), backend.next_copy()));
    let download = PendingDownload {
        precision: device.precision(),
        copied: Mutex::new(Some(copied)),
        element,
        floats: OnceLock::new(),
    };
    Ok(Some(PendingFloats::new(len, Pending::OnDevice(Arc::new(download)))))
}
