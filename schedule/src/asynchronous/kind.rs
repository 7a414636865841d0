//! The asynchronous schedules there are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::placement::Placement;

/// An asynchronous schedule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AsyncKind {
    /// An update after every microbatch; B reads the stashed weights of its F (Narayanan et al.,
    /// SOSP 2019, section 3.3).
    #[serde(rename = "pipedream")]
    PipeDream,
    /// An update a minibatch, two versions, each gradient one update late (Narayanan et al.,
    /// ICML 2021, section 3.1).
    #[serde(rename = "pipedream-2bw")]
    PipeDream2Bw,
    /// No stash: B reads weights set back by what they lately changed (Yang et al., MLSys 2021).
    #[serde(rename = "pipemare")]
    PipeMare,
    /// Weights predicted from Adam's state, once a minibatch (Guan et al., arXiv 1911.04610).
    #[serde(rename = "xpipe")]
    XPipe,
    /// Weights predicted from the momentum, for every pass (Chen et al., arXiv 1809.02839).
    #[serde(rename = "spectrain")]
    SpecTrain,
    /// Two groups of chunks, the front one an update late (Yang et al., ICLR 2022).
    #[serde(rename = "wpipe")]
    WPipe,
    /// Whole pipelines side by side, averaged elastically (Chen et al., PPoPP 2023).
    #[serde(rename = "avgpipe")]
    AvgPipe,
    /// What is ready runs, on the weights there are (Gaunt et al., arXiv 1705.09786).
    #[serde(rename = "ampnet")]
    AmpNet,
}

impl AsyncKind {
    /// Every asynchronous schedule, in the order in which they are listed.
    pub const ALL: [Self; 8] = [
        Self::PipeDream,
        Self::PipeDream2Bw,
        Self::PipeMare,
        Self::XPipe,
        Self::SpecTrain,
        Self::WPipe,
        Self::AvgPipe,
        Self::AmpNet,
    ];

    /// The name by which a user requests it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PipeDream => "pipedream",
            Self::PipeDream2Bw => "pipedream-2bw",
            Self::PipeMare => "pipemare",
            Self::XPipe => "xpipe",
            Self::SpecTrain => "spectrain",
            Self::WPipe => "wpipe",
            Self::AvgPipe => "avgpipe",
            Self::AmpNet => "ampnet",
        }
    }

    /// Chunks a stage holds.
    #[must_use]
    pub const fn chunks_per_stage(self) -> u32 {
        match self {
            Self::WPipe => 2,
            Self::PipeDream
            | Self::PipeDream2Bw
            | Self::PipeMare
            | Self::XPipe
            | Self::SpecTrain
            | Self::AvgPipe
            | Self::AmpNet => 1,
        }
    }

    /// How the schedule lays chunks over `stage_count` stages.
    #[must_use]
    pub fn placement(self, stage_count: u32) -> Placement {
        match self.chunks_per_stage() {
            1 => Placement::line(stage_count),
            chunks => Placement::looped(stage_count, chunks),
        }
    }
}

impl fmt::Display for AsyncKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no asynchronous schedule's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown asynchronous schedule `{found}`; expected one of {}", known_names())]
pub struct UnknownAsyncKind {
    /// The name as found.
    pub found: String,
}

fn known_names() -> String {
    AsyncKind::ALL.map(AsyncKind::name).join(", ")
}

impl FromStr for AsyncKind {
    type Err = UnknownAsyncKind;

    fn from_str(name: &str) -> Result<Self, UnknownAsyncKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownAsyncKind { found: name.to_owned() })
    }
}
