//! Briefings: the agreed state, turned into commands for the runtime.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId, Step};

use super::{
    KeptLayers, LoadCommand, Membership, PlanPart, SessionOutput, SessionStatus,
    UnconfirmedMessages, WorkerCommand, WorkerSession,
};
use crate::member::{AdmissionRefusal, Holder};
use crate::message::{Briefing, Envelope, Message};
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;

/// Why a message to a worker was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BriefingRefusal {
    /// It is of another cluster.
    #[error("of cluster {found}, expected {expected}")]
    OtherCluster {
        /// The cluster that this worker belongs to.
        expected: ClusterId,
        /// The cluster that the message belongs to.
        found: ClusterId,
    },
    /// It does not come from a controller.
    #[error("node {from} is no controller")]
    NotAController {
        /// The node that sent the message.
        from: NodeId,
    },
    /// Controllers send workers briefings, `Spent` and `NotAdmitted` only; this is another kind of
    /// message.
    #[error("not a message for a worker")]
    NotForWorkers,
    /// A later briefing was applied already.
    #[error("a briefing at {found}, known is {known}")]
    Old {
        /// Index of the last briefing applied.
        known: u64,
        /// Index of the refused briefing.
        found: u64,
    },
    /// It is about another life of the node, or none.
    #[error("a briefing for another node or another life of this one")]
    NotMine,
    /// It names a plan that this worker does not know and that is not in it.
    #[error("generation {found} is not known here")]
    UnknownPlan {
        /// Generation of the plan that the briefing names.
        found: Generation,
    },
}

impl WorkerSession {
    pub(super) fn handle_message(
        &mut self,
        from: NodeId,
        envelope: Envelope,
    ) -> Result<(), BriefingRefusal> {
        let expected = self.setup.cluster;
        let found = envelope.cluster;
        if expected != found {
            return Err(BriefingRefusal::OtherCluster { expected, found });
        }
        let is_known = self.setup.controllers.contains(&from);
        if !is_known && !self.contacts.controllers().any(|node| node == from) {
            return Err(BriefingRefusal::NotAController { from });
        }
        match envelope.message {
            Message::Briefing(briefing) => self.handle_briefing(from, *briefing),
            Message::Spent { boot } => self.handle_spent(boot),
            Message::NotAdmitted { boot, cause } => self.handle_not_admitted(boot, cause),
            Message::Raft(_)
            | Message::Join { .. }
            | Message::Beat { .. }
            | Message::Report { .. }
            | Message::Held { .. }
            | Message::Inventory { .. }
            | Message::Ready(_)
            | Message::LoadFailed { .. }
            | Message::Saved { .. }
            | Message::Following { .. }
            | Message::Drain { .. }
            | Message::Leave { .. }
            | Message::Moved { .. } => Err(BriefingRefusal::NotForWorkers),
        }
    }

    /// The request cannot be granted: it was, and that life is over before it began.
    fn handle_spent(&mut self, boot: u64) -> Result<(), BriefingRefusal> {
        match &self.status {
            SessionStatus::Outside if boot >= self.setup.boot => {
                self.setup.boot = boot + 1;
                Ok(())
            }
            SessionStatus::Outside | SessionStatus::Member(_) => Err(BriefingRefusal::NotMine),
        }
    }

    /// No request of this process will be granted.
    fn handle_not_admitted(
        &mut self,
        boot: u64,
        cause: AdmissionRefusal,
    ) -> Result<(), BriefingRefusal> {
        match &self.status {
            SessionStatus::Outside if boot == self.setup.boot => {
                self.outbox.push_back(SessionOutput::End(cause));
                Ok(())
            }
            SessionStatus::Outside | SessionStatus::Member(_) => Err(BriefingRefusal::NotMine),
        }
    }

