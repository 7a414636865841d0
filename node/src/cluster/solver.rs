//! The thread that searches plans, off the event loop. The leader sends a request, gets an answer, and proposes it;
//! the decisions of the package `planner` about plans are called here.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_consensus::duty::{PlanSolution, PlanUnsolvable, SolveRequest};
use zbelastic_consensus::job::JobSpec;
use zbelastic_planner::{
    PaceEstimate, PlanReview, PlanSearch, PlannerJob, ReviewedPlan, SuccessorChoice,
};
use zbelastic_policy::tick::TICK;
use zbelastic_types::Digest;
use zbelastic_wire::document::JobDocument;

/// Requests that wait at once: a leader sends one at a time, and gives up those before it.
const REQUESTS_MAX: usize = 4;

/// A plan, or that there is none.
pub struct SolvedPlan {
    /// As in the request.
    pub number: u64,
    /// The plan that was found, or why there is none.
    pub solution: Result<PlanSolution, PlanUnsolvable>,
    /// What was chosen where workers leave or are free, and why.
    pub choice: Option<SuccessorChoice>,
}

/// The answers of the thread.
pub enum SolverAnswer {
    /// To a request for a plan.
    Solved(Box<SolvedPlan>),
    /// To the review of a plan.
    Reviewed(Box<ReviewedPlan>),
}

/// The commands to the thread.
enum SolverCommand {
    Solve(Box<SolveRequest>),
    Review(Arc<JobSpec>, Box<PlanReview>),
    /// Plans are made with this from now on.
    SetEstimate(Box<PaceEstimate>),
}

/// The thread that looks for plans.
pub struct SolverThread {
    commands: SyncSender<SolverCommand>,
    /// A request that found no room.
    waiting: Option<Box<SolveRequest>>,
}

impl SolverThread {
    /// Starts the thread; answers come through the receiver.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start() -> std::io::Result<(Self, mpsc::Receiver<SolverAnswer>)> {
        let (commands, inbox) = sync_channel(REQUESTS_MAX);
        let (answers, outbox) = mpsc::channel(REQUESTS_MAX);
        let search = move || SolverState::new().serve(&inbox, &answers);
        thread::Builder::new().name("solver".to_owned()).spawn(search)?;
        Ok((Self { commands, waiting: None }, outbox))
    }

    /// Requests a plan. With too many waiting it waits for room, in place of the one before: a leader
    /// gives up its earlier requests, and waits for an answer to the last one.
    pub fn request(&mut self, request: SolveRequest) {
        self.waiting = Some(Box::new(request));
        self.handle_tick();
    }

    /// Passes on a request that waits, if there is room.
    pub fn handle_tick(&mut self) {
        let Some(request) = self.waiting.take() else { return };
        if let Err(TrySendError::Full(SolverCommand::Solve(request))) =
            self.commands.try_send(SolverCommand::Solve(request))
        {
            self.waiting = Some(request);
        }
    }

    /// Has a plan of this job judged. Yields whether the thread has accepted it.
    pub fn review(&self, spec: Arc<JobSpec>, review: PlanReview) -> bool {
        self.commands.try_send(SolverCommand::Review(spec, Box::new(review))).is_ok()
    }

    /// Has plans made with the present estimate. Yields whether they will be.
    pub fn set_estimate(&self, known: PaceEstimate) -> bool {
        self.commands.try_send(SolverCommand::SetEstimate(Box::new(known))).is_ok()
    }
}

/// The search, and the job that it was done for last.
struct SolverState {
    job: Option<(Digest, PlannerJob)>,
    search: PlanSearch,
}

impl SolverState {
    fn new() -> Self {
        Self { job: None, search: PlanSearch::new(TICK) }
    }

    fn serve(mut self, commands: &Receiver<SolverCommand>, answers: &mpsc::Sender<SolverAnswer>) {
        while let Ok(command) = commands.recv() {
            let is_received = match command {
                SolverCommand::Solve(request) => {
                    let (solution, choice) = match self.solve(&request) {
                        Ok((solution, choice)) => (Ok(solution), choice),
                        Err(unsolvable) => (Err(unsolvable), None),
                    };
                    let solved = Box::new(SolvedPlan { number: request.number, solution, choice });
                    let is_received = answers.blocking_send(SolverAnswer::Solved(solved)).is_ok();
                    if let Ok(job) = self.job(&request.spec) {
                        self.search.solve_ahead(&job, request.window, &request.nodes);
                    }
                    is_received
                }
                // A plan of a job that cannot be read is not judged: that is reported where it is
                // worked on.
                SolverCommand::Review(spec, review) => match self.job(&spec) {
                    Err(_) => true,
                    Ok(job) => {
                        let reviewed = Box::new(review.judge(&job));
                        answers.blocking_send(SolverAnswer::Reviewed(reviewed)).is_ok()
                    }
                },
                SolverCommand::SetEstimate(estimate) => {
                    self.search.set_estimate(*estimate);
                    true
                }
            };
            if !is_received {
                return;
            }
        }
    }

    fn solve(
        &mut self,
        request: &SolveRequest,
    ) -> Result<(PlanSolution, Option<SuccessorChoice>), PlanUnsolvable> {
        let nodes = request.nodes.len();
        let unsolvable = |reason: String| PlanUnsolvable { nodes, reason };
        let job = self.job(&request.spec).map_err(unsolvable)?;
        let of_job = (&job, request.window);
        let found = self.search.solve_from(of_job, &request.nodes, request.in_force.as_ref());
        found.map_err(|reason| {
            let shortage = self.search.shortage(&job, request.window, &request.nodes);
            unsolvable(shortage.map_or(reason, |shortage| shortage.to_string()))
        })
    }

    /// The planner's job that plans depend on.
    ///
    /// # Errors
    /// If its document cannot be read, or its schedule has no steps to seal. A cluster refuses such a job when
    /// it is submitted.
    fn job(&mut self, spec: &JobSpec) -> Result<PlannerJob, String> {
        if let Some((_, job)) = self.job.as_ref().filter(|(name, _)| *name == spec.config) {
            return Ok(job.clone());
        }
        let named = JobDocument::of_job(spec).map_err(|error| error.to_string())?;
        let job = named.job.config.planner_job();
        let job = job.map_err(|kind| format!("{kind} has no steps to seal"))?;
        self.search.clear();
        self.job = Some((named.name, job.clone()));
        Ok(job)
    }
}
