//! The processes of a cluster, and the road to one.
//!
//! ```text
//!   init ─▶ controller ◀── join ── controllers, workers
//!              ▲
//!   exchange ──┘   the requests of a command line
//! ```

mod again;
mod authority;
mod breaches;
pub mod chronicle;
pub mod compute;
mod controller;
mod courier;
pub mod data;
mod device;
mod disk;
pub mod document;
pub mod ending;
pub mod frames;
pub mod home;
pub mod journal;
mod keeper;
mod line;
mod login;
mod machine_id;
mod means;
mod moves;
mod names;
mod own_address;
mod pace;
mod peers;
mod piece_keep;
mod questions;
mod recovery;
mod renewal;
mod scrub;
mod shelf;
pub mod signals;
mod solver;
mod start;
mod stopwatch;
mod stores;
mod threads;
pub mod tick;
mod unused_data;
pub mod wire;
pub mod work;
mod worker;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use zbelastic_policy::{copies, keep_rule, keeping, room};
use zbelastic_transport::identity::{
    ClusterAuthority, JoinError, JoinRefusal, JoinSetup, NodeKey, NodeName, PeerRole, Token,
    UnixSeconds, check_permissions, join_cluster, random_number,
};
use zbelastic_types::{ClusterId, NodeId};

use crate::api::MemberRole;
use crate::args::{AddressList, Device, DoctorArgs, FolderArgs, InitArgs, JoinArgs, RecoverArgs};
use crate::commands::doctor::{self, DialOutcome, Outside};
use crate::commands::token::find_token;
use crate::data_folder::{AdminFile, DataFolder};
use crate::failure::{Detail, Failure, FailureCode, Stop};
use again::Beginner;
use compute::{Cores, Machine};
use ending::Ending;
use home::{Beginning, Home, with_controllers};
use journal::{Echo, now_ms};
pub use line::exchange;
use line::reach;
pub use login::login;
use means::{means, probe_of, threads_of};
use renewal::{controller_credentials, member_credentials};
pub use start::WorkerMeans;
use start::{Node, by_node, run_controller, run_worker};
use threads::runtime;

/// The port at which a node listens, unless another is given.
pub const PORT_DEFAULT: u16 = 7000;
/// The node that begins a cluster.
const FIRST_NODE: NodeId = NodeId(1);
/// What an administrator's certificate names where others name a node.
const ADMIN_NODE: NodeId = NodeId(0);

/// The process behind `init`: founds a cluster, or goes on as its first controller.
///
/// # Errors
/// If it cannot start, or ends other than in order.
pub fn init(args: &InitArgs) -> Result<ExitCode, Stop> {
    let folder = DataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let home = match Home::load(&identity).map_err(|error| again::unreadable(&error))? {
        Some(mut home) => {
            again::come_back_as_first(args, &folder, &mut home)?;
            home
        }
        None => {
            again::check_is_new(&folder, Beginner::First)?;
            found(args, &folder)?
        }
    };
    serve_controller(folder, home)
}

