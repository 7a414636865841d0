//! The fingerprint of a layer's state: two sums over the bits of weights and moments.
//!
//! Each holder of a layer adds them up where it lies, so that two holders can be compared by a few
//! bytes. It is made of integers alone, and a sum modulo 2^64 knows no order: processors and
//! devices, with however many threads and blocks, have the same one. It finds faults and is no
//! defence against a party that means harm; what names a state for good is a digest of its image.
//!
//! A state is three lists, parts 0 to 2: weights, first moments, second moments. The moments are as many
//! as the weights, or fewer, if some of the parameters are frozen and have none.
//! Place `i` has the key `k_i = mix((i + 1) * GOLDEN)`, which is the number `i` of SplitMix64
//! (Steele et al., OOPSLA 2014) from zero on. A word is the 32 bits of a float. The word `x` at
//! place `i` of part `p` counts
//!
//! ```text
//! t = x * (rotate_left(k_i, 21 * p) | 1)      modulo 2^64
//! z = t ^ (t >> 32)
//! ```
//!
//! and the sums are those of all `z`, and of all `low(z) * high(z)`, the product of the halves.
//! Keys are odd, so that `z` differs if `x` does: one word that changed is always found by the
//! first sum. For more of them the products are a multilinear hash (Lemire and Kaser, arXiv
//! 1202.4961, section 2) of keys that were drawn once and for all: whatever a fault changes is
//! missed by chance alone, and each of the sums has a chance of its own.

/// 2^64 over the golden ratio, to the next odd number.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How far a place's key is rotated from one part to the next.
const PART_BITS: u32 = 21;

/// The finaliser of SplitMix64: no two inputs give one output.
#[inline(always)]
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the words at one place add to the sums.
#[inline(always)]
pub(crate) fn at_place(index: u64, words: [u32; 3]) -> [u64; 2] {
    let key = mix(index.wrapping_add(1).wrapping_mul(GOLDEN));
    let mut sums = [0u64; 2];
    for (part, word) in words.into_iter().enumerate() {
        let t = u64::from(word).wrapping_mul(key.rotate_left(PART_BITS * part as u32) | 1);
        let z = t ^ (t >> 32);
        sums = added(sums, [z, (z & 0xffff_ffff).wrapping_mul(z >> 32)]);
    }
    sums
}

/// Sums of two parts of a state, in any order.
#[inline(always)]
pub(crate) fn added(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [one[0].wrapping_add(other[0]), one[1].wrapping_add(other[1])]
}

#[cfg(test)]
mod tests {
    use crate::reference::state_sums;

    type Parts = [Vec<f32>; 3];

    const PLACES: usize = 600;

    fn parts() -> Parts {
        [1, 2, 3].map(|seed| crate::conformance::floats(PLACES, seed))
    }

    fn sums(parts: &Parts) -> [u64; 2] {
        state_sums(parts.each_ref().map(Vec::as_slice))
    }

    fn changed(change: impl FnOnce(&mut Parts)) -> [u64; 2] {
        let mut parts = parts();
        change(&mut parts);
        sums(&parts)
    }

    fn flip(x: &mut f32, bits: u32) {
        *x = f32::from_bits(x.to_bits() ^ bits);
    }

    /// Whatever the fault, each sum alone finds it.
    fn check_found(found: [u64; 2], fault: &str) {
        let whole = sums(&parts());
        assert_ne!(found[0], whole[0], "{fault}: first sum");
        assert_ne!(found[1], whole[1], "{fault}: second sum");
    }

    #[test]
    fn the_definition_is_what_it_was() {
        let parts = [[1.0, -2.5, 0.0], [0.5, 1e-42, -0.0], [f32::INFINITY, 3.0, 1e30]];
        let found = state_sums(parts.each_ref().map(|part| &part[..]));
        assert_eq!(found, [0x8e6a_14db_6d87_5876, 0x0fde_9253_e0a8_5312]);
    }

    #[test]
    fn a_changed_bit_is_found() {
        for part in 0..3 {
            for (place, bit) in (0..PLACES).zip((0..32).cycle()) {
                let found = changed(|parts| flip(&mut parts[part][place], 1 << bit));
                check_found(found, &format!("bit {bit} of {place} of part {part}"));
            }
        }
    }

    #[test]
    fn exchanged_words_are_found() {
        for part in 0..3 {
            for (place, apart) in (0..PLACES / 2).zip((1..PLACES / 2).cycle()) {
                let found = changed(|parts| parts[part].swap(place, place + apart));
                check_found(found, &format!("{place} and {apart} further on"));
            }
            let found = changed(|parts| parts.swap(part, (part + 1) % 3));
            check_found(found, "two parts");
        }
        for place in 0..PLACES {
            let found = changed(|parts| {
                let [w, m, _] = parts;
                std::mem::swap(&mut w[place], &mut m[place]);
            });
            check_found(found, &format!("weight and moment {place}"));
        }
    }

    #[test]
    fn what_vectors_and_lines_do_wrong_is_found() {
        for width in [2, 4, 8, 16, 64] {
            for start in (0..PLACES - width).step_by(width) {
                let range = start..start + width;
                for bits in [1, 1 << 31, 1 << 22] {
                    let all = |parts: &mut Parts| {
                        parts[0][range.clone()].iter_mut().for_each(|x| flip(x, bits));
                    };
                    check_found(changed(all), &format!("bits {bits:x} of {range:?}"));
                }
                let lost = changed(|parts| parts[0][range.clone()].fill(0.0));
                check_found(lost, &format!("{range:?} lost"));
                let late = changed(|parts| parts[1][range.clone()].rotate_left(1));
                check_found(late, &format!("{range:?} moved by one"));
            }
        }
    }

    #[test]
    fn a_tensor_elsewhere_is_found() {
        for moved in 1..PLACES {
            check_found(changed(|parts| parts[0].rotate_left(moved)), "moved");
        }
        for len in 1..PLACES {
            let shorter = changed(|parts| parts.iter_mut().for_each(|part| part.truncate(len)));
            check_found(shorter, &format!("{len} places"));
        }
    }
}
