//! The text of lives that compute with floats.

use std::sync::Arc;

use zbelastic_trainer::data::{BatchSource, Corpus, IGNORED_TARGET, TokenBatch};
use zbelastic_types::{MicrobatchIndex, Step};

use crate::random::{DrawPurpose, Draws};

/// The share of tokens that begin a document, where sequences hold several.
const BEGIN_SHARE: f64 = 0.25;
/// The share of targets that do not count there, beside those of another document.
const IGNORED_SHARE: f64 = 0.2;
/// More microbatches than a step of a life has.
const MICROBATCHES: u64 = 1 << 16;

/// A text, whose sequences hold several documents each in some lives.
#[derive(Clone, Debug)]
pub struct FloatSource {
    /// The text.
    pub corpus: Arc<Corpus>,
    /// Tokens of a sequence.
    pub sequence_len: usize,
    /// What the beginnings of documents are drawn from; none where each sequence is one.
    pub documents: Option<u64>,
}

impl FloatSource {
    /// The batch with a part of its targets masked, and tokens of several documents in a sequence.
    fn cut(&self, mut batch: TokenBatch, seed: u64) -> TokenBatch {
        let mut draws = Draws::new(seed, DrawPurpose::Documents);
        let rows = batch.inputs.len();
        let mut starts: Vec<u32> = Vec::with_capacity(rows);
        for at in (0..rows).map(|row| row % self.sequence_len) {
            let begins = draws.chance(BEGIN_SHARE) || at == 0;
            let last = starts.last().copied().unwrap_or(0);
            starts.push(if begins { at as u32 } else { last });
        }
        for row in 0..rows {
            let goes_on = starts.get(row + 1).is_none_or(|next| *next == starts[row]);
            if draws.chance(IGNORED_SHARE) || !goes_on {
                batch.targets[row] = IGNORED_TARGET;
            }
        }
        batch.document_starts = Some(starts);
        batch
    }
}

impl BatchSource for FloatSource {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let batch = self.corpus.training(step, microbatch);
        let number = step.0 * MICROBATCHES + u64::from(microbatch.0);
        match self.documents {
            Some(seed) => self.cut(batch, seed.wrapping_add(number)),
            None => batch,
        }
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        self.corpus.held_out(index)
    }
}
