//! The errors of opening and using a device, each with its remedy. One enum for each operation.

use std::path::PathBuf;

use super::architecture::Architecture;
pub use crate::fault::DeviceFault;

/// A version of the driver or of a library, as NVIDIA counts: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The major version, 13 of 13.1.
    pub major: u32,
    /// The minor version, 1 of 13.1.
    pub minor: u32,
}

impl std::fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A library of NVIDIA's that is looked for when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver, which comes with the system.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// The library of matrix products.
    CublasLt,
    /// The library of exchanges between devices of different processes.
    Nccl,
}

impl Library {
    /// Name of the library's file without version.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so",
            Self::Nvrtc => "libnvrtc.so",
            Self::CublasLt => "libcublasLt.so",
            Self::Nccl => "libnccl.so",
        }
    }

    /// The files to load: what it opens by name itself later has to be known to the loader by then.
    pub(super) const fn files(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &[],
            Self::Nvrtc => &["libnvrtc-builtins.so", "libnvrtc.so"],
            Self::CublasLt => &["libcublasLt.so"],
            Self::Nccl => &["libnccl.so"],
        }
    }

    /// The package at PyPI that holds it, if any does.
    pub(super) const fn package(self) -> Option<&'static str> {
        match self {
            Self::Driver | Self::Nccl => None,
            Self::Nvrtc => Some("nvidia-cuda-nvrtc"),
            Self::CublasLt => Some("nvidia-cublas"),
        }
    }
}

/// A library was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No NVIDIA driver was found on this machine.
    #[error(
        "no NVIDIA driver on this machine: {} was not found; install the driver of the graphics \
         card, or compute on processors",
        Library::Driver.file()
    )]
    DriverMissing,
    /// A library of the CUDA toolkit is not there.
    #[error(
        "{} was not found; install the CUDA toolkit, or `pip install {}` and let {} name the \
         folder with the file",
        library.file(),
        library.package().unwrap_or("the driver"),
        super::library::FOLDERS_VARIABLE
    )]
    Missing {
        /// The library that was not found.
        library: Library,
    },
    /// NCCL is not there under the name by which it is looked for.
    #[error(
        "libnccl.so was not found; install libnccl-dev, or `pip install nvidia-nccl-cu13` and link \
         libnccl.so.2 to that name in a folder of LD_LIBRARY_PATH"
    )]
    NcclMissing,
    /// The variable names a folder, and the file in it does not load.
    #[error("{}: does not load: {reason}; {} names this folder", path.display(),
        super::library::FOLDERS_VARIABLE)]
    Refused {
        /// Path of the file that does not load.
        path: PathBuf,
        /// The reason that the system's loader reports.
        reason: String,
    },
}

/// A kernel could not be compiled to the device's code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The compiler was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The compiler does not know the device.
    #[error(
        "NVRTC {found} knows no {architecture}; install one that does, or compute on another device"
    )]
    UnknownArchitecture {
        /// The compute capability of the device.
        architecture: Architecture,
        /// The version of the compiler that was found.
        found: CudaVersion,
    },
    /// The compiler's code is for a newer driver.
    #[error(
        "the driver is for CUDA {driver} and cannot load what NVRTC {compiler} makes; update the \
         driver, or install an NVRTC of version {}", driver.major
    )]
    DriverTooOld {
        /// The CUDA version of the driver.
        driver: CudaVersion,
        /// The version of the compiler that was found.
        compiler: CudaVersion,
    },
    /// The compiler refused a source of ours, or warned.
    #[error("NVRTC {compiler} says of {file} for {architecture}:\n{log}")]
    Refused {
        /// Name of the source's file.
        file: &'static str,
        /// The architecture that the source was compiled for.
        architecture: Architecture,
        /// The version of the compiler that refused it.
        compiler: CudaVersion,
        /// The compiler's log, with its errors and warnings.
        log: String,
    },
    /// A call to the compiler failed in a way that is not about the source.
    #[error("NVRTC: {call}: {name}; report it")]
    Call {
        /// Name of the call that failed.
        call: &'static str,
        /// Name of the result that the call returned.
        name: String,
    },
}

