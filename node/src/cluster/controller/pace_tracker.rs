//! What a controller knows of the cluster's pace. All of them record it; the leader has the plan in
//! force reviewed, and passes the outcome to its core.

use zbelastic_consensus::core::Input;
use zbelastic_consensus::duty::PlanMeasurement;
use zbelastic_consensus::member::Member;
use zbelastic_consensus::plan::{PlanReason, PlanRecord};
use zbelastic_consensus::state::{PlanPhase, StateChange};
use zbelastic_trainer::plan::{DriftJudgement, ReplanStakes};
use zbelastic_types::{Digest, NodeId};

use super::ControllerNode;
use crate::api::{EventKind, PaceStatus};
use crate::cluster::pace::history::{PaceHistory, retain_members};
use crate::cluster::pace::plan_watch::PlanWatch;
use crate::cluster::pace::{NodeResources, PaceEstimate, plan_reason};
use crate::cluster::solver::{PlanReview, ReviewedPlan};
use crate::config::ReplanPolicy;

/// A change of plans is taken to cost so much, in microseconds, whatever the last one did: the step
/// that ran ahead of it is run again, and layers are copied while others compute.
const CHANGE_US_MIN: f64 = 1e6;
/// A change is taken to cost as many times what the last one was waited for.
const PAUSES: f64 = 2.0;

/// What is known, and what is under way.
#[derive(Debug, Default)]
pub(super) struct PaceTracker {
    job: Option<Digest>,
    /// What plans are made with.
    estimate: PaceEstimate,
    /// What the plan in force was made with.
    planned: PaceEstimate,
    /// The pace of the last steps that were reviewed, whether or not it is used.
    measured: Option<PaceEstimate>,
    history: PaceHistory,
    plan_watch: PlanWatch,
    /// Why the plan in force does not fit, if it does not.
    drift: Option<PlanReason>,
    /// Whether the core and the solver have received it.
    is_sent: bool,
}

impl PaceTracker {
    /// A job is under way, or another one: of that nothing is known.
    pub(super) fn set_job(&mut self, name: Digest) {
        if self.job != Some(name) {
            *self = Self { job: Some(name), ..Self::default() };
        }
    }

    /// A plan begins: it was made with what is known.
    fn begin(&mut self, plan: &PlanRecord) {
        self.planned = self.estimate.clone();
        self.history.clear();
        self.plan_watch.begin(&plan.reason);
        self.drift = None;
    }

    /// What was measured last, as the API reports it.
    pub(super) fn status(&self) -> Option<PaceStatus> {
        self.measured.as_ref().map(PaceEstimate::status)
    }

    /// How fast a node is taken to be.
    pub(super) fn speed_permille(&self, node: NodeId, member: &Member) -> u32 {
        let found = self.estimate.speeds.get(&node).copied();
        found.unwrap_or(member.resources.speed_permille)
    }
}

impl ControllerNode {
    pub(super) fn note_held_out(&mut self, steps_done: u64, loss: f64) {
        if self.run_log.note_held_out(steps_done, loss) {
            let loss = Some(loss).filter(|loss| loss.is_finite());
            self.journal.record(EventKind::HeldOut { step: steps_done, loss });
        }
    }

