//! The same training, serial, in one loop over microbatches, as simply written as can be.
//!
//! No program and no pipeline: a microbatch goes through the whole model and back before the next
//! one begins, and every chunk reads the version that a formula names. The formulas are those of
//! the papers, for a pipeline of p stages in which stage s is a = p - 1 - s microbatches ahead, M
//! microbatches a minibatch t, and k counting microbatches through the run. Its results are
//! right because the loop is plain; [`super::AsyncStage`] must yield the same bits.
//!
//! AMPNet has no formula. Its run is in the order that it found ([`super::replay_found`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use zbelastic_kernels::reference::{
    AdamWState, adam_ahead, adamw, pull_together, track_change, weights_along,
};
use zbelastic_kernels::{Accumulate, AllocateError, Backend, BufferView, HostFloats};
use zbelastic_schedule::asynchronous::{AsyncKind, AsyncVariant};
use zbelastic_types::{LayerId, MicrobatchIndex, Step};

use super::rules::{annealed_share, delta_decay};
use super::setup::{AsyncSetup, context};
use super::state::AsyncState;
use crate::data::BatchSource;
use crate::elastic::LayerImage;
use crate::model::{
    BufferSize, Chunk, LayerRange, LayerState, Logits, PassScratch, PassSizes, PassStash,
    model_layers, rotary_angles,
};
use crate::optimizer::clip_coefficient;

/// A layer at a version.
#[derive(Clone)]
pub(super) struct LayerFloats {
    pub w: Vec<f32>,
    pub m: Vec<f32>,
    pub v: Vec<f32>,
    /// The change of w in an update, in the mean (PipeMare).
    delta: Vec<f32>,
}

impl LayerFloats {
    pub(super) fn new(w: Vec<f32>) -> Self {
        let zeros = vec![0.0; w.len()];
        Self { w, m: zeros.clone(), v: zeros.clone(), delta: zeros }
    }
}

/// A chunk at a version.
#[derive(Clone)]
pub(super) struct ChunkFloats {
    pub layers: Vec<LayerFloats>,
    /// Updates that were not left out.
    pub updates: u64,
}

/// The learning rate, the number and the guard of an update.
pub(super) struct SerialUpdate<'a> {
    pub setup: &'a AsyncSetup,
    pub replica: u32,
    pub base: u32,
    pub lr: f64,
}

impl ChunkFloats {
    /// The next version, from the gradient in `layers`; the same again if that is not finite.
    pub(super) fn updated<B: Backend>(
        &self,
        backend: &B,
        layers: &mut [LayerState<B>],
        update: &SerialUpdate<'_>,
    ) -> Self {
        let SerialUpdate { setup, replica, base, lr } = *update;
        for injection in setup.injections_at(replica, base) {
            layers.iter_mut().for_each(|layer| injection.apply(backend, layer));
        }
        let mut square_sum = 0.0;
        let mut is_finite = true;
        for layer in &*layers {
            for tensor in &layer.spec.tensors {
                let found = backend.sum_squares(BufferView::new(&layer.g, tensor.range.clone()));
                square_sum += found.sum;
                is_finite &= found.nonfinite == 0;
            }
        }
        let mut next = self.clone();
        if !is_finite {
            return next;
        }
        let clip = clip_coefficient(setup.clip_norm, f64::sqrt(square_sum));
        next.updates += 1;
        for (layer, floats) in layers.iter().zip(&mut next.layers) {
            for tensor in &layer.spec.tensors {
                let range = tensor.range.clone();
                let decay = setup.optimizer.decay_of(tensor);
                let numbers = setup.optimizer.numbers(lr, next.updates, clip, decay);
                let g = backend.download(BufferView::new(&layer.g, range.clone()));
                let cut = |floats: &[f32]| floats[range.clone()].to_vec();
                let w = cut(&floats.w);
                let m = cut(&floats.m);
                let v = cut(&floats.v);
                let mut state = AdamWState { w, m, v };
                adamw(&mut state, &g, numbers);
                floats.w[range.clone()].copy_from_slice(&state.w);
                floats.m[range.clone()].copy_from_slice(&state.m);
                floats.v[range.clone()].copy_from_slice(&state.v);
            }
        }
        next
    }
}

/// Every version of a chunk that may still be read, by number.
type ChunkHistory = BTreeMap<u32, ChunkFloats>;

