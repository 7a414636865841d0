//! Timestamps of the device's own clock, recorded in the order of its work and read later.

use std::cell::Cell;

use super::backend::CudaBackend;
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use crate::scratch::{ScratchSlot, TIMESTAMP_BYTES, TIMESTAMPS_MAX};

/// The number of timestamps that wait to be read.
#[derive(Default)]
pub(super) struct UnreadTimestamps {
    count: Cell<usize>,
}

/// Records a timestamp once everything enqueued before is done. False if too many wait to be read.
pub(super) fn record_timestamp<D: Device>(
    device: &CudaBackend<D>,
    unread: &UnreadTimestamps,
) -> Result<bool, DeviceFault> {
    let count = unread.count.get();
    if count == TIMESTAMPS_MAX {
        return Ok(false);
    }
    let start = device.scratch(ScratchSlot::Timestamps, TIMESTAMPS_MAX * TIMESTAMP_BYTES)?;
    let arguments = Arguments::new().address(start.plus((count * TIMESTAMP_BYTES) as u64));
    device.launch(&Launch::blocks(Kernel::Stamp, [1, 1], 1, arguments))?;
    unread.count.set(count + 1);
    Ok(true)
}

/// The timestamps recorded since the last call, in microseconds. Waits for them.
pub(super) fn read<D: Device>(
    device: &CudaBackend<D>,
    unread: &UnreadTimestamps,
) -> Result<Vec<f64>, DeviceFault> {
    let mut bytes = vec![0u8; unread.count.replace(0) * TIMESTAMP_BYTES];
    if !bytes.is_empty() {
        let start = device.scratch(ScratchSlot::Timestamps, TIMESTAMPS_MAX * TIMESTAMP_BYTES)?;
        device.device().read(start, &mut bytes)?;
    }
    let (timestamps, _) = bytes.as_chunks::<TIMESTAMP_BYTES>();
    Ok(timestamps.iter().map(|ns| u64::from_le_bytes(*ns) as f64 / 1e3).collect())
}
