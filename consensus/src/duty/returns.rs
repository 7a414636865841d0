//! Members that were declared lost, and may come back with the layers that they hold, or with the
//! pieces of checkpoints on their disks.
//!
//! Silence is little evidence that a process is gone: it may stand still, or the network to it may
//! be cut. A worker that comes back reports in its next life what it holds, as long as the run did
//! not go back. So a sealed version is not given up for want of a layer before its holders have
//! been silent for as long as a member without progress is waited for; and where one of several
//! came back, the others have the time in which members count as coming together.
//!
//! A disk outlives its process. A checkpoint is not given up for want of a piece while a member was
//! lost for less than that, however it was lost: whoever starts its process again starts it soon. The only
//! checkpoint is waited for where nobody was lost, too: a cluster that was founded from one knows nobody of
//! those that keep it.

use std::collections::BTreeMap;
use std::fmt;

use zbelastic_types::{LayerId, NodeId, StageIndex};

use super::awaited::NAMED_MAX;
use crate::member::{BOOTS_PER_START, Holder, LossReason, Member, MembershipStatus};
use crate::plan::LayerSource;
use crate::state::{PlanPhase, PlanState, State};
use crate::tick::Ticks;

/// A member that was declared lost, and that a leader waits for before the run goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedReturn {
    /// The member that may come back.
    pub node: NodeId,
    /// The first layer that it may hold at the newest sealed version, and no member has.
    pub layer: LayerId,
    /// Ticks for which it is waited for.
    pub left_ticks: u32,
}

/// Members that a leader waits for to come back, as a line says it.
pub struct AwaitedReturns<'a>(pub &'a [AwaitedReturn]);

impl fmt::Display for AwaitedReturns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for AwaitedReturn { node, layer, left_ticks } in self.0.iter().take(NAMED_MAX) {
            let left = Ticks(*left_ticks);
            write!(f, "; waiting for node {node} to come back: ")?;
            write!(f, "nobody else has layer {layer}, up to {left} more")?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and for {more} more"),
        }
    }
}

/// A member that was declared lost, and whose process was not seen to end.
#[derive(Clone, Copy, Debug)]
struct AbsentMember {
    holder: Holder,
    /// The start of its process.
    boot: u64,
    /// The tick up to which it is waited for.
    awaited_until: u64,
}

/// The members that may come back. There are no more of them than members.
#[derive(Debug, Default)]
pub(super) struct AbsentMembers {
    absent: BTreeMap<NodeId, AbsentMember>,
    /// Lost members whose disks may come back, by when it was noted that they are lost.
    disks: BTreeMap<NodeId, u64>,
}

impl AbsentMembers {
    /// Members changed, or a leader was elected. `heard_at` is when a node was last heard. Returns whether
    /// a member is there again that was lost.
    pub(super) fn track_members(
        &mut self,
        state: &State,
        (now, progress_ticks): (u64, u32),
        heard_at: impl Fn(NodeId) -> u64,
    ) -> bool {
        let is_back = |node: &NodeId| state.members().get(node).is_some_and(Member::is_live);
        let is_any_back = self.disks.keys().any(is_back);
        let lost = state.members().iter().filter(|(_, member)| has_disk_elsewhere(member));
        let since = |node: &NodeId| self.disks.get(node).copied().unwrap_or(now);
        self.disks = lost.map(|(node, _)| (*node, since(node))).collect();
        let has_returned = self.absent.values().any(|absent| has_returned(state, *absent));
        self.absent.retain(|node, absent| {
            let member = state.members().get(node);
            member.is_some_and(|m| !m.is_live() && m.incarnation == absent.holder.incarnation)
        });
        if let Some(spec) = state.running_spec().filter(|_| has_returned) {
            let settled = now + u64::from(spec.settle_ticks);
            self.absent.values_mut().for_each(|a| a.awaited_until = a.awaited_until.max(settled));
        }
        for (node, member) in state.members() {
            let silent_until = heard_at(*node) + u64::from(progress_ticks);
            if let Some(awaited_until) = awaited_until(member, (now, silent_until)) {
                let holder = Holder { node: *node, incarnation: member.incarnation };
                let absent = AbsentMember { holder, boot: member.boot, awaited_until };
                self.absent.entry(*node).or_insert(absent);
            }
        }
        is_any_back
    }

    /// Whether a member was lost for less than so many ticks that may come back with its disk.
    pub(super) fn awaits_disks(&self, now: u64, progress_ticks: u64) -> bool {
        self.disks.values().any(|since| now - since < progress_ticks)
    }

