//! Causal attention, one head at a time.
//!
//! A task takes one key and value head of one sequence with all query heads that read it. Queries
//! go in strips of [`STRIP`] rows against panels of 32 keys, up to the diagonal; keys in blocks of
//! [`BLOCK_DEPTH`], so that scores of at most one block of one head exist at a time. The backward
//! pass computes them again from the saved sums (Dao et al., arXiv 2205.14135, section 3.1 and
//! appendix B). Strips have the same height in every instruction set: what is masked takes part in
//! the sums as an exact zero, and how far it reaches must not depend on the processor.

mod backward;
mod forward;
mod heads;

pub(super) use backward::{Saved, backward};
pub(super) use forward::forward;

use super::matmul::{BLOCK_DEPTH, PANEL};

/// Query rows that go together.
const STRIP: usize = 14;

/// The end of the panel that holds the last key a strip may see.
fn key_limit(strip_start: usize, sequence_len: usize) -> usize {
    (strip_start + STRIP).min(sequence_len).next_multiple_of(PANEL)
}

/// The widest head: its queries must fit into one strip.
pub const HEAD_WIDTH_MAX: usize = BLOCK_DEPTH;
