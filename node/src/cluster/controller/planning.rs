//! Plans on a controller: the thread that searches them, and the estimate of the cluster's pace, by
//! which they are made and reviewed. Entries and steps go to the tracker, reviews to the solver
//! thread, and their results to the core, the solver and the log.

use zbelastic_consensus::core::{Core, Input};
use zbelastic_consensus::duty::SolveRequest;
use zbelastic_consensus::state::StateChange;
use zbelastic_planner::{
    LinkTimes, PaceEstimate, PaceTracker, PlanReview, ReviewOutcome, ReviewedPlan,
};
use zbelastic_trainer::model::LayerClass;
use zbelastic_trainer::plan::{ClassCosts, LayerCost, LayerWork};
use zbelastic_types::{Digest, NodeId};

use super::ports::ControllerPorts;
use crate::cluster::run_log::RunLog;
use crate::cluster::solver::SolverThread;
use zbelastic_api::{LayerPace, LinkPace, PaceStatus};
use zbelastic_config::ReplanPolicy;

/// The thread that searches plans, and the measured pace of nodes and links.
pub(super) struct Planning {
    solver: SolverThread,
    tracker: PaceTracker,
}

impl Planning {
    pub(super) fn new(solver: SolverThread) -> Self {
        Self { solver, tracker: PaceTracker::default() }
    }

    /// The measured pace of nodes and links.
    pub(super) const fn tracker(&self) -> &PaceTracker {
        &self.tracker
    }

    /// The core requests a plan.
    pub(super) fn request(&mut self, request: SolveRequest) {
        self.solver.request(request);
    }

    /// A job is under way, or another one.
    pub(super) fn set_job(&mut self, name: Digest, core: &mut Core) {
        self.tracker.set_job(name);
        self.send_estimate(core);
    }

    /// A tick passes: requests that wait for the solver or the core are passed on.
    pub(super) fn handle_tick(&mut self, core: &mut Core) {
        self.solver.handle_tick();
        self.send_estimate(core);
    }

    /// Applies an entry to the measurements, and has the plan in force judged if that is due.
    pub(super) fn note_change(&mut self, change: &StateChange, core: &Core, run_log: &RunLog) {
        let measure = |turn| run_log.timings().measure(turn);
        if !self.tracker.note_change(change, core.state(), measure) {
            return;
        }
        let review = self.begin_review(core, run_log);
        let spec = core.state().running_spec().cloned();
        let is_sent = spec.zip(review).is_some_and(|(spec, it)| self.solver.review(spec, it));
        if !is_sent {
            self.tracker.give_up_review();
        }
    }

    fn begin_review(&mut self, core: &Core, run_log: &RunLog) -> Option<PlanReview> {
        let config = &run_log.job()?.job.config;
        let job = config.planner_job().ok()?;
        let is_allowed = match config.elastic.replan {
            ReplanPolicy::Drift => true,
            ReplanPolicy::Never => false,
        };
        let pause_us = run_log.last_pause().map_or(0.0, |pause| pause.as_secs_f64() * 1e6);
        let may_replan = is_allowed && core.status().leads_applied;
        self.tracker.begin_review(core.state(), &job, (may_replan, pause_us))
    }

    /// A judgement on the plan in force, or on one that was.
    pub(super) fn handle_review(&mut self, reviewed: ReviewedPlan, ports: &mut ControllerPorts) {
        let generation = ports.state().generation();
        match self.tracker.handle_review(generation, reviewed) {
            ReviewOutcome::Ignored => return,
            ReviewOutcome::Fits => {}
            ReviewOutcome::Drifted { reason, slack, text, .. } => {
                let slack = 100.0 * slack;
                ports.journal.log(format!("{text}: {reason}; its slack was {slack:.0} %"));
            }
        }
        self.send_estimate(&mut ports.core);
    }

    /// Passes to the core and to the solver the estimate they do not know yet; if too much waits
    /// there, at the next tick.
    fn send_estimate(&mut self, core: &mut Core) {
        let leads = core.status().leads_applied;
        let Some(estimate) = self.tracker.unsent(leads).cloned() else { return };
        if !self.solver.set_estimate(estimate) {
            return;
        }
        let measurement = self.tracker.note_sent(core.state().generation());
        // A measurement that does not belong is counted by the core, and changes nothing.
        let _ = core.handle(Input::Measured(Box::new(measurement)));
    }
}

/// The measured times, as the API reports them.
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
