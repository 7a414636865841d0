//! Every controller holds the last checkpoint of each run that is over: the nodes that trained it
//! are added and removed, and a node that lost its store gets back the pieces that are not written
//! again.

use std::collections::BTreeSet;

use zbelastic_checkpoint::{CheckpointStore as _, Manifest};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;
use zbelastic_wire::PieceRef;

use super::ports::{ControllerCompletion, ControllerPorts};
use crate::cluster::checkpoint_thread::CheckpointThread;
use crate::cluster::journal::Journal;
use crate::cluster::piece_fetch::fetch_piece_of_any;

/// Ticks between two checks for pieces that are missing here, if nothing happened: ten minutes.
const LOOK_TICKS: u32 = 60_000;
/// Ticks to the next check after one that did not get every piece, doubled with each such: the
/// nodes that have it may not be connected yet. Ten seconds.
const RETRY_TICKS: u32 = 1000;

/// Ticks until the next check is due.
#[derive(Default)]
pub(super) struct BackfillSchedule {
    ticks_left: u32,
    is_under_way: bool,
    /// Checks in a row that did not get every piece.
    missed: u32,
}

/// The result of a check.
pub(super) struct BackfillResult {
    /// Pieces that were fetched.
    count: u64,
    /// A piece that no node could serve, and why.
    failure: Option<(PieceRef, String)>,
}

impl BackfillSchedule {
    /// A run ended: the next tick checks.
    pub(super) const fn request(&mut self) {
        self.ticks_left = 0;
    }

    /// A tick passes. Yields whether to check now.
    const fn is_due(&mut self) -> bool {
        if self.is_under_way {
            return false;
        }
        let is_due = self.ticks_left == 0;
        self.ticks_left = if is_due { LOOK_TICKS } else { self.ticks_left - 1 };
        is_due
    }

    /// A check is over. Yields whether it is time to warn that a piece is missing.
    fn end(&mut self, has_all: bool) -> bool {
        self.is_under_way = false;
        self.missed = if has_all { 0 } else { self.missed.saturating_add(1) };
        let retry = RETRY_TICKS.saturating_mul(1 << self.missed.saturating_sub(1).min(16));
        let wait = if has_all { LOOK_TICKS } else { retry.min(LOOK_TICKS) };
        self.ticks_left = self.ticks_left.min(wait);
        wait == LOOK_TICKS && !has_all
    }

    /// A tick passes. Fetches the pieces missing here of runs that are over, one piece at a time,
    /// if that is due. Yields whether it is, for what else is done as rarely.
    pub(super) fn handle_tick(&mut self, ports: &ControllerPorts) -> bool {
        if !self.is_due() {
            return false;
        }
        let pieces = ports.runs().ended_pieces();
        if pieces.is_empty() {
            return true;
        }
        self.is_under_way = true;
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
    pub(super) fn handle_result(&mut self, result: BackfillResult, journal: &mut Journal) {
        let BackfillResult { count, failure } = result;
        let is_reported = self.end(failure.is_none());
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

#[cfg(test)]
mod tests {
    use super::{BackfillSchedule, LOOK_TICKS};

    #[test]
    fn a_backfill_is_due_at_the_start_then_rarely_and_whenever_a_run_ends() {
        let mut schedule = BackfillSchedule::default();
        assert!(schedule.is_due());
        let later = (0..LOOK_TICKS).filter(|_| schedule.is_due()).count();
        assert_eq!(later, 0);
        assert!(schedule.is_due());
        schedule.request();
        assert!(schedule.is_due());
        schedule.is_under_way = true;
        schedule.request();
        assert!(!schedule.is_due(), "one at a time");
    }

    #[test]
    fn what_is_missed_is_fetched_again_soon_and_warned_of_once_it_stays_away() {
        let mut schedule = BackfillSchedule::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(schedule.is_due());
            schedule.is_under_way = true;
            let is_reported = schedule.end(false);
            waits.push((schedule.ticks_left, is_reported));
            schedule.request();
        }
        assert_eq!(waits[..3], [(1000, false), (2000, false), (4000, false)]);
        assert_eq!(waits[6..], [(LOOK_TICKS, true); 2]);
        assert!(!schedule.end(true));
        assert_eq!(schedule.missed, 0);
    }
}
