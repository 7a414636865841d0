//! The decision of a node that cannot open its store of checkpoints. Pieces lie on other nodes as
//! well: a damaged index keeps no node from starting, least of all a voter whose log is sound.

use zbelastic_checkpoint::CheckpointStoreError;
use zbelastic_consensus::mutant::{self, Mutant};

/// Stores that were put aside and are kept. Behind that a node with a disk that damages one after
/// the other does not start, and no piece that it had is gone.
pub const ASIDE_MAX: u32 = 3;

/// The fault of a store that was to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOpeningFault {
    /// The store cannot be read, and another attempt will fail as well.
    Damage,
    /// An operation on its disk failed, which may work another time.
    Io,
    /// The store could not be opened for another reason: somebody has to do something.
    Store,
    /// Its disk is not there.
    Place,
}

impl From<&CheckpointStoreError> for StoreOpeningFault {
    fn from(error: &CheckpointStoreError) -> Self {
        if error.is_damage() {
            Self::Damage
        } else if error.is_passing() {
            Self::Io
        } else {
            Self::Store
        }
    }
}

/// The decision of a node that cannot open its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOpeningAction {
    /// The store is put aside under this number, and another store is begun.
    BeginAnew {
        /// From 1 to [`ASIDE_MAX`].
        aside: u32,
    },
    /// The node starts without a store, and keeps nothing.
    GoWithout,
    /// It does not start. One that runs stays without a store.
    Refuse,
}

/// Decides. A store in the data folder (`is_own`) must be there; one that a job named may lie on a
/// disk that is gone, and the node is of use without. An operation that failed ends no start: the
/// node opens the store later. `is_taken` returns whether a store put aside has this number.
pub fn after_fault(
    fault: StoreOpeningFault,
    is_own: bool,
    is_taken: impl Fn(u32) -> bool,
) -> StoreOpeningAction {
    match fault {
        StoreOpeningFault::Damage if mutant::is(Mutant::M35DamagedIndexRefuses) => {
            StoreOpeningAction::Refuse
        }
        StoreOpeningFault::Damage => (1..=ASIDE_MAX)
            .find(|number| !is_taken(*number))
            .map_or(StoreOpeningAction::Refuse, |aside| StoreOpeningAction::BeginAnew { aside }),
        StoreOpeningFault::Io if is_own && mutant::is(Mutant::M57IoFaultRefuses) => {
            StoreOpeningAction::Refuse
        }
        StoreOpeningFault::Store if is_own => StoreOpeningAction::Refuse,
        StoreOpeningFault::Io | StoreOpeningFault::Store | StoreOpeningFault::Place => {
            StoreOpeningAction::GoWithout
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_put_aside_and_what_is_not_there_is_done_without() {
        let check = |fault, is_own, taken: u32, expected| {
            assert_eq!(after_fault(fault, is_own, |number| number <= taken), expected);
        };
        check(StoreOpeningFault::Damage, true, 0, StoreOpeningAction::BeginAnew { aside: 1 });
        check(StoreOpeningFault::Damage, false, 2, StoreOpeningAction::BeginAnew { aside: 3 });
        check(StoreOpeningFault::Damage, true, ASIDE_MAX, StoreOpeningAction::Refuse);
        check(StoreOpeningFault::Store, true, 0, StoreOpeningAction::Refuse);
        check(StoreOpeningFault::Store, false, 0, StoreOpeningAction::GoWithout);
        check(StoreOpeningFault::Io, true, ASIDE_MAX, StoreOpeningAction::GoWithout);
        check(StoreOpeningFault::Place, true, 0, StoreOpeningAction::GoWithout);
    }
}
