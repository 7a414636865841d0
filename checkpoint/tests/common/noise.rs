//! Bytes that differ from seed to seed, for tests.

/// Bytes that differ from seed to seed and from place to place.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (seed << 40 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let words = (0..length.div_ceil(8) as u64).map(word);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}