    /// The connection to a node closed: its silence is explained.
    pub(super) fn note_closed(&mut self, node: NodeId, now: u64) {
        if let Some(absent) = self.absent.get_mut(&node) {
            absent.awaited_until = absent.awaited_until.min(now);
        }
    }

    /// The members that are waited for because they may hold these layers at the newest sealed
    /// version. None if there is a layer that none of them may hold.
    pub(super) fn awaited_for(
        &self,
        state: &State,
        layers: impl Iterator<Item = LayerId>,
        now: u64,
    ) -> Vec<AwaitedReturn> {
        let Some(plan) = state.plan() else { return Vec::new() };
        let layers: Vec<LayerId> = layers.collect();
        let awaited = || self.absent.values().filter(|absent| absent.awaited_until > now);
        let is_held = |layer| awaited().any(|absent| holds(plan, absent.holder, layer));
        if !layers.iter().all(|layer| is_held(*layer)) {
            return Vec::new();
        }
        let returns = awaited().filter_map(|AbsentMember { holder, awaited_until, .. }| {
            let layer = *layers.iter().find(|layer| holds(plan, *holder, **layer))?;
            let left_ticks = (awaited_until - now) as u32;
            Some(AwaitedReturn { node: holder.node, layer, left_ticks })
        });
        returns.collect()
    }
}

/// Whether the very process of this member is one again.
fn has_returned(state: &State, absent: AbsentMember) -> bool {
    let AbsentMember { holder, boot, .. } = absent;
    let is_same_start = |member: &&Member| member.boot / BOOTS_PER_START == boot / BOOTS_PER_START;
    state.members().get(&holder.node).filter(is_same_start).is_some_and(Member::is_live)
}

/// The tick up to which a lost member is waited for whose process may live: one that is lost for its
/// silence until that has lasted long enough.
fn awaited_until(member: &Member, (now, silent_until): (u64, u64)) -> Option<u64> {
    match member.status {
        MembershipStatus::Lost(LossReason::Silent { .. }) => Some(silent_until),
        // It is waited for once another one comes back.
        MembershipStatus::Lost(LossReason::Closed) => Some(now),
        // It hangs, or it was ended, or it is not to come back with what it holds.
        MembershipStatus::Lost(
            LossReason::OpOverdue { .. }
            | LossReason::NoProgress { .. }
            | LossReason::Superseded
            | LossReason::Drained
            | LossReason::Untrusted { .. }
            | LossReason::Removed
            | LossReason::OutOfMemory,
        )
        | MembershipStatus::Present
        | MembershipStatus::Draining => None,
    }
}

/// Whether a member is lost and its disk may come back with it.
fn has_disk_elsewhere(member: &Member) -> bool {
    match member.status {
        MembershipStatus::Lost(
            LossReason::Silent { .. }
            | LossReason::Closed
            | LossReason::OpOverdue { .. }
            | LossReason::NoProgress { .. }
            | LossReason::Superseded
            | LossReason::OutOfMemory,
        ) => true,
        MembershipStatus::Lost(
            LossReason::Drained | LossReason::Untrusted { .. } | LossReason::Removed,
        )
        | MembershipStatus::Present
        | MembershipStatus::Draining => false,
    }
}

/// Whether a holder may have a layer by the plan in force: at its stage, as a copy, or as the node
/// that it is loaded from. Behind a rewind nothing that is held is believed.
fn holds(plan: &PlanState, holder: Holder, layer: LayerId) -> bool {
    let record = &plan.record;
    let is_its = |stage: &StageIndex| record.layers_of(*stage).any(|of| of == layer);
    let mut holders = record.stage_indices().filter(is_its).flat_map(|s| record.holders_of(s));
    let has_place = holders.any(|found| found == holder);
    let is_source = match &record.sources[layer.index()] {
        LayerSource::Nodes(nodes) => nodes.contains(&holder.node),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    match plan.phase {
        PlanPhase::Loading(_) => is_source || has_place,
        PlanPhase::Running => has_place,
        PlanPhase::Closed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_members_that_may_come_back_a_line_names_the_first() {
        let awaited = |node| {
            let layer = LayerId(4);
            AwaitedReturn { node: NodeId(node), layer, left_ticks: 1_230 }
        };
        let many: Vec<AwaitedReturn> = (1..=10).map(awaited).collect();
        assert_eq!(
            AwaitedReturns(&many[2..3]).to_string(),
            "; waiting for node 3 to come back: nobody else has layer 4, up to 12.3 s more"
        );
        let text = AwaitedReturns(&many).to_string();
        assert!(text.contains("node 8 ") && text.ends_with("; and for 2 more"), "{text}");
        assert_eq!(AwaitedReturns(&[]).to_string(), "");
    }
}
