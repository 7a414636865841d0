//! Sums over rows: 16 rows are one chain, and up to 1,024 such sums are eight chains of a block, until
//! one is left.

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
pub(super) use crate::scratch::GROUP_ROWS;
use crate::scratch::{AGAIN_ROWS, ScratchSlot, again_bytes, sums_bytes};

const THREADS: usize = 128;
/// AGAIN_WARPS of `columns.cu`, and the columns that a block of them takes.
const AGAIN_WARPS: usize = 8;
const WARP: usize = 32;

/// Adds up `rows` sums of `width` floats. With `is_added`, the result continues what `to` holds.
pub(super) fn reduce<D: Device>(
    device: &CudaBackend<D>,
    mut from: DeviceAddress,
    mut rows: usize,
    width: usize,
    to: DeviceAddress,
    is_added: bool,
) -> Result<(), DeviceFault> {
    // As many tokens as a pass may have leave 64 sums, which are added up by one launch more.
    if rows > AGAIN_ROWS {
        let sums = device.scratch(ScratchSlot::SumsAgain, again_bytes(rows, width))?;
        again(device, from, sums, rows, width, false)?;
        (from, rows) = (sums, rows.div_ceil(AGAIN_ROWS));
    }
    assert!(rows <= AGAIN_ROWS, "{rows} groups of {AGAIN_ROWS} groups of {GROUP_ROWS} rows");
    again(device, from, to, rows, width, is_added)
}

fn again<D: Device>(
    device: &CudaBackend<D>,
    from: DeviceAddress,
    to: DeviceAddress,
    rows: usize,
    width: usize,
    is_added: bool,
) -> Result<(), DeviceFault> {
    let arguments =
        Arguments::new().address(from).address(to).size(rows).size(width).flag(is_added);
    let grid = [width.div_ceil(WARP), rows.div_ceil(AGAIN_ROWS)];
    device.launch(&Launch::blocks(Kernel::ColumnSumsAgain, grid, AGAIN_WARPS * WARP, arguments))
}

/// Column sums of activations.
pub(super) fn column_sums<D: Device>(
    device: &CudaBackend<D>,
    x: DeviceAddress,
    rows: usize,
    width: usize,
    to: DeviceAddress,
    is_added: bool,
) -> Result<(), DeviceFault> {
    let groups = rows.div_ceil(GROUP_ROWS);
    let sums = device.scratch(ScratchSlot::Sums, sums_bytes(rows, width))?;
    let arguments = Arguments::new().address(x).address(sums).size(rows).size(width);
    let grid = [width.div_ceil(4 * THREADS), groups];
    device.launch(&Launch::blocks(Kernel::ColumnSums, grid, THREADS, arguments))?;
    reduce(device, sums, groups, width, to, is_added)
}
