//! The live page of a cluster: the server, and the thread that observes the cluster for it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_identity::{JoinError, JoinSetup, JoinToken, NodeKey, NodeName, PeerRole, join_once};
use zbelastic_machine::background_thread::raise_niceness;
use zbelastic_machine::name_resolver;
use zbelastic_machine::own_address::reachable_addresses;
use zbelastic_node::cluster::threads::runtime;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_ui::{
    AccessPolicy, PageObserver, ServeError, TokenCheck, TokenRefusal, UiServer, UiSettings,
};
use zbelastic_view::{Observation, RunCosts};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::command_connection::exchange;
use crate::event_history::send_history;
use crate::event_poller::EventPoller;
use crate::named_thread::spawn_named;
use crate::span_exporter::SpanExporter;

/// Between two requests while a page is open, and while none is: then only `/metrics` reads them.
const OBSERVE_PAUSE: Duration = Duration::from_millis(250);
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Between two requests for a status.
const STATUS_PAUSE: Duration = Duration::from_millis(900);
/// Lanes are requested after this many times what the answer took, no sooner than a second after it and
/// no later than a minute: a controller spends at most a thirtieth of its time on answers of two seconds.
const TRACE_PAUSE_FACTOR: u32 = 30;
const TRACE_PAUSE_MIN: Duration = Duration::from_secs(1);
const TRACE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The name under which tokens of viewers are checked, in the cluster's log.
const CHECK_NAME: &str = "page";

/// The cluster that is shown.
#[derive(Clone, Debug)]
pub struct ObservedCluster {
    /// The folder with a certificate that may read.
    pub folder: NodeDataFolder,
    /// Its nodes' addresses.
    pub addresses: Vec<String>,
    /// A controller's `events.jsonl`, which need not be there: what it holds is shown before the
    /// events that the cluster remembers.
    pub history: PathBuf,
}

