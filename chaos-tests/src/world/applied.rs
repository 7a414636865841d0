//! The consequences of an entry that was applied somewhere for the first time, outside of the
//! cores: old checkpoints go, manifests are kept, markers are hit.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::codec;
use zbelastic_consensus::core::Core;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::job::{HaltReason, JobPhase};
use zbelastic_consensus::member::{BOOTS_PER_START, Holder, LossReason, MemberChange};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise};
use zbelastic_consensus::pre_copy::{FollowedLayer, needed_layers};
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::{Seal, Verdict};
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::WorldEvent;
use super::controllers::AWAITED_US;
use super::surroundings::Surroundings;
use super::worker_facts::WorkerFacts;
use crate::check::named_pieces;
use crate::failure::{Invariant, LifeFailure};
use crate::markers::Marker;
use crate::queue::VirtualTime;

/// Stages that a life has at most that is not a large one: it has no more blocks.
const STAGES_FEW: usize = 10;

/// The applied entries, as far as anything outside of the cores depends on them.
#[derive(Default)]
pub(super) struct ChangeRecord {
    /// The last index of which the consequences for the store were drawn.
    store_index: u64,
    /// Checkpoints that the log refers to.
    referred: BTreeMap<Step, CheckpointRecord>,
    /// The version that becomes a checkpoint because time has passed.
    timed_checkpoint: Option<Step>,
    /// Workers that were declared lost and live on.
    fenced: BTreeSet<NodeId>,
    /// When workers were declared lost that were not admitted since.
    lost_at: BTreeMap<NodeId, VirtualTime>,
    /// The version that waits for its seal, once one was sealed, and since when.
    open: Option<(Step, VirtualTime)>,
}

impl ChangeRecord {
    /// A new cluster begins, with this checkpoint.
    pub(super) fn recovered(&mut self, checkpoint: Option<&CheckpointRecord>) {
        self.referred.clear();
        self.referred.extend(checkpoint.map(|record| (record.version, record.clone())));
        (self.store_index, self.open) = (0, None);
    }

