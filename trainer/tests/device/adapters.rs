//! Adapters in bf16. The weights that passes read have the adapters in them, rounded as a whole
//! (docs/decisions/0074): a change of a weight below half of its last place is read as none. What that
//! costs is compared with f32.

use zbelastic_kernels::Backend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_trainer::model::{Family, LoraInit, LoraScaling, LoraSettings, ModelConfig};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_types::Step;

use super::common::{corpus, setup, tiny_model};
use super::{EmulatedDevices, alone, check, two};

/// Adapters of all linear layers.
pub fn adapted(family: Family) -> ModelConfig {
    let targets = vec!["all-linear".to_owned()];
    let settings = LoraSettings {
        rank: 3,
        alpha: 6.0,
        scaling: LoraScaling::Standard,
        init: LoraInit::Kaiming,
        targets,
    };
    settings.adapt(&tiny_model(family)).expect("a rank of 3 fits")
}

#[test]
fn adapters_train_to_the_bits_of_one_device() {
    for family in [Family::Gpt2, Family::Llama] {
        check::<EmulatedDevices>(&adapted(family), Precision::Bf16, 1e-2);
    }
}

/// The loss of text that was held out, before a run and behind it.
fn held_out<B: Backend>(model: &ModelConfig, backend: B) -> [f64; 2] {
    const STEPS: u64 = 30;
    let mut setup = setup(model.clone(), alone(model), STEPS);
    setup.optimizer.lr = 0.02;
    let mut run = SerialReference::new(&setup, backend, corpus()).expect("memory");
    let loss = |run: &mut SerialReference<B, _>| {
        run.held_out_loss(4).expect("the device works").expect("some text is held out")
    };
    let before = loss(&mut run);
    for step in 0..STEPS {
        run.step(Step(step), false);
    }
    [before, loss(&mut run)]
}

#[test]
fn adapters_in_halves_learn_what_those_in_floats_do() {
    let model = adapted(Family::Gpt2);
    let Some([floats, _]) = two(Precision::F32) else { return };
    let Some([halves, _]) = two(Precision::Bf16) else { return };
    let [before, floats] = held_out(&model, floats);
    let [before_halves, halves] = held_out(&model, halves);
    println!("{before} to {floats}, in halves {before_halves} to {halves}");
    assert!((before_halves - before).abs() < 1e-2 * before);
    assert!(floats < before - 0.1, "{before} to {floats}");
    let missed = (halves - floats).abs() / (before - floats);
    assert!(missed < 0.05, "{halves} in halves, {floats} in floats");
}
