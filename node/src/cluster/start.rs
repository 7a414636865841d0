//! A node's start: from its folder, or from nothing but a token, to a process that runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use zbelastic_api::escape;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{RecordLog, SledLog, SledStore, aside_of};
use zbelastic_consensus::access::{AccessRole, Credential};
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::contact::{Contact, FailureDomain};
use zbelastic_consensus::core::{Core, CoreSetup, CoreStart, StartError};
use zbelastic_consensus::member::{BOOTS_PER_START, Resources};
use zbelastic_consensus::raft::{RaftSetup, RaftStartError, RecoveredLog};
use zbelastic_consensus::state::State;
use zbelastic_identity::{
    CertificateLife, ClusterAuthority, Credentials, PeerRole, UnixSeconds, random_number,
};
use zbelastic_policy::store_opening::{StoreOpeningAction, after_fault};
use zbelastic_policy::tick::{duty_timing, election_ticks};
use zbelastic_preemption::{CloudZone, NoticeSettings, NoticeSource, NoticeWatch};
use zbelastic_transport::{EventQueue, ProcessStart, Transport, TransportLimits, TransportSetup};
use zbelastic_types::{Digest, NodeId};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::checkpoint_thread::CheckpointThread;
use super::compute::WorkerDevice;
use super::controller::{self, ControllerInbox, ControllerParts, ControllerSetup};
use super::journal::{Journal, LogEcho};
use super::node_record::NodeRecordWriter;
use super::print_administrator_hint;
use super::process_exit::{NodeSignal, ProcessExit};
use super::record_writer::RecordWriter;
use super::recovery;
use super::solver::SolverThread;
use super::worker::{self, WorkerParts, WorkerSetup};
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_machine::machine_id::machine_number;
use zbelastic_machine::own_address::reachable_addresses;
use zbelastic_machine::peak_rates::PeakRatesByPrecision;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_node_folder::stores::{OpenStores, StoreLocations, StoreOpenError};

/// Writes that may be under way before a leader steps down, in ticks: disks of shared machines need
/// their time.
const WRITE_TICKS_MAX: u32 = 200;

/// How long the node with the higher number waits to be dialled. A controller does not know where a
/// worker is before the worker has reported it, so a worker does not wait for longer than two dials
/// cross.
const DIAL_PATIENCE: Duration = Duration::from_millis(150);

/// If it is `off`, processes of one machine communicate through the network like all others.
const SAME_HOST_VARIABLE: &str = "ZBELASTIC_SAME_HOST";

fn may_share_host() -> bool {
    std::env::var(SAME_HOST_VARIABLE).map_or(true, |value| value != "off")
}

/// The speed of a thread that computes on a processor, in thousandths of a reference device's.
pub const SPEED_OF_A_THREAD: u32 = 1000;

/// The resources and settings of a worker that joins.
#[derive(Clone, Debug)]
pub struct WorkerProfile {
    /// Memory, speed and device of the worker.
    pub resources: Resources,
    /// What it multiplies and adds at best, if that was measured.
    pub peak: Option<PeakRatesByPrecision>,
    /// What was typed about data on its machine.
    pub data: DataSettings,
    /// The source of the preemption notices that it polls.
    pub notice_source: NoticeSource,
    /// The zone that its cloud named at this start; one that was typed goes before it.
    pub cloud_zone: Option<CloudZone>,
}

/// A node that may start: its folder is held, its identity read.
pub struct PreparedNode {
    /// Where its data is.
    pub folder: NodeDataFolder,
    /// The record that the node keeps about itself between two starts.
    pub node_record: NodeRecord,
    /// Its certificate and key.
    pub credentials: Credentials,
    /// Where its log lines are shown.
    pub echo: LogEcho,
    /// Signals of the system or of an operator.
    pub signals: mpsc::Receiver<NodeSignal>,
}

/// The parts that both kinds of nodes have.
struct NodeParts {
    transport: Transport,
    events: EventQueue,
    checkpoint_thread: CheckpointThread,
    store_events: mpsc::Receiver<super::checkpoint_thread::StoreEvent>,
    journal: Journal,
}

