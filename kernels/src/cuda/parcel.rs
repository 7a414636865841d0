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
use super::device::{Address, Device, Stream};
use super::error::DeviceFault;
use super::memory::{CudaBuffer, Element, Reserve};
use super::pinned::Pinned;
use super::recorder::Recorder;
use super::transfer::{bytes_of, numbers_of};
use crate::backend::{View, ViewMut};
use crate::parcel::{Held, Numbers, Parcel};
use crate::sizes::BoundaryRooms;

/// Memory for one boundary tensor.
struct Room<D: Device> {
    device: Arc<Recorder<D>>,
    buffer: CudaBuffer<D>,
    /// The room's twin on the host, if its numbers were ever read on the host or written from it.
    host: Option<Pinned<D>>,
    /// The moments from which on the room has been read.
    read: Vec<D::Fence>,
    /// The moment from which on its twin has been read.
    host_read: Option<D::Fence>,
}

impl<D: Device> Room<D> {
    /// Where the room's twin on the host lies.
    fn twin(&mut self, bytes: u64) -> Result<Address, DeviceFault> {
        let host = match &mut self.host {
            Some(host) => host,
            none @ None => none.insert(Pinned::new(&self.device, bytes)?),
        };
        Ok(host.at(0, bytes))
    }
}

impl<D: Device> Drop for Room<D> {
    fn drop(&mut self) {
        // Another device may still read it, which the driver does not wait for when it takes it back.
        for read in &self.read {
            let _given_up = self.device.reach(read);
        }
    }
}

/// The rooms of a backend.
pub(super) struct Rooms<D: Device> {
    made: Cell<usize>,
    /// The memory that a plan has counted for the rooms. Nothing else is taken then.
    claimed: RefCell<Option<Reserve<D>>>,
    free: RefCell<VecDeque<Room<D>>>,
    returned: Receiver<Room<D>>,
    home: SyncSender<Room<D>>,
}

impl<D: Device> Rooms<D> {
    pub(super) fn new() -> Self {
        let (home, returned) = sync_channel(BoundaryRooms::COUNT_MAX);
        let (made, claimed) = (Cell::new(0), RefCell::default());
        Self { made, claimed, free: RefCell::default(), returned, home }
    }

    /// Makes rooms out of this memory from now on, and of no other.
    pub(super) fn reserve(&self, memory: Reserve<D>) {
        *self.claimed.borrow_mut() = Some(memory);
    }

    /// Memory for one more; none if there is none.
    fn buffer(
        &self,
        backend: &CudaBackend<D>,
        element: Element,
        len: usize,
    ) -> Result<Option<CudaBuffer<D>>, DeviceFault> {
        match &mut *self.claimed.borrow_mut() {
            Some(claimed) => claimed.allocate(element, len).transpose(),
            None => Ok(backend.buffer(element, len).ok()),
        }
    }

    /// A room of this form; none if there is none left. Some take turns: with only one, its next sender
    /// would wait for the reader of the tensor before. The one that has been free for longest comes first.
    fn take(
        &self,
        backend: &CudaBackend<D>,
        element: Element,
        len: usize,
    ) -> Result<Option<Room<D>>, DeviceFault> {
        let mut free = self.free.borrow_mut();
        free.extend(self.returned.try_iter());
        let fits = |room: &Room<D>| room.buffer.element() == element && room.buffer.len() == len;
        let first = |free: &mut VecDeque<Room<D>>| {
            free.iter().position(fits).and_then(|place| free.remove(place))
        };
        if free.iter().filter(|room| fits(room)).count() >= BoundaryRooms::ROTATED
            || self.made.get() == BoundaryRooms::COUNT_MAX
        {
            return Ok(first(&mut free));
        }
        let Some(buffer) = self.buffer(backend, element, len)? else {
            return Ok(first(&mut free));
        };
        // Its zeros come first, whichever stream fills it.
        let read = vec![backend.device().fence(Stream::Compute)?];
        self.made.set(self.made.get() + 1);
        let device = backend.shared_device().clone();
        Ok(Some(Room { device, buffer, host: None, read, host_read: None }))
    }
}

/// A tensor in a room.
struct Boundary<D: Device> {
    device: Arc<Recorder<D>>,
    /// The fault of the backend it came from, set before numbers that are no result leave.
    fault: Arc<OnceLock<DeviceFault>>,
    /// The room, until this is dropped. Locked while a reader takes from it.
    room: Mutex<Option<Room<D>>>,
    filled: D::Fence,
    len: usize,
    element: Element,
    home: SyncSender<Room<D>>,
}

impl<D: Device> Boundary<D> {
    fn with_room<T>(
        &self,
        take: impl FnOnce(&mut Room<D>) -> Result<T, DeviceFault>,
    ) -> Result<T, DeviceFault> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        take(room.as_mut().expect("there until this is dropped"))
    }

    fn bytes(&self) -> u64 {
        self.element.bytes(self.device.precision()) * self.len as u64
    }

    /// The bytes, by way of memory that the device copies by itself.
    fn fetch(&self) -> Result<Vec<u8>, DeviceFault> {
        let count = self.bytes();
        let mut bytes = vec![0; count as usize];
        self.with_room(|room| {
            let at = room.twin(count)?;
            self.device.follow(Stream::Out, &self.filled)?;
            self.device.copy_out(Stream::Out, room.buffer.at(0), at, count)?;
            self.device.reach(&self.device.fence(Stream::Out)?)?;
            self.device.read_host(at, &mut bytes);
            Ok(bytes)
        })
    }
}

