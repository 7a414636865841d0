//! When a version becomes a checkpoint because time has passed.
//!
//! What a run loses when no node holds a layer any more is what it sealed since its last
//! checkpoint. A number of steps says little of how long that is, so a leader counts ticks as well.
//! It never spends more than 2 % of the time on it: workers report how long writing kept their
//! devices from computing.

use std::collections::BTreeMap;

use zbelastic_types::Step;

use super::{Duties, ProposalLane};
use crate::entry::Entry;
use crate::job::JobSpec;
use crate::state::State;

/// How many times longer than what a checkpoint takes of the devices' time the next one is waited
/// for: 2 % of the time.
pub const COST_SHARE: u64 = 50;

/// What a leader knows of the checkpoints that there were.
#[derive(Debug, Default)]
pub(super) struct CheckpointTimer {
    /// When the last one was complete, or one under way came closer to it.
    since: u64,
    /// For how long each that is under way kept a device from computing, the longest of all
    /// workers' times, in thousandths of a tick.
    busy: BTreeMap<Step, u32>,
    /// The same of the last one that was complete.
    cost: u32,
}

impl CheckpointTimer {
    /// Layers of a version are durable, and writing them kept a device busy for so long.
    pub(super) fn note_saved(&mut self, version: Step, busy_milliticks: u32) {
        let busy = self.busy.entry(version).or_default();
        *busy = busy_milliticks.max(*busy);
    }

    /// A checkpoint is begun, or more of its layers are agreed to be durable.
    pub(super) fn note_progress(&mut self, now: u64) {
        self.since = now;
    }

    /// A checkpoint is there.
    pub(super) fn note_complete(&mut self, version: Step, now: u64) {
        self.since = now;
        self.cost = self.busy.remove(&version).unwrap_or(0);
        self.busy.retain(|other, _| *other > version);
    }

    /// Forgets what was reported of versions that are not under way.
    pub(super) fn retain(&mut self, is_pending: impl Fn(Step) -> bool) {
        self.busy.retain(|version, _| is_pending(*version));
    }

    /// Ticks from one checkpoint to the next.
    fn interval(&self, spec: &JobSpec) -> u64 {
        u64::from(spec.checkpoint_ticks).max((u64::from(self.cost) * COST_SHARE).div_ceil(1000))
    }
}

impl Duties {
    /// The next version becomes a checkpoint if so much time has passed.
    pub(super) fn decide_timed_checkpoint(&self, state: &State) -> Option<Entry> {
        let spec = state.running_spec().filter(|spec| spec.checkpoint_ticks > 0)?;
        let is_late =
            self.now - self.checkpoint_timer.since >= self.checkpoint_timer.interval(spec);
        if is_late { self.keep_next(state, spec) } else { None }
    }

    /// That the next version becomes a checkpoint, unless it does anyway. While a seal is under way
    /// it is not known which one is next.
    pub(super) fn keep_next(&self, state: &State, spec: &JobSpec) -> Option<Entry> {
        if state.training().checkpoints().due().is_some() || self.is_changing() {
            return None;
        }
        let version = state.open_turn().step.next();
        let is_asked = !spec.checkpoints(version) && version.0 < spec.step_count;
        (is_asked && state.is_running()).then_some(Entry::Keep { version })
    }

    /// The time to the next checkpoint is counted from where the last one stands.
    pub(super) fn time_checkpoints(&mut self, state: &State, entry: &Entry) {
        let now = self.now;
        match entry {
            Entry::Checkpoint { version } => self.checkpoint_timer.note_complete(*version, now),
            Entry::Durable { .. } | Entry::Keep { .. } | Entry::Job(_) => {
                self.checkpoint_timer.note_progress(now);
            }
            Entry::Seal(_) => {
                let open = state.open_turn().step;
                if state.pending().last().is_some_and(|pending| pending.version == open) {
                    self.checkpoint_timer.note_progress(now);
                }
            }
            Entry::Members(_)
            | Entry::Adopt(_)
            | Entry::Ready(_)
            | Entry::Resume { .. }
            | Entry::Rewind { .. }
            | Entry::Access(_)
            | Entry::Format(_) => {}
        }
    }

    /// Whether an entry is under way that moves the open version, or names the next.
    pub(super) fn is_changing(&self) -> bool {
        self.in_flight.values().any(|lane| match lane {
            ProposalLane::Plan | ProposalLane::Seal(_) | ProposalLane::Keep | ProposalLane::Job => {
                true
            }
            ProposalLane::Members
            | ProposalLane::Ready(..)
            | ProposalLane::Durable(..)
            | ProposalLane::Checkpoint(_)
            | ProposalLane::Access
            | ProposalLane::Format => false,
        })
    }
}
