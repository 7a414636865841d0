//! Layers on a device that runs later what is enqueued.

use std::sync::{Arc, Mutex, PoisonError};

use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, GraphMode};
use zbelastic_schedule::{Op, ScheduleKind, Window};
use zbelastic_trainer::model::{
    Family, LayerClass, LayerOp, LayerSpec, LayerTimer, Span, TimeTotal, model_layers,
};
use zbelastic_trainer::stage::{
    BackendExecutor, EngineProgress, GradientExecutor, OperationClock, StageEngine, StageExecutor,
    UpdateExecutor, UpdateRequest,
};
use zbelastic_types::{StageIndex, Step};

use crate::common::{BATCH, corpus, plan, setup, tiny_model};
use crate::device::{EmulatedDevice, LaneOrder};
use crate::races::{CallLog, DeviceCall, LoggedDevice};
use crate::two;

/// A whole model's step up to its verdict, with a clock of the host's that must not be read.
pub fn executor_after_a_step<D: Device>(
    backend: CudaBackend<D>,
) -> BackendExecutor<CudaBackend<D>> {
    let model = tiny_model(Family::Llama);
    let plan = plan(&model, ScheduleKind::ZbH1, 1, Window::Zero);
    let setup = Arc::new(setup(model, plan, 2));
    let timer = LayerTimer::new(Box::new(|| unreachable!("the device is behind this clock")));
    let executor =
        BackendExecutor::new(&setup, StageIndex(0), backend).expect("it fits").with_timer(timer);
    let mut engine = StageEngine::begin_run(setup, StageIndex(0), executor, corpus());
    while matches!(engine.run_next(), EngineProgress::Ran(_)) {}
    engine.into_executor()
}

/// All emulated devices read one clock.
static CLOCK: Mutex<()> = Mutex::new(());

/// The emulated device's clock goes a microsecond on each time that it is read.
#[test]
fn every_layer_is_timed_by_the_clock_of_its_device() {
    let _alone = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, _]) = two(Precision::F32) else { return };
    let mut executor = executor_after_a_step(one);
    executor.compute_candidate(UpdateRequest { step: Step(0), number: 1, clip: 1.0 });
    let times = executor.times().layers.expect("the first turn is timed");
    let model = tiny_model(Family::Llama);
    let count = BATCH.microbatch_count;
    for class in LayerClass::ALL {
        let is_it = |spec: &&LayerSpec| LayerClass::of(spec.kind) == class;
        let layers = model_layers(&model).iter().filter(is_it).count() as u32;
        let check = |part, times_run: u32| {
            let count = layers * times_run;
            let spent = TimeTotal { count, us: f64::from(count) };
            assert_eq!(times.spent(class, part), spent, "{part:?} of {}", class.name());
        };
        check(LayerOp::Forward, count);
        check(LayerOp::InputGradient, count);
        check(LayerOp::WeightGradient, count);
        check(LayerOp::Candidate, 1);
        check(LayerOp::Commit, 0);
    }
}

/// The host's clock shows when a pass was enqueued, and the device's when it was done.
#[test]
fn every_operation_has_a_span_of_its_devices_clock() {
    let _alone = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, _]) = two(Precision::F32) else { return };
    let mut executor = executor_after_a_step(one);
    let model = tiny_model(Family::Llama);
    let program = plan(&model, ScheduleKind::ZbH1, 1, Window::Zero).program;
    let is_computed = |op: &&Op| matches!(op, Op::Compute(..));
    let count = program.ops(StageIndex(0)).iter().filter(is_computed).count();
    assert_eq!(executor.spans_recorded(), count);
    let spans = executor.spans();
    assert_eq!((spans.len(), executor.spans_recorded()), (count, 0));
    let is_in_order = |pair: &[Span]| pair[0].end_us <= pair[1].start_us;
    assert!(spans.windows(2).all(is_in_order), "one stream: {spans:?}");
    // Each layer that is timed lies between the two moments, and a moment takes a microsecond here.
    assert!(spans.iter().all(|span| span.end_us - span.start_us >= 2.0), "{spans:?}");
    let now_us = executor.device_now_us().expect("it has a clock");
    assert!(now_us > spans[count - 1].end_us);
    executor.compute_candidate(UpdateRequest { step: Step(0), number: 1, clip: 1.0 });
    executor.flush();
    assert_eq!(executor.spans().len(), 1, "each is returned once");
}

/// Each timestamp is a little work for a device: most turns go without.
#[test]
fn after_the_first_turns_one_of_many_is_timed() {
    let _alone = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, _]) = two(Precision::F32) else { return };
    let mut executor = executor_after_a_step(one);
    let mut turn = || {
        executor.compute_candidate(UpdateRequest { step: Step(0), number: 1, clip: 1.0 });
        let times = executor.times().layers;
        times.map(|times| times.spent(LayerClass::Head, LayerOp::Candidate).count)
    };
    let counts: Vec<_> = (0..34).map(|_| turn()).collect();
    let timed: Vec<usize> = (0..34).filter(|turn| counts[*turn].is_some()).collect();
    assert_eq!(timed, [0, 1, 2, 3, 4, 5, 6, 7, 16, 32]);
    assert!(
        counts.iter().flatten().all(|count| *count == 1),
        "each time is returned once: {counts:?}"
    );
}

/// The candidate that came with the sums of squares of a report lies in no span of the step's.
#[test]
fn a_candidate_is_computed_where_it_is_timed() {
    let _alone = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 8 << 30) else {
        return;
    };
    let log = Arc::new(CallLog::default());
    let backend = CudaBackend::with_graphs(LoggedDevice::new(device, &log, 0), GraphMode::Off);
    let mut executor = executor_after_a_step(backend);
    let request = UpdateRequest { step: Step(0), number: 1, clip: 1.0 };
    let mut candidates = || {
        let count = |calls: &[DeviceCall]| {
            let name = "adamw_candidate";
            let is_one =
                |call: &&DeviceCall| matches!(call, DeviceCall::Work { what, .. } if *what == name);
            calls.iter().filter(is_one).count()
        };
        let before = count(&log.calls());
        executor.square_sums_ahead(request);
        let _turn_ended = executor.times();
        executor.compute_candidate(request);
        executor.drop_candidate();
        count(&log.calls()) - before
    };
    let computed: Vec<bool> = (0..18).map(|_| candidates() > 0).collect();
    // Steps in turns 1 to 7 and 16 are timed; the reports of those in turns 8 and 17 were.
    let timed: Vec<usize> = (0..18).filter(|turn| computed[*turn]).map(|turn| turn + 1).collect();
    assert_eq!(timed, [1, 2, 3, 4, 5, 6, 7, 8, 16, 17]);
}
