//! Gathers facts. It changes nothing, but for one file that it writes beside the data to time the
//! write, and removes.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Resource, getrlimit};
use zbelastic_identity::UnixSeconds;
use zbelastic_kernels::cuda::{self, DeviceProbe, DeviceProperties, probe};
use zbelastic_kernels::{InstructionSet, Precision};
use zbelastic_machine::{
    DeviceSelector, kernels_text, kibibytes_of, memory_available, product_share,
};
use zbelastic_node::cluster::last_scrub_pass;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_types::Bytes;

use super::facts::{
    ClockFacts, DiskFacts, DiskRead, FilesystemSpace, FolderState, GpuCard, GpuFacts, Ipv6,
    KernelFacts, LimitFacts, MemoryFacts, NetworkFacts,
};
use super::parse::{filesystem_of, group_limit_files, is_card, is_routable};

/// Most bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most entries of a folder that are read.
const ENTRIES_MAX: usize = 1024;
/// Writes that are timed.
const SYNC_COUNT: usize = 20;
/// No write begins after that long.
const SYNC_TIME_MAX: Duration = Duration::from_secs(5);
/// The bytes that each writes: a page, as a log does.
const SYNC_BYTES: usize = 4096;
/// Files that time synchronization daemons touch when they have set the clock.
const CLOCK_FILES: [&str; 3] = [
    "/run/systemd/timesync/synchronized",
    "/var/lib/systemd/timesync/clock",
    "/var/lib/chrony/drift",
];
/// Where the socket for processes of one machine is in a data folder.
const LOCAL_SOCKET: &str = "local/local.sock";

/// A file of the system, or `None` if it is not there.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The entries of a folder, by name.
fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX);
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Measured for some milliseconds.
pub(super) fn kernels() -> KernelFacts {
    // The compiler makes vector instructions of portable kernels where all processors have them.
    let set = InstructionSet::of_environment();
    let are_vectors = cfg!(target_arch = "aarch64") || set != Ok(InstructionSet::Portable);
    let has_bf16 = set.is_ok_and(InstructionSet::has_bf16);
    KernelFacts {
        text: kernels_text(),
        are_vectors,
        peak_and_share: product_share(Precision::F32).ok(),
        bf16_peak_and_share: has_bf16.then(|| product_share(Precision::Bf16).ok()).flatten(),
    }
}

pub(super) fn memory() -> MemoryFacts {
    let text = read("/proc/meminfo").unwrap_or_default();
    let files = group_limit_files(&read("/proc/self/cgroup").unwrap_or_default());
    // A text that is no number is no limit.
    let limits = files.iter().filter_map(|file| read(file)?.trim().parse().ok());
    MemoryFacts {
        machine: kibibytes_of(&text, "MemTotal:"),
        available: memory_available(),
        group: limits.min().map(Bytes),
    }
}

pub(super) fn limits() -> LimitFacts {
    let files = getrlimit(Resource::Nofile);
    LimitFacts {
        open_files: files.current,
        open_files_max: files.maximum,
        address_space: getrlimit(Resource::As).current.map(Bytes),
    }
}

pub(super) fn network(folder: &Path) -> NetworkFacts {
    let most = read("/proc/sys/net/core/rmem_max").and_then(|text| text.trim().parse().ok());
    let ipv6 = match read("/proc/net/if_inet6") {
        None => Ipv6::Absent,
        Some(text) if text.trim().is_empty() => Ipv6::Absent,
        Some(text) if text.lines().any(is_routable) => Ipv6::Present,
        Some(_) => Ipv6::LocalOnly,
    };
    NetworkFacts {
        receive_buffer_max: most.map(Bytes),
        ipv6,
        unix_sockets: UnixStream::pair().map(drop).map_err(|error| error.kind()),
        local_socket: folder.join(LOCAL_SOCKET),
    }
}

pub(super) fn clock(folder: &Path) -> ClockFacts {
    let changed = |path: &Path| fs::symlink_metadata(path).and_then(|found| found.modified()).ok();
    let data = [folder.to_owned(), folder.join("identity")];
    let files = data.iter().flat_map(entries);
    ClockFacts {
        now: SystemTime::now(),
        synced: CLOCK_FILES.iter().filter_map(|file| changed(Path::new(file))).max(),
        newest_file: files.filter_map(|file| changed(&file)).max(),
    }
}

