//! Pinned buffers of the host that a device copies results to: allocated when they are needed, and
//! reused once their reader has returned them.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress, Stream};
use super::error::DeviceFault;
use super::pinned::PinnedMemory;
use super::recorder::CommandRecorder;

/// Pinned memory of the host for one result.
struct PinnedBuffer<D: Device> {
    memory: PinnedMemory<D>,
    bytes: u64,
}

impl<D: Device> PinnedBuffer<D> {
    fn start(&self) -> DeviceAddress {
        self.memory.at(0, self.bytes)
    }
}

/// The pinned buffers of a backend for one kind of results. All of them are written in one stream,
/// so that a buffer that is returned unread is written again behind the copy that no reader waited
/// for.
pub(super) struct PinnedBufferPool<D: Device> {
    /// The most buffers, and the most bytes of all of them.
    limits: (usize, u64),
    made: Cell<(usize, u64)>,
    free: RefCell<Vec<PinnedBuffer<D>>>,
    returned: Receiver<PinnedBuffer<D>>,
    return_sender: SyncSender<PinnedBuffer<D>>,
}

impl<D: Device> PinnedBufferPool<D> {
    pub(super) fn new(limits: (usize, u64)) -> Self {
        let (return_sender, returned) = sync_channel(limits.0);
        Self { limits, made: Cell::new((0, 0)), free: RefCell::default(), returned, return_sender }
    }

    /// A buffer of so many bytes; `None` if there is none left, or the host has no pinned memory.
    fn acquire(&self, device: &Arc<CommandRecorder<D>>, bytes: u64) -> Option<PinnedBuffer<D>> {
        let mut free = self.free.borrow_mut();
        free.extend(self.returned.try_iter());
        if let Some(index) = free.iter().position(|buffer| buffer.bytes == bytes) {
            return Some(free.swap_remove(index));
        }
        let (count, taken) = self.made.get();
        if !is_within_limits((count, taken), self.limits, bytes) {
            return None;
        }
        let memory = PinnedMemory::new(device, bytes).ok()?;
        self.made.set((count + 1, taken + bytes));
        Some(PinnedBuffer { memory, bytes })
    }

    /// Enqueues a copy to a buffer in `stream`; `None` if there is none left.
    pub(super) fn enqueue_copy(
        &self,
        backend: &CudaBackend<D>,
        stream: Stream,
        (from, bytes): (DeviceAddress, u64),
    ) -> Result<Option<PendingCopy<D>>, DeviceFault> {
        let device = backend.shared_device();
        let Some(buffer) = self.acquire(device, bytes) else { return Ok(None) };
        device.copy_to_host(stream, from, buffer.start(), bytes)?;
        let arrived = device.record_fence(stream)?;
        Ok(Some(PendingCopy {
            device: device.clone(),
            fault: backend.shared_fault(),
            buffer: Some(buffer),
            arrived,
            pool: self.return_sender.clone(),
        }))
    }
}

/// Bytes on their way to a pinned buffer, which is returned to its pool when this is dropped.
pub(super) struct PendingCopy<D: Device> {
    device: Arc<CommandRecorder<D>>,
    /// The fault of the backend, set before a failed copy is reported.
    fault: Arc<OnceLock<DeviceFault>>,
    /// The buffer, until this is dropped.
    buffer: Option<PinnedBuffer<D>>,
    arrived: D::Fence,
    pool: SyncSender<PinnedBuffer<D>>,
}

impl<D: Device> PendingCopy<D> {
    /// The fence behind which the bytes have arrived.
    pub(super) const fn arrived(&self) -> &D::Fence {
        &self.arrived
    }

    /// Waits for the bytes and returns them; the fault if the device has failed.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, DeviceFault> {
        let buffer = self.buffer.as_ref().expect("there until this is dropped");
        checked(&self.fault, self.device.host_wait(&self.arrived))?;
        let mut bytes = vec![0; buffer.bytes as usize];
        self.device.read_host(buffer.start(), &mut bytes);
        Ok(bytes)
    }
}

/// What was read for a backend, unless that has failed: only its first fault counts, and nothing
/// that is read behind it is a result.
pub(super) fn checked<T>(
    fault: &OnceLock<DeviceFault>,
    read: Result<T, DeviceFault>,
) -> Result<T, DeviceFault> {
    if let Err(found) = &read {
        let _first = fault.get_or_init(|| found.clone());
    }
    match fault.get() {
        Some(first) => Err(first.clone()),
        None => read,
    }
}

impl<D: Device> Drop for PendingCopy<D> {
    fn drop(&mut self) {
        // The next copy into the buffer is in the same stream as this one. Where the backend was
        // dropped the memory is freed, which waits for the copy.
        if let Some(buffer) = self.buffer.take() {
            let _dropped_pool = self.pool.try_send(buffer);
        }
    }
}

/// Whether one more buffer of so many bytes is within the limits.
const fn is_within_limits(
    (count, taken): (usize, u64),
    (count_max, bytes_max): (usize, u64),
    bytes: u64,
) -> bool {
    count < count_max && bytes <= bytes_max - taken
}

#[cfg(test)]
mod tests {
    use super::is_within_limits;

    #[test]
    fn pinned_buffers_are_limited_by_number_and_by_bytes() {
        assert!(is_within_limits((1, 60), (2, 100), 40));
        assert!(!is_within_limits((1, 60), (2, 100), 41));
        assert!(!is_within_limits((2, 60), (2, 100), 1));
    }
}
