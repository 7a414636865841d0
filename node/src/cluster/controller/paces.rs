//! What a controller knows of the cluster's pace. All of them listen; the leader has the plan in
//! force reviewed, and passes the outcome to its core.

use zbelastic_consensus::core::Input;
use zbelastic_consensus::duty::Measured;
use zbelastic_consensus::member::Member;
use zbelastic_consensus::plan::{PlanReason, PlanRecord};
use zbelastic_consensus::state::{Change, PlanPhase};
use zbelastic_trainer::plan::{Judgement, Stakes};
use zbelastic_types::{Digest, NodeId};

use super::Controller;
use crate::api::{EventKind, PaceStatus};
use crate::cluster::pace::book::{PaceBook, retain_members};
use crate::cluster::pace::watch::Watch;
use crate::cluster::pace::{Known, Seated, plan_reason};
use crate::cluster::solver::{Review, Reviewed};
use crate::config::ReplanPolicy;

/// A change of plans is taken to cost so much, in microseconds, whatever the last one did: the step
/// that ran ahead of it is run again, and layers are copied while others compute.
const CHANGE_US_MIN: f64 = 1e6;
/// A change is taken to cost as many times what the last one was waited for.
const PAUSES: f64 = 2.0;

/// What is known, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Paces {
    job: Option<Digest>,
    /// What plans are made with.
    known: Known,
    /// What the plan in force was made with.
    planned: Known,
    /// What the last steps took that were looked at, whether or not it is believed.
    measured: Option<Known>,
    book: PaceBook,
    watch: Watch,
    /// Why the plan in force does not fit, if it does not.
    drift: Option<PlanReason>,
    /// Whether the core and the solver have received it.
    is_told: bool,
}

impl Paces {
    /// A job is under way, or another one: of that nothing is known.
    pub(super) fn set_job(&mut self, name: Digest) {
        if self.job != Some(name) {
            *self = Self { job: Some(name), ..Self::default() };
        }
    }

    /// A plan begins: it was made with what is known.
    fn begin(&mut self, plan: &PlanRecord) {
        self.planned = self.known.clone();
        self.book.clear();
        self.watch.begin(&plan.reason);
        self.drift = None;
    }

    /// What was measured last, as the API reports it.
    pub(super) fn status(&self) -> Option<PaceStatus> {
        self.measured.as_ref().map(Known::status)
    }

    /// How fast a node is taken to be.
    pub(super) fn speed_permille(&self, node: NodeId, member: &Member) -> u32 {
        let found = self.known.speeds.get(&node).copied();
        found.unwrap_or(member.resources.speed_permille)
    }
}

impl Controller {
    pub(super) fn note_held_out(&mut self, steps_done: u64, loss: f64) {
        if self.chronicle.note_held_out(steps_done, loss) {
            let loss = Some(loss).filter(|loss| loss.is_finite());
            self.journal.tell(EventKind::HeldOut { step: steps_done, loss });
        }
    }

    /// Applies an entry to what is measured: a plan begins, or a step is added.
    pub(super) fn note_pace(&mut self, change: &Change) {
        match change {
            Change::Adopted(plan) => self.paces.begin(plan),
            Change::Sealed { adopted: Some(plan), .. } => self.paces.begin(plan),
            Change::Sealed { seal, adopted: None, .. } => {
                if let Some(step) = self.chronicle.measure(seal.turn)
                    && self.paces.watch.note_step()
                {
                    self.paces.book.note(step);
                    self.review_plan();
                }
            }
            Change::Members(_) => {
                let members = self.core.state().members();
                let Paces { known, measured, .. } = &mut self.paces;
                for known in std::iter::once(known).chain(measured) {
                    retain_members(known, |node| members.contains_key(&node));
                }
            }
            Change::Planned(_)
            | Change::Ready(_)
            | Change::Resumed(_)
            | Change::Durable { .. }
            | Change::Kept { .. }
            | Change::Checkpoint { .. }
            | Change::Rewound { .. }
            | Change::Job { .. }
            | Change::Removed { .. }
            | Change::Access(_)
            | Change::Format(_) => {}
        }
    }

