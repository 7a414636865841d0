//! Parsing of Microsoft's answers, and the order of requests.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::{
    ACKNOWLEDGE_TRIES, ACKNOWLEDGEMENTS_MAX, AzureWatch, EVENTS_MAX, EventId, MetadataFault,
    MetadataResponse, NextPoll, NoticeCause, PollOutcome, PollTimings, is_azure, parse_http,
    read_azure, read_name,
};
use crate::metadata_request::HttpMethod;

const NOW: SystemTime = UNIX_EPOCH;
const TIME: &str = "Sat, 21 Nov 2026 12:01:03 GMT";

fn event(id: &str, kind: &str, machine: &str) -> serde_json::Value {
    json!({
        "EventId": id,
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["other", machine],
        "NotBefore": TIME,
        "DurationInSeconds": -1,
    })
}

fn document(events: &[serde_json::Value]) -> String {
    json!({ "DocumentIncarnation": 3, "Events": events }).to_string()
}

fn causes(events: &[serde_json::Value]) -> Vec<NoticeCause> {
    let notices = read_azure("spot-7", 200, &document(events), NOW).expect("a document");
    notices.iter().map(|notice| notice.cause).collect()
}

#[test]
fn events_mean_what_the_cloud_says_they_mean() {
    let cause = |kind| causes(&[event("1", kind, "spot-7")]);
    assert_eq!(cause("Preempt"), [NoticeCause::Preempted]);
    assert_eq!(cause("Terminate"), [NoticeCause::Preempted]);
    assert_eq!(cause("Reboot"), [NoticeCause::Maintenance]);
    assert_eq!(cause("Redeploy"), [NoticeCause::Maintenance]);
    assert_eq!(cause("Freeze"), []);
    assert_eq!(cause("Unheard"), []);
}

#[test]
fn events_of_other_machines_are_left_alone() {
    assert_eq!(causes(&[event("1", "Preempt", "spot-8")]), []);
    assert_eq!(causes(&[event("1", "Preempt", "spot-77")]), []);
    assert_eq!(causes(&[event("1", "Preempt", "SPOT-7")]), [NoticeCause::Preempted]);
    let mut nameless = event("1", "Preempt", "spot-7");
    nameless["Resources"] = json!([]);
    assert_eq!(causes(&[nameless]), []);
}

#[test]
fn the_deadline_is_the_time_or_now_once_it_has_begun() {
    let deadline = |status: &str, time: &str| {
        let mut event = event("1", "Preempt", "spot-7");
        event["EventStatus"] = json!(status);
        event["NotBefore"] = json!(time);
        let notices = read_azure("spot-7", 200, &document(&[event]), NOW).expect("a document");
        notices[0].deadline
    };
    assert_eq!(deadline("Scheduled", TIME), parse_http(TIME));
    assert_eq!(deadline("Started", ""), Some(NOW));
    assert_eq!(deadline("Scheduled", ""), None);
    assert_eq!(deadline("Scheduled", "soon"), None);
}

#[test]
fn what_is_no_list_is_a_fault() {
    let most = vec![event("1", "Preempt", "spot-7"); EVENTS_MAX];
    assert_eq!(causes(&most).len(), EVENTS_MAX);
    let more = document(&vec![event("1", "Preempt", "spot-7"); EVENTS_MAX + 1]);
    let senseless = Err(MetadataFault::Senseless { expected: "scheduled events" });
    for body in ["", "[]", "{}", "<html>", r#"{"Events": [{}]}"#, r#"{"Events": 7}"#, &more] {
        assert_eq!(read_azure("spot-7", 200, body, NOW), senseless, "{body}");
    }
    let fault = Err(MetadataFault::Status { found: 429 });
    assert_eq!(read_azure("spot-7", 429, &document(&[]), NOW), fault);
    assert_eq!(read_name(200, "spot-7\n"), Ok("spot-7"));
    let nameless = Err(MetadataFault::Senseless { expected: "a machine's name" });
    assert_eq!(read_name(200, ""), nameless);
    assert_eq!(read_name(200, "a b"), nameless);
    assert_eq!(read_name(200, &"n".repeat(257)), nameless);
    assert!(read_name(200, &"n".repeat(256)).is_ok());
}

