//! Briefings: what controllers send to workers.

use std::sync::Arc;

use zbelastic_types::{Generation, NodeId};

use super::Core;
use crate::access::AccessOutcome;
use crate::job::JobSpec;
use crate::member::{Holder, Role};
use crate::message::{Briefing, Message};
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;
use crate::pre_encoded::PreEncoded;
use crate::state::{PlanPhase, StateChange};
use crate::validation::Seal;

/// The parts that a briefing leaves out, because its receiver has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BriefingOmissions {
    /// Whether it has the plan in force.
    plan: bool,
    /// Whether it has the members' contacts.
    contacts: bool,
}

impl BriefingOmissions {
    const ALL: Self = Self { plan: true, contacts: true };
    const PLAN: Self = Self { plan: true, contacts: false };
    const CONTACTS: Self = Self { plan: false, contacts: true };
    const NOTHING: Self = Self { plan: false, contacts: false };
}

impl Core {
    /// Sends workers a briefing after an entry that concerns them, if this node leads. Other
    /// controllers only answer heartbeats and requests to be admitted.
    pub(super) fn brief_on_change(&mut self, index: u64, change: &StateChange) {
        let (is_relevant, omissions) = match change {
            StateChange::Members(_)
            | StateChange::Access(
                AccessOutcome::Revoked { .. } | AccessOutcome::Authority { .. },
            ) => (true, BriefingOmissions::PLAN),
            // A worker that saved layers of a checkpoint repeats it until a briefing shows that the
            // checkpoint is there.
            StateChange::Resumed(_)
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Sealed { adopted: None, .. } => (true, BriefingOmissions::ALL),
            StateChange::Adopted(_) | StateChange::Sealed { adopted: Some(_), .. } => {
                (true, BriefingOmissions::CONTACTS)
            }
            StateChange::Planned(_)
            | StateChange::Format(_)
            | StateChange::Ready(_)
            | StateChange::Durable { .. }
            | StateChange::Access(
                AccessOutcome::TokenMade { .. }
                | AccessOutcome::TokenRevoked { .. }
                | AccessOutcome::LetIn { .. }
                | AccessOutcome::Renewed { .. }
                | AccessOutcome::Forgotten { .. },
            ) => (false, BriefingOmissions::ALL),
        };
        if !is_relevant {
            return;
        }
        self.briefing_due_index = index;
        if self.duties.is_some() {
            self.brief_workers(omissions);
        }
    }

    /// Sends all workers a briefing with the plan and the contacts.
    pub(super) fn brief_all(&mut self) {
        self.brief_workers(BriefingOmissions::NOTHING);
    }

    /// Sends all workers a briefing without the plan and the contacts. A worker that lacks them
    /// gets them with the answer to its next heartbeat.
    pub(super) fn brief_of_changes(&mut self) {
        self.brief_workers(BriefingOmissions::ALL);
    }

    fn brief_workers(&mut self, omissions: BriefingOmissions) {
        let workers: Vec<_> = self.state.live_workers().map(|(holder, _)| holder.node).collect();
        for node in workers {
            self.brief_node(node, omissions);
        }
    }

    fn brief_node(&mut self, node: NodeId, omissions: BriefingOmissions) {
        let briefing = self.briefing(node, omissions);
        self.send(node, Message::Briefing(Box::new(briefing)));
    }

    /// Answers a worker's heartbeat with a briefing if the worker lacks something, is fenced off,
    /// or its inventory is requested.
    pub(super) fn answer_heartbeat(
        &mut self,
        holder: Holder,
        known: u64,
        generation: Generation,
        contacts: u64,
    ) {
        let is_fenced = !self.state.is_live(holder);
        // A follower that lags behind does not know all members: a worker that was admitted by a
        // later entry than it has applied gets no answer.
        if is_fenced && holder.incarnation.0 > self.state.applied() {
            return;
        }
        let is_inventory_due =
            self.duties.as_ref().is_some_and(|d| d.requests_inventory_of(holder.node));
        let plan = self.state.plan().map(|plan| plan.record.generation);
        let lacks_plan = plan.is_some_and(|found| generation < found);
        let lacks_contacts = contacts < self.state.membership().contacts_index();
        if is_fenced
            || known < self.briefing_due_index
            || lacks_plan
            || lacks_contacts
            || is_inventory_due
        {
            let omissions = BriefingOmissions { plan: !lacks_plan, contacts: !lacks_contacts };
            self.brief_node(holder.node, omissions);
        }
    }