/// A device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The driver or a library is not there.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The driver is older than [`super::DRIVER_OLDEST`].
    #[error(
        "the NVIDIA driver is for CUDA {found}, at least {needed} is needed; update the driver"
    )]
    DriverTooOld {
        /// The version that was found.
        found: CudaVersion,
        /// The oldest version that works.
        needed: CudaVersion,
    },
    /// A driver is there, but no device.
    #[error(
        "the NVIDIA driver finds no device; `nvidia-smi` must list one, and CUDA_VISIBLE_DEVICES \
         must not hide it"
    )]
    NoDevice,
    /// There is no device of the requested index.
    #[error(
        "there is no device {asked}, found {}; `nvidia-smi -L` lists them",
        found.join(", ")
    )]
    DeviceAbsent {
        /// The index that was requested.
        asked: usize,
        /// The devices that there are, by number and name.
        found: Vec<String>,
    },
    /// The device is too old for the kernels.
    #[error(
        "{device} is {found}, the kernels need {needed} or newer (A100 and later); choose another \
         device, or compute on processors"
    )]
    ArchitectureTooOld {
        /// Name of the device.
        device: String,
        /// The compute capability of the device.
        found: Architecture,
        /// The oldest architecture that the kernels run on.
        needed: Architecture,
    },
    /// A kernel could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused a call.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
}

/// Compiled kernels could not be kept on disk. They are compiled again next time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: {reason}; compiled kernels are not kept and every start takes seconds longer; make the \
     folder writable, or name another one in {}",
    path.display(),
    super::cache::FOLDER_VARIABLE
)]
pub struct CacheWarning {
    /// The file or folder that could not be written.
    pub path: PathBuf,
    /// The system's error as text.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use crate::fault::AllocationPurpose;

    use super::{Architecture, CudaVersion, DeviceFault, Library, LibraryError, OpenError};

    fn check(error: impl std::error::Error, words: &[&str]) {
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "no \"{word}\" in: {text}");
        }
    }

    #[test]
    fn every_error_says_what_to_do() {
        check(LibraryError::DriverMissing, &["libcuda.so", "install the driver", "processors"]);
        let missing = LibraryError::Missing { library: Library::Nvrtc };
        check(missing, &["libnvrtc.so", "pip install nvidia-cuda-nvrtc", "ZBELASTIC_CUDA_LIBS"]);
        check(LibraryError::NcclMissing, &["libnccl.so", "libnccl-dev", "LD_LIBRARY_PATH"]);
        let found = CudaVersion { major: 11, minor: 8 };
        let needed = CudaVersion { major: 12, minor: 8 };
        check(OpenError::DriverTooOld { found, needed }, &["11.8", "12.8", "update"]);
        check(OpenError::NoDevice, &["nvidia-smi", "CUDA_VISIBLE_DEVICES"]);
        let found = vec!["0: NVIDIA H200".to_owned(), "1: Tesla T4".to_owned()];
        let absent = OpenError::DeviceAbsent { asked: 7, found };
        check(absent, &["no device 7, found 0: NVIDIA H200, 1: Tesla T4;", "nvidia-smi -L"]);
        let found = Architecture::new(7, 5);
        let needed = Architecture::new(8, 0);
        let device = "Tesla T4".to_owned();
        let error = OpenError::ArchitectureTooOld { device, found, needed };
        check(error, &["Tesla T4 is sm_75", "sm_80"]);
        let memory = DeviceFault::OutOfMemory {
            asked_bytes: 10,
            purpose: AllocationPurpose::Workspace,
            free_bytes: 3,
            total_bytes: 7,
        };
        check(memory, &["10 bytes", "workspace of products", "3 of 7", "train.microbatch"]);
        check(DeviceFault::OutOfHostMemory { asked_bytes: 9 }, &["9 bytes", "ulimit", "file"]);
    }
}
