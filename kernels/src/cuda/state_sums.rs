//! The sums of a state's fingerprint: each block leaves its part, and one block adds the parts up.
//!
//! They are sums of integers modulo 2^64, so no order matters. They are copied behind the pass to
//! the host, which reads them when it needs them.

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::losses;
use super::memory::CudaBuffer;
use crate::pending::Pending;
use crate::scratch::{STATE_SUMS_BYTES, SUMMED_PLACES, ScratchSlot};

/// STATE_THREADS of `optimizer.cu`, of which each has four places.
const THREADS: usize = SUMMED_PLACES / 4;

/// Scratch for the sums that blocks leave.
pub(super) struct PartialSums {
    start: DeviceAddress,
    count: usize,
}

impl PartialSums {
    pub(super) fn new<D: Device>(
        device: &CudaBackend<D>,
        count: usize,
    ) -> Result<Self, DeviceFault> {
        Ok(Self {
            start: device.scratch(ScratchSlot::Sums, count.max(1) * STATE_SUMS_BYTES)?,
            count,
        })
    }

    /// Where the blocks behind `done` others begin.
    pub(super) fn from(&self, done: usize) -> DeviceAddress {
        DeviceAddress(self.start.0 + (done * STATE_SUMS_BYTES) as u64)
    }

    /// Enqueues the sum of all parts, which may be read later.
    pub(super) fn add<D: Device>(
        self,
        device: &CudaBackend<D>,
    ) -> Result<Pending<[u64; 2]>, DeviceFault> {
        let sums = device.scratch(ScratchSlot::Results, STATE_SUMS_BYTES)?;
        let arguments = Arguments::new().address(self.start).count(self.count).address(sums);
        device.launch(&Launch::blocks(Kernel::AddStateSums, [1, 1], THREADS, arguments))?;
        losses::pending_sums(device, sums)
    }
}

/// The sums of a state as it lies.
pub(super) fn of_state<D: Device>(
    device: &CudaBackend<D>,
    state: [&CudaBuffer<D>; 3],
) -> Result<Pending<[u64; 2]>, DeviceFault> {
    let count = state[0].len();
    let moments = state[1].len();
    assert!(moments <= count && state[2].len() == moments, "both moments, of weights");
    let blocks = count.div_ceil(SUMMED_PLACES);
    let parts = PartialSums::new(device, blocks)?;
    let start = Arguments::new();
    let arguments = state.iter().fold(start, |arguments, part| arguments.address(part.floats(0)));
    let arguments = arguments.count(count).count(moments).address(parts.from(0));
    device.launch(&Launch::blocks(Kernel::StateSums, [blocks, 1], THREADS, arguments))?;
    parts.add(device)
}
