//! Amazon's notices: an interruption two minutes ahead, and earlier that one is likely.
//!
//! ```text
//!   token ──> instance-action ──> rebalance ──┐
//!     ▲            ▲  │ 401           │ 401   │ pause
//!     │            └──┼───────────────┼───────┘
//!     └───────────────┴───────────────┘
//! ```
//!
//! Every request carries a token, which is fetched with a `PUT` and expires. What is not marked is
//! not found. A hibernation begins with its notice.

use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::date::parse_iso;
use super::pace::Pace;
use super::question::{Answer, AskFault, Question, check_status};
use super::told::{EventId, Mark};
use super::turn::{Next, Turn};
use super::{Cause, Cloud, Notice};

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_LIFE_HEADER: &str = "X-aws-ec2-metadata-token-ttl-seconds";
/// The longest life there is, six hours; an expired token is renewed when it is refused.
const TOKEN_LIFE_SECONDS: &str = "21600";
const TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
/// The longest token; real ones have 56 characters.
const TOKEN_CHARS_MAX: usize = 1024;
const NOT_FOUND: u16 = 404;
const UNAUTHORISED: u16 = 401;

/// The request for a token; a server that answers it with one is Amazon's.
pub(super) fn token_question(patience: Duration) -> Question {
    Question::put(TOKEN_PATH, patience).header(TOKEN_LIFE_HEADER, TOKEN_LIFE_SECONDS)
}

