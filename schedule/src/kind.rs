//! The schedules by name, with the placement and sizes of each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::placement::{Placement, PlacementShape};

/// A schedule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes (Huang et al., NeurIPS 2019).
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward, one backward (Narayanan et al., SOSP 2019; Fan et al., PPoPP 2021).
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B with several chunks a stage, dealt round (Narayanan et al., SC 2021).
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
    /// GPipe with several chunks a stage, dealt round, one after the other (Lamy-Poirier, MLSys
    /// 2023).
    #[serde(rename = "looped-bfs")]
    LoopedBfs,
    /// Groups of one microbatch a stage through chunks dealt round (Wan et al., ICML 2025).
    #[serde(rename = "gis")]
    Gis,
    /// The same with groups half as large, for less memory (ibid.).
    #[serde(rename = "gis-h")]
    GisH,
    /// The order of PipeOffload: groups of one microbatch, repeated evenly (ibid.).
    #[serde(rename = "po")]
    Po,
    /// Over a vee, about half the memory of 1F1B (Qi et al., NeurIPS 2024).
    #[serde(rename = "v-half")]
    VHalf,
    /// Over a vee, about a third of the memory of 1F1B (ibid.).
    #[serde(rename = "v-min")]
    VMin,
    /// Over a vee, about two thirds of the memory of 1F1B, B and W in one (ibid.).
    #[serde(rename = "1f1b-v")]
    OneFOneBV,
    /// Over a vee, F and BW in pairs (DeepSeek-AI, 2025).
    #[serde(rename = "dualpipe-v")]
    DualPipeV,
    /// Two replicas in opposite directions, one microbatch after the other (Jain et al., SC 2020).
    #[serde(rename = "gems")]
    Gems,
    /// Two replicas in opposite directions, 1F1B in both at once (Li and Hoefler, SC 2021).
    #[serde(rename = "chimera")]
    Chimera,
    /// 1F1B over slices of a microbatch's sequences (Sun et al., NAACL 2025).
    #[serde(rename = "seq1f1b")]
    Seq1F1B,
    /// The order of PipeOffload, and the first half of a stage's chunks are offloaded between F and
    /// B (Wan et al., ICML 2025).
    #[serde(rename = "po-half")]
    PoHalf,
    /// The same, and all chunks may be offloaded (ibid.).
    #[serde(rename = "po-full")]
    PoFull,
    /// The same, and as much is offloaded as a limit requires, or as makes memory smallest (ibid.).
    #[serde(rename = "po-selective")]
    PoSelective,
}

/// How many chunks a stage may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkCounts {
    /// So many and no other number.
    Exactly(u32),
    /// So many or more; so many by default.
    AtLeast(u32),
}

impl ChunkCounts {
    /// The least, which is also what a stage holds by default.
    #[must_use]
    pub const fn least(self) -> u32 {
        match self {
            Self::Exactly(count) | Self::AtLeast(count) => count,
        }
    }

    /// Whether a stage may hold `count` chunks.
    #[must_use]
    pub const fn allow(self, count: u32) -> bool {
        match self {
            Self::Exactly(only) => count == only,
            Self::AtLeast(least) => count >= least,
        }
    }
}

impl fmt::Display for ChunkCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(least) => write!(f, "{least} or more"),
        }
    }
}

/// Which chunks of a stage may be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadChunks {
    /// So many, from the first one on: activations of the first chunks live longest.
    First(u32),
    /// As many as make a stage's memory smallest, or as its limit requires.
    Chosen,
}