/// The thread that observes a cluster.
pub struct ObserverThread {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl ObserverThread {
    /// Ends it, when it has sent the traces of what it observed to their collector, if there is one.
    pub fn finish(self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A thread that panicked ended the process.
        let _ = self.thread.join();
    }
}

/// Where observations go.
pub struct ObservationSink {
    /// Sends one; false if nobody receives them any more.
    pub send: Box<dyn Fn(Observation) -> bool + Send>,
    /// The newest step whose lanes are there already, or 0, if somebody looks at them.
    pub lanes_wanted: Box<dyn Fn() -> Option<u64> + Send>,
}

impl From<PageObserver> for ObservationSink {
    fn from(observer: PageObserver) -> Self {
        let viewers = observer.clone();
        Self {
            send: Box::new(move |observation| observer.send(observation)),
            lanes_wanted: Box::new(move || viewers.lanes_wanted()),
        }
    }
}

/// Starts the server of the page. `checks_at` are addresses at which tokens are checked.
///
/// # Errors
/// If it cannot listen at `address`.
pub fn start_server(
    address: SocketAddr,
    costs: RunCosts,
    checks_at: Vec<String>,
) -> Result<UiServer, CommandFailure> {
    let policy = AccessPolicy::at(address, token_check(checks_at));
    UiServer::start(UiSettings { address, policy, costs }, runtime()?).map_err(cannot_listen)
}

/// Where a browser finds the page: a server that listens on every interface is reached at one address.
#[must_use]
pub fn browser_address(server: &UiServer) -> SocketAddr {
    let listens = server.address();
    reachable_addresses(listens, &[]).first().copied().unwrap_or(listens)
}

fn cannot_listen(error: ServeError) -> CommandFailure {
    let hint = match &error {
        ServeError::Taken { .. } => "another port, or port 0 for any that is free",
        ServeError::NotPermitted { .. } => "a port from 1024 on",
        ServeError::NotOurs { .. } => "127.0.0.1, or 0.0.0.0 for all addresses of this machine",
        ServeError::Other { .. } => "another address",
    };
    let mut failure = CommandFailure::new(FailureCode::WrongState, error.to_string());
    failure.details = vec![FailureDetail::new("the page needs an address of its own").hint(hint)];
    failure
}

/// Checks tokens as `login` does: with a key of its own, whose certificate is dropped.
fn token_check(addresses: Vec<String>) -> TokenCheck {
    Arc::new(move |text: &str| {
        let not_a_token = |reason: String| TokenRefusal::NotAToken { reason };
        let token = JoinToken::parse(text).map_err(|error| not_a_token(error.to_string()))?;
        let role = token.role();
        if !matches!(role, PeerRole::Viewer | PeerRole::Operator) {
            return Err(not_a_token(format!("it admits the role {role}")));
        }
        let name: NodeName = CHECK_NAME.parse().expect("it is a name");
        let cluster = name_resolver::resolve(&addresses);
        let key = NodeKey::generate();
        let setup = JoinSetup { token, role, name, key, cluster, advertised: Vec::new() };
        let unanswered = |reason: String| TokenRefusal::Unanswered { reason };
        let runtime = runtime().map_err(|failure| unanswered(failure.what))?;
        match runtime.block_on(join_once(&setup)) {
            Ok(_) => Ok(()),
            Err(error @ (JoinError::Refused { .. } | JoinError::WrongServer { .. })) => {
                Err(TokenRefusal::Refused { reason: error.to_string() })
            }
            Err(
                error @ (JoinError::NobodyDecided { .. }
                | JoinError::Setup(_)
                | JoinError::WrongGrant { .. }),
            ) => Err(unanswered(error.to_string())),
        }
    })
}

/// Observes the cluster in a thread, until nobody receives it any more or the thread is ended.
/// `exporter` is where traces of it go.
///
/// # Errors
/// If the system gives no threads.
pub fn observe_in_thread(
    cluster: ObservedCluster,
    sink: impl Into<ObservationSink>,
    exporter: Option<SpanExporter>,
) -> Result<ObserverThread, CommandFailure> {
    let mut sink = sink.into();
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let send = sink.send;
    sink.send = Box::new(move |observed| !seen.load(Ordering::Relaxed) && send(observed));
    let run = move || {
        // Training comes first: this thread gets what is left of the processors.
        raise_niceness();
        // Without threads for its connection there is nothing to observe, and nothing to stop for.
        drop(observe(&cluster, &sink, exporter));
    };
    Ok(ObserverThread { is_over, thread: spawn_named("page", run)? })
}

/// Observes the cluster until nobody receives it any more. `exporter` is where traces of it go.
///
/// # Errors
/// If the system gives no threads for the connection.
pub fn observe(
    cluster: &ObservedCluster,
    sink: &ObservationSink,
    mut exporter: Option<SpanExporter>,
) -> Result<(), CommandFailure> {
    let ObservedCluster { folder, addresses, history } = cluster;
    let mut client = ApiClient::new(addresses.clone(), exchange(folder)?);
    let mut schedule = ObserverSchedule::begin(Instant::now());
    let newest = send_history(history, &mut |events| (sink.send)(Observation::History(events)));
    let mut poller = EventPoller::behind(newest);
    let mut dropped = None;
    loop {
        let mut observed = observe_once(&mut client, &mut poller, &mut schedule, sink);
        if let Some(exporter) = &mut exporter {
            for events in observed.iter().filter_map(Observation::events) {
                exporter.observe(events);
            }
            let total = exporter.dropped();
            if dropped.replace(total) != Some(total) {
                observed.push(Observation::SpansDropped { total });
            }
        }
        for observed in observed {
            if !(sink.send)(observed) {
                exporter.map(SpanExporter::finish);
                return Ok(());
            }
        }
        thread::sleep(if (sink.lanes_wanted)().is_some() { OBSERVE_PAUSE } else { IDLE_PAUSE });
    }
}

/// When a status and a trace are requested next.
struct ObserverSchedule {
    status_at: Instant,
    trace_at: Instant,
}

impl ObserverSchedule {
    const fn begin(now: Instant) -> Self {
        Self { status_at: now, trace_at: now }
    }
}

/// Everything that is due, and behind it that the cluster stopped answering, if it did.
fn observe_once(
    client: &mut ApiClient<'_>,
    poller: &mut EventPoller,
    schedule: &mut ObserverSchedule,
    sink: &ObservationSink,
) -> Vec<Observation> {
    let mut observed = Vec::new();
    if let Err(error) = request_due(client, poller, schedule, sink, &mut observed) {
        observed.push(Observation::Unanswered { reason: error.to_string() });
    }
    observed
}

/// Adds all events since the last time, a status, and lanes for open pages. What was answered before
/// an error stays in `observed`: the poller returns no event twice.
fn request_due(
    client: &mut ApiClient<'_>,
    poller: &mut EventPoller,
    schedule: &mut ObserverSchedule,
    sink: &ObservationSink,
    observed: &mut Vec<Observation>,
) -> Result<(), ApiError> {
    let polled = poller.poll(client)?;
    if !polled.events.is_empty() {
        // A full page is not the last one; the rest is requested the next time, which is soon.
        observed.push(Observation::Events(polled.events));
    }
    if Instant::now() >= schedule.status_at {
        observed.push(Observation::Status(Box::new(client.status()?)));
        schedule.status_at = Instant::now() + STATUS_PAUSE;
    }
    let now = Instant::now();
    if let Some(newest) = (sink.lanes_wanted)().filter(|_| now >= schedule.trace_at) {
        observed.extend(client.trace(newest)?.map(Observation::Trace));
        let pause = now.elapsed() * TRACE_PAUSE_FACTOR;
        schedule.trace_at = Instant::now() + pause.clamp(TRACE_PAUSE_MIN, TRACE_PAUSE_MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::client::ClientError;
    use zbelastic_api::sample::scripted;
    use zbelastic_api::{ApiAnswer, ApiRequest, ClusterEvent, EventKind, EventPage, TracePiece};

    #[test]
    fn an_address_that_cannot_be_had_is_refused_with_one_that_can() {
        let address = SocketAddr::from(([10, 0, 0, 4], 80));
        let source = std::io::ErrorKind::OutOfMemory.into();
        for (error, what, hint) in [
            (ServeError::Taken { address }, "10.0.0.4:80 is taken", "port 0"),
            (ServeError::NotPermitted { address }, "no permission to listen at", "from 1024 on"),
            (ServeError::NotOurs { address }, "10.0.0.4:80 is not an address of", "127.0.0.1"),
            (ServeError::Other { address, source }, "cannot listen at", "another address"),
        ] {
            let failure = cannot_listen(error);
            assert_eq!(failure.code, FailureCode::WrongState, "{failure}");
            assert!(failure.what.starts_with(what), "{failure}");
            let [detail] = &failure.details[..] else { panic!("{failure}") };
            assert!(detail.hint.as_deref().is_some_and(|found| found.contains(hint)), "{failure}");
        }
    }

    #[test]
    fn lanes_are_requested_from_those_on_that_pages_have() {
        let page = EventPage { log: 1, first_sequence: 0, next_sequence: 0, events: Vec::new() };
        let bytes = b"text".to_vec();
        let trace = TracePiece { total: 4, offset: 0, bytes };
        let answers = vec![Ok(ApiAnswer::Events(page)), Ok(ApiAnswer::Trace(trace))];
        let (mut client, requests) = scripted(answers);
        let sink = ObservationSink { send: Box::new(|_| true), lanes_wanted: Box::new(|| Some(7)) };
        let now = Instant::now();
        let mut schedule = ObserverSchedule { status_at: now + STATUS_PAUSE, trace_at: now };
        let mut poller = EventPoller::starting_at(0);
        let observed = observe_once(&mut client, &mut poller, &mut schedule, &sink);
        assert!(matches!(&observed[..], [Observation::Trace(_)]), "{observed:?}");
        assert_eq!(requests.borrow().last(), Some(&ApiRequest::Trace { offset: 0, from: 7 }));
        assert!(schedule.trace_at > now);
    }

    #[test]
    fn events_before_a_status_that_is_not_answered_are_observed() {
        let event = ClusterEvent::new(0, 5, EventKind::QuorumHeld);
        let page =
            EventPage { log: 1, first_sequence: 0, next_sequence: 1, events: vec![event.clone()] };
        let gone = ClientError::Broken { reason: "gone".to_owned() };
        let (mut client, _) = scripted(vec![Ok(ApiAnswer::Events(page)), Err(gone)]);
        let sink = ObservationSink { send: Box::new(|_| true), lanes_wanted: Box::new(|| None) };
        let mut schedule = ObserverSchedule::begin(Instant::now());
        let mut poller = EventPoller::starting_at(0);
        let observed = observe_once(&mut client, &mut poller, &mut schedule, &sink);
        let [Observation::Events(events), Observation::Unanswered { .. }] = &observed[..] else {
            panic!("{observed:?}")
        };
        assert_eq!(*events, [event]);
    }
}
