//! Finding out which cloud it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use zbelastic_preemption::{Cloud, NoticeReport, NoticeSource, PollTimings};

use crate::mock::{MockReply, MockService, ReceivedRequest, quick};

/// The answer by which a service is recognised as that of a cloud.
pub fn answer_of(cloud: Cloud, request: &ReceivedRequest) -> Option<MockReply> {
    let path = match cloud {
        Cloud::Aws => "/latest/api/token",
        Cloud::Gcp => "/computeMetadata/v1/instance/id",
        Cloud::Azure => "/metadata/versions",
    };
    let reply = match cloud {
        Cloud::Aws => MockReply::of(200, "token"),
        Cloud::Gcp => MockReply::of(200, "7").header("Metadata-Flavor", "Google"),
        Cloud::Azure => MockReply::of(200, r#"{"apiVersions": ["2020-07-01"]}"#),
    };
    (request.path == path).then_some(reply)
}

fn first_report(mock: &MockService, pace: PollTimings) -> Option<NoticeReport> {
    mock.watch_at(NoticeSource::Auto, pace).report()
}

#[test]
fn the_cloud_that_answers_is_polled() {
    for cloud in Cloud::ALL {
        let mock = MockService::start(move |request| {
            answer_of(cloud, request).unwrap_or(MockReply::of(404, ""))
        });
        assert_eq!(first_report(&mock, quick()), Some(NoticeReport::Watching(cloud)));
    }
}

#[test]
fn of_several_the_first_is_listened_to() {
    let mock = MockService::start(|request| {
        let clouds = [Cloud::Gcp, Cloud::Azure].into_iter();
        let answer = clouds.filter_map(|cloud| answer_of(cloud, request)).next();
        answer.unwrap_or(MockReply::of(404, ""))
    });
    assert_eq!(first_report(&mock, quick()), Some(NoticeReport::Watching(Cloud::Gcp)));
}

#[test]
fn without_a_cloud_that_is_reported_and_polling_ends() {
    let check = |answer: fn() -> MockReply, patience| {
        let mock = MockService::start(move |_| answer());
        let pace = PollTimings { probe_patience: patience, ..quick() };
        let mut watch = mock.watch_at(NoticeSource::Auto, pace);
        assert_eq!(watch.report(), Some(NoticeReport::NoCloud));
        assert_eq!(watch.report(), None);
        let probes = Cloud::ALL.len() * quick().probes_max as usize;
        assert_eq!(mock.requests().len(), probes, "each was asked as often");
    };
    check(|| MockReply::of(404, ""), quick().probe_patience);
    check(|| MockReply::of(302, "").header("Location", "/"), quick().probe_patience);
    // What answers everything alike, as a proxy for guests does, is no cloud.
    check(|| MockReply::of(200, "<html>please log in</html>"), quick().probe_patience);
    check(|| MockReply::Close, quick().probe_patience);
    check(|| MockReply::Silence, Duration::from_millis(50));
}

/// A machine that is being started may reach the service of its cloud only after a while.
#[test]
fn a_cloud_that_answers_a_later_probe_is_polled() {
    let requests = Arc::new(AtomicUsize::new(0));
    let mock = MockService::start(move |request| {
        let is_reached = requests.fetch_add(1, Ordering::Relaxed) >= Cloud::ALL.len();
        let answer = answer_of(Cloud::Aws, request).filter(|_| is_reached);
        answer.unwrap_or(MockReply::of(404, ""))
    });
    let mut watch = mock.watch_at(NoticeSource::Auto, quick());
    assert_eq!(watch.report(), Some(NoticeReport::NoCloud));
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Aws)));
}

#[test]
fn without_a_source_no_request_is_sent() {
    let mock = MockService::start(|_| MockReply::of(200, "token"));
    let mut watch = mock.watch(NoticeSource::None);
    assert_eq!(watch.report(), None);
    assert!(mock.requests().is_empty());
}
