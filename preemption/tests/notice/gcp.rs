//! Notices of Google Cloud.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use zbelastic_preemption::{Cloud, MetadataFault, NoticeCause, NoticeReport, NoticeSource};

use crate::mock::{MockReply, MockService, ReceivedRequest};

const PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";
const MAINTENANCE: &str = "/computeMetadata/v1/instance/maintenance-event";

fn google_reply(body: &str) -> MockReply {
    MockReply::of(200, body).header("Metadata-Flavor", "Google").header("ETag", "0a1b2c")
}

fn is_held(request: &ReceivedRequest, path: &str) -> bool {
    request.path.starts_with(&format!("{path}?wait_for_change=true"))
}

/// The next word that the test lets go, or none when it has ended.
fn held(words: &Mutex<Receiver<&'static str>>) -> MockReply {
    match words.lock().expect("no test panics with it").recv() {
        Ok(word) => google_reply(word),
        Err(_) => MockReply::Silence,
    }
}

/// A service that holds back both values until they are let go.
fn holding() -> (MockService, Sender<&'static str>, Sender<&'static str>) {
    let (preempted, preempted_words) = channel();
    let (maintenance, maintenance_words) = channel();
    let words = (Mutex::new(preempted_words), Mutex::new(maintenance_words));
    let mock = MockService::start(move |request| {
        if is_held(request, PREEMPTED) {
            held(&words.0)
        } else if is_held(request, MAINTENANCE) {
            held(&words.1)
        } else if request.path == PREEMPTED {
            google_reply("FALSE")
        } else if request.path == MAINTENANCE {
            google_reply("NONE")
        } else {
            MockReply::of(404, "")
        }
    });
    (mock, preempted, maintenance)
}

#[test]
fn a_preemption_is_reported_once_when_the_answer_is_let_go() {
    let (mock, preempted, _maintenance) = holding();
    let mut watch = mock.watch(NoticeSource::Gcp);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Gcp)));
    let request = mock.next(|request| is_held(request, PREEMPTED));
    assert_eq!(request.header("Metadata-Flavor"), Some("Google"));
    assert!(request.path.ends_with("&last_etag=0a1b2c"), "{request:?}");
    watch.assert_silent();
    preempted.send("TRUE").expect("held");
    let notice = watch.notice();
    assert_eq!((notice.cause, notice.source), (NoticeCause::Preempted, Cloud::Gcp));
    assert!(notice.deadline.is_some());
    for _ in 0..3 {
        mock.next(|request| is_held(request, PREEMPTED));
        preempted.send("TRUE").expect("held");
    }
    mock.next(|request| is_held(request, PREEMPTED));
    watch.assert_silent();
}

#[test]
fn maintenance_that_ends_the_machine_is_reported_and_a_migration_is_not() {
    let (mock, _preempted, maintenance) = holding();
    let mut watch = mock.watch(NoticeSource::Gcp);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Gcp)));
    for word in ["MIGRATE_ON_HOST_MAINTENANCE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE"] {
        mock.next(|request| is_held(request, MAINTENANCE));
        watch.assert_silent();
        maintenance.send(word).expect("held");
    }
    let notice = watch.notice();
    assert_eq!((notice.cause, notice.deadline), (NoticeCause::Maintenance, None));
}

#[test]
fn an_answer_not_of_googles_server_is_no_notice() {
    let mock = MockService::start(|_| MockReply::of(200, "TRUE"));
    let mut watch = mock.watch(NoticeSource::Gcp);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Gcp)));
    let fault = MetadataFault::Senseless { expected: "an answer of Google's" };
    let trouble = Some(NoticeReport::Trouble { source: Cloud::Gcp, fault });
    // Both values are requested, each by a thread that reports its own trouble.
    assert_eq!(watch.report(), trouble);
    assert_eq!(watch.report(), trouble);
    mock.wait_for(6, |request| request.path.starts_with(PREEMPTED));
    watch.assert_silent();
}