#[test]
fn the_cloud_is_known_by_its_versions() {
    let check = |status, body: &str| {
        is_azure(&MetadataResponse { status, body: body.into(), ..MetadataResponse::default() })
    };
    assert!(check(200, r#"{"apiVersions": ["2017-03-01"]}"#));
    assert!(!check(200, r#"{"apiVersions": []}"#));
    assert!(!check(200, "ok"));
    assert!(!check(404, r#"{"apiVersions": ["2017-03-01"]}"#));
}

fn answer(status: u16, body: &str) -> Result<MetadataResponse, MetadataFault> {
    Ok(MetadataResponse { status, body: body.to_owned(), ..MetadataResponse::default() })
}

/// A machine that knows its name and whose events are on.
fn listening() -> AzureWatch {
    let mut watch = AzureWatch::new(PollTimings::default());
    assert_eq!(watch.handle(answer(200, "spot-7"), NOW), PollOutcome::at_once());
    assert_eq!(
        watch.handle(answer(200, &document(&[])), NOW),
        PollOutcome::silent(NextPoll::AfterPoll)
    );
    watch
}

#[test]
fn the_first_list_may_take_long() {
    let pace = PollTimings::default();
    let mut watch = AzureWatch::new(pace);
    assert!(watch.request().path.contains("/compute/name?"));
    assert_eq!(watch.request().patience, pace.patience);
    watch.handle(answer(200, "spot-7"), NOW);
    assert_eq!(watch.request().patience, pace.azure_first_patience);
    watch.handle(answer(500, ""), NOW);
    assert_eq!(watch.request().patience, pace.azure_first_patience);
    watch.handle(answer(200, &document(&[])), NOW);
    assert_eq!(watch.request().patience, pace.patience);
}

#[test]
fn an_event_is_reported_once() {
    let mut watch = listening();
    let mut notice_count = |events: &[serde_json::Value]| {
        watch.handle(answer(200, &document(events)), NOW).notices.len()
    };
    let [a, b] = ["a", "b"].map(|id| event(id, "Preempt", "spot-7"));
    assert_eq!(notice_count(std::slice::from_ref(&a)), 1);
    assert_eq!(notice_count(&[a.clone(), a.clone()]), 0);
    assert_eq!(notice_count(&[b, a]), 1);
}

#[test]
fn an_acknowledgement_is_sent_once_it_is_taken_or_given_up() {
    let mut watch = listening();
    watch.acknowledge(EventId::new("a"));
    watch.acknowledge(EventId::new("a"));
    let json = r#"{"StartRequests":[{"EventId":"a"}]}"#.to_owned();
    for _ in 1..ACKNOWLEDGE_TRIES {
        assert_eq!(watch.request().method, HttpMethod::Post(json.clone()));
        watch.handle(answer(500, ""), NOW);
    }
    assert_eq!(watch.request().method, HttpMethod::Post(json.clone()));
    watch.handle(answer(500, ""), NOW);
    assert_eq!(watch.request().method, HttpMethod::Get, "given up");
    watch.acknowledge(EventId::new("a"));
    assert_eq!(watch.request().method, HttpMethod::Post(json));
    assert_eq!(watch.handle(answer(200, ""), NOW), PollOutcome::at_once());
    assert_eq!(watch.request().method, HttpMethod::Get, "taken");
}

#[test]
fn acknowledgements_that_wait_are_few() {
    let mut watch = listening();
    for index in 0..=ACKNOWLEDGEMENTS_MAX {
        watch.acknowledge(EventId::new(&index.to_string()));
    }
    assert_eq!(watch.ready.len(), ACKNOWLEDGEMENTS_MAX);
}