    /// Looks at what steps took, if that is due, and if this node leads has the plan judged by it.
    fn review_plan(&mut self) {
        if !self.paces.watch.is_due() {
            return;
        }
        let measured = self.measured();
        if let Some((_, found)) = &measured {
            self.paces.measured = Some(found.clone());
        }
        let review = measured.filter(|_| self.leads()).and_then(|measured| self.review(measured));
        let is_asked = review.is_some_and(|review| self.solver.review(review));
        if !is_asked {
            self.paces.watch.give_up_review();
        }
        self.paces.book.clear();
    }

    /// What the last steps of the plan in force took, and the nodes at its stages.
    fn measured(&self) -> Option<(Vec<Seated>, Known)> {
        let (state, job) = (self.core.state(), self.chronicle.job()?);
        let plan = &state.plan().filter(|plan| plan.phase == PlanPhase::Running)?.record;
        let seat = |holder: &zbelastic_consensus::member::Holder| {
            Some((holder.node, state.members().get(&holder.node)?.resources))
        };
        let nodes: Vec<Seated> = plan.stages.iter().map(seat).collect::<Option<_>>()?;
        let Paces { known, book, .. } = &self.paces;
        let found = book.found(known, &job.job.config, (plan, &nodes))?;
        Some((nodes, found))
    }

    fn review(&self, (nodes, found): (Vec<Seated>, Known)) -> Option<Review> {
        let (state, job) = (self.core.state(), self.chronicle.job()?);
        match job.job.config.elastic.replan {
            ReplanPolicy::Drift => {}
            ReplanPolicy::Never => return None,
        }
        let spec = state.running_spec()?.clone();
        if state.next_plan().is_some() {
            return None;
        }
        let plan = state.plan()?.record.clone();
        let pause_us = self.chronicle.last_pause().map_or(0.0, |pause| pause.as_secs_f64() * 1e6);
        let steps_left = spec.step_count.saturating_sub(state.open_turn().step.0);
        let stakes = Stakes { steps_left, change: CHANGE_US_MIN.max(PAUSES * pause_us) };
        let planned = self.paces.planned.clone();
        Some(Review { spec, plan, nodes, planned, found, stakes })
    }

    /// A judgement on the plan in force, or on one that was.
    pub(super) fn handle_reviewed(&mut self, reviewed: Reviewed) {
        let Reviewed { generation, nodes, found, judgement } = reviewed;
        if generation != self.core.state().generation() {
            return;
        }
        let Some(judgement) = self.paces.watch.note_judgement(judgement) else { return };
        if judgement == Judgement::Within {
            // The plan in force fits; those to come are made with what nobody knew before.
            if found.tells_news_to(&self.paces.known) {
                (self.paces.known, self.paces.is_told) = (found, false);
                self.tell_paces();
            }
            return;
        }
        // The plan in force is judged by this from now on: what was reported need not be reported again.
        (self.paces.known, self.paces.planned) = (found.clone(), found);
        self.paces.is_told = false;
        if let Some(drift) = judgement.drift() {
            let (reason, slack) = (plan_reason(drift, &nodes), 100.0 * drift.slack);
            let outcome = match judgement {
                Judgement::Replan(_) => "another plan is wanted",
                Judgement::NoBetter(_) => "the plan stays, for no other is much better",
                Judgement::TooLate(_) => "the plan stays, for too few steps are left",
                Judgement::Within => "the plan stays",
            };
            self.journal.log(format!("{outcome}: {reason}; its slack was {slack:.0} %"));
            let is_wanted = matches!(judgement, Judgement::Replan(_));
            self.paces.drift = is_wanted.then_some(reason);
        }
        self.tell_paces();
    }

    /// Passes to the core and to the solver what they do not know yet; if too much waits there,
    /// at the next tick. A core that has just come to lead knows nothing.
    pub(super) fn tell_paces(&mut self) {
        if !self.leads() {
            self.paces.is_told = false;
        }
        if !self.leads() || self.paces.is_told || !self.solver.know(self.paces.known.clone()) {
            return;
        }
        self.paces.is_told = true;
        let generation = self.core.state().generation();
        let Paces { known, drift, .. } = &self.paces;
        let (speeds, drift) = (known.speeds.clone(), drift.clone());
        self.tell_core(Input::Measured(Box::new(Measured { generation, speeds, drift })));
    }
}
