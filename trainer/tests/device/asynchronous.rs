//! Asynchronous schedules on devices: the bits of their references on one device, in both
//! precisions, for every partition that processors are tried with.

use std::ops::Range;
use std::sync::Arc;

use zbelastic_kernels::DeviceFault;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_schedule::asynchronous::{AsyncKind, AsyncOp};
use zbelastic_trainer::asynchronous::{AsyncOutput, AsyncProgress, AsyncSetup, AsyncStage};
use zbelastic_types::StageIndex;

use crate::device::{EmulatedDevice, LaneOrder};
use crate::races::{CallLog, DeviceCall, LoggedDevice, first_race};
use crate::runs::{
    BackendProvider, check_against_replay, check_against_serial, found_runs, runs_of, setup,
    struck_runs, text, vertical_syncs, warm_ups,
};

/// Devices of one precision; those of neighbours run everything in opposite orders.
struct EmulatedBackends(Precision);

impl BackendProvider for EmulatedBackends {
    type Backend = CudaBackend<EmulatedDevice>;
    const ALONE: &'static [(u32, u64)] = &[(1, 1)];

    fn backend(&self, stage: StageIndex, way: u32) -> CudaBackend<EmulatedDevice> {
        let is_even = (stage.0 + way).is_multiple_of(2);
        let order = if is_even { LaneOrder::Forwards } else { LaneOrder::Backwards };
        let device = EmulatedDevice::new(self.0, order, 8 << 30).expect("there was a compiler");
        CudaBackend::new(device)
    }
}

/// Devices of each precision; none where there is no C++ compiler.
fn places() -> Vec<EmulatedBackends> {
    let has_devices = |precision: &Precision| crate::two(*precision).is_some();
    Precision::ALL.into_iter().filter(has_devices).map(EmulatedBackends).collect()
}

fn check(setups: &[AsyncSetup]) {
    for place in places() {
        setups.iter().for_each(|setup| check_against_serial(&place, setup));
    }
}

#[test]
fn pipedream_equals_its_reference() {
    check(&runs_of(AsyncKind::PipeDream));
    check(&vertical_syncs().into_iter().map(|[vertical, _]| vertical).collect::<Vec<_>>());
}

#[test]
fn two_buffers_equal_their_reference() {
    check(&runs_of(AsyncKind::PipeDream2Bw));
}

#[test]
fn pipemare_equals_its_reference() {
    check(&runs_of(AsyncKind::PipeMare));
    check(&warm_ups());
}

#[test]
fn xpipe_equals_its_reference() {
    check(&runs_of(AsyncKind::XPipe));
}

#[test]
fn spectrain_equals_its_reference() {
    check(&runs_of(AsyncKind::SpecTrain));
}

#[test]
fn wpipe_equals_its_reference() {
    check(&runs_of(AsyncKind::WPipe));
}

#[test]
fn avgpipe_equals_its_reference() {
    check(&runs_of(AsyncKind::AvgPipe));
}

#[test]
fn ampnet_equals_a_replay_of_the_order_it_found() {
    for place in places() {
        found_runs().iter().for_each(|setup| check_against_replay(&place, setup));
    }
}

#[test]
fn an_update_that_is_not_finite_is_left_out_as_in_the_reference() {
    check(&struck_runs());
}

/// An operation, and which of the calls are its.
type RecordedOp = (AsyncOp, Range<usize>);

/// The calls of the devices of a run, and where in them each operation that is no update begins and
/// ends; none where there is no C++ compiler.
fn recorded_ops(setup: &AsyncSetup) -> Option<(Vec<DeviceCall>, Vec<RecordedOp>)> {
    let log = Arc::new(CallLog::default());
    let shared = Arc::new(setup.clone());
    let text = text(setup);
    let stage = |stage| {
        let inner = EmulatedDevice::new(Precision::Bf16, LaneOrder::Forwards, 8 << 30)?;
        let backend = CudaBackend::new(LoggedDevice::new(inner, &log, stage as usize));
        let stage = AsyncStage::new(shared.clone(), StageIndex(stage), backend, text.clone());
        Some(stage.expect("memory holds it"))
    };
    let stage_count = setup.plan.program.placement.stage_count();
    let mut stages = (0..stage_count).map(stage).collect::<Option<Vec<_>>>()?;
    let mut ops = Vec::new();
    while !stages.iter().all(AsyncStage::is_finished) {
        for index in 0..stages.len() {
            let before = log.calls().len();
            let progress = stages[index].run_next();
            // At the end of a stage its last losses are read.
            let is_update = matches!(progress, AsyncProgress::Ran(AsyncOp::Step(..)));
            if let AsyncProgress::Ran(op) = progress
                && !is_update
                && !stages[index].is_finished()
            {
                ops.push((op, before..log.calls().len()));
            }
            while let Some(output) = stages[index].poll_output() {
                if let AsyncOutput::Frame { to, frame } = output {
                    stages[to.index()].handle(frame);
                }
            }
        }
    }
    Some((log.calls(), ops))
}

/// The host waits for sums of squares and for nothing else: neither for a pass nor for a version.
#[test]
fn nothing_but_an_update_waits_for_a_device() {
    let kinds = AsyncKind::ALL.map(|kind| (kind, if kind == AsyncKind::WPipe { 3 } else { 2 }));
    for (kind, microbatch_count) in kinds {
        let Some((calls, ops)) = recorded_ops(&setup(kind, (2, 4, microbatch_count))) else {
            return;
        };
        if let Some(race) = first_race(&calls, |_| false) {
            panic!("{kind}: {race}");
        }
        for (op, range) in ops {
            let is_wait = |call: &&DeviceCall| {
                matches!(call, DeviceCall::HostWait { .. } | DeviceCall::Synchronize { .. })
            };
            let waits = calls[range].iter().filter(is_wait).count();
            assert_eq!(waits, 0, "{kind}: {op}");
        }
    }
}

/// NaN of a device that gave up would be taken for an update that is left out.
#[test]
fn nothing_leaves_an_asynchronous_stage_whose_device_gave_up() {
    for operations in [0, 1, 4, 7] {
        let setup = setup(AsyncKind::PipeDream, (1, 4, 1));
        let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 8 << 30) else {
            return;
        };
        let backend = CudaBackend::new(device.clone());
        let text = text(&setup);
        let stage = AsyncStage::new(Arc::new(setup), StageIndex(0), backend, text);
        let mut stage = stage.expect("memory holds it");
        for _ in 0..operations {
            assert!(matches!(stage.run_next(), AsyncProgress::Ran(_)));
        }
        std::iter::from_fn(|| stage.poll_output()).for_each(drop);
        device.fail();
        let fault = loop {
            let progress = stage.run_next();
            assert!(stage.poll_output().is_none(), "after {operations}");
            match progress {
                AsyncProgress::Ran(_) => {}
                AsyncProgress::Faulted(fault) => break fault,
                AsyncProgress::Blocked | AsyncProgress::Finished => {
                    panic!("after {operations}: {progress:?}")
                }
            }
        };
        assert!(matches!(fault, DeviceFault::Sticky { code: 700, .. }), "{fault:?}");
    }
}
