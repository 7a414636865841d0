//! A random order of `0..len` that gives the value at any position without being written down.

use crate::random::{RandomPurpose, RandomStream};

/// A permutation of `0..len`.
///
/// A Feistel network over the next even number of bits (Luby and Rackoff, SIAM J. Comput. 17(2),
/// 1988), walked until it lands below `len` (Black and Rogaway, CT-RSA 2002, section 3). Four
/// rounds; their function is Philox.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    stream: RandomStream,
}

const ROUNDS: u64 = 4;

impl Permutation {
    /// The order number `subject` of `0..len` under `seed`.
    ///
    /// # Panics
    /// If `len` is zero, or above 2^62.
    #[must_use]
    pub fn new(len: u64, seed: u64, subject: u32) -> Self {
        assert!((1..=1 << 62).contains(&len), "an order of something");
        let bits = 64 - (len - 1).leading_zeros();
        let stream = RandomStream::new(seed, RandomPurpose::Windows, subject);
        Self { len, half_bits: bits.div_ceil(2).max(1), stream }
    }

    /// What stands at `position`.
    ///
    /// # Panics
    /// If there is no such position.
    #[must_use]
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} of {}", self.len);
        let mut x = self.network(position);
        // The network permutes fewer than 4 * len numbers, and a cycle returns to where it began,
        // so the walk ends.
        while x >= self.len {
            x = self.network(x);
        }
        x
    }

    fn network(&self, x: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let mut left = x >> self.half_bits;
        let mut right = x & mask;
        for round in 0..ROUNDS {
            let [low, high, ..] = self.stream.block(right << 2 | round);
            let mixed = (u64::from(high) << 32 | u64::from(low)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::Permutation;

    #[test]
    fn every_position_holds_another_number() {
        for len in [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097] {
            let order = Permutation::new(len, 7, 3);
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let x = order.at(position) as usize;
                assert!(!std::mem::replace(&mut seen[x], true), "{x} twice in {len}");
            }
        }
    }

    #[test]
    fn orders_differ_by_seed_and_subject_and_mix_well() {
        let order = |seed, subject| {
            let order = Permutation::new(1000, seed, subject);
            (0..1000).map(|i| order.at(i)).collect::<Vec<_>>()
        };
        let one = order(1, 0);
        assert_ne!(one, order(2, 0));
        assert_ne!(one, order(1, 1));
        assert_eq!(one, order(1, 0));
        let stays = one.iter().enumerate().filter(|(i, x)| *i as u64 == **x).count();
        assert!(stays < 10, "{stays} of 1000 stand where they stood");
        let neighbours = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(neighbours < 15, "{neighbours} neighbours of 1000 stayed together");
    }
}
