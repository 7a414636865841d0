//! Normally distributed numbers as a function of their position: Philox4x32-10 (Salmon et al., SC
//! 2011) and the transform of Box and Muller, many pairs side by side.
//!
//! The bits are those of `libm`'s `log`, `sin` and `cos`, whose steps are done here without
//! branches and in the same order; compilers do not fuse them. The few angles that `libm` reduces
//! in more rounds are left to it. It makes no difference which caller draws, on which thread and
//! with which instructions.

use super::instruction_set::InstructionSet;
use super::lanes::{Lanes, dispatch};
use super::threads::Threads;
use crate::backend::AllocateError;

/// Numbers that one task draws.
const TASK_NUMBERS: usize = 1 << 18;
/// Pairs that are computed side by side: as many as keep the vector units of every instruction set
/// busy.
const PAIRS: usize = 16;

/// Rounds of Philox, as Philox4x32-10 prescribes.
const ROUNDS: usize = 10;
/// Two to the power of minus 32.
const ONE_IN_2_32: f64 = 1.0 / 4_294_967_296.0;

/// `ln(x)` of numbers in `(0, 1]`, as FreeBSD's `e_log.c` computes it.
#[inline(always)]
fn logs(x: [f64; PAIRS]) -> [f64; PAIRS] {
    const LN2_HI: f64 = 0.6931471803691238;
    const LN2_LO: f64 = 1.9082149292705877e-10;
    const LG1: f64 = 0.6666666666666735;
    const LG2: f64 = 0.3999999999940942;
    const LG3: f64 = 0.2857142874366239;
    const LG4: f64 = 0.22222198432149784;
    const LG5: f64 = 0.1818357216161805;
    const LG6: f64 = 0.15313837699209373;
    const LG7: f64 = 0.14798198605116586;
    std::array::from_fn(|i| {
        let bits = x[i].to_bits();
        // Reduces x to [sqrt(2)/2, sqrt(2)).
        let high = (bits >> 32) + (0x3ff0_0000 - 0x3fe6_a09e);
        let k = (high >> 20) as i32 - 0x3ff;
        let high = (high & 0x000f_ffff) + 0x3fe6_a09e;
        let f = f64::from_bits((high << 32) | (bits & 0xffff_ffff)) - 1.0;
        let half_square = 0.5 * f * f;
        let s = f / (2.0 + f);
        let z = s * s;
        let w = z * z;
        let t1 = w * (LG2 + w * (LG4 + w * LG6));
        let t2 = z * (LG1 + w * (LG3 + w * (LG5 + w * LG7)));
        let r = t2 + t1;
        let k = f64::from(k);
        s * (half_square + r) + k * LN2_LO - half_square + f + k * LN2_HI
    })
}

/// Sines and cosines of angles in `[0, 2 pi)`, as FreeBSD's `s_sin.c` and `s_cos.c` compute them,
/// but for those so near a multiple of a right angle that they reduce them in more rounds:
/// [`is_near_axis`].
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Lane by lane, so that compilers see vectors.
fn sines_and_cosines(x: [f64; PAIRS]) -> ([f64; PAIRS], [f64; PAIRS]) {
    const PIO2_1: f64 = 1.5707963267341256;
    const PIO2_1T: f64 = 6.077100506506192e-11;
    const S1: f64 = -0.16666666666666632;
    const S2: f64 = 0.00833333333332249;
    const S3: f64 = -0.0001984126982985795;
    const S4: f64 = 2.7557313707070068e-06;
    const S5: f64 = -2.5050760253406863e-08;
    const S6: f64 = 1.58969099521155e-10;
    const C1: f64 = 0.0416666666666666;
    const C2: f64 = -0.001388888888887411;
    const C3: f64 = 2.480158728947673e-05;
    const C4: f64 = -2.7557314351390663e-07;
    const C5: f64 = 2.087572321298175e-09;
    const C6: f64 = -1.1359647557788195e-11;
    // The first angles that are reduced by one, two, three and four right angles.
    const FIRST: f64 = f64::from_bits(0x3fe9_21fc << 32);
    const SECOND: f64 = f64::from_bits(0x4002_d97d << 32);
    const THIRD: f64 = f64::from_bits(0x400f_6a7b << 32);
    const FOURTH: f64 = f64::from_bits(0x4015_fdbd << 32);
    let at = |x: f64, first: f64| if x >= first { 1.0 } else { 0.0 };
    let mut sines = [0.0; PAIRS];
    let mut cosines = [0.0; PAIRS];
    for i in 0..PAIRS {
        let angle = x[i];
        let turns: f64 =
            at(angle, FIRST) + at(angle, SECOND) + at(angle, THIRD) + at(angle, FOURTH);
        let reduced = angle - turns * PIO2_1;
        let x = reduced - turns * PIO2_1T;
        let y = (reduced - x) - turns * PIO2_1T;
        let z = x * x;
        let w = z * z;
        let r = S2 + z * (S3 + z * S4) + z * w * (S5 + z * S6);
        let v = z * x;
        let plain = x + v * (S1 + z * r);
        let tailed = x - ((z * (0.5 * y - v * r) - y) - v * S1);
        let sine = if turns == 0.0 { plain } else { tailed };
        let r = z * (C1 + z * (C2 + z * C3)) + w * w * (C4 + z * (C5 + z * C6));
        let half = 0.5 * z;
        let w = 1.0 - half;
        let cosine = w + (((1.0 - w) - half) + (z * r - x * y));
        let is_odd = turns == 1.0 || turns == 3.0;
        let (s, c) = if is_odd { (cosine, sine) } else { (sine, cosine) };
        sines[i] = if turns == 2.0 || turns == 3.0 { -s } else { s };
        cosines[i] = if turns == 1.0 || turns == 2.0 { -c } else { c };
    }
    (sines, cosines)
}

