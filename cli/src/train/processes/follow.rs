//! Follows a run in processes: its events as the progress events of a run in one process. A run
//! that is to end before its time is held, which keeps the version it is held at.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiAnswer, ApiRequest, ClusterEvent, EventKind, JobPhaseStatus, StatusReport};
use zbelastic_consensus::validation::Verdict;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::messages::HeldOutLoss;
use zbelastic_local::progress_event::{ProgressEvent, StepRecord};
use zbelastic_timing::BubbleShares;
use zbelastic_types::Step;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::children::ChildProcesses;
use super::model::ModelWriter;
use super::poll_pace::{POLL_PAUSE, PollPace};
use super::stall::{GiveUpReason, STALL_TIMEOUT, StallWatch};
use crate::event_poller::EventPoller;
use crate::train::events::{BranchEvent, RollbackEvent};

/// Pause between two requests for the state of a run without an event that shows that it is over.
const STATUS_PAUSE: Duration = Duration::from_millis(500);

/// How often a person reads about a long activity, and how long it must last to be worth a line.
const ACTIVITY_EVERY: Duration = Duration::from_secs(5);

/// An event of a run, as it is reported to the observer.
pub enum ClusterRunEvent<'a> {
    /// An event that a run in one process reports too.
    Progress(ProgressEvent),
    /// Work was dropped, with the reason that the cluster's event gives.
    Rollback(RollbackEvent),
    /// It goes on from the run that was in its folder.
    Branch(BranchEvent),
    /// An event that only a cluster has.
    Event(&'a ClusterEvent),
    /// A long activity, and its progress.
    Activity(String),
}

/// Called with each event; breaks if the run is to end with the step under way.
pub type RunObserver<'a> = &'a mut dyn FnMut(ClusterRunEvent<'_>) -> ControlFlow<()>;

/// Options of following a run.
pub struct FollowOptions<'a> {
    /// Whether a person requested that it ends early.
    pub interrupt: &'a Interrupt,
    /// Whether held-out text is read at the end.
    pub reads_held_out: bool,
    /// The bubble that was planned, until passes were measured.
    pub bubble_planned: f64,
}

/// How a run ended.
pub struct FollowOutcome {
    /// Steps that were sealed.
    pub steps_done: u64,
    /// The loss on held-out text after the last of them.
    pub held_out: Option<HeldOutLoss>,
}

/// Reports events until the run is over. The model is written once its checkpoint is durable.
///
/// # Errors
/// If it ends otherwise than done or as requested, or no answer comes for too long.
pub fn follow(
    from: u64,
    options: &FollowOptions<'_>,
    (children, client): (&mut ChildProcesses, &mut ApiClient<'_>),
    writer: &mut ModelWriter,
    observe: RunObserver<'_>,
) -> Result<FollowOutcome, CommandFailure> {
    let mut poller = EventPoller::starting_at(from);
    let mut tracker = RunTracker::new(options);
    let mut answered_at = Instant::now();
    let mut pace = PollPace::new();
    loop {
        children.restart_ended()?;
        let polled = match poller.poll(client) {
            Ok(polled) => polled,
            Err(error) if answered_at.elapsed() > STALL_TIMEOUT => return Err(error.into()),
            Err(_) => {
                thread::sleep(POLL_PAUSE);
                continue;
            }
        };
        answered_at = Instant::now();
        polled.events.iter().for_each(|event| tracker.report(event, observe));
        if polled.events.iter().any(|event| matches!(event.kind, EventKind::Step { .. })) {
            children.note_sealed();
        }
        tracker.pause_if_requested(client);
        if !polled.events.is_empty() {
            pace.reset();
            continue;
        }
        if tracker.may_be_over()
            && let Some(steps_done) = tracker.over((children, client), writer, observe)?
        {
            // Steps that were sealed between the last request and the end.
            let rest = poller.poll(client).unwrap_or_default();
            rest.events.iter().for_each(|event| tracker.report(event, observe));
            return Ok(tracker.ended(steps_done));
        }
        if tracker.is_ending || tracker.is_held {
            pace.reset();
        }
        children.attend(pace.poll_pause())?;
    }
}

/// How far a run is on its way to its end.
struct RunTracker<'a> {
    options: &'a FollowOptions<'a>,
    /// Whether the observer has ended the run.
    is_left: bool,
    held_out: Option<HeldOutLoss>,
    /// Whether all steps are sealed, or it is held: a checkpoint or a loss is missing.
    is_ending: bool,
    stall_watch: StallWatch,
    /// Whether this process paused it.
    is_held: bool,
    /// The last warning of the cluster.
    warning: Option<String>,
    /// When the run's state was requested, if nothing but steps was reported since.
    status_requested_at: Option<Instant>,
    /// When anything was reported last.
    reported_at: Instant,
}

