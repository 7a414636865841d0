//! When a version becomes a checkpoint because time has passed.
//!
//! When no node holds a layer any more, a run loses the steps that it sealed since its last
//! checkpoint. A number of steps says little of how long that is, so a leader counts ticks as well.
//! It never spends more than 2 % of the time on it: workers report how long writing kept their
//! devices from computing.

use std::collections::BTreeMap;

use zbelastic_types::Step;

use super::watch::DutyWatch;
use crate::entry::Entry;
use crate::job::JobSpec;
use crate::state::State;

/// Multiple of the devices' time for a checkpoint after which the next one is due: 2 % of the time.
pub const COST_SHARE: u64 = 50;

/// A leader's knowledge of past checkpoints.
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
    fn note_progress(&mut self, now: u64) {
        self.since = now;
    }

    /// A checkpoint is there.
    fn note_complete(&mut self, version: Step, now: u64) {
        self.since = now;
        self.cost = self.busy.remove(&version).unwrap_or(0);
        self.busy.retain(|other, _| *other > version);
    }

    /// Forgets the reports on versions that are not under way.
    pub(super) fn retain(&mut self, is_pending: impl Fn(Step) -> bool) {
        self.busy.retain(|version, _| is_pending(*version));
    }

    /// Ticks from one checkpoint to the next.
    fn interval(&self, spec: &JobSpec) -> u64 {
        u64::from(spec.checkpoint_ticks).max((u64::from(self.cost) * COST_SHARE).div_ceil(1000))
    }

    /// The time to the next checkpoint is counted from where the last one stands.
    pub(super) fn on_applied(&mut self, state: &State, entry: &Entry, now: u64) {
        match entry {
            Entry::Checkpoint { version } => self.note_complete(*version, now),
            Entry::Durable { .. } | Entry::Keep { .. } | Entry::Job(_) => {
                self.note_progress(now);
            }
            Entry::Seal(_) => {
                let open = state.open_turn().step;
                if state.pending().last().is_some_and(|pending| pending.version == open) {
                    self.note_progress(now);
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

    /// That the next version becomes a checkpoint, if so much time has passed.
    pub(super) fn decide(&self, state: &State, watch: &DutyWatch) -> Option<Entry> {
        let spec = state.running_spec().filter(|spec| spec.checkpoint_ticks > 0)?;
        let is_late = watch.now - self.since >= self.interval(spec);
        if is_late { keep_next(state, spec, watch) } else { None }
    }
}

/// That the next version becomes a checkpoint, unless it does anyway. While a seal is under way
/// it is not known which one is next.
pub(super) fn keep_next(state: &State, spec: &JobSpec, watch: &DutyWatch) -> Option<Entry> {
    if state.training().checkpoints().due().is_some() || watch.is_changing() {
        return None;
    }
    let version = state.open_turn().step.next();
    let is_asked = !spec.checkpoints(version) && version.0 < spec.step_count;
    (is_asked && state.is_running()).then_some(Entry::Keep { version })
}
