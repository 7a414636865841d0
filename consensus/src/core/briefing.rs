//! Briefings: the messages from controllers to workers.

use std::sync::Arc;

use zbelastic_types::{Generation, NodeId};

use crate::access::AccessOutcome;
use crate::contacts::Contacts;
use crate::duty::Duties;
use crate::job::JobSpec;
use crate::message::Briefing;
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;
use crate::pre_encoded::PreEncoded;
use crate::state::{PlanPhase, State, StateChange};

/// The parts that a briefing leaves out, because its receiver has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BriefingOmissions {
    /// Whether it has the plan in force.
    plan: bool,
    /// Whether it has the members' contacts.
    contacts: bool,
}

impl BriefingOmissions {
    pub(super) const ALL: Self = Self { plan: true, contacts: true };
    pub(super) const PLAN: Self = Self { plan: true, contacts: false };
    pub(super) const CONTACTS: Self = Self { plan: false, contacts: true };
    pub(super) const NOTHING: Self = Self { plan: false, contacts: false };

    /// The omissions of the briefing to workers after a change, if it concerns them.
    pub(super) fn after(change: &StateChange) -> Option<Self> {
        match change {
            StateChange::Members(_)
            | StateChange::Access(
                AccessOutcome::Revoked { .. } | AccessOutcome::Authority { .. },
            ) => Some(Self::PLAN),
            // A worker that saved layers of a checkpoint repeats it until a briefing shows that the
            // checkpoint is there.
            StateChange::Resumed(_)
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Sealed { adopted: None, .. } => Some(Self::ALL),
            StateChange::Adopted(_) | StateChange::Sealed { adopted: Some(_), .. } => {
                Some(Self::CONTACTS)
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
            ) => None,
        }
    }
}

/// How much a worker knows, as its heartbeat reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownByWorker {
    /// Index of the last entry that it was briefed about.
    pub(super) index: u64,
    /// Generation of its plan.
    pub(super) generation: Generation,
    /// Index of the contacts that it has.
    pub(super) contacts: u64,
}

/// The parts of briefings: those that all workers are sent alike are encoded once.
pub(super) struct BriefingParts {
    /// Index of the last entry that workers must be briefed about.
    due_index: u64,
    /// The members' contacts, as they are sent to workers.
    contacts: PreEncoded<Contacts>,
    /// The plan and the job's configuration, as they were last sent to workers.
    plan: Option<PreEncoded<PlanRecord>>,
    spec: Option<PreEncoded<JobSpec>>,
}

impl BriefingParts {
    /// The parts of briefings about this state.
    pub(super) fn new(state: &State) -> Self {
        let contacts = Arc::new(state.membership().contacts()).into();
        Self { due_index: state.applied(), contacts, plan: None, spec: None }
    }

    /// Workers must be briefed about the entry at `index`.
    pub(super) fn set_due(&mut self, index: u64) {
        self.due_index = index;
    }

    /// Encodes the contacts anew if an entry changed them.
    pub(super) fn refresh_contacts(&mut self, state: &State) {
        if self.contacts.index != state.membership().contacts_index() {
            self.contacts = Arc::new(state.membership().contacts()).into();
        }
    }

    /// The omissions of the answer to a heartbeat. None if no answer is due: the worker lacks
    /// nothing, and `is_forced` is not set because it is fenced off or its inventory is requested.
    pub(super) fn answer_to(
        &self,
        state: &State,
        known: KnownByWorker,
        is_forced: bool,
    ) -> Option<BriefingOmissions> {
        let plan = state.plan().map(|plan| plan.record.generation);
        let lacks_plan = plan.is_some_and(|found| known.generation < found);
        let lacks_contacts = known.contacts < state.membership().contacts_index();
        let is_due = is_forced || known.index < self.due_index || lacks_plan || lacks_contacts;
        is_due.then_some(BriefingOmissions { plan: !lacks_plan, contacts: !lacks_contacts })
    }

    /// The briefing of a node.
    pub(super) fn briefing(
        &mut self,
        state: &State,
        (leader, duties): (Option<NodeId>, Option<&Duties>),
        node: NodeId,
        omissions: BriefingOmissions,
    ) -> Briefing {
        let (spec, encoded_plan) =
            if omissions.plan { (None, None) } else { self.encoded_plan(state) };
        let member = state.members().get(&node).filter(|member| member.is_live());
        let plan = state.plan();
        let pending = state.pending().iter();
        Briefing {
            index: state.applied(),
            leader,
            you: member.map(|member| (member.boot, member.incarnation)),
            spec,
            job: state.job().map(|job| job.phase),
            generation: plan.map_or(Generation(0), |plan| plan.record.generation),
            plan: encoded_plan,
            is_running: plan.is_some_and(|plan| plan.phase == PlanPhase::Running),
            open: state.open_turn(),
            updates: state.ledger().updates(),
            seal: state.training().seals().last_seal().copied(),
            requests_inventory: duties.is_some_and(|d| d.requests_inventory_of(node)),
            rewinds: state.training().seals().rewinds(),
            pending: pending
                .map(|pending| pending.version)
                .chain(state.training().checkpoints().due())
                .collect(),
            contacts: (!omissions.contacts).then(|| self.contacts.clone()),
            pre_copy: pre_copy(state, duties),
        }
    }

    /// The configuration and the plan in force, encoded for the first worker that they are sent to.
    fn encoded_plan(
        &mut self,
        state: &State,
    ) -> (Option<PreEncoded<JobSpec>>, Option<PreEncoded<PlanRecord>>) {
        let spec = state.job().map(|job| &job.spec);
        let plan = state.plan().map(|plan| &plan.record);
        refresh(&mut self.spec, spec);
        refresh(&mut self.plan, plan);
        (self.spec.clone(), self.plan.clone())
    }
}

/// The layers to copy ahead: for the plan that waits, or else for the one that is being made.
fn pre_copy(state: &State, duties: Option<&Duties>) -> Option<Arc<PreCopyPlan>> {
    let planned = state.plan().zip(state.next_plan());
    match planned {
        Some((plan, next)) => PreCopyPlan::of(&plan.record, next).map(Arc::new),
        None => duties?.pre_copy().cloned(),
    }
}

/// Encodes `value`, unless it is the value that was encoded last.
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
