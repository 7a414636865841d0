//! Findings: the results of checks.

use zbelastic_wording::FailureCode;

/// The check that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorCheck {
    /// Cores to compute on.
    Cores,
    /// Kernels that cores compute with.
    Kernels,
    /// Memory to train in.
    Memory,
    /// Files and connections that may be open.
    OpenFiles,
    /// Address space that the process may use.
    AddressSpace,
    /// Receive buffer of a UDP socket.
    UdpBuffer,
    /// IPv6 addresses of this machine.
    Ipv6,
    /// Unix sockets between processes of one machine.
    LocalSocket,
    /// The time of day.
    Clock,
    /// The folder that data is in, or would be.
    DataFolder,
    /// Bytes that are free there.
    DiskSpace,
    /// Files that can be made there.
    DiskFiles,
    /// The time until writes are on the disk.
    DiskSync,
    /// What the node found when it read everything on its disk again.
    DiskRead,
    /// Permissions of the files with keys.
    Permissions,
    /// Whether graphics cards can be used.
    Gpu,
    /// Whether a cluster answers.
    Cluster,
}

impl DoctorCheck {
    /// Its name, for people and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Kernels => "kernels",
            Self::Memory => "memory",
            Self::OpenFiles => "open-files",
            Self::AddressSpace => "address-space",
            Self::UdpBuffer => "udp-buffer",
            Self::Ipv6 => "ipv6",
            Self::LocalSocket => "local-socket",
            Self::Clock => "clock",
            Self::DataFolder => "data-folder",
            Self::DiskSpace => "disk-space",
            Self::DiskFiles => "disk-files",
            Self::DiskSync => "disk-sync",
            Self::DiskRead => "disk-read",
            Self::Permissions => "permissions",
            Self::Gpu => "gpu",
            Self::Cluster => "cluster",
        }
    }
}

/// How grave it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing; a node works all the same.
    Note,
    /// A node works, but worse or not for long.
    Warning,
    /// A node will not work.
    Error(Obstacle),
}

/// Why a node will not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is too little of something.
    TooLittle,
    /// Something is to be mended first.
    WrongState,
}

impl Severity {
    /// Its name, for people and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error(_) => "error",
        }
    }
}

impl Obstacle {
    /// Exit code of a command that ends because of it.
    #[must_use]
    pub const fn code(self) -> FailureCode {
        match self {
            Self::TooLittle => FailureCode::OutOfResource,
            Self::WrongState => FailureCode::WrongState,
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorFinding {
    /// The check that was made.
    pub check: DoctorCheck,
    /// How grave it is.
    pub level: Severity,
    /// The finding in one line, with numbers.
    pub what: String,
    /// The consequence for a node.
    pub why: Option<String>,
    /// The remedy, as a hint.
    pub hint: Option<String>,
}

impl DoctorFinding {
    /// Something as it should be.
    pub(super) fn fine(check: DoctorCheck, what: impl Into<String>) -> Self {
        Self::new(check, Severity::Fine, what)
    }

    pub(super) fn new(check: DoctorCheck, level: Severity, what: impl Into<String>) -> Self {
        Self { check, level, what: what.into(), why: None, hint: None }
    }

    pub(super) fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The level of an amount that should be at least `enough`, and of which less than `least` does not
/// do at all.
pub(super) fn level_of<T: PartialOrd>(found: T, least: T, enough: T) -> Severity {
    if found < least {
        Severity::Error(Obstacle::TooLittle)
    } else if found < enough {
        Severity::Warning
    } else {
        Severity::Fine
    }
}