    fn handle_briefing(&mut self, from: NodeId, briefing: Briefing) -> Result<(), BriefingRefusal> {
        let node = self.setup.node;
        let mine = briefing.you.filter(|(boot, _)| *boot == self.setup.boot);
        let mine = mine.map(|(_, incarnation)| Holder { node, incarnation });
        let known = match &self.status {
            SessionStatus::Outside => 0,
            SessionStatus::Member(member) => member.briefing_index,
        };
        if briefing.index < known {
            return Err(BriefingRefusal::Old { known, found: briefing.index });
        }
        match (&self.status, mine) {
            (SessionStatus::Outside, None) => return Err(BriefingRefusal::NotMine),
            (SessionStatus::Outside, Some(holder)) => {
                self.check_plan(Generation(0), &briefing)?;
                self.join_membership(holder, briefing.rewinds);
            }
            (SessionStatus::Member(member), Some(holder)) if member.holder == holder => {
                self.check_plan(member.generation, &briefing)?;
            }
            (SessionStatus::Member(_), _) => {
                // The last step may be sealed by the report of this life: it is kept as sealed.
                self.apply_seal(&briefing);
                self.leave_membership();
                return Ok(());
            }
        }
        self.leader = briefing.leader;
        if let Some(contacts) = briefing.contacts.as_ref().filter(|c| c.index > self.contacts.index)
        {
            self.contacts = Arc::clone(contacts.value());
        }
        if let Some(spec) = &briefing.spec {
            self.spec = Some(Arc::clone(spec.value()));
        }
        self.apply_briefing(&briefing);
        self.update_pre_copy(from, &briefing);
        Ok(())
    }

    /// Checks that a plan later than the one known, and its configuration, are in the briefing.
    fn check_plan(&self, known: Generation, briefing: &Briefing) -> Result<(), BriefingRefusal> {
        let found = briefing.generation;
        let has_spec = briefing.spec.is_some() || self.spec.is_some();
        if found <= known || (briefing.plan.is_some() && has_spec) {
            Ok(())
        } else {
            Err(BriefingRefusal::UnknownPlan { found })
        }
    }

    /// A life begins, with the layers that the one before kept. Those from before a rewind are given
    /// up by the first briefing, as in one life.
    fn join_membership(&mut self, holder: Holder, rewinds: u64) {
        let generation = Generation(0);
        let kept = self.kept.take();
        let left = |kept: KeptLayers| PlanPart::Left { held_under: kept.held_under };
        let member = Membership {
            holder,
            briefing_index: 0,
            generation,
            rewinds: kept.map_or(rewinds, |kept| kept.rewinds),
            part: kept.map_or(PlanPart::Idle, left),
            applied_seal: None,
            inventory_due: None,
            pre_copy: None,
            last_save: None,
            unconfirmed: UnconfirmedMessages::default(),
        };
        self.status = SessionStatus::Member(Box::new(member));
        if self.is_draining {
            self.send_to_controllers(&Message::Drain { holder });
        }
    }

    /// This life is over. The layers that it held are sealed all the same, and perhaps nobody else
    /// holds them: the next life has them.
    fn leave_membership(&mut self) {
        let SessionStatus::Member(member) = &self.status else { return };
        let held_under = match &member.part {
            PlanPart::Idle => None,
            PlanPart::Left { held_under } => Some(*held_under),
            PlanPart::Loading { plan } | PlanPart::Running { plan } => Some(plan.generation),
        };
        let rewinds = member.rewinds;
        self.kept = held_under.map(|held_under| KeptLayers { held_under, rewinds });
        self.status = SessionStatus::Outside;
        self.setup.boot += 1;
        self.push_command(WorkerCommand::EndLife);
    }

    /// Controllers of another cluster count from now on: the layers held here are not its.
    pub(super) fn leave_cluster(&mut self) {
        let is_member = self.holder().is_some();
        self.status = SessionStatus::Outside;
        self.setup.boot += u64::from(is_member);
        if self.kept.take().is_some() || is_member {
            self.push_command(WorkerCommand::Forget);
        }
    }