/// The cards that the driver finds, if there is one, and whether each has all that computing on it
/// needs.
pub(super) fn gpu() -> GpuFacts {
    let devices = entries("/dev")
        .into_iter()
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_card));
    let card = |device: DeviceProperties| {
        let found = probe(device.index).map_err(|error| error.to_string());
        let class_and_free = |probe: DeviceProbe| (probe.class(), Bytes(probe.free_bytes));
        GpuCard {
            name: DeviceSelector::Cuda(device.index).to_string(),
            found: found.map(class_and_free),
        }
    };
    let cards = cuda::devices().map(|found| found.into_iter().map(card).collect());
    GpuFacts {
        visible: devices.map(|path| path.display().to_string()).collect(),
        cards: cards.map_err(|error| error.to_string()),
    }
}

pub(super) fn disk(folder: &Path) -> DiskFacts {
    let state = match fs::metadata(folder) {
        Ok(found) if found.is_dir() => FolderState::Exists,
        Ok(_) => FolderState::NoFolder,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => FolderState::NoFolder,
        Err(_) => FolderState::Absent,
    };
    let existing = nearest_folder(folder);
    let kind = |error: io::Error| error.kind();
    let filesystem = fs::canonicalize(&existing)
        .ok()
        .and_then(|path| filesystem_of(&read("/proc/self/mountinfo")?, &path));
    DiskFacts {
        folder: folder.to_owned(),
        state,
        space: filesystem_space(&existing).map_err(kind),
        filesystem,
        sync_times: sync_times(&existing).map_err(kind),
        last_read: last_scrub_pass(&NodeDataFolder::new(folder.to_owned())).map(|pass| DiskRead {
            age: Duration::from_secs(UnixSeconds::now().0.saturating_sub(pass.ended_s)),
            total: pass.total,
            corrupt: pass.corrupt,
        }),
    }
}

/// The folder, or the nearest above it that is there.
fn nearest_folder(folder: &Path) -> PathBuf {
    let absolute = env::current_dir().unwrap_or_default().join(folder);
    let there = absolute.ancestors().find(|path| path.is_dir());
    there.unwrap_or(Path::new("/")).to_owned()
}

fn filesystem_space(path: &Path) -> io::Result<FilesystemSpace> {
    let found = statvfs(path)?;
    Ok(FilesystemSpace {
        free: Bytes(found.f_bavail.saturating_mul(found.f_frsize)),
        files_free: found.f_favail,
        files: found.f_files,
        is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

/// A file that is removed in the end.
struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A process that could make it can remove it, unless the disk is gone meanwhile.
        let _ = fs::remove_file(&self.path);
    }
}

fn sync_times(folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!(".zbelastic-doctor-{}", process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let mut temporary = TemporaryFile { path, file };
    let began = Instant::now();
    let mut times = Vec::with_capacity(SYNC_COUNT);
    while times.len() < SYNC_COUNT && began.elapsed() < SYNC_TIME_MAX {
        temporary.file.write_all(&[0; SYNC_BYTES])?;
        let write = Instant::now();
        temporary.file.sync_data()?;
        times.push(write.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{FolderState, SYNC_COUNT, clock, disk, memory, nearest_folder, network};

    #[test]
    fn a_look_at_a_folder_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let facts = disk(folder.path());
        assert_eq!(facts.state, FolderState::Exists);
        let count = facts.sync_times.expect("it can be written").len();
        assert!((1..=SYNC_COUNT).contains(&count));
        assert!(facts.space.is_ok());
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }

    #[test]
    fn an_absent_folder_is_checked_where_it_would_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let absent = folder.path().join("a/b");
        assert_eq!(disk(&absent).state, FolderState::Absent);
        assert_eq!(nearest_folder(&absent), folder.path());
        assert!(!absent.exists());
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        assert_eq!(disk(&file).state, FolderState::NoFolder);
        assert_eq!(disk(&file.join("below")).state, FolderState::NoFolder);
    }

    #[test]
    fn the_newest_file_is_found_among_keys_too() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(clock(folder.path()).newest_file, None);
        fs::create_dir(folder.path().join("identity")).expect("made");
        fs::write(folder.path().join("identity/cert.pem"), "").expect("written");
        let written = fs::metadata(folder.path().join("identity/cert.pem")).expect("there");
        assert_eq!(clock(folder.path()).newest_file, written.modified().ok());
    }

    #[test]
    fn the_facts_of_this_machine_can_be_read() {
        let memory = memory();
        assert!(memory.available <= memory.machine);
        let network = network("data".as_ref());
        assert_eq!(network.local_socket.to_str(), Some("data/local/local.sock"));
    }
}