async fn open_parts(node: &mut PreparedNode) -> Result<NodeParts, CommandFailure> {
    let identity = node.folder.identity();
    node.node_record
        .count_boot(&identity)
        .map_err(|error| internal("the node's folder", &error))?;
    let setup = TransportSetup {
        credentials: node.credentials.clone(),
        bind: node.node_record.bind,
        local_folder: may_share_host().then(|| node.folder.root().join("local")),
        start: ProcessStart { boot: node.node_record.boot, life: random_number() },
        limits: TransportLimits { dial_patience: DIAL_PATIENCE, ..TransportLimits::default() },
    };
    let (transport, events) = Transport::bind(setup).await.map_err(|error| {
        let mut failure = CommandFailure::new(FailureCode::WrongState, error.to_string());
        let detail = FailureDetail::new("it was to listen there, over UDP");
        failure.details = vec![detail.hint("another --bind; with port 0 it is any that is free")];
        failure
    })?;
    let mut stores = OpenStores::new(StoreLocations::new(node.folder.clone()));
    let opened = open_store(&mut stores, &node.folder)?;
    let data = node.folder.root().join("data");
    std::fs::create_dir_all(&data).map_err(|error| internal("the folder of texts", &error))?;
    let mut journal = Journal::open(&node.folder.events(), node.echo)
        .map_err(|error| internal("events.jsonl", &error))?;
    let store = match opened {
        OpenedStore::Store(store) => Ok(store),
        OpenedStore::Replaced { store, damage, aside } => {
            journal.warn(damage.put_aside_text(&aside));
            Ok(store)
        }
        OpenedStore::Unavailable { folder, error } => {
            journal.warn(format!("nothing is kept here until the store is opened: {error}"));
            Err((folder, error.opening_fault()))
        }
    };
    let checkpoint_thread = CheckpointThread::start(stores, store, data);
    let (checkpoint_thread, store_events) =
        checkpoint_thread.map_err(|error| internal("the store's thread", &error))?;
    Ok(NodeParts { transport, events, checkpoint_thread, store_events, journal })
}

/// The store that a node used last, as it was opened, replaced or missing.
enum OpenedStore {
    Store(Arc<SledStore>),
    /// Its index was damaged: the old store is put aside, and another one is begun.
    Replaced {
        /// The store that was begun.
        store: Arc<SledStore>,
        /// The fault of the old one.
        damage: StoreOpenError,
        /// The folder to which the old one was moved.
        aside: PathBuf,
    },
    /// It cannot be opened now.
    Unavailable {
        /// The folder of the store.
        folder: PathBuf,
        /// Why it cannot be opened.
        error: StoreOpenError,
    },
}

/// The store that the node used last. One in the data folder must be there; one that a job named
/// may lie on a disk that is missing, and the node is of use without. Pieces of checkpoints lie on
/// other nodes as well: neither a damaged index nor an operation that failed keeps a node from
/// starting.
///
/// # Errors
/// If it is in the data folder and somebody has to do something until it can be opened, or it is not
/// known where it is.
fn open_store(
    stores: &mut OpenStores,
    folder: &NodeDataFolder,
) -> Result<OpenedStore, CommandFailure> {
    let store_folder = StoreLocations::new(folder.clone()).last();
    let store_folder = store_folder.map_err(|error| storage("the store", false, &error))?;
    let damage = match stores.get(&store_folder) {
        Ok(store) => return Ok(OpenedStore::Store(store)),
        Err(error) => error,
    };
    let is_taken = |number: u32| aside_of(&store_folder, number).exists();
    match after_fault(damage.opening_fault(), store_folder == folder.store(), is_taken) {
        StoreOpeningAction::BeginAnew { aside } => {
            let begun = stores.put_aside(&store_folder, aside);
            let begun = begun.and_then(|aside| Ok((stores.get(&store_folder)?, aside)));
            let (store, aside) = begun.map_err(|error| storage("the store", false, &error))?;
            Ok(OpenedStore::Replaced { store, damage, aside })
        }
        StoreOpeningAction::GoWithout => {
            Ok(OpenedStore::Unavailable { folder: store_folder, error: damage })
        }
        StoreOpeningAction::Refuse => Err(match damage.closing(&store_folder) {
            StoreOpenError::Store { ref source, .. } => {
                storage("the store", source.is_full(), source)
            }
            ref other @ (StoreOpenError::Folder { .. }
            | StoreOpenError::Gone { .. }
            | StoreOpenError::Note { .. }
            | StoreOpenError::TooManyAside { .. }
            | StoreOpenError::TooMany) => storage("the store", false, other),
        }),
    }
}

