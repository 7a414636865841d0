//! A controller's knowledge of the cluster's pace. Every controller follows the steps; the leader has the plan in force
//! reviewed, and passes the outcome to its core.

use zbelastic_consensus::duty::PlanMeasurement;
use zbelastic_consensus::member::{Holder, Member};
use zbelastic_consensus::plan::{PlanReason, PlanRecord};
use zbelastic_consensus::state::{PlanPhase, State, StateChange};
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::plan::{DriftJudgement, ReplanStakes};
use zbelastic_types::{Digest, Generation, NodeId};

use crate::estimate::{PaceEstimate, plan_reason};
use crate::fallback::PlannerJob;
use crate::history::{PaceHistory, retain_members};
use crate::measurement::StepMeasurement;
use crate::node_choices::NodeResources;
use crate::plan_watch::PlanWatch;
use crate::review::{PlanReview, ReviewedPlan};

/// A change of plans is assumed to cost at least this many microseconds, even if the last one cost
/// less: the step that ran ahead of it is run again, and layers are copied while others compute.
const CHANGE_US_MIN: f64 = 1e6;
/// A change is assumed to cost this many times the pause that the last one caused.
const PAUSES: f64 = 2.0;

/// The pace that is known, and the review that is under way.
#[derive(Debug, Default)]
pub struct PaceTracker {
    job: Option<Digest>,
    /// The estimate that new plans are made with.
    estimate: PaceEstimate,
    /// The estimate that the plan in force was made with.
    planned: PaceEstimate,
    /// The times of the last steps that were examined, whether or not they led to another plan.
    measured: Option<PaceEstimate>,
    history: PaceHistory,
    /// The plan that these steps belong to.
    generation: Option<Generation>,
    plan_watch: PlanWatch,
    /// Why the plan in force does not fit, if it does not.
    drift: Option<PlanReason>,
    /// Whether the core and the solver have received it.
    is_sent: bool,
}

/// The outcome of a judgement on the plan in force.
#[derive(Clone, Debug, PartialEq)]
pub enum ReviewOutcome {
    /// It is on another plan, or too few reviews agree: nothing changes.
    Ignored,
    /// The plan fits.
    Fits,
    /// Something drifted beyond the plan's slack.
    Drifted {
        /// The drift, and the time that another plan saves.
        reason: PlanReason,
        /// The share by which it might have grown.
        slack: f64,
        /// Whether another plan is wanted.
        is_replanned: bool,
        /// Why not, or that it is, for the log.
        text: &'static str,
    },
}

impl PaceTracker {
    /// A job is under way, or another one: of that nothing is known.
    pub fn set_job(&mut self, name: Digest) {
        if self.job != Some(name) {
            *self = Self { job: Some(name), ..Self::default() };
        }
    }

    /// A plan begins: it was made with the estimate that is known.
    fn begin(&mut self, plan: &PlanRecord) {
        self.generation = Some(plan.generation);
        self.planned = self.estimate.clone();
        self.history.clear();
        self.plan_watch.begin(&plan.reason);
        self.drift = None;
    }

    /// A plan that began before this process did, or within a snapshot, begins here with the first step that is seen.
    fn catch_up(&mut self, state: &State) {
        let plan = state.plan().map(|plan| &plan.record);
        if let Some(plan) = plan.filter(|plan| self.generation != Some(plan.generation)) {
            self.begin(plan);
        }
    }

    /// The last measurement, whether or not it led to another plan.
    #[must_use]
    pub const fn measured(&self) -> Option<&PaceEstimate> {
        self.measured.as_ref()
    }

    /// The speed that is assumed of a node, in thousandths of a reference device's.
    #[must_use]
    pub fn speed_permille(&self, node: NodeId, member: &Member) -> u32 {
        let found = self.estimate.speeds.get(&node).copied();
        found.unwrap_or(member.resources.speed_permille)
    }

