//! Which windows a microbatch has: a pure function of seed, step and microbatch.
//!
//! Sequences are numbered through all microbatches. Of a mixture, each block of as many sequences as
//! the weights add up to has exactly a source's weight of its own, in an order drawn for the block.
//! So the sequence's source, and its number among those of the source, need no counting. A source's
//! windows are each read once an epoch, in an order drawn for the epoch, as `Corpus` of the trainer
//! reads a text; a mixture of one source is read in the very same order.

use std::num::NonZeroU32;
use std::ops::Range;

use zbelastic_trainer::data::Permutation;
use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_types::{MicrobatchIndex, Step};

use crate::window::window_count;

/// Most that weights add up to, divided by their greatest common divisor.
pub const WEIGHTS_SUM_MAX: u64 = 1 << 20;
/// Most sources of a mixture.
pub const SOURCES_MAX: usize = 1 << 10;
/// The constant that separates the order of blocks from that of windows, and one source's from
/// another's: the golden ratio's fraction, the multiples of which differ in all parts.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// How windows are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CursorConfig {
    /// The shape of a microbatch.
    pub shape: MicrobatchShape,
    /// Number of microbatches of a step.
    pub microbatch_count: u32,
    /// The share of each source's ids that is held out, from its end.
    pub held_out_share: f64,
    /// The seed that orders are drawn from.
    pub seed: u64,
}

/// A source's part in a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceShare {
    /// Its number of ids.
    pub tokens: u64,
    /// Its sequences, compared with those of the others.
    pub weight: NonZeroU32,
}

/// Where a sequence is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowAddress {
    /// Index of the source in the mixture.
    pub source: usize,
    /// How often the source was read before.
    pub epoch: u64,
    /// Number of the window among the source's training windows.
    pub window: u64,
}

/// Why sources cannot be read by such a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// There is no source, or there are too many.
    #[error("{found} sources, expected 1 to {max}")]
    Sources {
        /// Number of sources.
        found: usize,
        /// Most sources of a mixture.
        max: usize,
    },
    /// A microbatch of nothing.
    #[error("a microbatch has no sequence, a sequence no id, or a step no microbatch")]
    Shape,
    /// The weights are too far from each other.
    #[error("the weights add up to {found} in lowest terms, expected at most {max}")]
    Weights {
        /// The sum of the weights, divided by their greatest common divisor.
        found: u64,
        /// Largest sum.
        max: u64,
    },
    /// A source has no window to train on.
    #[error(
        "source {source_index} is too short: {found} ids remain for training after holding out \
         {held_out}, a window takes {needed}"
    )]
    Short {
        /// Index of the source.
        source_index: usize,
        /// Ids that remain for training.
        found: u64,
        /// Ids that are held out.
        held_out: u64,
        /// Ids of a window.
        needed: u64,
    },
}

/// The windows of a source.
#[derive(Clone, Copy, Debug)]
struct SourceWindows {
    /// Its sequences in a block, and those of the sources before it.
    weight: u64,
    weights_before: u64,
    training: u64,
    held_out_start: u64,
    held_out: u64,
}

