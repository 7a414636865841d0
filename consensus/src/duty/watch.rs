//! A leader's clock, the heartbeats it received, and its proposals: the inputs of every decision
//! beside the state.

use std::collections::BTreeMap;

use zbelastic_types::{Generation, NodeId, Step};

use super::DutyTiming;
use super::heartbeats::HeartbeatMonitor;
use super::returns::AbsentMembers;
use crate::entry::Entry;
use crate::member::{Holder, LossReason};
use crate::message::WorkerActivity;
use crate::mutant::{self, Mutant};
use crate::state::State;
use crate::validation::Turn;

/// Plans that read the only checkpoint again while it is waited for: a read may fail once.
const REREADS_MAX: u64 = 10;

/// Kinds of proposals, each of which is made at most once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProposalLane {
    Members,
    Plan,
    Seal(Turn),
    Ready(Generation, NodeId),
    Durable(Step, NodeId),
    Keep,
    Checkpoint(Step),
    Job,
    Access,
    Format,
}

/// The inputs of a leader's decisions beside the state.
#[derive(Debug)]
pub(super) struct DutyWatch {
    pub(super) timing: DutyTiming,
    /// Ticks since the election.
    pub(super) now: u64,
    pub(super) heartbeats: HeartbeatMonitor,
    pub(super) absent: AbsentMembers,
    in_flight: BTreeMap<u64, ProposalLane>,
    /// When something last moved: a seal, or a plan; or when a step was last held back.
    pub(super) progress_at: u64,
    /// When a plan was last agreed on, or given up.
    planned_at: u64,
    /// When members last changed.
    pub(super) members_changed: u64,
}

impl DutyWatch {
    /// The watch of a leader that was just elected.
    pub(super) fn new(state: &State, timing: DutyTiming) -> Self {
        let mut heartbeats = HeartbeatMonitor::default();
        heartbeats.begin(state, 0);
        // Those that were lost before count as heard when the election was over.
        let mut absent = AbsentMembers::default();
        absent.track_members(state, (0, timing.progress_ticks), |_| 0);
        let in_flight = BTreeMap::new();
        Self {
            timing,
            now: 0,
            heartbeats,
            absent,
            in_flight,
            progress_at: 0,
            planned_at: 0,
            members_changed: 0,
        }
    }

    /// A worker sent a heartbeat.
    pub(super) fn record_heartbeat(&mut self, holder: Holder, pulse: WorkerActivity) {
        self.heartbeats.record_heartbeat(holder, self.now, pulse);
    }

    /// Members that are silent, or have work that hangs.
    pub(super) fn overdue(&self, state: &State) -> Vec<(Holder, LossReason)> {
        let configured = self.timing.lost_after_ticks;
        let lost_after_ticks = state.job().map_or(configured, |job| job.spec.lost_after_ticks);
        self.heartbeats.overdue(state, self.now, (lost_after_ticks, self.timing.progress_ticks))
    }

    /// Whether none of these made progress for so long that nothing is to be expected of them.
    pub(super) fn are_stalled(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        let ticks_max = u64::from(self.timing.progress_ticks);
        let is_stalled = |node| self.now - self.heartbeats.progress_at(node) > ticks_max;
        nodes.into_iter().all(is_stalled)
    }

    /// A seal or a plan was agreed on, or a step is held back.
    pub(super) fn note_progress(&mut self) {
        self.progress_at = self.now;
    }

    /// A plan was agreed on, or given up.
    pub(super) fn note_plan(&mut self) {
        self.planned_at = self.now;
        self.note_progress();
    }

    /// Members changed. Returns whether one is there again that was lost.
    pub(super) fn note_members(&mut self, state: &State) -> bool {
        self.members_changed = self.now;
        let heartbeats = &self.heartbeats;
        let times = (self.now, self.timing.progress_ticks);
        let is_any_back = self.absent.track_members(state, times, |node| heartbeats.heard_at(node));
        self.heartbeats.track_members(state, self.now);
        is_any_back
    }

    /// Whether a member may soon come with a piece of a checkpoint that has been missed for so many ticks:
    /// one that was lost, or any, where the run can go back to nothing else. Where members are lost again and again
    /// it is not waited for without end, but for the only checkpoint, behind which the run would halt.
    pub(super) fn awaits_disks(&self, missed_ticks: u64, is_only: bool) -> bool {
        if mutant::is(Mutant::M58DisksNotAwaited) {
            return false;
        }
        let progress_ticks = u64::from(self.timing.progress_ticks);
        match is_only {
            true => missed_ticks.min(self.now - self.members_changed) < progress_ticks,
            false => {
                missed_ticks < progress_ticks && self.absent.awaits_disks(self.now, progress_ticks)
            }
        }
    }

    /// Whether another plan is to read the only checkpoint again: the plan in force is old enough, and of
    /// its workers none is still loading, which takes as long as its bytes take.
    pub(super) fn reads_again(&self, workers: impl IntoIterator<Item = NodeId>) -> bool {
        let pause = u64::from(self.timing.progress_ticks) / REREADS_MAX;
        let is_idle = |node| self.now - self.heartbeats.progress_at(node) > pause;
        self.now - self.planned_at > pause && workers.into_iter().all(is_idle)
    }

    /// Whether members changed since the plan in force was agreed on.
    pub(super) fn have_members_changed(&self) -> bool {
        self.members_changed > self.planned_at
    }

    /// An entry was proposed and got this index.
    pub(super) fn note_proposed(&mut self, index: u64, entry: &Entry) {
        self.in_flight.insert(index, lane_of(entry));
    }

    /// Entries up to `index` are applied.
    pub(super) fn note_applied(&mut self, index: u64) {
        self.in_flight = self.in_flight.split_off(&(index + 1));
    }

    /// Whether an entry of this lane is proposed and not applied yet.
    pub(super) fn is_in_flight(&self, lane: ProposalLane) -> bool {
        self.in_flight.values().any(|found| *found == lane)
    }

    /// Whether a checkpoint is agreed on at this moment: a run that went back would go past it.
    pub(super) fn is_completing(&self) -> bool {
        self.in_flight.values().any(|lane| matches!(lane, ProposalLane::Checkpoint(_)))
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

fn lane_of(entry: &Entry) -> ProposalLane {
    match entry {
        Entry::Members(_) => ProposalLane::Members,
        Entry::Adopt(_) | Entry::Resume { .. } | Entry::Rewind { .. } => ProposalLane::Plan,
        Entry::Ready(ready) => ProposalLane::Ready(ready.generation, ready.holder.node),
        Entry::Seal(seal) => ProposalLane::Seal(seal.turn),
        Entry::Durable { version, holder, .. } => ProposalLane::Durable(*version, holder.node),
        Entry::Keep { .. } => ProposalLane::Keep,
        Entry::Checkpoint { version } => ProposalLane::Checkpoint(*version),
        Entry::Job(_) => ProposalLane::Job,
        Entry::Access(_) => ProposalLane::Access,
        Entry::Format(_) => ProposalLane::Format,
    }
}
