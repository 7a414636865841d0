//! When a plan is reviewed, and when a review is accepted: so that noise changes nothing, and no
//! two machines that take turns at being slow make a plan flap.
//!
//! A review looks at steps of its own, and must come to the same conclusion [`AGREEING`] times one
//! after the other. A plan that was made for a drift is left alone for [`STEPS_APART`] steps, the
//! one after it for twice as many, and so on: however times vary, a run of n steps has no more than
//! about log2(n / `STEPS_APART`) such changes between two changes of members.

use std::mem::discriminant;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::PlanReason;
use zbelastic_trainer::plan::DriftJudgement;

use crate::history::REVIEW_STEPS;

/// Steps of a plan before the first one that is measured: the very first touch memory for the
/// first time, and layers that move are still under way.
pub const STEPS_FIRST: u64 = 4;
/// Reviews that must agree.
pub const AGREEING: u32 = 3;
/// Steps that a plan made for a drift runs before it is reviewed.
pub const STEPS_APART: u64 = 64;
/// The most that becomes, as more of them follow each other.
pub const STEPS_APART_MAX: u64 = 4096;

/// Decides when a plan is reviewed, and which reviews count.
#[derive(Debug, Default)]
pub struct PlanWatch {
    /// Plans made for a drift, one after the other, up to the one in force.
    drifts: u32,
    /// Steps until the next review.
    steps_until_review: u64,
    /// Steps since the last review.
    steps: usize,
    /// A review is under way.
    is_under_review: bool,
    /// The judgement that the last reviews agree on, and how many of them.
    agreed: Option<(DriftJudgement, u32)>,
}

impl PlanWatch {
    /// A plan begins, for this reason.
    pub fn begin(&mut self, reason: &PlanReason) {
        let is_drift = reason.is_drift() && !mutant::is(Mutant::M44DriftForgotten);
        let drifts = if is_drift { self.drifts.saturating_add(1) } else { 0 };
        let apart = match drifts {
            0 => STEPS_FIRST,
            _ => STEPS_APART.saturating_mul(1 << (drifts - 1).min(16)).min(STEPS_APART_MAX),
        };
        *self = Self { drifts, steps_until_review: apart, ..Self::default() };
    }

    /// A step of the plan is sealed. Yields whether its times are to be remembered.
    pub fn note_step(&mut self) -> bool {
        if self.steps_until_review > 0 {
            self.steps_until_review -= 1;
            return false;
        }
        self.steps = (self.steps + 1).min(REVIEW_STEPS);
        true
    }

    /// Whether a review is due. It is under way then, until its judgement arrives.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.steps >= REVIEW_STEPS && !self.is_under_review;
        if is_due {
            (self.steps, self.is_under_review) = (0, true);
        }
        is_due
    }

    /// A review that cannot be: there is nothing to judge, or the solver accepts no review now.
    pub fn give_up_review(&mut self) {
        self.is_under_review = false;
    }

    /// A review's judgement. Yields it if enough of them agree; the count then restarts.
    pub fn note_judgement(&mut self, judgement: DriftJudgement) -> Option<DriftJudgement> {
        self.is_under_review = false;
        let agreeing = match &self.agreed {
            Some((before, count)) if is_same(before, &judgement) => count + 1,
            Some(_) | None => 1,
        };
        self.agreed = (agreeing < AGREEING).then_some((judgement, agreeing));
        self.agreed.is_none().then_some(judgement)
    }
}

