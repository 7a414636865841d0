//! What a model reads: text as bytes, cut into windows, in an order that is a pure function of
//! (seed, step, microbatch).

mod corpus;
mod permutation;

pub use corpus::{Corpus, CorpusConfig, CorpusError};
pub use permutation::Permutation;

use std::ops::Range;

pub use zbelastic_kernels::IGNORED_TARGET;
use zbelastic_kernels::LossScale;
use zbelastic_types::{MicrobatchIndex, Step};

/// The shape of a microbatch: how many sequences of how many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MicrobatchShape {
    /// Sequences of the microbatch.
    pub sequences: usize,
    /// Tokens of each sequence.
    pub sequence_len: usize,
}

impl MicrobatchShape {
    /// Tokens of the microbatch, one a row.
    #[must_use]
    pub const fn rows(self) -> usize {
        self.sequences * self.sequence_len
    }
}

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

/// How many targets the microbatches of a step have. The loss of the step is the sum of the
/// cross-entropies of those that count divided by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTargets {
    /// All of them, one for each token.
    pub all: u64,
    /// Those that count in the loss.
    pub counted: u64,
}

impl StepTargets {
    /// Targets that all count.
    #[must_use]
    pub const fn all_counted(all: u64) -> Self {
        Self { all, counted: all }
    }

    /// The targets of these batches.
    pub fn of_batches(batches: impl IntoIterator<Item = TokenBatch>) -> Self {
        let none = Self::all_counted(0);
        batches.into_iter().fold(none, |sum, batch| Self {
            all: sum.all + batch.targets.len() as u64,
            counted: sum.counted + batch.target_count(),
        })
    }

    /// What makes means over those that count of the head's sums: of cross-entropies, and `z_loss`
    /// times of squared log sums. Where none counts, sums and gradients are zero already.
    #[must_use]
    pub fn loss_scale(self, z_loss: f64) -> LossScale {
        loss_scale(self.counted.max(1) as f64, z_loss)
    }

    /// The sum of cross-entropies as it is reported: divided by all targets it is the mean over
    /// those that count. Where all do it is the sum itself.
    #[must_use]
    pub fn reported_sum(self, loss_sum: f64) -> f64 {
        if self.all == self.counted {
            return loss_sum;
        }
        loss_sum * (self.all as f64 / self.counted.max(1) as f64)
    }
}

/// One over `count`, and `z_loss` over it; each is rounded once.
pub(crate) fn loss_scale(count: f64, z_loss: f64) -> LossScale {
    LossScale { cross_entropy: (1.0 / count) as f32, z_loss: (z_loss / count) as f32 }
}

/// Where batches come from. The same arguments give the same batch on every node, at any time.
pub trait BatchSource {
    /// A microbatch of training text.
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch;

    /// The targets of a step of so many microbatches: a pure function of the step, so that every
    /// stage with a head scales by the same number.
    fn targets(&self, step: Step, microbatch_count: u32) -> StepTargets {
        let microbatches = (0..microbatch_count).map(MicrobatchIndex);
        StepTargets::of_batches(microbatches.map(|microbatch| self.training(step, microbatch)))
    }

    /// A microbatch of held-out text, or `None` beyond the last.
    fn held_out(&self, index: u32) -> Option<TokenBatch>;

    /// Number of microbatches of held-out text, counted up to `max`.
    fn held_out_count(&self, max: u32) -> u32 {
        (0..max).take_while(|index| self.held_out(*index).is_some()).count() as u32
    }

    /// Whether a stage reads batches that neither embeds tokens nor compares them with its logits.
    fn is_read_by_all_stages(&self) -> bool {
        true
    }

    /// Whether all that a step reads is here. That of some sources arrives while a run goes on.
    fn has_step(&self, _step: Step) -> bool {
        true
    }

    /// Whether all held-out text that is read is here.
    fn has_held_out(&self) -> bool {
        true
    }
}

impl<S: BatchSource + ?Sized> BatchSource for &S {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        (**self).training(step, microbatch)
    }

    fn targets(&self, step: Step, microbatch_count: u32) -> StepTargets {
        (**self).targets(step, microbatch_count)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        (**self).held_out(index)
    }

    fn held_out_count(&self, max: u32) -> u32 {
        (**self).held_out_count(max)
    }

    fn is_read_by_all_stages(&self) -> bool {
        (**self).is_read_by_all_stages()
    }

    fn has_step(&self, step: Step) -> bool {
        (**self).has_step(step)
    }

    fn has_held_out(&self) -> bool {
        (**self).has_held_out()
    }
}

impl<S: BatchSource + ?Sized> BatchSource for std::sync::Arc<S> {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        (**self).training(step, microbatch)
    }

    fn targets(&self, step: Step, microbatch_count: u32) -> StepTargets {
        (**self).targets(step, microbatch_count)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        (**self).held_out(index)
    }

    fn held_out_count(&self, max: u32) -> u32 {
        (**self).held_out_count(max)
    }

    fn is_read_by_all_stages(&self) -> bool {
        (**self).is_read_by_all_stages()
    }

    fn has_step(&self, step: Step) -> bool {
        (**self).has_step(step)
    }

    fn has_held_out(&self) -> bool {
        (**self).has_held_out()
    }
}
