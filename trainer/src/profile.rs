//! Measures how long the passes, the update, and the way to another store and back of each kind of
//! layer last on a device.
//!
//! Layers of one kind of which the same is frozen do the same work, so one of each is measured: alone, over one
//! microbatch, with weights and inputs drawn, several times. A disturbance makes a measure
//! longer, so the shortest counts. The clock is the caller's.

use std::collections::BTreeMap;

use zbelastic_kernels::{Accumulate, AllocateError, Backend, LossScale};
use zbelastic_types::Step;

use crate::data::TokenBatch;
use crate::model::{
    AfterCommit, BufferSize, Chunk, LayerClass, LayerKind, LayerRange, LayerSpec, LayerState,
    Logits, MicrobatchShape, ModelConfig, PassContext, PassScratch, PassSizes, PassStash,
    SlicePosition, download_parts, model_layers, offload_parts, rotary_angles, upload_parts,
};
use crate::optimizer::{OptimizerConfig, OptimizerUpdate, commit, compute_candidate};
use crate::plan::{LayerWork, Pace};
use crate::random::{RandomPurpose, RandomStream};

/// Measures of each kind of layer, the first of which is thrown away: it is the one that touches
/// memory for the first time.
const MEASURES: u32 = 4;

/// The pace of a device: seconds, if `now` counts those, for each layer of `model` over a
/// microbatch of `shape`. Hops and verdicts are not measured here, and need no time.
///
/// # Errors
/// If the device's memory does not hold a layer and its passes.
pub fn measure_pace<B: Backend>(
    backend: &B,
    model: &ModelConfig,
    shape: MicrobatchShape,
    optimizer: &OptimizerConfig,
    now: &mut impl FnMut() -> f64,
) -> Result<Pace, AllocateError> {
    let mut pace = Pace::estimated(model, shape);
    let specs = model_layers(model);
    let kinds = specs.iter().map(|spec| {
        let are_frozen: Vec<bool> = spec.tensors.iter().map(|tensor| tensor.is_frozen).collect();
        (LayerClass::of(spec.kind).index(), are_frozen)
    });
    let mut measured: BTreeMap<(usize, Vec<bool>), MeasuredLayer> = BTreeMap::new();
    for (index, kind) in kinds.enumerate() {
        let found = match measured.get(&kind) {
            Some(found) => *found,
            None => {
                let mut profiler = LayerProfiler::new(backend, model, shape, specs[index].clone())?;
                (0..MEASURES)
                    .map(|turn| (turn, profiler.measure(optimizer, turn, now)))
                    .filter(|(turn, _)| *turn > 0)
                    .map(|(_, found)| found)
                    .reduce(MeasuredLayer::shorter)
                    .expect("more than one measure is made")
            }
        };
        measured.insert(kind, found);
        pace.layers[index] = found.work;
        pace.updates[index] = found.update;
        pace.copies[index] = found.copy;
    }
    Ok(pace)
}

#[derive(Clone, Copy)]
struct MeasuredLayer {
    work: LayerWork,
    update: f64,
    /// The time of one copy, to the store or back.
    copy: f64,
}

impl MeasuredLayer {
    fn shorter(self, other: Self) -> Self {
        let a = self.work;
        let b = other.work;
        let work = LayerWork {
            f: a.f.min(b.f),
            b: a.b.min(b.b),
            w: a.w.min(b.w),
            w_early: a.w_early.min(b.w_early),
        };
        Self { work, update: self.update.min(other.update), copy: self.copy.min(other.copy) }
    }
}

/// One layer with all that its passes need.
struct LayerProfiler<'a, B: Backend> {
    backend: &'a B,
    model: &'a ModelConfig,
    shape: MicrobatchShape,
    chunk: Chunk<B>,
    stash: PassStash<B::Buffer>,
    logits: Option<Logits<B::Buffer>>,
    scratch: PassScratch<B::Buffer>,
    angles: Option<B::Buffer>,
    batch: TokenBatch,
    drawn: Vec<f32>,
}

impl<'a, B: Backend> LayerProfiler<'a, B> {
    fn new(
        backend: &'a B,
        model: &'a ModelConfig,
        shape: MicrobatchShape,
        spec: LayerSpec,
    ) -> Result<Self, AllocateError> {
        let sizes = PassSizes::whole(model, shape);
        let mut make = |size: BufferSize| size.allocate(backend);
        let layer = spec.layer.0;
        let has_head = spec.kind == LayerKind::Head;
        let tokens: Vec<u32> = (0..shape.rows() as u32).map(|at| at % model.vocabulary).collect();
        let weights = drawn(spec.len());
        Ok(Self {
            stash: PassStash::build(&sizes, LayerRange::new(layer, layer + 1), &mut make)?,
            logits: if has_head { Some(sizes.logits(&mut make)?) } else { None },
            scratch: sizes.scratch(&mut make)?,
            chunk: Chunk::new(vec![LayerState::new(backend, model, spec, &weights)?]),
            angles: rotary_angles(backend, model, shape)?,
            batch: TokenBatch::new(tokens.clone(), tokens),
            drawn: drawn(sizes.residual()),
            backend,
            model,
            shape,
        })
    }

