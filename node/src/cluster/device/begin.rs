//! How a job begins on a device: the device is opened, and the runtime of a worker made on it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use zbelastic_config::OffloadStore;
use zbelastic_islands::{ExchangeSetup, ExchangeThread};
use zbelastic_kernels::HostThreads;
use zbelastic_kernels::cuda::nccl::DeviceLinks;
use zbelastic_machine::second_store::file_stores;
use zbelastic_timing::RunClock;
use zbelastic_trainer::elastic::{BackendStageFactory, GRADIENT_FRAME_LIMITS};
use zbelastic_trainer::runtime::{RuntimeSetup, WorkerRuntime};
use zbelastic_trainer::stage::StageSetup;

use super::{DeviceJob, DeviceRuntime};
use crate::cluster::compute::WorkerDevice;
use crate::cluster::device_error::WorkerDeviceError;

/// The runtime of a job, what begins links of its device, and the exchange with other islands, if there
/// are any.
type BegunJob<M> = (DeviceRuntime<M>, Option<Box<dyn DeviceLinks>>, Option<ExchangeThread>);

/// Begins a job on a device that is opened for it.
///
/// # Errors
/// If the device, a thread of the host for it, or the folders of islands cannot be had.
pub(super) fn begin<M: WorkerDevice>(
    worker_device: &M,
    job: DeviceJob,
    drawn: Arc<AtomicU64>,
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
        drawn,
        device,
        host: HostThreads::new(worker_device.host_threads())?,
        store: match config.memory.offload_store {
            OffloadStore::Memory => None,
            OffloadStore::File => Some(file_stores(scratch)),
        },
        clock: Some(RunClock::of_layers),
    };
    // Each plan that is loaded replaces this one, and adds up as this one does.
    let plan = config.one_stage_plan();
    let injections = document.job.injections.clone();
    let stage = StageSetup { weights, injections, ..config.stage_setup(plan) };
    let setup = RuntimeSetup { stage, gradient_limits: GRADIENT_FRAME_LIMITS };
    let islands = ExchangeSetup::of_run(config);
    let exchange = islands.as_ref().map(ExchangeThread::start).transpose()?;
    Ok((WorkerRuntime::new(setup, model, corpus), links, exchange))
}
