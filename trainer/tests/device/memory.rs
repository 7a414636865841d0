//! What plans count of a device's memory is what a run takes of it: never less, and next to nothing
//! more.

use std::sync::Arc;

use zbelastic_consensus::validation::{NonfinitePolicy, Turn};
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{Backend, DeviceSizes, HostThreads};
use zbelastic_schedule::{MemoryOp, ScheduleKind, Window};
use zbelastic_trainer::elastic::{
    BackendStageFactory, DeviceUse, GradientPart, LayerCopy, LayerGradient, StageFactory,
};
use zbelastic_trainer::model::{
    Family, LlamaFeatures, MicrobatchShape, ModelConfig, Recompute, RecomputedOps,
};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, HeldBeside, Plan, PlanRequest, ReplicaCount, StageMemory, plan_memory,
};
use zbelastic_trainer::stage::BackendExecutor;
use zbelastic_types::{Attempt, Bytes, Generation, LayerId, StageIndex, Step};

use crate::common::{
    BATCH, StageCluster, corpus, featured_model, offloaded, plan, policy, setup, tiny_model,
};
use crate::device::{EmulatedDevice, LaneOrder};

/// What a count may be above what is taken, as a share: staging buffers that were never needed.
const SURPLUS_MAX: f64 = 0.02;

const ROOM_BYTES: u64 = 8 << 30;

fn device(precision: Precision) -> Option<Arc<EmulatedDevice>> {
    EmulatedDevice::new(precision, LaneOrder::Forwards, ROOM_BYTES)
}

fn counted(
    model: &ModelConfig,
    optimizer: OptimizerKind,
    plan: &Plan,
    precision: Precision,
) -> Vec<StageMemory> {
    plan_memory(&DeviceSizes::Cuda(precision), model, optimizer, plan, HeldBeside::default())
}

/// Trains under `plan`, each stage on a device of its own, and compares.
fn check(model: &ModelConfig, plan: &Plan, precision: Precision, seed: u64) {
    check_optimizer(model, OptimizerKind::AdamW, plan, (precision, seed));
}

