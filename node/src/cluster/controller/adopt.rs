//! Every controller holds the last checkpoint of each run that is over: the nodes that trained it come and
//! go, and a node whose store was lost gets back what nobody writes again.

use std::collections::BTreeSet;

use zbelastic_checkpoint::{Manifest, Store as _};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;

use super::{Arrived, Controller};
use crate::cluster::keeper::Keeper;
use crate::cluster::piece_keep::keep;
use crate::cluster::wire::PieceRef;
use crate::cluster::work::WorkCount;

/// Ticks between two looks at what is missing here, if nothing happened: ten minutes.
const LOOK_TICKS: u32 = 60_000;
/// Ticks to the next look after one that missed something, doubled with each such: the nodes that have it may
/// not be connected yet. Ten seconds.
const AGAIN_TICKS: u32 = 1000;

/// When the next look is due.
#[derive(Default)]
pub(super) struct Adopting {
    ticks_left: u32,
    is_under_way: bool,
    /// Looks in a row that missed something.
    missed: u32,
}

/// What became of a look.
pub(super) struct Adopted {
    /// Pieces that were fetched.
    count: u64,
    /// One that nobody gave, and why.
    failure: Option<(PieceRef, String)>,
}

impl Adopting {
    /// Something ended: the next tick looks.
    pub(super) const fn ask(&mut self) {
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
        let again = AGAIN_TICKS.saturating_mul(1 << self.missed.saturating_sub(1).min(16));
        let wait = if has_all { LOOK_TICKS } else { again.min(LOOK_TICKS) };
        self.ticks_left = self.ticks_left.min(wait);
        wait == LOOK_TICKS && !has_all
    }
}

impl Controller {
    /// Fetches what is missing here of runs that are over, one piece at a time.
    pub(super) fn look_after_ended(&mut self) {
        if !self.adopting.is_due() {
            return;
        }
        let pieces = self.ended_pieces();
        if pieces.is_empty() {
            return;
        }
        self.adopting.is_under_way = true;
        let manifests = self.ended_manifests();
        let others = self.other_holders();
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        let (progress, arrivals) = (self.kept_bytes.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let adopted = adopt(pieces, (&transport, &keeper), others, progress).await;
            add_manifests(&keeper, manifests).await;
            let _ = arrivals.send(Arrived::Adopted(adopted)).await;
        });
    }

    pub(super) fn handle_adopted(&mut self, adopted: Adopted) {
        let Adopted { count, failure } = adopted;
        let is_told = self.adopting.end(failure.is_none());
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

async fn adopt(
    pieces: Vec<PieceRef>,
    (transport, keeper): (&Transport, &Keeper),
    others: Vec<NodeId>,
    progress: WorkCount,
) -> Adopted {
    let mut adopted = Adopted { count: 0, failure: None };
    let Some(store) = keeper.store() else { return adopted };
    let names = tokio::task::spawn_blocking(move || store.names()).await;
    let Ok(Ok(names)) = names else { return adopted };
    let names: BTreeSet<_> = names.into_iter().collect();
    for piece in pieces.into_iter().filter(|piece| !names.contains(&piece.name())) {
        let mut why = "no other node is there".to_owned();
        let mut is_here = false;
        for node in &others {
            match keep(transport, keeper, piece, *node, progress.clone()).await {
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
async fn add_manifests(keeper: &Keeper, manifests: Vec<Manifest>) {
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
    use super::{Adopting, LOOK_TICKS};

    #[test]
    fn a_look_is_due_at_the_start_then_rarely_and_whenever_a_run_ends() {
        let mut adopting = Adopting::default();
        assert!(adopting.is_due());
        let later = (0..LOOK_TICKS).filter(|_| adopting.is_due()).count();
        assert_eq!(later, 0);
        assert!(adopting.is_due());
        adopting.ask();
        assert!(adopting.is_due());
        adopting.is_under_way = true;
        adopting.ask();
        assert!(!adopting.is_due(), "one at a time");
    }

    #[test]
    fn what_is_missed_is_looked_for_again_soon_and_told_of_once_it_stays_away() {
        let mut adopting = Adopting::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(adopting.is_due());
            adopting.is_under_way = true;
            let is_told = adopting.end(false);
            waits.push((adopting.ticks_left, is_told));
            adopting.ask();
        }
        assert_eq!(waits[..3], [(1000, false), (2000, false), (4000, false)]);
        assert_eq!(waits[6..], [(LOOK_TICKS, true); 2]);
        assert!(!adopting.end(true));
        assert_eq!(adopting.missed, 0);
    }
}