/// Founds a cluster: its authority, its first controller, its first administrator.
fn found(args: &InitArgs, folder: &DataFolder) -> Result<Home, Failure> {
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
    let addresses = vec![asked_at(&advertised, bind)];
    folder.write_admin(&AdminFile { name: name.clone(), id: cluster.to_string(), addresses })?;
    let home = Home::new(Beginning {
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
    home.save(&identity).map_err(|error| again::unreadable(&error))?;
    Ok(home)
}

/// Once a controller listens: which address an administrator's commands here use, and what to type next, on
/// standard error, for standard output is nobody's here.
fn tell_administrator(folder: &DataFolder, home: &Home, local: SocketAddr) -> Result<(), Failure> {
    let Ok(mut admin) = folder.read_admin() else { return Ok(()) };
    let address = asked_at(&home.advertised, local);
    if !admin.addresses.contains(&address) {
        admin.addresses = vec![address];
        folder.write_admin(&with_controllers(&admin, home))?;
    }
    let Home { cluster_name, node, .. } = home;
    let path = folder.root().display();
    eprintln!("cluster {cluster_name}, node {node} ({}): running", home.name);
    eprintln!("let workers in:  zbelastic token create --print-join --data-dir {path}");
    eprintln!("begin to train:  zbelastic run CONFIG --data-dir {path}");
    Ok(())
}

/// Where a controller is reached from its own machine: where it is configured to be, or else where it
/// listens.
fn asked_at(advertised: &[String], listens: SocketAddr) -> String {
    advertised.first().cloned().unwrap_or_else(|| local_address(listens))
}

fn serve_controller(folder: DataFolder, home: Home) -> Result<ExitCode, Stop> {
    again::check_has_log(&folder, &home)?;
    let authority =
        ClusterAuthority::load(&folder.identity().join("authority"), Some(home.cluster));
    let authority = authority.map_err(cannot_keep)?;
    let credentials = controller_credentials(&folder, &home, &authority)?;
    let runtime = runtime()?;
    let ending = runtime.block_on(async {
        let signals = signals::listen()?;
        let node = Node { folder, home, credentials, echo: Echo::Yes, signals };
        run_controller(node, authority).await
    })?;
    ended(ending)
}

/// The process behind `join`: becomes a member, or comes back as the one it was.
///
/// # Errors
/// If it cannot start, or ends other than in order.
pub fn join(args: &JoinArgs) -> Result<ExitCode, Stop> {
    let probe = probe_of(args)?;
    let means = means(args, probe.as_ref());
    match args.device {
        Device::Cpu => join_on(args, means, Cores { threads: threads_of(args) }),
        Device::Cuda(index) => join_on(args, means, compute::cuda(index)),
    }
}

/// Joins with what a worker brings and computes on.
///
/// # Errors
/// As [`join`].
pub fn join_on<M: Machine>(
    args: &JoinArgs,
    means: WorkerMeans,
    machine: M,
) -> Result<ExitCode, Stop> {
    let folder = DataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let runtime = runtime()?;
    let home = match Home::load(&identity).map_err(|error| again::unreadable(&error))? {
        Some(mut home) => {
            again::come_back_as_member(args, &folder, &mut home)?;
            home
        }
        None => {
            again::check_is_new(&folder, Beginner::Joiner)?;
            runtime.block_on(enter(args, &folder))?
        }
    };
    if home.role == MemberRole::Controller {
        drop(runtime);
        return serve_controller(folder, home);
    }
    let typed = args.cluster.as_ref().map_or_else(Vec::new, |typed| names::resolve(&typed.texts()));
    let credentials = runtime.block_on(member_credentials(&folder, &home, typed))?;
    let (name, number, path) = (&home.name, home.node, folder.root().display());
    eprintln!("worker {name}, node {number}: a member; it takes part in runs as they come");
    eprintln!("end it in order:  zbelastic leave --data-dir {path}");
    let ending = runtime.block_on(async {
        let signals = signals::listen()?;
        let node = Node { folder, home, credentials, echo: Echo::Yes, signals };
        run_worker(node, means, machine).await
    })?;
    ended(ending)
}

/// Becomes a member with a token.
async fn enter(args: &JoinArgs, folder: &DataFolder) -> Result<Home, Failure> {
    let Some(addresses) = &args.cluster else {
        let detail = Detail::new("--cluster is missing, and this folder knows no cluster")
            .hint("zbelastic join --cluster ADDR --token TOKEN");
        return Err(Failure::usage("the command line", vec![detail]));
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
    let bind = args.bind.unwrap_or_else(|| everywhere_like(&cluster));
    let advertised: Vec<String> = args.advertise.iter().map(ToString::to_string).collect();
    let setup = JoinSetup {
        token,
        role,
        name: name.parse::<NodeName>().map_err(|error| {
            Failure::usage("the command line", vec![Detail::new(error.to_string()).at("--name")])
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
    let mut home = Home::new(Beginning {
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
    home.zone = args.zone.clone().unwrap_or_default();
    home.save(&identity).map_err(|error| again::unreadable(&error))?;
    Ok(home)
}

/// The token in a pasted text.
fn parse_token(text: &str) -> Result<Token, Failure> {
    Token::parse(text).map_err(|error| {
        let mut failure = Failure::new(FailureCode::NotAuthorised, error.to_string());
        failure.details = vec![Detail::new("nothing was sent").hint("paste it again, as a whole")];
        failure
    })
}

/// Where the addresses lead that a person typed.
fn resolve_all(addresses: &AddressList) -> Result<Vec<SocketAddr>, Failure> {
    let found = names::resolve(&addresses.texts());
    if found.is_empty() {
        let what = format!("no such host: {}", addresses.texts().join(", "));
        let mut failure = Failure::new(FailureCode::Unreachable, what);
        failure.details =
            vec![Detail::new("a name that resolves, or an address such as 10.0.0.4:7000")];
        return Err(failure);
    }
    Ok(found)
}

/// A name that people recognize: the host's, made of what names are made of.
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

/// A new cluster out of one controller's folder; returns what was kept of the old one.
///
/// # Errors
/// If the folder is not a controller's, or is in use.
pub fn recover(args: &RecoverArgs) -> Result<PathBuf, Failure> {
    let folder = DataFolder::of(&args.folder);
    let _hold = folder.hold()?;
    if let Some(kept) = recovery::finish(&folder)? {
        return Ok(kept);
    }
    let home = Home::load(&folder.identity())
        .map_err(|error| again::unreadable(&error))?
        .ok_or_else(|| {
            let what = format!("{} has no identity", folder.root().display());
            Failure::new(FailureCode::NotFound, what)
        })?;
    recovery::recover(&folder, &home)
}

/// `doctor`, with what only a cluster's process knows.
///
/// # Errors
/// If `out` cannot be written.
pub fn doctor(args: &DoctorArgs, out: &mut dyn std::io::Write) -> Result<ExitCode, Stop> {
    let folder = DataFolder::of(&FolderArgs { data_dir: args.data_dir.clone() });
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
    let outside = Outside { folder: folder.root(), dial: &dial, permissions: &permissions };
    doctor::run(args, &outside, out)
}

fn ended(ending: Ending) -> Result<ExitCode, Stop> {
    match ending.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}

/// Every interface of this machine, at any port, with a socket that reaches these addresses.
fn everywhere_like(others: &[SocketAddr]) -> SocketAddr {
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

fn cannot_certify(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureCode::Internal, format!("no certificate can be made: {error}"))
}

fn cannot_keep(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureCode::NotAuthorised, error.to_string())
}

fn cannot_join(error: JoinError) -> Failure {
    let code = match &error {
        JoinError::NobodyDecided { .. } => FailureCode::Unreachable,
        JoinError::WrongServer { .. } => FailureCode::NotAuthorised,
        JoinError::Refused { refusal, .. } => refused_with(refusal).0,
        JoinError::Setup(_) | JoinError::WrongGrant { .. } => FailureCode::Internal,
    };
    let mut failure = Failure::new(code, error.to_string());
    failure.details = match &error {
        JoinError::NobodyDecided { dials } => {
            let tried = dials.failed.iter();
            tried.map(|(address, why)| Detail::new(format!("{address}: {why}"))).collect()
        }
        JoinError::Refused { refusal, .. } => {
            vec![Detail::new("the cluster says no").hint(refused_with(refusal).1)]
        }
        JoinError::WrongServer { .. } => vec![
            Detail::new("the server is not of the cluster that this token belongs to")
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
