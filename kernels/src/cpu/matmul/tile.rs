//! The innermost loops: a strip of rows by the panels of the right factor.
//!
//! A tile of the product is some rows of a strip by one panel or a few, held in registers over the
//! whole depth. How many is each instruction set's own choice ([`TileKernel`]): its registers
//! decide. Taller tiles would read less of the panels, but a tile must also be issued: on a core
//! whose other hardware thread is busy, the cost is the number of instructions for each
//! multiply-add.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_bf16;
mod portable;
mod prefetch;

pub(super) use prefetch::fetch_line;
pub(crate) use prefetch::{PrefetchRange, PrefetchRanges};

use super::super::instruction_set::InstructionSet;
use super::super::lanes::{LANES, Lanes, dispatch};
use super::BLOCK_DEPTH;
use crate::panels::{PANEL, padded};
use crate::precision::Precision;
use bf16::Bf16Tile;
use prefetch::{Prefetcher, fetch_product};

/// Rows of the left factor that are packed together: a vector for each word of factors.
pub(crate) const STRIP: usize = LANES;
/// Rows of the tallest tile.
const ROWS_MAX: usize = STRIP / 2;
/// Panels of the widest tile.
const PANELS_MAX: usize = 3;

/// A tile: some rows of a strip, some panels, and where the sums go.
struct Tile<'a> {
    /// Words of factors: floats, or pairs of bfloat16 numbers.
    depth: usize,
    /// For each word, the tile's rows side by side; [`STRIP`] words to the next.
    left: *const f32,
    /// For each word, the first panel's columns side by side.
    panel: *const f32,
    /// Words from one panel to the next.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "tiles of one panel"))]
    panel_stride: usize,
    to: *mut f32,
    /// Floats from one row of the product to the next.
    stride: usize,
    /// Whether to add to the product that is there.
    add: bool,
    /// The lines to be prefetched meanwhile.
    prefetcher: &'a mut Prefetcher,
}

impl Tile<'_> {
    /// Fetches the product's lines that a tile of so many rows and one panel writes, and of the lines
    /// that are still to be fetched half, or all in the last tile of a strip.
    #[inline(always)]
    fn fetch_ahead(&mut self, rows: usize, is_last: bool) {
        for row in 0..rows {
            fetch_product(self.to.wrapping_add(row * self.stride));
        }
        let lines = self.prefetcher.lines_left();
        self.prefetcher.fetch(if is_last { lines } else { lines.div_ceil(2) });
    }
}

/// Writes the sums of a row by a panel, or adds them to the product that is there.
///
/// # Safety
/// `to` is readable and writable over the panel.
#[inline(always)]
unsafe fn store_row<L: Lanes>(sums: L, to: *mut f32, add: bool) {
    // SAFETY: as the caller promises.
    unsafe {
        let total = if add { L::load(to).add(sums) } else { sums };
        total.store(to);
    }
}

/// The tiles of an instruction set.
trait TileKernel {
    /// The most panels of a tile, up to [`PANELS_MAX`].
    const PANELS: usize;
    /// The rows of each tile of a strip, up to [`ROWS_MAX`], together [`STRIP`].
    const HEIGHTS: &'static [usize];

    /// Sums a tile of `height` rows, one of [`Self::HEIGHTS`], by `panels` panels, up to
    /// [`Self::PANELS`].
    ///
    /// # Safety
    /// The operands are readable over the depth, `to` writable over the rows, and the processor
    /// has the kernel's instructions.
    unsafe fn sum(height: usize, panels: usize, tile: Tile<'_>);
}

/// The right factor of a strip: panels side by side.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) words: &'a [f32],
    /// Rows of words of each panel.
    pub(crate) rows: usize,
    /// The row of the first factors.
    pub(crate) start: usize,
    /// What a word is.
    pub(crate) precision: Precision,
}

impl<'a> Panels<'a> {
    /// Panels of `rows` floats a column, from row `start` on.
    pub(crate) fn of_floats(words: &'a [f32], rows: usize, start: usize) -> Self {
        Self { words, rows, start, precision: Precision::F32 }
    }
}

/// Where a strip of the product goes.
pub(crate) struct ProductStrip<'a> {
    /// From element (row 0, column 0) on.
    pub(crate) floats: &'a mut [f32],
    /// Floats from one row to the next.
    pub(crate) stride: usize,
    /// Rows, at most [`STRIP`].
    pub(crate) rows: usize,
    /// Columns in all; the last panel may be only partly used.
    pub(crate) columns: usize,
    /// Whether to add to the product that is there.
    pub(crate) add: bool,
}

