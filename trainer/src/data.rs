//! What a model reads: text as bytes, cut into windows, in an order that is a pure function of
//! (seed, step, microbatch).

mod corpus;
mod permutation;

pub use corpus::{Corpus, CorpusConfig, CorpusError};
pub use permutation::Permutation;

use std::ops::Range;

use zbelastic_types::{MicrobatchIndex, Step};

/// One microbatch: for each row, a token and the token after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    /// What the model sees, sequence by sequence.
    pub inputs: Vec<u32>,
    /// The tokens that follow those, which the model is to predict.
    pub targets: Vec<u32>,
}

impl TokenBatch {
    /// These tokens of each sequence, where one has `sequence_len`.
    #[must_use]
    pub fn slice(&self, sequence_len: usize, tokens: &Range<usize>) -> Self {
        let cut = |all: &[u32]| {
            let sequences = all.chunks_exact(sequence_len);
            sequences.flat_map(|sequence| sequence[tokens.clone()].to_vec()).collect()
        };
        Self { inputs: cut(&self.inputs), targets: cut(&self.targets) }
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
