//! Matrix products with one definition for every thread count, partition and processor.
//!
//! An element of a product is a chain of fused multiply-adds over [`BLOCK_DEPTH`] factors that
//! starts at zero; the chains of consecutive blocks are added in order. That is the whole
//! definition. How rows and columns are cut, how wide the registers are and which thread works on
//! what changes the speed and no bit: the depth is never split between threads.
//!
//! The shape of the loops follows Goto and van de Geijn (ACM TOMS 34(3), 2008): a block of the
//! right factor stays in the second-level cache, a strip of the left one in the first, and a tile
//! of the product in registers. The tile of 14 rows and 32 columns uses 28 of the 32 registers of
//! AVX-512 for sums; measured alone it reaches 95 to 98 % of the multiply-add peak.

mod outer;
mod packed;
mod rows;
mod scratch;
mod tile;

pub(crate) use outer::{OuterProduct, outer_product};
pub(crate) use packed::{PackSource, PackedMatrix, PanelSource, pack_as_is, pack_transposed};
pub(crate) use rows::{Block, RowProduct, Space, copy_rows, multiply_rows};
pub(crate) use scratch::with_scratch;
pub(crate) use tile::{Ahead, Left, Product, TILE_STRIDE, tile_rows};

/// Factors in one chain. Part of the arithmetic's definition: changing it changes bits.
pub(crate) const BLOCK_DEPTH: usize = 384;
/// Columns of the right factor held in the second-level cache: 384 x 384 floats are 576 KiB.
pub(crate) const BLOCK_COLUMNS: usize = 384;
/// Columns of a packed panel.
pub(crate) const PANEL: usize = 32;

#[cfg(test)]
mod tests;
