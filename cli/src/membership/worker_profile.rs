//! The profile of a worker, made before a cluster is contacted.

use zbelastic_consensus::class::{DEVICE_NAME_BYTES_MAX, DeviceClass, DeviceName};
use zbelastic_consensus::member::Resources;
use zbelastic_kernels::cuda::DeviceProbe;
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_machine::device::{compile, probe_device};
use zbelastic_machine::peak_rates::PeakRatesByPrecision;
use zbelastic_machine::{DeviceSelector, memory_total, thread_count};
use zbelastic_node::cluster::{SPEED_OF_A_THREAD, WorkerProfile};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::args::{JoinArgs, RoleArg};

/// The profile of a worker, which computes on processors, or on the device that was found.
pub fn worker_profile(args: &JoinArgs, probe: Option<&DeviceProbe>) -> WorkerProfile {
    let resources = match probe {
        None => {
            let memory = args.memory.or_else(memory_total).unwrap_or(Bytes(0));
            let speed_permille = SPEED_OF_A_THREAD * u32::try_from(threads_of(args)).unwrap_or(1);
            Resources { memory, speed_permille, class: DeviceClass::Processors }
        }
        Some(probe) => {
            let memory = args.memory.unwrap_or(Bytes(probe.free_bytes));
            // The least that a multiprocessor does, for any model: it bounds how long an operation
            // may last before it is held for hung, and nodes of one job have the same.
            let speed_permille = 1000 * probe.info.multiprocessor_count.max(1);
            Resources { memory, speed_permille, class: DeviceClass::Cuda(device_name(probe)) }
        }
    };
    // What a device does at best is not measured.
    let peak = match probe {
        None => PeakRatesByPrecision::measure(threads_of(args)),
        Some(_) => None,
    };
    let data = DataSettings { paths: args.data_path.clone(), cache: args.data_cache };
    WorkerProfile { resources, peak, data, notice_source: args.spot, cloud_zone: None }
}

/// Number of threads that compute.
pub fn threads_of(args: &JoinArgs) -> usize {
    thread_count(args.threads)
}

/// The class of a device as it is agreed on.
fn device_name(probe: &DeviceProbe) -> DeviceName {
    let printable = |letter: char| if (' '..='~').contains(&letter) { letter } else { '?' };
    let text: String = probe.class().chars().map(printable).collect();
    // A name that is too long is cut at its beginning: the part that distinguishes classes stands
    // at the end.
    let end = &text[text.len().saturating_sub(DEVICE_NAME_BYTES_MAX)..];
    DeviceName::new(end).expect("a class has a comma at least")
}

/// Probes the device that was named, before a cluster is contacted.
///
/// # Errors
/// If it cannot be used.
pub fn probe_of(args: &JoinArgs) -> Result<Option<DeviceProbe>, CommandFailure> {
    match (args.device, args.role) {
        (DeviceSelector::Cpu, _) => Ok(None),
        (DeviceSelector::Cuda(_), Some(RoleArg::Controller)) => {
            let detail = FailureDetail::new(format!("--device {} for a controller", args.device))
                .why("controllers compute nothing")
                .hint("leave out --device, or --role worker");
            Err(CommandFailure::usage("the command line", vec![detail]))
        }
        (DeviceSelector::Cuda(index), Some(RoleArg::Worker) | None) => {
            let probe = probe_device(index)?;
            compile(&probe)?;
            Ok(Some(probe))
        }
    }
}
