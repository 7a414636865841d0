//! When stores that were put aside go. Nobody can read them, but a person may: until every checkpoint
//! that the cluster refers to was written after the store in their place was begun.

use zbelastic_checkpoint::{CheckpointId, StoreInventory};
use zbelastic_types::Step;

/// What is known of the time at which the store here was begun, no later than this process was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsideRetention {
    /// The newest checkpoint, or one that was to become one, when the cluster first named those that
    /// it refers to.
    newest_at_start: Option<CheckpointId>,
}

impl AsideRetention {
    /// The cluster refers to these versions, with the run under way as the newest; `inventory` is what
    /// the store here holds. Yields whether stores beside it may go:
    ///
    /// - all versions of the run under way are newer than the newest one was at the start, and
    /// - checkpoints of runs that are over, where they are kept whole (by controllers, which have their
    ///   manifests), are whole here.
    pub fn may_go(&mut self, referred: &[CheckpointId], inventory: &StoreInventory) -> bool {
        let Some(run) = referred.iter().map(|version| version.run).max() else { return false };
        // The weights that a run begins with are no checkpoint.
        let of_run = || referred.iter().filter(|of| of.run == run && of.version > Step(0));
        let none = CheckpointId { run, version: Step(0) };
        let Some(newest) = self.newest_at_start else {
            self.newest_at_start = Some(of_run().max().copied().unwrap_or(none));
            return false;
        };
        let is_newer = of_run().min().is_some_and(|oldest| *oldest > newest);
        let is_ended = |of: &CheckpointId| of.run < run && referred.contains(of);
        let mut ended = inventory.manifests.values().filter(|of| is_ended(&of.version));
        is_newer
            && ended.all(|manifest| {
                manifest.layers.iter().all(|piece| inventory.pieces.contains_key(piece))
            })
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::{Manifest, PieceName, PieceRecord};
    use zbelastic_types::{Digest, LayerId, RunId};

    use super::*;

    fn at(run: u64, version: u64) -> CheckpointId {
        CheckpointId { run: RunId(run), version: Step(version) }
    }

    #[test]
    fn a_store_goes_when_no_checkpoint_is_older_than_the_one_in_its_place() {
        let inventory = StoreInventory::default();
        let mut asides = AsideRetention::default();
        let mut check = |versions: &[(u64, u64)], expected: bool| {
            let referred: Vec<_> =
                versions.iter().map(|(run, version)| at(*run, *version)).collect();
            assert_eq!(asides.may_go(&referred, &inventory), expected, "{versions:?}");
        };
        check(&[], false);
        // 12 was being written: a piece of it may lie in the store that was put aside.
        check(&[(1, 40), (2, 0), (2, 8), (2, 12)], false);
        check(&[(1, 40), (2, 0), (2, 12), (2, 16)], false);
        check(&[(1, 40), (2, 0), (2, 16), (2, 20)], true);
        // Another run begins, and has nothing yet.
        check(&[(1, 40), (2, 20), (3, 0)], false);
        check(&[(1, 40), (2, 20), (3, 0), (3, 4)], true);
    }

    #[test]
    fn a_controller_first_has_the_runs_that_are_over_back() {
        let mut inventory = StoreInventory::default();
        let piece = PieceName { version: at(1, 40), layer: LayerId(0), digest: Digest([1; 32]) };
        let manifest = Manifest {
            version: at(1, 40),
            layers: vec![piece],
            document: Vec::new(),
            data: Digest([7; 32]),
            program: "0.1.0".to_owned(),
            seed: 1,
        };
        inventory.manifests.insert(at(1, 40), manifest);
        let mut asides = AsideRetention::default();
        let referred = |version| [at(1, 40), at(2, 0), at(2, version)];
        assert!(!asides.may_go(&referred(4), &inventory));
        assert!(!asides.may_go(&referred(8), &inventory), "it is not back yet");
        inventory.pieces.insert(piece, PieceRecord { length: 0, chunks: Vec::new() });
        assert!(asides.may_go(&referred(8), &inventory));
    }
}
