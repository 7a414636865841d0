//! Buffers, cut from large regions of a device's memory, and scratch that operations share.
//!
//! A caller that knows what it will allocate claims it first: one region of that size, out of which
//! its buffers and the scratch of its operations are cut. One that does not know shares regions
//! with others of the kind.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::offload::CopyGuard;
use super::recorder::CommandRecorder;
use super::source::Precision;
use crate::fault::AllocationPurpose;
use crate::scratch::{SLOT_COUNT, ScratchSlot};
use crate::sizes::{ByteCounts, DeviceSizes, region_bytes};

/// A region is at least this large; a larger buffer gets one of its own.
const REGION_BYTES_MIN: u64 = 32 << 20;
pub(super) use crate::scratch::CUDA_ALIGNMENT as ALIGNMENT;

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementType {
    /// A 32-bit float, in every precision.
    Float,
    /// An activation, in the type that the device computes with.
    Row,
}

impl ElementType {
    pub(super) const fn bytes(self, precision: Precision) -> u64 {
        match self {
            Self::Float => 4,
            Self::Row => precision.bytes() as u64,
        }
    }
}

/// Memory of a device, freed when nothing holds it.
struct DeviceRegion<D: Device> {
    device: Arc<CommandRecorder<D>>,
    start: DeviceAddress,
}

impl<D: Device> DeviceRegion<D> {
    fn new(
        device: &Arc<CommandRecorder<D>>,
        bytes: u64,
        purpose: AllocationPurpose,
    ) -> Result<Arc<Self>, DeviceFault> {
        let start = device.allocate(bytes).map_err(|fault| fault.with_purpose(purpose))?;
        Ok(Arc::new(Self { device: device.clone(), start }))
    }
}

impl<D: Device> Drop for DeviceRegion<D> {
    fn drop(&mut self) {
        self.device.free(self.start);
    }
}

/// A run of numbers in a device's memory.
pub struct CudaBuffer<D: Device> {
    region: Arc<DeviceRegion<D>>,
    offset_bytes: u64,
    len: usize,
    element: ElementType,
    /// The copy beside the work that still uses it.
    guard: Option<CopyGuard<D::Fence>>,
    /// The last copy beside the work that reads it: until then it may be read, and not written.
    reader: Option<CopyGuard<D::Fence>>,
}

impl<D: Device> CudaBuffer<D> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn element(&self) -> ElementType {
        self.element
    }

    /// Where element `index` lies.
    pub(super) fn at(&self, index: usize) -> DeviceAddress {
        assert!(
            self.guard.is_none(),
            "a buffer is ordered after its offload or reload before its use"
        );
        let bytes = self.element.bytes(self.region.device.precision()) * index as u64;
        self.region.start.plus(self.offset_bytes + bytes)
    }

    /// Where the buffer lies, for a copy that waits for the buffer's guard first, and its bytes.
    pub(super) fn guarded_bytes(&self) -> (DeviceAddress, u64) {
        let bytes = self.element.bytes(self.region.device.precision()) * self.len as u64;
        (self.region.start.plus(self.offset_bytes), bytes)
    }

    pub(super) fn guard(&self) -> Option<&CopyGuard<D::Fence>> {
        self.guard.as_ref()
    }

    pub(super) fn set_guard(&mut self, guard: CopyGuard<D::Fence>) {
        self.guard = Some(guard);
    }

    pub(super) fn take_guard(&mut self) -> Option<CopyGuard<D::Fence>> {
        self.guard.take()
    }

    /// Copies that read come one after the other: the last one is waited for.
    pub(super) fn set_reader(&mut self, guard: CopyGuard<D::Fence>) {
        self.reader = Some(guard);
    }

    pub(super) fn take_reader(&mut self) -> Option<CopyGuard<D::Fence>> {
        self.reader.take()
    }

    /// Where it begins, as activations.
    pub(super) fn rows(&self) -> DeviceAddress {
        let is_rows = self.element == ElementType::Row;
        let precision = self.region.device.precision();
        assert!(is_rows || precision == Precision::F32, "activations come from `allocate_rows`");
        self.at(0)
    }

    /// Where element `index` lies, as a 32-bit float.
    pub(super) fn floats(&self, index: usize) -> DeviceAddress {
        let is_float = self.element == ElementType::Float;
        let precision = self.region.device.precision();
        assert!(is_float || precision == Precision::F32, "floats come from `allocate`");
        self.at(index)
    }
}

/// A region of which parts are allocated, one behind the other.
pub(super) struct RegionAllocator<D: Device> {
    region: Arc<DeviceRegion<D>>,
    taken_bytes: u64,
    /// Where the last part ends at most.
    bytes: u64,
}

impl<D: Device> RegionAllocator<D> {
    /// A region of its own for so many bytes.
    pub(super) fn new(
        device: &Arc<CommandRecorder<D>>,
        bytes: u64,
        purpose: AllocationPurpose,
    ) -> Result<Self, DeviceFault> {
        let region = DeviceRegion::new(device, region_bytes(bytes), purpose)?;
        Ok(Self { region, taken_bytes: 0, bytes })
    }

    /// Two of the same region, with half of it each.
    pub(super) fn halves(self) -> [Self; 2] {
        let region = self.region.clone();
        let half = self.bytes / 2;
        [Self { bytes: half, ..self }, Self { region, taken_bytes: half, bytes: self.bytes }]
    }

