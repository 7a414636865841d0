//! Pinned memory: memory of the host that a device copies by itself, and the ring of it through
//! which the host writes to a device.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::{Device, DeviceAddress, Stream};
use super::error::DeviceFault;
use super::recorder::CommandRecorder;

/// Pinned memory of the host, freed when it is dropped.
pub(super) struct PinnedMemory<D: Device> {
    device: Arc<CommandRecorder<D>>,
    start: DeviceAddress,
    bytes: u64,
}

impl<D: Device> PinnedMemory<D> {
    pub(super) fn new(device: &Arc<CommandRecorder<D>>, bytes: u64) -> Result<Self, DeviceFault> {
        let start = device.allocate_host(bytes)?;
        Ok(Self { device: device.clone(), start, bytes })
    }

    /// The address of the `bytes` bytes from `start` on.
    pub(super) fn at(&self, start: u64, bytes: u64) -> DeviceAddress {
        assert!(start + bytes <= self.bytes, "within what was allocated");
        self.start.plus(start)
    }
}

impl<D: Device> Drop for PinnedMemory<D> {
    fn drop(&mut self) {
        self.device.free_host(self.start);
    }
}

/// The ring holds 16 MiB. Lists of tokens and rows are the most that a step writes: four for
/// each token of a microbatch, so that a host may be dozens of microbatches ahead of its device.
const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT_COUNT: usize = 16;

/// A ring through which the host writes to a device, the same for all backends of one stream: the
/// host waits only where it is a whole ring ahead.
pub(super) struct UploadRing<D: Device> {
    /// Held for the few instructions of a copy into it.
    ring: Mutex<Option<RingMemory<D>>>,
}

struct RingMemory<D: Device> {
    memory: PinnedMemory<D>,
    segment: usize,
    taken_bytes: u64,
    /// The fences behind which the device has read each segment.
    read: [Option<D::Fence>; SEGMENT_COUNT],
}

impl<D: Device> UploadRing<D> {
    pub(super) const fn new() -> Self {
        Self { ring: Mutex::new(None) }
    }

    /// Copies to the device, in its order of work. What is copied may change at once.
    pub(super) fn write(
        &self,
        device: &Arc<CommandRecorder<D>>,
        bytes: &[u8],
        to: DeviceAddress,
    ) -> Result<(), DeviceFault> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *ring {
            Some(ring) => ring,
            none @ None => none.insert(RingMemory::new(device)?),
        };
        let mut to = to;
        for piece in bytes.chunks(SEGMENT_BYTES as usize) {
            let len = piece.len() as u64;
            let at = ring.reserve(device, len)?;
            device.write_host(piece, at);
            device.copy_from_host(Stream::Compute, at, to, len)?;
            to = to.plus(len);
        }
        Ok(())
    }
}

impl<D: Device> RingMemory<D> {
    fn new(device: &Arc<CommandRecorder<D>>) -> Result<Self, DeviceFault> {
        let memory = PinnedMemory::new(device, SEGMENT_BYTES * SEGMENT_COUNT as u64)?;
        Ok(Self { memory, segment: 0, taken_bytes: 0, read: [const { None }; SEGMENT_COUNT] })
    }

    /// The address of so many bytes that nothing reads any more.
    fn reserve(
        &mut self,
        device: &CommandRecorder<D>,
        bytes: u64,
    ) -> Result<DeviceAddress, DeviceFault> {
        if self.taken_bytes + bytes > SEGMENT_BYTES {
            self.read[self.segment] = Some(device.record_fence(Stream::Compute)?);
            self.segment = (self.segment + 1) % SEGMENT_COUNT;
            self.taken_bytes = 0;
            if let Some(read) = self.read[self.segment].take() {
                device.host_wait(&read)?;
            }
        }
        let start = self.segment as u64 * SEGMENT_BYTES + self.taken_bytes;
        self.taken_bytes += bytes;
        Ok(self.memory.at(start, bytes))
    }
}
