//! Microsoft's notices: a list of events of all machines that belong together.
//!
//! So the machine requests its own name first, and ignores events of other machines: an acknowledgement of
//! another machine's event would have that machine stopped. An acknowledgement states that this machine
//! is ready, and has the event begin at once; it is sent when the node orders it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::json;

use super::date::parse_http;
use super::pace::Pace;
use super::question::{Answer, AskFault, Question, check_status};
use super::told::{EventId, Told};
use super::turn::{Next, Turn};
use super::{ACKNOWLEDGEMENTS_MAX, Cause, Cloud, Notice};

const HEADER: &str = "Metadata";
const VERSIONS_PATH: &str = "/metadata/versions";
const NAME_PATH: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
const EVENTS_PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";
/// Events of a list that are looked at; more would be no list of Microsoft's.
const EVENTS_MAX: usize = 32;
/// The longest name of a machine; real ones have at most 64 characters.
const NAME_CHARS_MAX: usize = 256;
/// How often an acknowledgement is sent that the service does not accept.
const ACKNOWLEDGE_TRIES: u32 = 3;

/// A request that only Microsoft's server answers with versions. It switches nothing on.
pub(super) fn probe_question(patience: Duration) -> Question {
    Question::get(VERSIONS_PATH, patience).header(HEADER, "true")
}

#[derive(Deserialize)]
struct Versions {
    #[serde(rename = "apiVersions")]
    versions: Vec<String>,
}

/// Whether that was answered by Microsoft's server.
pub(super) fn is_azure(answer: &Answer) -> bool {
    let versions = serde_json::from_str(&answer.body).map(|found: Versions| found.versions);
    check_status(answer.status).is_ok() && versions.is_ok_and(|versions| !versions.is_empty())
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "Events")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "EventId")]
    id: String,
    #[serde(rename = "EventType")]
    kind: String,
    #[serde(rename = "EventStatus", default)]
    status: String,
    #[serde(rename = "Resources", default)]
    machines: Vec<String>,
    #[serde(rename = "NotBefore", default)]
    not_before: String,
}

/// What an answer with events means for the machine called `name`.
pub(super) fn read_azure(
    name: &str,
    status: u16,
    body: &str,
    now: SystemTime,
) -> Result<Vec<Notice>, AskFault> {
    check_status(status)?;
    let document: Option<Document> = serde_json::from_str(body).ok();
    let document = document.ok_or(AskFault::Senseless { expected: "scheduled events" })?;
    if document.events.len() > EVENTS_MAX {
        return Err(AskFault::Senseless { expected: "scheduled events" });
    }
    Ok(document.events.iter().filter_map(|event| read_event(name, event, now)).collect())
}

/// The notice that an event is for the machine called `name`, if it is one.
fn read_event(name: &str, event: &Event, now: SystemTime) -> Option<Notice> {
    let is_mine = event.machines.iter().any(|machine| machine.eq_ignore_ascii_case(name));
    let cause = match event.kind.as_str() {
        "Preempt" | "Terminate" => Cause::Preempted,
        "Reboot" | "Redeploy" => Cause::Maintenance,
        // A pause of some seconds (`Freeze`), or what this version does not know.
        _ => return None,
    };
    // An event that has begun has no time any more.
    let begun = (event.status == "Started").then_some(now);
    let deadline = parse_http(&event.not_before).or(begun);
    let event = EventId::new(&event.id);
    is_mine.then_some(Notice { cause, deadline, source: Cloud::Azure, event })
}

fn read_name(status: u16, body: &str) -> Result<&str, AskFault> {
    check_status(status)?;
    let name = body.trim();
    let is_name = (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(name) } else { Err(AskFault::Senseless { expected: "a machine's name" }) }
}

/// Polls the list of events, once events are switched on.
#[derive(Debug)]
pub(super) struct AzureWatch {
    pace: Pace,
    name: Option<String>,
    /// Whether events are switched on.
    is_on: bool,
    told: Told,
    ready: VecDeque<EventId>,
    /// How often the first of them was sent.
    tries: u32,
}

impl AzureWatch {
    pub(super) fn new(pace: Pace) -> Self {
        let (told, ready) = (Told::default(), VecDeque::new());
        Self { pace, name: None, is_on: false, told, ready, tries: 0 }
    }

    /// The machine is ready for `event`. If more than some wait to be sent, it is not sent.
    pub(super) fn acknowledge(&mut self, event: EventId) {
        if self.ready.len() < ACKNOWLEDGEMENTS_MAX && !self.ready.contains(&event) {
            self.ready.push_back(event);
        }
    }

    pub(super) fn question(&self) -> Question {
        let patience = self.pace.patience;
        let question = match (&self.name, self.ready.front()) {
            (None, _) => Question::get(NAME_PATH, patience),
            (Some(_), Some(event)) => {
                let json = json!({ "StartRequests": [{ "EventId": event.name() }] });
                Question::post(EVENTS_PATH, json.to_string(), patience)
            }
            (Some(_), None) if self.is_on => Question::get(EVENTS_PATH, patience),
            (Some(_), None) => Question::get(EVENTS_PATH, self.pace.azure_first_patience),
        };
        question.header(HEADER, "true")
    }

    pub(super) fn handle(&mut self, answer: Result<Answer, AskFault>, now: SystemTime) -> Turn {
        let Some(name) = &self.name else {
            let name =
                answer.and_then(|found| read_name(found.status, &found.body).map(str::to_owned));
            return match name {
                Ok(name) => {
                    self.name = Some(name);
                    Turn::at_once()
                }
                Err(fault) => Turn::failed(fault),
            };
        };
        if !self.ready.is_empty() {
            return self.handle_acknowledged(answer);
        }
        match answer.and_then(|found| read_azure(name, found.status, &found.body, now)) {
            Ok(notices) => {
                self.is_on = true;
                let news = notices.into_iter().filter(|notice| self.told.is_first(&notice.event));
                Turn { notices: news.collect(), next: Next::AfterPoll }
            }
            Err(fault) => Turn::failed(fault),
        }
    }

    fn handle_acknowledged(&mut self, answer: Result<Answer, AskFault>) -> Turn {
        let taken = answer.and_then(|found| check_status(found.status));
        self.tries += 1;
        if taken.is_ok() || self.tries == ACKNOWLEDGE_TRIES {
            self.ready.pop_front();
            self.tries = 0;
        }
        match taken {
            Ok(()) => Turn::at_once(),
            Err(fault) => Turn::failed(fault),
        }
    }
}

#[cfg(test)]
mod tests;
