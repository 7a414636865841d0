//! What follows from an entry that was applied somewhere for the first time, outside of the cores:
//! old checkpoints go, manifests are kept, markers are hit.

use zbelastic_consensus::codec;
use zbelastic_consensus::job::HaltReason;
use zbelastic_consensus::member::{LossReason, MemberChange};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord};
use zbelastic_consensus::state::{Change, PlanPhase};
use zbelastic_consensus::validation::Verdict;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::ComputeModel;
use zbelastic_types::{NodeId, Step};

use super::{Event, World};
use crate::failure::{Failure, Invariant};
use crate::markers::Marker;

impl<M: ComputeModel, S: BatchSource + Clone> World<'_, M, S> {
    pub(super) fn applied(&mut self, node: NodeId, index: u64, change: &Change) {
        let core = self.controllers[&node].core.as_ref().expect("it applied something");
        if core.state().cluster() != self.cluster {
            return;
        }
        let is_fresh = core.state().applied() == index;
        let state_digest = (is_fresh && matches!(change, Change::Sealed { .. }))
            .then(|| crate::digest_model::mix_bytes(&codec::encode(core.state())));
        let is_new = self.checker.applied(self.now, index, change, state_digest);
        if !is_new || index <= self.store_index {
            return;
        }
        self.store_index = index;
        self.note_change(node, index, change);
        match change {
            Change::Checkpoint { version, .. } => self.keep_manifest(node, *version),
            Change::Rewound { dropped, .. } => {
                // Nothing is removed: versions it went past are computed, and named, again.
                self.referred.retain(|version| !dropped.contains(version));
                self.workers.values().for_each(|m| m.faults.borrow_mut().forget_flip());
            }
            Change::Adopted(plan) | Change::Sealed { adopted: Some(plan), .. } => {
                self.look_for_witnesses(plan);
            }
            Change::Members(_)
            | Change::Planned(_)
            | Change::Ready(_)
            | Change::Resumed(_)
            | Change::Sealed { adopted: None, .. }
            | Change::Durable { .. }
            | Change::Job(_) => {}
        }
        self.mark_change(node, change);
    }

    /// A flipped bit that is taken over because nobody is left who has it right is beyond what is
    /// promised: two things went wrong within one step.
    fn look_for_witnesses(&mut self, plan: &PlanRecord) {
        let is_taken_over = self.workers.iter().any(|(node, machine)| {
            let layer = machine.faults.borrow().flipped();
            layer.is_some_and(|layer| match &plan.sources[layer.index()] {
                LayerSource::Nodes(nodes) => nodes == &[*node],
                LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
            })
        });
        if is_taken_over {
            self.note(|| "a flipped bit is taken over, its witness is gone: enough".to_owned());
            self.mark(Marker::WitnessLost);
            self.is_excused = true;
        }
    }

    fn keep_manifest(&mut self, node: NodeId, version: Step) {
        let core = self.controllers[&node].core.as_ref().expect("it applied something");
        let state = core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version);
        let spec = state.job().map(|job| job.spec.clone());
        let oldest = state.checkpoints().first().map(|checkpoint| checkpoint.version);
        // A controller that applied many entries at once may have let it go already.
        let (Some(record), Some(spec)) = (record, spec) else { return };
        self.store.put_manifest(version, codec::encode(&(spec, record)));
        if let Some(oldest) = oldest {
            self.store.remove_before(oldest);
            self.referred.retain(|version| *version >= oldest);
        }
        self.referred.insert(version);
        self.checker.checkpoint(&self.store, version);
    }

    /// Every checkpoint that is referred to can be restored at any instant.
    pub(super) fn audit_checkpoints(&mut self) {
        for version in self.referred.clone() {
            self.checker.checkpoint(&self.store, version);
        }
    }

    fn note_change(&mut self, node: NodeId, index: u64, change: &Change) {
        self.note(|| {
            let text = match change {
                Change::Sealed { seal, is_repeated, .. } => {
                    let again = if *is_repeated { " as before" } else { "" };
                    format!("{} {} ({}){again}", seal.turn, seal.verdict.name(), seal.reason)
                }
                Change::Adopted(plan) | Change::Planned(plan) => {
                    let stages: Vec<u64> = plan.stages.iter().map(|h| h.node.0).collect();
                    format!(
                        "generation {} from step {} over {stages:?}, {:?}: {}",
                        plan.generation, plan.from_step, plan.promise, plan.reason
                    )
                }
                Change::Members(_)
                | Change::Ready(_)
                | Change::Resumed(_)
                | Change::Durable { .. }
                | Change::Checkpoint { .. }
                | Change::Rewound { .. }
                | Change::Job(_) => format!("{change:?}"),
            };
            format!("n{node} #{index} {text}")
        });
    }

    fn mark_change(&mut self, node: NodeId, change: &Change) {
        match change {
            Change::Members(changes) => changes.iter().for_each(|change| self.mark_member(change)),
            Change::Adopted(plan) => self.mark_plan(plan),
            Change::Sealed { seal, is_repeated, adopted } => {
                if *is_repeated {
                    self.mark(Marker::RepeatedAsSealed);
                }
                if let Some(plan) = adopted {
                    self.mark(Marker::PlannedChange);
                    self.mark_plan(plan);
                }
                self.mark_verdict(node, seal.verdict);
            }
            Change::Rewound { reason, dropped, .. } => {
                self.mark(Marker::Rewound);
                if !dropped.is_empty() {
                    self.mark(Marker::OlderCheckpointUsed);
                }
                if let zbelastic_consensus::entry::RewindReason::StateDiffers { .. } = reason {
                    self.mark(Marker::StateDiffered);
                }
            }
            Change::Planned(_)
            | Change::Ready(_)
            | Change::Resumed(_)
            | Change::Durable { .. }
            | Change::Checkpoint { .. }
            | Change::Job(_) => {}
        }
    }

    fn mark_verdict(&mut self, node: NodeId, verdict: Verdict) {
        let before = self.checker.verdict_before();
        let is_joining = self.controllers[&node]
            .core
            .as_ref()
            .is_some_and(|core| core.state().next_plan().is_some());
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
        if is_joining && verdict != Verdict::Keep {
            self.mark(Marker::RollbackDuringJoin);
        }
        if self.checker.was_leaderless() && self.checker.goes_on() {
            self.mark(Marker::QuorumLostWithinAttempt);
        }
    }

    fn mark_member(&mut self, change: &MemberChange) {
        match change {
            MemberChange::Admit { node, .. } => {
                if let Some(machine) = self.controllers.get_mut(node) {
                    machine.was_admitted = true;
                }
                if let Some((_, old)) = self.storm.replaced.take_if(|(new, _)| new == node) {
                    self.queue.push(self.now.after(1), Event::RemoveReplaced(old));
                }
                if self.checker.admitted(*node) {
                    self.mark(Marker::FencedNodeCameBack);
                }
            }
            MemberChange::Lost { holder, reason: LossReason::Silent { .. } } => {
                // Loss enough of heartbeats is as good as a cut link.
                self.checker.disturbed(holder.node);
            }
            MemberChange::Lost { reason: LossReason::OpOverdue { .. }, .. } => {
                self.mark(Marker::HungNodeLost);
            }
            MemberChange::Lost { reason: LossReason::Untrusted { .. }, .. } => {
                self.mark(Marker::Quarantined);
            }
            MemberChange::Lost { reason: LossReason::Drained, .. } => self.mark(Marker::Drained),
            MemberChange::Lost { .. } | MemberChange::Drain { .. } => {}
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
            | PlanReason::Rewound => {}
        }
        let Some(before) = self.checker.plan_before(plan) else { return };
        let (old, new) = (before.stages.len(), plan.stages.len());
        if new < old {
            self.mark(Marker::FewerStages);
        }
        if new > old {
            self.mark(Marker::MoreStages);
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
            let copy = before.copy_holder(stage).map(|holder| holder.node);
            is_lost
                && layer.is_some_and(|layer| match &plan.sources[layer.index()] {
                    LayerSource::Nodes(nodes) => {
                        !nodes.contains(&owner.node) && copy.is_some_and(|c| nodes.contains(&c))
                    }
                    LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
                })
        });
        if took_over {
            self.mark(Marker::CopyTookOver);
        }
    }

    /// A run may be held only for a reason that a fault gave.
    pub(super) fn check_halt(&mut self, reason: HaltReason) {
        use crate::options::FaultClass;
        let options = &self.case.options;
        let is_excused = match reason {
            HaltReason::NothingToRestore => options.has(FaultClass::Store),
            HaltReason::Untrusted => options.has(FaultClass::SilentErrors),
            HaltReason::DiffersFromLog { .. } => false,
        };
        if !is_excused {
            self.fail(Failure::safety(Invariant::N1, format!("the run is held: {reason}")));
        }
    }

    /// Whether everybody has taken in the end of the run.
    pub(super) fn is_settled(&self) -> bool {
        let Some(newest) = self.newest_core() else { return false };
        let state = newest.state();
        let cores = self.controllers.values().filter_map(|machine| machine.core.as_ref());
        let members = newest.status().members;
        let voters = cores.filter(|core| members.voters.contains(&core.status().node));
        let all_applied = voters.clone().all(|core| core.state().applied() == state.applied());
        let is_whole = voters.count() == members.voters.len();
        let Some(plan) = state.plan().filter(|plan| plan.phase == PlanPhase::Running) else {
            return all_applied && is_whole;
        };
        let generation = plan.record.generation;
        let end = Step(self.setup.spec.step_count);
        let stations = self.workers.values().filter_map(|m| m.process.as_ref()?.host.station());
        let of_plan = stations.filter(|station| station.plan().generation == generation);
        let all_done = of_plan.clone().all(|station| {
            use zbelastic_trainer::stage::Workbench;
            station.engine().bench().version() == end
        });
        all_applied
            && is_whole
            && (all_done && of_plan.count() == plan.record.stages.len()
                || state.lost_holder().is_some())
    }

    /// At the end: the log as a small model, every checkpoint restored, states compared.
    pub(super) fn audit(&mut self) {
        self.audit_checkpoints();
        if let Some(core) = self.newest_core() {
            let history: Vec<_> = core.state().history().seals().copied().collect();
            let base = core.state().history().base();
            self.checker.audit(base, &history);
        }
        if crate::bug::is(crate::bug::Bug::Canary) {
            self.fail(Failure::safety(Invariant::Canary, "the canary sings"));
        }
        if let Some(failure) = self.checker.take_failure() {
            self.fail(failure);
        }
    }
}