/// The order in which the windows of a mixture are read.
#[derive(Clone, Debug)]
pub struct WindowCursor {
    sources: Vec<SourceWindows>,
    weights_sum: u64,
    config: CursorConfig,
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl WindowCursor {
    /// The order of these sources.
    ///
    /// # Errors
    /// If there is none, one is too short for a window, or weights are too far from each other.
    pub fn new(shares: &[SourceShare], config: &CursorConfig) -> Result<Self, CursorError> {
        if shares.is_empty() || shares.len() > SOURCES_MAX {
            return Err(CursorError::Sources { found: shares.len(), max: SOURCES_MAX });
        }
        let shape = config.shape;
        if shape.sequences == 0 || shape.sequence_len == 0 || config.microbatch_count == 0 {
            return Err(CursorError::Shape);
        }
        let weights = || shares.iter().map(|share| u64::from(share.weight.get()));
        let common = weights().fold(0, common_divisor);
        let mut sources = Vec::new();
        let mut weights_before = 0;
        for (source_index, share) in shares.iter().enumerate() {
            let weight = u64::from(share.weight.get()) / common;
            sources.push(source_windows(
                source_index,
                share.tokens,
                weight,
                weights_before,
                config,
            )?);
            weights_before += weight;
        }
        if weights_before > WEIGHTS_SUM_MAX {
            let max = WEIGHTS_SUM_MAX;
            return Err(CursorError::Weights { found: weights_before, max });
        }
        Ok(Self { sources, weights_sum: weights_before, config: *config })
    }

    /// Where sequence `sequence` of a microbatch is read.
    #[must_use]
    pub fn window(
        &self,
        step: Step,
        microbatch: MicrobatchIndex,
        sequence: usize,
    ) -> WindowAddress {
        let CursorConfig { shape, microbatch_count, seed, .. } = self.config;
        let microbatch = step.0 * u64::from(microbatch_count) + u64::from(microbatch.0);
        let read = microbatch * shape.sequences as u64 + sequence as u64;
        let block = read / self.weights_sum;
        // Numbers of blocks and epochs beyond 2^32 would repeat an order; that many are not read.
        let order = Permutation::new(self.weights_sum, !seed ^ KEY, block as u32);
        let rank = order.at(read % self.weights_sum);
        let source = self.sources.partition_point(|source| source.weights_before <= rank) - 1;
        let SourceWindows { weight, weights_before, training, .. } = self.sources[source];
        let read = block * weight + (rank - weights_before);
        let epoch = read / training;
        let seed = seed ^ KEY.wrapping_mul(source as u64);
        let order = Permutation::new(training, seed, epoch as u32);
        WindowAddress { source, epoch, window: order.at(read % training) }
    }

    /// The sources and first ids of all windows of a step.
    pub fn step_windows(&self, step: Step) -> impl Iterator<Item = (usize, u64)> {
        let microbatches = (0..self.config.microbatch_count).map(MicrobatchIndex);
        microbatches.flat_map(move |microbatch| self.microbatch_windows(step, microbatch))
    }

    /// The sources and first ids of the windows of a microbatch, one a sequence.
    pub fn microbatch_windows(
        &self,
        step: Step,
        microbatch: MicrobatchIndex,
    ) -> impl Iterator<Item = (usize, u64)> {
        (0..self.config.shape.sequences).map(move |sequence| {
            let address = self.window(step, microbatch, sequence);
            (address.source, self.first_token(address))
        })
    }

    /// The shape of the microbatches that are read.
    #[must_use]
    pub fn shape(&self) -> MicrobatchShape {
        self.config.shape
    }

    /// The source and first id of the window at an address.
    #[must_use]
    pub fn first_token(&self, address: WindowAddress) -> u64 {
        address.window * self.config.shape.sequence_len as u64
    }

    /// Windows of source `source` that are trained on in an epoch.
    #[must_use]
    pub fn training_windows(&self, source: usize) -> u64 {
        self.sources[source].training
    }

    /// The ids of source `source` that are trained on.
    #[must_use]
    pub fn training_tokens(&self, source: usize) -> Range<u64> {
        0..self.training_windows(source) * self.config.shape.sequence_len as u64 + 1
    }

    /// Windows of a step.
    #[must_use]
    pub fn windows_per_step(&self) -> u64 {
        self.config.shape.sequences as u64 * u64::from(self.config.microbatch_count)
    }

    /// Windows of all sources that are trained on in an epoch.
    #[must_use]
    pub fn windows_per_epoch(&self) -> u64 {
        self.sources.iter().map(|source| source.training).sum()
    }

    /// Windows that are held out, of all sources.
    #[must_use]
    pub fn held_out_windows(&self) -> u64 {
        self.sources.iter().map(|source| source.held_out).sum()
    }

    /// The source and first id of a held-out window, source by source in the order of their ids.
    #[must_use]
    pub fn held_out(&self, mut window: u64) -> Option<(usize, u64)> {
        for (index, source) in self.sources.iter().enumerate() {
            if window < source.held_out {
                let offset = window * self.config.shape.sequence_len as u64;
                return Some((index, source.held_out_start + offset));
            }
            window -= source.held_out;
        }
        None
    }
}

fn source_windows(
    source_index: usize,
    tokens: u64,
    weight: u64,
    weights_before: u64,
    config: &CursorConfig,
) -> Result<SourceWindows, CursorError> {
    let sequence_len = config.shape.sequence_len as u64;
    let held_out_tokens = ((tokens as f64 * config.held_out_share).round() as u64).min(tokens);
    let held_out_start = tokens - held_out_tokens;
    let training = window_count(held_out_start, sequence_len);
    if training == 0 {
        let needed = sequence_len + 1;
        let held_out = held_out_tokens;
        return Err(CursorError::Short { source_index, found: held_out_start, held_out, needed });
    }
    let held_out = window_count(held_out_tokens, sequence_len);
    Ok(SourceWindows { weight, weights_before, training, held_out_start, held_out })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    use zbelastic_trainer::data::{Corpus, CorpusConfig};
    use zbelastic_trainer::model::MicrobatchShape;
    use zbelastic_types::{MicrobatchIndex, Step};

    use super::{CursorConfig, CursorError, SourceShare, WEIGHTS_SUM_MAX, WindowCursor};

    const CONFIG: CursorConfig = CursorConfig {
        shape: MicrobatchShape { sequences: 4, sequence_len: 10 },
        microbatch_count: 3,
        held_out_share: 0.05,
        seed: 11,
    };

    fn cursor(shares: &[(u64, u32)]) -> Result<WindowCursor, CursorError> {
        let share = |(tokens, weight): &(u64, u32)| {
            let weight = NonZeroU32::new(*weight).expect("a weight");
            SourceShare { tokens: *tokens, weight }
        };
        WindowCursor::new(&shares.iter().map(share).collect::<Vec<_>>(), &CONFIG)
    }

    /// The places of the first sequences, in order.
    fn places() -> impl Iterator<Item = (Step, MicrobatchIndex, usize)> {
        let steps = (0..).map(Step);
        let microbatches =
            steps.flat_map(|step| (0..3).map(move |index| (step, MicrobatchIndex(index))));
        microbatches.flat_map(|(step, index)| (0..4).map(move |at| (step, index, at)))
    }

    #[test]
    fn one_source_is_read_as_the_trainer_reads_a_text() {
        let config = CorpusConfig {
            shape: CONFIG.shape,
            microbatch_count: CONFIG.microbatch_count,
            held_out_share: CONFIG.held_out_share,
            seed: CONFIG.seed,
            vocabulary: 256,
        };
        let corpus = Corpus::new(vec![1; 1000], &config).expect("long enough");
        let cursor = cursor(&[(1000, 7)]).expect("long enough");
        assert_eq!(cursor.held_out_windows(), corpus.held_out_windows());
        for (step, microbatch, sequence) in places().take(400) {
            let address = cursor.window(step, microbatch, sequence);
            let expected = corpus.window(step, microbatch, sequence);
            assert_eq!((address.epoch, address.window), expected);
        }
    }

    #[test]
    fn each_block_has_every_sources_weight_and_epochs_have_each_window_once() {
        let cursor = cursor(&[(500, 6), (200, 2), (1000, 4)]).expect("long enough");
        let windows = [0, 1, 2].map(|source| cursor.training_windows(source));
        assert_eq!(windows, [47, 18, 94]);
        let blocks = 600;
        let mut seen = BTreeMap::new();
        let mut order_of_sources = Vec::new();
        let places: Vec<_> = places().take(6 * blocks).collect();
        for block in places.chunks(6) {
            let read = block.iter().map(|place| cursor.window(place.0, place.1, place.2));
            let read: Vec<_> = read.collect();
            let of = |source| read.iter().filter(|address| address.source == source).count();
            assert_eq!([of(0), of(1), of(2)], [3, 1, 2]);
            order_of_sources.push(read.iter().map(|address| address.source).collect::<Vec<_>>());
            read.into_iter().for_each(|address| *seen.entry(address).or_insert(0) += 1);
        }
        assert!(seen.values().all(|times| *times == 1));
        for (source, windows) in windows.into_iter().enumerate() {
            let epochs = [3, 1, 2][source] * blocks as u64 / windows;
            for epoch in 0..epochs {
                let of = |key: &&super::WindowAddress| key.source == source && key.epoch == epoch;
                assert_eq!(seen.keys().filter(of).count() as u64, windows);
            }
        }
        order_of_sources.sort();
        order_of_sources.dedup();
        assert!(order_of_sources.len() > 30, "blocks differ in their order");
    }

    #[test]
    fn sources_that_cannot_be_mixed_are_refused() {
        let check = |shares: &[(u64, u32)], expected| {
            assert_eq!(cursor(shares).err(), expected, "{shares:?}");
        };
        check(&[], Some(CursorError::Sources { found: 0, max: 1024 }));
        check(&[(12, 1)], None);
        let short = CursorError::Short { source_index: 1, found: 10, held_out: 1, needed: 11 };
        check(&[(12, 1), (11, 1)], Some(short));
        let max = WEIGHTS_SUM_MAX;
        check(&[(12, max as u32 - 1), (12, 1)], None);
        check(&[(12, max as u32), (12, 1)], Some(CursorError::Weights { found: max + 1, max }));
        check(&[(12, max as u32 * 2), (12, 2)], Some(CursorError::Weights { found: max + 1, max }));
    }

    #[test]
    fn held_out_windows_are_the_ends_of_the_sources() {
        let cursor = cursor(&[(1000, 1), (400, 1)]).expect("long enough");
        let found: Vec<_> = (0..).map_while(|window| cursor.held_out(window)).collect();
        assert_eq!(found, [(0, 950), (0, 960), (0, 970), (0, 980), (1, 380)]);
    }
}
