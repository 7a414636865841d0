//! Facts about this machine, as far as they can be read. Checks judge them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use zbelastic_types::Bytes;

/// All facts that the checks judge.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// Cores that this process may use.
    pub cores: usize,
    /// How fast a core multiplies.
    pub kernels: KernelFacts,
    /// Memory of the machine and of its control group.
    pub memory: MemoryFacts,
    /// Resource limits of this process.
    pub limits: LimitFacts,
    /// Addresses and sockets of the machine.
    pub network: NetworkFacts,
    /// The time of day.
    pub clock: ClockFacts,
    /// The data folder and its file system.
    pub disk: DiskFacts,
    /// The files that others may read although they should not, each as a sentence.
    pub permissions: Vec<String>,
    /// Graphics cards, as devices of the system and as the driver lists them.
    pub gpu: GpuFacts,
    /// The result of dialing a cluster, if one was named.
    pub cluster: Option<ClusterFacts>,
}

/// The kernels of processors and what they reach.
#[derive(Clone, Debug)]
pub struct KernelFacts {
    /// The processor, the kernels in use and the others that it could use.
    pub text: String,
    /// Whether multiply-adds are instructions on vectors.
    pub are_vectors: bool,
    /// Multiply-adds of a core on registers alone, in floating-point operations a second, and the
    /// share of it that a matrix product reaches; `None` if memory could not be had.
    pub peak_and_share: Option<(f64, f64)>,
    /// The same with bfloat16 factors, where an instruction multiplies them.
    pub bf16_peak_and_share: Option<(f64, f64)>,
}

/// Memory; `None` is a size that cannot be seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFacts {
    /// Memory of the whole machine.
    pub machine: Option<Bytes>,
    /// Memory that is unused, or would be reclaimed.
    pub available: Option<Bytes>,
    /// Memory limit of this process's control group.
    pub group: Option<Bytes>,
}

/// Limits of this process; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitFacts {
    /// Files and connections that may be open.
    pub open_files: Option<u64>,
    /// The hard limit, to which that can be raised.
    pub open_files_max: Option<u64>,
    /// Bytes of address space that the process may use.
    pub address_space: Option<Bytes>,
}

/// Socket buffers, addresses and Unix sockets.
#[derive(Clone, Debug)]
pub struct NetworkFacts {
    /// The largest receive buffer that a socket gets.
    pub receive_buffer_max: Option<Bytes>,
    /// Whether the system has IPv6 addresses, and how far they reach.
    pub ipv6: Ipv6,
    /// Whether two ends of a Unix socket can be made.
    pub unix_sockets: Result<(), io::ErrorKind>,
    /// Where the socket of the data folder would be.
    pub local_socket: PathBuf,
}

/// IPv6 addresses of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6 {
    /// The system has no IPv6 address.
    Absent,
    /// Only those within this machine or its link.
    LocalOnly,
    /// Also addresses that reach beyond them.
    Present,
}

/// The time of day.
#[derive(Clone, Copy, Debug)]
pub struct ClockFacts {
    /// The machine's clock, now.
    pub now: SystemTime,
    /// When the clock was set by a time server, as far as that leaves a trace.
    pub synced: Option<SystemTime>,
    /// The latest change of a file in the data folder.
    pub newest_file: Option<SystemTime>,
}

/// The data folder and its file system.
#[derive(Clone, Debug)]
pub struct DiskFacts {
    /// Path of the data folder.
    pub folder: PathBuf,
    /// Whether the folder exists, can be made, or is something else.
    pub state: FolderState,
    /// Free space of the file system where the folder is or would be.
    pub space: Result<FilesystemSpace, io::ErrorKind>,
    /// The type of the file system there.
    pub filesystem: Option<String>,
    /// The time until each write was on the disk there.
    pub sync_times: Result<Vec<Duration>, io::ErrorKind>,
    /// The last time that the node in the folder read everything on its disk again, if it has.
    pub last_read: Option<DiskRead>,
}

/// A pass over everything on a node's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRead {
    /// How long ago it ended.
    pub age: Duration,
    /// Bytes that it read.
    pub total: Bytes,
    /// Pieces, texts and weights that it found damaged.
    pub corrupt: u64,
}

/// State of the path of the data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// A folder is there.
    Exists,
    /// Nothing, so it would be made.
    Absent,
    /// Something else than a folder is there.
    NoFolder,
}

/// Free space of a file system, in bytes and in files.
#[derive(Clone, Copy, Debug)]
pub struct FilesystemSpace {
    /// Bytes that this user can still write.
    pub free: Bytes,
    /// Files that can still be made.
    pub files_free: u64,
    /// Files that there can be; 0 if they are not counted.
    pub files: u64,
    /// Whether nothing can be written at all.
    pub is_read_only: bool,
}

/// Graphics cards of NVIDIA's.
#[derive(Clone, Debug)]
pub struct GpuFacts {
    /// Devices of the system that this process can see, as in `/dev/nvidia0`.
    pub visible: Vec<String>,
    /// The cards that the driver finds, or why it cannot be used. No driver finds nothing.
    pub cards: Result<Vec<GpuCard>, String>,
}

/// A card as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuCard {
    /// As a person names it: `cuda:0`.
    pub name: String,
    /// Class of the card and free bytes of its memory, or why nothing can be computed on it.
    pub found: Result<(String, Bytes), String>,
}

/// A cluster that was dialed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The address as it was typed.
    pub address: String,
    /// Whether a member answered.
    pub outcome: DialOutcome,
}

/// The result of dialing a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialOutcome {
    /// A member of the cluster answered.
    Reached {
        /// Time until the answer.
        took: Duration,
    },
    /// No answer came, or not one of a member.
    Failed {
        /// Why, as a sentence.
        why: String,
    },
}
