//! Token and position embeddings.

use super::backend::{CudaBackend, floats};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use crate::backend::{Accumulate, BufferView, EmbedGradient};
use crate::scratch::ScratchSlot;

const THREADS: usize = 128;

fn bytes(words: &[u32]) -> Vec<u8> {
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
    sequence_len: usize,
    tokens: &[u32],
    token_table: &BufferView<'_, CudaBuffer<D>>,
    position_table: Option<&BufferView<'_, CudaBuffer<D>>>,
    out: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let rows = tokens.len();
    assert!(rows.is_multiple_of(sequence_len) && out.len().is_multiple_of(rows));
    let width = out.len() / rows;
    let largest = tokens.iter().max().map_or(0, |token| *token as usize);
    assert!((largest + 1) * width <= token_table.range.len(), "token {largest} is in the table");
    let arguments = Arguments::new()
        .address(list(device, tokens)?)
        .address(floats(token_table))
        .address_if(position_table.map(floats))
        .address(out.rows())
        .size(rows)
        .size(width)
        .size(sequence_len);
    device.launch(&Launch::over(Kernel::EmbedForward, rows * width.div_ceil(4), arguments))
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
    sequence_len: usize,
    tokens: &[u32],
    gradient: &CudaBuffer<D>,
    to: &EmbedGradient<'_, CudaBuffer<D>>,
    accumulate: Accumulate,
) -> Result<(), DeviceFault> {
    assert!(tokens.len().is_multiple_of(sequence_len));
    assert!(gradient.len().is_multiple_of(tokens.len()));
    let width = gradient.len() / tokens.len();
    let table = to.buffer.floats(to.tokens.start);
    if accumulate == Accumulate::Start {
        device.device().zero(table, to.tokens.len() as u64 * 4)?;
    }
    let TokenRows { entries, starts, rows } = TokenRows::of(tokens);
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
    device.launch(&Launch::blocks(Kernel::EmbedBackward, grid, THREADS, arguments))?;
    let Some(positions) = &to.positions else { return Ok(()) };
    // A model may have more of them than a sequence has, or a slice of one.
    assert!(positions.len() >= sequence_len * width);
    let table = to.buffer.floats(positions.start);
    if accumulate == Accumulate::Start {
        device.device().zero(table, positions.len() as u64 * 4)?;
    }
    let arguments = Arguments::new()
        .address(gradient.rows())
        .address(table)
        .size(tokens.len() / sequence_len)
        .size(sequence_len)
        .size(width);
    device.launch(&Launch::over(Kernel::PositionBackward, sequence_len * width, arguments))
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
