//! Text from a model: the same logits as training computes, the same text from the same seed.

mod common;

use common::{BATCH, corpus, plan, setup, tiny_model};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::TokenBatch;
use zbelastic_trainer::model::{Family, ModelConfig, initial_weights, model_layers};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::sample::{Sampler, SamplingConfig};
use zbelastic_types::Step;

fn cpu() -> CpuBackend {
    CpuBackend::new(1).expect("one thread")
}

fn weights(model: &ModelConfig) -> Vec<Vec<f32>> {
    model_layers(model).iter().map(|spec| initial_weights(spec, 3)).collect()
}

/// The likeliest token after the first `seen` of a sequence, by the serial reference.
fn likeliest(model: &ModelConfig, tokens: &[u32]) -> u32 {
    let setup = setup(model.clone(), plan(model, ScheduleKind::GPipe, 1, Window::Zero), 1);
    let mut run = SerialReference::new(&setup, cpu(), corpus()).expect("memory");
    let rows = BATCH.microbatch.rows();
    let mut inputs = tokens.to_vec();
    inputs.resize(rows, 1);
    let logits = run.logits(&TokenBatch::new(inputs, vec![0; rows]));
    let vocabulary = model.vocabulary as usize;
    let row = &logits[(tokens.len() - 1) * vocabulary..tokens.len() * vocabulary];
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|logit| *logit == most).expect("one is the largest") as u32
}

#[test]
fn a_cold_draw_is_the_likeliest_token() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let mut sampler = Sampler::new(cpu(), &model, 8, &weights(&model)).expect("memory");
        for prompt in [&[5][..], &[7, 99, 3]] {
            let draw = SamplingConfig { temperature: 1e-6, seed: 1 };
            let found = sampler.continue_text(prompt, 1, draw);
            assert_eq!(found, [likeliest(&model, prompt)], "{family:?}");
        }
    }
}

#[test]
fn text_is_a_function_of_the_seed() {
    let model = tiny_model(Family::Llama);
    let sample = |seed| {
        let mut sampler = Sampler::new(cpu(), &model, 8, &weights(&model)).expect("memory");
        sampler.continue_text(&[5, 6], 30, SamplingConfig { temperature: 1.0, seed })
    };
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
    assert_eq!(sample(1).len(), 30);
}

#[test]
fn a_step_in_place_yields_the_bits_of_the_plain_one() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let setup = setup(model.clone(), plan(&model, ScheduleKind::GPipe, 1, Window::Zero), 4);
        let mut plain = SerialReference::new(&setup, cpu(), corpus()).expect("memory");
        let mut in_place = SerialReference::new(&setup, cpu(), corpus()).expect("memory");
        for step in (0..4).map(Step) {
            assert_eq!(plain.step(step, false), in_place.step_in_place(step));
        }
        assert_eq!(plain.digest(), in_place.digest());
    }
}