/// A serial run with the staleness of a schedule.
pub struct AsyncReference<B: Backend, S> {
    setup: Arc<AsyncSetup>,
    backend: B,
    source: S,
    model: Chunk<B>,
    stash: PassStash<B::Buffer>,
    logits: Logits<B::Buffer>,
    scratch: PassScratch<B::Buffer>,
    angles: Option<B::Buffer>,
    /// By pipeline and chunk.
    histories: Vec<Vec<ChunkHistory>>,
    /// The reference model, chunk by chunk and layer by layer (AvgPipe).
    reference: Vec<Vec<Vec<f32>>>,
}

/// The coordinates of a pass in the formulas.
#[derive(Clone, Copy)]
struct PassCoordinates {
    chunk: usize,
    /// s, p and a.
    stage: u32,
    stages: u32,
    ahead: u32,
    /// k, M and t.
    k: u32,
    microbatches: u32,
    minibatch: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum PassDirection {
    Forward,
    Backward,
}

impl<B: Backend, S: BatchSource> AsyncReference<B, S> {
    /// A run before its first microbatch.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If the schedule is AMPNet.
    pub fn new(setup: Arc<AsyncSetup>, backend: B, source: S) -> Result<Self, AllocateError> {
        assert_ne!(setup.plan.program.kind, AsyncKind::AmpNet, "AMPNet has no formula");
        let model = &setup.model;
        let shape = setup.plan.batch.microbatch;
        let sizes = PassSizes::whole(model, shape);
        let mut make = |size: BufferSize| size.allocate(&backend);
        let stash = PassStash::build(&sizes, LayerRange::new(0, model.layer_count()), &mut make)?;
        let logits = sizes.logits(&mut make)?;
        let scratch = sizes.scratch(&mut make)?;
        let angles = rotary_angles(&backend, model, shape)?;
        let first: Vec<Vec<f32>> = model_layers(model)
            .iter()
            .map(|spec| setup.weights.of_layer(spec).into_floats())
            .collect();
        let specs = model_layers(model).into_iter().zip(&first);
        let layers = specs.map(|(spec, weights)| LayerState::new(&backend, model, spec, weights));
        let whole = Chunk::new(layers.collect::<Result<_, _>>()?);
        let of_chunk = |range: &LayerRange| first[indices(*range)].to_vec();
        let chunks: Vec<Vec<Vec<f32>>> = setup.plan.chunks.iter().map(of_chunk).collect();
        let history = |weights: &Vec<Vec<f32>>| {
            let layers = weights.iter().cloned().map(LayerFloats::new).collect();
            ChunkHistory::from([(0, ChunkFloats { layers, updates: 0 })])
        };
        let pipeline: Vec<ChunkHistory> = chunks.iter().map(history).collect();
        let histories = vec![pipeline; setup.plan.program.replica_count as usize];
        let reference =
            if setup.plan.program.kind == AsyncKind::AvgPipe { chunks } else { Vec::new() };
        let model = whole;
        Ok(Self {
            setup,
            backend,
            source,
            model,
            stash,
            logits,
            scratch,
            angles,
            histories,
            reference,
        })
    }

    /// The whole run; the sum of cross-entropies of each microbatch.
    ///
    /// # Panics
    /// If an operation of the device fails, or the run has more than 2^32 - 1 microbatches.
    pub fn run(&mut self) -> Vec<f64> {
        let total = self.setup.plan.program.microbatches_total();
        (0..u32::try_from(total).expect("checked")).map(|k| self.microbatch(k)).collect()
    }

    fn microbatch(&mut self, k: u32) -> f64 {
        let setup = self.setup.clone();
        let program = &setup.plan.program;
        let minibatch = k / program.microbatch_count;
        let within = k % program.microbatch_count;
        let replica = minibatch % program.replica_count;
        let step = Step(minibatch.into());
        let batch = self.source.training(step, MicrobatchIndex(within));
        let targets = self.source.targets(step, program.microbatch_count);
        let update_every = program.update_every;
        let is_first = k.is_multiple_of(update_every);
        let accumulate = if is_first { Accumulate::Start } else { Accumulate::Add };

        self.load(k, replica, PassDirection::Forward);
        let forward = context(&setup, &self.backend, &self.angles, None);
        let stash = &mut self.stash;
        let logits = &mut self.logits;
        let loss = self.model.forward(&forward, &batch, stash, Some(logits));

        self.load(k, replica, PassDirection::Backward);
        let context = context(&setup, &self.backend, &self.angles, None);
        let stash = &mut self.stash;
        let logits = &mut self.logits;
        let scratch = &mut self.scratch;
        let scaled = (&batch, setup.loss_scale(targets));
        self.model.backward_input(&context, scaled, stash, Some(logits), scratch);
        self.model.head_weights(&context, stash, logits, accumulate);
        self.model.backward_weights(&context, &batch, stash, scratch, accumulate);

        if (k + 1).is_multiple_of(update_every) {
            (0..setup.plan.chunks.len())
                .for_each(|chunk| self.update(replica, self.coordinates(chunk, k)));
        }
        let loss = loss.expect("the whole model has a loss");
        targets.reported_sum(loss.wait().expect("a reference runs on a device that works"))
    }

