//! Matrix products with one definition for every thread count, partition and processor.
//!
//! An element of a product is a chain of fused multiply-adds over [`BLOCK_DEPTH`] factors that
//! starts at zero; the chains of consecutive blocks are added in order. That is the whole
//! definition; bfloat16 factors have [one of their own](super::bf16). How rows and columns are cut,
//! how wide the registers are and which thread works on what changes the speed and no bit: the
//! depth is never split between threads.
//!
//! The shape of the loops follows Goto and van de Geijn (ACM TOMS 34(3), 2008): a block of the
//! right factor stays in the second-level cache, a strip of the left one in the first, and a tile
//! of the product in registers.

mod outer;
mod packed;
mod pair;
mod rows;
mod scratch;
mod tile;

use super::lanes::LANES;
use crate::panels::PANEL;
use crate::precision::Precision;

pub(crate) use outer::{OuterProduct, outer_product};
pub(crate) use packed::{
    PackedMatrix, PanelSource, RowSource, STRIP_WORDS, pack_as_is, pack_rows, pack_transposed,
};
pub(crate) use pair::{MatrixPair, PairWriter};
pub(crate) use rows::{LeftRows, RowBlock, RowProduct, SumStorage, multiply_rows};
pub(crate) use scratch::{PASSING_ROWS, with_scratch};
pub(crate) use tile::{Panels, PrefetchRange, PrefetchRanges, ProductStrip, STRIP, multiply_strip};

/// Words of factors in one chain: a float each, or two bfloat16 numbers. Part of the arithmetic's
/// definition: changing it changes bits.
pub(crate) const BLOCK_DEPTH: usize = 384;
/// Columns of the right factor held in the second-level cache: 384 x 384 floats are 576 KiB. Also
/// the blocks of the head's running softmax, and so part of the arithmetic: changing it changes
/// bits.
pub(crate) const BLOCK_COLUMNS: usize = 384;

/// Factors in one chain. Part of the arithmetic's definition, as [`BLOCK_DEPTH`] is.
pub(crate) const fn chain_factors(precision: Precision) -> usize {
    BLOCK_DEPTH * precision.factors_per_word()
}

const _: () = assert!(PANEL == LANES, "a vector holds a panel's columns of one factor");

#[cfg(test)]
mod tests;
