//! The tiles of bfloat16 factors: which there are, and the one in plain Rust.

use super::super::super::bf16::multiply_add_pairs;
#[cfg(target_arch = "aarch64")]
use super::super::super::lanes::Neon;
#[cfg(target_arch = "x86_64")]
use super::super::super::lanes::{Avx2, Avx512};
use super::super::super::lanes::{LANES, Lanes, Portable};
use super::{STRIP, Tile, TileKernel, store_row};

/// The tile of bfloat16 factors of an instruction set.
pub(super) trait Bf16Tile {
    type Kernel: TileKernel;
}

/// With AVX512-BF16: multiplied without it, a product takes the instructions of AVX2.
#[cfg(target_arch = "x86_64")]
impl Bf16Tile for Avx512 {
    type Kernel = super::avx512::Avx512Bf16;
}

#[cfg(target_arch = "x86_64")]
impl Bf16Tile for Avx2 {
    type Kernel = super::avx2_bf16::Avx2Bf16;
}

#[cfg(target_arch = "aarch64")]
impl Bf16Tile for Neon {
    type Kernel = super::neon_bf16::NeonBf16;
}

impl Bf16Tile for Portable {
    type Kernel = PortableBf16;
}

/// Rows of a tile of the one in plain Rust.
const ROWS: usize = 4;

/// The tile in plain Rust: the definition.
pub(super) struct PortableBf16;

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
                store_row(Portable::from_slice(&sums), to.add(row * stride), add);
            }
        }
    }
}