    /// Applies an entry: a plan begins, members go, or a step is added, for which `measure` is called. Yields
    /// whether a review is due.
    pub fn note_change(
        &mut self,
        change: &StateChange,
        state: &State,
        measure: impl FnOnce(Turn) -> Option<StepMeasurement>,
    ) -> bool {
        match change {
            StateChange::Adopted(plan) | StateChange::Sealed { adopted: Some(plan), .. } => {
                self.begin(plan);
                false
            }
            StateChange::Sealed { seal, adopted: None, .. } => {
                self.catch_up(state);
                if self.generation == Some(seal.turn.generation)
                    && let Some(step) = measure(seal.turn)
                    && self.plan_watch.note_step()
                {
                    self.history.note(step);
                    return self.plan_watch.is_due();
                }
                false
            }
            StateChange::Members(_) => {
                let members = state.members();
                for known in std::iter::once(&mut self.estimate).chain(&mut self.measured) {
                    retain_members(known, |node| members.contains_key(&node));
                }
                false
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
            | StateChange::Format(_) => false,
        }
    }

    /// Examines the times of the last steps, now that a review is due. Yields the review that is to
    /// be judged, if this node leads and the plan in force may change; `pause_us` is the pause that
    /// the last change of plans caused.
    pub fn begin_review(
        &mut self,
        state: &State,
        job: &PlannerJob,
        (may_replan, pause_us): (bool, f64),
    ) -> Option<PlanReview> {
        let measured = self.measure(state, job);
        self.history.clear();
        let (nodes, found) = measured?;
        self.measured = Some(found.clone());
        if !may_replan || state.next_plan().is_some() {
            return None;
        }
        let spec = state.running_spec()?;
        let plan = state.plan()?.record.clone();
        let steps_left = spec.step_count.saturating_sub(state.open_turn().step.0);
        let stakes = ReplanStakes { steps_left, change: CHANGE_US_MIN.max(PAUSES * pause_us) };
        let planned = self.planned.clone();
        Some(PlanReview { plan, nodes, planned, found, stakes })
    }

    /// The review that was due is not under way: there is nothing to judge, or no judge is free
    /// now.
    pub fn give_up_review(&mut self) {
        self.plan_watch.give_up_review();
    }

    /// The times of the last steps of the plan in force, and the nodes at its stages.
    fn measure(
        &self,
        state: &State,
        job: &PlannerJob,
    ) -> Option<(Vec<NodeResources>, PaceEstimate)> {
        let plan = &state.plan().filter(|plan| plan.phase == PlanPhase::Running)?.record;
        let node =
            |holder: &Holder| Some((holder.node, state.members().get(&holder.node)?.resources));
        if self.generation != Some(plan.generation) {
            return None;
        }
        let nodes: Vec<NodeResources> = plan.stages.iter().map(node).collect::<Option<_>>()?;
        let found = self.history.estimate(&self.estimate, job, (plan, &nodes))?;
        Some((nodes, found))
    }

    /// A judgement on the plan with the given generation, which is in force or was.
    pub fn handle_review(
        &mut self,
        generation: Generation,
        reviewed: ReviewedPlan,
    ) -> ReviewOutcome {
        let ReviewedPlan { generation: of, nodes, found, judgement } = reviewed;
        if of != generation {
            return ReviewOutcome::Ignored;
        }
        let Some(judgement) = self.plan_watch.note_judgement(judgement) else {
            return ReviewOutcome::Ignored;
        };
        let text = match &judgement {
            DriftJudgement::Replan(_) => "another plan is needed",
            DriftJudgement::NoBetter(_) => "the plan stays, for no other is much better",
            DriftJudgement::TooLate(_) => "the plan stays, for too few steps are left",
            DriftJudgement::Within => "the plan stays",
        };
        let Some(drift) = judgement.drift() else {
            // The plan in force fits; those to come are made with the new findings.
            if found.differs_from(&self.estimate) {
                self.estimate = found;
                self.is_sent = false;
            }
            return ReviewOutcome::Fits;
        };
        // The plan in force is judged by this from now on: a drift that was reported need not be
        // reported again.
        self.estimate = found.clone();
        self.planned = found;
        self.is_sent = false;
        let is_replanned = matches!(judgement, DriftJudgement::Replan(_));
        let reason = plan_reason(drift, &nodes);
        self.drift = is_replanned.then(|| reason.clone());
        ReviewOutcome::Drifted { reason, slack: drift.slack, is_replanned, text }
    }

    /// The estimate that the solver does not know yet, if this node leads. A core that has just
    /// come to lead knows nothing.
    pub fn unsent(&mut self, leads: bool) -> Option<&PaceEstimate> {
        if !leads {
            self.is_sent = false;
        }
        (leads && !self.is_sent).then_some(&self.estimate)
    }

    /// The solver has the estimate: yields the measurement for the core, for the plan in force with
    /// this generation.
    pub fn note_sent(&mut self, generation: Generation) -> PlanMeasurement {
        self.is_sent = true;
        let (speeds, drift) = (self.estimate.speeds.clone(), self.drift.clone());
        PlanMeasurement { generation, speeds, drift }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::plan::DriftedPart;
    use zbelastic_consensus::validation::{Reason, Seal, Verdict};
    use zbelastic_trainer::plan::{Drift, DriftSource};
    use zbelastic_types::{Attempt, ClusterId, StageIndex, Step};

    use super::*;
    use crate::history::REVIEW_STEPS;
    use crate::history::tests::{NODES, plan, step};
    use crate::plan_watch::{AGREEING, STEPS_FIRST};
    use crate::search::tests::job;

    /// A step under the plan of this generation was sealed.
    fn sealed(generation: u64) -> StateChange {
        let turn = Turn { generation: Generation(generation), attempt: Attempt(0), step: Step(3) };
        let seal = Seal {
            turn,
            verdict: Verdict::Keep,
            reason: Reason::Sound,
            square_sum_bits: 0,
            loss_sum_bits: 0,
            updates_after: 4,
            cursor_after: Step(4),
        };
        StateChange::Sealed { seal, is_repeated: false, adopted: None }
    }

    /// A tracker of a plan of generation 1, at its beginning.
    fn tracker() -> PaceTracker {
        let mut tracker = PaceTracker::default();
        let adopted = StateChange::Adopted(plan(&job()).into());
        assert!(!tracker.note_change(&adopted, &State::new(ClusterId(7)), |_| None));
        tracker
    }

    /// Seals steps until a review is due. Yields how many.
    fn steps_until_review(tracker: &mut PaceTracker) -> u64 {
        let state = State::new(ClusterId(7));
        let measured = step(&job(), &plan(&job()), [2.0; 3], 100.0);
        let is_due = |_: &u64| tracker.note_change(&sealed(1), &state, |_| Some(measured.clone()));
        (1..1000).find(is_due).expect("a review is due some time")
    }

    fn reviewed(generation: u64, found: &PaceEstimate, judgement: DriftJudgement) -> ReviewedPlan {
        let generation = Generation(generation);
        ReviewedPlan { generation, nodes: NODES.to_vec(), found: found.clone(), judgement }
    }

    /// The outcome of as many reviews as must agree, of which the earlier ones change nothing.
    fn agree(
        tracker: &mut PaceTracker,
        found: &PaceEstimate,
        judgement: DriftJudgement,
    ) -> ReviewOutcome {
        for _ in 1..AGREEING {
            let outcome = tracker.handle_review(Generation(1), reviewed(1, found, judgement));
            assert_eq!(outcome, ReviewOutcome::Ignored);
        }
        tracker.handle_review(Generation(1), reviewed(1, found, judgement))
    }

    fn estimate(verdict_us: f64) -> PaceEstimate {
        PaceEstimate { verdict_us, ..PaceEstimate::default() }
    }

    const DRIFT: Drift = Drift {
        part: DriftSource::Stage(StageIndex(1)),
        expected: 10.0,
        found: 20.0,
        slack: 0.1,
        gain: 0.2,
    };

    #[test]
    fn a_review_is_due_behind_the_first_steps_of_a_plan_and_none_while_one_is_under_way() {
        let mut tracker = tracker();
        let state = State::new(ClusterId(7));
        let other = tracker.note_change(&sealed(2), &state, |_| panic!("it is of another plan"));
        assert!(!other);
        assert_eq!(steps_until_review(&mut tracker), STEPS_FIRST + REVIEW_STEPS as u64);
        let measured = step(&job(), &plan(&job()), [2.0; 3], 100.0);
        let mut seal = || tracker.note_change(&sealed(1), &state, |_| Some(measured.clone()));
        assert!((0..3 * REVIEW_STEPS).all(|_| !seal()), "one is under way");
        tracker.give_up_review();
        assert_eq!(steps_until_review(&mut tracker), 1, "its steps were sealed meanwhile");
    }

    #[test]
    fn a_step_that_was_not_measured_by_all_stages_does_not_count() {
        let mut tracker = tracker();
        let state = State::new(ClusterId(7));
        assert!((0..100).all(|_| !tracker.note_change(&sealed(1), &state, |_| None)));
        assert_eq!(steps_until_review(&mut tracker), STEPS_FIRST + REVIEW_STEPS as u64);
    }

    #[test]
    fn reviews_that_agree_on_a_drift_want_another_plan_and_what_is_known_is_sent() {
        let mut tracker = tracker();
        let found = estimate(70.0);
        let late = tracker
            .handle_review(Generation(2), reviewed(1, &found, DriftJudgement::Replan(DRIFT)));
        assert_eq!(late, ReviewOutcome::Ignored, "another plan is in force");
        let reason = PlanReason::Drifted {
            part: DriftedPart::Stage { stage: StageIndex(1), node: NODES[1].0 },
            expected_us: 10,
            found_us: 20,
            gain_permille: 200,
        };
        let outcome = agree(&mut tracker, &found, DriftJudgement::Replan(DRIFT));
        let text = "another plan is needed";
        let expected =
            ReviewOutcome::Drifted { reason: reason.clone(), slack: 0.1, is_replanned: true, text };
        assert_eq!(outcome, expected);
        assert_eq!(tracker.unsent(true), Some(&found));
        let sent = tracker.note_sent(Generation(1));
        assert_eq!((sent.generation, sent.drift), (Generation(1), Some(reason)));
        let outcome = agree(&mut tracker, &found, DriftJudgement::TooLate(DRIFT));
        assert!(matches!(outcome, ReviewOutcome::Drifted { is_replanned: false, .. }));
        assert_eq!(tracker.note_sent(Generation(1)).drift, None);
    }

    #[test]
    fn a_plan_that_fits_is_judged_by_what_it_was_made_with_and_others_by_what_is_new() {
        let mut tracker = tracker();
        assert_eq!(
            agree(&mut tracker, &estimate(70.0), DriftJudgement::Within),
            ReviewOutcome::Fits
        );
        assert_eq!(tracker.estimate, estimate(70.0), "a verdict was never waited for before");
        assert_eq!(tracker.planned, PaceEstimate::default());
        assert_eq!(
            agree(&mut tracker, &estimate(71.0), DriftJudgement::Within),
            ReviewOutcome::Fits
        );
        assert_eq!(tracker.estimate, estimate(70.0), "that is as good as known");
    }

    #[test]
    fn a_leader_sends_what_is_known_once_and_again_when_it_leads_again_or_the_job_is_another() {
        let mut tracker = tracker();
        tracker.set_job(Digest([1; 32]));
        assert_eq!(tracker.unsent(false), None);
        assert_eq!(tracker.unsent(true), Some(&PaceEstimate::default()));
        tracker.note_sent(Generation(0));
        assert_eq!(tracker.unsent(true), None);
        tracker.set_job(Digest([1; 32]));
        assert_eq!(tracker.unsent(true), None, "it is the same job");
        assert_eq!(tracker.unsent(false), None);
        assert!(tracker.unsent(true).is_some(), "its core has just come to lead");
        tracker.note_sent(Generation(0));
        tracker.set_job(Digest([2; 32]));
        assert!(tracker.unsent(true).is_some());
    }
}
