//! Memory fetched ahead of its use.

use std::ops::Range;

use super::super::super::lanes::LANES;

/// Rows that are read soon, fetched a line at a time while a strip is worked on: a copy that must wait for the
/// third-level cache costs 6 % of a product, one that finds its lines close by 3 %.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchRange {
    start: *const f32,
    stride: usize,
    lines_per_row: usize,
    rows: usize,
}

impl PrefetchRange {
    /// No lines to fetch.
    pub(crate) const NOTHING: Self =
        Self { start: std::ptr::null(), stride: 0, lines_per_row: 0, rows: 0 };

    /// `rows` rows of `width` floats, `stride` floats apart, of which the first begins at
    /// `floats[at]`. What lies beyond the end is left out.
    pub(crate) fn new(floats: &[f32], at: usize, stride: usize, width: usize, rows: usize) -> Self {
        let rest = floats.len().saturating_sub(at);
        let rows = rows.min(rest.div_ceil(stride.max(1)));
        let start = floats.as_ptr().wrapping_add(at);
        Self { start, stride, lines_per_row: width.div_ceil(LANES), rows }
    }

    /// Rows of `width` floats.
    pub(crate) fn rows(floats: &[f32], width: usize) -> Self {
        Self::of_rows(floats.as_ptr(), floats.len() / width.max(1), width)
    }

    /// `rows` rows of `width` floats from `start` on.
    pub(crate) fn of_rows(start: *const f32, rows: usize, width: usize) -> Self {
        Self { start, stride: width, lines_per_row: width.div_ceil(LANES), rows }
    }

    /// Some of these rows, and of each some of its floats from `column` on.
    pub(crate) fn part(&self, rows: Range<usize>, column: usize, width: usize) -> Self {
        let Self { start, stride, .. } = *self;
        let rows = rows.start.min(self.rows)..rows.end.min(self.rows);
        let start = start.wrapping_add(rows.start * stride + column);
        Self { start, stride, lines_per_row: width.div_ceil(LANES), rows: rows.len() }
    }

    fn lines(&self) -> usize {
        self.rows * self.lines_per_row
    }
}

/// What is fetched while a strip is worked on, one range behind the other. Of a product of rows the first is what
/// the next strip reads, the second what is read once this one's sums are there.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchRanges {
    pub(crate) first: PrefetchRange,
    pub(crate) second: PrefetchRange,
}

impl PrefetchRanges {
    /// No lines to fetch.
    pub(crate) const NOTHING: Self =
        Self { first: PrefetchRange::NOTHING, second: PrefetchRange::NOTHING };

    /// These, once: there are none from then on.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::NOTHING)
    }

    /// Their lines, spread over `tiles` tiles: as many for each, and fewer or none for the last.
    pub(super) fn over_tiles(&self, tiles: usize) -> Prefetcher {
        let Self { first, second } = *self;
        let (range, then) =
            if first.lines() > 0 { (first, second) } else { (second, PrefetchRange::NOTHING) };
        let lines = first.lines() + second.lines();
        let per_tile = if lines > 0 { lines.div_ceil(tiles) } else { 0 };
        Prefetcher { range, then, row: 0, column: 0, lines_behind: lines, per_tile, lines_left: 0 }
    }
}

/// The lines that are still to be fetched: the rest of a range, and what comes then.
pub(super) struct Prefetcher {
    range: PrefetchRange,
    then: PrefetchRange,
    row: usize,
    column: usize,
    /// Lines for later tiles.
    lines_behind: usize,
    per_tile: usize,
    /// Those that are left for this tile.
    lines_left: usize,
}

impl Prefetcher {
    /// Goes on to the next tile.
    #[inline(always)]
    pub(super) fn next_tile(&mut self) {
        let lines = self.per_tile.min(self.lines_behind);
        self.lines_left += lines;
        self.lines_behind -= lines;
    }

    pub(super) fn lines_left(&self) -> usize {
        self.lines_left
    }

    /// Fetches up to `count` lines into the second-level cache.
    #[inline(always)]
    pub(super) fn fetch(&mut self, count: usize) {
        for _ in 0..count.min(self.lines_left) {
            fetch_line::<false>(self.next_line());
        }
    }

    #[inline(always)]
    fn next_line(&mut self) -> *const f32 {
        let offset = self.row * self.range.stride + self.column * LANES;
        let line = self.range.start.wrapping_add(offset);
        self.column += 1;
        if self.column == self.range.lines_per_row {
            (self.row, self.column) = (self.row + 1, 0);
            if self.row == self.range.rows {
                (self.range, self.row) = (self.then, 0);
            }
        }
        self.lines_left -= 1;
        line
    }
}

/// Fetches a line of the product into the first-level cache.
#[inline(always)]
pub(super) fn fetch_product(line: *const f32) {
    fetch_line::<true>(line);
}

/// Fetches a line into the first-level cache or the second.
#[inline(always)]
pub(in super::super) fn fetch_line<const FIRST_LEVEL: bool>(from: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it reads nothing that the program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if FIRST_LEVEL {
            _mm_prefetch::<_MM_HINT_T0>(from.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(from.cast());
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::asm;
        if FIRST_LEVEL {
            asm!("prfm pldl1keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly));
        } else {
            asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = from;
}

#[cfg(test)]
mod tests {
    use super::{LANES, PrefetchRange, PrefetchRanges};

    #[test]
    fn each_line_of_both_ranges_is_fetched_once_and_in_order() {
        let floats = vec![0.0; 200];
        let of_rows = PrefetchRange::rows(&floats, 40);
        let parts = [of_rows.part(1..4, 8, 20), of_rows.part(4..9, 0, 10), PrefetchRange::NOTHING];
        let line = |at: usize| floats[at..].as_ptr();
        // Three rows of two lines, and the last row of one: what lies beyond the end is left out.
        let lines = [vec![48, 64, 88, 104, 128, 144], vec![160], Vec::new()];
        assert_eq!(LANES, 16);
        for (first, of_first) in parts.iter().zip(&lines) {
            for (second, of_second) in parts.iter().zip(&lines) {
                let expected: Vec<_> =
                    of_first.iter().chain(of_second).map(|at| line(*at)).collect();
                for tiles in [1, 2, 5, 24] {
                    let ranges = PrefetchRanges { first: *first, second: *second };
                    let mut prefetcher = ranges.over_tiles(tiles);
                    let mut found = Vec::new();
                    for tile in 0..tiles {
                        prefetcher.next_tile();
                        // A tile that fetches half leaves the rest to those behind it.
                        let lines = prefetcher.lines_left();
                        let count =
                            if tile % 2 == 0 && tile + 1 < tiles { lines / 2 } else { lines };
                        found.extend((0..count).map(|_| prefetcher.next_line()));
                    }
                    assert_eq!(found, expected, "{tiles} tiles");
                }
            }
        }
    }
}
