//! Runs and clusters on devices: the bits of one device whatever the stages, and what becomes of a
//! device that gives up. The devices are emulated, as in the tests of the kernels; where there is
//! no C++ compiler nothing is tried.

#![cfg(all(target_arch = "x86_64", unix))]

mod asynchronous;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../kernels/tests/emulated/compile.rs"]
mod compile;
#[path = "../../../kernels/tests/emulated/device.rs"]
#[allow(dead_code)]
mod device;
#[path = "../cluster/harness.rs"]
#[allow(dead_code)]
mod harness;
mod refusals;
mod threads;

use std::sync::Arc;

use zbelastic_config::load_document;
use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::Step;
use zbelastic_wire::document::{DataName, JobDocument};

use device::{EmulatedDevice, LaneOrder};

/// A run small enough for a device that is a program.
const SHAPE: &str = "[model]\nfamily = \"gpt2\"\nlayers = 3\nwidth = 16\nheads = 2\n\
    [train]\nseq_len = 8\nmicrobatch = 2\nglobal_batch = 8\nseed = 5\ndevice = \"cuda\"\n";

/// The run with so many steps, in this type.
fn toml(steps: u64, precision: Precision) -> String {
    format!("{SHAPE}precision = \"{}\"\nsteps = {steps}\n", precision.name())
}

fn text() -> Vec<u8> {
    (0..20_000_u32).map(|i| (i * i % 97) as u8 + 20).collect()
}

/// A device; none where there is no C++ compiler.
fn emulated(precision: Precision, order: LaneOrder) -> Option<Arc<EmulatedDevice>> {
    let device = EmulatedDevice::new(precision, order, 1 << 30);
    let is_required = std::env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_some();
    assert!(device.is_some() || !is_required, "there is no c++");
    if device.is_none() {
        println!("skipped: kernels run on processors where there is a c++");
    }
    device
}

/// The setup of a run's stages, and its text.
fn setup(toml: &str, kind: ScheduleKind, stage_count: u32) -> (StageSetup, Arc<TrainingData>) {
    let config = load_document("test", toml).expect("a configuration").config;
    let text = text();
    let name = DataName::of(&text);
    let job = JobDocument::new("test".to_owned(), config.clone(), toml.to_owned(), name);
    let request = PlanRequest {
        model: &config.model,
        batch: config.batch,
        kind,
        chunks_per_stage: None,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
    };
    let setup = config.stage_setup(Plan::new(request).expect("a plan"));
    let corpus = job.corpus(text).expect("long enough");
    (setup, Arc::new(TrainingData::Text(corpus)))
}

/// The outcome of a serial run on one device.
fn serial(toml: &str, device: &Arc<EmulatedDevice>) -> StateDigest {
    let (setup, corpus) = setup(toml, ScheduleKind::GPipe, 1);
    let backend = CudaBackend::new(device.clone());
    let mut run = SerialReference::new(&setup, backend, corpus).expect("memory");
    for step in 0..setup.step_count {
        run.step(Step(step), false);
    }
    run.digest()
}
