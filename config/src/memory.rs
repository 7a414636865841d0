//! Memory that passes keep, and where: `[memory]`.

use serde::{Deserialize, Serialize};
use zbelastic_trainer::model::{Recompute, RecomputedOps};
use zbelastic_trainer::plan::{MemoryPolicy, PassExtent};

/// Memory that passes keep, and where. A document older than these keys has their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryConfig {
    /// How much is computed again.
    pub recompute: RecomputeMode,
    /// The operations that [`RecomputeMode::Selective`] computes again.
    pub recompute_ops: RecomputedOps,
    /// Which passes compute it again.
    #[serde(default)]
    pub recompute_passes: RecomputePasses,
    /// Which passes are offloaded from their stage's memory.
    #[serde(default)]
    pub offload: OffloadMode,
    /// The store that offloaded passes lie in.
    pub offload_store: OffloadStore,
    /// Whether each replica has the moments of a part of its layers alone.
    #[serde(default)]
    pub shard_optimizer: bool,
}

/// Which passes recompute the activations they gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecomputePasses {
    /// Every pass of a stage.
    #[default]
    All,
    /// As few as fit the passes into the memory of their stage.
    Needed,
}

/// Which passes are offloaded from the memory of their stage between F and B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OffloadMode {
    /// The passes that the schedule offloads.
    #[default]
    Schedule,
    /// Under any schedule, as few as fit the passes into the memory of their stage.
    Needed,
}

/// How much of the result of F is recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecomputeMode {
    /// Nothing is computed again.
    #[default]
    None,
    /// Everything is computed again.
    Full,
    /// Single operations of each layer.
    Selective,
}

/// The store of passes that are offloaded from a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OffloadStore {
    /// In the host's memory.
    #[default]
    Memory,
    /// In files, in the folder of the run or of the node.
    File,
}

/// The names of operations that a layer computes again.
pub const RECOMPUTE_OPS: [&str; 3] = ["norm", "attention", "activation"];

impl MemoryConfig {
    /// The measures by which a plan keeps less, where other workers hold so many copies of each layer.
    #[must_use]
    pub const fn policy(&self, copies: u32) -> MemoryPolicy {
        let recomputed = match self.recompute_passes {
            RecomputePasses::All => PassExtent::Everywhere,
            RecomputePasses::Needed => PassExtent::WhereNeeded,
        };
        let offloaded = match self.offload {
            OffloadMode::Schedule => PassExtent::Everywhere,
            OffloadMode::Needed => PassExtent::WhereNeeded,
        };
        let sharded = if self.shard_optimizer { Some(copies.saturating_add(1)) } else { None };
        MemoryPolicy { recompute: self.recomputed(), recomputed, offloaded, sharded }
    }

    /// The parts that DROP gives up.
    #[must_use]
    pub const fn recomputed(&self) -> Recompute {
        match self.recompute {
            RecomputeMode::None => Recompute::None,
            RecomputeMode::Full => Recompute::Full,
            RecomputeMode::Selective => Recompute::Selective(self.recompute_ops),
        }
    }
}

/// The operations with these names; others are ignored.
pub fn ops_of_names(names: &[String]) -> RecomputedOps {
    let [norm, attention, activation] =
        RECOMPUTE_OPS.map(|name| names.iter().any(|found| found == name));
    RecomputedOps { norm, attention, activation }
}

/// The names of these operations.
pub fn names_of_ops(ops: RecomputedOps) -> impl Iterator<Item = &'static str> {
    let RecomputedOps { norm, attention, activation } = ops;
    let named = RECOMPUTE_OPS.into_iter().zip([norm, attention, activation]);
    named.filter(|(_, is_there)| *is_there).map(|(name, _)| name)
}
