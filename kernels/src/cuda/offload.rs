//! Buffers that are offloaded to the host for a while and reloaded, copied beside the device's
//! work.
//!
//! ```text
//!   compute  ... F ─fence─┐                  ┌─wait── B ...
//!   out                   └─▶ copy ─fence─┐  │
//!   in                                    └──┼─▶ copy ─fence─┐
//!                                            └───────────────┘
//! ```
//!
//! A buffer holds the copy that still uses it. Its address is refused until the caller that wants
//! to use it has had the device wait for that copy ([`order_after_copies`]): neither is memory
//! written that has not been read yet, nor read that has not been written. No copy waits on the
//! host, and activations keep their type.

use std::collections::BTreeMap;

use super::backend::CudaBackend;
use super::device::{Device, Stream};
use super::error::DeviceFault;
use super::memory::CudaBuffer;
use super::pinned::PinnedMemory;

/// Pinned memory of the host for offloaded buffers.
pub struct CudaOffloadBuffer<D: Device> {
    memory: PinnedMemory<D>,
    /// The fence of the last copy that uses each place, by the byte at which it starts.
    last: BTreeMap<u64, D::Fence>,
}

/// A copy beside the work that still uses a buffer.
pub(super) struct CopyGuard<F> {
    fence: F,
    /// Counts the copies of a backend: a later one is another one.
    number: u64,
}

impl<F> CopyGuard<F> {
    pub(super) const fn new(fence: F, number: u64) -> Self {
        Self { fence, number }
    }
}

impl<F: Clone> Clone for CopyGuard<F> {
    fn clone(&self) -> Self {
        Self { fence: self.fence.clone(), number: self.number }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OffloadDirection {
    Offload,
    Reload,
}

pub(super) fn reserve<D: Device>(
    device: &CudaBackend<D>,
    bytes: u64,
) -> Result<CudaOffloadBuffer<D>, DeviceFault> {
    let memory = PinnedMemory::new(device.shared_device(), bytes)?;
    Ok(CudaOffloadBuffer { memory, last: BTreeMap::new() })
}

pub(super) fn offload<D: Device>(
    device: &CudaBackend<D>,
    parts: &mut [&mut CudaBuffer<D>],
    host: &mut CudaOffloadBuffer<D>,
    start: u64,
) -> Result<(), DeviceFault> {
    copy(device, OffloadDirection::Offload, parts, host, start)
}

pub(super) fn reload<D: Device>(
    device: &CudaBackend<D>,
    parts: &mut [&mut CudaBuffer<D>],
    host: &mut CudaOffloadBuffer<D>,
    start: u64,
) -> Result<(), DeviceFault> {
    copy(device, OffloadDirection::Reload, parts, host, start)
}

fn copy<D: Device>(
    backend: &CudaBackend<D>,
    direction: OffloadDirection,
    parts: &mut [&mut CudaBuffer<D>],
    host: &mut CudaOffloadBuffer<D>,
    start: u64,
) -> Result<(), DeviceFault> {
    let device = backend.device();
    let stream = match direction {
        OffloadDirection::Offload => Stream::Download,
        OffloadDirection::Reload => Stream::Upload,
    };
    // After all that was computed with these buffers, and whatever they hold now.
    device.stream_wait(stream, &device.record_fence(Stream::Compute)?)?;
    let mut waited = None;
    for CopyGuard { fence, number } in parts.iter().filter_map(|part| part.guard()) {
        if waited != Some(*number) {
            device.stream_wait(stream, fence)?;
            waited = Some(*number);
        }
    }
    // After the copy that used this place before.
    if let Some(last) = host.last.get(&start) {
        device.stream_wait(stream, last)?;
    }
    let mut at = start;
    for part in parts.iter() {
        let (on_device, bytes) = part.guarded_bytes();
        if bytes > 0 {
            let on_host = host.memory.at(at, bytes);
            match direction {
                OffloadDirection::Offload => {
                    device.copy_to_host(stream, on_device, on_host, bytes)?
                }
                OffloadDirection::Reload => {
                    device.copy_from_host(stream, on_host, on_device, bytes)?
                }
            }
        }
        at += bytes;
    }
    let fence = device.record_fence(stream)?;
    host.last.insert(start, fence.clone());
    let guard = CopyGuard { fence, number: backend.next_copy() };
    parts.iter_mut().for_each(|part| part.set_guard(guard.clone()));
    Ok(())
}

/// Has the device wait for the copies that still use a buffer: one that offloads or reloads it, and
/// one that downloads it.
pub(super) fn order_after_copies<D: Device>(
    backend: &CudaBackend<D>,
    buffer: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let guards = [buffer.take_guard(), buffer.take_reader()];
    for CopyGuard { fence, number } in guards.into_iter().flatten() {
        // The parts of a pass went together: one wait is enough.
        if backend.is_first_after_copy(number) {
            backend.device().stream_wait(Stream::Compute, &fence)?;
        }
    }
    Ok(())
}
