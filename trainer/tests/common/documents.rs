//! The text of the other tests as documents, of which not every target counts.

use std::sync::Arc;

use zbelastic_trainer::data::{BatchSource, Corpus, IGNORED_TARGET, TokenBatch};
use zbelastic_trainer::random::{RandomPurpose, RandomStream};
use zbelastic_types::{MicrobatchIndex, Step};

/// The step of [`Documents`] none of whose targets counts.
pub const SILENT: Step = Step(3);

/// A corpus whose sequences begin several documents each, at positions that are drawn. Targets of
/// another document do not count, nor do some others, nor any of the step [`SILENT`].
pub struct Documents {
    corpus: Arc<Corpus>,
    sequence_len: usize,
}

impl Documents {
    pub fn new(corpus: Arc<Corpus>, sequence_len: usize) -> Arc<Self> {
        Arc::new(Self { corpus, sequence_len })
    }

    fn cut(&self, mut batch: TokenBatch, number: u64) -> TokenBatch {
        let draws = RandomStream::new(11, RandomPurpose::Sampling, 3);
        let rows = batch.inputs.len();
        let draw = |row: usize| draws.block(number * rows as u64 + row as u64);
        let mut starts = Vec::with_capacity(rows);
        let mut start = 0;
        for row in 0..rows {
            let at = row % self.sequence_len;
            if at == 0 || draw(row)[0] % 4 == 0 {
                start = at;
            }
            starts.push(start as u32);
        }
        for row in 0..rows {
            let goes_on = starts.get(row + 1).is_none_or(|next| *next == starts[row]);
            if !goes_on || draw(row)[1] % 5 == 0 {
                batch.targets[row] = IGNORED_TARGET;
            }
        }
        batch.document_starts = Some(starts);
        batch
    }
}

impl BatchSource for Documents {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let number = step.0 * 100 + u64::from(microbatch.0);
        let mut batch = self.cut(self.corpus.training(step, microbatch), number);
        if step == SILENT {
            batch.targets.fill(IGNORED_TARGET);
        }
        batch
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        Some(self.cut(self.corpus.held_out(index)?, 1_000_000 + u64::from(index)))
    }
}
