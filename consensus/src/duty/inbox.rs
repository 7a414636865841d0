//! The reports of workers to a leader.

use std::collections::BTreeSet;
use std::ops::Range;

use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, Step, TensorIndex};

use super::changes::is_pending;
use super::refusal::InputRefusal;
use super::sealing::OpenTurnReports;
use super::{Duties, PlanMeasurement, PlanSolution, PlanUnsolvable};
use crate::checkpoint::LayerDigest;
use crate::entry::ReadyRecord;
use crate::member::{Holder, LossReason, MemberChange};
use crate::message::{HeldLayer, HeldUpdate, LoadFault, WorkerActivity};
use crate::mutant::{self, Mutant};
use crate::plan::{LayerSource, PlanReason};
use crate::state::{PlanPhase, State};
use crate::validation::{GradientReport, LayerFingerprint, TensorSum, Turn};

/// Versions of one layer that a worker may hold: one each at its stage, as a copy and kept from a
/// former plan, and one more in transfer.
pub const HELD_VERSIONS_MAX: usize = 4;

impl Duties {
    /// A node requests to be admitted, goes, or is reached elsewhere.
    ///
    /// # Errors
    /// If the change does not fit the state.
    pub fn handle_change(
        &mut self,
        state: &State,
        change: MemberChange,
    ) -> Result<(), InputRefusal> {
        let (node, holder) = match &change {
            MemberChange::Admit { node, boot, role, contact, .. } => {
                contact.check()?;
                if !state.membership().authorizes(*node, *role, contact) {
                    return Err(InputRefusal::NoCredential { node: *node });
                }
                if state.members().get(node).is_some_and(|member| member.was_drained_in(*boot)) {
                    return Err(InputRefusal::NotAdmitted { node: *node });
                }
                (*node, None)
            }
            MemberChange::Lost { holder, .. } | MemberChange::Drain { holder } => {
                (holder.node, Some(*holder))
            }
            MemberChange::Moved { holder, contact } => {
                contact.check()?;
                (holder.node, Some(*holder))
            }
        };
        if !is_pending(state, &change) {
            return Err(match holder {
                Some(holder) => InputRefusal::Fenced { holder },
                None => InputRefusal::NotAdmitted { node },
            });
        }
        if self.changes.is_noted(&change) {
            return Ok(());
        }
        if self.changes.is_full() {
            return Err(InputRefusal::TooManyChanges);
        }
        self.changes.note(change);
        Ok(())
    }

    /// The connection to a node closed.
    pub fn handle_closed(&mut self, state: &State, node: NodeId) {
        self.watch.absent.note_closed(node, self.watch.now);
        if let Some((holder, _)) = state.live_workers().find(|(holder, _)| holder.node == node) {
            self.changes.note(MemberChange::Lost { holder, reason: LossReason::Closed });
        }
    }

    /// A worker sent a heartbeat.
    ///
    /// # Errors
    /// If it is fenced.
    pub fn handle_beat(
        &mut self,
        state: &State,
        holder: Holder,
        pulse: WorkerActivity,
    ) -> Result<(), InputRefusal> {
        check_live(state, holder)?;
        self.watch.record_heartbeat(holder, pulse);
        Ok(())
    }

    /// The solver answered a request. Yields whether the answer is still wanted.
    pub fn handle_solution(
        &mut self,
        number: u64,
        solution: Result<PlanSolution, PlanUnsolvable>,
    ) -> bool {
        self.planning.handle_solution(number, solution)
    }

    /// The program that runs this leader measured the plan in force.
    ///
    /// # Errors
    /// If it is another plan that was measured.
    pub fn handle_measured(
        &mut self,
        state: &State,
        measured: PlanMeasurement,
    ) -> Result<(), InputRefusal> {
        self.planning.measured.handle(state, measured)
    }

