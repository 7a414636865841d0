//! Token and position embeddings.

use super::backend::CpuBackend;
use crate::backend::{Accumulate, RowPositions};

/// Floats zeroed as one task.
const ZERO_CHUNK: usize = 1 << 20;

pub(super) fn forward(
    cpu: &CpuBackend,
    positions: RowPositions<'_>,
    tokens: &[u32],
    (token_table, position_table): (&[f32], Option<&[f32]>),
    out: &mut [f32],
) {
    positions.check(tokens.len());
    assert!(out.len().is_multiple_of(tokens.len()));
    let width = out.len() / tokens.len();
    let share = cpu.rows_per_task(tokens.len());
    let pieces = tokens.chunks(share).zip(out.chunks_mut(share * width)).enumerate();
    cpu.threads().for_each(pieces.collect(), |(piece, (tokens, out))| {
        for (row, (token, out)) in tokens.iter().zip(out.chunks_exact_mut(width)).enumerate() {
            out.copy_from_slice(&token_table[*token as usize * width..][..width]);
            if let Some(table) = position_table {
                let position = positions.of(piece * share + row);
                add(&table[position * width..][..width], out);
            }
        }
    });
}

fn add(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Rows are added in token order, so that a table row's sum is one chain whatever the threads do.
pub(super) fn backward_weights(
    cpu: &CpuBackend,
    positions: RowPositions<'_>,
    tokens: &[u32],
    gradient: &[f32],
    tables: EmbedTableGradients<'_>,
    accumulate: Accumulate,
) {
    positions.check(tokens.len());
    assert!(gradient.len().is_multiple_of(tokens.len()));
    let width = gradient.len() / tokens.len();
    let EmbedTableGradients { tokens: token_table, positions: mut position_table } = tables;
    if accumulate == Accumulate::Start {
        let zero = |piece: &mut [f32]| piece.fill(0.0);
        cpu.threads().for_each(token_table.chunks_mut(ZERO_CHUNK).collect(), zero);
        if let Some(table) = position_table.as_deref_mut() {
            table.fill(0.0);
        }
    }
    for (row, (token, gradient)) in tokens.iter().zip(gradient.chunks_exact(width)).enumerate() {
        add(gradient, &mut token_table[*token as usize * width..][..width]);
        if let Some(table) = position_table.as_deref_mut() {
            add(gradient, &mut table[positions.of(row) * width..][..width]);
        }
    }
}

/// Gradients of the token table and of the table of positions.
pub(super) struct EmbedTableGradients<'a> {
    pub(super) tokens: &'a mut [f32],
    pub(super) positions: Option<&'a mut [f32]>,
}
