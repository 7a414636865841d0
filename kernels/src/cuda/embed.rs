//! Token and position embeddings.

use super::backend::{CudaBackend, floats};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use crate::backend::{Accumulate, BufferView, EmbedGradient, RowPositions};
use crate::scratch::ScratchSlot;

const THREADS: usize = 128;

pub(super) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A list on the device, until the next one.
pub(super) fn list<D: Device>(
    device: &CudaBackend<D>,
    words: &[u32],
) -> Result<DeviceAddress, DeviceFault> {
    let to = device.scratch(ScratchSlot::Lists, words.len() * 4)?;
    device.write(&bytes(words), to)?;
    Ok(to)
}

pub(super) fn forward<D: Device>(
    device: &CudaBackend<D>,
    positions: RowPositions<'_>,
    tokens: &[u32],
    token_table: &BufferView<'_, CudaBuffer<D>>,
    position_table: Option<&BufferView<'_, CudaBuffer<D>>>,
    out: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let rows = tokens.len();
    positions.check(rows);
    assert!(out.len().is_multiple_of(rows));
    let width = out.len() / rows;
    let largest = tokens.iter().max().map_or(0, |token| *token as usize);
    assert!((largest + 1) * width <= token_table.range.len(), "token {largest} is in the table");
    let (given, sequence_len) = match positions {
        RowPositions::Counted { sequence_len } => (None, sequence_len),
        RowPositions::Given(given) => (Some(given), 0),
    };
    if let (Some(given), Some(table)) = (given, position_table) {
        check_positions(given, width, table.range.len());
    }
    let lists = list(device, &[tokens, given.unwrap_or_default()].concat())?;
    let arguments = Arguments::new()
        .address(lists)
        .address_if(given.map(|_| lists.plus(rows as u64 * 4)))
        .address(floats(token_table))
        .address_if(position_table.map(floats))
        .address(out.rows())
        .size(rows)
        .size(width)
        .size(sequence_len);
    device.launch(&Launch::over(Kernel::EmbedForward, rows * width.div_ceil(4), arguments))
}

fn check_positions(given: &[u32], width: usize, table_len: usize) {
    let largest = given.iter().max().map_or(0, |position| *position as usize);
    assert!((largest + 1) * width <= table_len, "position {largest} is in the table");
}

/// Which rows of the gradient belong to which row of the table, each in order.
struct TokenRows {
    entries: Vec<u32>,
    starts: Vec<u32>,
    rows: Vec<u32>,
}

impl TokenRows {
    fn of(tokens: &[u32]) -> Self {
        let mut rows: Vec<u32> = (0..tokens.len() as u32).collect();
        rows.sort_by_key(|row| tokens[*row as usize]);
        let mut entries = Vec::new();
        let mut starts = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let token = tokens[*row as usize];
            if entries.last() != Some(&token) {
                entries.push(token);
                starts.push(at as u32);
            }
        }
        starts.push(rows.len() as u32);
        Self { entries, starts, rows }
    }
}

pub(super) fn backward<D: Device>(
    device: &CudaBackend<D>,
    positions: RowPositions<'_>,
    tokens: &[u32],
    gradient: &CudaBuffer<D>,
    to: &EmbedGradient<'_, CudaBuffer<D>>,
    accumulate: Accumulate,
) -> Result<(), DeviceFault> {
    positions.check(tokens.len());
    assert!(gradient.len().is_multiple_of(tokens.len()));
    let width = gradient.len() / tokens.len();
    let tables = [Some(&to.tokens), to.positions.as_ref()];
    for table in tables.into_iter().flatten().filter(|_| accumulate == Accumulate::Start) {
        device.device().zero(to.buffer.floats(table.start), table.len() as u64 * 4)?;
    }
    add_rows(device, tokens, gradient, to.buffer.floats(to.tokens.start), width)?;
    let Some(table) = &to.positions else { return Ok(()) };
    let address = to.buffer.floats(table.start);
    match positions {
        RowPositions::Counted { sequence_len } => {
            // A model may have more of them than a sequence has, or a slice of one.
            assert!(table.len() >= sequence_len * width);
            let arguments = Arguments::new()
                .address(gradient.rows())
                .address(address)
                .size(tokens.len() / sequence_len)
                .size(sequence_len)
                .size(width);
            let count = sequence_len * width;
            device.launch(&Launch::over(Kernel::PositionBackward, count, arguments))
        }
        RowPositions::Given(given) => {
            check_positions(given, width, table.len());
            add_rows(device, given, gradient, address, width)
        }
    }
}

/// Adds each row of the gradient to that row of a table which `entries` has for it.
fn add_rows<D: Device>(
    device: &CudaBackend<D>,
    entries: &[u32],
    gradient: &CudaBuffer<D>,
    table: DeviceAddress,
    width: usize,
) -> Result<(), DeviceFault> {
    let TokenRows { entries, starts, rows } = TokenRows::of(entries);
    let lists = list(device, &[&*entries, &*starts, &*rows].concat())?;
    let starts_at = lists.plus(entries.len() as u64 * 4);
    let arguments = Arguments::new()
        .address(lists)
        .address(starts_at)
        .address(starts_at.plus(starts.len() as u64 * 4))
        .address(gradient.rows())
        .address(table)
        .size(width);
    let grid = [entries.len(), 1];
    device.launch(&Launch::blocks(Kernel::EmbedBackward, grid, THREADS, arguments))
}

#[cfg(test)]
mod tests {
    use super::TokenRows;

    #[test]
    fn rows_are_listed_by_token_and_in_order() {
        let TokenRows { entries, starts, rows } = TokenRows::of(&[5, 2, 5, 9, 2, 5]);
        assert_eq!(entries, [2, 5, 9]);
        assert_eq!(starts, [0, 2, 5, 6]);
        assert_eq!(rows, [1, 4, 0, 2, 5, 3]);
    }
}
