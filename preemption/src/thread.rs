//! The threads that send requests, and their reports.

use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::Sender;

use super::aws::AwsWatch;
use super::azure::AzureWatch;
use super::gcp::{self, GcpWatch};
use super::metadata_client::MetadataClient;
use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse};
use super::poll_outcome::{NextPoll, PollOutcome};
use super::poll_timings::PollTimings;
use super::probe::cloud_of;
use super::reported_events::EventId;
use super::{Cloud, NoticeReport, NoticeSettings};

/// Starts to listen, until the receiver of reports or the sender of acknowledgements is dropped. A
/// request under way is not broken off: the thread ends with its answer, or with the process.
pub(super) fn start(
    settings: NoticeSettings,
    reports: Sender<NoticeReport>,
    acknowledged: Receiver<EventId>,
) -> io::Result<()> {
    spawn("notices", move || run(&settings, &reports, &acknowledged))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

fn run(
    settings: &NoticeSettings,
    reports: &Sender<NoticeReport>,
    acknowledged: &Receiver<EventId>,
) {
    let client = MetadataClient::new(settings.base.as_ref());
    let pace = settings.pace;
    let Some(cloud) = watched_cloud(&client, settings, reports, acknowledged) else { return };
    let poller = match cloud {
        Cloud::Aws => CloudPoller::Aws(AwsWatch::new(pace)),
        Cloud::Gcp => {
            return run_gcp_pollers(&client, pace, reports, acknowledged);
        }
        Cloud::Azure => CloudPoller::Azure(AzureWatch::new(pace)),
    };
    run_poller(&client, NoticePoller::new(cloud, poller, pace), reports, acknowledged);
}

/// The cloud to poll, which was reported; `None` if none answers, or the receiver of reports is gone. A machine that
/// has just been started may reach its cloud's service a while after this process.
fn watched_cloud(
    client: &MetadataClient,
    settings: &NoticeSettings,
    reports: &Sender<NoticeReport>,
    acknowledged: &Receiver<EventId>,
) -> Option<Cloud> {
    for probes in 1..=settings.pace.probes_max {
        if let Some(cloud) = cloud_of(client, settings) {
            return reports.blocking_send(NoticeReport::Watching(cloud)).ok().map(|()| cloud);
        }
        if probes == 1 {
            reports.blocking_send(NoticeReport::NoCloud).ok()?;
        }
        match acknowledged.recv_timeout(settings.pace.fault_wait(probes)) {
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    None
}

/// Google's server holds answers back, so each of the two values has a thread to wait on it.
fn run_gcp_pollers(
    client: &MetadataClient,
    pace: PollTimings,
    reports: &Sender<NoticeReport>,
    acknowledged: &Receiver<EventId>,
) {
    let poller =
        |topic| NoticePoller::new(Cloud::Gcp, CloudPoller::Gcp(GcpWatch::new(pace, topic)), pace);
    // Never sent through: it ends the other thread when this one ends.
    let (life, end) = sync_channel(0);
    let other = poller(gcp::GcpTopic::Maintenance);
    let other_reports = reports.clone();
    let other_client = client.clone();
    let started = spawn("notices-upkeep", move || {
        run_poller(&other_client, other, &other_reports, &end);
    });
    if let Err(error) = started {
        let fault = MetadataFault::NoThread { kind: error.kind() };
        // If the receiver is gone, no later report would be received either.
        let _ = reports.blocking_send(NoticeReport::Trouble { source: Cloud::Gcp, fault });
    }
    run_poller(client, poller(gcp::GcpTopic::Preempted), reports, acknowledged);
    drop(life);
}

fn run_poller(
    client: &MetadataClient,
    mut poller: NoticePoller,
    reports: &Sender<NoticeReport>,
    acknowledged: &Receiver<EventId>,
) {
    loop {
        let answer = client.send(&poller.poller.request());
        let (reports_due, wait) = poller.handle(answer, SystemTime::now());
        for report in reports_due {
            if reports.blocking_send(report).is_err() {
                return;
            }
        }
        match acknowledged.recv_timeout(wait) {
            Ok(event) => poller.poller.acknowledge(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The state machine of a cloud's metadata service.
#[derive(Debug)]
enum CloudPoller {
    Aws(AwsWatch),
    Gcp(GcpWatch),
    Azure(AzureWatch),
}

impl CloudPoller {
    fn request(&self) -> MetadataRequest {
        match self {
            Self::Aws(watch) => watch.request(),
            Self::Gcp(watch) => watch.request(),
            Self::Azure(watch) => watch.request(),
        }
    }

    fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
        now: SystemTime,
    ) -> PollOutcome {
        match self {
            Self::Aws(watch) => watch.handle(answer),
            Self::Gcp(watch) => watch.handle(answer, now),
            Self::Azure(watch) => watch.handle(answer, now),
        }
    }

    /// Only Microsoft has acknowledgements.
    fn acknowledge(&mut self, event: EventId) {
        match self {
            Self::Azure(watch) => watch.acknowledge(event),
            Self::Aws(_) | Self::Gcp(_) => {}
        }
    }
}

/// A state machine, and the state that is the same for all: which failures were reported, and how
/// long to wait.
#[derive(Debug)]
struct NoticePoller {
    cloud: Cloud,
    poller: CloudPoller,
    pace: PollTimings,
    /// Failures since the last good answer.
    failures: u32,
    /// Kinds of fault that were reported. There are as many as the fault has variants.
    reported_faults: Vec<Discriminant<MetadataFault>>,
}

impl NoticePoller {
    fn new(cloud: Cloud, poller: CloudPoller, pace: PollTimings) -> Self {
        Self { cloud, poller, pace, failures: 0, reported_faults: Vec::new() }
    }

    /// The reports after an answer, and how long to wait then.
    fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
        now: SystemTime,
    ) -> (Vec<NoticeReport>, Duration) {
        let outcome = self.poller.handle(answer, now);
        let mut reports: Vec<NoticeReport> =
            outcome.notices.into_iter().map(NoticeReport::Notice).collect();
        let fault = match outcome.next {
            NextPoll::AtOnce | NextPoll::AfterPoll => None,
            NextPoll::AfterFault(ref fault) => Some(fault),
        };
        self.failures = fault.map_or(0, |_| self.failures.saturating_add(1));
        let wait = match outcome.next {
            NextPoll::AtOnce => Duration::ZERO,
            NextPoll::AfterPoll => self.poll(),
            NextPoll::AfterFault(_) => self.pace.fault_wait(self.failures),
        };
        if let Some(fault) =
            fault.filter(|fault| !self.reported_faults.contains(&discriminant(*fault)))
        {
            self.reported_faults.push(discriminant(fault));
            reports.push(NoticeReport::Trouble { source: self.cloud, fault: fault.clone() });
        }
        (reports, wait)
    }

    fn poll(&self) -> Duration {
        match self.cloud {
            Cloud::Aws => self.pace.aws_poll,
            Cloud::Gcp => self.pace.gcp_pause,
            Cloud::Azure => self.pace.azure_poll,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{
        AwsWatch, Cloud, CloudPoller, MetadataFault, MetadataResponse, NoticePoller, NoticeReport,
        PollTimings,
    };

    fn poller() -> NoticePoller {
        let pace = PollTimings::default();
        NoticePoller::new(Cloud::Aws, CloudPoller::Aws(AwsWatch::new(pace)), pace)
    }

    fn answer(status: u16, body: &str) -> Result<MetadataResponse, MetadataFault> {
        Ok(MetadataResponse { status, body: body.to_owned(), ..MetadataResponse::default() })
    }

    #[test]
    fn a_kind_of_fault_is_reported_once() {
        let mut poller = poller();
        let mut troubles = |answer| {
            let (reports, _) = poller.handle(answer, UNIX_EPOCH);
            let count =
                reports.iter().filter(|report| matches!(report, NoticeReport::Trouble { .. }));
            count.count()
        };
        assert_eq!(troubles(answer(500, "")), 1);
        assert_eq!(troubles(answer(503, "")), 0, "refusals are of a kind");
        assert_eq!(troubles(Err(MetadataFault::TooLong)), 1);
        assert_eq!(troubles(answer(200, "token")), 0);
        assert_eq!(troubles(answer(500, "")), 0, "a good answer between does not change that");
    }

    #[test]
    fn waits_grow_with_failures_and_a_good_answer_ends_that() {
        let mut poller = poller();
        let mut wait = |answer| poller.handle(answer, UNIX_EPOCH).1;
        assert_eq!(wait(answer(500, "")), Duration::from_secs(1));
        assert_eq!(wait(answer(500, "")), Duration::from_secs(2));
        assert_eq!(wait(answer(200, "token")), Duration::ZERO);
        assert_eq!(wait(answer(500, "")), Duration::from_secs(1));
        assert_eq!(wait(answer(404, "")), Duration::ZERO);
        assert_eq!(wait(answer(404, "")), Duration::from_secs(2), "the look is over");
    }
}