    fn apply_briefing(&mut self, briefing: &Briefing) {
        self.rewind(briefing);
        self.apply_seal(briefing);
        self.change_plan(briefing);
        let SessionStatus::Member(member) = &mut self.status else { return };
        member.briefing_index = briefing.index;
        member.unconfirmed.forget_before(briefing.open, &briefing.pending);
        if briefing.is_running {
            member.unconfirmed.ready = None;
            match &member.part {
                PlanPart::Loading { plan } if plan.generation == briefing.generation => {
                    member.part = PlanPart::Running { plan: plan.clone() };
                    self.push_command(WorkerCommand::Run { generation: briefing.generation });
                }
                PlanPart::Left { held_under } if briefing.generation > *held_under => {
                    member.part = PlanPart::Idle;
                    self.push_command(WorkerCommand::Release);
                }
                PlanPart::Idle
                | PlanPart::Left { .. }
                | PlanPart::Loading { .. }
                | PlanPart::Running { .. } => {}
            }
        }
        self.command_save(briefing);
        if briefing.requests_inventory {
            self.take_inventory(briefing.index);
        }
    }

    /// Commands a version to be written, once, if it is to become a checkpoint although the
    /// configuration does not make it one. The runtime knows the versions of the configuration, and
    /// a runtime that loads gets the version with the plan. It is the open version, or one that
    /// follows: a worker that runs writes that as soon as it is sealed.
    fn command_save(&mut self, briefing: &Briefing) {
        let SessionStatus::Member(member) = &mut self.status else { return };
        let open = briefing.open.step;
        let is_configured =
            |version| self.spec.as_ref().is_none_or(|spec| spec.checkpoints(version));
        let (generation, is_running) = match &member.part {
            PlanPart::Loading { plan } => (plan.generation, false),
            PlanPart::Running { plan } => (plan.generation, true),
            PlanPart::Idle | PlanPart::Left { .. } => return,
        };
        let is_its = |version: &Step| *version == open || (is_running && *version > open);
        let pending = briefing.pending.iter().copied();
        let mut requested = pending.filter(|version| is_its(version) && !is_configured(*version));
        let Some(version) = requested.next() else { return };
        let save = Some((generation, version));
        if generation == briefing.generation && member.last_save != save {
            member.last_save = save;
            self.push_command(WorkerCommand::Save { generation, version });
        }
    }

    /// Gives up the layers that were held before the rewind, however long ago that was.
    fn rewind(&mut self, briefing: &Briefing) {
        let SessionStatus::Member(member) = &mut self.status else { return };
        if member.rewinds == briefing.rewinds {
            return;
        }
        member.rewinds = briefing.rewinds;
        member.part = PlanPart::Idle;
        member.unconfirmed.inventory = None;
        member.end_pre_copy();
        self.push_command(WorkerCommand::Rewind);
    }

    /// Commands an inventory, unless one is being made or was made since: that one is resent until
    /// it is known, and each beat until then is answered with the same request.
    fn take_inventory(&mut self, index: u64) {
        let SessionStatus::Member(member) = &mut self.status else { return };
        let is_taken =
            member.unconfirmed.inventory.as_ref().is_some_and(|(taken, _)| *taken >= index);
        if member.inventory_due.is_none() && !is_taken {
            member.inventory_due = Some(index);
            if member.end_pre_copy() {
                member.part.keep_followed(member.generation);
            }
            let holder = member.holder;
            self.push_command(WorkerCommand::TakeInventory { holder, index });
        }
    }

    /// Commands the runtime to apply the last seal, once, if it is of the plan that runs or is
    /// followed here.
    fn apply_seal(&mut self, briefing: &Briefing) {
        let SessionStatus::Member(member) = &mut self.status else { return };
        let generation = match &member.part {
            PlanPart::Running { plan } => Some(plan.generation),
            PlanPart::Idle | PlanPart::Left { .. } | PlanPart::Loading { .. } => {
                member.pre_copy.as_ref().map(|pre_copy| pre_copy.generation)
            }
        };
        let (Some(generation), Some(seal)) = (generation, briefing.seal) else { return };
        let is_new = member.applied_seal.is_none_or(|applied| applied < seal.turn);
        if seal.turn.generation == generation && (is_new || mutant::is(Mutant::M6AppliedTwice)) {
            member.applied_seal = Some(seal.turn);
            self.push_command(WorkerCommand::ApplySeal(seal));
        }
    }

