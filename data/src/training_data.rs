//! What a run is trained on: a text in memory, or stores on a disk.

use zbelastic_trainer::data::{BatchSource, Corpus, StepTargets, TokenBatch};
use zbelastic_types::{MicrobatchIndex, Step};

use crate::mixture::StoreMixture;
use crate::store::StoreError;

/// What a run is trained on.
#[derive(Debug)]
pub enum TrainingData {
    /// A text, of which each byte is a token.
    Text(Corpus),
    /// Token stores.
    Stores(StoreMixture),
}

impl TrainingData {
    /// What made a batch unreadable, if anything did: that batch, and all that was computed since,
    /// must not be used.
    #[must_use]
    pub fn fault(&self) -> Option<&StoreError> {
        match self {
            Self::Text(_) => None,
            Self::Stores(mixture) => mixture.fault(),
        }
    }
}

impl BatchSource for TrainingData {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        match self {
            Self::Text(corpus) => corpus.training(step, microbatch),
            Self::Stores(mixture) => mixture.training(step, microbatch),
        }
    }

    fn targets(&self, step: Step, microbatch_count: u32) -> StepTargets {
        match self {
            Self::Text(corpus) => corpus.targets(step, microbatch_count),
            Self::Stores(mixture) => mixture.targets(step, microbatch_count),
        }
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        match self {
            Self::Text(corpus) => corpus.held_out(index),
            Self::Stores(mixture) => mixture.held_out(index),
        }
    }

    fn held_out_count(&self, max: u32) -> u32 {
        match self {
            Self::Text(corpus) => corpus.held_out_count(max),
            Self::Stores(mixture) => mixture.held_out_count(max),
        }
    }

    fn is_read_by_all_stages(&self) -> bool {
        match self {
            Self::Text(corpus) => corpus.is_read_by_all_stages(),
            Self::Stores(mixture) => mixture.is_read_by_all_stages(),
        }
    }

    fn has_step(&self, step: Step) -> bool {
        match self {
            Self::Text(corpus) => corpus.has_step(step),
            Self::Stores(mixture) => mixture.has_step(step),
        }
    }

    fn has_held_out(&self) -> bool {
        match self {
            Self::Text(corpus) => corpus.has_held_out(),
            Self::Stores(mixture) => mixture.has_held_out(),
        }
    }
}
