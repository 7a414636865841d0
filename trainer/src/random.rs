//! Random numbers as a pure function of what they are for.
//!
//! Philox4x32-10 (Salmon et al., SC 2011, section 3.2): the key is the run's seed, the counter
//! names which draw is meant. There is no state to save, move or replay, and a draw does not depend
//! on which node makes it or when (rule R7).

/// What draws are for. Each purpose has its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RandomPurpose {
    /// The initial weights of a layer.
    Weights = 1,
    /// The order in which windows of text are read.
    Windows = 2,
    /// Sampling of generated text.
    Sampling = 3,
    /// The first matrices of adapters.
    Adapters = 4,
}

/// Numbers for one purpose and subject of a seed.
#[derive(Clone, Copy, Debug)]
pub struct RandomStream {
    seed: u64,
    purpose: RandomPurpose,
    subject: u32,
}

impl RandomStream {
    /// The numbers of `purpose` for `subject` (a tensor, an epoch).
    #[must_use]
    pub const fn new(seed: u64, purpose: RandomPurpose, subject: u32) -> Self {
        Self { seed, purpose, subject }
    }

    /// The key of Philox's counter-based generator.
    pub(crate) const fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// The upper half of Philox's counter.
    pub(crate) const fn subject(&self) -> [u32; 2] {
        [self.subject, self.purpose as u32]
    }

    /// The four numbers at `position`.
    #[must_use]
    pub const fn block(&self, position: u64) -> [u32; 4] {
        let [subject, purpose] = self.subject();
        philox(self.key(), [position as u32, (position >> 32) as u32, subject, purpose])
    }

    /// Uniform in `[0, 1)`, from the first number at `position`.
    #[must_use]
    pub fn uniform(&self, position: u64) -> f64 {
        f64::from(self.block(position)[0]) / 4_294_967_296.0
    }

    /// A pair of independent standard normal numbers (Box and Muller, 1958).
    #[must_use]
    pub fn normal_pair(&self, position: u64) -> [f64; 2] {
        let block = self.block(position);
        // In (0, 1], so that the logarithm is finite.
        let radius = (f64::from(block[0]) + 1.0) / 4_294_967_296.0;
        let angle = f64::from(block[1]) / 4_294_967_296.0 * std::f64::consts::TAU;
        let length = (-2.0 * libm::log(radius)).sqrt();
        let (sine, cosine) = libm::sincos(angle);
        [length * cosine, length * sine]
    }
}

const ROUNDS: usize = 10;

const fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    let mut round = 0;
    while round < ROUNDS {
        let low = counter[0] as u64 * 0xd251_1f53;
        let high = counter[2] as u64 * 0xcd9e_8d57;
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        round += 1;
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::{RandomPurpose, RandomStream, philox};

    #[test]
    fn philox_meets_the_known_answers() {
        // Random123, kat_vectors, philox4x32 with 10 rounds.
        let ones = [u32::MAX; 4];
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], ones),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], pi),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let stream = RandomStream::new(7, RandomPurpose::Weights, 3);
        let draws: Vec<f64> = (0..20_000).flat_map(|i| stream.normal_pair(i)).collect();
        let count = draws.len() as f64;
        let mean = draws.iter().sum::<f64>() / count;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean}, {variance}");
    }

    #[test]
    fn seed_purpose_and_subject_each_change_the_numbers() {
        let one = RandomStream::new(1, RandomPurpose::Weights, 0);
        let others = [
            RandomStream::new(2, RandomPurpose::Weights, 0),
            RandomStream::new(1 << 32 | 1, RandomPurpose::Weights, 0),
            RandomStream::new(1, RandomPurpose::Windows, 0),
            RandomStream::new(1, RandomPurpose::Weights, 1),
        ];
        assert!(others.iter().all(|other| other.block(0) != one.block(0)));
        assert_ne!(one.block(1), one.block(0));
        assert_ne!(one.block(1 << 32), one.block(0));
    }
}
