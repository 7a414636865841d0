//! Every controller holds the last checkpoint of each run that is over: the nodes that trained it come and
//! go, and a node whose store was lost gets back what nobody writes again.

use std::collections::BTreeSet;

use zbelastic_checkpoint::{CheckpointStore as _, Manifest};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;

use super::{ControllerCompletion, ControllerNode};
use crate::cluster::activity::WorkCounter;
use crate::cluster::checkpoint_thread::CheckpointThread;
use crate::cluster::piece_fetch::fetch_piece;
use crate::cluster::wire::PieceRef;

/// Ticks between two looks at what is missing here, if nothing happened: ten minutes.
const LOOK_TICKS: u32 = 60_000;
/// Ticks to the next look after one that missed something, doubled with each such: the nodes that have it may
/// not be connected yet. Ten seconds.
const RETRY_TICKS: u32 = 1000;

/// When the next look is due.
#[derive(Default)]
pub(super) struct BackfillSchedule {
    ticks_left: u32,
    is_under_way: bool,
    /// Looks in a row that missed something.
    missed: u32,
}

/// What became of a look.
pub(super) struct BackfillResult {
    /// Pieces that were fetched.
    count: u64,
    /// One that nobody gave, and why.
    failure: Option<(PieceRef, String)>,
}

impl BackfillSchedule {
    /// Something ended: the next tick looks.
    pub(super) const fn request(&mut self) {
        self.ticks_left = 0;
    }

    /// A tick passes. Yields whether to look now.
    const fn is_due(&mut self) -> bool {
        if self.is_under_way {
            return false;
        }
        let is_due = self.ticks_left == 0;
        self.ticks_left = if is_due { LOOK_TICKS } else { self.ticks_left - 1 };
        is_due
    }

    /// A look is over. Yields whether it is time to warn that something is missing.
    fn end(&mut self, has_all: bool) -> bool {
        self.is_under_way = false;
        self.missed = if has_all { 0 } else { self.missed.saturating_add(1) };
        let again = RETRY_TICKS.saturating_mul(1 << self.missed.saturating_sub(1).min(16));
        let wait = if has_all { LOOK_TICKS } else { again.min(LOOK_TICKS) };
        self.ticks_left = self.ticks_left.min(wait);
        wait == LOOK_TICKS && !has_all
    }
}

impl ControllerNode {
    /// Fetches what is missing here of runs that are over, one piece at a time.
    pub(super) fn backfill_ended_runs(&mut self) {
        if !self.backfill.is_due() {
            return;
        }
        let pieces = self.ended_pieces();
        if pieces.is_empty() {
            return;
        }
        self.backfill.is_under_way = true;
        let manifests = self.ended_manifests();
        let others = self.other_holders();
        let (transport, keeper) = (self.transport.clone(), self.checkpoint_thread.clone());
        let (progress, arrivals) = (self.kept_bytes.clone(), self.completions.clone());
        tokio::spawn(async move {
            let adopted = backfill(pieces, (&transport, &keeper), others, progress).await;
            add_manifests(&keeper, manifests).await;
            let _ = arrivals.send(ControllerCompletion::Backfilled(adopted)).await;
        });
    }

    pub(super) fn handle_backfill(&mut self, adopted: BackfillResult) {
        let BackfillResult { count, failure } = adopted;
        let is_told = self.backfill.end(failure.is_none());
        if count > 0 {
            self.journal.log(format!("runs that ended: {count} layers of checkpoints fetched"));
        }
        if let Some((piece, why)) = failure.filter(|_| is_told) {
            let PieceRef { run, version, layer, .. } = piece;
            self.journal.warn(format!(
                "layer {layer} of checkpoint {version} of run {run} is not here, and nobody gives it: {why}"
            ));
        }
    }
}

async fn backfill(
    pieces: Vec<PieceRef>,
    (transport, keeper): (&Transport, &CheckpointThread),
    others: Vec<NodeId>,
    progress: WorkCounter,
) -> BackfillResult {
    let mut adopted = BackfillResult { count: 0, failure: None };
    let Some(store) = keeper.store() else { return adopted };
    let names = tokio::task::spawn_blocking(move || store.names()).await;
    let Ok(Ok(names)) = names else { return adopted };
    let names: BTreeSet<_> = names.into_iter().collect();
    for piece in pieces.into_iter().filter(|piece| !names.contains(&piece.name())) {
        let mut why = "no other node is there".to_owned();
        let mut is_here = false;
        for node in &others {
            match fetch_piece(transport, keeper, piece, *node, progress.clone()).await {
                Ok(()) => is_here = true,
                Err(error) => why = error.to_string(),
            }
            if is_here {
                break;
            }
        }
        if is_here {
            adopted.count += 1;
        } else {
            adopted.failure = Some((piece, why));
        }
    }
    adopted
}

/// Writes the manifests that are missing here, so that a recovery from this store alone knows these runs. One that
/// cannot be written is tried again at the next look.
async fn add_manifests(keeper: &CheckpointThread, manifests: Vec<Manifest>) {
    let Some(store) = keeper.store() else { return };
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
        let mut adopting = BackfillSchedule::default();
        assert!(adopting.is_due());
        let later = (0..LOOK_TICKS).filter(|_| adopting.is_due()).count();
        assert_eq!(later, 0);
        assert!(adopting.is_due());
        adopting.request();
        assert!(adopting.is_due());
        adopting.is_under_way = true;
        adopting.request();
        assert!(!adopting.is_due(), "one at a time");
    }

    #[test]
    fn what_is_missed_is_fetched_again_soon_and_warned_of_once_it_stays_away() {
        let mut adopting = BackfillSchedule::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(adopting.is_due());
            adopting.is_under_way = true;
            let is_told = adopting.end(false);
            waits.push((adopting.ticks_left, is_told));
            adopting.request();
        }
        assert_eq!(waits[..3], [(1000, false), (2000, false), (4000, false)]);
        assert_eq!(waits[6..], [(LOOK_TICKS, true); 2]);
        assert!(!adopting.end(true));
        assert_eq!(adopting.missed, 0);
    }
}
