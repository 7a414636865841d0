//! Boundary tensors on a device, on their way to another backend.
//!
//! ```text
//!   sender    ... F ─ copy into a room ─fence─┐            ┌─follow─ copy into the same room
//!   receiver                                  └─▶ copy out ─fence─┘
//! ```
//!
//! No thread of the host waits. Rooms are few and used again: one that comes back brings the moments from
//! which on it has been read. A receiver with another kind of device reads the numbers, which come
//! by way of memory that the device copies by itself, in a stream of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, ElementType, RegionAllocator};
use super::pinned::PinnedMemory;
use super::recorder::CommandRecorder;
use super::transfer::{bytes_of, numbers_of};
use crate::backend::{BufferView, BufferViewMut};
use crate::sizes::StagingReservation;
use crate::tensor_handle::{HostTensor, PendingTensor, TensorHandle};

/// Memory for one boundary tensor.
struct StagingBuffer<D: Device> {
    device: Arc<CommandRecorder<D>>,
    buffer: CudaBuffer<D>,
    /// The room's twin on the host, if its numbers were ever read on the host or written from it.
    host: Option<PinnedMemory<D>>,
    /// The moments from which on the room has been read.
    read: Vec<D::Fence>,
    /// The moment from which on its twin has been read.
    host_read: Option<D::Fence>,
}

impl<D: Device> StagingBuffer<D> {
    /// Where the room's twin on the host lies.
    fn host_mirror(&mut self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        let host = match &mut self.host {
            Some(host) => host,
            none @ None => none.insert(PinnedMemory::new(&self.device, bytes)?),
        };
        Ok(host.at(0, bytes))
    }
}

impl<D: Device> Drop for StagingBuffer<D> {
    fn drop(&mut self) {
        // Another device may still read it, which the driver does not wait for when it takes it back.
        for read in &self.read {
            let _given_up = self.device.host_wait(read);
        }
    }
}

/// The rooms of a backend.
pub(super) struct StagingBufferPool<D: Device> {
    made: Cell<usize>,
    /// The memory that a plan has counted for the rooms. Nothing else is taken then.
    claimed: RefCell<Option<RegionAllocator<D>>>,
    free: RefCell<VecDeque<StagingBuffer<D>>>,
    returned: Receiver<StagingBuffer<D>>,
    return_sender: SyncSender<StagingBuffer<D>>,
}

impl<D: Device> StagingBufferPool<D> {
    pub(super) fn new() -> Self {
        let (home, returned) = sync_channel(StagingReservation::COUNT_MAX);
        let (made, claimed) = (Cell::new(0), RefCell::default());
        Self { made, claimed, free: RefCell::default(), returned, return_sender: home }
    }

    /// Makes rooms out of this memory from now on, and of no other.
    pub(super) fn reserve(&self, memory: RegionAllocator<D>) {
        *self.claimed.borrow_mut() = Some(memory);
    }

    /// Memory for one more; none if there is none.
    fn buffer(
        &self,
        backend: &CudaBackend<D>,
        element: ElementType,
        len: usize,
    ) -> Result<Option<CudaBuffer<D>>, DeviceFault> {
        match &mut *self.claimed.borrow_mut() {
            Some(claimed) => claimed.allocate(element, len).transpose(),
            None => Ok(backend.buffer(element, len).ok()),
        }
    }

    /// A room of this form; none if there is none left. Some take turns: with only one, its next sender
    /// would wait for the reader of the tensor before. The one that has been free for longest comes first.
    fn acquire(
        &self,
        backend: &CudaBackend<D>,
        element: ElementType,
        len: usize,
    ) -> Result<Option<StagingBuffer<D>>, DeviceFault> {
        let mut free = self.free.borrow_mut();
        free.extend(self.returned.try_iter());
        let fits =
            |room: &StagingBuffer<D>| room.buffer.element() == element && room.buffer.len() == len;
        let first = |free: &mut VecDeque<StagingBuffer<D>>| {
            free.iter().position(fits).and_then(|place| free.remove(place))
        };
        if free.iter().filter(|room| fits(room)).count() >= StagingReservation::ROTATED
            || self.made.get() == StagingReservation::COUNT_MAX
        {
            return Ok(first(&mut free));
        }
        let Some(buffer) = self.buffer(backend, element, len)? else {
            return Ok(first(&mut free));
        };
        // Its zeros come first, whichever stream fills it.
        let read = vec![backend.device().record_fence(Stream::Compute)?];
        self.made.set(self.made.get() + 1);
        let device = backend.shared_device().clone();
        Ok(Some(StagingBuffer { device, buffer, host: None, read, host_read: None }))
    }
}

/// A tensor in a room.
struct StagedTensor<D: Device> {
    device: Arc<CommandRecorder<D>>,
    /// The fault of the backend it came from, set before numbers that are no result leave.
    fault: Arc<OnceLock<DeviceFault>>,
    /// The room, until this is dropped. Locked while a reader takes from it.
    staging: Mutex<Option<StagingBuffer<D>>>,
    filled: D::Fence,
    len: usize,
    element: ElementType,
    pool: SyncSender<StagingBuffer<D>>,
}

impl<D: Device> StagedTensor<D> {
    fn with_buffer<T>(
        &self,
        take: impl FnOnce(&mut StagingBuffer<D>) -> Result<T, DeviceFault>,
    ) -> Result<T, DeviceFault> {
        let mut room = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        take(room.as_mut().expect("there until this is dropped"))
    }

    fn bytes(&self) -> u64 {
        self.element.bytes(self.device.precision()) * self.len as u64
    }

