//! The processes of a cluster, and connections to one.
//!
//! ```text
//!   init ─▶ controller ◀── join ── controllers, workers
//!              ▲
//!   exchange ──┘   the requests of a command line
//! ```

pub mod activity;
mod authority;
mod background;
mod blob_registry;
mod checkpoint_thread;
mod command_connection;
pub mod compute;
mod controller;
pub mod data;
mod device;
pub mod document;
mod frame_dispatch;
pub mod frames;
pub mod journal;
mod layer_moves;
mod login;
mod machine_id;
mod name_resolver;
pub mod node_record;
mod outbox;
mod own_address;
mod peer_connections;
mod peer_directory;
mod piece_fetch;
mod piece_keeper;
pub mod process_exit;
mod record_writer;
mod recovery;
mod rejoin;
mod renewal;
mod requests;
pub mod run_log;
mod scrub;
pub mod signals;
mod solver;
mod start;
mod step_timings;
mod stores;
mod threads;
pub mod tick;
mod unused_data;
mod violations;
pub mod wire;
mod worker;
mod worker_profile;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use zbelastic_policy::{disk_space, keep_queue, keep_rule, piece_copies};
use zbelastic_transport::identity::{
    ClusterAuthority, JoinError, JoinRefusal, JoinSetup, JoinToken, NodeKey, NodeName, PeerRole,
    UnixSeconds, check_permissions, join_cluster, random_number,
};
use zbelastic_types::{ClusterId, NodeId};

use crate::api::MemberRole;
use crate::args::{
    AddressList, DeviceSelector, DoctorArgs, FolderArgs, InitArgs, JoinArgs, RecoverArgs,
};
use crate::commands::doctor::{self, DialOutcome, DoctorProbes};
use crate::commands::token::find_token;
use crate::data_folder::{AdminFile, NodeDataFolder};
use crate::failure::{CommandError, CommandFailure, FailureCode, FailureDetail};
pub use command_connection::exchange;
use command_connection::reach;
use compute::{CpuCores, WorkerDevice};
use journal::{LogEcho, now_ms};
pub use login::login;
use node_record::{NewNode, NodeRecord, with_controllers};
use process_exit::ProcessExit;
use rejoin::StartRole;
use renewal::{controller_credentials, member_credentials};
pub use start::WorkerProfile;
use start::{PreparedNode, by_node, run_controller, run_worker};
use threads::runtime;
use worker_profile::{probe_of, threads_of, worker_profile};

/// The port at which a node listens, unless another is given.
pub const PORT_DEFAULT: u16 = 7000;
/// The node that begins a cluster.
const FIRST_NODE: NodeId = NodeId(1);
/// What an administrator's certificate names where others name a node.
const ADMIN_NODE: NodeId = NodeId(0);

/// The process behind `init`: founds a cluster, or continues as its first controller.
///
/// # Errors
/// If it cannot start, or does not exit cleanly.
pub fn init(args: &InitArgs) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let node_record =
        match NodeRecord::load(&identity).map_err(|error| rejoin::unreadable(&error))? {
            Some(mut node_record) => {
                rejoin::rejoin_as_founder(args, &folder, &mut node_record)?;
                node_record
            }
            None => {
                rejoin::check_is_new(&folder, StartRole::Founder)?;
                found_cluster(args, &folder)?
            }
        };
    serve_controller(folder, node_record)
}

/// Founds a cluster: its authority, its first controller, its first administrator.
fn found_cluster(args: &InitArgs, folder: &NodeDataFolder) -> Result<NodeRecord, CommandFailure> {
    let cluster = ClusterId(random_number());
    let name = args.name.clone().unwrap_or_else(|| "zbelastic".to_owned());
    let now = UnixSeconds::now();
    let bind = args.bind.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, PORT_DEFAULT).into());
    let advertised = args.advertise.as_ref().map(ToString::to_string);
    let advertised: Vec<String> = advertised.into_iter().collect();
    let authority = ClusterAuthority::create(cluster, now).map_err(cannot_certify)?;
    let own =
        authority.credentials(PeerRole::Controller, FIRST_NODE, now).map_err(cannot_certify)?;
    let admin = authority.credentials(PeerRole::Admin, ADMIN_NODE, now).map_err(cannot_certify)?;
    let identity = folder.identity();
    own.save(&identity).map_err(cannot_keep)?;
    authority.save(&identity.join("authority")).map_err(cannot_keep)?;
    admin.save(&folder.admin()).map_err(cannot_keep)?;
    let addresses = vec![command_address(&advertised, bind)];
    folder.write_admin(&AdminFile { name: name.clone(), id: cluster.to_string(), addresses })?;
    let node_record = NodeRecord::new(NewNode {
        cluster,
        cluster_name: name.clone(),
        founded_ms: Some(now_ms()),
        node: FIRST_NODE,
        name: format!("{name}-1"),
        role: MemberRole::Controller,
        bind,
        advertised,
        controllers: BTreeMap::new(),
    });
    node_record.save(&identity).map_err(|error| rejoin::unreadable(&error))?;
    Ok(node_record)
}

