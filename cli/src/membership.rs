//! How a folder becomes a node's or a person's: `init`, `join`, `login` and `cluster recover`.
//!
//! A folder with an identity is served by a process of `zbelastic_node`; one without is given one
//! here, by founding a cluster or with a token.

mod login;
mod rejoin;
mod worker_profile;
mod zone;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use zbelastic_api::MemberRole;
use zbelastic_identity::{
    ClusterAuthority, ControllerContact, JoinSetup, JoinToken, NodeKey, NodeName, PeerRole,
    UnixSeconds, join_cluster, random_number,
};
use zbelastic_machine::{DeviceSelector, name_resolver};
use zbelastic_node::cluster::compute::{self, CpuCores, WorkerDevice};
use zbelastic_node::cluster::membership_failure::{
    cannot_certify, cannot_join, cannot_keep, unreadable,
};
use zbelastic_node::cluster::threads::runtime;
use zbelastic_node::cluster::{
    ADMIN_NODE, FIRST_NODE, WorkerProfile, command_address, recovery, serve_controller,
    serve_worker,
};
use zbelastic_node_folder::node_record::{NewNode, NodeRecord};
use zbelastic_node_folder::{AdminFile, NodeDataFolder};
use zbelastic_timing::unix_ms;
use zbelastic_types::{ClusterId, NodeId};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use crate::args::{AddressList, InitArgs, JoinArgs, PageArgs, RecoverArgs, default_bind};
use crate::command_connection::typed_addresses;
use crate::token_source::find_token;
use crate::{controller_mirror, controller_page};
pub use login::login;
use rejoin::StartRole;
use worker_profile::{probe_of, threads_of, worker_profile};
use zone::{begin_zone_query, finish_zone_query};

/// The process behind `init`: founds a cluster, or continues as its first controller.
///
/// # Errors
/// If it cannot start, or does not exit cleanly.
pub fn init(args: &InitArgs) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let node_record = match NodeRecord::load(&identity).map_err(|error| unreadable(&error))? {
        Some(mut node_record) => {
            rejoin::rejoin_as_founder(args, &folder, &mut node_record)?;
            node_record
        }
        None => {
            rejoin::check_is_new(&folder, StartRole::Founder)?;
            found_cluster(args, &folder)?
        }
    };
    serve_with_side_processes(&args.page, folder, node_record)
}

/// Serves a controller, and what it has beside it.
fn serve_with_side_processes(
    page: &PageArgs,
    folder: NodeDataFolder,
    record: NodeRecord,
) -> Result<ExitCode, CommandError> {
    controller_page::start(page, &folder, &record)?;
    controller_mirror::start(&folder, &record)?;
    serve_controller(folder, record)
}

/// Checks that a folder is nobody's yet.
///
/// # Errors
/// If a node began in it.
pub fn check_is_new_cluster(folder: &NodeDataFolder) -> Result<(), CommandFailure> {
    rejoin::check_is_new(folder, StartRole::Founder)
}

/// Founds a cluster: its authority, its first controller, its first administrator.
fn found_cluster(args: &InitArgs, folder: &NodeDataFolder) -> Result<NodeRecord, CommandFailure> {
    let cluster = ClusterId(random_number());
    let name = args.name.clone().unwrap_or_else(|| "zbelastic".to_owned());
    let now = UnixSeconds::now();
    let bind = args.bind.unwrap_or_else(default_bind);
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
        founded_ms: Some(unix_ms()),
        node: FIRST_NODE,
        name: format!("{name}-1"),
        role: MemberRole::Controller,
        bind,
        advertised,
        controllers: BTreeMap::new(),
    });
    node_record.save(&identity).map_err(|error| unreadable(&error))?;
    Ok(node_record)
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
    mut profile: WorkerProfile,
    device: M,
) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let _hold = folder.hold()?;
    recovery::finish(&folder)?;
    let identity = folder.identity();
    let found = NodeRecord::load(&identity).map_err(|error| unreadable(&error))?;
    let role = role_of(args, found.as_ref());
    check_page(args, role)?;
    let known_zone = found.as_ref().map_or("", |record| &record.zone);
    let zone = begin_zone_query(args, role, known_zone);
    let node_record = match found {
        Some(mut node_record) => {
            rejoin::rejoin_as_member(args, &folder, &mut node_record)?;
            node_record
        }
        None => {
            rejoin::check_is_new(&folder, StartRole::Joiner)?;
            runtime()?.block_on(join_with_token(args, &folder))?
        }
    };
    if node_record.role == MemberRole::Controller {
        return serve_with_side_processes(&args.page, folder, node_record);
    }
    let typed = typed_addresses(args.cluster.as_ref())?;
    let remembered = || node_record.controller_names.values().flatten().cloned().collect();
    let addresses = typed.map_or_else(remembered, |typed| typed.texts());
    let typed = name_resolver::resolve(&addresses);
    profile.cloud_zone = finish_zone_query(zone);
    serve_worker(folder, node_record, typed, profile, device)
}

/// What a node is for: what it was before, or what was typed.
fn role_of(args: &JoinArgs, found: Option<&NodeRecord>) -> MemberRole {
    let typed = args.role.map_or(MemberRole::Worker, MemberRole::from);
    found.map_or(typed, |record| record.role)
}

/// Checks that only a controller is to have a page beside it: it has the authority that lets the page
/// read, and the events that the page begins with.
fn check_page(args: &JoinArgs, role: MemberRole) -> Result<(), CommandFailure> {
    if args.page.address.ui.is_none() || role == MemberRole::Controller {
        return Ok(());
    }
    let detail = FailureDetail::new("a worker has no page beside it")
        .hint("`zbelastic ui` anywhere, or --ui at a controller");
    Err(CommandFailure::usage("--ui", vec![detail]))
}

/// Becomes a member with a token.
async fn join_with_token(
    args: &JoinArgs,
    folder: &NodeDataFolder,
) -> Result<NodeRecord, CommandFailure> {
    let Some(addresses) = typed_addresses(args.cluster.as_ref())? else {
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
    let cluster = resolve_all(&addresses)?;
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
    node_record.save(&identity).map_err(|error| unreadable(&error))?;
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

/// Founds a new cluster from one controller's folder; returns the folder with the kept files of the
/// old one.
///
/// # Errors
/// If the folder is not a controller's, or is in use.
pub fn recover(args: &RecoverArgs) -> Result<PathBuf, CommandFailure> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let _hold = folder.hold()?;
    if let Some(kept) = recovery::finish(&folder)? {
        return Ok(kept);
    }
    let node_record = NodeRecord::load(&folder.identity())
        .map_err(|error| unreadable(&error))?
        .ok_or_else(|| {
            let message = format!("{} has no identity", folder.root().display());
            CommandFailure::new(FailureCode::NotFound, message)
        })?;
    recovery::recover(&folder, &node_record)
}

/// Controllers of a grant, by node.
fn by_node(contacts: Vec<ControllerContact>) -> BTreeMap<NodeId, Vec<SocketAddr>> {
    contacts.into_iter().map(|contact| (contact.node, contact.addresses)).collect()
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
