//! Microsoft's notices: a list of events of all machines that belong together.
//!
//! So the machine requests its own name first, and ignores events of other machines: an
//! acknowledgement of another machine's event would have that machine stopped. An acknowledgement
//! states that this machine is ready, and has the event begin at once; it is sent when the node
//! orders it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::json;

use super::date::parse_http;
use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse, check_status};
use super::poll_outcome::{NextPoll, PollOutcome};
use super::poll_timings::PollTimings;
use super::reported_events::{EventId, ReportedEvents};
use super::{ACKNOWLEDGEMENTS_MAX, Cloud, Notice, NoticeCause};

const HEADER: &str = "Metadata";
const VERSIONS_PATH: &str = "/metadata/versions";
const NAME_PATH: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
/// The version has zones, and no data that users gave their machine: that may be as long as an answer.
const COMPUTE_PATH: &str = "/metadata/instance/compute?api-version=2018-10-01&format=json";
const EVENTS_PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";
/// Events of a list that are read; more would be no list of Microsoft's.
const EVENTS_MAX: usize = 32;
/// The longest name of a machine; real ones have at most 64 characters.
const NAME_CHARS_MAX: usize = 256;
/// How often an acknowledgement is sent that the service does not accept.
const ACKNOWLEDGE_TRIES: u32 = 3;

/// A request that only Microsoft's server answers with versions. It switches nothing on.
pub(super) fn probe_request(patience: Duration) -> MetadataRequest {
    MetadataRequest::get(VERSIONS_PATH, patience).header(HEADER, "true")
}

/// The request for what is known of the machine, its location and zone among it.
pub(super) fn zone_request(patience: Duration) -> MetadataRequest {
    MetadataRequest::get(COMPUTE_PATH, patience).header(HEADER, "true")
}

#[derive(Deserialize)]
struct MetadataApiVersions {
    #[serde(rename = "apiVersions")]
    versions: Vec<String>,
}

/// Whether that was answered by Microsoft's server.
pub(super) fn is_azure(answer: &MetadataResponse) -> bool {
    let versions =
        serde_json::from_str(&answer.body).map(|found: MetadataApiVersions| found.versions);
    check_status(answer.status).is_ok() && versions.is_ok_and(|versions| !versions.is_empty())
}

#[derive(Deserialize)]
struct ScheduledEvents {
    #[serde(rename = "Events")]
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize)]
struct ScheduledEvent {
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

/// The meaning of an answer with events for the machine called `name`.
pub(super) fn read_azure(
    name: &str,
    status: u16,
    body: &str,
    now: SystemTime,
) -> Result<Vec<Notice>, MetadataFault> {
    check_status(status)?;
    let document: Option<ScheduledEvents> = serde_json::from_str(body).ok();
    let document = document.ok_or(MetadataFault::Senseless { expected: "scheduled events" })?;
    if document.events.len() > EVENTS_MAX {
        return Err(MetadataFault::Senseless { expected: "scheduled events" });
    }
    Ok(document.events.iter().filter_map(|event| read_event(name, event, now)).collect())
}

/// The notice that an event is for the machine called `name`, if it is one.
fn read_event(name: &str, event: &ScheduledEvent, now: SystemTime) -> Option<Notice> {
    let is_mine = event.machines.iter().any(|machine| machine.eq_ignore_ascii_case(name));
    let cause = match event.kind.as_str() {
        "Preempt" | "Terminate" => NoticeCause::Preempted,
        "Reboot" | "Redeploy" => NoticeCause::Maintenance,
        // A pause of some seconds (`Freeze`), or an event that this version does not know.
        _ => return None,
    };
    // An event that has begun has no time any more.
    let begun = (event.status == "Started").then_some(now);
    let deadline = parse_http(&event.not_before).or(begun);
    let event = EventId::new(&event.id);
    is_mine.then_some(Notice { cause, deadline, source: Cloud::Azure, event })
}

fn read_name(status: u16, body: &str) -> Result<&str, MetadataFault> {
    check_status(status)?;
    let name = body.trim();
    let is_name = (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(name) } else { Err(MetadataFault::Senseless { expected: "a machine's name" }) }
}

/// Polls the list of events, once events are switched on.
#[derive(Debug)]
pub(super) struct AzureWatch {
    pace: PollTimings,
    name: Option<String>,
    /// Whether events are switched on.
    is_on: bool,
    reported: ReportedEvents,
    ready: VecDeque<EventId>,
    /// How often the first of them was sent.
    tries: u32,
}

impl AzureWatch {
    pub(super) fn new(pace: PollTimings) -> Self {
        let reported = ReportedEvents::default();
        let ready = VecDeque::new();
        Self { pace, name: None, is_on: false, reported, ready, tries: 0 }
    }

    /// The machine is ready for `event`. If more than some wait to be sent, it is not sent.
    pub(super) fn acknowledge(&mut self, event: EventId) {
        if self.ready.len() < ACKNOWLEDGEMENTS_MAX && !self.ready.contains(&event) {
            self.ready.push_back(event);
        }
    }

    pub(super) fn request(&self) -> MetadataRequest {
        let patience = self.pace.patience;
        let request = match (&self.name, self.ready.front()) {
            (None, _) => MetadataRequest::get(NAME_PATH, patience),
            (Some(_), Some(event)) => {
                let json = json!({ "StartRequests": [{ "EventId": event.name() }] });
                MetadataRequest::post(EVENTS_PATH, json.to_string(), patience)
            }
            (Some(_), None) if self.is_on => MetadataRequest::get(EVENTS_PATH, patience),
            (Some(_), None) => MetadataRequest::get(EVENTS_PATH, self.pace.azure_first_patience),
        };
        request.header(HEADER, "true")
    }

    pub(super) fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
        now: SystemTime,
    ) -> PollOutcome {
        let Some(name) = &self.name else {
            let name =
                answer.and_then(|found| read_name(found.status, &found.body).map(str::to_owned));
            return match name {
                Ok(name) => {
                    self.name = Some(name);
                    PollOutcome::at_once()
                }
                Err(fault) => PollOutcome::failed(fault),
            };
        };
        if !self.ready.is_empty() {
            return self.handle_acknowledged(answer);
        }
        match answer.and_then(|found| read_azure(name, found.status, &found.body, now)) {
            Ok(notices) => {
                self.is_on = true;
                let notices =
                    notices.into_iter().filter(|notice| self.reported.is_first(&notice.event));
                PollOutcome { notices: notices.collect(), next: NextPoll::AfterPoll }
            }
            Err(fault) => PollOutcome::failed(fault),
        }
    }

    fn handle_acknowledged(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
    ) -> PollOutcome {
        let acknowledged = answer.and_then(|found| check_status(found.status));
        self.tries += 1;
        if acknowledged.is_ok() || self.tries == ACKNOWLEDGE_TRIES {
            self.ready.pop_front();
            self.tries = 0;
        }
        match acknowledged {
            Ok(()) => PollOutcome::at_once(),
            Err(fault) => PollOutcome::failed(fault),
        }
    }
}

#[cfg(test)]
mod tests;
