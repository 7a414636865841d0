//! Text as bytes, cut into windows.

use zbelastic_types::{MicrobatchIndex, Step};

use super::permutation::Permutation;
use super::{BatchSource, MicrobatchShape, StepTargets, TokenBatch};

/// A text, split into training windows and held-out windows.
///
/// A window is `sequence_len` tokens and the one after them. Training windows follow each other
/// without gap or overlap of inputs; each is read exactly once an epoch, in an order drawn for
/// that epoch. The last part of the text is held out.
#[derive(Clone, Debug)]
pub struct Corpus {
    tokens: Vec<u8>,
    training_windows: u64,
    held_out_start: usize,
    held_out_windows: u64,
    shape: MicrobatchShape,
    microbatch_count: u32,
    seed: u64,
}

/// Why a text cannot be trained on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CorpusError {
    /// There is no text.
    #[error("the text is empty")]
    Empty,
    /// The part to train on is shorter than a window.
    #[error(
        "the text is too short: {found} bytes remain for training after holding out \
         {held_out}, a window takes {needed}"
    )]
    Short {
        /// Bytes that remain for training.
        found: usize,
        /// Bytes that are held out.
        held_out: usize,
        /// Bytes of a window.
        needed: usize,
    },
    /// A byte is no token of the model.
    #[error("byte {byte} at offset {offset} is outside a vocabulary of {vocabulary}")]
    Vocabulary {
        /// Value of the byte.
        byte: u8,
        /// Index of the byte in the text.
        offset: usize,
        /// Tokens of the model.
        vocabulary: u32,
    },
}

/// How a text is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorpusConfig {
    /// The shape of a microbatch.
    pub shape: MicrobatchShape,
    /// Number of microbatches of a step.
    pub microbatch_count: u32,
    /// The share of the text that is held out, from its end.
    pub held_out_share: f64,
    /// What the order is drawn from.
    pub seed: u64,
    /// Tokens the model knows.
    pub vocabulary: u32,
}

impl Corpus {
    /// Cuts `text`.
    ///
    /// # Errors
    /// If it is empty, shorter than a window, or has bytes that the model does not know.
    pub fn new(text: Vec<u8>, config: &CorpusConfig) -> Result<Self, CorpusError> {
        if text.is_empty() {
            return Err(CorpusError::Empty);
        }
        let outside = |byte: &u8| u32::from(*byte) >= config.vocabulary;
        if let Some(offset) = text.iter().position(outside) {
            let byte = text[offset];
            let vocabulary = config.vocabulary;
            return Err(CorpusError::Vocabulary { byte, offset, vocabulary });
        }
        let held_out = (text.len() as f64 * config.held_out_share).round() as usize;
        let held_out_start = text.len() - held_out.min(text.len());
        let windows = |bytes: usize| (bytes.saturating_sub(1) / config.shape.sequence_len) as u64;
        let training_windows = windows(held_out_start);
        if training_windows == 0 {
            let found = held_out_start;
            let needed = config.shape.sequence_len + 1;
            return Err(CorpusError::Short { found, held_out, needed });
        }
        Ok(Self {
            training_windows,
            held_out_start,
            held_out_windows: windows(held_out),
            tokens: text,
            shape: config.shape,
            microbatch_count: config.microbatch_count,
            seed: config.seed,
        })
    }

    /// The whole text, held-out bytes included.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.tokens
    }

    /// Windows of an epoch.
    #[must_use]
    pub fn training_windows(&self) -> u64 {
        self.training_windows
    }

    /// Number of windows that are held out.
    #[must_use]
    pub fn held_out_windows(&self) -> u64 {
        self.held_out_windows
    }

    /// The number of the window that sequence `sequence` of a microbatch reads, and its epoch.
    #[must_use]
    pub fn window(&self, step: Step, microbatch: MicrobatchIndex, sequence: usize) -> (u64, u64) {
        let sequences = self.shape.sequences as u64;
        let microbatch = step.0 * u64::from(self.microbatch_count) + u64::from(microbatch.0);
        let read = microbatch * sequences + sequence as u64;
        let epoch = read / self.training_windows;
        let position = read % self.training_windows;
        // An epoch's number beyond 2^32 would repeat an order; that many epochs are not read.
        let order = Permutation::new(self.training_windows, self.seed, epoch as u32);
        (epoch, order.at(position))
    }

    fn batch(&self, starts: impl Iterator<Item = usize>) -> TokenBatch {
        let mut batch = TokenBatch::default();
        for start in starts {
            let window = &self.tokens[start..=start + self.shape.sequence_len];
            batch.inputs.extend(window.iter().take(self.shape.sequence_len).map(|t| u32::from(*t)));
            batch.targets.extend(window.iter().skip(1).map(|t| u32::from(*t)));
        }
        batch
    }
}

