//! Memory of the host that a device copies by itself, and what is written to a device through it.

use std::sync::{Arc, Mutex, PoisonError};

use super::device::{Address, Device, Stream};
use super::error::DeviceFault;
use super::recorder::Recorder;

/// Memory of the host that a device copies by itself, given back when it is dropped.
pub(super) struct Pinned<D: Device> {
    device: Arc<Recorder<D>>,
    start: Address,
    bytes: u64,
}

impl<D: Device> Pinned<D> {
    pub(super) fn new(device: &Arc<Recorder<D>>, bytes: u64) -> Result<Self, DeviceFault> {
        let start = device.allocate_host(bytes)?;
        Ok(Self { device: device.clone(), start, bytes })
    }

    /// Where `range` of it begins.
    pub(super) fn at(&self, start: u64, bytes: u64) -> Address {
        assert!(start + bytes <= self.bytes, "within what was taken");
        self.start.plus(start)
    }
}

impl<D: Device> Drop for Pinned<D> {
    fn drop(&mut self) {
        self.device.free_host(self.start);
    }
}

/// A lap of the ring is 16 MiB. Lists of tokens and rows are the most that a step writes: four for
/// each token of a microbatch, so that a host may be dozens of microbatches ahead of its device.
const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT_COUNT: usize = 16;

/// A ring through which the host writes to a device, the same for all backends of one stream: it waits only where it is a lap ahead.
pub(super) struct Staging<D: Device> {
    /// Held for the few instructions of a copy into it.
    ring: Mutex<Option<Ring<D>>>,
}

struct Ring<D: Device> {
    memory: Pinned<D>,
    segment: usize,
    taken_bytes: u64,
    /// When the device has read each segment.
    read: [Option<D::Fence>; SEGMENT_COUNT],
}

impl<D: Device> Staging<D> {
    pub(super) const fn new() -> Self {
        Self { ring: Mutex::new(None) }
    }

    /// Copies to the device, in its order of work. What is copied may change at once.
    pub(super) fn write(
        &self,
        device: &Arc<Recorder<D>>,
        bytes: &[u8],
        to: Address,
    ) -> Result<(), DeviceFault> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *ring {
            Some(ring) => ring,
            none @ None => none.insert(Ring::new(device)?),
        };
        let mut to = to;
        for piece in bytes.chunks(SEGMENT_BYTES as usize) {
            let len = piece.len() as u64;
            let at = ring.room(device, len)?;
            device.write_host(piece, at);
            device.copy_in(Stream::Compute, at, to, len)?;
            to = to.plus(len);
        }
        Ok(())
    }
}

impl<D: Device> Ring<D> {
    fn new(device: &Arc<Recorder<D>>) -> Result<Self, DeviceFault> {
        let memory = Pinned::new(device, SEGMENT_BYTES * SEGMENT_COUNT as u64)?;
        Ok(Self { memory, segment: 0, taken_bytes: 0, read: [const { None }; SEGMENT_COUNT] })
    }

    /// A place for so many bytes that nothing reads any more.
    fn room(&mut self, device: &Recorder<D>, bytes: u64) -> Result<Address, DeviceFault> {
        if self.taken_bytes + bytes > SEGMENT_BYTES {
            self.read[self.segment] = Some(device.fence(Stream::Compute)?);
            self.segment = (self.segment + 1) % SEGMENT_COUNT;
            self.taken_bytes = 0;
            if let Some(read) = self.read[self.segment].take() {
                device.reach(&read)?;
            }
        }
        let start = self.segment as u64 * SEGMENT_BYTES + self.taken_bytes;
        self.taken_bytes += bytes;
        Ok(self.memory.at(start, bytes))
    }
}