/// Whether two judgements agree, about the same part.
fn is_same(one: &DriftJudgement, other: &DriftJudgement) -> bool {
    let part = |judgement: &DriftJudgement| judgement.drift().map(|drift| drift.part);
    discriminant(one) == discriminant(other) && part(one) == part(other)
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::plan::DriftedPart;
    use zbelastic_trainer::plan::{Drift, DriftSource};
    use zbelastic_types::StageIndex;

    use super::*;

    fn drift(stage: u32) -> Drift {
        let part = DriftSource::Stage(StageIndex(stage));
        Drift { part, expected: 1.0, found: 2.0, slack: 0.1, gain: 0.2 }
    }

    fn replan(stage: u32) -> DriftJudgement {
        DriftJudgement::Replan(drift(stage))
    }

    fn drifted() -> PlanReason {
        let part = DriftedPart::Links;
        let expected_us = 1;
        let found_us = 2;
        PlanReason::Drifted { part, expected_us, found_us, gain_permille: 100 }
    }

    fn plan_watch() -> PlanWatch {
        let mut plan_watch = PlanWatch::default();
        plan_watch.begin(&PlanReason::First);
        plan_watch
    }

    /// Steps until a review is due.
    fn steps_to_review(plan_watch: &mut PlanWatch) -> u64 {
        const STEPS_MAX: u64 = 2 * STEPS_APART_MAX;
        (1..STEPS_MAX)
            .find(|_| {
                plan_watch.note_step();
                plan_watch.is_due()
            })
            .expect("a review is due some time")
    }

    fn believed(judgements: &[DriftJudgement]) -> Vec<Option<DriftJudgement>> {
        let mut plan_watch = plan_watch();
        let review = |judgement: &DriftJudgement| {
            steps_to_review(&mut plan_watch);
            plan_watch.note_judgement(*judgement)
        };
        judgements.iter().map(review).collect()
    }

    #[test]
    fn what_is_said_often_enough_is_believed_once() {
        let judgements = [replan(1); 2 * AGREEING as usize];
        let mut expected = vec![None; judgements.len()];
        expected[AGREEING as usize - 1] = Some(replan(1));
        expected[2 * AGREEING as usize - 1] = Some(replan(1));
        assert_eq!(believed(&judgements), expected);
    }

    #[test]
    fn noise_that_says_this_and_that_is_never_believed() {
        let within = DriftJudgement::Within;
        let none = DriftJudgement::NoBetter(drift(1));
        for judgements in [
            [replan(1), replan(1), within, replan(1), replan(1), within],
            [replan(1), replan(2), replan(1), replan(2), replan(1), replan(1)],
            [replan(1), replan(1), none, replan(1), replan(1), none],
        ] {
            assert_eq!(believed(&judgements), [None; 6], "{judgements:?}");
        }
    }

    #[test]
    fn that_a_plan_fits_is_believed_as_well() {
        let within = DriftJudgement::Within;
        let believed = believed(&[within, within, within, within, replan(1), within]);
        assert_eq!(believed, [None, None, Some(within), None, None, None]);
    }

    #[test]
    fn a_plan_is_looked_at_after_its_first_steps_and_one_review_is_under_way_at_a_time() {
        let mut plan_watch = plan_watch();
        let review = STEPS_FIRST + REVIEW_STEPS as u64;
        assert_eq!(steps_to_review(&mut plan_watch), review);
        for _ in 0..10 * review {
            plan_watch.note_step();
            assert!(!plan_watch.is_due(), "nobody has answered");
        }
        plan_watch.give_up_review();
        assert!(plan_watch.is_due(), "enough was measured meanwhile");
    }

    /// A cluster of two that take turns: each plan is wrong as soon as it runs.
    #[test]
    fn however_times_vary_plans_change_ever_more_rarely() {
        let mut plan_watch = plan_watch();
        let mut steps = Vec::new();
        for _ in 0..12 {
            let until: u64 = (0..AGREEING)
                .map(|_| {
                    let steps = steps_to_review(&mut plan_watch);
                    plan_watch.note_judgement(replan(0));
                    steps
                })
                .sum();
            steps.push(until);
            plan_watch.begin(&drifted());
        }
        assert!(steps[0] < STEPS_APART);
        for (drifts, found) in (0..).zip(&steps[1..]) {
            let least = (STEPS_APART << drifts.min(16)).min(STEPS_APART_MAX);
            assert!(*found > least && *found < least + STEPS_APART, "{steps:?}");
        }
        plan_watch.begin(&PlanReason::Joined { count: 1 });
        assert_eq!(
            steps_to_review(&mut plan_watch),
            steps[0] - 2 * REVIEW_STEPS as u64,
            "forgiven"
        );
    }
}
