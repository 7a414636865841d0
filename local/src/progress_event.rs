//! The events of a run in progress.

use std::time::Duration;

use zbelastic_consensus::validation::{Reason, Verdict};
use zbelastic_timing::BubbleShares;
use zbelastic_types::Step;

use super::messages::HeldOutLoss;

/// An event of a run in progress.
#[derive(Clone, Debug, PartialEq)]
pub enum ProgressEvent {
    /// A step is sealed for good.
    Step(StepRecord),
    /// Work was dropped because something was wrong with it; clipping is not reported.
    Rollback(Rollback),
    /// The loss on held-out text.
    Evaluated(HeldOutLoss),
    /// A stage waits for other islands, or something is wrong with their weights: in words.
    Islands(String),
}

/// A step that was sealed for good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRecord {
    /// Number of the step.
    pub step: Step,
    /// The mean cross-entropy, in nats a token.
    pub loss: f64,
    /// The global gradient norm, before clipping.
    pub norm: f64,
    /// The verdict on it.
    pub verdict: Verdict,
    /// The learning rate of the step.
    pub lr: f64,
    /// Since the step before was sealed.
    pub elapsed: Duration,
    /// Tokens of the step.
    pub tokens: u64,
    /// How much of it was waiting.
    pub bubbles: BubbleShares,
    /// How often it was attempted: once, once more for each replay, and once more if its candidate
    /// was dropped and computed again with the clip coefficient.
    pub attempts: u32,
    /// The number of the plan it was attempted under.
    pub generation: u64,
    /// Stages of that plan.
    pub stage_count: u32,
}

/// A step with a refused gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollback {
    /// Number of the step.
    pub step: Step,
    /// Skipped, or to be replayed.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
}
