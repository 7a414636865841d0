//! Checkpoints that could not be written anywhere: no disk had room for a layer, or took it.
//!
//! The steps behind the last checkpoint are lost if all workers are. A checkpoint that fails costs
//! nothing by itself: the next one is as good. When several fail one after the other, more and more
//! would be lost, and the run is held before the next seal until a disk has space, or for so long,
//! and tries one more checkpoint then.

use std::collections::BTreeSet;

use zbelastic_types::Step;

use super::checkpoint_timer::keep_next;
use super::watch::DutyWatch;
use crate::checkpoint::PENDING_MAX;
use crate::entry::Entry;
use crate::state::State;

/// Checkpoints that fail one after the other before a run is held. A node that starts again can
/// fail one, and its return another.
pub(super) const UNPLACED_MAX: usize = 3;
/// So long a run is held before it tries a checkpoint without a report of space: a minute, as often as a
/// checkpoint is due by time as a rule.
const RETRY_TICKS: u64 = 6_000;

const _: () = assert!(UNPLACED_MAX <= PENDING_MAX, "failures are those of checkpoints under way");

/// The failed checkpoints since the last one that was complete.
#[derive(Debug, Default)]
pub(super) struct UnplacedCheckpoints {
    failed: BTreeSet<Step>,
    held_at: Option<u64>,
    /// The version that was open when it last went on: what is reported late of those up to it does not
    /// count again.
    released_at: Step,
    /// Whether the next version is to become a checkpoint.
    tries_next: bool,
}

impl UnplacedCheckpoints {
    /// A layer of a checkpoint could be written nowhere.
    pub(super) fn note_failed(&mut self, version: Step, now: u64) {
        if version <= self.released_at {
            return;
        }
        self.failed.insert(version);
        if self.failed.len() >= UNPLACED_MAX && self.held_at.is_none() {
            self.held_at = Some(now);
        }
    }

    /// A disk has space again, or a node came that brings one, while this version is open.
    pub(super) fn note_room(&mut self, open: Step) {
        if self.is_holding() {
            (self.tries_next, self.released_at) = (true, open);
        }
        self.failed.clear();
        self.held_at = None;
    }

    /// Time passes. A disk that takes nothing though it has space reports nothing when it does.
    pub(super) fn handle_tick(&mut self, now: u64, open: Step) {
        if self.held_at.is_some_and(|since| now - since >= RETRY_TICKS) {
            self.held_at = None;
            (self.tries_next, self.released_at) = (true, open);
            // One more failure, and it is held again.
            while self.failed.len() >= UNPLACED_MAX {
                self.failed.pop_first();
            }
        }
    }

    /// What is agreed on a checkpoint.
    pub(super) fn on_applied(&mut self, state: &State, entry: &Entry) {
        match entry {
            // Another job, or another version of it, begins with its own.
            Entry::Checkpoint { .. } | Entry::Job(_) | Entry::Rewind { .. } => {
                *self = Self::default();
            }
            Entry::Members(_) => self.note_room(state.open_turn().step),
            Entry::Keep { .. } => self.tries_next = false,
            Entry::Seal(_) => {
                let open = state.open_turn().step;
                self.tries_next &= state.pending().last().is_none_or(|last| last.version != open);
            }
            Entry::Durable { .. }
            | Entry::Adopt(_)
            | Entry::Ready(_)
            | Entry::Resume { .. }
            | Entry::Access(_)
            | Entry::Format(_) => {}
        }
    }

    /// Whether no step is to be sealed.
    pub(super) const fn is_holding(&self) -> bool {
        self.held_at.is_some()
    }

    /// That the next version becomes a checkpoint, once the run goes on. A job whose checkpoints are due by
    /// steps alone tries the next of those.
    pub(super) fn decide(&self, state: &State, watch: &DutyWatch) -> Option<Entry> {
        let spec = state.running_spec().filter(|_| self.tries_next)?;
        if spec.checkpoint_ticks == 0 {
            return None;
        }
        keep_next(state, spec, watch)
    }
}