/// Once a controller listens: which address an administrator's commands here use, and what to type
/// next, on standard error, since standard output is not used here.
fn print_administrator_hint(
    folder: &NodeDataFolder,
    node_record: &NodeRecord,
    local: SocketAddr,
) -> Result<(), CommandFailure> {
    let Ok(mut admin) = folder.read_admin() else { return Ok(()) };
    let address = command_address(&node_record.advertised, local);
    if !admin.addresses.contains(&address) {
        admin.addresses = vec![address];
        folder.write_admin(&with_controllers(&admin, node_record))?;
    }
    let NodeRecord { cluster_name, node, .. } = node_record;
    let path = folder.root().display();
    eprintln!("cluster {cluster_name}, node {node} ({}): running", node_record.name);
    eprintln!("let workers in:  zbelastic token create --print-join --data-dir {path}");
    eprintln!("begin to train:  zbelastic run CONFIG --data-dir {path}");
    Ok(())
}

/// Where a controller is reached from its own machine: where it is configured to be, or else where
/// it listens.
fn command_address(advertised: &[String], listens: SocketAddr) -> String {
    advertised.first().cloned().unwrap_or_else(|| local_address(listens))
}

fn serve_controller(
    folder: NodeDataFolder,
    node_record: NodeRecord,
) -> Result<ExitCode, CommandError> {
    rejoin::check_has_log(&folder, &node_record)?;
    let authority =
        ClusterAuthority::load(&folder.identity().join("authority"), Some(node_record.cluster));
    let authority = authority.map_err(cannot_keep)?;
    let credentials = controller_credentials(&folder, &node_record, &authority)?;
    let runtime = runtime()?;
    let exit = runtime.block_on(async {
        let signals = signals::listen()?;
        let node = PreparedNode { folder, node_record, credentials, echo: LogEcho::Yes, signals };
        run_controller(node, authority).await
    })?;
    exit_code_of(exit)
}

/// The process behind `join`: becomes a member, or returns as the member it was.
///
/// # Errors
/// If it cannot start, or does not exit cleanly.
pub fn join(args: &JoinArgs) -> Result<ExitCode, CommandError> {
    let probe = probe_of(args)?;
    let profile = worker_profile(args, probe.as_ref());
    match args.device {
        DeviceSelector::Cpu => join_on(args, profile, CpuCores { threads: threads_of(args) }),
        DeviceSelector::Cuda(index) => join_on(args, profile, compute::cuda(index)),
    }
}

/// Joins with a worker's profile and the device that it computes on.
///
/// # Errors
/// As [`join`].
pub fn join_on<M: WorkerDevice>(
    args: &JoinArgs,
    profile: WorkerProfile,
    device: M,
) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let runtime = runtime()?;
    let node_record =
        match NodeRecord::load(&identity).map_err(|error| rejoin::unreadable(&error))? {
            Some(mut node_record) => {
                rejoin::rejoin_as_member(args, &folder, &mut node_record)?;
                node_record
            }
            None => {
                rejoin::check_is_new(&folder, StartRole::Joiner)?;
                runtime.block_on(join_with_token(args, &folder))?
            }
        };
    if node_record.role == MemberRole::Controller {
        drop(runtime);
        return serve_controller(folder, node_record);
    }
    let typed =
        args.cluster.as_ref().map_or_else(Vec::new, |typed| name_resolver::resolve(&typed.texts()));
    let credentials = runtime.block_on(member_credentials(&folder, &node_record, typed))?;
    let name = &node_record.name;
    let number = node_record.node;
    let path = folder.root().display();
    eprintln!("worker {name}, node {number}: a member; it takes part in runs as they come");
    eprintln!("end it in order:  zbelastic leave --data-dir {path}");
    let exit = runtime.block_on(async {
        let signals = signals::listen()?;
        let node = PreparedNode { folder, node_record, credentials, echo: LogEcho::Yes, signals };
        run_worker(node, profile, device).await
    })?;
    exit_code_of(exit)
}