    /// A stage reported its sums of the open turn.
    ///
    /// # Errors
    /// If they are not about the open turn, not its stage's, or contradict others.
    pub fn handle_report(
        &mut self,
        state: &State,
        holder: Holder,
        report: &GradientReport,
        attested: Vec<LayerFingerprint>,
    ) -> Result<(), InputRefusal> {
        if !mutant::is(Mutant::M12FencedAccepted) {
            check_live(state, holder)?;
            check_stage(state, holder, report.stage)?;
        }
        check_turn(state, report.turn)?;
        check_sums(state, report.stage, &report.sums)?;
        check_loss(state, report)?;
        let sealing = self.reports_of_open_turn(state)?;
        Ok(sealing.handle_report(state, report, attested)?)
    }

    /// A worker reported that it holds the update of a stage as a copy.
    ///
    /// # Errors
    /// If it is not about the open turn, or the sender does not keep that copy.
    pub fn handle_held(
        &mut self,
        state: &State,
        holder: Holder,
        update: HeldUpdate,
    ) -> Result<(), InputRefusal> {
        check_live(state, holder)?;
        check_turn(state, update.turn)?;
        let plan = state.plan().ok_or(InputRefusal::NotRequested)?;
        let is_known = update.of.index() < plan.record.stages.len();
        if !is_known || !plan.record.copy_holders(update.of).any(|keeper| keeper == holder) {
            return Err(InputRefusal::NotItsStage { holder, stage: update.of });
        }
        check_sums(state, update.of, &update.sums)?;
        self.reports_of_open_turn(state)?.handle_held(state, holder, update);
        Ok(())
    }

    fn reports_of_open_turn(
        &mut self,
        state: &State,
    ) -> Result<&mut OpenTurnReports, InputRefusal> {
        let job = state.job().ok_or(InputRefusal::NotRequested)?;
        let turn = state.open_turn();
        if self.open_turn.as_ref().is_none_or(|sealing| sealing.turn() != turn) {
            self.open_turn = Some(OpenTurnReports::new(state, &job.spec));
        }
        Ok(self.open_turn.as_mut().expect("made above"))
    }

    /// A worker reported which layers it holds.
    ///
    /// # Errors
    /// If no inventory of this worker was requested, it names too many layers, or one is unknown.
    pub fn handle_inventory(
        &mut self,
        state: &State,
        holder: Holder,
        index: u64,
        layers: Vec<HeldLayer>,
    ) -> Result<(), InputRefusal> {
        check_live(state, holder)?;
        let found = layers.len();
        let held_max = layer_count(state) as usize * HELD_VERSIONS_MAX;
        if found > held_max {
            return Err(InputRefusal::TooManyHeld { found, held_max });
        }
        check_layers(state, layers.iter().map(|held| held.layer))?;
        if self.planning.handle_inventory(holder, index, layers) {
            Ok(())
        } else {
            Err(InputRefusal::NotRequested)
        }
    }

    /// A worker reported which of the layers that it will need it follows.
    ///
    /// # Errors
    /// If it is about another plan, a layer is unknown, or it was not requested.
    pub fn handle_following(
        &mut self,
        state: &State,
        holder: Holder,
        found: Generation,
        layers: Vec<LayerId>,
    ) -> Result<(), InputRefusal> {
        check_live(state, holder)?;
        let expected = state.generation();
        let in_force = state.plan().map(|plan| plan.record.generation);
        if in_force != Some(found) {
            return Err(InputRefusal::OtherGeneration { expected, found });
        }
        let found = layers.len();
        let layer_count = layer_count(state);
        if found > layer_count as usize {
            return Err(InputRefusal::TooManyLayers { found, layer_count });
        }
        check_layers(state, layers.iter().copied())?;
        // Workers repeat it until the plan begins, and it counts until that is proposed.
        if self.planning.handle_following(holder, &layers) || state.next_plan().is_some() {
            Ok(())
        } else {
            Err(InputRefusal::NotRequested)
        }
    }