/// A strip, packed so that its rows lie side by side for each word of factors, by as many panels as
/// the product has columns: all columns of the right factor, or whole panels of it. Both have words
/// of the panels' precision, `depth` of them.
pub(crate) fn multiply_strip(
    set: InstructionSet,
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch: PrefetchRanges,
    product: ProductStrip<'_>,
) {
    if product.rows == 0 || depth == 0 || product.columns == 0 {
        return;
    }
    assert!(product.rows <= STRIP && depth <= BLOCK_DEPTH);
    assert!(strip.len() >= depth * STRIP);
    assert!(panels.start + depth <= panels.rows);
    assert!(panels.words.len() >= panels.rows * padded(product.columns));
    assert!(product.floats.len() >= (product.rows - 1) * product.stride + product.columns);
    match panels.precision {
        Precision::F32 => by_panels(set, depth, strip, panels, prefetch, product),
        Precision::Bf16 => {
            by_bf16_panels(set.of_bf16(), depth, strip, panels, prefetch, product);
        }
    }
}

dispatch!(fn by_panels(
    depth: usize, strip: &[f32], panels: Panels<'_>, prefetch: PrefetchRanges,
    product: ProductStrip<'_>,
) = by_panels_lanes);

dispatch!(fn by_bf16_panels(
    depth: usize, strip: &[f32], panels: Panels<'_>, prefetch: PrefetchRanges,
    product: ProductStrip<'_>,
) = by_bf16_panels_lanes);

#[inline(always)]
fn by_bf16_panels_lanes<L: Bf16Tile>(
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch: PrefetchRanges,
    product: ProductStrip<'_>,
) {
    by_panels_lanes::<L::Kernel>(depth, strip, panels, prefetch, product);
}

#[inline(always)]
fn by_panels_lanes<K: TileKernel>(
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch: PrefetchRanges,
    mut product: ProductStrip<'_>,
) {
    let panel_count = product.columns.div_ceil(PANEL);
    let panel_stride = panels.rows * PANEL;
    // As many panels in each tile, or one fewer: 2 and 2, not 3 and 1.
    let tile_count = panel_count.div_ceil(K::PANELS);
    let mut prefetcher = prefetch.over_tiles(tile_count);
    // Divisions take as long as a few factors of a tile: none where each tile is one panel.
    let panel_of = |tile: usize| match K::PANELS {
        1 => tile,
        _ => panel_count * tile / tile_count,
    };
    for index in 0..tile_count {
        let first = panel_of(index);
        let count = panel_of(index + 1) - first;
        let panel = &panels.words[first * panel_stride + panels.start * PANEL..];
        prefetcher.next_tile();
        let mut row = 0;
        for height in K::HEIGHTS {
            if row >= product.rows {
                break;
            }
            let operands = TileOperands {
                depth,
                left: strip.as_ptr().wrapping_add(row),
                panel: panel.as_ptr(),
                panel_stride,
                height: *height,
                panels: count,
            };
            // SAFETY: `multiply_strip` checked every bound.
            unsafe {
                one_tile::<K>(operands, &mut prefetcher, &mut product, (row, first * PANEL));
            }
            row += height;
        }
    }
}

/// The operands of a tile.
#[derive(Clone, Copy)]
struct TileOperands {
    depth: usize,
    left: *const f32,
    panel: *const f32,
    panel_stride: usize,
    height: usize,
    panels: usize,
}

/// A tile at `(row, first)` of the product; one that is not whole goes through memory of its own.
///
/// # Safety
/// The operands are readable over the depth, and the product writable where the tile is.
#[inline(always)]
unsafe fn one_tile<K: TileKernel>(
    operands: TileOperands,
    prefetcher: &mut Prefetcher,
    product: &mut ProductStrip<'_>,
    (row, first): (usize, usize),
) {
    let TileOperands { depth, left, panel, panel_stride, height, panels } = operands;
    let rows = height.min(product.rows - row);
    let width = (panels * PANEL).min(product.columns - first);
    let stride = product.stride;
    let floats = &mut product.floats[row * stride + first..];
    let add = product.add;
    let mut sum = |to: *mut f32, stride: usize, add: bool| {
        let tile = Tile { depth, left, panel, panel_stride, to, stride, add, prefetcher };
        // SAFETY: as the caller promises; an edge holds a whole tile.
        unsafe { K::sum(height, panels, tile) };
    };
    if rows == height && width == panels * PANEL {
        sum(floats.as_mut_ptr(), stride, add);
        return;
    }
    let mut edge = [0.0f32; ROWS_MAX * PANELS_MAX * PANEL];
    sum(edge.as_mut_ptr(), PANELS_MAX * PANEL, false);
    for (row, sums) in edge.chunks_exact(PANELS_MAX * PANEL).take(rows).enumerate() {
        let to = &mut floats[row * stride..][..width];
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if add { *to + sum } else { *sum };
        }
    }
}
