//! Optimistic AdamW with validation against vectors that were checked with PyTorch's optimizer:
//! gates, verdicts, coefficients, candidates and states, bit for bit.

use std::path::Path;

use serde_json::Value;
use zbelastic_consensus::validation::{
    CandidateAction, Gate, GuardPolicy, LeaderHalf, Ledger, NonfinitePolicy, Prefix, StageHalf,
    TensorSum, Verdict, clip_coefficient,
};
use zbelastic_kernels::{
    BufferView, BufferViewMut, CpuBackend, CpuBuffer, DeviceMemory, Optimizer,
};
use zbelastic_trainer::optimizer::{
    DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope,
};
use zbelastic_types::{Generation, StageIndex, Step, TensorIndex};

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn bits(value: &Value) -> Vec<u32> {
    list(value).iter().map(|x| x.as_u64().expect("a bit pattern") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    bits(value).into_iter().map(f32::from_bits).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// One tensor on the device.
struct DeviceTensor {
    index: TensorIndex,
    decay: f64,
    w: CpuBuffer,
    candidate: CpuBuffer,
    m: CpuBuffer,
    v: CpuBuffer,
    g: CpuBuffer,
}

struct TensorStage {
    half: StageHalf,
    tensors: Vec<DeviceTensor>,
}

struct AdamwBench {
    backend: CpuBackend,
    optimizer: OptimizerConfig,
}

impl AdamwBench {
    fn buffer(&self, floats: &[f32]) -> CpuBuffer {
        let mut buffer = self.backend.allocate(floats.len()).expect("memory");
        self.backend.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
        buffer
    }

    fn bits(&self, buffer: &CpuBuffer) -> Vec<u32> {
        let floats = self.backend.download(BufferView::new(buffer, 0..self.backend.len(buffer)));
        floats.into_iter().map(f32::to_bits).collect()
    }

    fn compute_candidate(&self, tensor: &mut DeviceTensor, lr: f64, update: u64, clip: f32) {
        let numbers = self.optimizer.numbers(lr, update, clip, tensor.decay);
        let DeviceTensor { w, candidate, m, v, g, .. } = tensor;
        let range = (0..self.backend.len(w)).into();
        self.backend.adamw_candidate(&range, w, m, v, g, numbers, candidate, &mut []);
    }

    fn commit(&self, tensor: &mut DeviceTensor, lr: f64, update: u64, clip: f32) {
        let numbers = self.optimizer.numbers(lr, update, clip, tensor.decay);
        let DeviceTensor { w, candidate, m, v, g, .. } = tensor;
        self.backend.adamw_commit(&(0..self.backend.len(g)).into(), g, numbers, m, v);
        std::mem::swap(w, candidate);
    }
}

fn stages(file: &Value, bench: &AdamwBench, ledger: &Ledger) -> Vec<TensorStage> {
    let max_norm = number(&file["hyper"]["max_norm"]);
    let mut next = TensorIndex(0);
    let decays = list(&file["weight_decay_on"]);
    let weights = list(&file["initial_w_f32_bits"]).iter().zip(decays);
    let stage = |(weights, decays): (&Value, &Value)| {
        let tensors = list(weights).iter().zip(list(decays)).map(|(weights, decayed)| {
            let index = next;
            next = next.next();
            let w = floats(weights);
            let zeros = vec![0.0; w.len()];
            let [candidate, m, v, g] = [(); 4].map(|()| bench.buffer(&zeros));
            let decay = if decayed == 1 { bench.optimizer.weight_decay } else { 0.0 };
            DeviceTensor { index, decay, w: bench.buffer(&w), candidate, m, v, g }
        });
        let tensors = tensors.collect();
        TensorStage { half: StageHalf::new(ledger.open_turn(), 0, Some(max_norm)), tensors }
    };
    weights.map(stage).collect()
}

/// Every iteration of the file at `path`.
pub fn vectors_are_met_bit_for_bit(path: &Path) {
    let text = std::fs::read_to_string(path).expect("readable");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let hyper = &file["hyper"];
    let optimizer = OptimizerConfig {
        kind: OptimizerKind::AdamW,
        lr: 0.0,
        lr_min: 0.0,
        warmup: 0,
        decay: LrDecay::Constant,
        decay_steps: 0,
        betas: [number(&hyper["beta1"]), number(&hyper["beta2"])],
        epsilon: number(&hyper["eps"]),
        weight_decay: number(&hyper["weight_decay"]),
        decay_on: WeightDecayScope::All,
        decay_rates: DecayRates::NONE,
    };
    let max_norm = number(&hyper["max_norm"]);
    let policy = GuardPolicy {
        clip_norm: Some(max_norm),
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 0,
        spike_deviations: None,
    };
    let bench = AdamwBench { backend: CpuBackend::new(1).expect("one thread"), optimizer };
    let mut ledger = Ledger::new(Generation(0), Step(0), 0);
    let mut stages = stages(&file, &bench, &ledger);
    let tensor_count = stages.iter().map(|stage| stage.tensors.len() as u32).sum();
    let mut leader = LeaderHalf::new(&ledger, tensor_count, policy);
    for iteration in list(&file["iterations"]) {
        check_iteration(iteration, &bench, &mut stages, &mut leader, &mut ledger, max_norm);
    }
}

/// The vectors add sums up stage by stage; here they are added tensor by tensor over the whole
/// model, so that they do not depend on the stages. In f64 that may move the last bit of the norm;
/// rounded to f32, where it is used, the coefficient must be the same to the bit.
fn same_to_an_ulp(name: &str, found: f64, expected: f64) {
    let error = (found / expected - 1.0).abs();
    assert!(error <= 2.0 * f64::EPSILON, "{name}: {found}, expected {expected}");
}

fn check_iteration(
    iteration: &Value,
    bench: &AdamwBench,
    stages: &mut [TensorStage],
    leader: &mut LeaderHalf,
    ledger: &mut Ledger,
    max_norm: f64,
) {
    let name = format!("iteration {}", iteration["iter"]);
    let lr = number(&iteration["lr"]);
    let mut prefix: Option<Prefix> = None;
    let mut proposal = None;
    for (index, stage) in stages.iter_mut().enumerate() {
        let given = list(&iteration["grads_f32_bits"][index]);
        let mut sums = Vec::new();
        for (tensor, g) in stage.tensors.iter_mut().zip(given) {
            tensor.g = bench.buffer(&floats(g));
            let found = bench.backend.sum_squares(BufferView::new(&tensor.g, 0..bits(g).len()));
            let square_sum = found.sum;
            let nonfinite = found.nonfinite;
            sums.push(TensorSum { tensor: tensor.index, square_sum, nonfinite });
        }
        let stage_index = StageIndex(index as u32);
        let loss = (index == 0).then_some(1.0);
        let report = stage.half.report(stage_index, sums, loss);
        let sum = Prefix::of(&report, prefix.as_ref());
        let expected = number(&iteration["norm2_prefix_f64"][index]);
        if expected >= 0.0 {
            assert_eq!(sum.square_sum, expected, "{name}: prefix {index}");
        } else {
            assert!(!sum.square_sum.is_finite(), "{name}: prefix {index}");
        }
        let is_open = stage.half.gate(&sum) == Gate::Open;
        assert_eq!(is_open, iteration["speculates"][index] == 1, "{name}: gate {index}");
        if is_open {
            let candidates = list(&iteration["speculative_w_f32_bits"][index]);
            for (tensor, expected) in stage.tensors.iter_mut().zip(candidates) {
                bench.compute_candidate(tensor, lr, stage.half.updates() + 1, 1.0);
                assert_eq!(bench.bits(&tensor.candidate), bits(expected), "{name}: candidate");
            }
        }
        prefix = Some(sum);
        proposal = leader.handle_report(ledger, &report).expect("in turn");
    }
    let seal = proposal.expect("all stages reported").seal;
    let verdict = match iteration["decision"].as_u64() {
        Some(0) => Verdict::Keep,
        Some(1) => {
            let coefficient = f64::from_bits(seal.square_sum_bits);
            let coefficient = clip_coefficient(coefficient, max_norm);
            same_to_an_ulp(&name, coefficient, number(&iteration["clip_coef_f64"]));
            let bits = iteration["clip_coef_f32_bits"].as_u64().expect("bits") as u32;
            Verdict::Clip { coefficient: f32::from_bits(bits) }
        }
        _ => Verdict::Skip,
    };
    assert_eq!(seal.verdict, verdict, "{name}: verdict");
    if verdict != Verdict::Skip {
        same_to_an_ulp(&name, seal.norm(), number(&iteration["global_norm_f64"]));
    }
    ledger.apply(&seal).expect("in turn");
    assert_eq!(ledger.updates(), iteration["step_count_after"].as_u64().expect("a count"));
    for (index, stage) in stages.iter_mut().enumerate() {
        let application = stage.half.apply(&seal).expect("in turn");
        let rolls_back = list(&iteration["rollback_stages"]).contains(&Value::from(index));
        let had_candidate = iteration["speculates"][index] == 1;
        assert_eq!(rolls_back, had_candidate && application.drops_ahead, "{name}: rollback");
        for (t, tensor) in stage.tensors.iter_mut().enumerate() {
            if let CandidateAction::Compute { coefficient } = application.candidate {
                bench.compute_candidate(tensor, lr, seal.updates_after, coefficient);
            }
            if let Some(clip) = application.commit {
                bench.commit(tensor, lr, seal.updates_after, clip);
            }
            for (key, buffer) in [("w", &tensor.w), ("m", &tensor.m), ("v", &tensor.v)] {
                let expected = bits(&iteration[format!("{key}_f32_bits")][index][t]);
                assert_eq!(bench.bits(buffer), expected, "{name}: {key} of stage {index}");
            }
        }
    }
}