    fn coordinates(&self, chunk: usize, k: u32) -> PassCoordinates {
        let program = &self.setup.plan.program;
        let stages = program.placement.stage_count();
        let stage = chunk as u32 % stages;
        let microbatches = program.microbatch_count;
        let ahead = stages - 1 - stage;
        let minibatch = k / microbatches;
        PassCoordinates { chunk, stage, stages, ahead, k, microbatches, minibatch }
    }

    /// Puts into the model the weights that each chunk reads.
    fn load(&mut self, k: u32, replica: u32, direction: PassDirection) {
        for chunk in 0..self.setup.plan.chunks.len() {
            let weights = self.weights_read(replica, self.coordinates(chunk, k), direction);
            let range = indices(self.setup.plan.chunks[chunk]);
            for (layer, weights) in self.model.layers_mut()[range].iter_mut().zip(&weights) {
                layer.set_weights(&self.backend, weights);
            }
        }
    }

    /// The formulas: which version a chunk reads, and the prediction made of it.
    fn weights_read(
        &self,
        replica: u32,
        at: PassCoordinates,
        direction: PassDirection,
    ) -> Vec<Vec<f32>> {
        let PassCoordinates { stage, stages, ahead, k, microbatches, minibatch, .. } = at;
        let version = |number| self.version(replica, at.chunk, number);
        let p = f64::from(stages);
        let m = f64::from(microbatches);
        let s = f64::from(stage);
        let plain = |number| version(number).layers.iter().map(|layer| layer.w.clone()).collect();
        let warm_up = self.setup.plan.program.variant.warm_up();
        match (self.setup.plan.program.kind, direction) {
            (AsyncKind::PipeDream, _) => match self.setup.plan.program.variant {
                AsyncVariant::VerticalSync => plain(k.saturating_sub(stages - 1)),
                AsyncVariant::Usual | AsyncVariant::WarmUp(_) => plain(k.saturating_sub(ahead)),
            },
            (AsyncKind::PipeDream2Bw, _) => plain(minibatch.saturating_sub(1)),
            (AsyncKind::WPipe, _) if at.chunk < stages as usize => {
                plain(minibatch.saturating_sub(1))
            }
            (AsyncKind::WPipe, _) => plain(minibatch),
            (AsyncKind::AvgPipe, _) => plain(minibatch / self.setup.plan.program.replica_count),
            (AsyncKind::PipeMare, _) if minibatch < warm_up => plain(minibatch),
            (AsyncKind::PipeMare, PassDirection::Forward) => {
                let since = k - warm_up * microbatches;
                plain(warm_up + since.saturating_sub(ahead) / microbatches)
            }
            (AsyncKind::PipeMare, PassDirection::Backward) if ahead == 0 => plain(k / microbatches),
            (AsyncKind::PipeMare, PassDirection::Backward) => {
                let back = (f64::from(ahead) / m) as f32;
                let layers = version(k / microbatches).layers.iter();
                layers.map(|layer| weights_along(&layer.w, &layer.delta, back)).collect()
            }
            (AsyncKind::SpecTrain, PassDirection::Forward) => {
                let distance = (s / 2.0).floor() + p - s - 1.0;
                self.momentum(replica, at.chunk, k.saturating_sub(ahead), distance)
            }
            (AsyncKind::SpecTrain, PassDirection::Backward) => {
                self.momentum(replica, at.chunk, k, (s / 2.0).floor())
            }
            (AsyncKind::XPipe, PassDirection::Forward) => {
                let base = (minibatch * microbatches).saturating_sub(ahead) / microbatches;
                self.adam(replica, at.chunk, base, ((p + m - s / 2.0 - 2.0) / m).round())
            }
            (AsyncKind::XPipe, PassDirection::Backward) => {
                let distance = ((m + (s / 2.0).floor() - 1.0) / m).round();
                self.adam(replica, at.chunk, minibatch, distance)
            }
            (AsyncKind::AmpNet, _) => unreachable!("refused at the beginning"),
        }
    }