/// Becomes a member with a token.
async fn join_with_token(
    args: &JoinArgs,
    folder: &NodeDataFolder,
) -> Result<NodeRecord, CommandFailure> {
    let Some(addresses) = &args.cluster else {
        let detail =
            FailureDetail::new("--cluster is missing, and this folder has no member's identity")
                .hint("zbelastic join --cluster ADDR --token TOKEN");
        return Err(CommandFailure::usage("the command line", vec![detail]));
    };
    let text = find_token(&args.token)?;
    let token = parse_token(&text)?;
    let member_role = args.role.map_or(MemberRole::Worker, MemberRole::from);
    let role = match member_role {
        MemberRole::Controller => PeerRole::Controller,
        MemberRole::Worker => PeerRole::Worker,
    };
    let identity = folder.identity();
    let key = NodeKey::load_or_create(&identity).map_err(cannot_keep)?;
    let name = args.name.clone().unwrap_or_else(|| host_name(&key));
    let cluster = resolve_all(addresses)?;
    let bind = args.bind.unwrap_or_else(|| wildcard_address(&cluster));
    let advertised: Vec<String> = args.advertise.iter().map(ToString::to_string).collect();
    let setup = JoinSetup {
        token,
        role,
        name: name.parse::<NodeName>().map_err(|error| {
            CommandFailure::usage(
                "the command line",
                vec![FailureDetail::new(error.to_string()).at("--name")],
            )
        })?,
        key,
        cluster: cluster.clone(),
        advertised: Vec::new(),
    };
    let joined = join_cluster(&setup).await.map_err(cannot_join)?;
    joined.credentials.save(&identity).map_err(cannot_keep)?;
    if let Some(authority) = &joined.authority {
        authority.save(&identity.join("authority")).map_err(cannot_keep)?;
    }
    let controllers = by_node(joined.controllers);
    let peer = joined.credentials.identity();
    let mut node_record = NodeRecord::new(NewNode {
        cluster: peer.cluster,
        cluster_name: String::new(),
        founded_ms: None,
        node: peer.node,
        name,
        role: member_role,
        bind,
        advertised,
        controllers,
    });
    node_record.zone = args.zone.clone().unwrap_or_default();
    node_record.save(&identity).map_err(|error| rejoin::unreadable(&error))?;
    Ok(node_record)
}

/// The token in a pasted text.
fn parse_token(text: &str) -> Result<JoinToken, CommandFailure> {
    JoinToken::parse(text).map_err(|error| {
        let mut failure = CommandFailure::new(FailureCode::NotAuthorised, error.to_string());
        failure.details =
            vec![FailureDetail::new("nothing was sent").hint("paste it again, as a whole")];
        failure
    })
}

/// The resolved socket addresses of those on the command line.
fn resolve_all(addresses: &AddressList) -> Result<Vec<SocketAddr>, CommandFailure> {
    let found = name_resolver::resolve(&addresses.texts());
    if found.is_empty() {
        let message = format!("no such host: {}", addresses.texts().join(", "));
        let mut failure = CommandFailure::new(FailureCode::Unreachable, message);
        failure.details =
            vec![FailureDetail::new("a name that resolves, or an address such as 10.0.0.4:7000")];
        return Err(failure);
    }
    Ok(found)
}

/// A name that people recognize: the machine's host name, in the characters that node names allow.
fn host_name(key: &NodeKey) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let host: String =
        host.trim().to_lowercase().chars().filter(|c| allowed(*c)).take(40).collect();
    let digest = key.digest().0;
    let number = u16::from_le_bytes([digest[0], digest[1]]);
    let host = if host.is_empty() { "node".to_owned() } else { host };
    format!("{host}-{number:04x}")
}

/// Founds a new cluster from one controller's folder; returns the folder with what was kept of the
/// old one.
///
/// # Errors
/// If the folder is not a controller's, or is in use.
pub fn recover(args: &RecoverArgs) -> Result<PathBuf, CommandFailure> {
    let folder = NodeDataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    if let Some(kept) = recovery::finish(&folder)? {
        return Ok(kept);
    }
    let node_record = NodeRecord::load(&folder.identity())
        .map_err(|error| rejoin::unreadable(&error))?
        .ok_or_else(|| {
            let message = format!("{} has no identity", folder.root().display());
            CommandFailure::new(FailureCode::NotFound, message)
        })?;
    recovery::recover(&folder, &node_record)
}