impl<'a> RunTracker<'a> {
    fn new(options: &'a FollowOptions<'a>) -> Self {
        Self {
            options,
            is_left: false,
            held_out: None,
            is_ending: false,
            stall_watch: StallWatch::begin(Instant::now()),
            is_held: false,
            warning: None,
            status_requested_at: None,
            reported_at: Instant::now(),
        }
    }

    fn report(&mut self, event: &ClusterEvent, observe: RunObserver<'_>) {
        if let EventKind::HeldOut { step, loss: Some(loss) } = event.kind {
            self.held_out = Some(HeldOutLoss { steps_done: step, loss });
        }
        if !matches!(event.kind, EventKind::Step { .. }) {
            self.status_requested_at = None;
        }
        if let EventKind::Warning { what } = &event.kind {
            self.warning = Some(what.clone());
        }
        // The pause was requested here, so it is not reported.
        if self.is_held && matches!(event.kind, EventKind::Paused { .. }) {
            return;
        }
        self.reported_at = Instant::now();
        let observed = observed_event(event, self.options.bubble_planned);
        self.is_left |= observe(observed).is_break();
    }

    /// Holds a run that is to end before its time, once there is something to keep.
    fn pause_if_requested(&mut self, client: &mut ApiClient<'_>) {
        let is_requested = self.is_left || self.options.interrupt.is_requested();
        if !is_requested || self.is_held {
            return;
        }
        let status = client.status().ok().and_then(|status| status.job);
        if status.is_none_or(|job| job.step == 0) {
            return;
        }
        // If there is no answer, or it is done meanwhile, that shows at the next request.
        self.is_held = matches!(client.send(&ApiRequest::Pause), Ok(ApiAnswer::Job(_)));
    }

    /// Whether to request the run's state. Once it is ending or held, it is requested each time.
    fn may_be_over(&mut self) -> bool {
        let is_ending = self.is_ending || self.is_held;
        if !is_ending
            && self
                .status_requested_at
                .is_some_and(|requested_at| requested_at.elapsed() < STATUS_PAUSE)
        {
            return false;
        }
        self.status_requested_at = Some(Instant::now());
        true
    }

