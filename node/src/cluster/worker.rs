//! The process of a worker: session, device, lanes and store, joined by one loop.
//!
//! ```text
//!   wait ──▶ translate ──▶ session.handle / device.send ──▶ perform outputs ──▶ wait
//! ```
//!
//! The loop takes no decision of the protocol: the session's outputs are performed, and events are
//! passed to it.

mod activity;
mod authority;
mod commands;
mod layers;
mod pieces;
mod renewal;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{
    SessionInput, SessionOutput, SessionSetup, WorkerCommand, WorkerEvent, WorkerSession,
};
use zbelastic_policy::renewal::RenewalWatch;
use zbelastic_policy::trust::{
    ClaimContext, ClaimRefusal, DuplicateIdentityReports, check_claim, is_removal,
};
use zbelastic_trainer::elastic::image_bytes;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_transport::{
    ControlKind, Credentials, DialProblem, EventQueue, PeerIdentity, PeerRole, Transport,
    TransportEvent,
};
use zbelastic_types::{ClusterId, Digest, NodeId, Step};

use super::blob_registry::BlobRegistry;
use super::checkpoint_thread::{CheckpointThread, StoreEvent};
use super::compute::WorkerDevice;
use super::data::FetchedJob;
use super::device::{DeviceHandle, DeviceInput, DeviceOutput};
use super::disk_space::{DiskSpace, DiskSpaceWatch};
use super::document::NamedJob;
use super::frames::{IncomingFrame, incoming};
use super::journal::Journal;
use super::keep_queue::KeepQueue;
use super::node_record::{NodeRecord, NodeRecordWriter};
use super::peer_directory::PeerDirectory;
use super::piece_copies::PieceCopies;
use super::process_exit::{ALONE_TIMEOUT, DrainCause, NodeSignal, ProcessExit};
use super::stores::StoreLocations;
use super::tick::{SESSION_TIMING, TICK, ticks_of};
use super::violations::PeerViolations;
use super::wire::{self, BulkKey, NodeMessage};
use crate::api::EventKind;
use crate::config::NoticePolicy;
use zbelastic_preemption::{Notice, NoticeCause, NoticeReport, NoticeWatch};

/// Results of fetches that wait for the loop at once.
const FETCHES_MAX: usize = 4096;
/// Commands held back while a job's text is fetched. A session gives a handful for each plan;
/// beyond this the plan they belong to is long over.
const COMMANDS_HELD_MAX: usize = 256;

/// What a worker is started with.
pub struct WorkerSetup {
    /// Id of the cluster, as in its certificates.
    pub cluster: ClusterId,
    /// This worker's number in the cluster.
    pub node: NodeId,
    /// The number of this start: it grows with each.
    pub boot: u64,
    /// The name and the addresses of this worker.
    pub contact: Contact,
    /// Controllers known so far, and where they are reached.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Memory, speed and device that it offers.
    pub resources: Resources,
    /// Paths of texts that `--data-path` named; another text is fetched from the nodes that have
    /// it.
    pub data_paths: Vec<String>,
    /// What this node keeps about itself between two starts.
    pub node_record: NodeRecord,
    /// Writes changes of the node record to disk.
    pub writer: NodeRecordWriter,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// The folder that holds the node record, the certificate and the key.
    pub identity: PathBuf,
    /// Where checkpoints are kept.
    pub store_locations: StoreLocations,
}

/// The parts that a worker is made of.
pub struct WorkerParts {
    /// The lanes to the other nodes.
    pub transport: Transport,
    /// Events of the lanes: connections and messages.
    pub events: EventQueue,
    /// The store of checkpoints and its thread.
    pub checkpoint_thread: CheckpointThread,
    /// Reports of the thread of the store.
    pub store_events: mpsc::Receiver<StoreEvent>,
    /// Events and log lines.
    pub journal: Journal,
    /// Signals of the system or of an operator to the process.
    pub signals: mpsc::Receiver<NodeSignal>,
    /// Notices of the cloud that the machine is taken away.
    pub notices: NoticeWatch,
}

/// The result of work that was done beside the event loop.
enum WorkerCompletion {
    /// A layer for a plan.
    Layer(layers::LayerFetchResult),
    /// A piece of a checkpoint: one that this node reads, or is to keep for another.
    Piece(pieces::PieceTaskResult),
    /// A certificate that is valid for longer, or why there is none.
    Certificate(Result<Vec<Vec<u8>>, String>),
    /// The cluster has no member with this node's key any more.
    NoMember,
    /// The free and total space on the store's disk, if it is known.
    DiskSpace(Option<DiskSpace>),
    /// What a job is built from.
    Job(Box<Result<FetchedJob, super::data::FetchError>>),
}

