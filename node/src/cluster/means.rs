//! What a worker brings to a cluster, found out before a cluster is contacted.

use zbelastic_consensus::class::{DEVICE_NAME_BYTES_MAX, DeviceClass, DeviceName};
use zbelastic_consensus::member::Resources;
use zbelastic_kernels::cuda::Probe;
use zbelastic_types::Bytes;

use super::start::WorkerMeans;
use crate::args::{Device, JoinArgs, RoleArg};
use crate::device::{compile, look_at};
use crate::failure::{Detail, Failure};
use crate::machine::{core_count, memory_total};

/// The speed of a thread that computes on a processor, in thousandths of a reference device's.
pub const SPEED_OF_A_THREAD: u32 = 1000;

/// What a worker brings, and what it computes with: processors, or the device that was found.
pub fn means(args: &JoinArgs, probe: Option<&Probe>) -> WorkerMeans {
    let resources = match probe {
        None => {
            let memory = args.memory.or_else(memory_total).unwrap_or(Bytes(0));
            let speed_permille = SPEED_OF_A_THREAD * u32::try_from(threads_of(args)).unwrap_or(1);
            Resources { memory, speed_permille, class: DeviceClass::Processors }
        }
        Some(probe) => {
            let memory = args.memory.unwrap_or(Bytes(probe.free_bytes));
            // The least that a multiprocessor does, whatever the model: it bounds how long an operation
            // may take before it is held for hung, and nodes of one job have the same.
            let speed_permille = 1000 * probe.info.multiprocessor_count.max(1);
            Resources { memory, speed_permille, class: DeviceClass::Cuda(device_name(probe)) }
        }
    };
    WorkerMeans { resources, data_paths: args.data_path.clone(), spot: args.spot }
}

/// Number of threads that compute.
pub fn threads_of(args: &JoinArgs) -> usize {
    args.threads.map_or_else(core_count, |threads| threads as usize)
}

/// The class of a device as it is agreed on.
fn device_name(probe: &Probe) -> DeviceName {
    let printable = |letter: char| if (' '..='~').contains(&letter) { letter } else { '?' };
    let text: String = probe.class().chars().map(printable).collect();
    // A name that is too long is cut at its beginning: what tells classes apart stands at the end.
    let end = &text[text.len().saturating_sub(DEVICE_NAME_BYTES_MAX)..];
    DeviceName::new(end).expect("a class has a comma at least")
}

/// Looks at the device that was named, before a cluster is contacted.
///
/// # Errors
/// If it cannot be used.
pub fn probe_of(args: &JoinArgs) -> Result<Option<Probe>, Failure> {
    match (args.device, args.role) {
        (Device::Cpu, _) => Ok(None),
        (Device::Cuda(_), Some(RoleArg::Controller)) => {
            let detail = Detail::new(format!("--device {} for a controller", args.device))
                .why("controllers compute nothing")
                .hint("leave out --device, or --role worker");
            Err(Failure::usage("the command line", vec![detail]))
        }
        (Device::Cuda(index), Some(RoleArg::Worker) | None) => {
            let probe = look_at(index)?;
            compile(&probe)?;
            Ok(Some(probe))
        }
    }
}
