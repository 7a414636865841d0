//! Boundary tensors on a device, on their way to another backend.
//!
//! ```text
//!   sender    F ─ copy into a buffer ─fence─┐            ┌─wait─ copy into the same buffer
//!   receiver                                └─▶ copy out ─fence─┘
//! ```
//!
//! No thread of the host waits. Staging buffers are few and reused: one that is returned carries
//! the fences behind which it has been read. A receiver with another kind of device reads the
//! numbers, which pass through pinned memory in a stream of their own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, ElementType, RegionAllocator};
use super::pinned::PinnedMemory;
use super::pinned_buffers::checked;
use super::recorder::CommandRecorder;
use super::transfer::{bytes_of, numbers_of};
use crate::backend::{BufferView, BufferViewMut};
use crate::pending::{DeviceValue, Pending};
use crate::sizes::StagingReservation;
use crate::tensor_handle::{HostTensor, TensorHandle};

/// Memory for one boundary tensor.
struct StagingBuffer<D: Device> {
    device: Arc<CommandRecorder<D>>,
    buffer: CudaBuffer<D>,
    /// The buffer's mirror on the host, if its numbers were ever read on the host or written from
    /// it.
    host: Option<PinnedMemory<D>>,
    /// The fences behind which the buffer has been read.
    read: Vec<D::Fence>,
    /// The fence behind which its mirror on the host has been read.
    host_read: Option<D::Fence>,
}

impl<D: Device> StagingBuffer<D> {
    /// The address of the buffer's mirror on the host, which is allocated at the first call.
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
        // Another device may still read it, which the driver does not wait for when it takes it
        // back.
        for read in &self.read {
            let _failed_device = self.device.host_wait(read);
        }
    }
}

/// The staging buffers of a backend in one direction, or of a link.
pub(super) struct StagingBufferPool<D: Device> {
    made: Cell<usize>,
    made_max: usize,
    /// The memory that a plan has counted for staging buffers. Nothing else is taken then.
    claimed: RefCell<Option<RegionAllocator<D>>>,
    free: RefCell<VecDeque<StagingBuffer<D>>>,
    returned: Receiver<StagingBuffer<D>>,
    return_sender: SyncSender<StagingBuffer<D>>,
}

impl<D: Device> StagingBufferPool<D> {
    pub(super) fn new() -> Self {
        Self::with_limit(StagingReservation::COUNT_MAX)
    }

    /// At most so many staging buffers.
    pub(super) fn with_limit(made_max: usize) -> Self {
        let (return_sender, returned) = sync_channel(made_max);
        Self {
            made: Cell::new(0),
            made_max,
            claimed: RefCell::default(),
            free: RefCell::default(),
            returned,
            return_sender,
        }
    }

    /// Makes staging buffers out of this memory from now on, and of no other.
    pub(super) fn reserve(&self, memory: RegionAllocator<D>) {
        *self.claimed.borrow_mut() = Some(memory);
    }

    /// Memory for one more staging buffer; `None` if there is no space.
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