/// The job that this worker has a part in.
struct ActiveJob {
    document: Arc<NamedJob>,
    /// Floats in each part of each layer.
    layer_floats: Vec<usize>,
    /// The plan that was loaded last.
    plan: Option<Arc<PlanRecord>>,
    /// The layers that are copied ahead.
    precopy: Option<Arc<PreCopyPlan>>,
}

impl ActiveJob {
    /// Bytes of each layer as it travels.
    fn layer_bytes(&self) -> Vec<u64> {
        self.layer_floats.iter().map(|floats| image_bytes(*floats)).collect()
    }
}

/// Whether the job's text and weights are here.
enum JobReadiness {
    /// No plan needs text or weights yet.
    Idle,
    /// Text and weights are fetched; commands wait.
    Fetching(VecDeque<WorkerCommand>),
    Ready(ActiveJob),
}

struct WorkerNode {
    setup: WorkerSetup,
    session: WorkerSession,
    device: DeviceHandle,
    transport: Transport,
    checkpoint_thread: CheckpointThread,
    /// Layers of a checkpoint that are to be hashed.
    unhashed: pieces::HashQueue,
    copies: PieceCopies,
    /// Pieces to be kept for others.
    keeping: KeepQueue,
    /// The newest version that this node knows to be sealed.
    newest_sealed: Step,
    /// Bytes that the store had written at the last tick.
    written_seen: u64,
    blob_registry: BlobRegistry,
    peers: PeerDirectory,
    journal: Journal,
    /// Connections that ended because one end broke a rule.
    violations: PeerViolations,
    accusers: DuplicateIdentityReports,
    readiness: JobReadiness,
    /// Layers that are on their way here.
    layers_fetching: BTreeSet<BulkKey>,
    completions: mpsc::Sender<WorkerCompletion>,
    /// Layers of a checkpoint that the runtime waits to read, from this node's store or from
    /// another node.
    pieces_reading: BTreeMap<(Step, zbelastic_types::LayerId), wire::PieceRef>,
    work_log: activity::WorkLog,
    disk_watch: DiskSpaceWatch,
    gauge_seen: u64,
    renewal: RenewalWatch,
    /// Ticks since the authorities to trust were looked at.
    authority_ticks: u32,
    /// Whether another authority issues than the one that made the certificate.
    wants_certificate: bool,
    /// Whether a controller does not trust the authority that made the certificate.
    is_shut_out: bool,
    exit: Option<ProcessExit>,
    drain: Option<NodeSignal>,
    /// Ticks without a connection to any controller, while it drains.
    alone_ticks: u32,
    /// The notice that it drains for.
    notice: Option<Notice>,
    /// The job whose store is used.
    stored_job: Option<Digest>,
}

