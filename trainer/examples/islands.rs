//! The share of their time in which islands compute, over links of several bandwidths: GPT-2 124M, two
//! islands, simulated. Bandwidth is given as a share of what plain replicas need to send a step's
//! gradient while a step computes.
//!
//! ```text
//! cargo run --release --example islands -p zbelastic-trainer
//! ```

use zbelastic_trainer::model::{Family, FrozenTensors, LlamaFeatures, ModelConfig, model_layers};
use zbelastic_trainer::outer::{IslandPace, OuterConfig, OuterSchedule, island_times};

const STEPS: u64 = 10_000;
/// Bytes of a trained parameter, as it is sent.
const FLOAT: u64 = 4;
/// What a step that nothing may run ahead of takes longer: the bubble of 1F1B with 4 stages and 16
/// microbatches, 3/16 of a step.
const DRAIN: f64 = 3.0 / 16.0;

fn gpt2_124m() -> ModelConfig {
    ModelConfig {
        family: Family::Gpt2,
        blocks: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        mlp_width: 3072,
        features: LlamaFeatures::NONE,
        vocabulary: 50_257,
        sliding_window: None,
        positions: 1024,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

fn main() {
    let model = gpt2_124m();
    let bytes: Vec<u64> =
        model_layers(&model).iter().map(|layer| FLOAT * layer.trained_floats() as u64).collect();
    let all: u64 = bytes.iter().sum();
    println!("every  fragments  overlap  bandwidth  computes  waits  drains");
    for (every, fragments, overlap) in [(100, 4, 5), (120, 4, 50), (200, 4, 90), (500, 4, 100)] {
        let config = OuterConfig {
            islands: 2,
            island: 0,
            every,
            fragments,
            overlap,
            local_share: 0.5,
            lr: 0.7,
            momentum: 0.9,
        };
        let schedule = OuterSchedule::new(config, &model, STEPS);
        for share in [1.0, 0.1, 0.01, 0.005] {
            let pace = IslandPace { step: 1.0, drain: DRAIN, bytes_per_unit: all as f64 * share };
            let times = island_times(&schedule, STEPS, &bytes, pace);
            let total = times.computed + times.drained + times.waited;
            println!(
                "{every:>5}  {fragments:>9}  {overlap:>7}  {share:>9}  {:>8.3}  {:>5.3}  {:>6.3}",
                times.compute_share(),
                times.waited / total,
                times.drained / total
            );
        }
    }
}
