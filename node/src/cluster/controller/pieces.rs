//! Pieces of checkpoints on a controller: kept for workers, repaired, removed; and which checkpoints
//! failed.

use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_policy::backfill_schedule::BackfillSchedule;
use zbelastic_policy::data::expected_name;
use zbelastic_policy::moment_values::MomentValues;
use zbelastic_policy::save_warnings::SaveWarnings;
use zbelastic_types::{Bytes, NodeId, Step};
use zbelastic_wire::{FreedSpace, NodeMessage, PieceRef, SaveFailed, StoreReferences};

use super::data::fetch_data_of;
use super::ports::ControllerPorts;
use crate::cluster::checkpoint_thread::StoreEvent;
use crate::cluster::data::damaged_text;
use crate::cluster::keep_rule::check_keep;
use crate::cluster::piece_keeper::{PieceFetchResult, PieceKeeper};
use crate::cluster::run_log::RunLog;
use crate::cluster::scrub::{damaged_piece_text, repair, repair_text};
use zbelastic_policy::WorkCounter;

/// The pieces of checkpoints that a controller keeps.
#[derive(Default)]
pub(super) struct CheckpointPieces {
    keeper: PieceKeeper,
    /// Of the pieces that it fetched.
    moments: MomentValues,
    save_warnings: SaveWarnings,
}

impl CheckpointPieces {
    /// The chaining values of the moments of pieces that are kept.
    pub(super) const fn moments(&self) -> &MomentValues {
        &self.moments
    }

    /// A worker requests that a piece is kept here too.
    pub(super) fn keep_for(
        &mut self,
        node: NodeId,
        piece: PieceRef,
        (ports, run_log): (&mut ControllerPorts, &RunLog),
    ) {
        let sealed = ports.state().open_turn().step;
        let check = check_keep(piece, run_log.layers_of_run(), sealed);
        self.keeper.note_referred(ports.runs().referred_versions());
        self.keeper.note_members(ports.state().members().len(), ports.tasks.checkpoint_thread());
        self.keeper.request(node, piece, check, (&mut ports.outbox, &mut ports.journal));
        self.keeper.fetch_next(&ports.tasks);
    }

    /// A piece that is kept for another node was fetched, or not.
    pub(super) fn handle_fetched(
        &mut self,
        mut result: PieceFetchResult,
        ports: &mut ControllerPorts,
    ) {
        if let Ok(values) = &mut result.outcome {
            self.moments.note(result.piece, std::mem::take(values));
        }
        self.keeper.note_fetched(result, (&mut ports.outbox, &mut ports.journal));
        self.keeper.fetch_next(&ports.tasks);
    }

    /// Reports to the owners of pieces that wait here that these make progress.
    pub(super) fn handle_tick(&mut self, ports: &mut ControllerPorts) {
        self.keeper.handle_tick(&mut ports.outbox);
    }

    /// A worker reports that a checkpoint is not completed, or is on fewer disks than it should
    /// be. The leader warns of each once.
    pub(super) fn note_save_failed(
        &mut self,
        node: NodeId,
        failed: SaveFailed,
        ports: &mut ControllerPorts,
    ) {
        let SaveFailed { version, layer, copies, wanted } = failed;
        let is_pending = ports.state().pending().iter().any(|found| found.version == version);
        if !ports.leads() || !is_pending || !self.save_warnings.note(version, copies) {
            return;
        }
        let last = ports.state().checkpoints().last();
        let last = last
            .map_or("none before it".to_owned(), |found| format!("the last is {}", found.version));
        let subject = match copies {
            0 => format!("checkpoint {version} failed ({last})"),
            _ => format!("checkpoint {version} has too few copies"),
        };
        ports.journal.warn(format!(
            "{subject}: of layer {layer} of node {node} {copies} of {wanted} copies could be written; free \
             disk space there and on the nodes that keep copies"
        ));
    }
}

/// The thread of the store reports the outcome for a piece, or what became of the store: one that was
/// begun anew lacks the pieces of runs that are over.
pub(super) fn note_store(
    event: StoreEvent,
    (ports, backfill): (&mut ControllerPorts, &mut BackfillSchedule),
) {
    match event {
        StoreEvent::Failed { failure } => ports.journal.warn(format!("the store: {failure}")),
        StoreEvent::Replaced { damage, aside } => {
            ports.journal.warn(damage.put_aside_text(&aside));
            backfill.request();
        }
        StoreEvent::Collected(FreedSpace { chunks: 0, .. }) => {}
        StoreEvent::Collected(FreedSpace { chunks, bytes }) => {
            let bytes = Bytes(bytes);
            ports.journal.log(format!("old checkpoints: {chunks} chunks removed, {bytes}"));
        }
        StoreEvent::Rotten { piece, why } => {
            ports.journal.warn(damaged_piece_text(piece, &why));
            let tasks = &ports.tasks;
            let parts = (tasks.transport().clone(), tasks.checkpoint_thread().clone());
            repair(piece, parts, ports.other_holders(), WorkCounter::default());
        }
        StoreEvent::RottenData(found) => {
            let name = expected_name(found, &ports.runs().data_names().unwrap_or_default());
            ports.journal.warn(damaged_text(ports.me, name));
            fetch_data_of(name, ports.other_holders(), ports);
        }
        StoreEvent::Mended { piece, found, outcome } => {
            if let Some(why) = found {
                ports.journal.warn(damaged_piece_text(piece, &why));
            }
            match repair_text(piece, outcome) {
                Ok(text) => ports.journal.log(text),
                Err(text) => ports.journal.warn(text),
            }
        }
        // A controller has no pieces of its own, nor does it continue from any.
        StoreEvent::Put { .. } | StoreEvent::Got { .. } => {}
    }
}

/// A checkpoint is complete: its manifest is kept, and pieces that older ones alone needed are
/// removed.
pub(super) fn complete_checkpoint(version: Step, ports: &mut ControllerPorts) {
    let Some(manifest) = ports.runs().manifest(version) else { return };
    if let Err(error) = ports.tasks.checkpoint_thread().put_manifest(manifest) {
        ports.journal.warn(error.to_string());
    }
    collect_unused(ports);
}

/// Removes pieces that are not referred to, on every node. Only the leader sends this: another
/// controller may not have applied yet the entry that refers to a piece.
pub(super) fn collect_unused(ports: &mut ControllerPorts) {
    if !ports.leads() {
        return;
    }
    let referred = ports.runs().references();
    let others = ports.other_holders();
    ports.outbox.send_to_all(others, &NodeMessage::Collect(referred.clone()));
    collect_local(referred, ports);
}

/// A node is connected again: what it was to remove meanwhile, it did not. Without this it would keep
/// that until the next checkpoint, of which there is none behind the end of a run.
pub(super) fn collect_on_return(peer: &PeerIdentity, ports: &mut ControllerPorts) {
    let keeps_pieces = match peer.role {
        PeerRole::Controller | PeerRole::Worker => true,
        PeerRole::Admin | PeerRole::Operator | PeerRole::Viewer => false,
    };
    if keeps_pieces && ports.leads() {
        let referred = ports.runs().references();
        ports.outbox.send(peer.node, NodeMessage::Collect(referred));
    }
}

/// Removes pieces that are not referred to from the store here.
pub(super) fn collect_local(referred: StoreReferences, ports: &mut ControllerPorts) {
    if let Err(error) = ports.tasks.checkpoint_thread().collect(referred) {
        ports.journal.warn(error.to_string());
    }
}