    /// The steps it ended with, if it is over and its last checkpoint is kept.
    fn over(
        &mut self,
        (children, client): (&mut ChildProcesses, &mut ApiClient<'_>),
        writer: &mut ModelWriter,
        observe: RunObserver<'_>,
    ) -> Result<Option<u64>, CommandFailure> {
        let Ok(status) = client.status() else { return Ok(None) };
        let now = Instant::now();
        self.stall_watch
            .check(&status, now)
            .map_err(|in_vain| self.given_up(&in_vain, children))?;
        self.report_activity(&status, now, observe);
        let Some(job) = &status.job else { return Ok(None) };
        self.is_ending = job.step >= job.step_count;
        match &job.phase {
            JobPhaseStatus::Done => {
                writer.begin(job.step);
                let may_come = self.stall_watch.is_evaluated(&status, now);
                let is_read = self.held_out.is_some_and(|last| last.steps_done == job.step);
                let is_complete = !self.options.reads_held_out || is_read || !may_come;
                Ok(is_complete.then_some(job.step))
            }
            JobPhaseStatus::Halted { reason } => {
                let what = format!("the run is held after step {}: {reason}", job.step);
                Err(CommandFailure::new(FailureCode::WrongState, what))
            }
            JobPhaseStatus::Stopped => {
                let what = format!("the run was stopped by a command after step {}", job.step);
                Err(CommandFailure::new(FailureCode::WrongState, what))
            }
            JobPhaseStatus::Paused if self.is_held && client.checkpoint(job.step).is_ok() => {
                Ok(Some(job.step))
            }
            JobPhaseStatus::Running | JobPhaseStatus::Waiting { .. } | JobPhaseStatus::Paused => {
                Ok(None)
            }
        }
    }

    /// Reports a long activity, if nothing was reported for a while.
    fn report_activity(&mut self, status: &StatusReport, now: Instant, observe: RunObserver<'_>) {
        let text = activity_text(status);
        if let Some(text) = text.filter(|_| now.duration_since(self.reported_at) >= ACTIVITY_EVERY)
        {
            self.reported_at = now;
            self.is_left |= observe(ClusterRunEvent::Activity(text)).is_break();
        }
    }

    /// The failure of a run that is given up.
    fn given_up(&self, give_up: &GiveUpReason, children: &ChildProcesses) -> CommandFailure {
        let mut failure = give_up.failure(Vec::new());
        failure.details.extend(self.warning.iter().map(|what| FailureDetail::new(what.clone())));
        failure.details.extend(children.last_log_lines());
        if let GiveUpReason::Checkpoint { .. } = give_up {
            if self.options.interrupt.is_requested() {
                failure.code = self.options.interrupt.code();
            }
            let out = children.run_folder().display();
            let detail = FailureDetail::new(
                "there is no model of it; what is sealed stays with its processes",
            );
            let hint = format!("space on the disk; then the same command with --out {out} goes on");
            failure.details.push(detail.hint(hint));
        }
        failure
    }

    fn ended(self, steps_done: u64) -> FollowOutcome {
        let held_out = self.held_out.filter(|last| last.steps_done == steps_done);
        FollowOutcome { steps_done, held_out }
    }
}

/// The reason that a run waits, or the members with a long activity.
fn activity_text(status: &StatusReport) -> Option<String> {
    if let Some(JobPhaseStatus::Waiting { reason }) = status.job.as_ref().map(|job| &job.phase) {
        return Some(reason.clone());
    }
    let active = status.members.iter().filter_map(|member| {
        let activity = member.work?.activity?;
        Some(format!("{} {activity}", member.name))
    });
    let texts: Vec<String> = active.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// An event in the form in which a run in one process would report it, if it would.
fn observed_event(event: &ClusterEvent, bubble_planned: f64) -> ClusterRunEvent<'_> {
    if let EventKind::HeldOut { step, loss } = &event.kind {
        let loss = loss.unwrap_or(f64::NAN);
        return ClusterRunEvent::Progress(ProgressEvent::Evaluated(HeldOutLoss {
            steps_done: *step,
            loss,
        }));
    }
    if let EventKind::Rollback { step, verdict, reason } = &event.kind {
        let verdict = verdict_of(verdict, None).name().to_owned();
        return ClusterRunEvent::Rollback(RollbackEvent {
            step: *step,
            verdict,
            reason: reason.clone(),
        });
    }
    match step_record(&event.kind, bubble_planned) {
        Some(record) => ClusterRunEvent::Progress(ProgressEvent::Step(record)),
        None => ClusterRunEvent::Event(event),
    }
}

fn step_record(kind: &EventKind, bubble_planned: f64) -> Option<StepRecord> {
    let EventKind::Step { step, loss, gnorm, verdict, clip, lr, ms, tokens_per_s, .. } = kind
    else {
        return None;
    };
    let EventKind::Step {
        attempts,
        bubble,
        bubble_planned: measured,
        causes,
        generation,
        stages,
        ..
    } = kind
    else {
        return None;
    };
    let elapsed = Duration::from_secs_f64(ms / 1e3);
    let planned = measured.unwrap_or(bubble_planned);
    Some(StepRecord {
        step: Step(step.saturating_sub(1)),
        loss: loss.unwrap_or(f64::NAN),
        norm: gnorm.unwrap_or(f64::NAN),
        verdict: verdict_of(verdict, *clip),
        lr: *lr,
        elapsed,
        tokens: (tokens_per_s * elapsed.as_secs_f64()).round() as u64,
        bubbles: BubbleShares { measured: bubble.unwrap_or(0.0), planned, causes: *causes },
        attempts: *attempts,
        generation: *generation,
        stage_count: *stages,
    })
}

fn verdict_of(name: &str, clip: Option<f64>) -> Verdict {
    match (name, clip) {
        ("replay", _) => Verdict::Replay,
        ("skip", _) | (_, None) => Verdict::Skip,
        ("keep", Some(_)) => Verdict::Keep,
        (_, Some(clip)) => Verdict::Clip { coefficient: clip as f32 },
    }
}
