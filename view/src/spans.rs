//! What happened as spans of OpenTelemetry, and their form as OTLP over HTTP (OTLP 1.0, JSON).
//!
//! A step is a trace of one span, for a run has more steps than a trace holds. Plans, checkpoints and
//! recoveries are traces too: a recovery lasts from the loss of a member, or from a rewind, to the next
//! step that was sealed.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};
use zbelastic_api::{ClusterEvent, EventKind};

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// `SPAN_KIND_INTERNAL` and `STATUS_CODE_ERROR` of OTLP.
const INTERNAL: u32 = 1;
const ERROR: u32 = 2;

/// A time in which something was done.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its name, of a few.
    pub name: &'static str,
    /// When it began and ended, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Not before it began.
    pub end_ns: u64,
    /// What it was about: keys, and numbers or texts.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it is an error, if it is one.
    pub error: Option<String>,
}

/// Makes spans of events.
#[derive(Clone, Debug, Default)]
pub struct SpanBuilder {
    /// Since when, and why, no step was sealed behind a loss or a rewind.
    recovering: Option<(u64, String)>,
}

impl SpanBuilder {
    /// The spans that end with an event.
    pub fn observe(&mut self, event: &ClusterEvent) -> Vec<Span> {
        let at_ms = event.at_ms;
        match &event.kind {
            EventKind::Step { .. } => {
                let recovery = self.recovering.take().map(|(since_ms, why)| {
                    let attributes = vec![("zbelastic.reason", Value::from(why))];
                    span("recovery", (since_ms, at_ms), attributes)
                });
                recovery.into_iter().chain(step(at_ms, &event.kind)).collect()
            }
            EventKind::Lost { name, reason, .. } => {
                self.begin(at_ms, format!("{name} was lost: {reason}"));
                Vec::new()
            }
            EventKind::Rewound { to_step, reason } => {
                self.begin(at_ms, format!("back to step {to_step}: {reason}"));
                Vec::new()
            }
            EventKind::Running { generation, layers_moved, bytes_moved, pause_ms, .. } => {
                let attributes = vec![
                    ("zbelastic.generation", Value::from(*generation)),
                    ("zbelastic.layers_moved", Value::from(*layers_moved)),
                    ("zbelastic.bytes_moved", Value::from(bytes_moved.0)),
                ];
                vec![span("plan", before(at_ms, pause_ms.unwrap_or(0.0)), attributes)]
            }
            EventKind::Checkpoint { step, bytes, ms } => {
                let attributes = vec![
                    ("zbelastic.step", Value::from(*step)),
                    ("zbelastic.bytes", Value::from(bytes.0)),
                ];
                vec![span("checkpoint", before(at_ms, ms.unwrap_or(0.0)), attributes)]
            }
            EventKind::RunStarted { .. } | EventKind::Done { .. } | EventKind::Stopped { .. } => {
                // What was lost before has no step behind it to wait for.
                self.recovering = None;
                Vec::new()
            }
            EventKind::Started { .. }
            | EventKind::Leader { .. }
            | EventKind::Joined { .. }
            | EventKind::Draining { .. }
            | EventKind::Paused { .. }
            | EventKind::Resumed { .. }
            | EventKind::Halted { .. }
            | EventKind::Plan { .. }
            | EventKind::HeldOut { .. }
            | EventKind::Rollback { .. }
            | EventKind::QuorumLost
            | EventKind::QuorumHeld
            | EventKind::FormatRaised { .. }
            | EventKind::TokenCreated { .. }
            | EventKind::TokenRevoked { .. }
            | EventKind::Violation { .. }
            | EventKind::Warning { .. }
            | EventKind::Other => Vec::new(),
        }
    }

    /// The first loss counts: what follows before a step is part of the same recovery.
    fn begin(&mut self, at_ms: u64, why: String) {
        self.recovering.get_or_insert((at_ms, why));
    }
}

fn before(at_ms: u64, ms: f64) -> (u64, u64) {
    (at_ms.saturating_sub(ms.max(0.0) as u64), at_ms)
}

