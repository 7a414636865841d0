//! Follows a run in processes: its events as the news that a run in one process tells.

use std::thread;
use std::time::{Duration, Instant};

use zbelastic_consensus::validation::Verdict;
use zbelastic_types::Step;

use super::ASK_PAUSE;
use super::children::Children;
use crate::api::client::ApiClient;
use crate::api::{Event, EventKind, JobPhaseStatus, Request};
use crate::commands::follow::Follower;
use crate::failure::{Detail, Failure, FailureCode};
use crate::train::interrupt::Interrupt;
use crate::train::mail::Evaluated;
use crate::train::news::{News, StepRecord};
use crate::train::timing::Bubbles;

/// Nobody answers for so long, or something is wrong beyond what a restart mends.
const SILENCE: Duration = Duration::from_secs(60);

/// Held-out text is read after the last step within this, or nobody is left who could tell.
const HELD_OUT_WITHIN: Duration = Duration::from_secs(30);

/// What happens.
pub enum Told<'a> {
    /// What a run in one process tells too.
    News(News),
    /// What only a cluster tells.
    Event(&'a Event),
}

impl Told<'_> {
    /// The same, with the bubble that was planned for the run.
    #[must_use]
    pub fn with_plan(self, planned: f64) -> Self {
        match self {
            Self::News(News::Step(mut record)) => {
                record.bubbles.planned = planned;
                Self::News(News::Step(record))
            }
            other @ (Self::News(News::Rollback(_) | News::Evaluated(_)) | Self::Event(_)) => other,
        }
    }
}

/// How a run ended.
pub struct Ended {
    /// Steps that were sealed.
    pub steps_done: u64,
    /// The loss on held-out text after the last of them.
    pub held_out: Option<Evaluated>,
}

/// Tells what happens until the run is over.
///
/// # Errors
/// If it ends otherwise than done, or nobody answers for too long.
pub fn follow(
    from: u64,
    (interrupt, reads_held_out): (&Interrupt, bool),
    children: &mut Children,
    client: &mut ApiClient<'_>,
    observe: &mut dyn FnMut(Told<'_>),
) -> Result<Ended, Failure> {
    let mut follower = Follower::starting_at(from);
    let (mut held_out, mut heard, mut done_since) = (None, Instant::now(), None);
    loop {
        children.look_after()?;
        if interrupt.is_requested() {
            return Err(interrupted(children, client));
        }
        let polled = match follower.poll(client) {
            Ok(polled) => polled,
            Err(error) if heard.elapsed() > SILENCE => return Err(error.into()),
            Err(_) => {
                thread::sleep(ASK_PAUSE);
                continue;
            }
        };
        heard = Instant::now();
        for event in &polled.events {
            if let EventKind::HeldOut { step, loss: Some(loss) } = event.kind {
                held_out = Some(Evaluated { steps_done: step, loss });
            }
            match news(&event.kind) {
                Some(news) => observe(Told::News(news)),
                None => observe(Told::Event(event)),
            }
        }
        if polled.events.is_empty() {
            if let Some(ended) = over(client, held_out)? {
                let is_complete = !reads_held_out || ended.held_out.is_some();
                let since = *done_since.get_or_insert_with(Instant::now);
                if is_complete || since.elapsed() > HELD_OUT_WITHIN {
                    return Ok(ended);
                }
            }
            thread::sleep(ASK_PAUSE);
        }
    }
}

/// Whether every step is sealed, and what is known then.
fn over(client: &mut ApiClient<'_>, held_out: Option<Evaluated>) -> Result<Option<Ended>, Failure> {
    let Some(job) = client.status().ok().and_then(|status| status.job) else { return Ok(None) };
    match job.phase {
        JobPhaseStatus::Done => {
            let is_last = |last: &Evaluated| last.steps_done == job.step;
            Ok(Some(Ended { steps_done: job.step, held_out: held_out.filter(is_last) }))
        }
        JobPhaseStatus::Halted { reason } => {
            let what = format!("the run is held after step {}: {reason}", job.step);
            Err(Failure::new(FailureCode::WrongState, what))
        }
        JobPhaseStatus::Stopped => {
            let what = format!("somebody stopped the run after step {}", job.step);
            Err(Failure::new(FailureCode::WrongState, what))
        }
        JobPhaseStatus::Running | JobPhaseStatus::Waiting { .. } | JobPhaseStatus::Paused => {
            Ok(None)
        }
    }
}

/// Ends the processes of a run that a person does not want to wait for; what is sealed stays.
fn interrupted(children: &mut Children, client: &mut ApiClient<'_>) -> Failure {
    let step = client.status().ok().and_then(|status| status.job).map_or(0, |job| job.step);
    let _ = client.ask(&Request::Pause);
    children.end();
    let what = format!("interrupted after step {step}; nothing that was sealed is lost");
    let mut failure = Failure::new(FailureCode::Interrupted, what);
    let out = children.run_folder().display();
    let detail = Detail::new("its processes have ended");
    failure.details = vec![detail.hint(format!("the same command with --out {out} goes on"))];
    failure
}

/// An event as a run in one process would tell it.
fn news(kind: &EventKind) -> Option<News> {
    if let EventKind::HeldOut { step, loss } = kind {
        let loss = loss.unwrap_or(f64::NAN);
        return Some(News::Evaluated(Evaluated { steps_done: *step, loss }));
    }
    let EventKind::Step { step, loss, gnorm, verdict, clip, lr, ms, tokens_per_s, .. } = kind
    else {
        return None;
    };
    let EventKind::Step { attempts, bubble, .. } = kind else { return None };
    let elapsed = Duration::from_secs_f64(ms / 1e3);
    Some(News::Step(StepRecord {
        step: Step(step - 1),
        loss: loss.unwrap_or(f64::NAN),
        norm: gnorm.unwrap_or(f64::NAN),
        verdict: verdict_of(verdict, *clip),
        lr: *lr,
        elapsed,
        tokens: (tokens_per_s * elapsed.as_secs_f64()).round() as u64,
        bubbles: Bubbles { measured: bubble.unwrap_or(0.0), planned: f64::NAN },
        attempts: *attempts,
    }))
}

fn verdict_of(name: &str, clip: Option<f64>) -> Verdict {
    match (name, clip) {
        ("skip", _) | (_, None) => Verdict::Skip,
        ("keep", Some(_)) => Verdict::Keep,
        (_, Some(clip)) => Verdict::Clip { coefficient: clip as f32 },
    }
}