/// Whether an angle is so near a multiple of a right angle that it is reduced in more than one
/// round.
#[inline(always)]
fn is_near_axis(x: f64) -> bool {
    let high = (x.to_bits() >> 32) as u32;
    (high == 0x3ff9_21fb) | (high == 0x4009_21fb) | (high == 0x4012_d97c) | (high == 0x4019_21fb)
}

/// The first two words of as many blocks from `first` on.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Lane by lane, so that compilers see vectors.
fn blocks(normals: NormalDraws, first: u64) -> ([u32; PAIRS], [u32; PAIRS]) {
    let NormalDraws { mut key, subject, .. } = normals;
    let mut c0: [u32; PAIRS] = std::array::from_fn(|i| (first + i as u64) as u32);
    let mut c1: [u32; PAIRS] = std::array::from_fn(|i| ((first + i as u64) >> 32) as u32);
    let mut c2 = [subject[0]; PAIRS];
    let mut c3 = [subject[1]; PAIRS];
    for _ in 0..ROUNDS {
        for i in 0..PAIRS {
            let low = u64::from(c0[i]) * 0xd251_1f53;
            let high = u64::from(c2[i]) * 0xcd9e_8d57;
            c0[i] = (high >> 32) as u32 ^ c1[i] ^ key[0];
            c1[i] = high as u32;
            c2[i] = (low >> 32) as u32 ^ c3[i] ^ key[1];
            c3[i] = low as u32;
        }
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    (c0, c1)
}

/// Numbers to be drawn, and how far they spread.
#[derive(Clone, Copy, Debug)]
pub struct NormalDraws {
    /// The key of Philox, two words.
    pub key: [u32; 2],
    /// The upper half of Philox's counter; the lower half counts pairs.
    pub subject: [u32; 2],
    /// The standard deviation of the numbers, whose mean is zero.
    pub deviation: f64,
}

/// The pairs from `first` on, one after the other; the last may be half a pair.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // As above.
fn draw_lanes<L: Lanes>(normals: NormalDraws, first: u64, to: &mut [f32]) {
    for (block, to) in (0..).zip(to.chunks_mut(2 * PAIRS)) {
        let (radii, angles) = blocks(normals, first + block * PAIRS as u64);
        // In (0, 1], so that the logarithm is finite.
        let radii = radii.map(|word| (f64::from(word) + 1.0) * ONE_IN_2_32);
        let angles = angles.map(|word| f64::from(word) * ONE_IN_2_32 * std::f64::consts::TAU);
        let lengths = logs(radii).map(|log| (-2.0 * log).sqrt());
        let (mut sines, mut cosines) = sines_and_cosines(angles);
        if angles.iter().fold(false, |any, angle| any | is_near_axis(*angle)) {
            for (i, angle) in angles.iter().enumerate() {
                (sines[i], cosines[i]) = libm::sincos(*angle);
            }
        }
        let mut pairs = [0.0; 2 * PAIRS];
        for i in 0..PAIRS {
            pairs[2 * i] = (lengths[i] * cosines[i] * normals.deviation) as f32;
            pairs[2 * i + 1] = (lengths[i] * sines[i] * normals.deviation) as f32;
        }
        to.copy_from_slice(&pairs[..to.len()]);
    }
}

dispatch!(fn draw(normals: NormalDraws, first: u64, to: &mut [f32]) = draw_lanes);

/// The host's threads, for what is done to a layer before a device has it: drawing and hashing.
pub struct HostThreads {
    threads: Threads,
    set: InstructionSet,
}

impl HostThreads {
    /// Threads for `count` tasks at once, the calling thread included.
    ///
    /// # Errors
    /// If the system refuses them.
    ///
    /// # Panics
    /// If `count` is zero, or `ZBELASTIC_CPU` names instructions that cannot be chosen.
    pub fn new(count: usize) -> Result<Self, AllocateError> {
        Ok(Self { threads: Threads::new(count)?, set: InstructionSet::chosen() })
    }

    pub(super) fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(super) fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// The calling thread alone.
    #[must_use]
    pub fn one() -> Self {
        Self::new(1).expect("no thread is started")
    }

    /// The number of threads, the calling thread included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.threads.count()
    }

    /// Runs `task` over `items`, each once, and returns when all are done.
    pub fn for_each<T: Send>(&self, items: Vec<T>, task: impl Fn(T) + Sync) {
        self.threads.for_each(items, task);
    }

    /// Draws the numbers of `normals` from the first pair on.
    pub fn draw(&self, normals: NormalDraws, to: &mut [f32]) {
        let tasks = (0..).zip(to.chunks_mut(TASK_NUMBERS)).collect();
        self.threads.for_each(tasks, |(task, to): (u64, &mut [f32])| {
            draw(self.set, normals, task * (TASK_NUMBERS / 2) as u64, to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words around those at which the steps change, and many others.
    fn words() -> impl Iterator<Item = u32> {
        let turn = 4_294_967_296.0 / std::f64::consts::TAU;
        let bounds = [0x3e46_a09e_u64, 0x3fe9_21fb, 0x3ff9_21fb, 0x4002_d97c, 0x4009_21fb]
            .into_iter()
            .chain([0x400f_6a7a, 0x4012_d97c, 0x4015_fdbc, 0x4019_21fb]);
        let near = bounds.flat_map(move |high| {
            let word = (f64::from_bits(high << 32) * turn) as i64;
            (word - 6000..word + 12_000).map(|word| word.rem_euclid(1 << 32) as u32)
        });
        near.chain((0..=u32::MAX).step_by(4_999)).chain(0..100).chain(u32::MAX - 100..=u32::MAX)
    }

    #[test]
    fn logarithms_sines_and_cosines_have_the_bits_of_libm() {
        let words: Vec<u32> = words().collect();
        for words in words.as_chunks::<PAIRS>().0 {
            let radii = words.map(|word| (f64::from(word) + 1.0) * ONE_IN_2_32);
            for (radius, log) in radii.into_iter().zip(logs(radii)) {
                assert_eq!(log.to_bits(), libm::log(radius).to_bits(), "ln {radius:e}");
            }
            let angles = words.map(|word| f64::from(word) * ONE_IN_2_32 * std::f64::consts::TAU);
            let (sines, cosines) = sines_and_cosines(angles);
            for (i, angle) in angles.into_iter().enumerate() {
                let found = [sines[i], cosines[i]].map(f64::to_bits);
                let expected = [libm::sin(angle), libm::cos(angle)].map(f64::to_bits);
                assert!(found == expected || is_near_axis(angle), "of {angle:e}");
                let (sine, cosine) = libm::sincos(angle);
                assert_eq!([sine, cosine].map(f64::to_bits), expected, "of {angle:e}");
            }
        }
    }

    #[test]
    fn numbers_depend_on_neither_threads_nor_instructions_nor_length() {
        let normals = NormalDraws { key: [3, 4], subject: [7, 1], deviation: 0.02 };
        let mut expected = vec![0.0; 3 * TASK_NUMBERS + 5];
        HostThreads::new(1).expect("no thread is started").draw(normals, &mut expected);
        for set in InstructionSet::available() {
            for count in [1, 3] {
                let host = HostThreads { threads: Threads::new(count).expect("threads"), set };
                for len in [0, 1, 2, 31, 33, TASK_NUMBERS + 1, expected.len()] {
                    let mut found = vec![0.0; len];
                    host.draw(normals, &mut found);
                    assert!(found == expected[..len], "{set:?}, {count} threads, {len} numbers");
                }
            }
        }
    }
}
