//! The fingerprint of a state, from its definition.

use crate::fingerprint::mix;

/// The two sums over weights, first and second moments, which may end before the weights do. As
/// [`crate::fingerprint`] defines them, one word after the other.
#[must_use]
pub fn state_sums(parts: [&[f32]; 3]) -> [u64; 2] {
    let mut sum = 0u64;
    let mut sum_of_products = 0u64;
    let mut seed = 0u64;
    for place in 0..parts[0].len() {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        for (part, rotation) in parts.iter().zip([0, 21, 42]) {
            let Some(x) = part.get(place) else { continue };
            let key = mix(seed).rotate_left(rotation) | 1;
            let t = u64::from(x.to_bits()).wrapping_mul(key);
            let low = (t ^ (t >> 32)) & 0xffff_ffff;
            let high = t >> 32;
            sum = sum.wrapping_add(high << 32 | low);
            sum_of_products = sum_of_products.wrapping_add(low * high);
        }
    }
    [sum, sum_of_products]
}
