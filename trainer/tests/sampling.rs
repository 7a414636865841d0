//! Text from a model: the same logits as training computes, the same text from the same seed.

use std::sync::Arc;

use crate::common::{BATCH, corpus, plan, setup, tiny_model};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::TokenBatch;
use zbelastic_trainer::decoder::Decoder;
use zbelastic_trainer::evaluator::Evaluator;
use zbelastic_trainer::model::{
    BufferSize, Family, KeyValueCache, MicrobatchShape, ModelConfig, PassSizes, PassStash,
    initial_weights, model_layers,
};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::sample::{Sampler, SamplingConfig};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_types::{LayerRange, Step};

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
            let draw = SamplingConfig::of_all(1e-6, 1);
            let found = sampler.continue_text(prompt, 1, draw).expect("memory");
            assert_eq!(found, [likeliest(&model, prompt)], "{family:?}");
        }
    }
}

/// Logits of all positions of one pass over `tokens`, by the serial reference.
fn whole_logits(model: &ModelConfig, weights: &[Vec<f32>], tokens: &[u32]) -> Vec<f32> {
    let microbatch = MicrobatchShape { sequences: 1, sequence_len: tokens.len() };
    let batch = BatchShape { microbatch, microbatch_count: 1, ..BATCH };
    let mut setup = setup(model.clone(), plan(model, ScheduleKind::GPipe, 1, Window::Zero), 1);
    setup.plan.batch = batch;
    setup.weights = InitialWeights::Given(Arc::new(weights.to_vec()));
    let mut run = SerialReference::new(&setup, cpu(), corpus()).expect("memory");
    run.logits(&TokenBatch::new(tokens.to_vec(), vec![0; tokens.len()]))
}

/// A text of the model's tokens that repeats nothing soon.
fn text(model: &ModelConfig, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 7 + i * 3 + 1) % model.vocabulary).collect()
}

#[test]
fn a_token_at_a_time_has_the_bits_of_the_whole() {
    let windows = [(Family::Gpt2, None), (Family::Llama, None), (Family::Llama, Some(3))];
    for (family, sliding_window) in windows {
        let model = ModelConfig { positions: 200, sliding_window, ..tiny_model(family) };
        let weights = weights(&model);
        let tokens = text(&model, 200);
        let whole = whole_logits(&model, &weights, &tokens);
        let vocabulary = model.vocabulary as usize;
        // Prompts of one pass and of several, of whole passes and of others.
        for prompt_len in [1, 2, 37, 64, 65, 128, 150] {
            let mut decoder = Decoder::new(cpu(), &model, &weights).expect("memory");
            let mut read = 0;
            for len in [prompt_len].into_iter().chain(prompt_len + 1..=tokens.len()) {
                let logits = decoder.read(&tokens[read..len]).expect("memory");
                let expected = &whole[(len - 1) * vocabulary..len * vocabulary];
                assert!(
                    logits.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{family:?} {sliding_window:?}: token {len} behind a prompt of {prompt_len}"
                );
                read = len;
            }
            assert_eq!(decoder.tokens_read(), tokens.len());
            decoder.clear();
            assert_eq!(decoder.tokens_read(), 0);
        }
    }
}

#[test]
fn two_hundred_greedy_tokens_are_those_of_reading_all_again() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = ModelConfig { positions: 256, ..tiny_model(family) };
        let weights = weights(&model);
        let prompt = [5, 6, 7];
        let mut sampler = Sampler::new(cpu(), &model, 256, &weights).expect("memory");
        let greedy = SamplingConfig::of_all(0.0, 0);
        let found = sampler.continue_text(&prompt, 200, greedy).expect("memory");
        let mut again = Decoder::new(CpuBackend::new(2).expect("two threads"), &model, &weights)
            .expect("memory");
        let mut tokens = prompt.to_vec();
        for _ in 0..200 {
            again.clear();
            let logits = again.read(&tokens).expect("memory");
            tokens.push(greedy.draw(&logits, tokens.len() as u64));
        }
        assert_eq!(found, tokens[prompt.len()..], "{family:?}");
    }
}

#[test]
fn beyond_the_context_the_last_tokens_are_read_again() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let weights = weights(&model);
        let greedy = SamplingConfig::of_all(0.0, 0);
        let mut sampler = Sampler::new(cpu(), &model, 8, &weights).expect("memory");
        let found = sampler.continue_text(&[5, 6], 20, greedy).expect("memory");
        let mut tokens = vec![5, 6];
        for _ in 0..20 {
            let seen = &tokens[tokens.len().saturating_sub(8)..];
            let whole = whole_logits(&model, &weights, seen);
            let last = &whole[(seen.len() - 1) * model.vocabulary as usize..];
            tokens.push(greedy.draw(last, 0));
        }
        assert_eq!(found, tokens[2..], "{family:?}");
    }
}

#[test]
fn blocks_of_a_cache_stay_few() {
    let model = tiny_model(Family::Llama);
    let backend = cpu();
    let mut cache = KeyValueCache::<CpuBackend>::default();
    for (index, tokens) in [64, 64, 11].into_iter().chain([1; 800]).enumerate() {
        let shape = MicrobatchShape { sequences: 1, sequence_len: tokens };
        let sizes = PassSizes::whole(&model, shape);
        let layers = LayerRange::new(0, model.layer_count());
        let make = &mut |size: BufferSize| size.allocate(&backend);
        let mut stash = PassStash::build(&sizes, layers, make).expect("memory");
        cache.take(&backend, &model, tokens, &mut stash).expect("memory");
        let most = cache.tokens().ilog2() as usize + 1;
        assert!(cache.block_count() <= most, "{index}: {} blocks", cache.block_count());
    }
    assert_eq!(cache.tokens(), 939);
}

#[test]
fn an_evaluation_has_the_loss_of_the_reference() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let rows = BATCH.microbatch.sequence_len;
        let tokens = text(&model, rows + 1);
        let setup = setup(model.clone(), plan(&model, ScheduleKind::GPipe, 1, Window::Zero), 1);
        let own: Vec<_> =
            model_layers(&model).iter().map(|spec| setup.weights.of_layer(spec).to_vec()).collect();
        let vocabulary = model.vocabulary as usize;
        let logits = whole_logits(&model, &own, &tokens[..rows]);
        let cross_entropy = |(row, target): (&[f32], &u32)| {
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            sum.ln() - f64::from(row[*target as usize])
        };
        let expected: f64 =
            logits.chunks_exact(vocabulary).zip(&tokens[1..]).map(cross_entropy).sum();
        let mut evaluator = Evaluator::new(cpu(), &model, rows, &own).expect("memory");
        let window = TokenBatch::new(tokens[..rows].to_vec(), tokens[1..].to_vec());
        for _ in 0..2 {
            let found = evaluator.loss_sum(&window).expect("a processor does not fail");
            assert!((found - expected).abs() < 1e-4 * expected, "{found}, expected {expected}");
        }
    }
}

#[test]
fn text_is_a_function_of_the_seed() {
    let model = tiny_model(Family::Llama);
    let sample = |seed| {
        let mut sampler = Sampler::new(cpu(), &model, 8, &weights(&model)).expect("memory");
        sampler.continue_text(&[5, 6], 30, SamplingConfig::of_all(1.0, seed)).expect("memory")
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
