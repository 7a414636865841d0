//! How a job begins on a device: the device is opened, and the runtime of a worker made on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_config::OffloadStore;
use zbelastic_kernels::HostThreads;
use zbelastic_kernels::cuda::nccl::DeviceLinks;
use zbelastic_machine::second_store::FileSecondStore;
use zbelastic_timing::RunClock;
use zbelastic_trainer::elastic::{BackendStageFactory, GRADIENT_FRAME_LIMITS, StashStoreFactory};
use zbelastic_trainer::model::LayerClock;
use zbelastic_trainer::runtime::{RuntimeSetup, WorkerRuntime};
use zbelastic_trainer::stage::StageSetup;

use super::{DeviceJob, DeviceRuntime};
use crate::cluster::compute::WorkerDevice;
use crate::cluster::device_error::WorkerDeviceError;

/// Second stores in files, each in a folder of its own: while a plan is loaded there may be two.
fn file_stores(scratch: PathBuf) -> StashStoreFactory {
    // The folder of a process that was killed. If it cannot be removed, that is reported when
    // something is written.
    drop(std::fs::remove_dir_all(&scratch));
    let made = AtomicU64::new(0);
    Box::new(move |bytes| {
        let number = made.fetch_add(1, Ordering::Relaxed);
        Box::new(FileSecondStore::new(scratch.join(number.to_string()), bytes))
    })
}

/// The clock by which layers are timed.
fn layer_clock() -> LayerClock {
    let clock = RunClock::start();
    Box::new(move || clock.now_us())
}

/// The runtime of a job, and what begins links of its device, if there are any.
type BegunJob<M> = (DeviceRuntime<M>, Option<Box<dyn DeviceLinks>>);

/// The runtime of a job, on a device that is opened for it, and its links.
///
/// # Errors
/// If the device, or a thread of the host for it, cannot be had.
pub(super) fn begin<M: WorkerDevice>(
    worker_device: &M,
    job: DeviceJob,
) -> Result<BegunJob<M>, WorkerDeviceError> {
    let DeviceJob { document, corpus, weights, scratch } = job;
    let config = &document.job.config;
    let device = worker_device.open(config.arithmetic)?;
    let links = M::links(&device);
    let model = BackendStageFactory {
        model: config.model.clone(),
        optimizer: config.optimizer.clone(),
        step_count: config.steps,
        weights: weights.clone(),
        device,
        host: HostThreads::new(worker_device.host_threads())?,
        store: match config.memory.offload_store {
            OffloadStore::Memory => None,
            OffloadStore::File => Some(file_stores(scratch)),
        },
        clock: Some(layer_clock),
    };
    // Each plan that is loaded replaces this one, and adds up as this one does.
    let plan = config.one_stage_plan();
    let injections = document.job.injections.clone();
    let stage = StageSetup { weights, injections, ..config.stage_setup(plan) };
    let setup = RuntimeSetup { stage, gradient_limits: GRADIENT_FRAME_LIMITS };
    Ok((WorkerRuntime::new(setup, model, corpus), links))
}