impl<D: Device> Held for Boundary<D> {
    fn count(&self) -> usize {
        self.len
    }

    fn numbers(&self) -> Numbers {
        match self.fetch() {
            Ok(bytes) => numbers_of(&bytes, self.element, self.device.precision()),
            Err(fault) => {
                // Only the first one counts.
                let _kept = self.fault.set(fault);
                Numbers::Floats(vec![f32::NAN; self.len])
            }
        }
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.fault.get().cloned()
    }
}

impl<D: Device> Drop for Boundary<D> {
    fn drop(&mut self) {
        let room = self.room.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(room) = room {
            // Where its backend is gone the room goes too.
            let _gone = self.home.try_send(room);
        }
    }
}

/// A parcel of a view; none if there is no room.
pub(super) fn pack<D: Device>(
    backend: &CudaBackend<D>,
    rooms: &Rooms<D>,
    from: &View<'_, CudaBuffer<D>>,
) -> Result<Option<Parcel>, DeviceFault> {
    let (element, len) = (from.buffer.element(), from.range.len());
    assert!(from.range.end <= from.buffer.len(), "a view lies within its buffer");
    let Some(mut room) = rooms.take(backend, element, len)? else { return Ok(None) };
    let device = backend.shared_device();
    for read in room.read.drain(..) {
        device.follow(Stream::Compute, &read)?;
    }
    let bytes = element.bytes(device.precision()) * len as u64;
    // The pass is issued by itself: the rooms take turns, and it comes again as it is.
    device.flush()?;
    device.copy(from.buffer.at(from.range.start), room.buffer.at(0), bytes)?;
    let filled = device.fence(Stream::Compute)?;
    let (device, fault) = (device.clone(), backend.shared_fault());
    let (room, home) = (Mutex::new(Some(room)), rooms.home.clone());
    Ok(Some(Parcel::Held(Arc::new(Boundary { device, fault, room, filled, len, element, home }))))
}

/// Takes a parcel of a device of this kind; gives back one that is of another.
pub(super) fn unpack<D: Device>(
    backend: &CudaBackend<D>,
    parcel: Parcel,
    to: &ViewMut<'_, CudaBuffer<D>>,
) -> Result<Option<Parcel>, DeviceFault> {
    let Parcel::Held(held) = &parcel else { return Ok(Some(parcel)) };
    let any: &dyn Any = &**held;
    let Some(boundary) = any.downcast_ref::<Boundary<D>>() else { return Ok(Some(parcel)) };
    let device = backend.device();
    let form = |element: Element, device: &Recorder<D>| element.bytes(device.precision());
    if form(boundary.element, &boundary.device) != form(to.buffer.element(), device) {
        return Ok(Some(parcel));
    }
    assert_eq!(boundary.len, to.range.len());
    assert!(to.range.end <= to.buffer.len(), "a view lies within its buffer");
    let target: Address = to.buffer.at(to.range.start);
    boundary.with_room(|room| {
        device.follow(Stream::Compute, &boundary.filled)?;
        device.copy_from(&boundary.device, room.buffer.at(0), target, boundary.bytes())?;
        room.read.push(device.fence(Stream::Compute)?);
        Ok(())
    })?;
    Ok(None)
}

/// Brings numbers into a room beside the work; gives them back if there is none.
pub(super) fn receive<D: Device>(
    backend: &CudaBackend<D>,
    rooms: &Rooms<D>,
    numbers: Numbers,
) -> Result<Parcel, DeviceFault> {
    let (element, len) = (Element::Row, numbers.len());
    let found = if len > 0 { rooms.take(backend, element, len)? } else { None };
    let Some(mut room) = found else { return Ok(Parcel::Here(numbers)) };
    let device = backend.shared_device();
    let at = match room.twin(element.bytes(device.precision()) * len as u64) {
        // Without such memory the numbers go the plain way, when they are used.
        Err(DeviceFault::OutOfHostMemory { .. }) => {
            rooms.free.borrow_mut().push_back(room);
            return Ok(Parcel::Here(numbers));
        }
        at => at?,
    };
    let bytes = bytes_of(numbers, element, device.precision());
    // Passed long ago, unless neighbours are a whole pool of rooms ahead.
    if let Some(read) = room.host_read.take() {
        device.reach(&read)?;
    }
    device.write_host(&bytes, at);
    for read in room.read.drain(..) {
        device.follow(Stream::In, &read)?;
    }
    device.copy_in(Stream::In, at, room.buffer.at(0), bytes.len() as u64)?;
    let filled = device.fence(Stream::In)?;
    room.host_read = Some(filled.clone());
    let (device, fault) = (device.clone(), backend.shared_fault());
    let (room, home) = (Mutex::new(Some(room)), rooms.home.clone());
    Ok(Parcel::Held(Arc::new(Boundary { device, fault, room, filled, len, element, home })))
}
