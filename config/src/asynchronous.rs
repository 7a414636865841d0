//! Hyperparameters of single asynchronous schedules.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zbelastic_schedule::asynchronous::{AsyncKind, AsyncVariant};

/// Hyperparameters of single asynchronous schedules. Other schedules ignore them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncConfig {
    /// Updates over which PipeMare lets learning rates rise.
    pub pipemare_steps: u64,
    /// Steps that PipeMare runs synchronously first.
    #[serde(default)]
    pub pipemare_warmup: u64,
    /// The version of weights that a microbatch of PipeDream reads.
    #[serde(default)]
    pub pipedream_sync: PipeDreamSync,
    /// Pipelines that AvgPipe trains side by side.
    pub avgpipe_pipelines: u32,
    /// The share by which AvgPipe pulls models together.
    pub avgpipe_alpha: f64,
    /// Microbatches that AMPNet lets be under way.
    pub ampnet_cap: u32,
    /// Gradients in an update of AMPNet.
    pub ampnet_update_every: u32,
    /// The order that AMPNet found in another run, to be run again.
    #[serde(default)]
    pub ampnet_order: Option<PathBuf>,
}

/// The values of a document older than these schedules.
impl Default for AsyncConfig {
    fn default() -> Self {
        Self {
            pipemare_steps: 100,
            pipemare_warmup: 0,
            pipedream_sync: PipeDreamSync::None,
            avgpipe_pipelines: 2,
            avgpipe_alpha: 0.1,
            ampnet_cap: 4,
            ampnet_update_every: 4,
            ampnet_order: None,
        }
    }
}

/// The version of weights that a microbatch of PipeDream reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipeDreamSync {
    /// Each stage its own newest.
    #[default]
    None,
    /// Every stage the first stage's.
    Vertical,
}

impl AsyncConfig {
    /// How `kind` is run.
    #[must_use]
    pub fn variant(&self, kind: AsyncKind) -> AsyncVariant {
        match kind {
            // No program has more steps than that.
            AsyncKind::PipeMare => {
                AsyncVariant::WarmUp(u32::try_from(self.pipemare_warmup).unwrap_or(u32::MAX))
            }
            AsyncKind::PipeDream => match self.pipedream_sync {
                PipeDreamSync::None => AsyncVariant::Usual,
                PipeDreamSync::Vertical => AsyncVariant::VerticalSync,
            },
            AsyncKind::PipeDream2Bw
            | AsyncKind::XPipe
            | AsyncKind::SpecTrain
            | AsyncKind::WPipe
            | AsyncKind::AvgPipe
            | AsyncKind::AmpNet => AsyncVariant::Usual,
        }
    }
}
