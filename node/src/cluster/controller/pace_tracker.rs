//! The shell around what is known of the cluster's pace: entries and steps go to the tracker, reviews to the solver
//! thread, and what comes of them to the core, the solver and the log.

use zbelastic_api::{EventKind, LayerPace, LinkPace, PaceStatus};
use zbelastic_config::ReplanPolicy;
use zbelastic_consensus::core::Input;
use zbelastic_consensus::state::StateChange;
use zbelastic_planner::{LinkTimes, PaceEstimate, PlanReview, ReviewOutcome, ReviewedPlan};
use zbelastic_trainer::model::LayerClass;
use zbelastic_trainer::plan::{ClassCosts, LayerCost, LayerWork};
use zbelastic_types::NodeId;

use super::ControllerNode;

impl ControllerNode {
    pub(super) fn note_held_out(&mut self, steps_done: u64, loss: f64) {
        if self.run_log.note_held_out(steps_done, loss) {
            let loss = Some(loss).filter(|loss| loss.is_finite());
            self.journal.record(EventKind::HeldOut { step: steps_done, loss });
        }
    }

    /// Applies an entry to what is measured, and has the plan in force judged if that is due.
    pub(super) fn note_pace(&mut self, change: &StateChange) {
        let run_log = &self.run_log;
        let measure = |turn| run_log.measure(turn);
        if !self.pace_tracker.note_change(change, self.core.state(), measure) {
            return;
        }
        let review = self.begin_review();
        let spec = self.core.state().running_spec().cloned();
        let is_sent = spec.zip(review).is_some_and(|(spec, it)| self.solver.review(spec, it));
        if !is_sent {
            self.pace_tracker.give_up_review();
        }
    }

    fn begin_review(&mut self) -> Option<PlanReview> {
        let job = self.run_log.job()?.job.config.planner_job().ok()?;
        let is_allowed = match self.run_log.job()?.job.config.elastic.replan {
            ReplanPolicy::Drift => true,
            ReplanPolicy::Never => false,
        };
        let pause_us = self.run_log.last_pause().map_or(0.0, |pause| pause.as_secs_f64() * 1e6);
        let may_replan = is_allowed && self.leads();
        self.pace_tracker.begin_review(self.core.state(), &job, (may_replan, pause_us))
    }

    /// A judgement on the plan in force, or on one that was.
    pub(super) fn handle_review(&mut self, reviewed: ReviewedPlan) {
        let generation = self.core.state().generation();
        match self.pace_tracker.handle_review(generation, reviewed) {
            ReviewOutcome::Ignored => return,
            ReviewOutcome::Fits => {}
            ReviewOutcome::Drifted { reason, slack, text, .. } => {
                let slack = 100.0 * slack;
                self.journal.log(format!("{text}: {reason}; its slack was {slack:.0} %"));
            }
        }
        self.send_estimate();
    }

    /// Passes to the core and to the solver what they do not know yet; if too much waits there,
    /// at the next tick.
    pub(super) fn send_estimate(&mut self) {
        let leads = self.leads();
        let Some(estimate) = self.pace_tracker.unsent(leads).cloned() else { return };
        if !self.solver.set_estimate(estimate) {
            return;
        }
        let measurement = self.pace_tracker.note_sent(self.core.state().generation());
        self.send_to_core(Input::Measured(Box::new(measurement)));
    }
}

/// What was measured, as the API reports it.
pub(super) fn pace_status(estimate: &PaceEstimate) -> PaceStatus {
    let classes = estimate.calibration.map_or_else(ClassCosts::default, |found| found.classes);
    let layer = |(class, cost): (LayerClass, Option<LayerCost>)| {
        let LayerCost { work, update: update_us, recompute: recompute_us } = cost?;
        let LayerWork { f: f_us, b: b_us, w: w_us, .. } = work;
        let layer = class.name().to_owned();
        Some(LayerPace { layer, f_us, b_us, w_us, update_us, recompute_us })
    };
    let link = |((a, b), link): (&(NodeId, NodeId), &LinkTimes)| {
        let LinkTimes { latency_us, occupancy_us } = *link;
        LinkPace { nodes: [*a, *b], latency_us, occupancy_us }
    };
    PaceStatus {
        layers: LayerClass::ALL.into_iter().zip(classes).filter_map(layer).collect(),
        links: estimate.links.iter().map(link).collect(),
        verdict_us: (estimate.verdict_us > 0.0).then_some(estimate.verdict_us),
    }
}
