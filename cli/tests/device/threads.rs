//! One process, a thread for each stage.

use std::ops::ControlFlow;
use std::sync::Arc;

use zbelastic_consensus::validation::{GuardPolicy, NonfinitePolicy};
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::GraphMode;
use zbelastic_local::cluster::train_on;
use zbelastic_local::device_factory::DeviceFactory;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::job::TrainingJob;
use zbelastic_local::progress_event::{ProgressEvent, StepRecord};
use zbelastic_schedule::ScheduleKind;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_wording::{CommandFailure, FailureCode};

use crate::device::{EmulatedDevice, LaneOrder};
use crate::{emulated, serial, setup, toml};

const STEPS: u64 = 3;

/// Runs three stages on these devices in turn; `observe` is called for each step that is sealed.
fn run(
    toml: &str,
    devices: &[Arc<EmulatedDevice>],
    mut observe: impl FnMut(&StepRecord),
) -> Result<StateDigest, CommandFailure> {
    let (setup, corpus) = setup(toml, ScheduleKind::ZbH1, 3);
    let policy = GuardPolicy {
        clip_norm: setup.clip_norm,
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 1,
        spike_deviations: None,
    };
    let interrupt = Interrupt::default();
    let job = TrainingJob {
        setup: Arc::new(setup),
        policy,
        corpus,
        islands: None,
        threads: 1,
        interrupt,
    };
    let named =
        |(index, device): (usize, &Arc<EmulatedDevice>)| (format!("cuda:{index}"), device.clone());
    let opened = devices.iter().enumerate().map(named).collect();
    let scratch = tempfile::tempdir().expect("a folder");
    let devices = DeviceFactory {
        opened,
        scratch: Some(scratch.path().to_owned()),
        graphs: GraphMode::DEFAULT,
    };
    let outcome = train_on(&devices, &job, &mut |event| {
        if let ProgressEvent::Step(record) = event {
            observe(record);
        }
        ControlFlow::Continue(())
    });
    outcome.map(|outcome| outcome.digest)
}

#[test]
fn three_stages_on_two_devices_end_with_the_bits_of_one() {
    for precision in Precision::ALL {
        let orders = [LaneOrder::Forwards, LaneOrder::Backwards];
        let devices: Option<Vec<_>> =
            orders.into_iter().map(|order| emulated(precision, order)).collect();
        let Some(devices) = devices else { return };
        let toml = toml(STEPS, precision);
        let found = run(&toml, &devices, |_| {}).expect("nothing goes wrong");
        assert_eq!(found, serial(&toml, &devices[0]), "{}", precision.name());
    }
}

#[test]
fn a_device_that_gives_up_ends_the_run_and_is_named() {
    let healthy = emulated(Precision::F32, LaneOrder::Forwards);
    let broken = emulated(Precision::F32, LaneOrder::Forwards);
    let (Some(healthy), Some(broken)) = (healthy, broken) else { return };
    let sealed = std::cell::Cell::new(0);
    let failure = run(&toml(STEPS, Precision::F32), &[healthy, broken.clone()], |record| {
        sealed.set(record.step.0 + 1);
        broken.fail();
    });
    let failure = failure.expect_err("stage 1 has no device any more");
    assert_eq!(failure.code, FailureCode::OutOfResource);
    let text = failure.to_string();
    for word in [
        "stage 1 on cuda:1: ",
        "ILLEGAL_ADDRESS",
        "restart this process",
        "sealed before: 1",
        "--threads-only",
    ] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
    assert_eq!(sealed.get(), 1, "what it left is not taken for a bad step");
}

#[test]
fn a_device_without_memory_is_refused_with_what_helps() {
    // A megabyte for each of three stages, which take more than one page each.
    let Some(small) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 3 << 20) else {
        return;
    };
    let failure = run(&toml(STEPS, Precision::F32), &[small], |_| {}).expect_err("megabytes");
    assert_eq!(failure.code, FailureCode::OutOfResource);
    let text = failure.to_string();
    for word in [
        "error: stage ",
        " bytes left for what is kept and computed there (",
        " for weights, packed weights, gradients and moments, ",
        " for what passes keep, ",
        " for boundary tensors, ",
        " for scratch of operations), ",
        " of 8589934592 are free; ",
        "train.microbatch",
        "train.precision",
        "memory.recompute",
        "memory.offload",
        "schedule.max_mem",
        "fewer stages on this device",
    ] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
}

/// The clock of an emulated device goes a microsecond on each time that it is read, so shares of a
/// step are those of whole numbers. By the host's clock they would not be.
#[test]
fn bubbles_are_those_of_the_devices_clock() {
    // Tests beside this one read the same clock.
    const STEP_US_MAX: u32 = 100_000;
    let Some(device) = emulated(Precision::F32, LaneOrder::Forwards) else { return };
    let mut bubbles = Vec::new();
    run(&toml(STEPS, Precision::F32), &[device], |record| bubbles.push(record.bubbles.measured))
        .expect("nothing goes wrong");
    let is_share_of_us = |bubble: &f64| {
        (1..STEP_US_MAX).any(|step_us| {
            let waited_us = bubble * f64::from(step_us);
            (waited_us - waited_us.round()).abs() < 1e-8
        })
    };
    assert!(bubbles.len() as u64 == STEPS && bubbles.iter().all(is_share_of_us), "{bubbles:?}");
}
