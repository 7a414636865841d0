//! That whatever the streams of devices share has an order: whole runs, written down and gone
//! through.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::validation::{NonfinitePolicy, Turn};
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::device::Stream;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::elastic::{LayerImage, PendingImage};
use zbelastic_trainer::model::Family;
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::stage::{SealedState, UpdateExecutor, UpdateRequest};
use zbelastic_types::{LayerId, StageIndex, Step};

use crate::common::{StageCluster, corpus, offloaded, plan, policy, setup, tiny_model};
use crate::device::{EmulatedDevice, LaneOrder};
use crate::races::{CallLog, DeviceCall, LoggedDevice, WaitKind, first_race, waits};
use crate::times::executor_after_a_step;

/// The bits of gradients.
type GradientBits = BTreeMap<(Turn, LayerId), Vec<u32>>;

/// The calls of the devices of a cluster in a run, a device a stage, in which a step is run again;
/// none where there is no C++ compiler.
fn recorded_calls(plan: Plan, precision: Precision, is_apart: bool) -> Vec<DeviceCall> {
    recorded_with_copies(plan, precision, is_apart, false).0
}

/// The same with the gradients that were sent for copies, if `copies_wanted`.
fn recorded_with_copies(
    plan: Plan,
    precision: Precision,
    is_apart: bool,
    copies_wanted: bool,
) -> (Vec<DeviceCall>, GradientBits) {
    let model = tiny_model(Family::Gpt2);
    let mut setup = setup(model, plan, 2);
    setup.copies_wanted = copies_wanted;
    let struck = "step=1,tensor=layers.2.mlp.up,value=nan";
    setup.injections = vec![struck.parse().expect("a legal injection")];
    let policy = policy(setup.clip_norm, NonfinitePolicy::Replay);
    let Some(_) = EmulatedDevice::new(precision, LaneOrder::Forwards, 0) else {
        return (Vec::new(), GradientBits::new());
    };
    let log = Arc::new(CallLog::default());
    let backend = |stage: StageIndex| {
        let inner =
            EmulatedDevice::new(precision, LaneOrder::Forwards, 8 << 30).expect("made above");
        CudaBackend::new(LoggedDevice::new(inner, &log, stage.index()))
    };
    let cluster = StageCluster::on_backends(&setup, policy, 5, corpus(), backend);
    let outcome = if is_apart { cluster.apart().run() } else { cluster.run() };
    assert_eq!(outcome.verdicts("replay"), 1);
    (log.calls(), outcome.gradients)
}

/// The kinds of waits among the calls. No two uses of memory lack an order, and they would if the
/// waits of a kind that is listed as needed were left out.
fn check(calls: &[DeviceCall], needed: &[WaitKind]) {
    if let Some(race) = first_race(calls, |_| false) {
        panic!("{race}");
    }
    let mut kinds: BTreeMap<WaitKind, Vec<usize>> = BTreeMap::new();
    for (at, kind) in waits(calls) {
        kinds.entry(kind).or_default().push(at);
    }
    for kind in needed {
        let places = kinds.get(kind).unwrap_or_else(|| panic!("no wait of {kind:?}"));
        let race = first_race(calls, |at| places.contains(&at));
        assert!(race.is_some(), "{} waits of {kind:?} may be left out", places.len());
        let alone = |at: &&usize| first_race(calls, |left_out| left_out == **at).is_some();
        let sample: Vec<&usize> = places.iter().step_by(places.len().div_ceil(12)).collect();
        let caught = sample.iter().copied().filter(alone).count();
        println!("{kind:?}: {} waits, {caught} of {} needed alone", places.len(), sample.len());
    }
}

const BETWEEN_STAGES: WaitKind = (Some(Stream::Compute), Stream::Compute, true);

#[test]
fn boundary_tensors_are_written_before_they_are_read_and_read_before_the_next() {
    let model = tiny_model(Family::Gpt2);
    for (kind, stage_count) in [(ScheduleKind::ZbH1, 4), (ScheduleKind::ZbV, 2)] {
        let calls =
            recorded_calls(plan(&model, kind, stage_count, Window::One), Precision::Bf16, false);
        if calls.is_empty() {
            return;
        }
        check(&calls, &[BETWEEN_STAGES]);
    }
}

