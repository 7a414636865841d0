//! The events that `--json` prints and `metrics.jsonl` keeps: one object a line, each with its
//! `event`.
//!
//! JSON has no NaN and no infinity; a number that is one of them is `null`.

use serde::{Deserialize, Serialize};
use zbelastic_api::{ClusterEvent, EventKind, reason_text};
use zbelastic_consensus::validation::Verdict;
use zbelastic_local::messages::HeldOutLoss;
use zbelastic_local::progress_event::{Rollback, StepRecord};
use zbelastic_types::TensorIndex;
use zbelastic_wording::figures::tokens_per_s;

/// A line of the metrics file, and of standard output for scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum RunEvent {
    /// A step is sealed.
    Step(StepEvent),
    /// Work was dropped because something was wrong with it.
    Rollback(RollbackEvent),
    /// Held-out text was read.
    Eval(EvalEvent),
    /// The run goes on from the checkpoint of the run that was in its folder: the steps behind it follow
    /// again.
    Branch(BranchEvent),
    /// The run is over: the last line.
    Done(DoneEvent),
}

#[derive(Serialize, Deserialize)]
struct MetricsLine<E> {
    #[serde(flatten)]
    event: E,
    at_ms: u64,
}

/// A step that was sealed for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepEvent {
    /// Number of the step, from 1.
    pub step: u64,
    /// The mean cross-entropy, in nats a token.
    pub loss: Option<f64>,
    /// The global gradient norm before clipping.
    pub gnorm: Option<f64>,
    /// `keep`, `clip` or `skip`.
    pub verdict: String,
    /// Factor that the gradient was multiplied with; `null` for a step that was skipped.
    pub clip: Option<f64>,
    /// The learning rate of the step.
    pub lr: f64,
    /// Since the step before was sealed.
    pub ms: f64,
    /// Tokens of the step over that time.
    pub tokens_per_s: f64,
    /// Tokens of all steps up to this one, those of skipped ones included.
    pub tokens: u64,
    /// The share of the step in which the busiest stage waited.
    pub bubble_measured: f64,
    /// That share by the schedule, with the recent times of passes.
    pub bubble_planned: f64,
    /// How often the step was attempted.
    pub attempts: u32,
}

/// Work that was dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RollbackEvent {
    /// Number of the step, from 1.
    pub step: u64,
    /// The verdict on it: `skip` or `replay`.
    pub verdict: String,
    /// Reason of the verdict, in words.
    pub reason: String,
}

/// The loss on held-out text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalEvent {
    /// Steps done before the text was read.
    pub step: u64,
    /// The mean cross-entropy, in nats a token.
    pub held_out_loss: Option<f64>,
}

/// Where a run goes on from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchEvent {
    /// The steps of that checkpoint; 0 if the other run had none.
    pub step: u64,
    /// BLAKE3 of the training state there, in hexadecimal.
    pub digest: Option<String>,
    /// The file with the configuration of the other run.
    pub config: String,
}