fn span(
    name: &'static str,
    (start_ms, end_ms): (u64, u64),
    attributes: Vec<(&'static str, Value)>,
) -> Span {
    let start_ns = start_ms.min(end_ms) * MS;
    Span { name, start_ns, end_ns: end_ms * MS, attributes, error: None }
}

fn step(at_ms: u64, kind: &EventKind) -> Option<Span> {
    let EventKind::Step {
        step,
        loss,
        gnorm,
        verdict,
        lr,
        ms,
        tokens_per_s,
        attempts,
        bubble,
        generation,
        stages,
        ..
    } = kind
    else {
        return None;
    };
    let mut attributes = vec![
        ("zbelastic.step", Value::from(*step)),
        ("zbelastic.verdict", Value::from(verdict.clone())),
        ("zbelastic.attempts", Value::from(*attempts)),
        ("zbelastic.generation", Value::from(*generation)),
        ("zbelastic.stages", Value::from(*stages)),
        ("zbelastic.learning_rate", Value::from(*lr)),
        ("zbelastic.tokens_per_second", Value::from(*tokens_per_s)),
    ];
    let optional = [
        ("zbelastic.loss", loss),
        ("zbelastic.gradient_norm", gnorm),
        ("zbelastic.bubble", bubble),
    ];
    let known = optional.into_iter().filter_map(|(key, value)| Some((key, (*value)?.into())));
    attributes.extend(known);
    let error = (verdict == "skip").then(|| "the update was skipped".to_owned());
    Some(Span { error, ..span("step", before(at_ms, *ms), attributes) })
}

/// Spans as the body of `POST /v1/traces`. `service` is `service.name` of the resource, `cluster` the
/// cluster's name.
#[must_use]
pub fn otlp_json(service: &str, cluster: &str, spans: &[Span]) -> String {
    let resource = [("service.name", service), ("zbelastic.cluster", cluster)];
    let resource: Vec<Value> =
        resource.iter().map(|(key, text)| attribute(key, &Value::from(*text))).collect();
    let scope = json!({ "name": "zbelastic", "version": env!("CARGO_PKG_VERSION") });
    let spans: Vec<Value> = spans.iter().map(|span| span_json(cluster, span)).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
    .to_string()
}

fn span_json(cluster: &str, span: &Span) -> Value {
    let Span { name, start_ns, end_ns, attributes, error } = span;
    // The same event, sent again by another process, has the same ids.
    let id = |part: u64| {
        let mut hasher = DefaultHasher::new();
        (cluster, name, start_ns, end_ns, part).hash(&mut hasher);
        // Zero is no id.
        hasher.finish().max(1)
    };
    let attributes: Vec<Value> =
        attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    let status = match error {
        Some(why) => json!({ "code": ERROR, "message": why }),
        None => json!({}),
    };
    // 64-bit integers are texts in the JSON of protobuf, ids hexadecimal (OTLP/HTTP, JSON encoding).
    json!({
        "traceId": format!("{:016x}{:016x}", id(0), id(1)),
        "spanId": format!("{:016x}", id(2)),
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": start_ns.to_string(),
        "endTimeUnixNano": end_ns.to_string(),
        "attributes": attributes,
        "status": status,
    })
}

fn attribute(key: &str, value: &Value) -> Value {
    let value = match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => json!({ "intValue": whole.to_string() }),
        (None, Some(number)) => json!({ "doubleValue": number }),
        (None, None) => json!({ "stringValue": value.as_str().unwrap_or_default() }),
    };
    json!({ "key": key, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_types::{Bytes, NodeId};

    fn step_event(at_ms: u64, step: u64, verdict: &str) -> ClusterEvent {
        let kind = EventKind::Step {
            step,
            step_count: 9,
            loss: Some(2.5),
            gnorm: None,
            verdict: verdict.to_owned(),
            clip: None,
            lr: 1e-3,
            ms: 20.0,
            tokens_per_s: 100.0,
            attempts: 1,
            bubble: None,
            bubble_planned: None,
            causes: None,
            generation: 2,
            stages: 4,
            eta_s: None,
        };
        ClusterEvent::new(0, at_ms, kind)
    }

    fn lost(at_ms: u64, name: &str) -> ClusterEvent {
        let reason = "silent".to_owned();
        let name = name.to_owned();
        let kind = EventKind::Lost { node: NodeId(3), name, reason, detected_ms: None };
        ClusterEvent::new(0, at_ms, kind)
    }

    #[test]
    fn a_recovery_lasts_from_the_first_loss_to_the_next_step() {
        let mut builder = SpanBuilder::default();
        assert_eq!(builder.observe(&lost(1000, "a")), []);
        assert_eq!(builder.observe(&lost(1100, "b")), []);
        let spans = builder.observe(&step_event(1500, 7, "keep"));
        let times: Vec<_> =
            spans.iter().map(|span| (span.name, span.start_ns / MS, span.end_ns / MS)).collect();
        assert_eq!(times, [("recovery", 1000, 1500), ("step", 1480, 1500)]);
        assert_eq!(spans[0].attributes, [("zbelastic.reason", json!("a was lost: silent"))]);
        let next = builder.observe(&step_event(1520, 8, "skip"));
        assert_eq!(next.len(), 1);
        assert_eq!(next[0].error.as_deref(), Some("the update was skipped"));
        let kind =
            EventKind::Checkpoint { step: 8, bytes: Bytes(12), ms: Some(f64::from(u32::MAX)) };
        let checkpoint = builder.observe(&ClusterEvent::new(0, 1600, kind));
        assert_eq!((checkpoint[0].start_ns, checkpoint[0].end_ns), (0, 1600 * MS));
    }

    #[test]
    fn ids_are_those_of_what_happened() {
        let spans = SpanBuilder::default().observe(&step_event(1500, 7, "keep"));
        let text = |cluster| otlp_json("train", cluster, &spans);
        assert_eq!(text("wiki"), text("wiki"));
        let id = |text: String| {
            let value: Value = serde_json::from_str(&text).expect("JSON");
            value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"].clone()
        };
        assert_ne!(id(text("wiki")), id(text("code")));
    }
}
