//! Schedules without steps, a thread for each stage.

use std::ops::ControlFlow;
use std::sync::Arc;

use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::Precision;
use zbelastic_kernels::cuda::{CudaBackend, GraphMode};
use zbelastic_local::asynchronous::{AsyncJob, train_on};
use zbelastic_local::device_factory::DeviceFactory;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::progress_event::{ProgressEvent, StepRecord};
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule,
};
use zbelastic_trainer::asynchronous::{
    AsyncHyperparameters, AsyncPlan, AsyncReference, AsyncSetup,
};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_wording::{CommandFailure, FailureCode};

use crate::device::{EmulatedDevice, LaneOrder};
use crate::{emulated, setup, toml};

const STEPS: u64 = 6;

/// The setup of a run of three stages, that of one stage with the whole model, and the text.
fn asynchronous(
    kind: AsyncKind,
    precision: Precision,
) -> (AsyncSetup, StageSetup, Arc<TrainingData>) {
    let (whole, corpus) = setup(&toml(STEPS, precision), ScheduleKind::GPipe, 1);
    let request = AsyncRequest {
        kind,
        stage_count: 3,
        minibatch_count: STEPS as u32,
        microbatch_count: whole.plan.batch.microbatch_count,
        replica_count: 2,
        dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 3, update_every: 2 },
        variant: AsyncVariant::Usual,
    };
    let plan = AsyncPlan::new(&whole.model, whole.plan.batch, request);
    let StageSetup { model, optimizer, z_loss, clip_norm, weights, .. } = whole.clone();
    let setup = AsyncSetup {
        model,
        plan: plan.expect("the size is legal"),
        optimizer,
        z_loss,
        clip_norm,
        weights,
        injections: Vec::new(),
        knobs: AsyncHyperparameters { anneal_updates: 4, elastic_alpha: 0.5 },
    };
    (setup, whole, corpus)
}

/// Runs three stages on these devices in turn; `observe` is called for each minibatch.
fn run(
    (kind, precision): (AsyncKind, Precision),
    devices: &[Arc<EmulatedDevice>],
    mut observe: impl FnMut(&StepRecord),
) -> Result<(StateDigest, Option<f64>), CommandFailure> {
    let (setup, whole, corpus) = asynchronous(kind, precision);
    let interrupt = Interrupt::default();
    let setup = Arc::new(setup);
    let bubble = 0.0;
    let job = AsyncJob { setup, whole: &whole, corpus, interrupt: &interrupt, bubble };
    let named =
        |(index, device): (usize, &Arc<EmulatedDevice>)| (format!("cuda:{index}"), device.clone());
    let opened = devices.iter().enumerate().map(named).collect();
    let devices = DeviceFactory { opened, scratch: None, graphs: GraphMode::DEFAULT };
    let outcome = train_on(&devices, &job, &mut |event| {
        if let ProgressEvent::Step(record) = event {
            observe(record);
        }
        ControlFlow::Continue(())
    })?;
    Ok((outcome.digest, outcome.held_out.map(|held_out| held_out.loss)))
}

#[test]
fn stages_without_steps_end_with_the_bits_of_the_reference_on_one_device() {
    for (kind, precision) in
        [(AsyncKind::PipeMare, Precision::Bf16), (AsyncKind::AvgPipe, Precision::F32)]
    {
        let orders = [LaneOrder::Forwards, LaneOrder::Backwards];
        let devices: Option<Vec<_>> =
            orders.into_iter().map(|order| emulated(precision, order)).collect();
        let Some(devices) = devices else { return };
        let mut records = Vec::new();
        let observe = |record: &StepRecord| records.push((record.loss, record.bubbles.measured));
        let found = run((kind, precision), &devices, observe).expect("nothing goes wrong");
        let (setup, _, corpus) = asynchronous(kind, precision);
        let backend = CudaBackend::new(devices[0].clone());
        let mut reference = AsyncReference::new(Arc::new(setup), backend, corpus).expect("memory");
        reference.run();
        assert_eq!(found.0, reference.state().digest(), "{kind}");
        assert!(found.1.is_some_and(f64::is_finite), "{kind}: {:?} is its held-out loss", found.1);
        assert_eq!(records.len() as u64, STEPS);
        assert!(records.iter().all(|(loss, _)| loss.is_finite()), "{records:?}");
    }
}

#[test]
fn a_device_that_gives_up_ends_a_run_without_steps_and_is_named() {
    let healthy = emulated(Precision::F32, LaneOrder::Forwards);
    let broken = emulated(Precision::F32, LaneOrder::Forwards);
    let (Some(healthy), Some(broken)) = (healthy, broken) else { return };
    let mut verdicts = Vec::new();
    let devices = [healthy, broken.clone()];
    let failure = run((AsyncKind::PipeDream2Bw, Precision::F32), &devices, |record| {
        verdicts.push(record.verdict.name());
        broken.fail();
    });
    let failure = failure.expect_err("stage 1 has no device any more");
    assert_eq!(failure.code, FailureCode::OutOfResource);
    let text = failure.to_string();
    for word in ["stage 1 on cuda:1: ", "ILLEGAL_ADDRESS", "minibatches trained before: "] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
    assert!(!verdicts.contains(&"skip"), "what it left is not taken for a bad step: {verdicts:?}");
}
