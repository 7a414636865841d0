//! The words behind keys, each with the value it stands for.

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_data::window::Packing;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{AttentionBias, Family};
use zbelastic_trainer::optimizer::{LrDecay, WeightDecayScope};
use zbelastic_trainer::plan::SliceBalance;

use super::{
    DeviceChoice, NoticePolicy, OffloadMode, OffloadStore, PipeDreamSync, PrecisionChoice,
    RecomputeMode, RecomputePasses, ReplanPolicy, ScheduleChoice, WindowChoice,
};

/// A choice that is written as a word.
pub trait ConfigWord: Copy + PartialEq {
    /// Every choice with its word.
    fn table() -> Vec<(&'static str, Self)>;

    /// The word that the choice is written as.
    fn word(self) -> &'static str {
        let row = Self::table().into_iter().find(|(_, choice)| *choice == self);
        row.expect("the table names every choice").0
    }

    /// The choice that a word stands for.
    fn of_word(word: &str) -> Option<Self> {
        Self::table().into_iter().find(|(name, _)| *name == word).map(|(_, choice)| choice)
    }
}

/// The words of `T`.
pub fn words<T: ConfigWord>() -> Vec<&'static str> {
    T::table().into_iter().map(|(word, _)| word).collect()
}

impl ConfigWord for Family {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("gpt2", Self::Gpt2), ("llama", Self::Llama)]
    }
}

impl ConfigWord for Packing {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("concat", Self::Concat), ("documents", Self::Documents)]
    }
}

impl ConfigWord for AttentionBias {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("none", Self::None), ("qkv", Self::Qkv), ("all", Self::All)]
    }
}

/// The name of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresetName {
    /// `quickstart`.
    Quickstart,
    /// `tiny`.
    Tiny,
    /// `bench-a`.
    BenchA,
    /// `bench-b`.
    BenchB,
    /// `bench-c`.
    BenchC,
    /// `gpt2-124m`.
    Gpt2124m,
}

impl PresetName {
    /// Every preset, in the order in which they are listed.
    const ALL: [Self; 6] =
        [Self::Quickstart, Self::Tiny, Self::BenchA, Self::BenchB, Self::BenchC, Self::Gpt2124m];

    /// The name as `model.preset` accepts it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Quickstart => "quickstart",
            Self::Tiny => "tiny",
            Self::BenchA => "bench-a",
            Self::BenchB => "bench-b",
            Self::BenchC => "bench-c",
            Self::Gpt2124m => "gpt2-124m",
        }
    }
}

impl ConfigWord for PresetName {
    fn table() -> Vec<(&'static str, Self)> {
        Self::ALL.map(|name| (name.text(), name)).into()
    }
}

/// The kinds of `OptimizerKind`, whose numbers have keys of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerChoice {
    /// AdamW for every tensor.
    AdamW,
    /// Muon for the matrices of blocks.
    Muon,
}

impl ConfigWord for OptimizerChoice {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("adamw", Self::AdamW), ("muon", Self::Muon)]
    }
}

/// The kinds of `RopeScaling`, whose numbers have keys of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScalingKind {
    /// Frequencies as they are.
    None,
    /// All divided.
    Linear,
    /// Low ones divided.
    Llama3,
}

impl ConfigWord for RopeScalingKind {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("none", Self::None), ("linear", Self::Linear), ("llama3", Self::Llama3)]
    }
}

impl ConfigWord for DeviceChoice {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("cpu", Self::Cpu), ("cuda", Self::Cuda)]
    }
}

impl ConfigWord for PrecisionChoice {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("f32", Self::F32), ("bf16", Self::Bf16)]
    }
}

impl ConfigWord for LrDecay {
    fn table() -> Vec<(&'static str, Self)> {
        vec![
            ("cosine", Self::Cosine),
            ("linear", Self::Linear),
            ("constant", Self::Constant),
            ("wsd", Self::Wsd),
            ("inverse_sqrt", Self::InverseSqrt),
        ]
    }
}

impl ConfigWord for WeightDecayScope {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("matrices", Self::Matrices), ("all", Self::All)]
    }
}

impl ConfigWord for NonfinitePolicy {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("skip", Self::Skip), ("replay", Self::Replay)]
    }
}

impl ConfigWord for ScheduleChoice {
    fn table() -> Vec<(&'static str, Self)> {
        let kinds = ScheduleKind::ALL.map(|kind| (kind.name(), Self::Kind(kind)));
        let without_steps = AsyncKind::ALL.map(|kind| (kind.name(), Self::Asynchronous(kind)));
        std::iter::once(("auto", Self::Auto)).chain(kinds).chain(without_steps).collect()
    }
}

impl ConfigWord for WindowChoice {
    fn table() -> Vec<(&'static str, Self)> {
        let fixed = |window| Self::Fixed(window);
        vec![("auto", Self::Auto), ("0", fixed(Window::Zero)), ("1", fixed(Window::One))]
    }
}

impl ConfigWord for RecomputeMode {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("none", Self::None), ("full", Self::Full), ("selective", Self::Selective)]
    }
}

impl ConfigWord for RecomputePasses {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("all", Self::All), ("needed", Self::Needed)]
    }
}

impl ConfigWord for OffloadMode {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("schedule", Self::Schedule), ("needed", Self::Needed)]
    }
}

impl ConfigWord for PipeDreamSync {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("none", Self::None), ("vertical", Self::Vertical)]
    }
}

impl ConfigWord for OffloadStore {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("memory", Self::Memory), ("file", Self::File)]
    }
}

impl ConfigWord for NoticePolicy {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("drain", Self::Drain), ("ignore", Self::Ignore)]
    }
}

impl ConfigWord for ReplanPolicy {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("drift", Self::Drift), ("never", Self::Never)]
    }
}

impl ConfigWord for SliceBalance {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("tokens", Self::Tokens), ("time", Self::Time)]
    }
}
