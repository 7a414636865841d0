//! The processes of a cluster: a controller's and a worker's, from a folder with an identity to the
//! exit code.
//!
//! ```text
//!   init ─▶ controller ◀── join ── controllers, workers
//!              ▲
//!   exchange ──┘   the requests of a command line
//! ```

mod authority;
mod background;
mod blob_registry;
mod checkpoint_thread;
pub mod compute;
mod controller;
pub mod data;
mod device;
mod device_error;
mod frame_dispatch;
pub mod journal;
mod kept_data;
pub mod membership_failure;
pub mod node_record;
mod outbox;
mod peer_connections;
mod peer_directory;
mod piece_fetch;
mod piece_keeper;
pub mod process_exit;
mod record_writer;
pub mod recovery;
mod renewal;
mod requests;
pub mod run_log;
mod scrub;
mod shard_fetch;
pub mod signals;
mod solver;
mod start;
mod tensor_links;
pub mod threads;
mod violations;
mod worker;

use std::net::SocketAddr;
use std::process::ExitCode;

use zbelastic_identity::ClusterAuthority;
use zbelastic_policy::{disk_space, keep_queue, keep_rule, piece_copies};
use zbelastic_types::NodeId;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use compute::WorkerDevice;
use journal::LogEcho;
use membership_failure::cannot_keep;
use process_exit::ProcessExit;
use renewal::{controller_credentials, member_credentials};
pub use scrub::last_scrub_pass;
use start::{PreparedNode, run_controller, run_worker};
pub use start::{SPEED_OF_A_THREAD, WorkerProfile};
use threads::runtime;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::{NodeRecord, with_controllers};

/// The node that begins a cluster.
pub const FIRST_NODE: NodeId = NodeId(1);
/// What an administrator's certificate names where others name a node.
pub const ADMIN_NODE: NodeId = NodeId(0);

/// Once a controller listens: which address an administrator's commands here use, and the command
/// to type next, on standard error, since standard output is not used here.
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
    zbelastic_wording::print_error_line(format_args!(
        "cluster {cluster_name}, node {node} ({}): running\n\
         let workers in:  zbelastic token create --print-join --data-dir {path}\n\
         begin to train:  zbelastic run CONFIG --data-dir {path}",
        node_record.name
    ));
    Ok(())
}

/// Where a controller is reached from its own machine: where it is configured to be, or else where
/// it listens.
#[must_use]
pub fn command_address(advertised: &[String], listens: SocketAddr) -> String {
    advertised.first().cloned().unwrap_or_else(|| local_address(listens))
}

/// Runs the controller that is in a folder, which is held, until it exits.
///
/// # Errors
/// If it cannot start, or does not exit cleanly.
pub fn serve_controller(
    folder: NodeDataFolder,
    node_record: NodeRecord,
) -> Result<ExitCode, CommandError> {
    check_has_log(&folder, &node_record)?;
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

/// Runs the worker that is in a folder, which is held, until it exits. `typed` are addresses of the
/// cluster beside those that the folder knows.
///
/// # Errors
/// If it cannot start, or does not exit cleanly.
pub fn serve_worker<M: WorkerDevice>(
    folder: NodeDataFolder,
    node_record: NodeRecord,
    typed: Vec<SocketAddr>,
    profile: WorkerProfile,
    device: M,
) -> Result<ExitCode, CommandError> {
    let runtime = runtime()?;
    let credentials = runtime.block_on(member_credentials(&folder, &node_record, typed))?;
    let exit = runtime.block_on(async {
        let signals = signals::listen()?;
        let node = PreparedNode { folder, node_record, credentials, echo: LogEcho::Yes, signals };
        run_worker(node, profile, device).await
    })?;
    exit_code_of(exit)
}

/// Checks that a controller which started before still has its log: without it, it would vote again
/// on entries it has voted on.
fn check_has_log(folder: &NodeDataFolder, node_record: &NodeRecord) -> Result<(), CommandFailure> {
    // The folder of the log is made before the first start is counted.
    if node_record.boot == 0 || folder.log().exists() {
        return Ok(());
    }
    let message =
        format!("the log of this controller is gone: there is no {}", folder.log().display());
    let mut failure = CommandFailure::new(FailureCode::VerificationFailed, message);
    failure.details = vec![
        FailureDetail::new("nothing was changed")
            .why("a controller that forgot what it promised could let two leaders decide")
            .hint(
                "the folder from where it was moved to; else `zbelastic node remove` this \
                 controller, and join a new one with an empty --data-dir",
            ),
    ];
    Err(failure)
}

fn exit_code_of(exit: ProcessExit) -> Result<ExitCode, CommandError> {
    match exit.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}

/// Where the first controller is reached from its own machine.
fn local_address(bind: SocketAddr) -> String {
    let ip = if bind.ip().is_unspecified() {
        zbelastic_machine::own_address::loopback(bind)
    } else {
        bind.ip()
    };
    SocketAddr::new(ip, bind.port()).to_string()
}
