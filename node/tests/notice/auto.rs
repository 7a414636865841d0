//! Finding out which cloud it is.

use std::time::Duration;

use zbelastic_node::notice::{Cloud, NoticeSource, Pace, Report};

use crate::mock::{Asked, Mock, Reply, quick};

/// What makes a service that of a cloud.
fn answer_of(cloud: Cloud, asked: &Asked) -> Option<Reply> {
    let path = match cloud {
        Cloud::Aws => "/latest/api/token",
        Cloud::Gcp => "/computeMetadata/v1/instance/id",
        Cloud::Azure => "/metadata/versions",
    };
    let reply = match cloud {
        Cloud::Aws => Reply::of(200, "token"),
        Cloud::Gcp => Reply::of(200, "7").header("Metadata-Flavor", "Google"),
        Cloud::Azure => Reply::of(200, r#"{"apiVersions": ["2020-07-01"]}"#),
    };
    (asked.path == path).then_some(reply)
}

fn first_report(mock: &Mock, pace: Pace) -> Option<Report> {
    mock.watch_at(NoticeSource::Auto, pace).report()
}

#[test]
fn whoever_answers_is_listened_to() {
    for cloud in Cloud::ALL {
        let mock = Mock::start(move |asked| answer_of(cloud, asked).unwrap_or(Reply::of(404, "")));
        assert_eq!(first_report(&mock, quick()), Some(Report::Watching(cloud)));
    }
}

#[test]
fn of_several_the_first_is_listened_to() {
    let mock = Mock::start(|asked| {
        let clouds = [Cloud::Gcp, Cloud::Azure].into_iter();
        let answer = clouds.filter_map(|cloud| answer_of(cloud, asked)).next();
        answer.unwrap_or(Reply::of(404, ""))
    });
    assert_eq!(first_report(&mock, quick()), Some(Report::Watching(Cloud::Gcp)));
}

#[test]
fn without_a_cloud_that_is_told_and_all_is_over() {
    let check = |answer: fn() -> Reply, patience| {
        let mock = Mock::start(move |_| answer());
        let pace = Pace { probe_patience: patience, ..quick() };
        let mut watch = mock.watch_at(NoticeSource::Auto, pace);
        assert_eq!(watch.report(), Some(Report::NoCloud));
        assert_eq!(watch.report(), None);
        assert_eq!(mock.asked().len(), Cloud::ALL.len(), "each was asked once");
    };
    check(|| Reply::of(404, ""), quick().probe_patience);
    check(|| Reply::of(302, "").header("Location", "/"), quick().probe_patience);
    // What answers everything alike, as a proxy for guests does, is no cloud.
    check(|| Reply::of(200, "<html>please log in</html>"), quick().probe_patience);
    check(|| Reply::Close, quick().probe_patience);
    check(|| Reply::Silence, Duration::from_millis(50));
}

#[test]
fn nobody_is_asked_if_nobody_is_to_be() {
    let mock = Mock::start(|_| Reply::of(200, "token"));
    let mut watch = mock.watch(NoticeSource::None);
    assert_eq!(watch.report(), None);
    assert!(mock.asked().is_empty());
}