    /// Applies an entry to what is measured: a plan begins, or a step is added.
    pub(super) fn note_pace(&mut self, change: &StateChange) {
        match change {
            StateChange::Adopted(plan) => self.pace_tracker.begin(plan),
            StateChange::Sealed { adopted: Some(plan), .. } => self.pace_tracker.begin(plan),
            StateChange::Sealed { seal, adopted: None, .. } => {
                if let Some(step) = self.run_log.measure(seal.turn)
                    && self.pace_tracker.plan_watch.note_step()
                {
                    self.pace_tracker.history.note(step);
                    self.review_plan();
                }
            }
            StateChange::Members(_) => {
                let members = self.core.state().members();
                let PaceTracker { estimate, measured, .. } = &mut self.pace_tracker;
                for estimate in std::iter::once(estimate).chain(measured) {
                    retain_members(estimate, |node| members.contains_key(&node));
                }
            }
            StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
    }

    /// Reviews the measured times of steps, if that is due, and if this node leads has the plan
    /// judged by it.
    fn review_plan(&mut self) {
        if !self.pace_tracker.plan_watch.is_due() {
            return;
        }
        let measured = self.measured();
        if let Some((_, found)) = &measured {
            self.pace_tracker.measured = Some(found.clone());
        }
        let review = measured.filter(|_| self.leads()).and_then(|measured| self.review(measured));
        let is_requested = review.is_some_and(|review| self.solver.review(review));
        if !is_requested {
            self.pace_tracker.plan_watch.give_up_review();
        }
        self.pace_tracker.history.clear();
    }

    /// What the last steps of the plan in force took, and the nodes at its stages.
    fn measured(&self) -> Option<(Vec<NodeResources>, PaceEstimate)> {
        let state = self.core.state();
        let job = self.run_log.job()?;
        let plan = &state.plan().filter(|plan| plan.phase == PlanPhase::Running)?.record;
        let resources_of = |holder: &zbelastic_consensus::member::Holder| {
            Some((holder.node, state.members().get(&holder.node)?.resources))
        };
        let nodes: Vec<NodeResources> =
            plan.stages.iter().map(resources_of).collect::<Option<_>>()?;
        let PaceTracker { estimate, history, .. } = &self.pace_tracker;
        let found = history.estimate(estimate, &job.job.config, (plan, &nodes))?;
        Some((nodes, found))
    }

    fn review(&self, (nodes, found): (Vec<NodeResources>, PaceEstimate)) -> Option<PlanReview> {
        let state = self.core.state();
        let job = self.run_log.job()?;
        match job.job.config.elastic.replan {
            ReplanPolicy::Drift => {}
            ReplanPolicy::Never => return None,
        }
        let spec = state.running_spec()?.clone();
        if state.next_plan().is_some() {
            return None;
        }
        let plan = state.plan()?.record.clone();
        let pause_us = self.run_log.last_pause().map_or(0.0, |pause| pause.as_secs_f64() * 1e6);
        let steps_left = spec.step_count.saturating_sub(state.open_turn().step.0);
        let stakes = ReplanStakes { steps_left, change: CHANGE_US_MIN.max(PAUSES * pause_us) };
        let planned = self.pace_tracker.planned.clone();
        Some(PlanReview { spec, plan, nodes, planned, found, stakes })
    }

    /// A judgement on the plan in force, or on one that was.
    pub(super) fn handle_review(&mut self, reviewed: ReviewedPlan) {
        let ReviewedPlan { generation, nodes, found, judgement } = reviewed;
        if generation != self.core.state().generation() {
            return;
        }
        let Some(judgement) = self.pace_tracker.plan_watch.note_judgement(judgement) else {
            return;
        };
        if judgement == DriftJudgement::Within {
            // The plan in force fits; later ones are made with what was not measured before.
            if found.differs_from(&self.pace_tracker.estimate) {
                (self.pace_tracker.estimate, self.pace_tracker.is_sent) = (found, false);
                self.send_estimate();
            }
            return;
        }
        // The plan in force is judged by this from now on: what was reported need not be reported
        // again.
        (self.pace_tracker.estimate, self.pace_tracker.planned) = (found.clone(), found);
        self.pace_tracker.is_sent = false;
        if let Some(drift) = judgement.drift() {
            let reason = plan_reason(drift, &nodes);
            let slack = 100.0 * drift.slack;
            let outcome = match judgement {
                DriftJudgement::Replan(_) => "another plan is needed",
                DriftJudgement::NoBetter(_) => "the plan stays, for no other is much better",
                DriftJudgement::TooLate(_) => "the plan stays, for too few steps are left",
                DriftJudgement::Within => "the plan stays",
            };
            self.journal.log(format!("{outcome}: {reason}; its slack was {slack:.0} %"));
            let is_replan = matches!(judgement, DriftJudgement::Replan(_));
            self.pace_tracker.drift = is_replan.then_some(reason);
        }
        self.send_estimate();
    }

    /// Passes to the core and to the solver what they were not sent yet; if too much waits there,
    /// at the next tick. A core that has just come to lead has none of it.
    pub(super) fn send_estimate(&mut self) {
        if !self.leads() {
            self.pace_tracker.is_sent = false;
        }
        if !self.leads()
            || self.pace_tracker.is_sent
            || !self.solver.set_estimate(self.pace_tracker.estimate.clone())
        {
            return;
        }
        self.pace_tracker.is_sent = true;
        let generation = self.core.state().generation();
        let PaceTracker { estimate, drift, .. } = &self.pace_tracker;
        let speeds = estimate.speeds.clone();
        let drift = drift.clone();
        self.send_to_core(Input::Measured(Box::new(PlanMeasurement { generation, speeds, drift })));
    }
}