/// The same with an optimizer.
fn check_optimizer(
    model: &ModelConfig,
    optimizer: OptimizerKind,
    plan: &Plan,
    (precision, seed): (Precision, u64),
) {
    let memory = counted(model, optimizer, plan, precision);
    let Some(devices) = memory.iter().map(|_| device(precision)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let mut setup = setup(model.clone(), plan.clone(), 2);
    setup.optimizer.kind = optimizer;
    let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
    let backend = |stage: StageIndex| CudaBackend::new(devices[stage.index()].clone());
    let cluster = StageCluster::on_backends(&setup, policy, seed, corpus(), backend);
    if seed % 2 == 1 {
        cluster.apart().run()
    } else {
        cluster.run()
    };
    for (stage, (memory, device)) in memory.iter().zip(&devices).enumerate() {
        let counted = memory.total().0;
        let taken = device.peak_allocated_bytes();
        let what = format!("{:?} {precision:?} stage {stage}", plan.program.kind);
        assert!(taken <= counted, "{what}: {taken} taken, {counted} counted");
        let surplus = (counted - taken) as f64 / taken as f64;
        assert!(surplus <= SURPLUS_MAX, "{what}: {taken} taken, {counted} counted");
    }
}

#[test]
fn a_run_takes_what_its_plan_counts() {
    for model in [tiny_model(Family::Gpt2), tiny_model(Family::Llama), featured_model()] {
        let plans = [
            plan(&model, ScheduleKind::GPipe, 1, Window::Zero),
            plan(&model, ScheduleKind::OneFOneB, 2, Window::Zero),
            plan(&model, ScheduleKind::ZbH1, 4, Window::One),
            plan(&model, ScheduleKind::ZbV, 2, Window::One),
        ];
        for (seed, plan) in (0..).zip(plans) {
            Precision::ALL.iter().for_each(|it| check(&model, &plan, *it, seed));
            // The other way of boundary tensors.
            check(&model, &plan, Precision::Bf16, seed + 1);
        }
    }
}

/// Muon's matrices on their way to a direction lie in scratch that is claimed for the largest of a stage.
#[test]
fn updates_by_muon_take_what_is_counted() {
    const PAGE_BYTES: u64 = 2 << 20;
    let muon = OptimizerKind::Muon { momentum: 0.95 };
    for (seed, family) in (0..).zip([Family::Gpt2, Family::Llama]) {
        let model = tiny_model(family);
        let plan = plan(&model, ScheduleKind::ZbH1, 2, Window::One);
        Precision::ALL.iter().for_each(|it| check_optimizer(&model, muon, &plan, (*it, seed)));
    }
    let (width, mlp_width) = (768, 3072);
    let model = ModelConfig { width, head_width: 192, mlp_width, ..tiny_model(Family::Gpt2) };
    let plan = plan(&model, ScheduleKind::ZbH1, 2, Window::One);
    let total = |optimizer| counted(&model, optimizer, &plan, Precision::Bf16)[0].total().0;
    let more = total(muon) - total(OptimizerKind::AdamW);
    // The matrix in floats and twice in halves, and two squares of its shorter side; in whole pages.
    let scratch = u64::from(width * mlp_width * (4 + 2 * 2) + 2 * width * width * 2);
    assert!(more.abs_diff(scratch) <= PAGE_BYTES, "{more}, expected {scratch}");
}

#[test]
fn passes_made_again_away_and_cut_take_what_is_counted() {
    let model = tiny_model(Family::Gpt2);
    let of_kind = |kind| plan(&model, kind, 2, Window::One);
    let some =
        Recompute::Selective(RecomputedOps { norm: true, attention: false, activation: true });
    let plans = [
        of_kind(ScheduleKind::ZbH1).with_recompute(Recompute::Full),
        of_kind(ScheduleKind::ZbH1).with_recompute(some),
        offloaded(&of_kind(ScheduleKind::ZbH1), 0.0),
        offloaded(&of_kind(ScheduleKind::ZbV), 0.0).with_recompute(some),
        of_kind(ScheduleKind::PoHalf),
        of_kind(ScheduleKind::Seq1F1B),
    ];
    assert!(plans[2].program.passes_with(MemoryOp::Offload).count() > 0);
    for (seed, plan) in (0..).zip(plans) {
        Precision::ALL.iter().for_each(|it| check(&model, &plan, *it, seed));
    }
}

/// What is beside buffers is little, but for the workspace.
#[test]
fn what_is_beside_buffers_is_a_few_percent() {
    // Staging buffers for boundary tensors, and a product on its way through the slope of GELU, are
    // the most of it.
    const BESIDE_MAX: f64 = 0.08;
    let model = ModelConfig {
        blocks: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        mlp_width: 3072,
        features: LlamaFeatures::NONE,
        vocabulary: 50_304,
        positions: 1024,
        ..tiny_model(Family::Gpt2)
    };
    let batch =
        BatchShape { microbatch: MicrobatchShape { sequences: 4, sequence_len: 1024 }, ..BATCH };
    let plan = Plan::new(PlanRequest {
        model: &model,
        batch,
        kind: ScheduleKind::ZbH1,
        chunks_per_stage: None,
        slice_count: None,
        stage_count: 4,
        replicas: ReplicaCount::ONE,
        window: Window::One,
    });
    let plan = plan.expect("legal");
    for memory in counted(&model, OptimizerKind::AdamW, &plan, Precision::Bf16) {
        let beside = memory.messages.0 + memory.fixed.0 - DeviceSizes::WORKSPACE_BYTES;
        let share = beside as f64 / memory.total().0 as f64;
        assert!(share <= BESIDE_MAX, "{memory:?}: {share}");
    }
}

/// A copy takes what is counted for it, also when its sums are computed and its fingerprint.
#[test]
fn a_copy_takes_what_is_counted() {
    let model = tiny_model(Family::Llama);
    let Some(device) = device(Precision::Bf16) else { return };
    let of = |copies| {
        let plan = plan(&model, ScheduleKind::OneFOneB, 2, Window::Zero);
        let adamw = OptimizerKind::AdamW;
        plan_memory(
            &DeviceSizes::Cuda(Precision::Bf16),
            &model,
            adamw,
            &plan,
            HeldBeside::copies(copies),
        )
    };
    assert_eq!(of(0)[0].copies, Bytes(0));
    let setup = setup(model.clone(), plan(&model, ScheduleKind::OneFOneB, 2, Window::Zero), 1);
    let backend = CudaBackend::new(device.clone());
    let maker = BackendStageFactory {
        model: model.clone(),
        optimizer: setup.optimizer.clone(),
        step_count: 1,
        weights: setup.weights.clone(),
        drawn: Arc::default(),
        device: |_: DeviceUse| backend.sibling(),
        host: HostThreads::one(),
        store: None,
        clock: None,
    };
    let layers: Vec<LayerId> = setup
        .plan
        .chunks_of(StageIndex(1))
        .flat_map(|(_, layers)| layers.ids().map(LayerId))
        .collect();
    let mut copies = Vec::new();
    for layer in layers {
        let image = maker.initial(layer);
        let mut copy = maker.copy(&image).expect("memory");
        let turn = Turn { generation: Generation(1), step: Step(0), attempt: Attempt(0) };
        let gradient = LayerGradient { turn, layer, g: vec![1.0; image.w.len()].into() };
        copy.hold(&GradientPart::whole(Arc::new(gradient))).expect("its own");
        assert_eq!(copy.held(), Some(turn));
        copy.sums();
        copy.fingerprint().expect("no fault");
        copies.push(copy);
    }
    let taken = device.peak_allocated_bytes() - DeviceSizes::WORKSPACE_BYTES;
    assert_eq!(Bytes(taken), of(1)[0].copies);
}

/// What is reported where memory does not hold a stage: what for, part by part, and nothing is
/// taken.
#[test]
fn a_stage_that_memory_does_not_hold_is_refused_part_by_part() {
    let model = tiny_model(Family::Gpt2);
    let plan = plan(&model, ScheduleKind::OneFOneB, 2, Window::Zero);
    let needed = counted(&model, OptimizerKind::AdamW, &plan, Precision::F32)[0];
    let needed_bytes = needed.total().0 - DeviceSizes::WORKSPACE_BYTES;
    let build = |memory_bytes| {
        let device = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, memory_bytes)?;
        let setup = setup(model.clone(), plan.clone(), 1);
        Some((
            BackendExecutor::new(&setup, StageIndex(0), CudaBackend::new(device.clone())),
            device,
        ))
    };
    let Some((executor, _)) = build(needed_bytes) else { return };
    assert!(executor.is_ok_and(|executor| executor.backend().fault().is_none()), "just enough");
    let (executor, device) = build(needed_bytes - 1).expect("there is a compiler");
    let error = executor.err().expect("a byte too little");
    assert_eq!(error.bytes, needed_bytes);
    assert_eq!(error.shortage.map(|shortage| shortage.free_bytes), Some(needed_bytes - 1));
    let parts = error.parts.iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert_eq!(parts, needed_bytes, "its parts are all of it");
    let text = error.to_string();
    let state = format!("({} for weights, packed weights, gradients and moments, ", needed.state.0);
    for word in [&state[..], "for what passes keep", "for boundary tensors", "schedule.max_mem"] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
    drop(device);
}
