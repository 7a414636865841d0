//! Every controller holds the last checkpoint of each run that is over: the nodes that trained it
//! are added and removed, and a node that lost its store gets back the pieces that are not written
//! again.

use std::collections::BTreeSet;

use zbelastic_checkpoint::{CheckpointStore as _, Manifest};
use zbelastic_policy::backfill_schedule::BackfillSchedule;
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;
use zbelastic_wire::PieceRef;

use super::ports::{ControllerCompletion, ControllerPorts};
use crate::cluster::checkpoint_thread::CheckpointThread;
use crate::cluster::journal::Journal;
use crate::cluster::piece_fetch::fetch_piece_of_any;

/// The result of a check.
pub(super) struct BackfillResult {
    /// Pieces that were fetched.
    count: u64,
    /// A piece that no node could serve, and why.
    failure: Option<(PieceRef, String)>,
}

/// A tick passes. Fetches the pieces missing here of runs that are over, one piece at a time,
/// if that is due. Yields whether it is, for what else is done as rarely.
pub(super) fn handle_tick(schedule: &mut BackfillSchedule, ports: &ControllerPorts) -> bool {
    if !schedule.is_due() {
        return false;
    }
    let pieces = ports.runs().ended_pieces();
    if pieces.is_empty() {
        return true;
    }
    schedule.begin();
    let manifests = ports.runs().ended_manifests();
    let others = ports.other_holders();
    let transport = ports.tasks.transport().clone();
    let checkpoint_thread = ports.tasks.checkpoint_thread().clone();
    ports.tasks.spawn(async move {
        let result = backfill(pieces, (&transport, &checkpoint_thread), others).await;
        add_manifests(&checkpoint_thread, manifests).await;
        ControllerCompletion::Backfilled(result)
    });
    true
}

/// The missing pieces were fetched, or not.
pub(super) fn handle_result(
    schedule: &mut BackfillSchedule,
    result: BackfillResult,
    journal: &mut Journal,
) {
    let BackfillResult { count, failure } = result;
    let is_reported = schedule.end(failure.is_none());
    if count > 0 {
        journal.log(format!("runs that ended: {count} layers of checkpoints fetched"));
    }
    if let Some((piece, why)) = failure.filter(|_| is_reported) {
        let PieceRef { run, version, layer, .. } = piece;
        journal.warn(format!(
            "layer {layer} of checkpoint {version} of run {run} is not here, and no node serves it: {why}"
        ));
    }
}

async fn backfill(
    pieces: Vec<PieceRef>,
    (transport, checkpoint_thread): (&Transport, &CheckpointThread),
    others: Vec<NodeId>,
) -> BackfillResult {
    let mut result = BackfillResult { count: 0, failure: None };
    let Some(store) = checkpoint_thread.store() else { return result };
    let stored = tokio::task::spawn_blocking(move || store.names()).await;
    let Ok(Ok(stored)) = stored else { return result };
    let stored: BTreeSet<_> = stored.into_iter().collect();
    for piece in pieces.into_iter().filter(|piece| !stored.contains(&piece.name())) {
        match fetch_piece_of_any((transport, checkpoint_thread), piece, &others).await {
            Ok(()) => result.count += 1,
            Err(why) => result.failure = Some((piece, why)),
        }
    }
    result
}

/// Writes the manifests that are missing here, so that a recovery from this store alone finds these
/// runs. One that cannot be written is tried again at the next look.
async fn add_manifests(checkpoint_thread: &CheckpointThread, manifests: Vec<Manifest>) {
    let Some(store) = checkpoint_thread.store() else { return };
    let add = move || {
        for manifest in manifests {
            if let Ok(None) = store.manifest(manifest.version) {
                let _ = store.put_manifest(&manifest);
            }
        }
    };
    let _ = tokio::task::spawn_blocking(add).await;
}
