//! A device with its memory, as the trainer knows it; its operations are in [`operations`],
//! [`transfers`] and [`updates`].
//!
//! Operations return nothing, so the first fault of the device is recorded: from then on nothing is
//! launched, a value that is read later is the fault ([`Pending`]), what is read at once is NaN, and
//! [`CudaBackend::fault`] returns why. A NaN in a sum of squares is never applied to the weights, so
//! a fault cannot be mistaken for a result.

mod operations;
mod transfers;
mod updates;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};

use super::device::{Device, DeviceAddress};
use super::download;
use super::driver::CudaDevice;
use super::error::DeviceFault;
use super::kernel::Launch;
use super::losses;
use super::memory::{
    CudaArena, CudaBuffer, ElementType, RegionAllocator, ScratchMemory, buffer_bytes,
};
use super::pinned::UploadRing;
use super::pinned_buffers::PinnedBufferPool;
use super::recorder::{CommandRecorder, GraphCounts, GraphMode};
use super::source::Precision;
use super::staging::StagingBufferPool;
use super::timestamps::UnreadTimestamps;
use crate::allocate::MemoryShortage;
use crate::backend::{AllocateError, Backend, BufferView, MatrixShape};
use crate::fault::AllocationPurpose;
use crate::pending::Pending;
use crate::scratch::{ScratchSlot, slot_bytes};
use crate::sizes::{
    ByteCounts, DeviceSizes, MemoryClaim, region_bytes, scratch_bytes, staging_bytes,
};

/// A device with its memory.
pub struct CudaBackend<D: Device = CudaDevice> {
    device: Arc<CommandRecorder<D>>,
    arena: Arc<CudaArena<D>>,
    /// Memory that was claimed for buffers of this handle.
    claimed: RefCell<Option<RegionAllocator<D>>>,
    scratch: ScratchMemory<D>,
    /// Set once for all backends that share the device: none of them has it any more.
    fault: Arc<OnceLock<DeviceFault>>,
    timestamps: UnreadTimestamps,
    upload_ring: Arc<UploadRing<D>>,
    /// For outgoing and for incoming boundary tensors.
    staging_pools: [StagingBufferPool<D>; 2],
    losses: PinnedBufferPool<D>,
    /// For floats that are downloaded to the host.
    downloads: PinnedBufferPool<D>,
    /// Copies beside the work so far, and the last one that the work has waited for.
    copies: Cell<u64>,
    waited_copy: Cell<u64>,
    /// The first keys that lie in scratch, and where.
    first_keys: RefCell<Option<(DeviceAddress, Vec<u32>)>>,
}

/// A matrix in the type that products read, in row-major order.
pub struct CudaMatrix<D: Device> {
    pub(super) shape: MatrixShape,
    pub(super) weights: CudaBuffer<D>,
}

impl<D: Device> CudaBackend<D> {
    /// A backend on this device. Segments of commands that come again become graphs.
    #[must_use]
    pub fn new(device: Arc<D>) -> Self {
        Self::with_graphs(device, GraphMode::DEFAULT)
    }

    /// The same with or without graphs, which change no result.
    #[must_use]
    pub fn with_graphs(device: Arc<D>, graphs: GraphMode) -> Self {
        let device = Arc::new(CommandRecorder::new(device, graphs));
        Self::on(device, Arc::new(CudaArena::new()), Arc::default(), Arc::new(UploadRing::new()))
    }

    /// Another one on the same device, which shares its stream, its regions of memory and its end.
    #[must_use]
    pub fn sibling(&self) -> Self {
        let Self { device, arena, fault, upload_ring, .. } = self;
        Self::on(device.clone(), arena.clone(), fault.clone(), upload_ring.clone())
    }

    fn on(
        device: Arc<CommandRecorder<D>>,
        arena: Arc<CudaArena<D>>,
        fault: Arc<OnceLock<DeviceFault>>,
        upload_ring: Arc<UploadRing<D>>,
    ) -> Self {
        Self {
            device,
            arena,
            claimed: RefCell::default(),
            scratch: ScratchMemory::new(),
            fault,
            timestamps: UnreadTimestamps::default(),
            upload_ring,
            staging_pools: [StagingBufferPool::new(), StagingBufferPool::new()],
            losses: losses::pinned_buffers(),
            downloads: PinnedBufferPool::new(download::LIMITS),
            copies: Cell::new(0),
            waited_copy: Cell::new(0),
            first_keys: RefCell::default(),
        }
    }

    /// How commands were issued to the device so far.
    #[must_use]
    pub fn graph_counts(&self) -> GraphCounts {
        self.device.counts()
    }

    pub(super) fn device(&self) -> &CommandRecorder<D> {
        &self.device
    }

    pub(super) fn shared_device(&self) -> &Arc<CommandRecorder<D>> {
        &self.device
    }

    pub(super) fn shared_fault(&self) -> Arc<OnceLock<DeviceFault>> {
        self.fault.clone()
    }

    /// Copies from the host, which may reuse its memory at once.
    pub(super) fn write(&self, bytes: &[u8], to: DeviceAddress) -> Result<(), DeviceFault> {
        self.upload_ring.write(&self.device, bytes, to)
    }

    pub(super) fn losses(&self) -> &PinnedBufferPool<D> {
        &self.losses
    }

    /// The number of a copy beside the work, counted from 1.
    pub(super) fn next_copy(&self) -> u64 {
        self.copies.set(self.copies.get() + 1);
        self.copies.get()
    }

    /// Whether the work has not just waited for this copy.
    pub(super) fn is_first_after_copy(&self, number: u64) -> bool {
        self.waited_copy.replace(number) != number
    }

