//! NVIDIA devices by number: probed, opened, and the failures reported when they cannot be.

use std::sync::Arc;

use zbelastic_kernels::DeviceFault;
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::cache::KernelCache;
use zbelastic_kernels::cuda::{
    CacheWarning, CompileError, CudaDevice, DeviceProbe, OpenError, compile_kernels, probe,
};
use zbelastic_wording::{CommandFailure, FailureCode, print_error_line};

use crate::DeviceSelector;

/// Checks that a device can be opened, before anything is read or written.
///
/// # Errors
/// If it cannot.
pub fn probe_device(index: usize) -> Result<DeviceProbe, CommandFailure> {
    probe(index).map_err(|error| open_failure(index, &error))
}

/// Opens a device, with a stream of its own. Kernels that cannot be kept on disk are a warning.
///
/// # Errors
/// If it cannot be opened.
pub fn open(index: usize, precision: Precision) -> Result<Arc<CudaDevice>, OpenError> {
    let opened = CudaDevice::open(index, precision, &KernelCache::of_environment())?;
    warn(opened.warnings.first());
    Ok(opened.device)
}

/// Has the kernels of a device compiled before anybody waits for it: a cluster that loads a plan
/// treats a worker that does not answer as stalled.
///
/// # Errors
/// If they cannot be compiled.
pub fn compile(probe: &DeviceProbe) -> Result<(), CommandFailure> {
    let compiled = compile_kernels(probe, &KernelCache::of_environment());
    let failed = |error: CompileError| open_failure(probe.info.index, &error.into());
    warn(compiled.map_err(failed)?.as_ref());
    Ok(())
}

/// Prints once the obstacle to keeping kernels: it is the same for all of them.
fn warn(warning: Option<&CacheWarning>) {
    if let Some(warning) = warning {
        print_error_line(format_args!("warning: {warning}"));
    }
}

/// The failure printed for a device that cannot be opened.
#[must_use]
pub fn open_failure(index: usize, error: &OpenError) -> CommandFailure {
    CommandFailure::new(code_of(error), format!("{}: {error}", DeviceSelector::Cuda(index)))
}

/// A missing library or device is a resource; an error that should not happen is ours.
#[must_use]
pub const fn code_of(error: &OpenError) -> FailureCode {
    match error {
        OpenError::Compile(CompileError::Refused { .. } | CompileError::Call { .. }) => {
            FailureCode::Internal
        }
        OpenError::Library(_)
        | OpenError::DriverTooOld { .. }
        | OpenError::NoDevice
        | OpenError::DeviceAbsent { .. }
        | OpenError::ArchitectureTooOld { .. }
        | OpenError::Compile(
            CompileError::Library(_)
            | CompileError::UnknownArchitecture { .. }
            | CompileError::DriverTooOld { .. },
        ) => FailureCode::OutOfResource,
        OpenError::Fault(fault) => code_of_fault(fault),
    }
}

/// The exit code of a run after its device gave up.
#[must_use]
pub const fn code_of_fault(fault: &DeviceFault) -> FailureCode {
    match fault {
        DeviceFault::OutOfMemory { .. }
        | DeviceFault::OutOfHostMemory { .. }
        | DeviceFault::Sticky { .. }
        | DeviceFault::Unready { .. }
        | DeviceFault::NoAlgorithm { .. } => FailureCode::OutOfResource,
        DeviceFault::OtherLibrary { .. } => FailureCode::WrongState,
        DeviceFault::Refused { .. } => FailureCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::AllocationPurpose;
    use zbelastic_kernels::cuda::{CudaVersion, Library, LibraryError};

    use super::*;

    #[test]
    fn what_is_missing_is_reported_whole_and_as_a_resource() {
        let check = |error: OpenError, code: FailureCode, words: &[&str]| {
            let failure = open_failure(7, &error);
            assert_eq!(failure.code, code, "{failure}");
            let text = failure.to_string();
            for word in words.iter().chain(&["error: cuda:7: "]) {
                assert!(text.contains(word), "no \"{word}\" in: {text}");
            }
        };
        let missing = FailureCode::OutOfResource;
        check(
            LibraryError::DriverMissing.into(),
            missing,
            &["no NVIDIA driver", "install the driver"],
        );
        let found = CudaVersion { major: 11, minor: 8 };
        let needed = CudaVersion { major: 12, minor: 8 };
        check(OpenError::DriverTooOld { found, needed }, missing, &["11.8", "12.8", "update"]);
        let found = vec!["0: NVIDIA H200".to_owned()];
        let absent = OpenError::DeviceAbsent { asked: 7, found };
        check(absent, missing, &["no device 7, found 0: NVIDIA H200"]);
        let nvrtc = LibraryError::Missing { library: Library::Nvrtc };
        let nvrtc = CompileError::Library(nvrtc);
        check(nvrtc.into(), missing, &["libnvrtc.so", "pip install nvidia-cuda-nvrtc"]);
        let call = CompileError::Call { call: "nvrtcCompileProgram", name: "odd".to_owned() };
        check(call.into(), FailureCode::Internal, &["nvrtcCompileProgram", "report it"]);
        let memory = DeviceFault::OutOfMemory {
            asked_bytes: 10,
            purpose: AllocationPurpose::Scratch,
            free_bytes: 3,
            total_bytes: 7,
        };
        let words = [
            "10 bytes",
            "scratch of an operation",
            "3 of 7",
            "train.microbatch",
            "memory.recompute",
            "memory.offload",
        ];
        check(memory.into(), missing, &words);
    }
}
