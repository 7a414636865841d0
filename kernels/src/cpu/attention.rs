//! Causal attention, one head at a time.
//!
//! A task takes one key and value head of one sequence with all query heads that read it. Queries
//! go sixteen at a time against panels of keys, up to the diagonal; keys in blocks of
//! [`BLOCK_DEPTH`], so that scores of at most one block of one head exist at a time. The backward
//! pass computes them again from the saved sums (Dao et al., arXiv 2205.14135, section 3.1 and
//! appendix B). What is masked takes part in sums as an exact zero, equally far in every
//! instruction set.
//!
//! Keys before all that a strip of queries sees are skipped, in whole panels. They come first in
//! the sums of the queries, and exact zeros there change no bit: so these depend neither on the
//! strip nor on the slice that a query is in.
//!
//! Sequences may be cut into slices, which need not be equally long. Queries are then those of one
//! slice, and keys those of the slices before it as well. Keys are counted from the beginning of
//! the sequence and so are their blocks: a query's sums have the same terms in the same order, cut
//! or not.

mod backward;
mod forward;
mod heads;

pub(super) use backward::{KeyValueGradients, SavedAttention, backward};
pub(super) use forward::forward;

use super::matmul::{BLOCK_DEPTH, STRIP};
use crate::backend::AttentionMask;
use crate::panels::{PANEL, padded};

/// Query rows that go together: a strip.
const QUERIES: usize = STRIP;

/// Floats between rows of scores: one vector more than a block is wide, so that rows do not fall
/// into the same cache sets.
const SCORE_STRIDE: usize = BLOCK_DEPTH + 16;

/// The end of the panel that holds the last of `key_count` keys which the queries from position
/// `first` on may see.
fn key_limit(first: usize, key_count: usize) -> usize {
    let seen = (first + QUERIES).min(key_count);
    seen.next_multiple_of(PANEL).min(padded(key_count))
}

/// The first key of the panel that holds the first key which the queries from `query` on may see.
fn key_start(mask: AttentionMask<'_>, query: usize) -> usize {
    mask.first_key(query) / PANEL * PANEL
}

/// The widest head: its products are one chain.
pub const HEAD_WIDTH_MAX: usize = BLOCK_DEPTH;