    /// Where so many bytes lie; `None` if fewer are left.
    fn cut(&mut self, bytes: u64) -> Option<RegionOffset<D>> {
        let offset_bytes = self.taken_bytes;
        (offset_bytes + bytes <= self.bytes).then(|| {
            self.taken_bytes += bytes;
            RegionOffset { region: self.region.clone(), offset_bytes }
        })
    }

    /// `len` zeros; `None` if too few bytes are left.
    pub(super) fn allocate(
        &mut self,
        element: ElementType,
        len: usize,
    ) -> Option<Result<CudaBuffer<D>, DeviceFault>> {
        let bytes = buffer_bytes(self.region.device.precision(), element, len);
        self.cut(bytes).map(|offset| offset.zeros(element, len))
    }
}

/// Where a part of a region begins.
struct RegionOffset<D: Device> {
    region: Arc<DeviceRegion<D>>,
    offset_bytes: u64,
}

impl<D: Device> RegionOffset<D> {
    fn zeros(self, element: ElementType, len: usize) -> Result<CudaBuffer<D>, DeviceFault> {
        let Self { region, offset_bytes } = self;
        let bytes = buffer_bytes(region.device.precision(), element, len);
        region.device.zero(region.start.plus(offset_bytes), bytes)?;
        Ok(CudaBuffer { region, offset_bytes, len, element, guard: None, reader: None })
    }
}

/// Bytes that `len` elements need.
pub(super) fn buffer_bytes(precision: Precision, element: ElementType, len: usize) -> u64 {
    match element {
        ElementType::Float => DeviceSizes::Cuda(precision).buffer_bytes(len),
        ElementType::Row => DeviceSizes::Cuda(precision).rows_bytes(len),
    }
}

/// Allocates the buffers that no claim has counted.
pub(super) struct CudaArena<D: Device> {
    /// Held for the few instructions of a cut.
    current: Mutex<Option<RegionAllocator<D>>>,
}

impl<D: Device> CudaArena<D> {
    pub(super) fn new() -> Self {
        Self { current: Mutex::new(None) }
    }

    /// A buffer of `len` zeros.
    pub(super) fn allocate(
        &self,
        device: &Arc<CommandRecorder<D>>,
        element: ElementType,
        len: usize,
    ) -> Result<CudaBuffer<D>, DeviceFault> {
        let bytes = buffer_bytes(device.precision(), element, len);
        self.cut(device, bytes)?.zeros(element, len)
    }

    fn cut(
        &self,
        device: &Arc<CommandRecorder<D>>,
        bytes: u64,
    ) -> Result<RegionOffset<D>, DeviceFault> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset) = current.as_mut().and_then(|current| current.cut(bytes)) {
            return Ok(offset);
        }
        let mut fresh =
            RegionAllocator::new(device, bytes.max(REGION_BYTES_MIN), AllocationPurpose::Buffers)?;
        let offset = fresh.cut(bytes).expect("it was made for as many at least");
        *current = Some(fresh);
        Ok(offset)
    }
}

/// Memory that is reused by one operation after the other. A slot that a claim names is there from
/// its beginning; anything else grows to the largest one's need and stays.
pub(super) struct ScratchMemory<D: Device> {
    slots: RefCell<[Option<SlotMemory<D>>; SLOT_COUNT]>,
}

/// A slot's memory and its size.
struct SlotMemory<D: Device> {
    offset: RegionOffset<D>,
    bytes: u64,
}

impl<D: Device> SlotMemory<D> {
    fn start(&self) -> DeviceAddress {
        self.offset.region.start.plus(self.offset.offset_bytes)
    }
}

impl<D: Device> ScratchMemory<D> {
    pub(super) fn new() -> Self {
        Self { slots: RefCell::new([const { None }; SLOT_COUNT]) }
    }

    /// Makes slots of these sizes out of a region that was allocated for them.
    pub(super) fn reserve(&self, from: &mut RegionAllocator<D>, slots: [u64; SLOT_COUNT]) {
        for (slot, bytes) in self.slots.borrow_mut().iter_mut().zip(slots) {
            let bytes = bytes.next_multiple_of(ALIGNMENT);
            let offset = from.cut(bytes).expect("the region was made for it");
            *slot = Some(SlotMemory { offset, bytes });
        }
    }

    /// The address of at least so many bytes of a slot, whatever they hold.
    pub(super) fn take(
        &self,
        device: &Arc<CommandRecorder<D>>,
        slot: ScratchSlot,
        bytes: usize,
    ) -> Result<DeviceAddress, DeviceFault> {
        let memory = &mut self.slots.borrow_mut()[slot as usize];
        let bytes = bytes as u64;
        if let Some(current) = memory
            && current.bytes >= bytes
        {
            return Ok(current.start());
        }
        // The smaller one is freed first: the device may not hold both.
        *memory = None;
        let bytes = bytes.next_multiple_of(1 << 20);
        let mut region = RegionAllocator::new(device, bytes, AllocationPurpose::Scratch)?;
        let offset = region.cut(bytes).expect("it was made for as many");
        Ok(memory.insert(SlotMemory { offset, bytes }).start())
    }
}