    fn version(&self, replica: u32, chunk: usize, number: u32) -> &ChunkFloats {
        let history = &self.histories[replica as usize][chunk];
        history.get(&number).unwrap_or_else(|| panic!("version {number} of chunk {chunk} is kept"))
    }

    fn momentum(&self, replica: u32, chunk: usize, base: u32, distance: f64) -> Vec<Vec<f32>> {
        let rate = (self.setup.lr_of_update(replica, base) * distance) as f32;
        let layers = self.version(replica, chunk, base).layers.iter();
        // Without a distance there is nothing to add, not even zero.
        let read = |layer: &LayerFloats| match distance {
            0.0 => layer.w.clone(),
            _ => weights_along(&layer.w, &layer.m, rate),
        };
        layers.map(read).collect()
    }

    fn adam(&self, replica: u32, chunk: usize, base: u32, distance: f64) -> Vec<Vec<f32>> {
        let from = self.version(replica, chunk, base);
        let lr = self.setup.lr_of_update(replica, base) * distance;
        let numbers = self.setup.optimizer.numbers(lr, from.updates, 1.0, 0.0);
        let read = |layer: &LayerFloats| {
            if distance == 0.0 || from.updates == 0 {
                layer.w.clone()
            } else {
                adam_ahead(&layer.w, &layer.m, &layer.v, numbers)
            }
        };
        from.layers.iter().map(read).collect()
    }

    fn update(&mut self, replica: u32, at: PassCoordinates) {
        let setup = self.setup.clone();
        let range = indices(setup.plan.chunks[at.chunk]);
        let histories = &mut self.histories[replica as usize];
        let history = &mut histories[at.chunk];
        let (&base, newest) = history.last_key_value().expect("there is a version");
        let is_pipemare = setup.plan.program.kind == AsyncKind::PipeMare;
        let delay =
            if is_pipemare { f64::from(at.ahead) / f64::from(at.microbatches) } else { 0.0 };
        // A gradient of the warm-up is not late, and K counts from its end.
        let since = base.checked_sub(setup.plan.program.variant.warm_up());
        let anneal = setup.knobs.anneal_updates;
        let share = since.map_or(1.0, |update| annealed_share(delay, update, anneal));
        let lr = setup.lr_of_update(replica, base) * share;
        let update = SerialUpdate { setup: &setup, replica, base, lr };
        let layers = &mut self.model.layers_mut()[range];
        let mut next = newest.updated(&self.backend, layers, &update);
        if delay > 0.0 {
            for (after, before) in next.layers.iter_mut().zip(&newest.layers) {
                track_change(&mut after.delta, &before.w, &after.w, delta_decay(delay));
            }
        }
        if let Some(reference) = self.reference.get_mut(at.chunk) {
            for (layer, reference) in next.layers.iter_mut().zip(reference) {
                pull_together(&mut layer.w, reference, setup.knobs.elastic_alpha);
            }
        }
        history.insert(base + 1, next);
        // No stage is further behind than there are stages.
        history.retain(|number, _| number + at.stages > base);
    }

    /// The state that the run has reached.
    #[must_use]
    pub fn state(&self) -> AsyncState {
        let mut state = AsyncState::default();
        for (replica, chunks) in (0..).zip(&self.histories) {
            for (range, history) in self.setup.plan.chunks.iter().zip(chunks) {
                let (number, newest) = history.last_key_value().expect("there is a version");
                state.updates += newest.updates;
                let version = Step((*number).into());
                let layers = range.layers().zip(&newest.layers);
                state.layers.extend(layers.map(|(layer, floats)| {
                    let LayerFloats { w, m, v, .. } = floats.clone();
                    let [w, m, v] = [w, m, v].map(HostFloats::from);
                    (replica, LayerImage { layer, version, w, m, v })
                }));
            }
        }
        let reference = self.reference.iter().flatten().cloned();
        state.reference = (0..).map(LayerId).zip(reference).collect();
        state
    }
}

fn indices(range: LayerRange) -> Range<usize> {
    range.ids().start as usize..range.ids().end as usize
}
