//! Inputs near a given one, the same at every run: those that a test tries, where no coverage leads
//! it.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Mutations of one input.
const MUTATIONS: u64 = 64;
/// Numbers at which lengths and counts go wrong.
const WORDS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, u64::MAX];

struct MutationDraws(SplitMix64);

impl MutationDraws {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// So many inputs near `bytes`: cut, with bytes changed, put in, removed or put in again, with
/// digits, or gone on with as another of `others` does.
pub fn mutations<'a>(bytes: &'a [u8], others: &'a [Vec<u8>]) -> impl Iterator<Item = Vec<u8>> + 'a {
    let seed = bytes.iter().fold(bytes.len() as u64, |sum, byte| {
        sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte)
    });
    (0..MUTATIONS).map(move |number| {
        let mut draws = MutationDraws(SplitMix64::seed_from_u64(seed ^ number << 32));
        let mut changed = bytes.to_vec();
        for _ in 0..=draws.below(4) {
            mutate(&mut changed, others, &mut draws);
        }
        changed
    })
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], draws: &mut MutationDraws) {
    let at = draws.below(bytes.len());
    let length = 1 + draws.below(8.min(bytes.len() - at));
    let end = (at + length).min(bytes.len());
    match draws.below(8) {
        0 => bytes.truncate(at),
        1 => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << (draws.next() & 7)),
        2 => bytes[at..end].iter_mut().for_each(|byte| *byte = draws.next() as u8),
        3 => drop(bytes.drain(at..end)),
        4 => drop(bytes.splice(at..at, vec![draws.next() as u8; length])),
        5 => {
            let word = WORDS[draws.below(WORDS.len())].to_le_bytes();
            bytes.splice(at..end, word.into_iter().take(length.next_power_of_two()));
        }
        6 => drop(bytes.splice(at..at, std::iter::repeat_n(b'9', 1 + draws.below(24)))),
        _ => {
            let other = &others[draws.below(others.len())];
            bytes.truncate(at);
            bytes.extend(&other[draws.below(other.len())..]);
        }
    }
}
