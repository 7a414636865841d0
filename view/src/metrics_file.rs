//! The events of a run's `metrics.jsonl`, which `train` leaves behind (docs/run-folder.md).

use serde::Deserialize;
use serde_json::Value;
use zbelastic_api::{ClusterEvent, EventKind};

/// A step as `train` writes it.
#[derive(Deserialize)]
struct StepLine {
    at_ms: u64,
    step: u64,
    loss: Option<f64>,
    gnorm: Option<f64>,
    verdict: String,
    clip: Option<f64>,
    lr: f64,
    ms: f64,
    tokens_per_s: f64,
    attempts: u32,
    bubble_measured: f64,
    bubble_planned: f64,
}

/// A dropped gradient as `train` writes it.
#[derive(Deserialize)]
struct RollbackLine {
    at_ms: u64,
    step: u64,
    verdict: String,
    reason: String,
}

/// Held-out text as `train` writes it.
#[derive(Deserialize)]
struct EvaluationLine {
    at_ms: u64,
    step: u64,
    held_out_loss: Option<f64>,
}

/// The event of a line; `None` for one that has none, such as the last line of a run or one that was
/// cut by a crash.
#[must_use]
pub fn metrics_event(line: &str) -> Option<ClusterEvent> {
    let value: Value = serde_json::from_str(line).ok()?;
    match value["event"].as_str()? {
        "step" => serde_json::from_value(value).ok().map(step_event),
        "rollback" if value["text"].is_null() => {
            let RollbackLine { at_ms, step, verdict, reason } =
                serde_json::from_value(value).ok()?;
            Some(ClusterEvent::new(0, at_ms, EventKind::Rollback { step, verdict, reason }))
        }
        "eval" => {
            let EvaluationLine { at_ms, step, held_out_loss } =
                serde_json::from_value(value).ok()?;
            let kind = EventKind::HeldOut { step, loss: held_out_loss };
            Some(ClusterEvent::new(0, at_ms, kind))
        }
        _ => serde_json::from_value(value).ok(),
    }
}

fn step_event(line: StepLine) -> ClusterEvent {
    let kind = EventKind::Step {
        step: line.step,
        step_count: 0,
        loss: line.loss,
        gnorm: line.gnorm,
        verdict: line.verdict,
        clip: line.clip,
        lr: line.lr,
        ms: line.ms,
        tokens_per_s: line.tokens_per_s,
        attempts: line.attempts,
        bubble: Some(line.bubble_measured),
        bubble_planned: Some(line.bubble_planned),
        causes: None,
        generation: 0,
        stages: 0,
        eta_s: None,
    };
    ClusterEvent::new(0, line.at_ms, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_train_are_events() {
        let step = "{\"event\":\"step\",\"step\":7,\"loss\":3.25,\"gnorm\":null,\"verdict\":\"skip\",\
             \"clip\":null,\"lr\":0.001,\"ms\":412.5,\"tokens_per_s\":1000.0,\"tokens\":2800,\
             \"bubble_measured\":0.25,\"bubble_planned\":0.125,\"attempts\":2,\"at_ms\":17}";
        let event = metrics_event(step).expect("an event");
        assert!(matches!(event.kind, EventKind::Step { step: 7, attempts: 2, .. }), "{event:?}");
        assert_eq!(event.at_ms, 17);
        let eval = "{\"event\":\"eval\",\"step\":7,\"held_out_loss\":2.5,\"at_ms\":3}";
        let kind = metrics_event(eval).map(|event| event.kind);
        assert_eq!(kind, Some(EventKind::HeldOut { step: 7, loss: Some(2.5) }));
        let rollback = "{\"event\":\"rollback\",\"step\":7,\"verdict\":\"skip\",\"reason\":\"nan\",\"at_ms\":3}";
        assert_eq!(metrics_event(rollback).expect("an event").text, "step 7 skipped: nan");
        let lost = ClusterEvent::new(4, 9, EventKind::QuorumLost);
        let line = serde_json::to_string(&lost).expect("JSON");
        assert_eq!(metrics_event(&line), Some(lost));
        for other in ["", "{", "{\"event\":\"done\",\"steps\":3}", "{\"event\":\"step\"}", "[]"] {
            assert_eq!(metrics_event(other), None, "{other}");
        }
    }
}
