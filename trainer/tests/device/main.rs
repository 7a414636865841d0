//! The pipeline on a device's backend: the same bits for any partition, schedule and window as one
//! process has there, in both precisions, and about the losses of a processor.
//!
//! The device is emulated, as in the tests of the kernels: what is tried is which buffers hold
//! activations and which sums, and that no result depends on where it is computed.

#![cfg(all(target_arch = "x86_64", unix))]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../kernels/tests/emulated/compile.rs"]
mod compile;
#[path = "../../../kernels/tests/emulated/device.rs"]
#[allow(dead_code)]
mod device;
mod order;
#[path = "../../../kernels/tests/emulated/races.rs"]
mod races;

use common::{Cluster, corpus, offloaded, plan, plan_of_chunks, policy, setup, tiny_model};
use device::{Emulated, devices};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{Backend, CpuBackend};
use zbelastic_schedule::{Memory, ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, ModelConfig, Recompute, RecomputedOps};
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::reference::Reference;
use zbelastic_types::{StageIndex, Step};

const STEPS: u64 = 3;

/// The digest of a serial run over the same slices, and its losses.
fn serial<B: Backend>(model: &ModelConfig, plan: Plan, backend: B) -> (StateDigest, Vec<f64>) {
    let setup = setup(model.clone(), plan, STEPS);
    let mut run = Reference::new(&setup, backend, corpus()).expect("memory");
    let losses = (0..STEPS).map(|step| run.step(Step(step), false).loss).collect();
    (run.digest(), losses)
}

/// Two devices that run everything in opposite orders; none where there is no C++ compiler.
fn two(precision: Precision) -> Option<[CudaBackend<Emulated>; 2]> {
    devices(precision).try_into().ok()
}

fn alone(model: &ModelConfig) -> Plan {
    plan(model, ScheduleKind::GPipe, 1, Window::Zero)
}

/// The digest of a cluster whose stages run everything in opposite orders.
fn piped(model: &ModelConfig, plan: Plan, (precision, seed): (Precision, u64)) -> StateDigest {
    let setup = setup(model.clone(), plan, STEPS);
    let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
    let backend = |stage: StageIndex| {
        let [one, other] = two(precision).expect("there was a compiler");
        if stage.0.is_multiple_of(2) { one } else { other }
    };
    let cluster = Cluster::on_backends(&setup, policy, seed, corpus(), backend);
    // By way of the host or from device to device: the same numbers.
    if seed % 2 == 1 { cluster.apart().run().digest } else { cluster.run().digest }
}

fn check(family: Family, precision: Precision, tolerance: f64) {
    let model = tiny_model(family);
    let Some([one, other]) = two(precision) else { return };
    let (expected, losses) = serial(&model, alone(&model), one);
    assert_eq!(serial(&model, alone(&model), other), (expected, losses.clone()), "in any order");
    let processor = CpuBackend::new(1).expect("one thread");
    let (on_processor, of_processor) = serial(&model, alone(&model), processor);
    assert_ne!(expected, on_processor, "a device has a definition of its own");
    for (step, (found, loss)) in losses.iter().zip(&of_processor).enumerate() {
        let far = (found - loss).abs();
        assert!(far <= tolerance * loss, "{family:?} {precision:?} step {step}: {found} {loss}");
    }
    let orders = [
        (ScheduleKind::OneFOneB, 2, Window::Zero),
        (ScheduleKind::ZbH1, 4, Window::One),
        (ScheduleKind::ZbV, 2, Window::One),
    ];
    for (seed, (kind, stage_count, window)) in (0..).zip(orders) {
        let found = piped(&model, plan(&model, kind, stage_count, window), (precision, seed));
        assert_eq!(found, expected, "{family:?} {precision:?} {kind} {stage_count}");
    }
}

#[test]
fn floats_train_to_the_bits_of_one_device() {
    check(Family::Gpt2, Precision::F32, 1e-5);
    check(Family::Llama, Precision::F32, 1e-5);
}

#[test]
fn halves_train_to_the_bits_of_one_device() {
    check(Family::Gpt2, Precision::Bf16, 1e-2);
    check(Family::Llama, Precision::Bf16, 1e-2);
}

/// Passes that are made again or leave give up activations and get them back as they were; slices read
/// keys and values of others.
#[test]
fn halves_are_given_up_made_again_and_cut() {
    let (model, precision) = (tiny_model(Family::Llama), Precision::Bf16);
    let Some([one, other]) = two(precision) else { return };
    let (expected, _) = serial(&model, alone(&model), one);
    let of_kind = |kind| plan(&model, kind, 2, Window::One);
    let of_four = |kind| plan_of_chunks(&model, kind, Some(2), 4, Window::One);
    let again = of_kind(ScheduleKind::ZbH1);
    let some = RecomputedOps { norm: true, attention: false, activation: true };
    let plans = [
        again.clone().with_recompute(Recompute::Full),
        again.with_recompute(Recompute::Selective(some)),
        of_kind(ScheduleKind::PoHalf),
    ];
    for (seed, plan) in (0..).zip(plans) {
        assert_eq!(piped(&model, plan, (precision, seed)), expected, "{seed}");
    }
    for precision in Precision::ALL {
        let Some([one, _]) = two(precision) else { return };
        let (expected, _) = serial(&model, alone(&model), one);
        let some = Recompute::Selective(some);
        let plans = [
            offloaded(&of_kind(ScheduleKind::ZbH1), 0.0),
            offloaded(&of_kind(ScheduleKind::ZbV), 0.0).with_recompute(some),
            of_four(ScheduleKind::PoHalf),
            of_four(ScheduleKind::PoSelective),
            of_four(ScheduleKind::PoFull).with_recompute(Recompute::Full),
        ];
        for plan in plans {
            let kind = plan.program.kind;
            let copies = plan.program.passes_with(Memory::Offload).count();
            assert!(copies > 0, "{kind}");
            assert_eq!(piped(&model, plan, (precision, 4)), expected, "{precision:?} {kind}");
        }
    }
    let sliced = of_kind(ScheduleKind::Seq1F1B);
    let (expected, _) = serial(&model, sliced.clone(), other);
    assert_eq!(piped(&model, sliced, (precision, 3)), expected);
}
