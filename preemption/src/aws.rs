//! Amazon's notices: an interruption two minutes ahead, and earlier that one is likely.
//!
//! ```text
//!   token ──> instance-action ──> rebalance ──┐
//!     ▲            ▲  │ 401           │ 401   │ pause
//!     │            └──┼───────────────┼───────┘
//!     └───────────────┴───────────────┘
//! ```
//!
//! Every request carries a token, which is fetched with a `PUT` and expires. An instance that is
//! not marked is not found. A hibernation begins with its notice.

use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::date::parse_iso;
use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse, check_status};
use super::poll_outcome::{NextPoll, PollOutcome};
use super::poll_timings::PollTimings;
use super::reported_events::{EventId, EventLatch};
use super::{Cloud, Notice, NoticeCause};

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_LIFE_HEADER: &str = "X-aws-ec2-metadata-token-ttl-seconds";
/// The longest life there is, six hours; an expired token is renewed when it is refused.
const TOKEN_LIFE_SECONDS: &str = "21600";
const TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
/// The longest token; real ones have 56 characters.
const TOKEN_CHARS_MAX: usize = 1024;
const ZONE_PATH: &str = "/latest/meta-data/placement/availability-zone";
const NOT_FOUND: u16 = 404;
const UNAUTHORISED: u16 = 401;

/// The request for a token; a server that answers it with one is Amazon's.
pub(super) fn token_request(patience: Duration) -> MetadataRequest {
    MetadataRequest::put(TOKEN_PATH, patience).header(TOKEN_LIFE_HEADER, TOKEN_LIFE_SECONDS)
}

