//! Notices of Amazon Web Services.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use zbelastic_preemption::{Cloud, NoticeCause, NoticeReport, NoticeSource};

use crate::mock::{MockReply, MockService, ReceivedRequest};

pub const TOKEN: &str = "/latest/api/token";
pub const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
pub const MARKED: &str = r#"{"action": "terminate", "time": "2026-11-21T12:01:03Z"}"#;
const RECOMMENDED: &str = r#"{"noticeTime": "2026-11-21T11:00:00Z"}"#;

pub fn is_action(request: &ReceivedRequest) -> bool {
    request.is("GET", ACTION)
}

/// A machine that is marked after this number of requests.
fn marked_after(questions: u32) -> MockService {
    let count = AtomicU32::new(0);
    MockService::start(move |request| {
        if request.is("PUT", TOKEN) {
            return MockReply::of(200, "token");
        }
        let is_marked = is_action(request) && count.fetch_add(1, Ordering::SeqCst) >= questions;
        if is_marked { MockReply::of(200, MARKED) } else { MockReply::of(404, "") }
    })
}

#[test]
fn a_marked_machine_is_reported_once() {
    let mock = marked_after(2);
    let mut watch = mock.watch(NoticeSource::Aws);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Aws)));
    let notice = watch.notice();
    assert_eq!((notice.cause, notice.source), (NoticeCause::Preempted, Cloud::Aws));
    let deadline = UNIX_EPOCH + Duration::from_secs(1_795_262_463);
    assert_eq!(notice.deadline, Some(deadline));
    mock.wait_for(6, is_action);
    watch.assert_silent();
}

#[test]
fn requests_carry_a_token_that_was_requested() {
    let mock = marked_after(u32::MAX);
    let _watch = mock.watch(NoticeSource::Aws);
    let first = mock.next(|_| true);
    assert!(first.is("PUT", TOKEN), "{first:?}");
    assert_eq!(first.header("X-aws-ec2-metadata-token-ttl-seconds"), Some("21600"));
    for path in [ACTION, REBALANCE, ACTION, REBALANCE] {
        let request = mock.next(|_| true);
        assert!(request.is("GET", path), "{request:?}");
        assert_eq!(request.header("X-aws-ec2-metadata-token"), Some("token"));
    }
}

#[test]
fn a_recommendation_and_an_interruption_are_two_notices() {
    let mock = MockService::start(|request| match request.path.as_str() {
        TOKEN => MockReply::of(200, "token"),
        REBALANCE => MockReply::of(200, RECOMMENDED),
        _ => MockReply::of(200, MARKED),
    });
    let mut watch = mock.watch(NoticeSource::Aws);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Aws)));
    assert_eq!(watch.notice().cause, NoticeCause::Preempted);
    let recommendation = watch.notice();
    assert_eq!((recommendation.cause, recommendation.deadline), (NoticeCause::Rebalance, None));
    mock.wait_for(4, is_action);
    watch.assert_silent();
}

#[test]
fn an_expired_token_is_renewed_and_nothing_is_reported() {
    let tokens = AtomicU32::new(0);
    let actions = AtomicU32::new(0);
    let mock = MockService::start(move |request| {
        if request.is("PUT", TOKEN) {
            return MockReply::of(200, format!("token-{}", tokens.fetch_add(1, Ordering::SeqCst)));
        }
        if !is_action(request) {
            return MockReply::of(404, "");
        }
        let valid = match actions.fetch_add(1, Ordering::SeqCst) {
            0..3 => "token-0",
            _ => "token-1",
        };
        let is_valid = request.header("X-aws-ec2-metadata-token") == Some(valid);
        match (is_valid, valid) {
            (false, _) => MockReply::of(401, ""),
            (true, "token-0") => MockReply::of(404, ""),
            (true, _) => MockReply::of(200, MARKED),
        }
    });
    let mut watch = mock.watch(NoticeSource::Aws);
    assert_eq!(watch.report(), Some(NoticeReport::Watching(Cloud::Aws)));
    assert_eq!(watch.notice().cause, NoticeCause::Preempted);
    let renewals = mock.requests().iter().filter(|request| request.method == "PUT").count();
    assert_eq!(renewals, 2);
}
