//! Muon on devices: its products are the device's, so its bits are too. They are those of one device for any
//! partition, order and window, whether candidates are dropped, clipped or run again, and for copies.

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{Backend, CpuBackend};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::elastic::DeviceUse;
use zbelastic_trainer::model::{Family, ModelConfig, frozen_tensors, model_layers};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{StageIndex, Step};

use super::common::{
    PipelineOutcome, StageCluster, corpus, decay_rates, featured_model, plan, policy, setup,
    tiny_model,
};
use super::{DeviceProvider, EmulatedDevices, alone, two};

const STEPS: u64 = 4;
const MUON: OptimizerKind = OptimizerKind::Muon { momentum: 0.95 };

fn muon_setup(model: &ModelConfig, plan: Plan) -> StageSetup {
    let mut setup = setup(model.clone(), plan, STEPS);
    setup.optimizer.kind = MUON;
    setup
}

/// A serial run without one of its steps, if one is named, and its losses.
fn serial<B: Backend>(
    setup: &StageSetup,
    skipped: Option<u64>,
    backend: B,
) -> (StateDigest, Vec<f64>) {
    let mut run = SerialReference::new(setup, backend, corpus()).expect("memory");
    let losses = (0..STEPS).map(|step| run.step(Step(step), skipped == Some(step)).loss).collect();
    (run.digest(), losses)
}

/// Stages run everything in opposite orders.
fn cluster(setup: &StageSetup, precision: Precision, seed: u64) -> PipelineOutcome {
    let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
    let backend = |stage: StageIndex| {
        let [one, other] = EmulatedDevices::two(precision).expect("they were there before");
        if stage.0.is_multiple_of(2) { one } else { other }
    };
    let cluster = StageCluster::on_backends(setup, policy, seed, corpus(), backend);
    let Some([copies, _]) = two(precision) else { panic!("there was a compiler") };
    cluster.witnessed_by(setup, |_: DeviceUse| copies.sibling()).run()
}

fn check(model: &ModelConfig, precision: Precision, tolerance: f64) {
    let Some([one, other]) = two(precision) else { return };
    let whole = muon_setup(model, alone(model));
    let (expected, losses) = serial(&whole, None, one);
    assert_eq!(serial(&whole, None, other).0, expected, "in any order");
    let (of_processor, on_processor) =
        serial(&whole, None, CpuBackend::new(1).expect("one thread"));
    assert_ne!(of_processor, expected, "a device has a definition of its own");
    for (step, (found, loss)) in losses.iter().zip(&on_processor).enumerate() {
        let far = (found - loss).abs();
        assert!(far <= tolerance * loss, "{model:?} {precision:?} step {step}: {found} {loss}");
    }
    let orders = [
        (ScheduleKind::OneFOneB, 2, Window::Zero),
        (ScheduleKind::ZbH1, 4, Window::One),
        (ScheduleKind::ZbV, 2, Window::One),
    ];
    for (seed, (kind, stage_count, window)) in (0..).zip(orders) {
        let mut setup = muon_setup(model, plan(model, kind, stage_count, window));
        // Copies of each layer, on devices too, report what they have after each step.
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let outcome = cluster(&setup, precision, seed);
        assert_eq!(outcome.digest, expected, "{model:?} {precision:?} {kind} {stage_count}");
        assert_eq!(outcome.witnessed, model_layers(model).len() * STEPS as usize);
    }
}

#[test]
fn muon_trains_to_the_bits_of_one_device() {
    check(&tiny_model(Family::Gpt2), Precision::F32, 1e-4);
    check(&featured_model(), Precision::F32, 1e-4);
    check(&tiny_model(Family::Gpt2), Precision::Bf16, 2e-2);
    check(&tiny_model(Family::Llama), Precision::Bf16, 2e-2);
}

/// Verdicts that drop candidates, clip them and leave a step out; queries or a whole matrix frozen, and
/// matrices that decay by rates of their own.
#[test]
fn candidates_of_muon_are_dropped_without_a_trace() {
    let frozen = |family, patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|of| (*of).to_owned()).collect();
        let model = tiny_model(family);
        let frozen = frozen_tensors(&model, &patterns).expect("there are such");
        model.freezing(frozen)
    };
    let some = ["layers.0", "layers.*.attn.q", "layers.*.norm2", "layers.1.mlp.down"];
    for (model, precision) in [
        (tiny_model(Family::Llama), Precision::F32),
        (tiny_model(Family::Gpt2), Precision::Bf16),
        (frozen(Family::Llama, &some), Precision::Bf16),
    ] {
        let Some([one, other]) = two(precision) else { return };
        let mut setup = muon_setup(&model, alone(&model));
        if model.family == Family::Llama {
            setup.optimizer.decay_rates = decay_rates(&model);
        }
        let mut run = SerialReference::new(&setup, one, corpus()).expect("memory");
        setup.clip_norm = Some(0.9 * run.step(Step(0), false).norm);
        let (expected, _) = serial(&setup, Some(1), other);
        setup.plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
        (setup.attest_every, setup.copies_wanted) = (1, true);
        let injection = "step=2,tensor=layers.3.mlp.down,value=nan";
        setup.injections = vec![injection.parse().expect("a legal injection")];
        let outcome = cluster(&setup, precision, 5);
        assert!(outcome.rollbacks > 0 && outcome.verdicts("clip") > 0, "candidates are dropped");
        assert_eq!(outcome.verdicts("skip"), 1);
        assert_eq!(outcome.digest, expected, "{model:?} {precision:?}");
    }
}

/// The step in place has the bits of candidate and commit, and the loss falls.
#[test]
fn muon_learns_in_place_as_it_does_in_halves() {
    let model = tiny_model(Family::Llama);
    for precision in Precision::ALL {
        let Some([one, other]) = two(precision) else { return };
        let mut setup = muon_setup(&model, alone(&model));
        setup.step_count = 12;
        setup.optimizer.lr = 0.02;
        let run = |backend, is_in_place: bool| {
            let mut run = SerialReference::new(&setup, backend, corpus()).expect("memory");
            let losses = (0..12).map(|step| match is_in_place {
                true => run.step_in_place(Step(step)).loss,
                false => run.step(Step(step), false).loss,
            });
            let losses: Vec<f64> = losses.collect();
            (run.digest(), losses)
        };
        let (digest, losses) = run(one, false);
        assert_eq!(run(other, true).0, digest);
        assert!(losses[11] < losses[0] - 0.2, "{precision:?}: {losses:?}");
    }
}