    /// One microbatch and one update.
    fn measure(
        &mut self,
        optimizer: &OptimizerConfig,
        turn: u32,
        now: &mut impl FnMut() -> f64,
    ) -> MeasuredLayer {
        let Self { backend, model, shape, chunk, stash, logits, scratch, angles, batch, drawn } =
            self;
        let place = SlicePosition::WHOLE;
        let angles = angles.as_ref();
        let context =
            PassContext { backend: *backend, model, shape: *shape, place, angles, timer: None };
        let mut timed = |work: &mut dyn FnMut()| {
            let began = now();
            work();
            now() - began
        };
        if !chunk.has_embedding() {
            chunk.set_input(*backend, drawn, stash);
        }
        let f = timed(&mut || {
            chunk.forward(&context, batch, stash, logits.as_mut());
        });
        let round_trip = timed(&mut || {
            let mut parts = offload_parts(*backend, stash, logits.as_mut());
            let left = download_parts(*backend, &mut parts);
            upload_parts(*backend, &left, &mut parts);
        });
        if !chunk.has_head() {
            chunk.set_gradient(*backend, drawn, stash);
        }
        let loss = (&*batch, LossScale::of_cross_entropy(1.0));
        let b = timed(&mut || {
            chunk.backward_input(&context, loss, stash, logits.as_mut(), scratch);
        });
        let w_early = logits.as_ref().map_or(0.0, |logits| {
            timed(&mut || chunk.head_weights(&context, stash, logits, Accumulate::Start))
        });
        let late = timed(&mut || {
            chunk.backward_weights(&context, batch, stash, scratch, Accumulate::Start);
        });
        let step = Step(u64::from(turn));
        let update = OptimizerUpdate { config: optimizer, lr: 0.0, number: step.0 + 1, clip: 1.0 };
        let update = timed(&mut || {
            for layer in chunk.layers_mut() {
                compute_candidate(*backend, layer, &update);
                commit(*backend, layer, &update, step, AfterCommit::Nothing);
            }
        });
        let work = LayerWork { f, b, w: w_early + late, w_early };
        MeasuredLayer { work, update, copy: round_trip / 2.0 }
    }
}

/// Small numbers, alike on every machine.
fn drawn(len: usize) -> Vec<f32> {
    const PERIOD: usize = 1024;
    const SCALE: f64 = 0.02;
    let stream = RandomStream::new(0, RandomPurpose::Weights, 0);
    let pairs = (0..PERIOD as u64 / 2).flat_map(|position| stream.normal_pair(position));
    let period: Vec<f32> = pairs.map(|number| (SCALE * number) as f32).collect();
    period.into_iter().cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::CpuBackend;

    use super::measure_pace;
    use crate::model::{
        Family, FrozenTensors, LayerKind, LlamaFeatures, MicrobatchShape, ModelConfig,
    };
    use crate::optimizer::{DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope};

    const OPTIMIZER: OptimizerConfig = OptimizerConfig {
        kind: OptimizerKind::AdamW,
        lr: 1e-3,
        lr_min: 0.0,
        warmup: 0,
        decay: LrDecay::Constant,
        decay_steps: 0,
        betas: [0.9, 0.95],
        epsilon: 1e-8,
        weight_decay: 0.1,
        decay_on: WeightDecayScope::Matrices,
        decay_rates: DecayRates::NONE,
    };

    /// A clock that goes on by one whenever it is read, and by a thousand in the first measure of
    /// each kind of layer.
    #[test]
    fn every_layer_gets_the_shortest_measure_of_its_kind() {
        for family in [Family::Gpt2, Family::Llama] {
            let model = ModelConfig {
                family,
                blocks: 3,
                width: 16,
                heads: 2,
                kv_heads: 2,
                head_width: 8,
                mlp_width: 32,
                features: LlamaFeatures::NONE,
                vocabulary: 24,
                sliding_window: None,
                positions: 8,
                norm_epsilon: 1e-5,
                rope_theta: 1e4,
                tied: false,
                frozen: FrozenTensors::NONE,
                without_moments: FrozenTensors::NONE,
                lora: None,
            };
            let backend = CpuBackend::new(1).expect("one thread");
            let shape = MicrobatchShape { sequences: 2, sequence_len: 8 };
            let mut time = 0.0;
            let mut reads = 0;
            let mut clock = || {
                reads += 1;
                time += if reads <= 10 { 1000.0 } else { 1.0 };
                time
            };
            let pace = measure_pace(&backend, &model, shape, &OPTIMIZER, &mut clock);
            let pace = pace.expect("it fits");
            assert_eq!(pace.layers.len(), model.layer_count() as usize);
            for (layer, work) in (0..).map(zbelastic_types::LayerId).zip(&pace.layers) {
                let is_head = model.layer_kind(layer) == LayerKind::Head;
                let (w, w_early) = if is_head { (2.0, 1.0) } else { (1.0, 0.0) };
                assert_eq!((work.f, work.b, work.w, work.w_early), (1.0, 1.0, w, w_early));
            }
            assert_eq!(pace.updates, vec![1.0; pace.layers.len()]);
            assert_eq!(pace.copies, vec![0.5; pace.layers.len()]);
        }
    }
}