impl BranchEvent {
    /// The event for a person.
    pub fn text(&self) -> String {
        let from = match self.step {
            0 => "begins at step 0: the run before has no checkpoint".to_owned(),
            step => format!("goes on behind step {step} of the run before"),
        };
        format!("{from}; its configuration is {}", self.config)
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DoneEvent {
    /// Steps done: fewer than configured if the run was interrupted.
    pub steps: u64,
    /// BLAKE3 of the training state, in hexadecimal.
    pub digest: String,
    /// Tokens of all steps over their duration.
    pub tokens_per_s: f64,
    /// Parameters of the model.
    pub params: u64,
    /// Name of the schedule.
    pub schedule: String,
    /// Workers that participated.
    pub workers: u32,
    /// The mean cross-entropy of held-out text after the last step, if there is any.
    pub held_out_loss: Option<f64>,
    /// Where the run's files lie.
    pub folder: String,
    /// Whether it ended before its time: by Ctrl-C, or because its output could not be written.
    pub interrupted: bool,
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

impl From<&StepRecord> for StepEvent {
    fn from(record: &StepRecord) -> Self {
        Self {
            step: record.step.0 + 1,
            loss: finite(record.loss),
            gnorm: finite(record.norm),
            verdict: record.verdict.name().to_owned(),
            clip: match record.verdict {
                Verdict::Keep => Some(1.0),
                Verdict::Clip { coefficient } => Some(f64::from(coefficient)),
                Verdict::Skip | Verdict::Replay => None,
            },
            lr: record.lr,
            ms: record.elapsed.as_secs_f64() * 1e3,
            tokens_per_s: tokens_per_s(record.tokens, record.elapsed),
            tokens: (record.step.0 + 1) * record.tokens,
            bubble_measured: record.bubbles.measured,
            bubble_planned: record.bubbles.planned,
            attempts: record.attempts,
        }
    }
}

/// The tag of gradient norms for TensorBoard.
pub const NORM_TAG: &str = "gradient/norm";

impl StepEvent {
    /// Its numbers by TensorBoard's tags; those that are not finite are left out.
    pub fn scalars(&self) -> Vec<(&'static str, f64)> {
        let scalars = [
            ("loss/train", self.loss),
            (NORM_TAG, self.gnorm),
            ("gradient/clip", self.clip),
            ("optimizer/learning_rate", Some(self.lr)),
            ("speed/step_seconds", Some(self.ms / 1e3)),
            ("speed/tokens_per_second", Some(self.tokens_per_s)),
            ("pipeline/bubble_measured", Some(self.bubble_measured)),
            ("pipeline/bubble_planned", Some(self.bubble_planned)),
        ];
        scalars.into_iter().filter_map(|(tag, scalar)| Some((tag, scalar?))).collect()
    }
}

impl RollbackEvent {
    /// The event; `name` finds a tensor's name.
    pub fn new(rollback: &Rollback, name: &dyn Fn(TensorIndex) -> String) -> Self {
        Self {
            step: rollback.step.0 + 1,
            verdict: rollback.verdict.name().to_owned(),
            reason: reason_text(&rollback.reason, name),
        }
    }
}

impl From<&HeldOutLoss> for EvalEvent {
    fn from(evaluated: &HeldOutLoss) -> Self {
        Self { step: evaluated.steps_done, held_out_loss: finite(evaluated.loss) }
    }
}

impl RunEvent {
    /// The event as a line that is written now, without its end; the time is in milliseconds since
    /// 1970.
    pub fn line(&self, at_ms: u64) -> String {
        let line = MetricsLine { event: self, at_ms };
        serde_json::to_string(&line).expect("numbers and texts are JSON")
    }
}

/// The event that a line of the metrics file reports, as a cluster has it; `None` for one that has
/// none, such as the last line of a run or one that was cut by a crash.
pub fn cluster_event(line: &str) -> Option<ClusterEvent> {
    // An event that only a cluster has is there with its own words.
    if let Ok(event) = serde_json::from_str(line) {
        return Some(event);
    }
    let MetricsLine { event, at_ms } = serde_json::from_str::<MetricsLine<RunEvent>>(line).ok()?;
    let kind = match event {
        RunEvent::Step(step) => step_kind(step),
        RunEvent::Rollback(RollbackEvent { step, verdict, reason }) => {
            EventKind::Rollback { step, verdict, reason }
        }
        RunEvent::Eval(EvalEvent { step, held_out_loss: loss }) => {
            EventKind::HeldOut { step, loss }
        }
        RunEvent::Branch(_) | RunEvent::Done(_) => return None,
    };
    Some(ClusterEvent::new(0, at_ms, kind))
}

/// What the line of a step does not say is zero or nothing.
fn step_kind(step: StepEvent) -> EventKind {
    EventKind::Step {
        step: step.step,
        step_count: 0,
        loss: step.loss,
        gnorm: step.gnorm,
        verdict: step.verdict,
        clip: step.clip,
        lr: step.lr,
        ms: step.ms,
        tokens_per_s: step.tokens_per_s,
        attempts: step.attempts,
        bubble: Some(step.bubble_measured),
        bubble_planned: Some(step.bubble_planned),
        causes: None,
        generation: 0,
        stages: 0,
        eta_s: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> StepEvent {
        StepEvent {
            step: 7,
            loss: Some(3.25),
            gnorm: None,
            verdict: "skip".to_owned(),
            clip: None,
            lr: 0.001,
            ms: 412.5,
            tokens_per_s: 1000.0,
            tokens: 2800,
            bubble_measured: 0.25,
            bubble_planned: 0.125,
            attempts: 2,
        }
    }

    #[test]
    fn a_step_is_one_object_with_null_for_what_is_not_finite() {
        assert_eq!(
            RunEvent::Step(step()).line(1_764_000_000_000),
            "{\"event\":\"step\",\"step\":7,\"loss\":3.25,\"gnorm\":null,\"verdict\":\"skip\",\
             \"clip\":null,\"lr\":0.001,\"ms\":412.5,\"tokens_per_s\":1000.0,\
             \"tokens\":2800,\"bubble_measured\":0.25,\"bubble_planned\":0.125,\"attempts\":2,\"at_ms\":1764000000000}"
        );
    }

    #[test]
    fn lines_are_events_of_a_cluster() {
        let event = cluster_event(&RunEvent::Step(step()).line(17)).expect("an event");
        assert!(matches!(event.kind, EventKind::Step { step: 7, attempts: 2, .. }), "{event:?}");
        assert_eq!(event.at_ms, 17);
        let eval = "{\"event\":\"eval\",\"step\":7,\"held_out_loss\":2.5,\"at_ms\":3}";
        let kind = cluster_event(eval).map(|event| event.kind);
        assert_eq!(kind, Some(EventKind::HeldOut { step: 7, loss: Some(2.5) }));
        let rollback = "{\"event\":\"rollback\",\"step\":7,\"verdict\":\"skip\",\"reason\":\"nan\",\"at_ms\":3}";
        assert_eq!(cluster_event(rollback).expect("an event").text, "step 7 skipped: nan");
        let digest = Some("ab".to_owned());
        let branch = BranchEvent { step: 240, digest, config: "config-240.toml".to_owned() };
        assert!(branch.text().contains("goes on behind step 240"), "{}", branch.text());
        let line = RunEvent::Branch(branch).line(3);
        let expected = "{\"event\":\"branch\",\"step\":240,\"digest\":\"ab\",\
                        \"config\":\"config-240.toml\",\"at_ms\":3}";
        assert_eq!(line, expected);
        assert_eq!(cluster_event(&line), None, "what follows it begins behind a lower step");
        let lost = ClusterEvent::new(4, 9, EventKind::QuorumLost);
        let line = serde_json::to_string(&lost).expect("JSON");
        assert_eq!(cluster_event(&line), Some(lost));
        for other in ["", "{", "{\"event\":\"done\",\"steps\":3}", "{\"event\":\"step\"}", "[]"] {
            assert_eq!(cluster_event(other), None, "{other}");
        }
    }
}