    /// The type of activations.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.device.precision()
    }

    pub(super) fn scratch(
        &self,
        slot: ScratchSlot,
        bytes: usize,
    ) -> Result<DeviceAddress, DeviceFault> {
        self.scratch.take(&self.device, slot, bytes)
    }

    /// Notes which first keys lie at `at` from now on, and returns whether they lay there before.
    pub(super) fn replace_first_keys(&self, at: DeviceAddress, first_keys: &[u32]) -> bool {
        let mut known = self.first_keys.borrow_mut();
        let is_same = known.as_ref().is_some_and(|(of, keys)| *of == at && keys == first_keys);
        if !is_same {
            *known = Some((at, first_keys.to_vec()));
        }
        is_same
    }

    pub(super) fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        if launch.is_empty() {
            return Ok(());
        }
        self.device.launch(launch)
    }

    /// Runs an operation unless one has failed before; `otherwise` is its result then.
    fn run_or<T>(&self, otherwise: T, operation: impl FnOnce() -> Result<T, DeviceFault>) -> T {
        self.run_result(operation).unwrap_or(otherwise)
    }

    /// Runs an operation whose result is read later; a fault takes its place.
    fn run_pending<T>(
        &self,
        operation: impl FnOnce() -> Result<Pending<T>, DeviceFault>,
    ) -> Pending<T> {
        self.run_result(operation).unwrap_or_else(Pending::Failed)
    }

    /// Runs an operation unless one has failed before.
    fn run_result<T>(
        &self,
        operation: impl FnOnce() -> Result<T, DeviceFault>,
    ) -> Result<T, DeviceFault> {
        match self.fault.get() {
            Some(first) => Err(first.clone()),
            None => operation().inspect_err(|fault| self.record_fault(fault.clone())),
        }
    }

    /// Records the first fault.
    fn record_fault(&self, fault: DeviceFault) {
        let _first = self.fault.get_or_init(|| fault);
    }

    fn run(&self, operation: impl FnOnce() -> Result<(), DeviceFault>) {
        self.run_or((), operation);
    }

    pub(super) fn buffer(
        &self,
        element: ElementType,
        len: usize,
    ) -> Result<CudaBuffer<D>, AllocateError> {
        let bytes = buffer_bytes(self.precision(), element, len);
        let failed = |fault: DeviceFault| AllocateError {
            fault: Some(Box::new(fault)),
            ..AllocateError::of_bytes(bytes)
        };
        if let Some(fault) = self.fault() {
            return Err(failed(fault));
        }
        let claimed =
            self.claimed.borrow_mut().as_mut().and_then(|from| from.allocate(element, len));
        let found = claimed.unwrap_or_else(|| self.arena.allocate(&self.device, element, len));
        found.map_err(|fault| self.refusal(bytes, fault))
    }

    /// Allocates what is claimed: a region for buffers and scratch, and one for staging buffers,
    /// which receivers may hold for longer.
    fn take_claim(&self, claim: &MemoryClaim<'_>) -> Result<(), DeviceFault> {
        let precision = self.precision();
        let staging = staging_bytes(claim.staging, precision);
        let requested_bytes = self.claim_bytes(claim);
        let purpose = AllocationPurpose::Claim;
        let whole = |fault: DeviceFault, taken_bytes| {
            if let DeviceFault::OutOfMemory { free_bytes, total_bytes, .. } = fault {
                let free_bytes = free_bytes + taken_bytes;
                DeviceFault::OutOfMemory {
                    asked_bytes: requested_bytes,
                    purpose,
                    free_bytes,
                    total_bytes,
                }
            } else {
                fault
            }
        };
        let reserve = |bytes| RegionAllocator::new(&self.device, bytes, purpose);
        let halves = (staging > 0).then(|| reserve(staging)).transpose();
        let halves = halves.map_err(|fault| whole(fault, 0))?.map(RegionAllocator::halves);
        let work = claim.buffers + scratch_bytes(claim.operations, precision);
        let mut work = reserve(work).map_err(|fault| whole(fault, region_bytes(staging)))?;
        self.scratch.reserve(&mut work, slot_bytes(claim.operations, precision));
        *self.claimed.borrow_mut() = Some(work);
        for (pool, half) in self.staging_pools.iter().zip(halves.into_iter().flatten()) {
            pool.reserve(half);
        }
        Ok(())
    }

    /// A lack of memory harms nothing; any other fault is recorded.
    fn refusal(&self, bytes: u64, fault: DeviceFault) -> AllocateError {
        match fault {
            DeviceFault::OutOfMemory { asked_bytes, purpose, free_bytes, total_bytes } => {
                AllocateError {
                    purpose: Some(purpose),
                    shortage: Some(MemoryShortage { free_bytes, total_bytes }),
                    ..AllocateError::of_bytes(asked_bytes)
                }
            }
            DeviceFault::OutOfHostMemory { asked_bytes } => AllocateError {
                fault: Some(Box::new(fault)),
                ..AllocateError::of_bytes(asked_bytes)
            },
            fault @ (DeviceFault::Sticky { .. }
            | DeviceFault::Unready { .. }
            | DeviceFault::Refused { .. }
            | DeviceFault::NoAlgorithm { .. }
            | DeviceFault::OtherLibrary { .. }) => {
                self.record_fault(fault.clone());
                AllocateError { fault: Some(Box::new(fault)), ..AllocateError::of_bytes(bytes) }
            }
        }
    }
}

/// Where a view of floats begins.
pub(super) fn floats<D: Device>(view: &BufferView<'_, CudaBuffer<D>>) -> DeviceAddress {
    assert!(view.range.end <= view.buffer.len(), "a view lies within its buffer");
    view.buffer.floats(view.range.start)
}

impl<D: Device> ByteCounts for CudaBackend<D> {
    fn sizes(&self) -> DeviceSizes {
        DeviceSizes::Cuda(self.precision())
    }
}
