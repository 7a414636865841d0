//! Google's notices: its server holds an answer back until it is another one than the last.
//!
//! Two values are watched, each by a machine and a thread of its own: whether the machine is
//! preempted, and whether it is stopped for maintenance of its host. A move to another host while
//! it runs is no reason to leave. The first request is answered at once; those that follow name the
//! answer that is known, so that no change between two requests is lost.

use std::time::{Duration, SystemTime};

use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse, check_status};
use super::poll_outcome::{NextPoll, PollOutcome};
use super::poll_timings::PollTimings;
use super::reported_events::{EventId, EventLatch};
use super::{Cloud, Notice, NoticeCause};

/// The header that a request must carry, and an answer carries.
const FLAVOR_HEADER: &str = "Metadata-Flavor";
const FLAVOR: &str = "Google";
/// From the notice until the machine is gone, unless it was made with another figure.
const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);
/// The longest tag that is sent back; real ones have 16 characters.
const TAG_CHARS_MAX: usize = 64;

/// A value of the metadata that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GcpTopic {
    /// Whether the machine is preempted.
    Preempted,
    /// Whether maintenance of its host is due.
    Maintenance,
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GcpAnswer {
    Stays,
    Goes,
    Fault(MetadataFault),
}

/// A request for an answer that shows whether the server is Google's.
pub(super) fn probe_request(patience: Duration) -> MetadataRequest {
    MetadataRequest::get("/computeMetadata/v1/instance/id", patience).header(FLAVOR_HEADER, FLAVOR)
}

/// The request for the zone that the machine stands in.
pub(super) fn zone_request(patience: Duration) -> MetadataRequest {
    let path = "/computeMetadata/v1/instance/zone";
    MetadataRequest::get(path, patience).header(FLAVOR_HEADER, FLAVOR)
}

/// Whether a request was answered by Google's server.
pub(super) fn is_gcp(answer: &MetadataResponse) -> bool {
    check_status(answer.status).is_ok() && answer.flavor.as_deref() == Some(FLAVOR)
}

/// Parses an answer about `topic`.
pub(super) fn read_gcp(topic: GcpTopic, answer: &MetadataResponse) -> GcpAnswer {
    if let Err(fault) = check_status(answer.status) {
        return GcpAnswer::Fault(fault);
    }
    let senseless = |expected| GcpAnswer::Fault(MetadataFault::Senseless { expected });
    // A server between that answers everything has no such header.
    if answer.flavor.as_deref() != Some(FLAVOR) {
        return senseless("an answer of Google's");
    }
    match (topic, answer.body.trim()) {
        (GcpTopic::Preempted, "TRUE")
        | (GcpTopic::Maintenance, "TERMINATE_ON_HOST_MAINTENANCE") => GcpAnswer::Goes,
        (GcpTopic::Preempted, "FALSE")
        | (GcpTopic::Maintenance, "NONE" | "MIGRATE_ON_HOST_MAINTENANCE") => GcpAnswer::Stays,
        (GcpTopic::Preempted, _) => senseless("TRUE or FALSE"),
        (GcpTopic::Maintenance, _) => senseless("a maintenance event"),
    }
}

/// Polls one topic of the metadata.
#[derive(Debug)]
pub(super) struct GcpWatch {
    pace: PollTimings,
    topic: GcpTopic,
    /// Whether the last answer is known, and its tag.
    last: LastEtag,
    latch: EventLatch,
    /// How often it was marked: distinguishes an event from the one before.
    count: u32,
}

#[derive(Debug)]
enum LastEtag {
    Unknown,
    Untagged,
    Tagged(String),
}

impl GcpWatch {
    pub(super) fn new(pace: PollTimings, topic: GcpTopic) -> Self {
        Self { pace, topic, last: LastEtag::Unknown, latch: EventLatch::default(), count: 0 }
    }

    pub(super) fn request(&self) -> MetadataRequest {
        let mut path = match self.topic {
            GcpTopic::Preempted => "/computeMetadata/v1/instance/preempted",
            GcpTopic::Maintenance => "/computeMetadata/v1/instance/maintenance-event",
        }
        .to_owned();
        let mut patience = self.pace.patience;
        let hang = Duration::from_secs(self.pace.gcp_hang.as_secs().max(1));
        let mut hold = |more: &str| {
            path += &format!("?wait_for_change=true&timeout_sec={}{more}", hang.as_secs());
            patience += hang;
        };
        match &self.last {
            LastEtag::Unknown => {}
            LastEtag::Untagged => hold(""),
            LastEtag::Tagged(tag) => hold(&format!("&last_etag={tag}")),
        }
        MetadataRequest::get(path, patience).header(FLAVOR_HEADER, FLAVOR)
    }

    pub(super) fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
        now: SystemTime,
    ) -> PollOutcome {
        let read = answer.map(|answer| (read_gcp(self.topic, &answer), answer.tag));
        let (read, tag) = match read {
            Ok((GcpAnswer::Fault(fault), _)) | Err(fault) => {
                // After any event meanwhile, the next answer comes at once.
                self.last = LastEtag::Unknown;
                return PollOutcome::failed(fault);
            }
            Ok(read) => read,
        };
        self.last = tag.filter(|tag| is_tag(tag)).map_or(LastEtag::Untagged, LastEtag::Tagged);
        if read == GcpAnswer::Goes {
            return self.handle_mark(now);
        }
        self.latch.clear();
        PollOutcome::silent(NextPoll::AfterPoll)
    }

    fn handle_mark(&mut self, now: SystemTime) -> PollOutcome {
        let (name, cause, deadline) = match self.topic {
            GcpTopic::Preempted => {
                ("preempted", NoticeCause::Preempted, now.checked_add(PREEMPTION_NOTICE))
            }
            GcpTopic::Maintenance => ("maintenance", NoticeCause::Maintenance, None),
        };
        let event = EventId::new(&format!("{name} {}", self.count + 1));
        let mut outcome = PollOutcome::silent(NextPoll::AfterPoll);
        if self.latch.set(&event) {
            self.count += 1;
            outcome.notices.push(Notice { cause, deadline, source: Cloud::Gcp, event });
        }
        outcome
    }
}

