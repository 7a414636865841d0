//! What a model reads: text as bytes, cut into windows, in an order that is a pure function of
//! (seed, step, microbatch).

mod corpus;
mod permutation;

pub use corpus::{Corpus, CorpusConfig, CorpusError};
pub use permutation::Permutation;

use std::ops::Range;

use zbelastic_types::{MicrobatchIndex, Step};

/// The target of a row that does not count in the loss, as PyTorch's `ignore_index`.
pub const IGNORED_TARGET: u32 = u32::MAX;

/// One microbatch: for each row, a token and the token after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// What the model sees, sequence by sequence.
    pub inputs: Vec<u32>,
    /// The tokens that follow those, which the model is to predict, or [`IGNORED_TARGET`].
    pub targets: Vec<u32>,
    /// For each row, where in its sequence its document begins: attention sees nothing before, and
    /// learned positions count from there. Without it each sequence is one document.
    pub document_starts: Option<Vec<u32>>,
}

impl TokenBatch {
    /// Sequences that are one document each, of which every target counts.
    #[must_use]
    pub fn new(inputs: Vec<u32>, targets: Vec<u32>) -> Self {
        Self { inputs, targets, document_starts: None }
    }

    /// Number of targets that count in the loss.
    #[must_use]
    pub fn target_count(&self) -> u64 {
        self.targets.iter().filter(|target| **target != IGNORED_TARGET).count() as u64
    }

    /// These tokens of each sequence, where one has `sequence_len`.
    #[must_use]
    pub fn slice(&self, sequence_len: usize, tokens: &Range<usize>) -> Self {
        let cut = |all: &[u32]| {
            let sequences = all.chunks_exact(sequence_len);
            sequences.flat_map(|sequence| sequence[tokens.clone()].to_vec()).collect()
        };
        let document_starts = self.document_starts.as_deref().map(cut);
        Self { inputs: cut(&self.inputs), targets: cut(&self.targets), document_starts }
    }
}

/// Where batches come from. The same arguments give the same batch on every node, at any time.
pub trait BatchSource {
    /// A microbatch of training text.
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch;

    /// A microbatch of held-out text, or `None` beyond the last.
    fn held_out(&self, index: u32) -> Option<TokenBatch>;
}

impl<S: BatchSource + ?Sized> BatchSource for &S {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        (**self).training(step, microbatch)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        (**self).held_out(index)
    }
}

impl<S: BatchSource + ?Sized> BatchSource for std::sync::Arc<S> {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        (**self).training(step, microbatch)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        (**self).held_out(index)
    }
}
