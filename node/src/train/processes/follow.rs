//! Follows a run in processes: its events as the news that a run in one process reports. A run that is
//! to end before its time is held, which keeps the version it is held at.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_consensus::validation::Verdict;
use zbelastic_types::Step;

use super::ASK_PAUSE;
use super::children::Children;
use super::model::ModelWriter;
use super::retold::Retold;
use super::standstill::{InVain, STANDSTILL, Watch};
use crate::api::client::ApiClient;
use crate::api::{Answer, Event, EventKind, JobPhaseStatus, Request, Status};
use crate::commands::follow::Follower;
use crate::failure::{Detail, Failure, FailureCode};
use crate::train::events::RollbackEvent;
use crate::train::interrupt::Interrupt;
use crate::train::mail::Evaluated;
use crate::train::news::{News, StepRecord};
use crate::train::timing::Bubbles;

/// Pause between two requests for the state of a run whose events do not show that it is over.
const STATUS_PAUSE: Duration = Duration::from_millis(500);

/// How often a person reads what takes long, and how long it must take to be worth a line.
const ACTIVITY_EVERY: Duration = Duration::from_secs(5);

/// What happens, as it is reported to the observer.
pub enum Told<'a> {
    /// News that a run in one process reports too.
    News(News),
    /// Work was dropped, with the reason that the cluster's event gives.
    Rollback(RollbackEvent),
    /// An event that only a cluster has.
    Event(&'a Event),
    /// What takes long, and how far it is.
    Activity(String),
}

/// Called with what happens; breaks if the run is to end with the step under way.
pub type Observe<'a> = &'a mut dyn FnMut(Told<'_>) -> ControlFlow<()>;

/// What a run is followed for.
pub struct Wishes<'a> {
    /// Whether a person wants it to end before its time.
    pub interrupt: &'a Interrupt,
    /// Whether held-out text is read at the end.
    pub reads_held_out: bool,
    /// The bubble that was planned, until passes were measured.
    pub bubble_planned: f64,
}

/// How a run ended.
pub struct Ended {
    /// Steps that were sealed.
    pub steps_done: u64,
    /// The loss on held-out text after the last of them.
    pub held_out: Option<Evaluated>,
}

/// Reports what happens until the run is over. The model is written once its checkpoint is durable.
///
/// # Errors
/// If it ends otherwise than done or as it was wished, or no answer comes for too long.
pub fn follow(
    from: u64,
    wishes: &Wishes<'_>,
    (children, client): (&mut Children, &mut ApiClient<'_>),
    writer: &mut ModelWriter,
    observe: Observe<'_>,
) -> Result<Ended, Failure> {
    let mut follower = Follower::starting_at(from);
    let mut course = Course::new(wishes);
    let mut heard = Instant::now();
    loop {
        children.look_after()?;
        let polled = match follower.poll(client) {
            Ok(polled) => polled,
            Err(error) if heard.elapsed() > STANDSTILL => return Err(error.into()),
            Err(_) => {
                thread::sleep(ASK_PAUSE);
                continue;
            }
        };
        heard = Instant::now();
        if polled.is_other_log {
            course.retold.begin();
        }
        polled.events.iter().for_each(|event| course.tell(event, observe));
        if polled.events.iter().any(|event| matches!(event.kind, EventKind::Step { .. })) {
            children.note_sealed();
        }
        course.hold_if_wished(client);
        if !polled.events.is_empty() {
            continue;
        }
        if course.may_be_over()
            && let Some(steps_done) = course.over((children, client), writer, observe)?
        {
            // What was sealed between the last question and the end.
            let rest = follower.poll(client).unwrap_or_default();
            rest.events.iter().for_each(|event| course.tell(event, observe));
            return Ok(course.ended(steps_done));
        }
        thread::sleep(ASK_PAUSE);
    }
}

/// How far a run is on its way to its end.
struct Course<'a> {
    wishes: &'a Wishes<'a>,
    /// Whether the observer has ended the run.
    is_left: bool,
    retold: Retold,
    held_out: Option<Evaluated>,
    /// Whether all steps are sealed, or it is held: a checkpoint or a loss is missing.
    is_ending: bool,
    watch: Watch,
    /// Whether it was held from here.
    is_held: bool,
    /// The last warning of the cluster.
    warning: Option<String>,
    /// When the run's state was requested, if nothing but steps was reported since.
    asked: Option<Instant>,
    /// When anything was reported last.
    said: Instant,
}

impl<'a> Course<'a> {
    fn new(wishes: &'a Wishes<'a>) -> Self {
        Self {
            wishes,
            is_left: false,
            retold: Retold::default(),
            held_out: None,
            is_ending: false,
            watch: Watch::begin(Instant::now()),
            is_held: false,
            warning: None,
            asked: None,
            said: Instant::now(),
        }
    }

    fn tell(&mut self, event: &Event, observe: Observe<'_>) {
        if !self.retold.is_new(&event.kind) {
            return;
        }
        if let EventKind::HeldOut { step, loss: Some(loss) } = event.kind {
            self.held_out = Some(Evaluated { steps_done: step, loss });
        }
        if !matches!(event.kind, EventKind::Step { .. }) {
            self.asked = None;
        }
        if let EventKind::Warning { what } = &event.kind {
            self.warning = Some(what.clone());
        }
        // The pause was ordered from here, so it is no news.
        if self.is_held && matches!(event.kind, EventKind::Paused { .. }) {
            return;
        }
        self.said = Instant::now();
        let told = told(event, self.wishes.bubble_planned);
        self.is_left |= observe(told).is_break();
    }