    /// A staging buffer of this type and length; `None` if there is none left. Some are used in
    /// turn: with only one, the next sender would wait for the reader of the tensor before. The one
    /// that has been free for longest comes first.
    fn acquire(
        &self,
        backend: &CudaBackend<D>,
        element: ElementType,
        len: usize,
    ) -> Result<Option<StagingBuffer<D>>, DeviceFault> {
        let mut free = self.free.borrow_mut();
        free.extend(self.returned.try_iter());
        let fits = |staging: &StagingBuffer<D>| {
            staging.buffer.element() == element && staging.buffer.len() == len
        };
        let first = |free: &mut VecDeque<StagingBuffer<D>>| {
            free.iter().position(fits).and_then(|index| free.remove(index))
        };
        if free.iter().filter(|staging| fits(staging)).count() >= StagingReservation::ROTATED
            || self.made.get() == self.made_max
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

/// A tensor in a staging buffer, on its way to a receiver.
struct StagedTensor<D: Device> {
    device: Arc<CommandRecorder<D>>,
    /// The fault of the backend it came from, set before numbers that are no result leave.
    fault: Arc<OnceLock<DeviceFault>>,
    /// The staging buffer, until this is dropped. Locked while a reader copies from it.
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
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        take(staging.as_mut().expect("there until this is dropped"))
    }

    fn bytes(&self) -> u64 {
        self.element.bytes(self.device.precision()) * self.len as u64
    }

    /// The bytes of the tensor, through pinned memory of the host.
    fn fetch(&self) -> Result<Vec<u8>, DeviceFault> {
        let count = self.bytes();
        let mut bytes = vec![0; count as usize];
        self.with_buffer(|staging| {
            let at = staging.host_mirror(count)?;
            self.device.stream_wait(Stream::Download, &self.filled)?;
            self.device.copy_to_host(Stream::Download, staging.buffer.at(0), at, count)?;
            self.device.host_wait(&self.device.record_fence(Stream::Download)?)?;
            self.device.read_host(at, &mut bytes);
            Ok(bytes)
        })
    }
}

impl<D: Device> DeviceValue<HostTensor> for StagedTensor<D> {
    fn read(&self) -> Result<HostTensor, DeviceFault> {
        let bytes = checked(&self.fault, self.fetch())?;
        Ok(numbers_of(&bytes, self.element, self.device.precision()))
    }
}

impl<D: Device> Drop for StagedTensor<D> {
    fn drop(&mut self) {
        let staging = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(staging) = staging {
            // Where its backend was dropped the buffer is freed.
            let _dropped_pool = self.pool.try_send(staging);
        }
    }
}

/// A handle to a copy of a view in a staging buffer; `None` if no buffer is free.
pub(super) fn export_tensor<D: Device>(
    backend: &CudaBackend<D>,
    pool: &StagingBufferPool<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
) -> Result<Option<TensorHandle>, DeviceFault> {
    let element = from.buffer.element();
    let len = from.range.len();
    assert!(from.range.end <= from.buffer.len(), "a view lies within its buffer");
    let Some(mut staging) = pool.acquire(backend, element, len)? else { return Ok(None) };
    let device = backend.shared_device();
    for read in staging.read.drain(..) {
        device.stream_wait(Stream::Compute, &read)?;
    }
    let bytes = element.bytes(device.precision()) * len as u64;
    // The pass is issued by itself: staging buffers are used in turn, and a pass without the copy
    // comes again with the same addresses.
    device.flush()?;
    device.copy(from.buffer.at(from.range.start), staging.buffer.at(0), bytes)?;
    let filled = device.record_fence(Stream::Compute)?;
    Ok(Some(staged(backend, pool, staging, filled)))
}

/// The handle of a tensor that fills a staging buffer of this pool behind that fence.
fn staged<D: Device>(
    backend: &CudaBackend<D>,
    pool: &StagingBufferPool<D>,
    staging: StagingBuffer<D>,
    filled: D::Fence,
) -> TensorHandle {
    let (len, element) = (staging.buffer.len(), staging.buffer.element());
    let tensor = StagedTensor {
        device: backend.shared_device().clone(),
        fault: backend.shared_fault(),
        staging: Mutex::new(Some(staging)),
        filled,
        len,
        element,
        pool: pool.return_sender.clone(),
    };
    TensorHandle::pending(len, Pending::OnDevice(Arc::new(tensor)))
}

/// Copies the tensor of a handle from a device of this kind; returns the handle if it is of
/// another.
pub(super) fn import_tensor<D: Device>(
    backend: &CudaBackend<D>,
    tensor: TensorHandle,
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> Result<Option<TensorHandle>, DeviceFault> {
    let staged = tensor.device_tensor().and_then(|any| any.downcast_ref::<StagedTensor<D>>());
    let Some(staged) = staged else { return Ok(Some(tensor)) };
    let device = backend.device();
    let element_bytes =
        |element: ElementType, device: &CommandRecorder<D>| element.bytes(device.precision());
    if element_bytes(staged.element, &staged.device) != element_bytes(to.buffer.element(), device) {
        return Ok(Some(tensor));
    }
    assert_eq!(staged.len, to.range.len());
    assert!(to.range.end <= to.buffer.len(), "a view lies within its buffer");
    let target: DeviceAddress = to.buffer.at(to.range.start);
    staged.with_buffer(|staging| {
        device.stream_wait(Stream::Compute, &staged.filled)?;
        device.copy_from_peer(&staged.device, staging.buffer.at(0), target, staged.bytes())?;
        staging.read.push(device.record_fence(Stream::Compute)?);
        Ok(())
    })?;
    Ok(None)
}

/// Where the tensor of a handle lies, once it is computed, and its bytes; none if no device of this
/// kind holds it.
pub(super) fn outgoing_bytes<D: Device>(
    tensor: &TensorHandle,
) -> Result<Option<(DeviceAddress, u64)>, DeviceFault> {
    let staged = tensor.device_tensor().and_then(|any| any.downcast_ref::<StagedTensor<D>>());
    let Some(staged) = staged else { return Ok(None) };
    checked(&staged.fault, staged.device.host_wait(&staged.filled))?;
    staged.with_buffer(|staging| Ok(Some((staging.buffer.at(0), staged.bytes()))))
}

/// Pinned memory of a link for tensors that find no staging buffer free, and its bytes.
pub(super) struct LandingMemory<D: Device> {
    memory: PinnedMemory<D>,
    bytes: u64,
}

/// Memory that a tensor is received into.
pub(super) struct IncomingTensor<D: Device> {
    len: usize,
    place: IncomingPlace<D>,
}

enum IncomingPlace<D: Device> {
    Staging(StagingBuffer<D>),
    Landing(LandingMemory<D>),
}

impl<D: Device> IncomingTensor<D> {
    /// Memory for `len` numbers that no stream uses.
    pub(super) fn new(
        backend: &CudaBackend<D>,
        pool: &StagingBufferPool<D>,
        landing: &mut Option<LandingMemory<D>>,
        len: usize,
    ) -> Result<Self, DeviceFault> {
        let device = backend.shared_device();
        let element = ElementType::Row;
        let Some(mut staging) = pool.acquire(backend, element, len)? else {
            let bytes = element.bytes(device.precision()) * len as u64;
            let landing = match landing.take().filter(|landing| landing.bytes >= bytes) {
                Some(landing) => landing,
                None => LandingMemory { memory: PinnedMemory::new(device, bytes)?, bytes },
            };
            return Ok(Self { len, place: IncomingPlace::Landing(landing) });
        };
        for read in staging.read.drain(..) {
            device.host_wait(&read)?;
        }
        Ok(Self { len, place: IncomingPlace::Staging(staging) })
    }

    /// Where it is received, and its bytes.
    pub(super) fn bytes(&self, backend: &CudaBackend<D>) -> (DeviceAddress, u64) {
        let precision = backend.device().precision();
        let bytes = ElementType::Row.bytes(precision) * self.len as u64;
        let at = match &self.place {
            IncomingPlace::Staging(staging) => staging.buffer.at(0),
            IncomingPlace::Landing(landing) => landing.memory.at(0, bytes),
        };
        (at, bytes)
    }

    /// The tensor, which was received. Landing memory is there for the next one.
    pub(super) fn arrived(
        self,
        backend: &CudaBackend<D>,
        pool: &StagingBufferPool<D>,
        landing: &mut Option<LandingMemory<D>>,
    ) -> Result<TensorHandle, DeviceFault> {
        let device = backend.shared_device();
        let (at, bytes) = self.bytes(backend);
        let element = ElementType::Row;
        match self.place {
            IncomingPlace::Landing(used) => {
                let mut read = vec![0; bytes as usize];
                device.read_host(at, &mut read);
                *landing = Some(used);
                Ok(numbers_of(&read, element, device.precision()).into())
            }
            IncomingPlace::Staging(staging) => {
                // Nothing is under way in it any more; readers of a staged tensor wait for a fence.
                let filled = device.record_fence(Stream::Upload)?;
                Ok(staged(backend, pool, staging, filled))
            }
        }
    }
}

/// Begins to copy numbers into a staging buffer beside the work; returns them if no buffer is free.
pub(super) fn begin_upload<D: Device>(
    backend: &CudaBackend<D>,
    pool: &StagingBufferPool<D>,
    numbers: HostTensor,
) -> Result<TensorHandle, DeviceFault> {
    let element = ElementType::Row;
    let len = numbers.len();
    let found = if len > 0 { pool.acquire(backend, element, len)? } else { None };
    let Some(mut staging) = found else { return Ok(numbers.into()) };
    let device = backend.shared_device();
    let at = match staging.host_mirror(element.bytes(device.precision()) * len as u64) {
        // Without such memory the numbers go the plain way, when they are used.
        Err(DeviceFault::OutOfHostMemory { .. }) => {
            pool.free.borrow_mut().push_back(staging);
            return Ok(numbers.into());
        }
        at => at?,
    };
    let bytes = bytes_of(numbers, element, device.precision());
    // Passed long ago, unless neighbours are a whole pool of staging buffers ahead.
    if let Some(read) = staging.host_read.take() {
        device.host_wait(&read)?;
    }
    device.write_host(&bytes, at);
    for read in staging.read.drain(..) {
        device.stream_wait(Stream::Upload, &read)?;
    }
    device.copy_from_host(Stream::Upload, at, staging.buffer.at(0), bytes.len() as u64)?;
    let filled = device.record_fence(Stream::Upload)?;
    staging.host_read = Some(filled.clone());
    Ok(staged(backend, pool, staging, filled))
}
