//! When each worker's last heartbeat came.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use crate::member::{Holder, LossReason};
use crate::message::WorkerActivity;
use crate::mutant::{self, Mutant};
use crate::plan::LayerSource;
use crate::state::{PlanPhase, State};

/// A member counts as lost when it is silent for so many times as long as its longest silence
/// lately, if that is more than the configured time; and for never more than so many times the
/// configured time. Heartbeats of a machine that computes on all cores, or whose hypervisor takes
/// it from it, come late by what they came late by before: the bound follows what was measured, as
/// that of an accrual failure detector does (Hayashibara et al., SRDS 2004, section 4), and stays a
/// bound. It is the longest one for a worker that loads layers, which fills memory that no process had
/// before: its heartbeats come later than any that were measured, and it is waited for anyway.
pub(super) const GAP_FACTOR: u32 = 3;
/// Silences of the last one to two minutes of ticks of 10 ms count.
const LATELY_TICKS: u64 = 6_000;

/// The longest gaps of a node between two heartbeats, in ticks. They are those of its machine and of
/// the way to it, so they outlast a process: one that was started again receives its layers, when
/// its heartbeats come latest.
#[derive(Clone, Copy, Debug, Default)]
struct HeartbeatGaps {
    /// When the present window began.
    since: u64,
    /// The longest in it, and in the one before it.
    longest: u32,
    before: u32,
}

impl HeartbeatGaps {
    fn record_gap(&mut self, silent: u32, now: u64) {
        if now - self.since >= LATELY_TICKS {
            *self = Self { since: now, longest: 0, before: self.longest };
        }
        self.longest = self.longest.max(silent);
    }

    fn longest_lately(&self) -> u32 {
        self.longest.max(self.before)
    }

    /// Ticks of silence after which the member is lost.
    fn bound(&self, lost_after_ticks: u32, is_loading: bool) -> u32 {
        let longest = GAP_FACTOR.saturating_mul(lost_after_ticks);
        let lately = GAP_FACTOR.saturating_mul(self.longest_lately());
        if is_loading { longest } else { lately.clamp(lost_after_ticks, longest) }
    }
}

/// A member as its leader knows it from heartbeats.
#[derive(Clone, Copy, Debug)]
struct HeartbeatRecord {
    holder: Holder,
    at: u64,
    pulse: WorkerActivity,
    /// When it last made progress: its count of work changed, or an operation was under way.
    progress_at: u64,
}

/// The reports in the heartbeats of the workers.
#[derive(Debug, Default)]
pub(super) struct HeartbeatMonitor {
    records: BTreeMap<NodeId, HeartbeatRecord>,
    /// Of the nodes that are or were members.
    gaps: BTreeMap<NodeId, HeartbeatGaps>,
}

impl HeartbeatMonitor {
    /// All workers count as having sent a heartbeat when monitoring begins.
    pub(super) fn begin(&mut self, state: &State, now: u64) {
        self.records.clear();
        self.track_members(state, now);
    }

    /// Members changed: monitors the live workers, and no others.
    pub(super) fn track_members(&mut self, state: &State, now: u64) {
        // The silence that a member was declared lost for counts, if its node comes back.
        let lost = |record: &&HeartbeatRecord| !state.is_live(record.holder);
        for record in self.records.values().filter(lost) {
            let gaps = self.gaps.entry(record.holder.node).or_default();
            gaps.record_gap((now - record.at) as u32, now);
        }
        self.records.retain(|_, record| state.is_live(record.holder));
        self.gaps.retain(|node, _| state.members().contains_key(node));
        // A node that nothing is known of may be as late as the latest that is there: it may share its
        // machine. Of one that is lost nothing was heard lately.
        let known = state.live_workers().filter_map(|(holder, _)| self.gaps.get(&holder.node));
        let longest = known.map(HeartbeatGaps::longest_lately).max().unwrap_or(0);
        for (holder, _) in state.live_workers() {
            let pulse = WorkerActivity::default();
            let record = HeartbeatRecord { holder, at: now, pulse, progress_at: now };
            self.records.entry(holder.node).or_insert(record);
            let gaps = HeartbeatGaps { since: now, longest, before: 0 };
            self.gaps.entry(holder.node).or_insert(gaps);
        }
    }