    /// A holder reported that it has loaded its layers.
    ///
    /// # Errors
    /// If it is about another plan, it has no part in it, or a layer is unknown.
    pub fn handle_ready(&mut self, state: &State, ready: ReadyRecord) -> Result<(), InputRefusal> {
        let stage = check_loading(state, ready.holder, ready.generation)?;
        check_record(state, &ready.layers)?;
        check_record(state, &ready.copies)?;
        self.loads.note_ready(stage, ready);
        Ok(())
    }

    /// A holder reported that a layer cannot be had as the plan says, or does not come. It repeats
    /// that until there is another plan or the layer is there.
    ///
    /// # Errors
    /// If it is about another plan.
    pub fn handle_load_failed(
        &mut self,
        state: &State,
        holder: Holder,
        generation: Generation,
        (layer, cause): (LayerId, LoadFault),
    ) -> Result<(), InputRefusal> {
        check_loading(state, holder, generation)?;
        check_layers(state, std::iter::once(layer))?;
        let plan = state.plan().expect("it loads");
        match (cause, &plan.record.sources[layer.index()]) {
            (LoadFault::Memory, _) => {
                let reason = LossReason::OutOfMemory;
                self.changes.note(MemberChange::Lost { holder, reason });
            }
            // R11: whoever has the piece may be about to come back. The report is repeated meanwhile,
            // and a member that came leads to a plan that reads again.
            (LoadFault::Source, LayerSource::Checkpoint { version, .. }) => {
                let missed_ticks = self.planning.unread.note_missed(*version, self.watch.now);
                if !self.watch.have_members_changed() {
                    let workers = plan.record.stages.iter().map(|worker| worker.node);
                    let unread = &mut self.planning.unread;
                    let is_only = unread.versions_left(state).all(|other| other == *version);
                    if !self.watch.awaits_disks(missed_ticks, is_only) {
                        unread.note_failed(*version, generation);
                    } else if !is_only || !self.watch.reads_again(workers) {
                        self.loads.note_failed(holder);
                        return Ok(());
                    }
                }
            }
            // R10: a layer that others hold is given up when neither they nor the worker that needs
            // it get on.
            (LoadFault::Source, LayerSource::Nodes(nodes)) => {
                let concerned = nodes.iter().copied().chain([holder.node]);
                let stand = self.watch.are_stalled(concerned);
                self.loads.note_failed(holder);
                if !stand {
                    return Ok(());
                }
            }
            (LoadFault::Source, LayerSource::Initial) => {}
        }
        self.planning.faults.note_trouble(generation, PlanReason::LoadFailed { layer });
        Ok(())
    }

    /// A worker reported layers of a checkpoint that are durable.
    ///
    /// # Errors
    /// If no checkpoint of that version is under way, or a layer is unknown.
    pub fn handle_saved(
        &mut self,
        state: &State,
        holder: Holder,
        (version, generation): (Step, Generation),
        (layers, busy_milliticks): (Vec<LayerDigest>, u32),
    ) -> Result<(), InputRefusal> {
        check_live(state, holder)?;
        check_record(state, &layers)?;
        let pending = state.pending().iter().find(|pending| pending.version == version);
        let expected = pending.ok_or(InputRefusal::NotRequested)?.generation();
        if generation != expected {
            return Err(InputRefusal::OtherGeneration { expected, found: generation });
        }
        self.checkpoint_timer.note_saved(version, busy_milliticks);
        self.saved.note(version, holder, layers);
        Ok(())
    }
}

fn check_live(state: &State, holder: Holder) -> Result<(), InputRefusal> {
    if state.is_live(holder) { Ok(()) } else { Err(InputRefusal::Fenced { holder }) }
}

fn check_turn(state: &State, found: Turn) -> Result<(), InputRefusal> {
    let expected = state.open_turn();
    if found == expected { Ok(()) } else { Err(InputRefusal::OtherTurn { expected, found }) }
}

fn check_stage(state: &State, holder: Holder, stage: StageIndex) -> Result<(), InputRefusal> {
    let found = state.plan().and_then(|plan| plan.record.stage_of(holder));
    if found == Some(stage) { Ok(()) } else { Err(InputRefusal::NotItsStage { holder, stage }) }
}

