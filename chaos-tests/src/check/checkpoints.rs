//! C1: a checkpoint that is referred to can be restored, and has the bits it had.

use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_types::{LayerId, Step};

use super::FirstFailure;
use super::history::HistoryChecker;
use crate::failure::Invariant;
use crate::store::{PieceKey, SimulatedStore};

/// A checkpoint is referred to: it names the undisturbed run's bits, and the pieces that it names
/// can be read. A piece that a fault damaged need not be readable.
pub(super) fn check_checkpoint(
    failure: &mut FirstFailure,
    history: &HistoryChecker,
    store: &SimulatedStore,
    record: &CheckpointRecord,
) {
    let version = record.version;
    if history.version(version) != Some(&record.layers) {
        failure.set(Invariant::C1, || format!("checkpoint {version} names other bits"));
    }
    let is_lost = |key: &PieceKey| !store.is_damaged(*key) && !is_readable(store, *key);
    if named_pieces(record).any(|key| is_lost(&key)) {
        failure.set(Invariant::C1, || format!("checkpoint {version} cannot be restored"));
    }
}

/// Whether every layer of a version is in the store, with the undisturbed run's bits.
pub(super) fn is_restorable(
    history: &HistoryChecker,
    store: &SimulatedStore,
    version: Step,
) -> bool {
    let Some(expected) = history.version(version) else { return false };
    let layers = (0..).map(LayerId).zip(expected);
    layers.map(|(layer, digest)| (version, layer, *digest)).all(|key| is_readable(store, key))
}

/// The pieces of a checkpoint.
pub fn named_pieces(record: &CheckpointRecord) -> impl Iterator<Item = PieceKey> + '_ {
    let layers = (0..).map(LayerId).zip(record.layers.iter().copied());
    layers.map(|(layer, digest)| (record.version, layer, digest))
}

fn is_readable(store: &SimulatedStore, key: PieceKey) -> bool {
    let image = store.get(key).and_then(|bytes| LayerImage::decode(&bytes).ok());
    image.is_some_and(|image| layer_digest(&image) == key.2)
}