    /// A controller applied an entry; its core, and the newest of its cluster. Yields whether it is
    /// the first time.
    pub(super) fn applied(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        (core, newest): (&Core, Option<&Core>),
        index: u64,
        change: &StateChange,
    ) -> bool {
        if core.state().cluster() != env.cluster {
            return false;
        }
        let is_fresh = core.state().applied() == index;
        let state_digest = (is_fresh && matches!(change, StateChange::Sealed { .. }))
            .then(|| crate::digest_model::mix_bytes(&codec::encode(core.state())));
        let is_new = env.checker.applied(env.now, index, change, state_digest);
        if !is_new || index <= self.store_index {
            return false;
        }
        self.store_index = index;
        note_change(env, core, index, change);
        self.follow_open_version(env, workers, core, change);
        match change {
            StateChange::Checkpoint { version, .. } => self.keep_manifest(env, core, *version),
            StateChange::Rewound { dropped, .. } => {
                env.rewound_at = index;
                // Nothing is removed: versions it went past are computed, and named, again.
                self.referred.retain(|version, _| !dropped.contains(version));
            }
            StateChange::Adopted(plan) | StateChange::Sealed { adopted: Some(plan), .. } => {
                env.checker.damage.adopted(&workers.flipped_layers());
                check_witnesses(env, workers, newest, plan);
            }
            StateChange::Resumed(_) => env.store.note_resumed(),
            StateChange::Members(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Sealed { adopted: None, .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
        self.mark_change(env, workers, core, change);
        true
    }

    /// Which version is open, and that none is given up that a worker holds.
    fn follow_open_version(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        core: &Core,
        change: &StateChange,
    ) {
        match change {
            StateChange::Sealed { seal, .. } => self.open = Some((seal.next_turn().step, env.now)),
            StateChange::Rewound { to, reason, dropped } => {
                match reason {
                    RewindReason::LayerLost { layer } => {
                        self.check_holders(env, workers, core, *layer);
                        let unread = dropped.iter();
                        unread.for_each(|version| self.check_keepers(env, workers, *version));
                    }
                    RewindReason::StateDiffers { .. } | RewindReason::Ordered => {}
                }
                self.open = Some((*to, env.now));
            }
            StateChange::Job { phase: JobPhase::Halted(HaltReason::NothingToRestore), .. } => {
                let versions: Vec<Step> = self.referred.keys().copied().collect();
                env.checker.held_with_nothing_left(core.state().history().base(), &versions);
                versions.into_iter().for_each(|version| self.check_keepers(env, workers, version));
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

    fn keep_manifest(&mut self, env: &mut Surroundings<'_>, core: &Core, version: Step) {
        let state = core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version);
        let spec = state.job().map(|job| job.spec.clone());
        let oldest = state.checkpoints().first().map(|checkpoint| checkpoint.version);
        // A controller that applied many entries at once may have let it go already.
        let (Some(record), Some(spec)) = (record, spec) else { return };
        let record = record.clone();
        env.store.put_manifest(version, codec::encode(&(spec, &record)));
        env.store.note_written(version);
        if let Some(oldest) = oldest {
            env.store.remove_before(oldest);
            self.referred.retain(|version, _| *version >= oldest);
        }
        env.checker.checkpoint(&env.store, &record);
        self.referred.insert(version, record);
    }

    /// Every checkpoint that is referred to can be restored at any instant.
    pub(super) fn audit_checkpoints(&self, env: &mut Surroundings<'_>) {
        for record in self.referred.values() {
            env.checker.checkpoint(&env.store, record);
        }
    }

    fn mark_change(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        core: &Core,
        change: &StateChange,
    ) {
        match change {
            StateChange::Members(changes) => {
                changes.iter().for_each(|change| self.mark_member(env, workers, core, change));
            }
            StateChange::Adopted(plan) => {
                env.pre_copy = None;
                mark_kept_layers(env, core, plan);
                mark_plan(env, plan);
            }
            StateChange::Sealed { seal, is_repeated, adopted } => {
                if *is_repeated {
                    env.mark(Marker::RepeatedAsSealed);
                }
                if let Some(plan) = adopted {
                    env.mark(Marker::PlannedChange);
                    mark_ahead(env, plan);
                    mark_plan(env, plan);
                }
                mark_verdict(env, core, seal);
            }
            StateChange::Rewound { reason, dropped, .. } => {
                env.mark(Marker::Rewound);
                if !dropped.is_empty() {
                    env.mark(Marker::OlderCheckpointUsed);
                }
                if let zbelastic_consensus::entry::RewindReason::StateDiffers { .. } = reason {
                    env.mark(Marker::StateDiffered);
                }
            }
            StateChange::Format(_) => env.mark(Marker::FormatRaised),
            StateChange::Kept { version } => self.timed_checkpoint = Some(*version),
            StateChange::Checkpoint { version, .. } => {
                if self.timed_checkpoint.take_if(|kept| *kept <= *version) == Some(*version) {
                    env.mark(Marker::TimedCheckpoint);
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

    fn mark_member(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        core: &Core,
        change: &MemberChange,
    ) {
        match change {
            MemberChange::Admit { node, .. } => {
                if let Some((_, old)) = env.storm.replaced.take_if(|(new, _)| new == node) {
                    env.queue.push(env.now.after(1), WorldEvent::RemoveReplaced(old));
                }
                if env.pre_copy.is_some() && workers.has(*node) {
                    env.mark(Marker::JoinedWhileFollowing);
                }
                self.lost_at.remove(node);
                if self.fenced.remove(node) {
                    env.mark(Marker::FencedNodeCameBack);
                }
            }
            MemberChange::Lost { holder, reason } => {
                self.mark_loss(env, workers, core, *holder, *reason)
            }
            MemberChange::Drain { .. } | MemberChange::Moved { .. } => {}
        }
    }

    fn mark_loss(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        core: &Core,
        holder: Holder,
        reason: LossReason,
    ) {
        let follows = env.pre_copy.iter().flat_map(|pre_copy| &pre_copy.layers);
        let (follows, owns) = follows.fold((false, false), |(follows, owns), f| {
            (follows || f.follower == holder, owns || f.owner == holder)
        });
        if follows {
            env.mark(Marker::FollowerLost);
        }
        if owns {
            env.mark(Marker::OwnerLostWhileFollowed);
        }
        if is_fenced_alive(workers, core, holder) {
            self.fenced.insert(holder.node);
        }
        self.lost_at.insert(holder.node, env.now);
        move_pieces(env, workers, holder.node, reason);
        let is_joining = is_joining(core);
        match reason {
            LossReason::Drained => return env.mark(Marker::Drained),
            LossReason::OpOverdue { .. } => env.mark(Marker::HungNodeLost),
            LossReason::NoProgress { .. } => env.mark(Marker::StuckNodeLost),
            LossReason::Untrusted { .. } => env.mark(Marker::Quarantined),
            LossReason::Closed
            | LossReason::Silent { .. }
            | LossReason::Superseded
            | LossReason::Removed
            | LossReason::OutOfMemory => {}
        }
        if is_joining && workers.has(holder.node) {
            env.mark(Marker::LossDuringJoin);
        }
    }

    /// L6: no checkpoint is given up for want of a piece on the disk of a worker that was lost lately and
    /// may come back. A piece is waited for so long in all, by the clock of the leader, and so is a
    /// member; half of that is looked at.
    fn check_keepers(&self, env: &mut Surroundings<'_>, workers: &dyn WorkerFacts, version: Step) {
        let now = env.now;
        let is_late = |since: VirtualTime| since.after(AWAITED_US / 2) > now;
        let Some(record) = self.referred.get(&version) else { return };
        if !env.store.unread_since(version).is_some_and(is_late) {
            return;
        }
        // A process that ran again and was not admitted is none that the leader knows of.
        let is_awaited = |node: &NodeId| {
            workers.down_since(*node).is_some_and(is_late)
                && self.lost_at.get(node).is_none_or(|lost_at| is_late(*lost_at))
        };
        let is_running = |node: &NodeId| workers.running_boot(*node).is_some();
        let awaited = named_pieces(record).find_map(|key| {
            let keepers = env.store.keepers(key)?;
            let node = *keepers.iter().find(|node| is_awaited(node))?;
            (!keepers.iter().any(is_running)).then_some((node, key.1))
        });
        if let Some((node, layer)) = awaited {
            let message = format!(
                "checkpoint {version} is given up, and w{node}, which was just lost, keeps layer {layer}"
            );
            env.fail(LifeFailure::safety(Invariant::L6, message));
        }
    }

    /// L4: no sealed version is given up for want of a layer that a living member holds, unless
    /// that member has itself answered that it does not.
    fn check_holders(
        &self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        core: &Core,
        layer: LayerId,
    ) {
        let Some((version, since)) = self.open else { return };
        if let Some(node) = workers.holder_of(core.state(), (layer, version), since) {
            let message = format!(
                "the run goes back for layer {layer} of version {version}, which w{node} holds"
            );
            env.fail(LifeFailure::safety(Invariant::L4, message));
        }
    }
}

/// Members mend the copies of pieces that a lost worker keeps. One that is gone for good has handed its own
/// over.
fn move_pieces(
    env: &mut Surroundings<'_>,
    workers: &dyn WorkerFacts,
    lost: NodeId,
    reason: LossReason,
) {
    let beside = workers.running_beside(lost);
    match reason {
        LossReason::Drained | LossReason::Untrusted { .. } | LossReason::Removed => {
            env.store.hand_over(lost, beside);
        }
        LossReason::Closed
        | LossReason::Silent { .. }
        | LossReason::OpOverdue { .. }
        | LossReason::NoProgress { .. }
        | LossReason::Superseded
        | LossReason::OutOfMemory => {
            let is_running = |node| workers.running_boot(node).is_some();
            beside.into_iter().for_each(|to| env.store.mend(lost, to, is_running));
        }
    }
}

/// A flipped bit that is copied because no node is left that has it right is beyond the promises:
/// two things went wrong within one step.
fn check_witnesses(
    env: &mut Surroundings<'_>,
    workers: &dyn WorkerFacts,
    newest: Option<&Core>,
    plan: &PlanRecord,
) {
    let is_taken_over =
        workers.flipped().into_iter().any(|(node, layer)| match &plan.sources[layer.index()] {
            LayerSource::Nodes(nodes) => {
                nodes == &[node] && has_no_witness(env, workers, newest, (node, layer))
            }
            LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
        });
    if is_taken_over {
        env.note(|| "a flipped bit is taken over, its witness is gone: enough".to_owned());
        env.mark(Marker::WitnessLost);
        env.is_excused = true;
    }
}

/// Whether the copy holder of a node's layer is gone, or was since a bit of the layer flipped.
fn has_no_witness(
    env: &Surroundings<'_>,
    workers: &dyn WorkerFacts,
    newest: Option<&Core>,
    (node, layer): (NodeId, LayerId),
) -> bool {
    env.checker.witnesses(node, layer).all(|witness| {
        let is_up = workers.running_boot(witness.node).is_some();
        let is_live = newest.is_some_and(|core| core.state().is_live(witness));
        !is_up || !is_live || env.checker.damage.is_witness_lost(node, witness.node)
    })
}

fn note_change(env: &mut Surroundings<'_>, core: &Core, index: u64, change: &StateChange) {
    env.note(|| {
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
        format!("n{} #{index} {text}", core.status().node)
    });
}

/// Whether a planned change waits for which workers have come.
fn is_joining(core: &Core) -> bool {
    let next = core.state().next_plan();
    next.is_some_and(|plan| matches!(plan.reason, PlanReason::Joined { .. }))
}

fn mark_verdict(env: &mut Surroundings<'_>, core: &Core, seal: &Seal) {
    let verdict = seal.verdict;
    let before = env.checker.verdict_before();
    match verdict {
        Verdict::Keep => {}
        Verdict::Clip { .. } => {
            env.mark(Marker::Clipped);
            if matches!(before, Some(Verdict::Skip | Verdict::Replay)) {
                env.mark(Marker::ClipAfterRollback);
            }
        }
        Verdict::Skip => env.mark(Marker::Skipped),
        Verdict::Replay => {
            env.mark(Marker::Replayed);
            if before == Some(Verdict::Replay) {
                env.mark(Marker::RolledBackTwice);
            }
        }
    }
    if is_joining(core) && verdict != Verdict::Keep {
        env.mark(Marker::RollbackDuringJoin);
    }
    if env.checker.was_quorum_down(seal.turn) {
        env.mark(Marker::QuorumLostWithinAttempt);
    }
}

/// Whether the very process runs that was declared lost.
fn is_fenced_alive(workers: &dyn WorkerFacts, core: &Core, holder: Holder) -> bool {
    let member = core.state().members().get(&holder.node);
    let boot = workers.running_boot(holder.node);
    member
        .zip(boot)
        .is_some_and(|(member, boot)| (boot..boot + BOOTS_PER_START).contains(&member.boot))
}

/// Whether everybody holds the layers that the plan needs of it when the plan begins.
fn mark_ahead(env: &mut Surroundings<'_>, plan: &PlanRecord) {
    let Some(pre_copy) = env.pre_copy.take() else { return };
    let is_named = |f: &FollowedLayer| match &plan.sources[f.layer.index()] {
        LayerSource::Nodes(nodes) => nodes.contains(&f.follower.node),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    if pre_copy.generation.next() == plan.generation && pre_copy.layers.iter().all(is_named) {
        env.mark(Marker::CopiedAhead);
    }
}

/// Whether a worker of `plan` has a place that another shared before, and nobody else has a layer that it
/// had not.
fn gives_a_place(plan: &PlanRecord, before: &PlanRecord) -> bool {
    let [own, other] = [plan, before].map(|plan| &plan.program.placement);
    let keeps_layers = |(stage, holder): (StageIndex, &Holder)| {
        let known = before.stage_of(*holder).map(|stage| needed_layers(before, stage));
        known.is_none_or(|known| needed_layers(plan, stage).is_subset(&known))
    };
    other.is_table()
        && own.stage_count() > other.stage_count()
        && plan.has_places_of(before)
        && plan.stage_indices().zip(&plan.stages).all(keeps_layers)
}

/// Whether a layer comes from members alone that were declared lost under the plan before, and came
/// back with it.
fn mark_kept_layers(env: &mut Surroundings<'_>, core: &Core, plan: &PlanRecord) {
    let Some(before) = env.checker.plan_before(plan) else { return };
    let has_returned = |node: &NodeId| {
        let mut holders = before.stages.iter().filter(|holder| holder.node == *node);
        holders.any(|holder| core.state().holder_of(*node).is_some_and(|now| now != *holder))
    };
    let is_kept = |source: &LayerSource| match source {
        LayerSource::Nodes(nodes) => nodes.iter().all(has_returned),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    if plan.sources.iter().any(is_kept) {
        env.mark(Marker::KeptLayersUsed);
    }
}

fn mark_plan(env: &mut Surroundings<'_>, plan: &PlanRecord) {
    match plan.reason {
        PlanReason::WindowSwitched { .. } => env.mark(Marker::WindowSwitched),
        PlanReason::Stalled { .. } => env.mark(Marker::Stalled),
        PlanReason::Contradiction { .. } => env.mark(Marker::SumContradicted),
        PlanReason::First
        | PlanReason::Lost { .. }
        | PlanReason::Joined { .. }
        | PlanReason::Draining { .. }
        | PlanReason::LoadFailed { .. }
        | PlanReason::Rewound
        | PlanReason::Drifted { .. }
        | PlanReason::Uneven => {}
    }
    let Some(before) = env.checker.plan_before(plan) else { return };
    let old = before.stages.len();
    let new = plan.stages.len();
    if new < old {
        env.mark(Marker::FewerStages);
    }
    if new > old {
        env.mark(Marker::MoreStages);
    }
    if new > STAGES_FEW {
        env.mark(Marker::ManyStages);
    }
    let is_kept = before.promise == Promise::Kept && !env.checker.was_loading(before.generation);
    let lost = before.stages.iter().filter(|holder| !plan.stages.contains(holder)).count();
    let is_from_nodes = |source: &LayerSource| match source {
        LayerSource::Nodes(_) => true,
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    let keeps_two = before.copies.iter().all(|copies| copies.len() == 2);
    if is_kept && keeps_two && lost == 2 && plan.sources.iter().all(is_from_nodes) {
        env.mark(Marker::PairSurvived);
    }
    let has_columns = before.program.placement.column_count() > 1;
    if has_columns && lost > 0 && plan.sources.iter().all(is_from_nodes) {
        env.mark(Marker::PipelineLost);
    }
    if plan.reroutes(&before) {
        env.mark(Marker::Rerouted);
        if matches!(plan.reason, PlanReason::Draining { .. }) {
            env.mark(Marker::DrainRerouted);
        }
        let columns = plan.program.placement.column_count();
        if columns > before.program.placement.column_count() {
            env.mark(Marker::PlaceSplit);
        }
        if plan.program.placement.shards().count() > 1 {
            env.mark(Marker::ShardRerouted);
        }
    }
    if gives_a_place(plan, &before) {
        env.mark(Marker::PlaceGiven);
    }
    if before.program.placement.is_table() && !plan.program.placement.is_table() {
        env.mark(Marker::Unshared);
    }
    if plan.stages.iter().all(|holder| !before.stages.contains(holder)) {
        env.mark(Marker::AllStagesMoved);
    }
    if env.checker.was_loading(before.generation) {
        env.mark(Marker::ReplannedWhileLoading);
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
        env.mark(Marker::CopyTookOver);
    }
}
