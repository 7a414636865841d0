//! Buffers, cut from large regions of a device's memory, and scratch that operations share.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use super::away::Guard;
use super::device::{Address, Device};
use super::error::DeviceFault;
use super::recorder::Recorder;
use super::source::Precision;
use crate::sizes::{ByteCounts, DeviceSizes};

/// A region is at least this large; what is larger gets one of its own.
const REGION_BYTES_MIN: u64 = 32 << 20;
pub(super) use crate::sizes::CUDA_ALIGNMENT as ALIGNMENT;

/// What a buffer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// 32-bit floats.
    Float,
    /// Activations, in the type that the device computes with.
    Row,
}

impl Element {
    pub(super) const fn bytes(self, precision: Precision) -> u64 {
        match self {
            Self::Float => 4,
            Self::Row => precision.bytes() as u64,
        }
    }
}

/// Memory of a device, given back when nobody holds it.
struct Region<D: Device> {
    device: Arc<Recorder<D>>,
    start: Address,
}

impl<D: Device> Region<D> {
    fn new(device: &Arc<Recorder<D>>, bytes: u64) -> Result<Arc<Self>, DeviceFault> {
        let start = device.allocate(bytes)?;
        Ok(Arc::new(Self { device: device.clone(), start }))
    }
}

impl<D: Device> Drop for Region<D> {
    fn drop(&mut self) {
        self.device.free(self.start);
    }
}

/// A run of numbers in a device's memory.
pub struct CudaBuffer<D: Device> {
    region: Arc<Region<D>>,
    offset_bytes: u64,
    len: usize,
    element: Element,
    /// The copy beside the work that still uses it.
    guard: Option<Guard<D::Fence>>,
    /// The last copy beside the work that reads it: until then it may be read, and not written.
    reader: Option<Guard<D::Fence>>,
}

impl<D: Device> CudaBuffer<D> {
    /// How many numbers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn element(&self) -> Element {
        self.element
    }

    /// Where element `index` lies.
    pub(super) fn at(&self, index: usize) -> Address {
        assert!(self.guard.is_none(), "a buffer that left or came back is settled before its use");
        let bytes = self.element.bytes(self.region.device.precision()) * index as u64;
        self.region.start.plus(self.offset_bytes + bytes)
    }

    /// Where it lies, for a copy that follows what its guard says, and its bytes.
    pub(super) fn guarded_bytes(&self) -> (Address, u64) {
        let bytes = self.element.bytes(self.region.device.precision()) * self.len as u64;
        (self.region.start.plus(self.offset_bytes), bytes)
    }

    pub(super) fn guard(&self) -> Option<&Guard<D::Fence>> {
        self.guard.as_ref()
    }

    pub(super) fn set_guard(&mut self, guard: Guard<D::Fence>) {
        self.guard = Some(guard);
    }

    pub(super) fn take_guard(&mut self) -> Option<Guard<D::Fence>> {
        self.guard.take()
    }

    /// Copies that read come one after the other: the last one is waited for.
    pub(super) fn set_reader(&mut self, guard: Guard<D::Fence>) {
        self.reader = Some(guard);
    }

    pub(super) fn take_reader(&mut self) -> Option<Guard<D::Fence>> {
        self.reader.take()
    }

    /// Where it begins, as activations.
    pub(super) fn rows(&self) -> Address {
        let is_rows = self.element == Element::Row;
        let precision = self.region.device.precision();
        assert!(is_rows || precision == Precision::F32, "activations come from `allocate_rows`");
        self.at(0)
    }

    /// Where element `index` lies, as a 32-bit float.
    pub(super) fn floats(&self, index: usize) -> Address {
        let is_float = self.element == Element::Float;
        let precision = self.region.device.precision();
        assert!(is_float || precision == Precision::F32, "floats come from `allocate`");
        self.at(index)
    }
}

/// The region in use, how much of it is taken, and how large it is.
struct Current<D: Device> {
    region: Arc<Region<D>>,
    taken_bytes: u64,
    bytes: u64,
}

/// Hands out buffers.
pub(super) struct Arena<D: Device> {
    /// Held for the few instructions of a cut.
    current: Mutex<Option<Current<D>>>,
}

impl<D: Device> Arena<D> {
    pub(super) fn new() -> Self {
        Self { current: Mutex::new(None) }
    }

    /// Bytes that `len` elements take.
    pub(super) fn bytes(precision: Precision, element: Element, len: usize) -> u64 {
        match element {
            Element::Float => DeviceSizes::Cuda(precision).buffer_bytes(len),
            Element::Row => DeviceSizes::Cuda(precision).rows_bytes(len),
        }
    }

    /// `len` zeros.
    pub(super) fn allocate(
        &self,
        device: &Arc<Recorder<D>>,
        element: Element,
        len: usize,
    ) -> Result<CudaBuffer<D>, DeviceFault> {
        let bytes = Self::bytes(device.precision(), element, len);
        let (region, offset_bytes) = self.cut(device, bytes)?;
        device.zero(region.start.plus(offset_bytes), bytes)?;
        Ok(CudaBuffer { region, offset_bytes, len, element, guard: None, reader: None })
    }

    fn cut(
        &self,
        device: &Arc<Recorder<D>>,
        bytes: u64,
    ) -> Result<(Arc<Region<D>>, u64), DeviceFault> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Current { region, taken_bytes, bytes: size }) = current.as_mut()
            && *taken_bytes + bytes <= *size
        {
            let offset_bytes = *taken_bytes;
            *taken_bytes += bytes;
            return Ok((region.clone(), offset_bytes));
        }
        let size = bytes.max(REGION_BYTES_MIN);
        let region = Region::new(device, size)?;
        *current = Some(Current { region: region.clone(), taken_bytes: bytes, bytes: size });
        Ok((region, 0))
    }
}

/// What scratch is for. Two of them may be in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Token ids, targets, lists of rows and of chunks.
    Lists,
    /// Sums of groups of rows.
    Sums,
    /// Sums of those, and the other way round.
    SumsAgain,
    /// A product on its way through an activation's slope, or gradients of keys and values.
    Product,
    /// Products of outputs and their gradients, a float a row and head.
    RowProducts,
    /// What goes back to the host.
    Results,
    /// Moments by the device's clock.
    Stamps,
}

const SLOT_COUNT: usize = 7;

/// Memory that is reused by one operation after the other. It grows to the largest one's need and
/// stays, so a step after the first allocates nothing.
pub(super) struct Scratch<D: Device> {
    slots: RefCell<[Option<Room<D>>; SLOT_COUNT]>,
}

/// A slot's memory and its size.
struct Room<D: Device> {
    region: Arc<Region<D>>,
    bytes: u64,
}

impl<D: Device> Scratch<D> {
    pub(super) fn new() -> Self {
        Self { slots: RefCell::new([const { None }; SLOT_COUNT]) }
    }

    /// At least so many bytes, whatever is in them.
    pub(super) fn take(
        &self,
        device: &Arc<Recorder<D>>,
        slot: Slot,
        bytes: usize,
    ) -> Result<Address, DeviceFault> {
        let place = &mut self.slots.borrow_mut()[slot as usize];
        let bytes = bytes as u64;
        if let Some(room) = place
            && room.bytes >= bytes
        {
            return Ok(room.region.start);
        }
        // The smaller one goes first: there may be no room for both.
        *place = None;
        let bytes = bytes.next_multiple_of(1 << 20);
        let region = Region::new(device, bytes)?;
        let start = region.start;
        *place = Some(Room { region, bytes });
        Ok(start)
    }
}