impl ScheduleKind {
    /// Every schedule, in the order in which they are listed.
    pub const ALL: [Self; 21] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::ZbH1,
        Self::ZbH2,
        Self::ZbAuto,
        Self::ZbV,
        Self::LoopedBfs,
        Self::Gis,
        Self::GisH,
        Self::Po,
        Self::VHalf,
        Self::VMin,
        Self::OneFOneBV,
        Self::DualPipeV,
        Self::Gems,
        Self::Chimera,
        Self::Seq1F1B,
        Self::PoHalf,
        Self::PoFull,
        Self::PoSelective,
    ];

    /// The name by which a user requests it.
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
            Self::LoopedBfs => "looped-bfs",
            Self::Gis => "gis",
            Self::GisH => "gis-h",
            Self::Po => "po",
            Self::VHalf => "v-half",
            Self::VMin => "v-min",
            Self::OneFOneBV => "1f1b-v",
            Self::DualPipeV => "dualpipe-v",
            Self::Gems => "gems",
            Self::Chimera => "chimera",
            Self::Seq1F1B => "seq1f1b",
            Self::PoHalf => "po-half",
            Self::PoFull => "po-full",
            Self::PoSelective => "po-selective",
        }
    }

    /// How many chunks a stage may hold.
    #[must_use]
    pub const fn chunk_counts(self) -> ChunkCounts {
        match self.shape() {
            PlacementShape::Line => ChunkCounts::Exactly(1),
            PlacementShape::Loop => ChunkCounts::AtLeast(2),
            PlacementShape::Vee | PlacementShape::Cross => ChunkCounts::Exactly(2),
        }
    }

    /// Whether a microbatch's sequences may be cut into slices.
    #[must_use]
    pub const fn is_sliced(self) -> bool {
        match self {
            Self::Seq1F1B => true,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbAuto
            | Self::ZbV
            | Self::LoopedBfs
            | Self::Gis
            | Self::GisH
            | Self::Po
            | Self::VHalf
            | Self::VMin
            | Self::OneFOneBV
            | Self::DualPipeV
            | Self::Gems
            | Self::Chimera
            | Self::PoHalf
            | Self::PoFull
            | Self::PoSelective => false,
        }
    }

    /// Slices of a microbatch by default.
    #[must_use]
    pub const fn slice_count(self) -> u32 {
        if self.is_sliced() { 2 } else { 1 }
    }

    /// Whether B and W are separate operations, if only of some passes.
    #[must_use]
    pub const fn splits_backward(self) -> bool {
        match self {
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved
            | Self::LoopedBfs
            | Self::OneFOneBV
            | Self::Gems
            | Self::Chimera
            | Self::Seq1F1B => false,
            Self::ZbH1
            | Self::ZbH2
            | Self::ZbAuto
            | Self::ZbV
            | Self::Gis
            | Self::GisH
            | Self::Po
            | Self::VHalf
            | Self::VMin
            | Self::DualPipeV
            | Self::PoHalf
            | Self::PoFull
            | Self::PoSelective => true,
        }
    }

    /// Which of the `chunk_count` chunks of a stage are offloaded; `None` if it offloads nothing.
    #[must_use]
    pub const fn offload_chunks(self, chunk_count: u32) -> Option<OffloadChunks> {
        match self {
            Self::PoHalf => Some(OffloadChunks::First(chunk_count.div_ceil(2))),
            Self::PoFull => Some(OffloadChunks::First(chunk_count)),
            Self::PoSelective => Some(OffloadChunks::Chosen),
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbAuto
            | Self::ZbV
            | Self::LoopedBfs
            | Self::Gis
            | Self::GisH
            | Self::Po
            | Self::VHalf
            | Self::VMin
            | Self::OneFOneBV
            | Self::DualPipeV
            | Self::Gems
            | Self::Chimera
            | Self::Seq1F1B => None,
        }
    }

    /// Its chunks over so many stages, each with as many as it holds by default.
    ///
    /// # Panics
    /// If there is no stage.
    #[must_use]
    pub fn placement(self, stage_count: u32) -> Placement {
        let chunk_count = stage_count * self.chunk_counts().least();
        let placement = Placement::of_shape(self.shape(), stage_count, chunk_count);
        placement.expect("a kind's own chunks form its shape")
    }

    /// How many times the model is there: gradients of a step are first summed within each replica.
    #[must_use]
    pub const fn replica_count(self) -> u32 {
        match self.shape() {
            PlacementShape::Line | PlacementShape::Loop | PlacementShape::Vee => 1,
            PlacementShape::Cross => 2,
        }
    }

    /// How the schedule lays chunks over stages.
    #[must_use]
    pub const fn shape(self) -> PlacementShape {
        match self {
            Self::GPipe
            | Self::OneFOneB
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbAuto
            | Self::Seq1F1B => PlacementShape::Line,
            Self::Interleaved
            | Self::LoopedBfs
            | Self::Gis
            | Self::GisH
            | Self::Po
            | Self::PoHalf
            | Self::PoFull
            | Self::PoSelective => PlacementShape::Loop,
            Self::ZbV | Self::VHalf | Self::VMin | Self::OneFOneBV | Self::DualPipeV => {
                PlacementShape::Vee
            }
            Self::Gems | Self::Chimera => PlacementShape::Cross,
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
pub struct UnknownScheduleKind {
    /// The name as found.
    pub found: String,
}

fn known_names() -> String {
    ScheduleKind::ALL.map(ScheduleKind::name).join(", ")
}

impl FromStr for ScheduleKind {
    type Err = UnknownScheduleKind;

    fn from_str(name: &str) -> Result<Self, UnknownScheduleKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownScheduleKind { found: name.to_owned() })
    }
}
