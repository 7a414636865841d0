//! Notices of Microsoft Azure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use zbelastic_preemption::{Cloud, NoticeCause, NoticeReport, NoticeSource};

use crate::mock::{MockReply, MockService, ReceivedRequest};

const NAME: &str = "/metadata/instance/compute/name";
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";

fn is_poll(request: &ReceivedRequest) -> bool {
    request.is("GET", EVENTS)
}

fn event(id: &str, machine: &str) -> String {
    format!(
        r#"{{"EventId": "{id}", "EventType": "Preempt", "EventStatus": "Scheduled",
            "Resources": ["{machine}"], "NotBefore": "Sat, 21 Nov 2026 12:01:03 GMT"}}"#
    )
}

fn document(events: &[String]) -> String {
    format!(r#"{{"DocumentIncarnation": 1, "Events": [{}]}}"#, events.join(", "))
}

/// The machine `spot-7`, about which and about `spot-8` there is an event once `is_marked`.
fn service(is_marked: Arc<AtomicBool>) -> MockService {
    MockService::start(move |request| {
        if request.header("Metadata") != Some("true") {
            return MockReply::of(400, "");
        }
        if request.path.starts_with(NAME) {
            return MockReply::of(200, "spot-7");
        }
        if request.is("POST", EVENTS) {
            return MockReply::of(200, "");
        }
        let events = [event("event-8", "spot-8"), event("event-7", "spot-7")];
        let count = if is_marked.load(Ordering::SeqCst) { 2 } else { 0 };
        MockReply::of(200, document(&events[..count]))
    })
}

#[test]
fn an_event_of_this_machine_is_reported_once_and_acknowledged_when_it_is_ready() {
    let is_marked = Arc::new(AtomicBool::new(false));
    let mock = service(Arc::clone(&is_marked));
    let mut watch = mock.watch(NoticeSource::Azure);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Azure)));
    mock.wait_for(3, is_poll);
    watch.assert_silent();
    is_marked.store(true, Ordering::SeqCst);
    let notice = watch.notice();
    assert_eq!((notice.cause, notice.event.name()), (NoticeCause::Preempted, "event-7"));
    assert_eq!(notice.deadline, Some(UNIX_EPOCH + Duration::from_secs(1_795_262_463)));
    mock.wait_for(4, |request| {
        assert_eq!(request.method, "GET", "nothing is acknowledged yet");
        is_poll(request)
    });
    watch.assert_silent();
    watch.0.acknowledge(&notice);
    let sent = mock.next(|request| request.method == "POST");
    assert_eq!(sent.path, EVENTS);
    assert_eq!(sent.header("Metadata"), Some("true"));
    assert_eq!(sent.body, r#"{"StartRequests":[{"EventId":"event-7"}]}"#);
    mock.wait_for(3, |request| {
        assert_eq!(request.method, "GET", "it is acknowledged once");
        is_poll(request)
    });
    watch.assert_silent();
}