/// Tensors that come from another process are copied in beside the work.
#[test]
fn what_arrives_is_there_before_it_is_read() {
    let model = tiny_model(Family::Gpt2);
    let calls =
        recorded_calls(plan(&model, ScheduleKind::ZbH1, 2, Window::One), Precision::Bf16, true);
    if calls.is_empty() {
        return;
    }
    let kinds = [
        // Goes out when it has been computed, and the host waits for it.
        (Some(Stream::Download), Stream::Compute, false),
        (None, Stream::Download, false),
        // Comes in when its buffer has been read, and the work waits for it.
        (Some(Stream::Upload), Stream::Compute, false),
        (Some(Stream::Compute), Stream::Upload, false),
        // A loss is read when it is there.
        (None, Stream::Compute, false),
    ];
    check(&calls, &kinds);
}

#[test]
fn what_leaves_is_read_before_its_memory_is_used_again_and_back_before_it_is_read() {
    let model = tiny_model(Family::Gpt2);
    let all = offloaded(&plan(&model, ScheduleKind::ZbH1, 2, Window::One), 0.0);
    let calls = recorded_calls(all, Precision::F32, false);
    if calls.is_empty() {
        return;
    }
    let kinds = [
        BETWEEN_STAGES,
        // Leaves when it has been computed, and what comes next waits until it has left.
        (Some(Stream::Download), Stream::Compute, false),
        (Some(Stream::Compute), Stream::Download, false),
        // Comes back when it is there and its place is free, and is waited for.
        (Some(Stream::Upload), Stream::Download, false),
        (Some(Stream::Compute), Stream::Upload, false),
    ];
    // A copy out waits for the copy in that used its place before as well. That is implied wherever
    // what came back was used, which all of it was here.
    check(&calls, &kinds);
}

/// Gradients leave for copies while the next step begins, and are what they were.
#[test]
fn gradients_that_leave_are_read_before_they_are_written_over() {
    let model = tiny_model(Family::Gpt2);
    let of = |stage_count| {
        let plan = plan(&model, ScheduleKind::ZbH1, stage_count, Window::One);
        recorded_with_copies(plan, Precision::Bf16, false, true)
    };
    let (calls, found) = of(2);
    if calls.is_empty() {
        return;
    }
    let kinds = [
        // The W that writes over it waits until it has left.
        (Some(Stream::Compute), Stream::Download, false),
        // The host waits before it sends it.
        (None, Stream::Download, false),
    ];
    check(&calls, &kinds);
    // That it leaves when it has been computed is implied: its sum of squares was read before.
    // Two steps, one of which is run twice.
    assert_eq!(found.len(), 3 * zbelastic_trainer::model::model_layers(&model).len());
    assert!(of(1).1 == found, "the bits of one stage");
}

/// States leave for a worker that keeps the stage on standby while the step goes on, and are those
/// that it began with.
#[test]
fn states_that_leave_are_read_before_a_commit_writes_over_them() {
    let Some(device) = EmulatedDevice::new(Precision::Bf16, LaneOrder::Forwards, 8 << 30) else {
        return;
    };
    let log = Arc::new(CallLog::default());
    let mut executor = executor_after_a_step(CudaBackend::new(LoggedDevice::new(device, &log, 0)));
    let before = executor.images();
    let layers: Vec<LayerId> = before.iter().map(|image| image.layer).collect();
    let pending: Vec<PendingImage> =
        layers.into_iter().filter_map(|layer| executor.pending_image(layer)).collect();
    let request = UpdateRequest { step: Step(0), number: 1, clip: 1.0 };
    executor.compute_candidate(request);
    executor.commit(request);
    assert_eq!(pending.len(), before.len());
    for (found, expected) in pending.iter().zip(&before) {
        let parts = |image: &LayerImage| [&image.w, &image.m, &image.v].map(|part| part.to_vec());
        let found = found.wait().expect("no fault");
        assert!(parts(&found) == parts(expected), "{}", found.layer);
    }
    // COMMIT waits until they have left, and the host waits before it reads them.
    check(
        &log.calls(),
        &[(Some(Stream::Compute), Stream::Download, false), (None, Stream::Download, false)],
    );
}