/// `doctor`, with the probes that only a cluster's process has.
///
/// # Errors
/// If `out` cannot be written.
pub fn doctor(args: &DoctorArgs, out: &mut dyn std::io::Write) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(&FolderArgs { data_dir: args.data_dir.clone() });
    let dial = |address: &str| {
        let began = std::time::Instant::now();
        match reach(&folder, address) {
            Ok(()) => DialOutcome::Reached { took: began.elapsed() },
            Err(why) => DialOutcome::Failed { why },
        }
    };
    let permissions = |folder: &std::path::Path| {
        if !folder.exists() {
            return Vec::new();
        }
        check_permissions(folder).iter().map(ToString::to_string).collect()
    };
    let outside = DoctorProbes { folder: folder.root(), dial: &dial, permissions: &permissions };
    doctor::run(args, &outside, out)
}

fn exit_code_of(exit: ProcessExit) -> Result<ExitCode, CommandError> {
    match exit.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}

/// Every interface of this machine, at any port, with a socket that reaches these addresses.
fn wildcard_address(others: &[SocketAddr]) -> SocketAddr {
    let ip: IpAddr = if others.iter().all(SocketAddr::is_ipv6) {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    SocketAddr::new(ip, 0)
}

/// Where the first controller is reached from its own machine.
fn local_address(bind: SocketAddr) -> String {
    let ip = if bind.ip().is_unspecified() { own_address::loopback(bind) } else { bind.ip() };
    SocketAddr::new(ip, bind.port()).to_string()
}

fn cannot_certify(error: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureCode::Internal, format!("no certificate can be made: {error}"))
}

fn cannot_keep(error: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureCode::NotAuthorised, error.to_string())
}

fn cannot_join(error: JoinError) -> CommandFailure {
    let code = match &error {
        JoinError::NobodyDecided { .. } => FailureCode::Unreachable,
        JoinError::WrongServer { .. } => FailureCode::NotAuthorised,
        JoinError::Refused { refusal, .. } => refused_with(refusal).0,
        JoinError::Setup(_) | JoinError::WrongGrant { .. } => FailureCode::Internal,
    };
    let mut failure = CommandFailure::new(code, error.to_string());
    failure.details = match &error {
        JoinError::NobodyDecided { dials } => {
            let tried = dials.failed.iter();
            tried.map(|(address, why)| FailureDetail::new(format!("{address}: {why}"))).collect()
        }
        JoinError::Refused { refusal, .. } => {
            vec![FailureDetail::new("the cluster refused the join").hint(refused_with(refusal).1)]
        }
        JoinError::WrongServer { .. } => vec![
            FailureDetail::new("the server is not of the cluster that this token belongs to")
                .why("it could not show the authority that the token names; nothing was sent to it")
                .hint("--cluster with a controller of the cluster that made the token"),
        ],
        JoinError::Setup(_) | JoinError::WrongGrant { .. } => Vec::new(),
    };
    failure
}

/// The exit code of a refusal, and what to do about it.
fn refused_with(refusal: &JoinRefusal) -> (FailureCode, &'static str) {
    let denied = FailureCode::NotAuthorised;
    match refusal {
        JoinRefusal::TokenExpired { .. }
        | JoinRefusal::TokenRevoked { .. }
        | JoinRefusal::TokenSpent { .. }
        | JoinRefusal::TokenUnknown { .. }
        | JoinRefusal::WrongProof { .. } => (denied, "`zbelastic token create` makes a token"),
        JoinRefusal::WrongRole { .. } => (
            denied,
            "the --role that the token is for (people: `zbelastic login`), or `zbelastic token create --role ROLE`",
        ),
        JoinRefusal::Clock(_) => (denied, "the right time on both machines, then the same again"),
        JoinRefusal::TooManyAttempts { .. } => {
            (FailureCode::WrongState, "the same again after that time; the token is still good")
        }
        JoinRefusal::NotLeader { .. } | JoinRefusal::NotReady => {
            (FailureCode::WrongState, "the same again in a moment; the token is still good")
        }
        JoinRefusal::NoMember => (
            denied,
            "join with a new token and an empty --data-dir: this node is no member any more",
        ),
        JoinRefusal::WrongName(_) => (FailureCode::Usage, "another --name"),
        JoinRefusal::WrongRequest(_) | JoinRefusal::Unreadable => {
            (FailureCode::WrongState, "the same version of the program on both machines")
        }
    }
}
