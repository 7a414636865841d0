//! What passes keep, and where: `[memory]`.

use serde::{Deserialize, Serialize};
use zbelastic_trainer::model::{Recompute, RecomputedOps};

/// What passes keep, and where. A document from before there was a choice asks for none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryConfig {
    /// How much is computed again.
    pub recompute: RecomputeMode,
    /// With [`RecomputeMode::Selective`], what.
    pub recompute_ops: RecomputedOps,
    /// Where lies what leaves.
    pub offload_store: OffloadStore,
}

/// How much of what F makes is computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecomputeMode {
    /// Nothing.
    #[default]
    None,
    /// Everything.
    Full,
    /// Single operations of each layer.
    Selective,
}

/// Where what leaves a stage's memory lies.
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
    /// What a plan computes again.
    #[must_use]
    pub const fn policy(&self) -> Recompute {
        match self.recompute {
            RecomputeMode::None => Recompute::None,
            RecomputeMode::Full => Recompute::Full,
            RecomputeMode::Selective => Recompute::Selective(self.recompute_ops),
        }
    }
}

/// The operations with these names; others are not looked at.
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