/// Runs a worker until it ends.
///
/// # Errors
/// If it cannot start.
pub async fn run_worker<M: WorkerDevice>(
    mut node: PreparedNode,
    profile: WorkerProfile,
    device: M,
) -> Result<ProcessExit, CommandFailure> {
    let NodeParts { transport, events, checkpoint_thread, store_events, mut journal } =
        open_parts(&mut node).await?;
    let node_record = &node.node_record;
    let mut contact = contact(node_record, transport.local_addr());
    if let Some(CloudZone { name, cloud }) = profile.cloud_zone {
        journal.log(format!("zone {name}, as the metadata of {cloud} name it"));
        contact.place.zone = name;
    }
    let setup = WorkerSetup {
        cluster: node_record.cluster,
        node: node_record.node,
        boot: node_record.boot * BOOTS_PER_START,
        contact,
        resources: profile.resources,
        peak: profile.peak,
        data: profile.data,
        node_record: node_record.clone(),
        writer: NodeRecordWriter::start(node.folder.clone()),
        credentials: node.credentials.clone(),
        identity: node.folder.identity(),
        store_locations: StoreLocations::new(node.folder.clone()),
    };
    let settings = NoticeSettings::from_environment(profile.notice_source).map_err(|error| {
        CommandFailure::usage("the environment", vec![FailureDetail::new(error.to_string())])
    })?;
    let notices = NoticeWatch::start(settings);
    let notices = notices.map_err(|error| internal("the thread of notices", &error))?;
    let signals = node.signals;
    let parts = WorkerParts {
        transport,
        events,
        checkpoint_thread,
        store_events,
        journal,
        signals,
        notices,
    };
    worker::run(setup, parts, device).await.map_err(|error| internal("the device's thread", &error))
}

/// Runs a controller; `first` is the state of a cluster that this node begins.
///
/// # Errors
/// If it cannot start.
pub async fn run_controller(
    mut node: PreparedNode,
    authority: ClusterAuthority,
) -> Result<ProcessExit, CommandFailure> {
    // Before the start is counted: a node that has started before has a log.
    let mut log = SledLog::open(Arc::new(RealFileSystem), &node.folder.log())
        .map_err(|error| storage("the log", error.is_full(), &error))?;
    let NodeParts { transport, events, checkpoint_thread, store_events, journal } =
        open_parts(&mut node).await?;
    let contact = contact(&node.node_record, transport.local_addr());
    let core = core(&node, &contact, &mut log)?;
    print_administrator_hint(&node.folder, &node.node_record, transport.local_addr())?;
    let (record_writer, written) =
        RecordWriter::start(log).map_err(|error| internal("the log's thread", &error))?;
    let (solver, solver_answers) =
        SolverThread::start().map_err(|error| internal("the solver's thread", &error))?;
    let setup = ControllerSetup {
        node: node.node_record.node,
        cluster_name: node.node_record.cluster_name.clone(),
        founded_ms: node.node_record.founded_ms,
        node_record: node.node_record.clone(),
        writer: NodeRecordWriter::start(node.folder.clone()),
        credentials: node.credentials.clone(),
        store_locations: StoreLocations::new(node.folder.clone()),
    };
    let authority = Arc::new(authority);
    let parts = ControllerParts {
        core,
        record_writer,
        solver,
        authority,
        transport,
        checkpoint_thread,
        journal,
    };
    let inbox = ControllerInbox {
        write_reports: written,
        solver_answers,
        events,
        store_events,
        signals: node.signals,
    };
    Ok(controller::run(setup, parts, inbox).await)
}

