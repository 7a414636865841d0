//! N1, N2, S9: the holder of a version holds the undisturbed run's bits, and no node holds one
//! that is not agreed on.

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_types::{NodeId, Step};

use super::FirstFailure;
use super::history::HistoryChecker;
use crate::failure::Invariant;

/// A node keeps a layer at this version when a life of it ends. One that has not learned of a new
/// cluster holds it in the cluster before, which went on behind the version that the new one goes
/// on from.
pub(super) fn check_kept(
    failure: &mut FirstFailure,
    history: &HistoryChecker,
    (node, version): (NodeId, Step),
    is_member: bool,
) {
    let sealed = if is_member { history.sealed() } else { history.sealed_most() };
    if version.0 > sealed {
        failure.set(Invariant::S9, || {
            format!("w{node} keeps version {version}, {sealed} steps are sealed")
        });
    }
}

/// A node holds these layers at a version, and breaks this invariant if they are wrong: N2 if a
/// step was just rolled back there, else N1.
pub(super) fn check_held(
    failure: &mut FirstFailure,
    history: &HistoryChecker,
    invariant: Invariant,
    (node, version): (NodeId, Step),
    layers: &[LayerDigest],
) {
    let sealed = history.sealed();
    if version.0 > sealed {
        failure.set(Invariant::S9, || {
            format!("w{node} has version {version}, {sealed} steps are sealed")
        });
        return;
    }
    let Some(expected) = history.version(version) else { return };
    let wrong = layers.iter().find(|(layer, digest)| expected[layer.index()] != *digest);
    if let Some((layer, digest)) = wrong.copied() {
        failure.set(invariant, || {
            format!("w{node}: layer {layer} of version {version} is {digest:?}")
        });
    }
}
