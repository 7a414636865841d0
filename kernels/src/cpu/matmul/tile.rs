//! The innermost loops: a strip of rows by the panels of the right factor.
//!
//! A tile of the product is half a strip by one panel, held in registers over the whole depth: with
//! AVX-512 8 by 48, which uses 24 of 32 registers for sums. Taller tiles would read less of the
//! panels, but a tile must also be issued: on a core whose other hardware thread is busy, the cost
//! is the number of instructions for each multiply-add.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
mod prefetch;

pub(crate) use prefetch::PrefetchRange;

use super::super::instruction_set::InstructionSet;
use super::super::lanes::{LANES, dispatch};
use super::{BLOCK_DEPTH, PANEL};
use prefetch::Prefetcher;

/// Rows of the left factor that are packed together: a vector for each factor.
pub(crate) const STRIP: usize = LANES;
/// Rows of a tile: half a strip.
const ROWS: usize = STRIP / 2;

/// A tile: half a strip, one panel, and where the sums go.
struct Tile<'a> {
    depth: usize,
    /// For each factor, the tile's rows side by side; [`STRIP`] floats to the next factor.
    left: *const f32,
    /// For each factor, the panel's columns side by side.
    panel: *const f32,
    to: *mut f32,
    /// Floats from one row of the product to the next.
    stride: usize,
    /// Whether to add to the product that is there.
    add: bool,
    /// The lines to be prefetched meanwhile.
    prefetcher: &'a mut Prefetcher,
}

/// Sums [`ROWS`] rows by as many vectors as the panel is wide.
trait TileKernel {
    /// # Safety
    /// The operands are readable over the depth, `to` writable over the rows, and the processor
    /// has the kernel's instructions.
    unsafe fn sum<const VECTORS: usize>(tile: Tile<'_>);
}

/// The right factor of a strip: panels side by side.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) floats: &'a [f32],
    /// Rows of each panel.
    pub(crate) rows: usize,
    /// The row of the first factor.
    pub(crate) start: usize,
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

/// Floats that panels of `columns` columns have for each factor.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(LANES)
}

/// A strip, packed so that its rows lie side by side for each factor, by as many panels as the
/// product has columns: all columns of the right factor, or whole panels of it.
pub(crate) fn multiply_strip(
    set: InstructionSet,
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch_range: PrefetchRange,
    product: ProductStrip<'_>,
) {
    if product.rows == 0 || depth == 0 || product.columns == 0 {
        return;
    }
    assert!(product.rows <= STRIP && depth <= BLOCK_DEPTH);
    assert!(strip.len() >= depth * STRIP);
    assert!(panels.start + depth <= panels.rows);
    assert!(panels.floats.len() >= panels.rows * padded(product.columns));
    assert!(product.floats.len() >= (product.rows - 1) * product.stride + product.columns);
    by_panels(set, depth, strip, panels, prefetch_range, product);
}

dispatch!(fn by_panels(
    depth: usize, strip: &[f32], panels: Panels<'_>, prefetch_range: PrefetchRange,
    product: ProductStrip<'_>,
) = by_panels_lanes);

#[inline(always)]
fn by_panels_lanes<K: TileKernel>(
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch_range: PrefetchRange,
    mut product: ProductStrip<'_>,
) {
    let panel_count = product.columns.div_ceil(PANEL);
    for (index, first) in (0..product.columns).step_by(PANEL).enumerate() {
        let width = PANEL.min(product.columns - first);
        let panel = &panels.floats[first * panels.rows + panels.start * padded(width)..];
        let mut prefetcher = prefetch_range.share(index, panel_count);
        for row in (0..product.rows).step_by(ROWS) {
            // SAFETY: `multiply_strip` checked every bound.
            unsafe {
                let left = strip.as_ptr().add(row);
                let operands = TileOperands { depth, left, panel: panel.as_ptr(), width };
                one_tile::<K>(operands, &mut prefetcher, &mut product, (row, first));
            }
        }
    }
}

/// The operands of a tile.
#[derive(Clone, Copy)]
struct TileOperands {
    depth: usize,
    left: *const f32,
    panel: *const f32,
    width: usize,
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
    let TileOperands { depth, left, panel, width } = operands;
    let rows = ROWS.min(product.rows - row);
    let floats = &mut product.floats[row * product.stride + first..];
    let mut edge = [0.0f32; ROWS * PANEL];
    let is_whole = rows == ROWS && width == padded(width);
    let (to, stride, add) = if is_whole {
        (floats.as_mut_ptr(), product.stride, product.add)
    } else {
        (edge.as_mut_ptr(), PANEL, false)
    };
    let tile = Tile { depth, left, panel, to, stride, add, prefetcher };
    // SAFETY: as the caller promises; an edge holds a whole tile.
    unsafe {
        match padded(width) / LANES {
            1 => K::sum::<1>(tile),
            2 => K::sum::<2>(tile),
            _ => K::sum::<3>(tile),
        }
    }
    if !is_whole {
        for (row, sums) in edge.chunks_exact(PANEL).take(rows).enumerate() {
            let to = &mut floats[row * product.stride..][..width];
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if product.add { *to + sum } else { *sum };
            }
        }
    }
}