fn core(node: &PreparedNode, contact: &Contact, log: &mut SledLog) -> Result<Core, CommandFailure> {
    let node_record = &node.node_record;
    let mut raft =
        RaftSetup::new(node_record.node, random_number() >> 2, election_ticks(node_record.node.0));
    raft.write_ticks_max = WRITE_TICKS_MAX;
    let timing = duty_timing();
    let setup = CoreSetup {
        cluster: node_record.cluster,
        contact: contact.clone(),
        raft,
        timing,
        newest_format: Format::NEWEST,
    };
    let others: Vec<NodeId> = node_record
        .controllers
        .keys()
        .copied()
        .filter(|other| *other != node_record.node)
        .collect();
    let records = log.read_all().map_err(|error| storage("the log", error.is_full(), &error))?;
    let recovered = RecoveredLog::from_records(records.iter().map(|(_, bytes)| bytes.as_slice()))
        .map_err(|error| damaged_log(&error))?;
    if recovered.torn {
        let last = log.next() - 1;
        log.cut_from(last).map_err(|error| storage("the log", error.is_full(), &error))?;
    }
    let boot = node_record.boot;
    let start = if recovered.records.0 == 0 {
        beginning(node, contact, others.clone())?
    } else {
        CoreStart::Recover { log: Box::new(recovered), controllers: others.clone(), boot }
    };
    match Core::new(setup.clone(), start) {
        // The process ended before anything of its first start was durable.
        Err(StartError::Raft(RaftStartError::NeverStarted)) => {
            let start = beginning(node, contact, others)?;
            Core::new(setup, start).map_err(|error| damaged_log(&error))
        }
        core => core.map_err(|error| damaged_log(&error)),
    }
}

/// The first controller begins a cluster, any other one requests to be admitted.
fn beginning(
    node: &PreparedNode,
    contact: &Contact,
    others: Vec<NodeId>,
) -> Result<CoreStart, CommandFailure> {
    let node_record = &node.node_record;
    if !others.is_empty() {
        return Ok(CoreStart::Wait { controllers: others, boot: node_record.boot });
    }
    let at_s = UnixSeconds::now().0;
    let credential = Credential {
        role: AccessRole::Controller,
        name: node_record.name.clone(),
        key: Digest(node.credentials.key().digest().0),
        token: None,
        issued_at_s: at_s,
        expires_at_s: at_s + CertificateLife::of(PeerRole::Controller).0,
        is_ephemeral: false,
        is_revoked: false,
    };
    let recovered = recovery::beginning(&node.folder.identity())?;
    let state = recovered
        .unwrap_or_else(|| State::new(node_record.cluster))
        .with_controllers([(node_record.node, contact.clone())])
        .with_credentials([(node_record.node, credential)]);
    Ok(CoreStart::Create { voters: vec![node_record.node], state: Box::new(state) })
}

/// Where a node is reached: where it is configured to be, or else where it listens, as the
/// controllers see it.
fn contact(node_record: &NodeRecord, local: SocketAddr) -> Contact {
    let others = node_record.controllers.iter().filter(|(node, _)| **node != node_record.node);
    let others: Vec<SocketAddr> = others.flat_map(|(_, addresses)| addresses).copied().collect();
    let addresses = if node_record.advertised.is_empty() {
        let own = reachable_addresses(local, &others);
        own.iter().map(SocketAddr::to_string).collect()
    } else {
        node_record.advertised.clone()
    };
    let place = FailureDomain { zone: node_record.zone.clone(), host: machine_number() };
    Contact { name: node_record.name.clone(), addresses, place }
}

fn internal(subject: &str, error: &dyn std::fmt::Display) -> CommandFailure {
    CommandFailure::new(
        FailureCode::OutOfResource,
        format!("{subject}: {}", escape(&error.to_string())),
    )
}

fn storage(subject: &str, is_full: bool, error: &dyn std::fmt::Display) -> CommandFailure {
    let code = if is_full { FailureCode::OutOfResource } else { FailureCode::VerificationFailed };
    // The text of a damaged file's error may hold anything.
    let mut failure =
        CommandFailure::new(code, format!("{subject}: {}", escape(&error.to_string())));
    failure.details = vec![FailureDetail::new("nothing was created in its place")];
    failure
}

fn damaged_log(error: &dyn std::fmt::Display) -> CommandFailure {
    let message = format!("this controller's log cannot be used: {error}");
    let mut failure = CommandFailure::new(FailureCode::VerificationFailed, message);
    failure.details = vec![
        FailureDetail::new("nothing was changed")
            .why("a controller that forgot what it promised could let two leaders decide")
            .hint("`zbelastic node remove` it, and join a new one with an empty --data-dir"),
    ];
    failure
}
