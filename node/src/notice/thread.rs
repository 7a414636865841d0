//! The threads that send requests, and what they report.

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
use super::probe::find_cloud;
use super::reported_events::EventId;
use super::{Cloud, NoticeReport, NoticeSettings, NoticeSource};

/// Starts to listen, until the receiver of reports or the sender of orders is dropped. A request under way is
/// not broken off: the thread ends with its answer, or with the process.
pub(super) fn start(
    settings: NoticeSettings,
    reports: Sender<NoticeReport>,
    orders: Receiver<EventId>,
) -> io::Result<()> {
    spawn("notices", move || run(&settings, &reports, &orders))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

fn run(settings: &NoticeSettings, reports: &Sender<NoticeReport>, orders: &Receiver<EventId>) {
    let asker = MetadataClient::new(settings.base.as_ref());
    let pace = settings.pace;
    let cloud = match settings.source {
        NoticeSource::Auto => find_cloud(&asker, &pace),
        NoticeSource::Aws => Some(Cloud::Aws),
        NoticeSource::Gcp => Some(Cloud::Gcp),
        NoticeSource::Azure => Some(Cloud::Azure),
        NoticeSource::None => None,
    };
    let first = cloud.map_or(NoticeReport::NoCloud, NoticeReport::Watching);
    // If the receiver is gone, no later report would be received either.
    let is_heard = reports.blocking_send(first).is_ok();
    let Some(cloud) = cloud.filter(|_| is_heard) else { return };
    let machine = match cloud {
        Cloud::Aws => CloudPoller::Aws(AwsWatch::new(pace)),
        Cloud::Gcp => {
            return listen_to_gcp(&asker, pace, reports, orders);
        }
        Cloud::Azure => CloudPoller::Azure(AzureWatch::new(pace)),
    };
    listen(&asker, NoticePoller::new(cloud, machine, pace), reports, orders);
}

/// Google's server holds answers back, so each of the two values has a thread to wait on it.
fn listen_to_gcp(
    asker: &MetadataClient,
    pace: PollTimings,
    reports: &Sender<NoticeReport>,
    orders: &Receiver<EventId>,
) {
    let listener =
        |topic| NoticePoller::new(Cloud::Gcp, CloudPoller::Gcp(GcpWatch::new(pace, topic)), pace);
    // Never sent through: it ends the other thread when this one ends.
    let (life, end) = sync_channel(0);
    let (other, other_reports) = (listener(gcp::GcpTopic::Maintenance), reports.clone());
    let other_asker = asker.clone();
    let started = spawn("notices-upkeep", move || {
        listen(&other_asker, other, &other_reports, &end);
    });
    if let Err(error) = started {
        let fault = MetadataFault::NoThread { kind: error.kind() };
        // If the receiver is gone, no later report would be received either.
        let _ = reports.blocking_send(NoticeReport::Trouble { source: Cloud::Gcp, fault });
    }
    listen(asker, listener(gcp::GcpTopic::Preempted), reports, orders);
    drop(life);
}

fn listen(
    asker: &MetadataClient,
    mut listener: NoticePoller,
    reports: &Sender<NoticeReport>,
    orders: &Receiver<EventId>,
) {
    loop {
        let answer = asker.send(&listener.machine.question());
        let (news, wait) = listener.handle(answer, SystemTime::now());
        for report in news {
            if reports.blocking_send(report).is_err() {
                return;
            }
        }
        match orders.recv_timeout(wait) {
            Ok(event) => listener.machine.acknowledge(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What knows a cloud.
#[derive(Debug)]
enum CloudPoller {
    Aws(AwsWatch),
    Gcp(GcpWatch),
    Azure(AzureWatch),
}

impl CloudPoller {
    fn question(&self) -> MetadataRequest {
        match self {
            Self::Aws(watch) => watch.question(),
            Self::Gcp(watch) => watch.question(),
            Self::Azure(watch) => watch.question(),
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

/// A state machine, and what is the same for all: which failures were reported, and how long to wait.
#[derive(Debug)]
struct NoticePoller {
    cloud: Cloud,
    machine: CloudPoller,
    pace: PollTimings,
    /// Failures since the last good answer.
    failures: u32,
    /// Kinds of fault that were reported. There are as many as the fault has variants.
    reported_faults: Vec<Discriminant<MetadataFault>>,
}

impl NoticePoller {
    fn new(cloud: Cloud, machine: CloudPoller, pace: PollTimings) -> Self {
        Self { cloud, machine, pace, failures: 0, reported_faults: Vec::new() }
    }

    /// What to report after an answer, and how long to wait then.
    fn handle(
        &mut self,
        answer: Result<MetadataResponse, MetadataFault>,
        now: SystemTime,
    ) -> (Vec<NoticeReport>, Duration) {
        let turn = self.machine.handle(answer, now);
        let mut reports: Vec<NoticeReport> =
            turn.notices.into_iter().map(NoticeReport::Notice).collect();
        let fault = match turn.next {
            NextPoll::AtOnce | NextPoll::AfterPoll => None,
            NextPoll::AfterFault(ref fault) => Some(fault),
        };
        self.failures = fault.map_or(0, |_| self.failures.saturating_add(1));
        let wait = match turn.next {
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

    fn listener() -> NoticePoller {
        let pace = PollTimings::default();
        NoticePoller::new(Cloud::Aws, CloudPoller::Aws(AwsWatch::new(pace)), pace)
    }

    fn answer(status: u16, body: &str) -> Result<MetadataResponse, MetadataFault> {
        Ok(MetadataResponse { status, body: body.to_owned(), ..MetadataResponse::default() })
    }

    #[test]
    fn a_kind_of_trouble_is_told_once() {
        let mut listener = listener();
        let mut troubles = |answer| {
            let (reports, _) = listener.handle(answer, UNIX_EPOCH);
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
        let mut listener = listener();
        let mut wait = |answer| listener.handle(answer, UNIX_EPOCH).1;
        assert_eq!(wait(answer(500, "")), Duration::from_secs(1));
        assert_eq!(wait(answer(500, "")), Duration::from_secs(2));
        assert_eq!(wait(answer(200, "token")), Duration::ZERO);
        assert_eq!(wait(answer(500, "")), Duration::from_secs(1));
        assert_eq!(wait(answer(404, "")), Duration::ZERO);
        assert_eq!(wait(answer(404, "")), Duration::from_secs(2), "the look is over");
    }
}
