//! Notices of a cloud that this machine will be withdrawn, as its metadata service announces them.
//!
//! ```text
//!             thread "notices"                                        the node
//!   probe ──> request ──> send ──> answer ──> decision ──> report ──> reports
//!                ▲                               │ wait
//!                └───────────────────────────────┘◄── acknowledge (Azure)
//! ```
//!
//! Each cloud has a state machine without clock and socket (`aws`, `gcp`, `azure`): it chooses the
//! next request, and reads the answer. One thread sends the requests. It promises:
//!
//! - An event is reported once, however often and by however many answers it is repeated.
//! - No request is sent with [`NoticeSource::None`]; proxies of the environment are never used.
//! - Answers are bounded in bytes and time, and requests in how often they are sent.
//! - An answer that makes no sense is no notice. Each kind of fault is reported once, and requests go
//!   on, less often.
//!
//! The same service names the zone that the machine stands in, which is requested once, at the start (`zone`).
//!
//! It does not decide what a notice means for the training, and it does not know how well the
//! machine's clock is set, against which a deadline is read.

mod aws;
mod azure;
mod date;
mod gcp;
mod metadata_client;
mod metadata_request;
mod poll_outcome;
mod poll_timings;
mod probe;
mod reported_events;
mod source;
mod thread;
mod zone;

pub use metadata_client::{METADATA_VARIABLE, MetadataUrl, MetadataUrlFault};
pub use metadata_request::{ANSWER_BYTES_MAX, MetadataFault};
pub use poll_timings::PollTimings;
pub use reported_events::EventId;
pub use source::{Cloud, NoticeSource, UnknownNoticeSource};
pub use zone::{CloudZone, ZoneQuery};

use std::io;
use std::sync::mpsc as std_mpsc;
use std::time::SystemTime;

use tokio::sync::mpsc;

/// Reports that wait for the node. The thread blocks when there are more, and sends no request
/// meanwhile.
const REPORTS_MAX: usize = 16;
/// Acknowledgements that wait to be sent. More are not sent; without one, an event begins when its
/// time has come.
const ACKNOWLEDGEMENTS_MAX: usize = 16;

/// Why a machine should be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeCause {
    /// It is preempted.
    Preempted,
    /// It is likelier than others to be preempted soon.
    Rebalance,
    /// It is stopped or started anew for its upkeep.
    Maintenance,
}

/// That this machine will be withdrawn, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Why the machine goes: preempted, likely to be, or maintenance.
    pub cause: NoticeCause,
    /// When, if it is known.
    pub deadline: Option<SystemTime>,
    /// Cloud that announced it.
    pub source: Cloud,
    /// The event's name at the source, or a name made here that is unique among this source's
    /// events.
    pub event: EventId,
}

/// A report of the polling thread to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeReport {
    /// Notices of this cloud are listened for from now on.
    Watching(Cloud),
    /// No cloud answered: there is no metadata service to poll, or none that is reached yet. Once; a cloud that
    /// answers a later probe is reported.
    NoCloud,
    /// A notice, reported once for each event.
    Notice(Notice),
    /// A request failed, or an answer could not be parsed. Once for each kind.
    Trouble {
        /// Cloud of the metadata service that was polled.
        source: Cloud,
        /// The fault of the request or its answer.
        fault: MetadataFault,
    },
}

/// Which cloud to listen to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeSettings {
    /// The cloud to listen to, one found by probing, or none.
    pub source: NoticeSource,
    /// Where the metadata service is, if it is not where clouds have it.
    pub base: Option<MetadataUrl>,
    /// How often, and how long an answer may be outstanding.
    pub pace: PollTimings,
}

impl NoticeSettings {
    /// Settings with the metadata service that the environment names, if it names one.
    ///
    /// # Errors
    /// If the environment names something that is no URL of a metadata service.
    pub fn from_environment(source: NoticeSource) -> Result<Self, MetadataUrlFault> {
        let base = MetadataUrl::from_environment()?;
        Ok(Self { source, base, pace: PollTimings::default() })
    }
}

/// A thread that listens for notices, until this is dropped.
#[derive(Debug)]
pub struct NoticeWatch {
    /// Reports of the thread. Closed when there are no more.
    pub reports: mpsc::Receiver<NoticeReport>,
    acknowledgements: std_mpsc::SyncSender<EventId>,
}

impl NoticeWatch {
    /// Begins to listen. With [`NoticeSource::None`] there is no thread, and `reports` is closed.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(settings: NoticeSettings) -> io::Result<Self> {
        let (sender, reports) = mpsc::channel(REPORTS_MAX);
        let (acknowledgements, acknowledged) = std_mpsc::sync_channel(ACKNOWLEDGEMENTS_MAX);
        if settings.source != NoticeSource::None {
            thread::start(settings, sender, acknowledged)?;
        }
        Ok(Self { reports, acknowledgements })
    }

    /// Enqueues the acknowledgement that this machine is ready for the event that `notice`
    /// announces, so that it need not be waited for. Azure begins the event at once; the other
    /// clouds have no acknowledgements, and nothing is sent.
    pub fn acknowledge(&self, notice: &Notice) {
        match notice.source {
            // Unsent, an event begins when its time has come: no harm is done.
            Cloud::Azure => drop(self.acknowledgements.try_send(notice.event.clone())),
            Cloud::Aws | Cloud::Gcp => {}
        }
    }
}