    /// The bytes, by way of memory that the device copies by itself.
    fn fetch(&self) -> Result<Vec<u8>, DeviceFault> {
        let count = self.bytes();
        let mut bytes = vec![0; count as usize];
        self.with_buffer(|room| {
            let at = room.host_mirror(count)?;
            self.device.stream_wait(Stream::Download, &self.filled)?;
            self.device.copy_to_host(Stream::Download, room.buffer.at(0), at, count)?;
            self.device.host_wait(&self.device.record_fence(Stream::Download)?)?;
            self.device.read_host(at, &mut bytes);
            Ok(bytes)
        })
    }
}

impl<D: Device> PendingTensor for StagedTensor<D> {
    fn count(&self) -> usize {
        self.len
    }

    fn wait(&self) -> HostTensor {
        match self.fetch() {
            Ok(bytes) => numbers_of(&bytes, self.element, self.device.precision()),
            Err(fault) => {
                // Only the first one counts.
                let _kept = self.fault.set(fault);
                HostTensor::Floats(vec![f32::NAN; self.len])
            }
        }
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.fault.get().cloned()
    }
}

impl<D: Device> Drop for StagedTensor<D> {
    fn drop(&mut self) {
        let room = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(room) = room {
            // Where its backend is gone the room goes too.
            let _gone = self.pool.try_send(room);
        }
    }
}

/// A parcel of a view; none if there is no room.
pub(super) fn export_tensor<D: Device>(
    backend: &CudaBackend<D>,
    rooms: &StagingBufferPool<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
) -> Result<Option<TensorHandle>, DeviceFault> {
    let (element, len) = (from.buffer.element(), from.range.len());
    assert!(from.range.end <= from.buffer.len(), "a view lies within its buffer");
    let Some(mut room) = rooms.acquire(backend, element, len)? else { return Ok(None) };
    let device = backend.shared_device();
    for read in room.read.drain(..) {
        device.stream_wait(Stream::Compute, &read)?;
    }
    let bytes = element.bytes(device.precision()) * len as u64;
    // The pass is issued by itself: the rooms take turns, and it comes again as it is.
    device.flush()?;
    device.copy(from.buffer.at(from.range.start), room.buffer.at(0), bytes)?;
    let filled = device.record_fence(Stream::Compute)?;
    let (device, fault) = (device.clone(), backend.shared_fault());
    let (room, home) = (Mutex::new(Some(room)), rooms.return_sender.clone());
    Ok(Some(TensorHandle::OnDevice(Arc::new(StagedTensor {
        device,
        fault,
        staging: room,
        filled,
        len,
        element,
        pool: home,
    }))))
}

/// Takes a parcel of a device of this kind; gives back one that is of another.
pub(super) fn import_tensor<D: Device>(
    backend: &CudaBackend<D>,
    parcel: TensorHandle,
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> Result<Option<TensorHandle>, DeviceFault> {
    let TensorHandle::OnDevice(held) = &parcel else { return Ok(Some(parcel)) };
    let any: &dyn Any = &**held;
    let Some(boundary) = any.downcast_ref::<StagedTensor<D>>() else { return Ok(Some(parcel)) };
    let device = backend.device();
    let form =
        |element: ElementType, device: &CommandRecorder<D>| element.bytes(device.precision());
    if form(boundary.element, &boundary.device) != form(to.buffer.element(), device) {
        return Ok(Some(parcel));
    }
    assert_eq!(boundary.len, to.range.len());
    assert!(to.range.end <= to.buffer.len(), "a view lies within its buffer");
    let target: DeviceAddress = to.buffer.at(to.range.start);
    boundary.with_buffer(|room| {
        device.stream_wait(Stream::Compute, &boundary.filled)?;
        device.copy_from_peer(&boundary.device, room.buffer.at(0), target, boundary.bytes())?;
        room.read.push(device.record_fence(Stream::Compute)?);
        Ok(())
    })?;
    Ok(None)
}

/// Brings numbers into a room beside the work; gives them back if there is none.
pub(super) fn begin_upload<D: Device>(
    backend: &CudaBackend<D>,
    rooms: &StagingBufferPool<D>,
    numbers: HostTensor,
) -> Result<TensorHandle, DeviceFault> {
    let (element, len) = (ElementType::Row, numbers.len());
    let found = if len > 0 { rooms.acquire(backend, element, len)? } else { None };
    let Some(mut room) = found else { return Ok(TensorHandle::OnHost(numbers)) };
    let device = backend.shared_device();
    let at = match room.host_mirror(element.bytes(device.precision()) * len as u64) {
        // Without such memory the numbers go the plain way, when they are used.
        Err(DeviceFault::OutOfHostMemory { .. }) => {
            rooms.free.borrow_mut().push_back(room);
            return Ok(TensorHandle::OnHost(numbers));
        }
        at => at?,
    };
    let bytes = bytes_of(numbers, element, device.precision());
    // Passed long ago, unless neighbours are a whole pool of rooms ahead.
    if let Some(read) = room.host_read.take() {
        device.host_wait(&read)?;
    }
    device.write_host(&bytes, at);
    for read in room.read.drain(..) {
        device.stream_wait(Stream::Upload, &read)?;
    }
    device.copy_from_host(Stream::Upload, at, room.buffer.at(0), bytes.len() as u64)?;
    let filled = device.record_fence(Stream::Upload)?;
    room.host_read = Some(filled.clone());
    let (device, fault) = (device.clone(), backend.shared_fault());
    let (room, home) = (Mutex::new(Some(room)), rooms.return_sender.clone());
    Ok(TensorHandle::OnDevice(Arc::new(StagedTensor {
        device,
        fault,
        staging: room,
        filled,
        len,
        element,
        pool: home,
    })))
}