    /// Applies the worker's part in a new plan, if there is a new plan.
    fn change_plan(&mut self, briefing: &Briefing) {
        let found = briefing.generation;
        let SessionStatus::Member(member) = &mut self.status else { return };
        let plan = briefing.plan.as_ref().map(|plan| Arc::clone(plan.value()));
        let (Some(plan), Some(spec)) = (plan, self.spec.clone()) else { return };
        if found <= member.generation {
            return;
        }
        let held_under = match &member.part {
            PlanPart::Loading { plan } | PlanPart::Running { plan } => Some(plan.generation),
            PlanPart::Idle | PlanPart::Left { .. } => None,
        };
        let had_stage = held_under.is_some();
        member.generation = found;
        self.op_ticks_max = Some(plan.op_ticks_max);
        member.unconfirmed.forget_plan();
        let holder = member.holder;
        let had_pre_copy = member.end_pre_copy();
        member.inventory_due = None;
        // A plan that was closed before this worker received it has nothing to load any more.
        let stage = plan.stage_of(member.holder).filter(|_| plan.from_step == briefing.open.step);
        match (stage, held_under) {
            (Some(_), _) => member.part = PlanPart::Loading { plan: plan.clone() },
            (None, Some(held_under)) => member.part = PlanPart::Left { held_under },
            (None, None) => {}
        }
        if stage.is_some() && briefing.pending.contains(&briefing.open.step) {
            member.last_save = Some((found, briefing.open.step));
        }
        if had_stage {
            self.push_command(WorkerCommand::Stop);
        }
        match stage {
            // The layers that were followed are loaded.
            Some(stage) => self.push_command(load_command(plan, stage, spec, briefing)),
            None if had_pre_copy => {
                self.push_command(WorkerCommand::PreCopy { holder, pre_copy: None })
            }
            None => {}
        }
    }

    /// Applies the plan of the layers to copy ahead, if it names this worker. Only the leader can
    /// end it: other controllers do not know the leader's plans.
    fn update_pre_copy(&mut self, from: NodeId, briefing: &Briefing) {
        let SessionStatus::Member(member) = &mut self.status else { return };
        let holder = member.holder;
        let is_own =
            |plan: &&Arc<PreCopyPlan>| plan.generation == member.generation && plan.names(holder);
        let pre_copy = briefing.pre_copy.as_ref().filter(is_own).cloned();
        let is_authoritative = pre_copy.is_some() || briefing.leader == Some(from);
        if member.pre_copy == pre_copy || !is_authoritative || briefing.requests_inventory {
            return;
        }
        member.pre_copy.clone_from(&pre_copy);
        member.unconfirmed.following = None;
        self.push_command(WorkerCommand::PreCopy { holder, pre_copy });
    }
}

impl Membership {
    /// Forgets the layers that were copied ahead. Yields whether anything was.
    fn end_pre_copy(&mut self) -> bool {
        self.unconfirmed.following = None;
        self.pre_copy.take().is_some()
    }
}

fn load_command(
    plan: Arc<PlanRecord>,
    stage: zbelastic_types::StageIndex,
    spec: Arc<crate::job::JobSpec>,
    briefing: &Briefing,
) -> WorkerCommand {
    let turn = briefing.open;
    let updates = briefing.updates;
    let is_pending = briefing.pending.contains(&turn.step);
    WorkerCommand::Load(Box::new(LoadCommand { plan, stage, spec, turn, updates, is_pending }))
}

impl UnconfirmedMessages {
    /// Forgets messages about the plan before.
    fn forget_plan(&mut self) {
        let Self { report, held, ready, load_failed, saved: _, inventory, following: _ } = self;
        (*report, *ready, *load_failed, *inventory) = (None, None, None, None);
        held.clear();
    }
}
