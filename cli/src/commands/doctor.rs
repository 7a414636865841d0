//! `doctor`: whether this machine can be a node, and the remedies where it cannot.
//!
//! `read` gathers facts, `checks` judges them, `report` writes them out. Only the first reads the
//! machine, so the report on any machine can be tested on every other. It reads only the resources
//! that a node uses: it measures no speed but those of writes and of multiplying, and contacts only
//! the member of `--cluster`.

mod checks;
mod facts;
mod finding;
mod parse;
mod read;
mod report;

pub use checks::findings;
pub use facts::{
    ClockFacts, ClusterFacts, DialOutcome, DiskFacts, DiskRead, FilesystemSpace, FolderState,
    GpuFacts, Ipv6, KernelFacts, LimitFacts, MachineFacts, MemoryFacts, NetworkFacts,
};
pub use finding::{DoctorCheck, DoctorFinding, Obstacle, Severity};
pub use report::{json, obstacle, text};

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use zbelastic_identity::check_permissions;
use zbelastic_machine::core_count;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_wording::CommandError;

use crate::args::DoctorArgs;
use crate::command_connection::reach;

/// The probes that other modules provide: the data folder, and checks of a cluster and of
/// permissions.
pub struct DoctorProbes<'a> {
    /// Path of the data folder.
    pub folder: &'a Path,
    /// Tries to reach a member of a cluster at an address as it was typed.
    pub dial: &'a dyn Fn(&str) -> DialOutcome,
    /// The files of a folder with an identity that others may read although they should not, each
    /// as a sentence. Of a folder that is not there: nothing.
    pub permissions: &'a dyn Fn(&Path) -> Vec<String>,
}

/// Folders with keys, in a data folder.
const IDENTITY_FOLDERS: [&str; 2] = ["identity", "admin"];

/// `doctor` on this machine, with the probes of a cluster and of its folder.
///
/// # Errors
/// If `out` cannot be written.
pub fn doctor(args: &DoctorArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let folder = NodeDataFolder::of(args.data_dir.as_deref());
    let dial = |address: &str| {
        let began = Instant::now();
        match reach(&folder, address) {
            Ok(()) => DialOutcome::Reached { took: began.elapsed() },
            Err(why) => DialOutcome::Failed { why },
        }
    };
    let permissions = |folder: &Path| {
        if !folder.exists() {
            return Vec::new();
        }
        check_permissions(folder).iter().map(ToString::to_string).collect()
    };
    let probes = DoctorProbes { folder: folder.root(), dial: &dial, permissions: &permissions };
    run(args, &probes, out)
}

/// Checks this machine and prints the findings. An obstacle is no failure of the command: the exit
/// code reports it.
///
/// # Errors
/// If `out` cannot be written.
fn run(
    args: &DoctorArgs,
    probes: &DoctorProbes<'_>,
    out: &mut dyn Write,
) -> Result<ExitCode, CommandError> {
    let findings = findings(&gather(args, probes));
    let report = if args.json { json(&findings) } else { text(&findings) };
    out.write_all(report.as_bytes())?;
    out.flush()?;
    Ok(obstacle(&findings).map_or(ExitCode::SUCCESS, |obstacle| obstacle.code().into()))
}

fn gather(args: &DoctorArgs, probes: &DoctorProbes<'_>) -> MachineFacts {
    let folder = probes.folder;
    let identities = IDENTITY_FOLDERS.into_iter().map(|name| folder.join(name));
    let cluster = args
        .cluster
        .as_ref()
        .map(|address| ClusterFacts { address: address.clone(), outcome: (probes.dial)(address) });
    MachineFacts {
        cores: core_count(),
        kernels: read::kernels(),
        memory: read::memory(),
        limits: read::limits(),
        network: read::network(folder),
        clock: read::clock(folder),
        disk: read::disk(folder),
        permissions: identities.flat_map(|folder| (probes.permissions)(&folder)).collect(),
        gpu: read::gpu(),
        cluster,
    }
}

#[cfg(test)]
mod tests;
