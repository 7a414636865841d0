//! The tiles of bfloat16 factors: which there are, and the one in plain Rust.

use super::super::super::bf16::multiply_add_pairs;
use super::super::super::instruction_set::InstructionSet;
use super::super::super::lanes::{LANES, Lanes, Portable};
use super::{Panels, PrefetchRange, ProductStrip, STRIP, Tile, TileKernel, by_panels_lanes};

/// A strip by panels with the tile that a processor has.
pub(super) fn by_panels(
    set: InstructionSet,
    depth: usize,
    strip: &[f32],
    panels: Panels<'_>,
    prefetch_range: PrefetchRange,
    product: ProductStrip<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]
    fn avx512(
        depth: usize,
        strip: &[f32],
        panels: Panels<'_>,
        prefetch_range: PrefetchRange,
        product: ProductStrip<'_>,
    ) {
        by_panels_lanes::<super::avx512::Avx512Bf16>(depth, strip, panels, prefetch_range, product);
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(
        depth: usize,
        strip: &[f32],
        panels: Panels<'_>,
        prefetch_range: PrefetchRange,
        product: ProductStrip<'_>,
    ) {
        by_panels_lanes::<super::avx2_bf16::Avx2Bf16>(
            depth,
            strip,
            panels,
            prefetch_range,
            product,
        );
    }
    match set {
        // SAFETY: the processor has the set, and the instructions for bfloat16.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 if set.has_bf16() => unsafe {
            avx512(depth, strip, panels, prefetch_range, product);
        },
        // SAFETY: the processor has the set; AVX2 and FMA come with AVX-512.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 | InstructionSet::Avx2 => unsafe {
            avx2(depth, strip, panels, prefetch_range, product);
        },
        InstructionSet::Portable => {
            by_panels_lanes::<PortableBf16>(depth, strip, panels, prefetch_range, product);
        }
    }
}

/// Rows of a tile of the one in plain Rust.
const ROWS: usize = 4;

/// The tile in plain Rust: the definition.
struct PortableBf16;

impl TileKernel for PortableBf16 {
    const PANELS: usize = 1;
    const HEIGHTS: &'static [usize] = &[ROWS; STRIP / ROWS];

    #[inline(always)]
    unsafe fn sum(height: usize, panels: usize, tile: Tile<'_>) {
        assert!(height == ROWS && panels == 1);
        let Tile { depth, left, panel, to, stride, add, .. } = tile;
        for row in 0..ROWS {
            // SAFETY: as the caller promises.
            unsafe {
                let mut sums = [0.0; LANES];
                for word in 0..depth {
                    let right = panel.add(word * LANES).cast::<[f32; LANES]>().read_unaligned();
                    multiply_add_pairs(*left.add(word * STRIP + row), &right, &mut sums);
                }
                let sums = Portable::from_slice(&sums);
                let to = to.add(row * stride);
                let total = if add { Portable::load(to).add(sums) } else { sums };
                total.store(to);
            }
        }
    }
}
