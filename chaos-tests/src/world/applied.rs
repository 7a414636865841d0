//! What follows from an entry that was applied somewhere for the first time, outside of the cores:
//! old checkpoints go, manifests are kept, markers are hit.

use zbelastic_consensus::codec;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::member::{Holder, LossReason, MemberChange};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise};
use zbelastic_consensus::pre_copy::FollowedLayer;
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::{Seal, Verdict};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_types::{LayerId, NodeId, Step};

use super::numbers::BOOTS_APART;
use super::{World, WorldEvent};
use crate::markers::Marker;

/// Stages that a life has at most that is not a large one: it has no more blocks.
const STAGES_FEW: usize = 10;

impl<M: StageFactory, S: BatchSource + Clone> World<'_, M, S> {
    pub(super) fn applied(&mut self, node: NodeId, index: u64, change: &StateChange) {
        let core = self.controllers[&node].core.as_ref().expect("it applied something");
        if core.state().cluster() != self.cluster {
            return;
        }
        let is_fresh = core.state().applied() == index;
        let state_digest = (is_fresh && matches!(change, StateChange::Sealed { .. }))
            .then(|| crate::digest_model::mix_bytes(&codec::encode(core.state())));
        let is_new = self.checker.applied(self.now, index, change, state_digest);
        if !is_new || index <= self.store_index {
            return;
        }
        self.store_index = index;
        self.note_change(node, index, change);
        self.follow_open_version(node, change);
        match change {
            StateChange::Checkpoint { version, .. } => self.keep_manifest(node, *version),
            StateChange::Rewound { dropped, .. } => {
                // Nothing is removed: versions it went past are computed, and named, again.
                self.referred.retain(|version, _| !dropped.contains(version));
                self.workers.values().for_each(|m| m.faults.borrow_mut().forget_flip());
            }
            StateChange::Adopted(plan) | StateChange::Sealed { adopted: Some(plan), .. } => {
                self.check_witnesses(plan);
            }
            StateChange::Members(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Sealed { adopted: None, .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
        self.mark_change(node, change);
    }

    /// Which version is open, and that none is given up that a worker holds.
    fn follow_open_version(&mut self, node: NodeId, change: &StateChange) {
        match change {
            StateChange::Sealed { seal, .. } => self.open = Some((seal.next_turn().step, self.now)),
            StateChange::Rewound { to, reason, .. } => {
                match reason {
                    RewindReason::LayerLost { layer } => self.check_holders(node, *layer),
                    RewindReason::StateDiffers { .. } | RewindReason::Ordered => {}
                }
                self.open = Some((*to, self.now));
            }
            StateChange::Members(_)
            | StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
    }

    /// A flipped bit that is copied because no node is left that has it right is beyond what is
    /// promised: two things went wrong within one step.
    fn check_witnesses(&mut self, plan: &PlanRecord) {
        let is_taken_over = self.workers.iter().any(|(node, machine)| {
            let layer = machine.faults.borrow().flipped();
            layer.is_some_and(|layer| match &plan.sources[layer.index()] {
                LayerSource::Nodes(nodes) => nodes == &[*node] && self.has_no_witness(*node, layer),
                LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
            })
        });
        if is_taken_over {
            self.note(|| "a flipped bit is taken over, its witness is gone: enough".to_owned());
            self.mark(Marker::WitnessLost);
            self.is_excused = true;
        }
    }

    /// Whether the copy holder of a node's layer is down, or something happened to it since a bit
    /// of the layer flipped.
    fn has_no_witness(&self, node: NodeId, layer: LayerId) -> bool {
        self.checker.witnesses(node, layer).all(|witness| {
            let is_up = self.workers.get(&witness.node).is_some_and(|m| m.process.is_some());
            let is_live = self.newest_core().is_some_and(|core| core.state().is_live(witness));
            !is_up || !is_live || self.checker.damage.is_witness_lost(node, witness.node)
        })
    }

    fn keep_manifest(&mut self, node: NodeId, version: Step) {
        let core = self.controllers[&node].core.as_ref().expect("it applied something");
        let state = core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version);
        let spec = state.job().map(|job| job.spec.clone());
        let oldest = state.checkpoints().first().map(|checkpoint| checkpoint.version);
        // A controller that applied many entries at once may have let it go already.
        let (Some(record), Some(spec)) = (record, spec) else { return };
        let record = record.clone();
        self.store.put_manifest(version, codec::encode(&(spec, &record)));
        if let Some(oldest) = oldest {
            self.store.remove_before(oldest);
            self.referred.retain(|version, _| *version >= oldest);
        }
        self.checker.checkpoint(&self.store, &record);
        self.referred.insert(version, record);
    }

    /// Every checkpoint that is referred to can be restored at any instant.
    pub(super) fn audit_checkpoints(&mut self) {
        for record in self.referred.values() {
            self.checker.checkpoint(&self.store, record);
        }
    }

    fn note_change(&mut self, node: NodeId, index: u64, change: &StateChange) {
        self.note(|| {
            let text = match change {
                StateChange::Sealed { seal, is_repeated, .. } => {
                    let again = if *is_repeated { " as before" } else { "" };
                    format!("{} {} ({}){again}", seal.turn, seal.verdict.name(), seal.reason)
                }
                StateChange::Adopted(plan) | StateChange::Planned(plan) => {
                    let stages: Vec<u64> = plan.stages.iter().map(|h| h.node.0).collect();
                    format!(
                        "generation {} from step {} over {stages:?}, {:?}: {}",
                        plan.generation, plan.from_step, plan.promise, plan.reason
                    )
                }
                StateChange::Members(_)
                | StateChange::Ready(_)
                | StateChange::Resumed(_)
                | StateChange::Durable { .. }
                | StateChange::Kept { .. }
                | StateChange::Checkpoint { .. }
                | StateChange::Rewound { .. }
                | StateChange::Job { .. }
                | StateChange::Removed { .. }
                | StateChange::Access(_)
                | StateChange::Format(_) => format!("{change:?}"),
            };
            format!("n{node} #{index} {text}")
        });
    }

    fn mark_change(&mut self, node: NodeId, change: &StateChange) {
        match change {
            StateChange::Members(changes) => {
                changes.iter().for_each(|change| self.mark_member(node, change));
            }
            StateChange::Adopted(plan) => {
                self.pre_copy = None;
                self.mark_plan(plan);
            }
            StateChange::Sealed { seal, is_repeated, adopted } => {
                if *is_repeated {
                    self.mark(Marker::RepeatedAsSealed);
                }
                if let Some(plan) = adopted {
                    self.mark(Marker::PlannedChange);
                    self.mark_ahead(plan);
                    self.mark_plan(plan);
                }
                self.mark_verdict(node, seal);
            }
            StateChange::Rewound { reason, dropped, .. } => {
                self.mark(Marker::Rewound);
                if !dropped.is_empty() {
                    self.mark(Marker::OlderCheckpointUsed);
                }
                if let zbelastic_consensus::entry::RewindReason::StateDiffers { .. } = reason {
                    self.mark(Marker::StateDiffered);
                }
            }
            StateChange::Format(_) => self.mark(Marker::FormatRaised),
            StateChange::Kept { version } => self.timed_checkpoint = Some(*version),
            StateChange::Checkpoint { version, .. } => {
                if self.timed_checkpoint.take_if(|kept| *kept <= *version) == Some(*version) {
                    self.mark(Marker::TimedCheckpoint);
                }
            }
            StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_) => {}
        }
    }

    /// Whether a planned change waits for which workers have come.
    fn is_joining(&self, node: NodeId) -> bool {
        let core = self.controllers[&node].core.as_ref();
        let next = core.and_then(|core| core.state().next_plan());
        next.is_some_and(|plan| matches!(plan.reason, PlanReason::Joined { .. }))
    }

    fn mark_verdict(&mut self, node: NodeId, seal: &Seal) {
        let verdict = seal.verdict;
        let before = self.checker.verdict_before();
        match verdict {
            Verdict::Keep => {}
            Verdict::Clip { .. } => {
                self.mark(Marker::Clipped);
                if matches!(before, Some(Verdict::Skip | Verdict::Replay)) {
                    self.mark(Marker::ClipAfterRollback);
                }
            }
            Verdict::Skip => self.mark(Marker::Skipped),
            Verdict::Replay => {
                self.mark(Marker::Replayed);
                if before == Some(Verdict::Replay) {
                    self.mark(Marker::RolledBackTwice);
                }
            }
        }
        if self.is_joining(node) && verdict != Verdict::Keep {
            self.mark(Marker::RollbackDuringJoin);
        }
        if self.checker.was_quorum_down(seal.turn) {
            self.mark(Marker::QuorumLostWithinAttempt);
        }
    }

    fn mark_member(&mut self, at: NodeId, change: &MemberChange) {
        match change {
            MemberChange::Admit { node, .. } => {
                if let Some(machine) = self.controllers.get_mut(node) {
                    machine.was_admitted = true;
                }
                if let Some((_, old)) = self.storm.replaced.take_if(|(new, _)| new == node) {
                    self.queue.push(self.now.after(1), WorldEvent::RemoveReplaced(old));
                }
                if self.pre_copy.is_some() && self.workers.contains_key(node) {
                    self.mark(Marker::JoinedWhileFollowing);
                }
                if self.fenced.remove(node) {
                    self.mark(Marker::FencedNodeCameBack);
                }
            }
            MemberChange::Lost { holder, reason } => self.mark_loss(at, *holder, *reason),
            MemberChange::Drain { .. } | MemberChange::Moved { .. } => {}
        }
    }

    fn mark_loss(&mut self, at: NodeId, holder: Holder, reason: LossReason) {
        // Nothing is requested any more from a holder that the log takes for lost, rightly or not.
        self.checker.damage.disturbed(holder.node, self.now);
        let follows = self.pre_copy.iter().flat_map(|pre_copy| &pre_copy.layers);
        let (follows, owns) = follows.fold((false, false), |(follows, owns), f| {
            (follows || f.follower == holder, owns || f.owner == holder)
        });
        if follows {
            self.mark(Marker::FollowerLost);
        }
        if owns {
            self.mark(Marker::OwnerLostWhileFollowed);
        }
        if self.is_fenced_alive(at, holder) {
            self.fenced.insert(holder.node);
        }
        let is_joining = self.is_joining(at);
        match reason {
            LossReason::Drained => return self.mark(Marker::Drained),
            LossReason::OpOverdue { .. } => self.mark(Marker::HungNodeLost),
            LossReason::NoProgress { .. } => self.mark(Marker::StuckNodeLost),
            LossReason::Untrusted { .. } => self.mark(Marker::Quarantined),
            LossReason::Closed
            | LossReason::Silent { .. }
            | LossReason::Superseded
            | LossReason::Removed
            | LossReason::OutOfMemory => {}
        }
        if is_joining && self.workers.contains_key(&holder.node) {
            self.mark(Marker::LossDuringJoin);
        }
    }

    /// Whether the very process runs that was declared lost.
    fn is_fenced_alive(&self, at: NodeId, holder: Holder) -> bool {
        let core = self.controllers[&at].core.as_ref().expect("it applied something");
        let member = core.state().members().get(&holder.node);
        let machine = self.workers.get(&holder.node).filter(|machine| machine.process.is_some());
        member.zip(machine).is_some_and(|(member, machine)| {
            (machine.boot..machine.boot + BOOTS_APART).contains(&member.boot)
        })
    }

    /// Whether everybody holds what the plan needs of it when the plan begins.
    fn mark_ahead(&mut self, plan: &PlanRecord) {
        let Some(pre_copy) = self.pre_copy.take() else { return };
        let is_named = |f: &FollowedLayer| match &plan.sources[f.layer.index()] {
            LayerSource::Nodes(nodes) => nodes.contains(&f.follower.node),
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        };
        if pre_copy.generation.next() == plan.generation && pre_copy.layers.iter().all(is_named) {
            self.mark(Marker::CopiedAhead);
        }
    }

    fn mark_plan(&mut self, plan: &PlanRecord) {
        match plan.reason {
            PlanReason::WindowSwitched { .. } => self.mark(Marker::WindowSwitched),
            PlanReason::Stalled { .. } => self.mark(Marker::Stalled),
            PlanReason::Contradiction { .. } => self.mark(Marker::SumContradicted),
            PlanReason::First
            | PlanReason::Lost { .. }
            | PlanReason::Joined { .. }
            | PlanReason::Draining { .. }
            | PlanReason::LoadFailed { .. }
            | PlanReason::Rewound
            | PlanReason::Drifted { .. } => {}
        }
        let Some(before) = self.checker.plan_before(plan) else { return };
        let old = before.stages.len();
        let new = plan.stages.len();
        if new < old {
            self.mark(Marker::FewerStages);
        }
        if new > old {
            self.mark(Marker::MoreStages);
        }
        if new > STAGES_FEW {
            self.mark(Marker::ManyStages);
        }
        let is_kept =
            before.promise == Promise::Kept && !self.checker.was_loading(before.generation);
        let lost = before.stages.iter().filter(|holder| !plan.stages.contains(holder)).count();
        let is_from_nodes = |source: &LayerSource| match source {
            LayerSource::Nodes(_) => true,
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        };
        let keeps_two = before.copies.iter().all(|copies| copies.len() == 2);
        if is_kept && keeps_two && lost == 2 && plan.sources.iter().all(is_from_nodes) {
            self.mark(Marker::PairSurvived);
        }
        if plan.stages.iter().all(|holder| !before.stages.contains(holder)) {
            self.mark(Marker::AllStagesMoved);
        }
        if self.checker.was_loading(before.generation) {
            self.mark(Marker::ReplannedWhileLoading);
        }
        let took_over = before.stage_indices().any(|stage| {
            let owner = before.stages[stage.index()];
            let is_lost = !plan.stages.contains(&owner);
            let layer = before.layers_of(stage).next();
            is_lost
                && layer.is_some_and(|layer| match &plan.sources[layer.index()] {
                    LayerSource::Nodes(nodes) => {
                        let mut copies = before.copy_holders(stage);
                        !nodes.contains(&owner.node) && copies.any(|c| nodes.contains(&c.node))
                    }
                    LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
                })
        });
        if took_over {
            self.mark(Marker::CopyTookOver);
        }
    }
}
