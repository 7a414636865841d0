//! The schedules there are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::placement::Placement;

/// A schedule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes (Huang et al., NeurIPS 2019).
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward, one backward (Narayanan et al., SOSP 2019; Fan et al., PPoPP 2021).
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B with two chunks a stage, dealt round (Narayanan et al., SC 2021).
    #[serde(rename = "interleaved")]
    Interleaved,
    /// Backward split, the memory of 1F1B (Qi et al., ICLR 2024, section 2.1).
    #[serde(rename = "zb-h1")]
    ZbH1,
    /// Backward split, twice the memory, no bubble at equal times (ibid., section 2.2).
    #[serde(rename = "zb-h2")]
    ZbH2,
    /// Backward split, in the best order that is found for given times under a limit of memory
    /// (ibid., section 3.1; [`crate::solve`]).
    #[serde(rename = "zb-auto")]
    ZbAuto,
    /// Backward split over a V-shaped placement (Qi et al., arXiv 2401.10241 v1, section 6).
    #[serde(rename = "zb-v")]
    ZbV,
}

impl ScheduleKind {
    /// Every schedule, in the order in which they are listed.
    pub const ALL: [Self; 7] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::ZbH1,
        Self::ZbH2,
        Self::ZbAuto,
        Self::ZbV,
    ];

    /// The name under which a person asks for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::ZbAuto => "zb-auto",
            Self::ZbV => "zb-v",
        }
    }

    /// Chunks a stage holds.
    #[must_use]
    pub const fn chunks_per_stage(self) -> u32 {
        match self {
            Self::GPipe | Self::OneFOneB | Self::ZbH1 | Self::ZbH2 | Self::ZbAuto => 1,
            Self::Interleaved | Self::ZbV => 2,
        }
    }

    /// Whether B and W are separate operations.
    #[must_use]
    pub const fn splits_backward(self) -> bool {
        match self {
            Self::GPipe | Self::OneFOneB | Self::Interleaved => false,
            Self::ZbH1 | Self::ZbH2 | Self::ZbAuto | Self::ZbV => true,
        }
    }

    /// How the schedule lays chunks over `stage_count` stages.
    #[must_use]
    pub fn placement(self, stage_count: u32) -> Placement {
        match self {
            Self::GPipe | Self::OneFOneB | Self::ZbH1 | Self::ZbH2 | Self::ZbAuto => {
                Placement::line(stage_count)
            }
            Self::Interleaved => Placement::looped(stage_count, self.chunks_per_stage()),
            Self::ZbV => Placement::vee(stage_count),
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no schedule's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown schedule `{found}`; expected one of {}", known_names())]
pub struct UnknownKind {
    /// The name as found.
    pub found: String,
}

fn known_names() -> String {
    ScheduleKind::ALL.map(ScheduleKind::name).join(", ")
}

impl FromStr for ScheduleKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownKind { found: name.to_owned() })
    }
}
