//! Traces decoded by OpenTelemetry's own types.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use zbelastic_api::{ClusterEvent, EventKind};
use zbelastic_types::{Bytes, NodeId};
use zbelastic_view::{SpanBuilder, otlp_json};

fn event(at_ms: u64, kind: EventKind) -> ClusterEvent {
    ClusterEvent::new(0, at_ms, kind)
}

fn step(step: u64) -> EventKind {
    EventKind::Step {
        step,
        step_count: 9,
        loss: Some(2.5),
        gnorm: Some(0.5),
        verdict: "skip".to_owned(),
        clip: None,
        lr: 1e-3,
        ms: 20.0,
        tokens_per_s: 100.5,
        attempts: 2,
        bubble: None,
        bubble_planned: None,
        causes: None,
        generation: 3,
        stages: 4,
        eta_s: None,
    }
}

#[test]
fn traces_are_read_by_opentelemetry() {
    let reason = "silent".to_owned();
    let lost = EventKind::Lost { node: NodeId(3), name: "b".to_owned(), reason, detected_ms: None };
    let running = EventKind::Running {
        generation: 3,
        layers_moved: 2,
        bytes_moved: Bytes(7),
        bytes_floor: Bytes(7),
        moved_ms: None,
        pause_ms: Some(250.0),
    };
    let checkpoint = EventKind::Checkpoint { step: 7, bytes: Bytes(99), ms: Some(10.0) };
    let events =
        [event(1000, lost), event(1400, running), event(1500, step(7)), event(1600, checkpoint)];
    let mut builder = SpanBuilder::default();
    let spans: Vec<_> = events.iter().flat_map(|event| builder.observe(event)).collect();
    let text = otlp_json("zbelastic train", "wiki", &spans);
    let request: ExportTraceServiceRequest = serde_json::from_str(&text).expect("OTLP");
    let [resource] = &request.resource_spans[..] else { panic!("one resource") };
    let attributes = &resource.resource.as_ref().expect("a resource").attributes;
    let text_of = |value: &Option<opentelemetry_proto::tonic::common::v1::AnyValue>| match value
        .as_ref()
        .and_then(|value| value.value.as_ref())
    {
        Some(Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(attributes[0].key, "service.name");
    assert_eq!(text_of(&attributes[0].value), "zbelastic train");
    let [scope] = &resource.scope_spans[..] else { panic!("one scope") };
    let found: Vec<_> = scope
        .spans
        .iter()
        .map(|span| {
            assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
            let ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1_000_000;
            (span.name.as_str(), span.end_time_unix_nano / 1_000_000, ms)
        })
        .collect();
    let expected = [
        ("plan", 1400, 250),
        ("recovery", 1500, 500),
        ("step", 1500, 20),
        ("checkpoint", 1600, 10),
    ];
    assert_eq!(found, expected);
    let step = &scope.spans[2];
    assert_eq!(
        step.status.as_ref().map(|status| status.code),
        Some(2),
        "a skipped update is an error"
    );
    let value = |key: &str| {
        let found = step.attributes.iter().find(|attribute| attribute.key == key);
        found.and_then(|found| found.value.clone()).and_then(|value| value.value)
    };
    assert_eq!(value("zbelastic.step"), Some(Value::IntValue(7)));
    assert_eq!(value("zbelastic.tokens_per_second"), Some(Value::DoubleValue(100.5)));
    assert_eq!(value("zbelastic.verdict"), Some(Value::StringValue("skip".to_owned())));
}