impl BatchSource for Corpus {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let windows = (0..self.shape.sequences)
            .map(|sequence| self.window(step, microbatch, sequence).1 as usize);
        self.batch(windows.map(|window| window * self.shape.sequence_len))
    }

    /// Every target counts.
    fn targets(&self, _: Step, microbatch_count: u32) -> StepTargets {
        StepTargets::all_counted(self.shape.rows() as u64 * u64::from(microbatch_count))
    }

    /// Windows in the order of the text. A last microbatch that is not full is left out, except if
    /// it is the only one: then its windows repeat.
    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        let sequences = self.shape.sequences as u64;
        let full = self.held_out_windows / sequences;
        let count = if full == 0 { self.held_out_windows.min(1) } else { full };
        if u64::from(index) >= count {
            return None;
        }
        let windows = (0..sequences)
            .map(|sequence| (u64::from(index) * sequences + sequence) % self.held_out_windows);
        let start = |window: u64| self.held_out_start + window as usize * self.shape.sequence_len;
        Some(self.batch(windows.map(start)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Corpus, CorpusConfig, CorpusError};
    use crate::data::BatchSource;
    use crate::data::MicrobatchShape;
    use zbelastic_types::{MicrobatchIndex, Step};

    fn cut(sequences: usize, sequence_len: usize) -> CorpusConfig {
        CorpusConfig {
            shape: MicrobatchShape { sequences, sequence_len },
            microbatch_count: 3,
            held_out_share: 0.05,
            seed: 11,
            vocabulary: 256,
        }
    }

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn each_window_is_read_exactly_once_an_epoch() {
        let corpus = Corpus::new(text(1000), &cut(4, 10)).expect("long enough");
        let windows = corpus.training_windows();
        assert_eq!(windows, 94, "950 bytes hold 94 windows of 10 and the byte after them");
        let mut seen = BTreeMap::new();
        for step in 0..40 {
            for microbatch in 0..3 {
                for sequence in 0..4 {
                    let at = (Step(step), MicrobatchIndex(microbatch));
                    let (epoch, window) = corpus.window(at.0, at.1, sequence);
                    *seen.entry((epoch, window)).or_insert(0) += 1;
                }
            }
        }
        assert!(seen.values().all(|times| *times == 1));
        for epoch in 0..480 / windows {
            assert_eq!(seen.keys().filter(|(e, _)| *e == epoch).count() as u64, windows);
        }
    }

    #[test]
    fn targets_are_the_inputs_moved_by_one_and_batches_repeat() {
        let corpus = Corpus::new(text(1000), &cut(2, 16)).expect("long enough");
        let at = |step| corpus.training(Step(step), MicrobatchIndex(1));
        let batch = at(5);
        assert_eq!((batch.inputs.len(), batch.targets.len()), (32, 32));
        assert_eq!(batch.inputs[1..16], batch.targets[..15]);
        assert_eq!(batch.inputs[17..], batch.targets[16..31]);
        assert_eq!(batch, at(5));
        assert_ne!(batch, at(6));
    }

    #[test]
    fn held_out_text_is_the_end_and_is_never_trained_on() {
        let mut bytes = text(2000);
        bytes[1900..].fill(255);
        let corpus = Corpus::new(bytes, &cut(2, 8)).expect("long enough");
        assert_eq!(corpus.held_out_windows(), 12);
        let held_out: Vec<_> = (0..).map_while(|i| corpus.held_out(i)).collect();
        assert_eq!(held_out.len(), 6);
        assert!(held_out.iter().all(|batch| batch.inputs.iter().all(|t| *t == 255)));
        for step in 0..50 {
            let batch = corpus.training(Step(step), MicrobatchIndex(0));
            assert!(batch.inputs.iter().chain(&batch.targets).all(|t| *t < 255));
        }
    }

    #[test]
    fn a_text_that_cannot_be_trained_on_is_refused() {
        let check = |text: Vec<u8>, expected: Option<CorpusError>| {
            assert_eq!(Corpus::new(text, &cut(2, 10)).err(), expected);
        };
        check(vec![], Some(CorpusError::Empty));
        check(vec![1; 12], None);
        check(vec![1; 11], Some(CorpusError::Short { found: 10, held_out: 1, needed: 11 }));
        let narrow = CorpusConfig { vocabulary: 100, ..cut(2, 10) };
        let found = Corpus::new(vec![99, 100, 101], &narrow).err();
        let expected = CorpusError::Vocabulary { byte: 100, offset: 1, vocabulary: 100 };
        assert_eq!(found, Some(expected));
    }
}