/// The token in an answer to that.
pub(super) fn read_token(status: u16, body: &str) -> Result<&str, MetadataFault> {
    check_status(status)?;
    let token = body.trim();
    let is_token = (1..=TOKEN_CHARS_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token { Ok(token) } else { Err(MetadataFault::Senseless { expected: "a token" }) }
}

/// The request for the zone that the machine stands in.
pub(super) fn zone_request(token: &str, patience: Duration) -> MetadataRequest {
    MetadataRequest::get(ZONE_PATH, patience).header(TOKEN_HEADER, token)
}

/// A resource that is requested with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwsTopic {
    /// Whether the machine is marked to be interrupted.
    Action,
    /// Whether that is likelier than for others.
    Rebalance,
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AwsAnswer {
    NotMarked,
    Marked { cause: NoticeCause, deadline: Option<SystemTime>, event: EventId },
    TokenExpired,
    Fault(MetadataFault),
}

#[derive(Deserialize)]
struct InstanceAction {
    action: String,
    time: String,
}

#[derive(Deserialize)]
struct RebalanceRecommendation {
    #[serde(rename = "noticeTime")]
    notice_time: String,
}

/// Parses an answer about `topic`.
pub(super) fn read_aws(topic: AwsTopic, status: u16, body: &str) -> AwsAnswer {
    match status {
        NOT_FOUND => return AwsAnswer::NotMarked,
        UNAUTHORISED => return AwsAnswer::TokenExpired,
        _ => {}
    }
    let marked = check_status(status).and_then(|()| match topic {
        AwsTopic::Action => read_action(body),
        AwsTopic::Rebalance => read_recommendation(body),
    });
    marked.unwrap_or_else(AwsAnswer::Fault)
}

/// The machine goes, whichever way: stopped and hibernated it does not compute either.
fn read_action(body: &str) -> Result<AwsAnswer, MetadataFault> {
    let action: Option<InstanceAction> = serde_json::from_str(body).ok();
    let InstanceAction { action, time } =
        action.ok_or(MetadataFault::Senseless { expected: "an interruption" })?;
    let event = EventId::new(&format!("{action} at {time}"));
    Ok(AwsAnswer::Marked { cause: NoticeCause::Preempted, deadline: parse_iso(&time), event })
}

/// The time in it is that of the notice, so there is no deadline.
fn read_recommendation(body: &str) -> Result<AwsAnswer, MetadataFault> {
    let found: Option<RebalanceRecommendation> = serde_json::from_str(body).ok();
    let found = found.ok_or(MetadataFault::Senseless { expected: "a rebalance recommendation" })?;
    let event = EventId::new(&format!("rebalance of {}", found.notice_time));
    Ok(AwsAnswer::Marked { cause: NoticeCause::Rebalance, deadline: None, event })
}

/// Requests the topics in turn.
#[derive(Debug)]
pub(super) struct AwsWatch {
    pace: PollTimings,
    token: Option<String>,
    /// Whether the token was accepted for any request yet.
    is_token_proven: bool,
    topic: AwsTopic,
    action: EventLatch,
    rebalance: EventLatch,
}

impl AwsWatch {
    pub(super) fn new(pace: PollTimings) -> Self {
        let action = EventLatch::default();
        let rebalance = EventLatch::default();
        Self {
            pace,
            token: None,
            is_token_proven: false,
            topic: AwsTopic::Action,
            action,
            rebalance,
        }
    }

    pub(super) fn request(&self) -> MetadataRequest {
        let path = match self.topic {
            AwsTopic::Action => "/latest/meta-data/spot/instance-action",
            AwsTopic::Rebalance => "/latest/meta-data/events/recommendations/rebalance",
        };
        match &self.token {
            Some(token) => {
                MetadataRequest::get(path, self.pace.patience).header(TOKEN_HEADER, token)
            }
            None => token_request(self.pace.patience),
        }
    }

    pub(super) fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
    ) -> PollOutcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => return self.fail(fault),
        };
        if self.token.is_some() {
            return self.handle_topic(read_aws(self.topic, answer.status, &answer.body));
        }
        match read_token(answer.status, &answer.body) {
            Ok(token) => {
                (self.token, self.is_token_proven) = (Some(token.to_owned()), false);
                PollOutcome::at_once()
            }
            Err(fault) => PollOutcome::failed(fault),
        }
    }

    fn handle_topic(&mut self, answer: AwsAnswer) -> PollOutcome {
        match answer {
            AwsAnswer::NotMarked => {
                self.mark().clear();
                self.advance(Vec::new())
            }
            AwsAnswer::Marked { cause, deadline, event } => {
                let is_news = self.mark().set(&event);
                let notice = Notice { cause, deadline, source: Cloud::Aws, event };
                self.advance(is_news.then_some(notice).into_iter().collect())
            }
            AwsAnswer::TokenExpired => {
                self.token = None;
                // A new token that is refused will not get better by hurry.
                if self.is_token_proven {
                    PollOutcome::at_once()
                } else {
                    PollOutcome::failed(MetadataFault::Status { found: UNAUTHORISED })
                }
            }
            AwsAnswer::Fault(fault) => self.fail(fault),
        }
    }

    fn mark(&mut self) -> &mut EventLatch {
        match self.topic {
            AwsTopic::Action => &mut self.action,
            AwsTopic::Rebalance => &mut self.rebalance,
        }
    }

    /// After a failure the graver topic is requested first.
    fn fail(&mut self, fault: MetadataFault) -> PollOutcome {
        self.topic = AwsTopic::Action;
        PollOutcome::failed(fault)
    }

    fn advance(&mut self, notices: Vec<Notice>) -> PollOutcome {
        self.is_token_proven = true;
        let next = match self.topic {
            AwsTopic::Action => NextPoll::AtOnce,
            AwsTopic::Rebalance => NextPoll::AfterPoll,
        };
        self.topic = match self.topic {
            AwsTopic::Action => AwsTopic::Rebalance,
            AwsTopic::Rebalance => AwsTopic::Action,
        };
        PollOutcome { notices, next }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AwsAnswer, AwsTopic, AwsWatch, EventId, MetadataFault, MetadataRequest, MetadataResponse,
        NextPoll, NoticeCause, PollOutcome, PollTimings, TOKEN_CHARS_MAX, parse_iso, read_aws,
        read_token,
    };

    const ACTION: &str = r#"{"action": "terminate", "time": "2026-11-21T12:01:03Z"}"#;

    #[test]
    fn answers_mean_what_the_cloud_says_they_mean() {
        let marked = |cause, deadline, event: &str| AwsAnswer::Marked {
            cause,
            deadline,
            event: EventId::new(event),
        };
        let check = |topic, status, body: &str, expected| {
            assert_eq!(read_aws(topic, status, body), expected, "{status} {body}");
        };
        let deadline = parse_iso("2026-11-21T12:01:03Z");
        let event = "terminate at 2026-11-21T12:01:03Z";
        check(AwsTopic::Action, 200, ACTION, marked(NoticeCause::Preempted, deadline, event));
        let soon = r#"{"action": "stop", "time": "soon", "more": []}"#;
        check(AwsTopic::Action, 200, soon, marked(NoticeCause::Preempted, None, "stop at soon"));
        let recommendation = r#"{"noticeTime": "2026-11-21T12:01:03Z"}"#;
        let event = "rebalance of 2026-11-21T12:01:03Z";
        check(
            AwsTopic::Rebalance,
            200,
            recommendation,
            marked(NoticeCause::Rebalance, None, event),
        );
        for topic in [AwsTopic::Action, AwsTopic::Rebalance] {
            check(topic, 404, ACTION, AwsAnswer::NotMarked);
            check(topic, 401, ACTION, AwsAnswer::TokenExpired);
            for status in [199, 300, 403, 500] {
                let fault = MetadataFault::Status { found: status };
                check(topic, status, ACTION, AwsAnswer::Fault(fault));
            }
            for body in ["", "null", "[]", "{}", "<html>", r#"{"action": 7}"#] {
                let answer = read_aws(topic, 200, body);
                let is_senseless =
                    matches!(answer, AwsAnswer::Fault(MetadataFault::Senseless { .. }));
                assert!(is_senseless, "{body}: {answer:?}");
            }
        }
    }

    #[test]
    fn a_token_is_one_short_word() {
        let longest = "t".repeat(TOKEN_CHARS_MAX);
        assert_eq!(read_token(200, "AQA=\n"), Ok("AQA="));
        assert_eq!(read_token(200, &longest), Ok(longest.as_str()));
        for wrong in ["", " ", "two words", "a\nb", "é", &format!("{longest}t")] {
            assert_eq!(
                read_token(200, wrong),
                Err(MetadataFault::Senseless { expected: "a token" })
            );
        }
        assert_eq!(read_token(403, "AQA="), Err(MetadataFault::Status { found: 403 }));
    }

    fn answer(status: u16, body: &str) -> Result<MetadataResponse, MetadataFault> {
        Ok(MetadataResponse { status, body: body.to_owned(), ..MetadataResponse::default() })
    }

    fn path(request: &MetadataRequest) -> &str {
        request.path.rsplit('/').next().expect("there is a slash")
    }

    #[test]
    fn a_poll_is_a_token_and_two_requests() {
        let mut watch = AwsWatch::new(PollTimings::default());
        assert_eq!(path(&watch.request()), "token");
        assert_eq!(watch.handle(answer(200, "one")), PollOutcome::at_once());
        assert_eq!(path(&watch.request()), "instance-action");
        assert_eq!(watch.handle(answer(404, "")), PollOutcome::at_once());
        assert_eq!(path(&watch.request()), "rebalance");
        assert_eq!(watch.handle(answer(404, "")), PollOutcome::silent(NextPoll::AfterPoll));
        assert_eq!(path(&watch.request()), "instance-action");
        let outcome = watch.handle(answer(200, ACTION));
        assert_eq!((outcome.notices.len(), outcome.next), (1, NextPoll::AtOnce));
    }

    #[test]
    fn an_expired_token_is_renewed_at_once_and_a_refused_one_later() {
        let mut watch = AwsWatch::new(PollTimings::default());
        watch.handle(answer(200, "one"));
        watch.handle(answer(404, ""));
        assert_eq!(watch.handle(answer(401, "")), PollOutcome::at_once());
        assert_eq!(path(&watch.request()), "token");
        watch.handle(answer(200, "two"));
        let request = watch.request();
        assert_eq!(path(&request), "rebalance", "it goes on where it was");
        assert_eq!(request.headers, [("X-aws-ec2-metadata-token", "two".to_owned())]);
        let refused = MetadataFault::Status { found: 401 };
        assert_eq!(watch.handle(answer(401, "")), PollOutcome::failed(refused));
    }

    #[test]
    fn after_a_failure_the_graver_request_comes_first() {
        let mut watch = AwsWatch::new(PollTimings::default());
        watch.handle(answer(200, "one"));
        watch.handle(answer(404, ""));
        assert_eq!(path(&watch.request()), "rebalance");
        let fault = MetadataFault::Status { found: 500 };
        assert_eq!(watch.handle(answer(500, "")), PollOutcome::failed(fault));
        assert_eq!(path(&watch.request()), "instance-action");
        assert_eq!(
            watch.handle(Err(MetadataFault::TooLong)),
            PollOutcome::failed(MetadataFault::TooLong)
        );
    }
}