/// The token in an answer to that.
pub(super) fn read_token(status: u16, body: &str) -> Result<&str, AskFault> {
    check_status(status)?;
    let token = body.trim();
    let is_token = (1..=TOKEN_CHARS_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token { Ok(token) } else { Err(AskFault::Senseless { expected: "a token" }) }
}

/// What can be requested with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// Whether the machine is marked to be interrupted.
    Action,
    /// Whether that is likelier than for others.
    Rebalance,
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AwsAnswer {
    NotMarked,
    Marked { cause: Cause, deadline: Option<SystemTime>, event: EventId },
    TokenExpired,
    Fault(AskFault),
}

#[derive(Deserialize)]
struct Action {
    action: String,
    time: String,
}

#[derive(Deserialize)]
struct Recommendation {
    #[serde(rename = "noticeTime")]
    notice_time: String,
}

/// What an answer about `topic` means.
pub(super) fn read_aws(topic: Topic, status: u16, body: &str) -> AwsAnswer {
    match status {
        NOT_FOUND => return AwsAnswer::NotMarked,
        UNAUTHORISED => return AwsAnswer::TokenExpired,
        _ => {}
    }
    let marked = check_status(status).and_then(|()| match topic {
        Topic::Action => read_action(body),
        Topic::Rebalance => read_recommendation(body),
    });
    marked.unwrap_or_else(AwsAnswer::Fault)
}

/// The machine goes, whichever way: stopped and hibernated it does not compute either.
fn read_action(body: &str) -> Result<AwsAnswer, AskFault> {
    let action: Option<Action> = serde_json::from_str(body).ok();
    let Action { action, time } =
        action.ok_or(AskFault::Senseless { expected: "an interruption" })?;
    let event = EventId::new(&format!("{action} at {time}"));
    Ok(AwsAnswer::Marked { cause: Cause::Preempted, deadline: parse_iso(&time), event })
}

/// The time in it is that of the notice, so there is no deadline.
fn read_recommendation(body: &str) -> Result<AwsAnswer, AskFault> {
    let found: Option<Recommendation> = serde_json::from_str(body).ok();
    let found = found.ok_or(AskFault::Senseless { expected: "a rebalance recommendation" })?;
    let event = EventId::new(&format!("rebalance of {}", found.notice_time));
    Ok(AwsAnswer::Marked { cause: Cause::Rebalance, deadline: None, event })
}

/// Requests the topics in turn.
#[derive(Debug)]
pub(super) struct AwsWatch {
    pace: Pace,
    token: Option<String>,
    /// Whether the token was taken for anything yet.
    is_token_proven: bool,
    topic: Topic,
    action: Mark,
    rebalance: Mark,
}

impl AwsWatch {
    pub(super) fn new(pace: Pace) -> Self {
        let (action, rebalance) = (Mark::default(), Mark::default());
        Self { pace, token: None, is_token_proven: false, topic: Topic::Action, action, rebalance }
    }

    pub(super) fn question(&self) -> Question {
        let path = match self.topic {
            Topic::Action => "/latest/meta-data/spot/instance-action",
            Topic::Rebalance => "/latest/meta-data/events/recommendations/rebalance",
        };
        match &self.token {
            Some(token) => Question::get(path, self.pace.patience).header(TOKEN_HEADER, token),
            None => token_question(self.pace.patience),
        }
    }

    pub(super) fn handle(&mut self, answer: Result<Answer, AskFault>) -> Turn {
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
                Turn::at_once()
            }
            Err(fault) => Turn::failed(fault),
        }
    }

    fn handle_topic(&mut self, answer: AwsAnswer) -> Turn {
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
                    Turn::at_once()
                } else {
                    Turn::failed(AskFault::Status { found: UNAUTHORISED })
                }
            }
            AwsAnswer::Fault(fault) => self.fail(fault),
        }
    }

    fn mark(&mut self) -> &mut Mark {
        match self.topic {
            Topic::Action => &mut self.action,
            Topic::Rebalance => &mut self.rebalance,
        }
    }

    /// After a failure the graver topic is requested first.
    fn fail(&mut self, fault: AskFault) -> Turn {
        self.topic = Topic::Action;
        Turn::failed(fault)
    }

    fn advance(&mut self, notices: Vec<Notice>) -> Turn {
        self.is_token_proven = true;
        let next = match self.topic {
            Topic::Action => Next::AtOnce,
            Topic::Rebalance => Next::AfterPoll,
        };
        self.topic = match self.topic {
            Topic::Action => Topic::Rebalance,
            Topic::Rebalance => Topic::Action,
        };
        Turn { notices, next }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Answer, AskFault, AwsAnswer, AwsWatch, Cause, EventId, Next, Pace, Question,
        TOKEN_CHARS_MAX, Topic, Turn, parse_iso, read_aws, read_token,
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
        check(Topic::Action, 200, ACTION, marked(Cause::Preempted, deadline, event));
        let soon = r#"{"action": "stop", "time": "soon", "more": []}"#;
        check(Topic::Action, 200, soon, marked(Cause::Preempted, None, "stop at soon"));
        let recommendation = r#"{"noticeTime": "2026-11-21T12:01:03Z"}"#;
        let event = "rebalance of 2026-11-21T12:01:03Z";
        check(Topic::Rebalance, 200, recommendation, marked(Cause::Rebalance, None, event));
        for topic in [Topic::Action, Topic::Rebalance] {
            check(topic, 404, ACTION, AwsAnswer::NotMarked);
            check(topic, 401, ACTION, AwsAnswer::TokenExpired);
            for status in [199, 300, 403, 500] {
                let fault = AskFault::Status { found: status };
                check(topic, status, ACTION, AwsAnswer::Fault(fault));
            }
            for body in ["", "null", "[]", "{}", "<html>", r#"{"action": 7}"#] {
                let answer = read_aws(topic, 200, body);
                let is_senseless = matches!(answer, AwsAnswer::Fault(AskFault::Senseless { .. }));
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
            assert_eq!(read_token(200, wrong), Err(AskFault::Senseless { expected: "a token" }));
        }
        assert_eq!(read_token(403, "AQA="), Err(AskFault::Status { found: 403 }));
    }

    fn answer(status: u16, body: &str) -> Result<Answer, AskFault> {
        Ok(Answer { status, body: body.to_owned(), ..Answer::default() })
    }

    fn path(question: &Question) -> &str {
        question.path.rsplit('/').next().expect("there is a slash")
    }

    #[test]
    fn a_look_is_a_token_and_two_questions() {
        let mut watch = AwsWatch::new(Pace::default());
        assert_eq!(path(&watch.question()), "token");
        assert_eq!(watch.handle(answer(200, "one")), Turn::at_once());
        assert_eq!(path(&watch.question()), "instance-action");
        assert_eq!(watch.handle(answer(404, "")), Turn::at_once());
        assert_eq!(path(&watch.question()), "rebalance");
        assert_eq!(watch.handle(answer(404, "")), Turn::silent(Next::AfterPoll));
        assert_eq!(path(&watch.question()), "instance-action");
        let told = watch.handle(answer(200, ACTION));
        assert_eq!((told.notices.len(), told.next), (1, Next::AtOnce));
    }

    #[test]
    fn an_expired_token_is_renewed_at_once_and_a_refused_one_later() {
        let mut watch = AwsWatch::new(Pace::default());
        watch.handle(answer(200, "one"));
        watch.handle(answer(404, ""));
        assert_eq!(watch.handle(answer(401, "")), Turn::at_once());
        assert_eq!(path(&watch.question()), "token");
        watch.handle(answer(200, "two"));
        let question = watch.question();
        assert_eq!(path(&question), "rebalance", "it goes on where it was");
        assert_eq!(question.headers, [("X-aws-ec2-metadata-token", "two".to_owned())]);
        let refused = AskFault::Status { found: 401 };
        assert_eq!(watch.handle(answer(401, "")), Turn::failed(refused));
    }

    #[test]
    fn after_a_failure_the_graver_question_comes_first() {
        let mut watch = AwsWatch::new(Pace::default());
        watch.handle(answer(200, "one"));
        watch.handle(answer(404, ""));
        assert_eq!(path(&watch.question()), "rebalance");
        let fault = AskFault::Status { found: 500 };
        assert_eq!(watch.handle(answer(500, "")), Turn::failed(fault));
        assert_eq!(path(&watch.question()), "instance-action");
        assert_eq!(watch.handle(Err(AskFault::TooLong)), Turn::failed(AskFault::TooLong));
    }
}