    /// Answers a worker's request to be admitted: with a briefing if this start was admitted, with
    /// [`Message::Spent`] if this start or a later one was admitted and is lost.
    pub(super) fn answer_join(&mut self, node: NodeId, boot: u64) {
        let Some(member) = self.state.members().get(&node) else { return };
        let is_live = member.is_live();
        let is_worker = member.role == Role::Worker;
        let last = member.boot;
        if is_live && is_worker && last == boot {
            self.brief_node(node, BriefingOmissions::NOTHING);
        } else if !is_live && is_worker && last >= boot {
            self.send(node, Message::Spent { boot: last });
        }
    }

    fn briefing(&mut self, node: NodeId, omissions: BriefingOmissions) -> Briefing {
        let (spec, encoded_plan) = if omissions.plan { (None, None) } else { self.encoded_plan() };
        let state = &self.state;
        let member = state.members().get(&node).filter(|member| member.is_live());
        let plan = state.plan();
        let pending = state.pending().iter();
        Briefing {
            index: state.applied(),
            leader: self.raft.status().leader,
            you: member.map(|member| (member.boot, member.incarnation)),
            spec,
            job: state.job().map(|job| job.phase),
            generation: plan.map_or(Generation(0), |plan| plan.record.generation),
            plan: encoded_plan,
            is_running: plan.is_some_and(|plan| plan.phase == PlanPhase::Running),
            open: state.open_turn(),
            updates: state.ledger().updates(),
            seal: state.training().seals().last_seal().copied(),
            requests_inventory: self.duties.as_ref().is_some_and(|d| d.requests_inventory_of(node)),
            rewinds: state.training().seals().rewinds(),
            pending: pending
                .map(|pending| pending.version)
                .chain(state.training().checkpoints().due())
                .collect(),
            contacts: (!omissions.contacts).then(|| self.contacts.clone()),
            pre_copy: self.pre_copy(),
        }
    }

    /// The configuration and the plan in force, encoded for the first worker that they are sent to.
    fn encoded_plan(&mut self) -> (Option<PreEncoded<JobSpec>>, Option<PreEncoded<PlanRecord>>) {
        let spec = self.state.job().map(|job| &job.spec);
        let plan = self.state.plan().map(|plan| &plan.record);
        refresh(&mut self.spec, spec);
        refresh(&mut self.plan, plan);
        (self.spec.clone(), self.plan.clone())
    }

    /// What is to be copied ahead: for the plan that waits, or else for the one that is being made.
    fn pre_copy(&self) -> Option<Arc<PreCopyPlan>> {
        let planned = self.state.plan().zip(self.state.next_plan());
        match planned {
            Some((plan, next)) => PreCopyPlan::of(&plan.record, next).map(Arc::new),
            None => self.duties.as_ref()?.pre_copy().cloned(),
        }
    }

    /// What a leader with a known bug does: it sends workers a seal that is not agreed on yet.
    pub(super) fn send_proposal(&mut self, seal: Seal) {
        let workers: Vec<_> = self.state.live_workers().map(|(holder, _)| holder.node).collect();
        for node in workers {
            let briefing = self.briefing(node, BriefingOmissions::ALL);
            let proposal = Briefing { seal: Some(seal), ..briefing };
            self.send(node, Message::Briefing(Box::new(proposal)));
        }
    }
}

/// Encodes `value`, unless it is what was encoded last.
fn refresh<T: serde::Serialize>(encoded: &mut Option<PreEncoded<T>>, value: Option<&Arc<T>>) {
    let is_known = match (&*encoded, value) {
        (Some(encoded), Some(value)) => encoded.is_same_value(value),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if !is_known {
        *encoded = value.map(|value| Arc::clone(value).into());
    }
}