/// One sum for each tensor of the stage, each of which some gradient may have.
fn check_sums(state: &State, stage: StageIndex, sums: &[TensorSum]) -> Result<(), InputRefusal> {
    let (Some(plan), Some(job)) = (state.plan(), state.job()) else {
        return Err(InputRefusal::NotRequested);
    };
    if stage.index() >= plan.record.stages.len() {
        return Err(InputRefusal::NotItsTensor { stage, tensor: TensorIndex(0) });
    }
    let layers: BTreeSet<LayerId> = plan.record.layers_of(stage).collect();
    let tensors = job.spec.tensors_of(&layers);
    let mut named = BTreeSet::new();
    for sum in sums {
        let tensor = sum.tensor;
        if !tensors.iter().any(|of| of.contains(&tensor.0)) {
            return Err(InputRefusal::NotItsTensor { stage, tensor });
        }
        if !named.insert(tensor) {
            return Err(InputRefusal::TensorTwice { tensor });
        }
        if !sum.may_be() {
            let square_sum = sum.square_sum;
            let nonfinite = sum.nonfinite;
            return Err(InputRefusal::BadSum { tensor, square_sum, nonfinite });
        }
    }
    let expected = tensors.iter().map(Range::len).sum();
    let found = sums.len();
    if found == expected {
        Ok(())
    } else {
        Err(InputRefusal::MissingTensors { stage, expected, found })
    }
}

/// The loss comes from the stage that holds the head, and from no other.
fn check_loss(state: &State, report: &GradientReport) -> Result<(), InputRefusal> {
    let placement = &state.plan().ok_or(InputRefusal::NotRequested)?.record.program.placement;
    let head = placement.stage_of(placement.last_chunk()).expect("every chunk has a stage");
    let stage = report.stage;
    match report.loss_sum {
        Some(_) if stage != head => Err(InputRefusal::NotItsLoss { expected: head, found: stage }),
        None if stage == head => Err(InputRefusal::MissingLoss { stage }),
        Some(_) | None => Ok(()),
    }
}

fn layer_count(state: &State) -> u32 {
    state.job().map_or(0, |job| job.spec.layer_count())
}

/// The record to propose fits into an entry, and does not contradict itself.
fn check_record(state: &State, layers: &[LayerDigest]) -> Result<(), InputRefusal> {
    let layer_count = layer_count(state);
    let found = layers.len();
    if found > layer_count as usize {
        return Err(InputRefusal::TooManyLayers { found, layer_count });
    }
    let mut named = BTreeSet::new();
    if let Some((layer, _)) = layers.iter().find(|(layer, _)| !named.insert(*layer)) {
        return Err(InputRefusal::LayerTwice { layer: *layer });
    }
    check_layers(state, layers.iter().map(|(layer, _)| *layer))
}

fn check_layers(
    state: &State,
    mut layers: impl Iterator<Item = LayerId>,
) -> Result<(), InputRefusal> {
    let layer_count = layer_count(state);
    match layers.find(|layer| layer.0 >= layer_count) {
        Some(layer) => Err(InputRefusal::UnknownLayer { layer, layer_count }),
        None => Ok(()),
    }
}

fn check_loading(
    state: &State,
    holder: Holder,
    found: Generation,
) -> Result<StageIndex, InputRefusal> {
    check_live(state, holder)?;
    let expected = state.generation();
    if found != expected {
        return Err(InputRefusal::OtherGeneration { expected, found });
    }
    let plan = state.plan().ok_or(InputRefusal::NotRequested)?;
    let stage = plan.record.stage_of(holder).ok_or(InputRefusal::NotRequested)?;
    match plan.phase {
        PlanPhase::Loading(_) => Ok(stage),
        PlanPhase::Running | PlanPhase::Closed => Err(InputRefusal::NotRequested),
    }
}