    pub(super) fn record_heartbeat(&mut self, holder: Holder, now: u64, pulse: WorkerActivity) {
        let before = self.records.get(&holder.node).filter(|before| before.holder == holder);
        let is_same = |before: &&HeartbeatRecord| before.pulse.progress == pulse.progress;
        let unchanged = before.filter(is_same).filter(|_| pulse.busy_ticks == 0);
        let progress_at = unchanged.map_or(now, |before| before.progress_at);
        let silent = before.map_or(0, |before| (now - before.at) as u32);
        self.gaps.entry(holder.node).or_default().record_gap(silent, now);
        self.records.insert(holder.node, HeartbeatRecord { holder, at: now, pulse, progress_at });
    }

    /// When a member last sent a heartbeat; 0 if it is not monitored any more.
    pub(super) fn heard_at(&self, node: NodeId) -> u64 {
        self.records.get(&node).map_or(0, |record| record.at)
    }

    /// When a member last made progress; 0 if it is not monitored any more.
    pub(super) fn progress_at(&self, node: NodeId) -> u64 {
        self.records.get(&node).map_or(0, |record| record.progress_at)
    }

    /// The longest wait for a verdict that a worker reported.
    pub(super) fn wait_ticks(&self) -> u32 {
        self.records.values().map(|record| record.pulse.wait_ticks).max().unwrap_or(0)
    }

    /// Members that are silent, or have work that hangs. One whose loss would give sealed steps up is
    /// waited for as long as one that makes no progress: silence is little evidence (rule R9).
    pub(super) fn overdue(
        &self,
        state: &State,
        now: u64,
        (lost_after_ticks, progress_ticks): (u32, u32),
    ) -> Vec<(Holder, LossReason)> {
        let loading = state.plan().filter(|plan| matches!(plan.phase, PlanPhase::Loading(_)));
        let ticks_max = state.plan().map_or(u32::MAX, |plan| plan.record.op_ticks_max);
        let is_loading = |record: &HeartbeatRecord| {
            loading.is_some_and(|plan| plan.record.stages.contains(&record.holder))
        };
        let overdue = self.records.values().filter_map(|record| {
            let silent = (now - record.at) as u32;
            let ticks = record.pulse.busy_ticks;
            let gaps = self.gaps.get(&record.holder.node).copied().unwrap_or_default();
            let is_loading = is_loading(record);
            if is_loading && mutant::is(Mutant::M21WaitsForTheDead) {
                None
            } else if silent > gaps.bound(lost_after_ticks, is_loading)
                && (silent > progress_ticks || !is_only_holder(state, record.holder))
            {
                Some((record.holder, LossReason::Silent { ticks: silent }))
            } else if ticks > ticks_max {
                Some((record.holder, LossReason::OpOverdue { ticks, ticks_max }))
            } else {
                None
            }
        });
        overdue.filter(|(holder, _)| state.is_live(*holder)).collect()
    }
}

/// Whether the run would go back without this member: no other one that is there has the newest
/// sealed state of some layer, nor has a checkpoint.
fn is_only_holder(state: &State, holder: Holder) -> bool {
    let Some(plan) = state.plan() else { return false };
    let sealed = state.open_turn().step;
    if state.checkpoints().last().is_some_and(|newest| newest.version >= sealed) || sealed.0 == 0 {
        return false;
    }
    let is_other = |other: Holder| other != holder && state.is_live(other);
    match &plan.phase {
        PlanPhase::Closed => false,
        PlanPhase::Loading(_) => plan.record.sources.iter().any(|source| match source {
            LayerSource::Nodes(nodes) => {
                let mut others = nodes.iter().filter_map(|node| state.holder_of(*node));
                nodes.contains(&holder.node) && !others.any(is_other)
            }
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        }),
        PlanPhase::Running => {
            let stages = plan.record.stage_indices();
            let mut kept = stages.map(|stage| plan.record.holders_of(stage).collect::<Vec<_>>());
            kept.any(|kept| kept.contains(&holder) && !kept.into_iter().any(is_other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silences_are_forgotten_after_a_while() {
        let mut gaps = HeartbeatGaps::default();
        assert_eq!(gaps.bound(70, false), 70);
        assert_eq!(gaps.bound(70, true), 210, "whatever was measured");
        gaps.record_gap(40, 100);
        assert_eq!(gaps.bound(70, false), 120);
        gaps.record_gap(6, LATELY_TICKS);
        assert_eq!(gaps.bound(70, false), 120, "it was in the window before");
        gaps.record_gap(6, 2 * LATELY_TICKS);
        assert_eq!(gaps.bound(70, false), 70);
        gaps.record_gap(u32::MAX, 3 * LATELY_TICKS);
        assert_eq!(gaps.bound(70, false), 210, "never for more");
    }
}