/// Whether a tag can stand in a path as it is.
fn is_tag(tag: &str) -> bool {
    (1..=TAG_CHARS_MAX).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{
        GcpAnswer, GcpTopic, GcpWatch, MetadataFault, MetadataResponse, NoticeCause, PollOutcome,
        PollTimings, TAG_CHARS_MAX, is_tag, read_gcp,
    };

    fn answer(body: &str, tag: Option<&str>) -> MetadataResponse {
        MetadataResponse {
            status: 200,
            body: body.to_owned(),
            tag: tag.map(str::to_owned),
            flavor: Some("Google".to_owned()),
        }
    }

    #[test]
    fn answers_mean_what_the_cloud_says_they_mean() {
        let check = |topic, body: &str, expected| {
            assert_eq!(read_gcp(topic, &answer(body, None)), expected, "{body}");
        };
        check(GcpTopic::Preempted, "TRUE\n", GcpAnswer::Goes);
        check(GcpTopic::Preempted, "FALSE", GcpAnswer::Stays);
        check(GcpTopic::Maintenance, "TERMINATE_ON_HOST_MAINTENANCE", GcpAnswer::Goes);
        check(GcpTopic::Maintenance, "MIGRATE_ON_HOST_MAINTENANCE", GcpAnswer::Stays);
        check(GcpTopic::Maintenance, "NONE", GcpAnswer::Stays);
        let senseless = |expected| GcpAnswer::Fault(MetadataFault::Senseless { expected });
        check(GcpTopic::Preempted, "NONE", senseless("TRUE or FALSE"));
        check(GcpTopic::Maintenance, "TRUE", senseless("a maintenance event"));
        check(GcpTopic::Maintenance, "", senseless("a maintenance event"));
    }

    #[test]
    fn only_googles_server_is_believed() {
        let other = MetadataResponse { flavor: None, ..answer("TRUE", None) };
        let fault = MetadataFault::Senseless { expected: "an answer of Google's" };
        assert_eq!(read_gcp(GcpTopic::Preempted, &other), GcpAnswer::Fault(fault));
        let refused = MetadataResponse { status: 403, ..answer("TRUE", None) };
        let fault = MetadataFault::Status { found: 403 };
        assert_eq!(read_gcp(GcpTopic::Preempted, &refused), GcpAnswer::Fault(fault));
    }

    #[test]
    fn the_first_request_does_not_wait_and_the_next_names_the_answer() {
        let now = UNIX_EPOCH;
        let mut watch = GcpWatch::new(PollTimings::default(), GcpTopic::Preempted);
        let path = |watch: &GcpWatch| watch.request().path;
        let plain = "/computeMetadata/v1/instance/preempted";
        assert_eq!(path(&watch), plain);
        watch.handle(Ok(answer("FALSE", Some("0a1b"))), now);
        let hanging = format!("{plain}?wait_for_change=true&timeout_sec=60");
        assert_eq!(path(&watch), format!("{hanging}&last_etag=0a1b"));
        assert_eq!(watch.request().patience, Duration::from_secs(62));
        watch.handle(Ok(answer("FALSE", Some("a&b"))), now);
        assert_eq!(path(&watch), hanging, "a tag that would be more than a tag is not sent");
        let failed = watch.handle(Err(MetadataFault::TooLong), now);
        assert_eq!(failed, PollOutcome::failed(MetadataFault::TooLong));
        assert_eq!(path(&watch), plain);
    }

    #[test]
    fn each_time_the_machine_is_marked_it_is_reported() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let mut watch = GcpWatch::new(PollTimings::default(), GcpTopic::Maintenance);
        let mut notices = |body: &str| watch.handle(Ok(answer(body, None)), now).notices;
        let ends = "TERMINATE_ON_HOST_MAINTENANCE";
        let moves = "MIGRATE_ON_HOST_MAINTENANCE";
        assert!(notices("NONE").is_empty());
        let first = notices(ends).pop().expect("told");
        assert_eq!((first.cause, first.deadline), (NoticeCause::Maintenance, None));
        assert!(notices(ends).is_empty());
        assert!(notices(moves).is_empty());
        let second = notices(ends).pop().expect("told");
        assert_ne!(first.event, second.event);

        let mut watch = GcpWatch::new(PollTimings::default(), GcpTopic::Preempted);
        let outcome = watch.handle(Ok(answer("TRUE", None)), now);
        let deadline = Some(now + Duration::from_secs(30));
        assert_eq!(
            (outcome.notices[0].cause, outcome.notices[0].deadline),
            (NoticeCause::Preempted, deadline)
        );
    }

    #[test]
    fn a_tag_is_short_and_plain() {
        assert!(is_tag(&"a".repeat(TAG_CHARS_MAX)));
        assert!(!is_tag(&"a".repeat(TAG_CHARS_MAX + 1)));
        assert!(!is_tag("") && !is_tag("a b") && !is_tag("\"a\""));
    }
}