    /// Holds a run that is to end before its time, once there is something to keep.
    fn hold_if_wished(&mut self, client: &mut ApiClient<'_>) {
        let is_wished = self.is_left || self.wishes.interrupt.is_requested();
        if !is_wished || self.is_held {
            return;
        }
        let status = client.status().ok().and_then(|status| status.job);
        if status.is_none_or(|job| job.step == 0) {
            return;
        }
        // If there is no answer, or it is done meanwhile, that shows when it is looked at again.
        self.is_held = matches!(client.ask(&Request::Pause), Ok(Answer::Job(_)));
    }

    /// Whether to request the run's state. Once it is ending or held, it is requested each time.
    fn may_be_over(&mut self) -> bool {
        let is_ending = self.is_ending || self.is_held;
        if !is_ending && self.asked.is_some_and(|asked| asked.elapsed() < STATUS_PAUSE) {
            return false;
        }
        self.asked = Some(Instant::now());
        true
    }

    /// The steps it ended with, if it is over and what it ended with is kept.
    fn over(
        &mut self,
        (children, client): (&mut Children, &mut ApiClient<'_>),
        writer: &mut ModelWriter,
        observe: Observe<'_>,
    ) -> Result<Option<u64>, Failure> {
        let Ok(status) = client.status() else { return Ok(None) };
        let now = Instant::now();
        self.watch.look(&status, now).map_err(|in_vain| self.given_up(&in_vain, children))?;
        self.say_activity(&status, now, observe);
        let Some(job) = &status.job else { return Ok(None) };
        self.is_ending = job.step >= job.step_count;
        match &job.phase {
            JobPhaseStatus::Done => {
                writer.begin(job.step);
                let may_come = self.watch.is_evaluated(&status, now);
                let is_read = self.held_out.is_some_and(|last| last.steps_done == job.step);
                let is_complete = !self.wishes.reads_held_out || is_read || !may_come;
                Ok(is_complete.then_some(job.step))
            }
            JobPhaseStatus::Halted { reason } => {
                let what = format!("the run is held after step {}: {reason}", job.step);
                Err(Failure::new(FailureCode::WrongState, what))
            }
            JobPhaseStatus::Stopped => {
                let what = format!("somebody stopped the run after step {}", job.step);
                Err(Failure::new(FailureCode::WrongState, what))
            }
            JobPhaseStatus::Paused if self.is_held && client.checkpoint(job.step).is_ok() => {
                Ok(Some(job.step))
            }
            JobPhaseStatus::Running | JobPhaseStatus::Waiting { .. } | JobPhaseStatus::Paused => {
                Ok(None)
            }
        }
    }

    /// Reports what takes long, if nothing was reported for a while.
    fn say_activity(&mut self, status: &Status, now: Instant, observe: Observe<'_>) {
        let text = activity_text(status);
        if let Some(text) = text.filter(|_| now.duration_since(self.said) >= ACTIVITY_EVERY) {
            self.said = now;
            self.is_left |= observe(Told::Activity(text)).is_break();
        }
    }

    /// The failure of a run that is given up.
    fn given_up(&self, in_vain: &InVain, children: &Children) -> Failure {
        let mut failure = in_vain.failure(Vec::new());
        failure.details.extend(self.warning.iter().map(|what| Detail::new(what.clone())));
        failure.details.extend(children.last_words());
        if let InVain::Checkpoint { .. } = in_vain {
            if self.wishes.interrupt.is_requested() {
                failure.code = self.wishes.interrupt.code();
            }
            let out = children.run_folder().display();
            let detail =
                Detail::new("there is no model of it; what is sealed stays with its processes");
            let hint = format!("room on the disk; then the same command with --out {out} goes on");
            failure.details.push(detail.hint(hint));
        }
        failure
    }

    fn ended(self, steps_done: u64) -> Ended {
        let held_out = self.held_out.filter(|last| last.steps_done == steps_done);
        Ended { steps_done, held_out }
    }
}

/// What a run waits for, or which members are at something that takes long.
fn activity_text(status: &Status) -> Option<String> {
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
fn told(event: &Event, bubble_planned: f64) -> Told<'_> {
    if let EventKind::HeldOut { step, loss } = &event.kind {
        let loss = loss.unwrap_or(f64::NAN);
        return Told::News(News::Evaluated(Evaluated { steps_done: *step, loss }));
    }
    if let EventKind::Rollback { step, verdict, reason } = &event.kind {
        let verdict = verdict_of(verdict, None).name();
        return Told::Rollback(RollbackEvent { step: *step, verdict, reason: reason.clone() });
    }
    match step_record(&event.kind, bubble_planned) {
        Some(record) => Told::News(News::Step(record)),
        None => Told::Event(event),
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
        bubbles: Bubbles { measured: bubble.unwrap_or(0.0), planned, causes: *causes },
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