/// Runs a worker until it ends.
///
/// # Errors
/// If the device's thread cannot be started.
pub async fn run<M: WorkerDevice>(
    setup: WorkerSetup,
    parts: WorkerParts,
    worker_device: M,
) -> std::io::Result<ProcessExit> {
    let WorkerParts { transport, mut events, checkpoint_thread, mut store_events, journal, .. } =
        parts;
    let WorkerParts { mut signals, mut notices, .. } = parts;
    let (device, mut outputs) = DeviceHandle::start(transport.frame_sender(), worker_device)?;
    let (completions, mut completed) = mpsc::channel(FETCHES_MAX);
    let stored = checkpoint_thread.clone();
    let blob_registry = BlobRegistry::new(Box::new(move |key| stored.find(key)));
    connect_lanes(&transport, &device, &blob_registry);
    let session = WorkerSession::new(SessionSetup {
        cluster: setup.cluster,
        node: setup.node,
        boot: setup.boot,
        resources: setup.resources,
        contact: setup.contact.clone(),
        controllers: setup.controllers.keys().copied().collect(),
        timing: SESSION_TIMING,
    });
    let peers = PeerDirectory::new(setup.node, setup.controllers.clone());
    peers.begin(&transport);
    let mut worker = WorkerNode {
        setup,
        session,
        device,
        transport,
        checkpoint_thread,
        unhashed: pieces::HashQueue::default(),
        copies: PieceCopies::default(),
        keeping: KeepQueue::default(),
        newest_sealed: Step(0),
        written_seen: 0,
        blob_registry,
        peers,
        journal,
        violations: PeerViolations::default(),
        accusers: DuplicateIdentityReports::default(),
        readiness: JobReadiness::Idle,
        layers_fetching: BTreeSet::new(),
        completions,
        pieces_reading: BTreeMap::new(),
        work_log: activity::WorkLog::default(),
        disk_watch: DiskSpaceWatch::default(),
        gauge_seen: 0,
        renewal: RenewalWatch::default(),
        authority_ticks: 0,
        wants_certificate: false,
        is_shut_out: false,
        exit: None,
        drain: None,
        alone_ticks: 0,
        notice: None,
        stored_job: None,
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    worker.journal.record(EventKind::Started { node: worker.setup.node, version });
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while worker.exit.is_none() {
        tokio::select! {
            biased;
            // First, so that a flood of anything else does not stop the clock.
            _ = ticks.tick() => worker.handle_tick(),
            Some(event) = events.next() => worker.handle_event(event),
            Some(output) = outputs.recv() => worker.handle_device(output),
            Some(completion) = completed.recv() => worker.handle_completion(completion),
            Some(event) = store_events.recv() => worker.handle_store_event(event),
            Some(signal) = signals.recv() => worker.handle_signal(signal),
            Some(report) = notices.reports.recv() => worker.handle_report(&report),
        }
        worker.perform();
    }
    if let Some(notice) = &worker.notice {
        notices.acknowledge(notice);
    }
    worker.transport.close().await;
    Ok(worker.exit.expect("looked at above"))
}

/// Frames go to the device on the thread that received them.
fn connect_lanes(transport: &Transport, device: &DeviceHandle, blob_registry: &BlobRegistry) {
    let to_device = device.clone();
    transport.set_frame_sink(Box::new(move |frame| {
        // What cannot be decoded or accepted is dropped; a plan that misses it is given up and
        // redone.
        let input = match incoming(frame) {
            Ok(IncomingFrame::Whole(frame)) => DeviceInput::Frame(frame, Instant::now()),
            Ok(IncomingFrame::Piece(piece)) => DeviceInput::Piece(piece),
            Err(_) => return,
        };
        let _ = to_device.send(input);
    }));
    let blob_registry = blob_registry.clone();
    transport.set_bulk_source(Box::new(move |_, key| {
        let key: BulkKey = wire::decode(key).ok()?;
        blob_registry.find(&key)
    }));
}

impl WorkerNode {
    fn handle_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { peer, .. } => self.peers.note_up(peer.node),
            TransportEvent::Down { peer, reason } => {
                self.peers.note_down(peer.node);
                self.note_holder_down(peer.node);
                if is_removal(peer.role, reason) {
                    self.exit = Some(ProcessExit::Removed);
                }
                let violation = self.violations.note_down(peer.node, reason, Instant::now());
                violation.into_iter().for_each(|kind| self.journal.record(kind));
            }
            TransportEvent::Control { from, bytes } => self.handle_control(from, &bytes),
            TransportEvent::Request { from, bytes, reply } => {
                self.handle_request(from, &bytes, reply);
            }
            TransportEvent::Join { reply, .. } => drop(reply),
            TransportEvent::DuplicateIdentity { reported_by } => {
                let role = self.peers.role(reported_by);
                let workers = self.peers.roster().workers_up();
                if self.accusers.record(reported_by, role, workers) {
                    self.exit = Some(ProcessExit::Duplicate { reported_by });
                }
            }
            TransportEvent::DialFailed { node, address, problem } => {
                if problem == DialProblem::AuthorityRetired {
                    self.is_shut_out = true;
                    self.renewal.check_now();
                }
                match ProcessExit::of_refusal(node, self.peers.role(node), &problem) {
                    Some(exit) => self.exit = Some(exit),
                    None => {
                        let message = format!("node {node} is not reached at {address}: {problem}");
                        self.journal.log(message);
                    }
                }
            }
            TransportEvent::Strangers { count, last, reason: why } => {
                self.journal.log(format!(
                    "{count} connections of strangers refused, the last from {last}: {why}"
                ));
            }
        }
    }

    fn handle_control(&mut self, from: PeerIdentity, bytes: &Bytes) {
        let Some((kind, body)) = bytes.split_first() else { return };
        match ControlKind::of(*kind) {
            Some(ControlKind::Raft) | None => {}
            Some(ControlKind::Member) => {
                if from.role != PeerRole::Controller {
                    return;
                }
                // What cannot be read or does not belong changes nothing, and is sent again if it
                // matters.
                if let Ok(message) = Envelope::decode(body) {
                    let message = Box::new(message);
                    let _ = self.session.handle(SessionInput::Message { from: from.node, message });
                }
            }
            Some(ControlKind::Blob) => {
                if let Ok(message) = wire::decode(body) {
                    self.handle_node_message(from, message);
                }
            }
        }
    }

    /// Whether what a message claims counts, if it makes a claim. A worker passes on no reports
    /// of others.
    fn check_message(&self, from: PeerIdentity, message: &NodeMessage) -> Result<(), ClaimRefusal> {
        let Some(claim) = message.claim() else { return Ok(()) };
        let job_data = match &self.readiness {
            JobReadiness::Ready(job) => job.document.job.data(),
            JobReadiness::Idle | JobReadiness::Fetching(_) => Vec::new(),
        };
        let own = PeerRole::Worker;
        let context = ClaimContext { own, plan: None, had_head: false, job_data: &job_data };
        check_claim((from.node, from.role), claim, context)
    }

    fn handle_node_message(&mut self, from: PeerIdentity, message: NodeMessage) {
        if self.check_message(from, &message).is_err() {
            return;
        }
        match message {
            NodeMessage::Layer(message) => self.handle_layer_message(from, message),
            NodeMessage::Keep(piece) => self.keep_for(from.node, piece),
            NodeMessage::Kept(piece) => self.note_copy(piece, from.node, true),
            NodeMessage::NotKept(piece) => self.note_copy(piece, from.node, false),
            NodeMessage::Keeping(piece) => self.copies.note_progress(piece, from.node),
            NodeMessage::Collect(referred) => self.collect(referred),
            NodeMessage::KeepData(name) => self.repair_data(from.node, name),
            NodeMessage::Exporting => self.work_log.note_export(),
            // For controllers.
            NodeMessage::SaveFailed(_)
            | NodeMessage::Took { .. }
            | NodeMessage::Moved { .. }
            | NodeMessage::Evaluated { .. }
            | NodeMessage::LayersTook { .. }
            | NodeMessage::Arrived { .. }
            | NodeMessage::Room { .. }
            | NodeMessage::Working { .. }
            | NodeMessage::Authority(_) => {}
        }
    }

    fn handle_device(&mut self, output: DeviceOutput) {
        match output {
            DeviceOutput::Event(event) => self.send_to_session(event),
            DeviceOutput::Request { to, message } => {
                self.send_node(to, &NodeMessage::Layer(message))
            }
            DeviceOutput::Offer { to, offer } => self.offer(to, offer),
            DeviceOutput::Read { version, layer, digest } => self.read(version, layer, digest),
            DeviceOutput::Write { image, generation } => self.write(image, generation),
            DeviceOutput::Evaluated { steps_done, loss } => {
                self.send_to_controllers(&NodeMessage::Evaluated { steps_done, loss });
            }
            DeviceOutput::StepTime(step) => self.report_step_time(step),
            DeviceOutput::OutOfMemory(error) => {
                self.journal.warn(format!("its memory did not hold its stage: {error}"));
            }
            DeviceOutput::Failed(error) => {
                self.exit = Some(error.process_exit());
            }
        }
    }

    fn handle_completion(&mut self, completion: WorkerCompletion) {
        match completion {
            WorkerCompletion::Layer(layer) => self.handle_layer(layer),
            WorkerCompletion::Piece(piece) => self.handle_piece(piece),
            WorkerCompletion::Certificate(chain) => self.handle_certificate(chain),
            WorkerCompletion::DiskSpace(found) => self.handle_disk_space(found),
            WorkerCompletion::NoMember => self.exit = Some(ProcessExit::Removed),
            WorkerCompletion::Job(fetched) => self.handle_job(*fetched),
        }
    }

    fn handle_signal(&mut self, signal: NodeSignal) {
        match (signal, self.drain) {
            (NodeSignal::Now, _) | (NodeSignal::Drain(_), Some(_)) => {
                let _ = self.session.handle(SessionInput::Leave);
                self.perform();
                self.exit = Some(ProcessExit::Left);
            }
            (NodeSignal::Drain(cause), None) => {
                self.drain = Some(signal);
                self.journal.log(format!("draining: {cause}; the same again ends it immediately"));
                let _ = self.session.handle(SessionInput::Drain);
                if self.session.holder().is_none() {
                    self.exit = Some(ProcessExit::Drained(cause));
                }
            }
        }
    }

    /// The thread that polls for a cloud's notices reported something.
    fn handle_report(&mut self, report: &NoticeReport) {
        let notice = match report {
            NoticeReport::Watching(cloud) => {
                return self.journal.log(format!("notices of {} are polled", cloud.name()));
            }
            NoticeReport::NoCloud => return,
            NoticeReport::Trouble { source, fault } => {
                return self.journal.log(format!("notices of {}: {fault}", source.name()));
            }
            NoticeReport::Notice(notice) => notice,
        };
        self.journal.warn(format!("notice of {}: {:?}", notice.source.name(), notice.cause));
        let policy = match &self.readiness {
            JobReadiness::Ready(job) => job.document.job.config.elastic.on_notice,
            JobReadiness::Idle | JobReadiness::Fetching(_) => NoticePolicy::Drain,
        };
        match (notice.cause, policy) {
            (NoticeCause::Preempted | NoticeCause::Maintenance, NoticePolicy::Drain) => {
                if self.drain.is_none() {
                    self.notice = Some(notice.clone());
                    self.handle_signal(NodeSignal::Drain(DrainCause::Preempted));
                }
            }
            // It may happen to this machine sooner than to others: nothing is lost by waiting.
            (NoticeCause::Rebalance, NoticePolicy::Drain) | (_, NoticePolicy::Ignore) => {}
        }
    }

    fn handle_tick(&mut self) {
        self.report_device_activity();
        self.report_work();
        let _ = self.session.handle(SessionInput::Tick);
        if self.is_device_idle() && self.layers_fetching.is_empty() {
            // While a layer is on its way, no time counts towards a timeout of the runtime.
            self.send_to_device(RuntimeInput::Tick);
        }
        let controllers = self.peers.follow(&self.transport, Some(self.session.contacts()));
        if let Some(controllers) = controllers {
            self.setup.node_record.save_controllers(&self.setup.writer, controllers);
        }
        for node in self.peers.poll_banned() {
            self.journal.log(format!("node {node} was removed: no connection of it is accepted"));
        }
        self.follow_rotation();
        self.renew_certificate_if_due();
        self.check_controller_contact();
        self.check_disk_space();
    }

    /// Ends a draining worker that is long connected to no controller: none hands its layers over.
    fn check_controller_contact(&mut self) {
        if self.drain.is_none() || self.peers.roster().is_controller_connected() {
            self.alone_ticks = 0;
            return;
        }
        self.alone_ticks += 1;
        if self.alone_ticks > ticks_of(ALONE_TIMEOUT) && self.exit.is_none() {
            self.exit = Some(ProcessExit::Alone);
        }
    }

    /// Whether an operation is under way, and whether it is the one of the last tick.
    fn report_device_activity(&mut self) {
        let edges = self.device.gauge().edges();
        if edges == self.gauge_seen {
            return;
        }
        self.gauge_seen = edges;
        self.send_to_session(WorkerEvent::Busy { is_busy: false });
        if !edges.is_multiple_of(2) {
            self.send_to_session(WorkerEvent::Busy { is_busy: true });
        }
    }

    fn is_device_idle(&self) -> bool {
        self.device.gauge().edges().is_multiple_of(2)
    }

    fn send_to_session(&mut self, event: WorkerEvent) {
        let _ = self.session.handle(SessionInput::Event(event));
    }

    fn send_to_device(&mut self, input: RuntimeInput) {
        if let Err(error) = self.device.send(DeviceInput::Runtime(input)) {
            self.exit = Some(ProcessExit::Lost(error.to_string()));
        }
    }

    fn send_node(&self, to: NodeId, message: &NodeMessage) {
        let mut bytes = vec![ControlKind::Blob.byte()];
        bytes.extend(wire::encode(message));
        self.transport.send(to, bytes.into());
    }

    fn send_to_controllers(&self, message: &NodeMessage) {
        for node in self.session.controllers() {
            self.send_node(node, message);
        }
    }

    /// Performs the session's outputs, until it has none left.
    fn perform(&mut self) {
        // Before all commands, and whether there are any: others fetch what is kept here for them.
        self.use_store();
        while let Some(output) = self.session.poll_output() {
            match output {
                SessionOutput::Send { to, message } => {
                    let mut bytes = vec![ControlKind::Member.byte()];
                    bytes.extend(message.encode());
                    self.transport.send(to, bytes.into());
                }
                SessionOutput::Command(command) => self.execute(command),
            }
        }
    }
}
