//! A line of weight versions: a chunk's newest weights with all that trains them, and what is kept
//! beside them.

use std::collections::BTreeMap;

use zbelastic_kernels::{AllocateError, Backend, View};
use zbelastic_schedule::asynchronous::{Prediction, Shift, Version};
use zbelastic_types::{Bytes, Step};

use super::rules::{
    adam_ahead, annealed_share, delta_back, delta_decay, momentum_ahead, pull_together, track_delta,
};
use super::setup::AsyncSetup;
use super::stage::Updated;
use crate::model::{Chunk, LayerSpec, LayerState};
use crate::optimizer::{Update, clip_coefficient, replay, skip, square_sums};

/// The weights of a chunk in one pipeline.
pub(super) struct Line<B: Backend> {
    /// The newest version, its moments and the gradient that is adding up.
    pub newest: Chunk<B>,
    /// Its number.
    pub version: Version,
    /// Updates that were not left out.
    pub updates: u64,
    /// Microbatches in the gradient.
    pub accumulated: u32,
    kept: BTreeMap<Version, Chunk<B>>,
    /// Memory for as many more versions as the plan claims.
    free: Vec<Chunk<B>>,
    /// What the weights of each layer change by in an update, in the mean (PipeMare); else empty.
    deltas: Vec<Vec<f32>>,
    /// How far back the correction goes, in updates; 0 if there is none.
    delay: f64,
}

/// What a line is made of.
pub(super) struct LinePlan<'a> {
    pub setup: &'a AsyncSetup,
    pub specs: &'a [LayerSpec],
    pub replica: u32,
    /// Versions kept beside the newest, at most.
    pub kept_max: usize,
    /// How far back a correction goes, in updates; 0 if there is none.
    pub delay: f64,
}

impl<B: Backend> Line<B> {
    pub(super) fn new(backend: &B, plan: &LinePlan<'_>) -> Result<Self, AllocateError> {
        let LinePlan { setup, specs, replica, kept_max, delay } = *plan;
        let model = &setup.model;
        let trained = specs.iter().map(|spec| {
            LayerState::new(backend, model, spec.clone(), &setup.weights.of_layer(spec))
        });
        let newest = Chunk::new(trained.collect::<Result<_, _>>()?);
        let frozen = || -> Result<Chunk<B>, AllocateError> {
            let layers = specs.iter().map(|spec| {
                LayerState::frozen(backend, model, spec.clone(), &setup.weights.of_layer(spec))
            });
            Ok(Chunk::new(layers.collect::<Result<_, _>>()?))
        };
        let free = (0..kept_max).map(|_| frozen()).collect::<Result<_, _>>()?;
        let deltas = if delay > 0.0 {
            specs.iter().map(|spec| vec![0.0; spec.len()]).collect()
        } else {
            Vec::new()
        };
        let version = Version { replica, ..Version::new(0) };
        let kept = BTreeMap::new();
        Ok(Self { newest, version, updates: 0, accumulated: 0, kept, free, deltas, delay })
    }

    /// The weights that a pass reads.
    ///
    /// # Panics
    /// If they are not there, which a checked program does not ask for.
    pub(super) fn reading(&self, version: Version) -> &Chunk<B> {
        if version == self.version {
            return &self.newest;
        }
        self.kept.get(&version).unwrap_or_else(|| panic!("version {version} is kept"))
    }

    /// Keeps the newest version beside.
    pub(super) fn stash(&mut self, backend: &B) {
        let weights = |layer: &LayerState<B>| read(backend, layer, &layer.w);
        let weights = self.newest.layers().iter().map(weights).collect();
        self.keep(backend, self.version, weights);
    }

    /// Makes a temporary version of the newest.
    pub(super) fn predict(
        &mut self,
        setup: &AsyncSetup,
        backend: &B,
        rule: Prediction,
        version: Version,
    ) {
        let lr = setup.lr_of_update(version.replica, version.base);
        let distance = match version.shift {
            Shift::Ahead(updates) => f64::from(updates),
            Shift::Back(_) => self.delay,
            Shift::None => unreachable!("a temporary version lies somewhere else"),
        };
        let predicted = |(index, layer): (usize, &LayerState<B>)| {
            let w = read(backend, layer, &layer.w);
            match rule {
                Prediction::Adam if self.updates == 0 => w,
                Prediction::Adam => {
                    let numbers = setup.optimizer.numbers(lr * distance, self.updates, 1.0, false);
                    let (m, v) = (read(backend, layer, &layer.m), read(backend, layer, &layer.v));
                    adam_ahead(&w, &m, &v, numbers)
                }
                Prediction::Momentum => {
                    momentum_ahead(&w, &read(backend, layer, &layer.m), (lr * distance) as f32)
                }
                Prediction::Delta => delta_back(&w, &self.deltas[index], distance as f32),
            }
        };
        let weights = self.newest.layers().iter().enumerate().map(predicted).collect();
        self.keep(backend, version, weights);
    }

    fn keep(&mut self, backend: &B, version: Version, weights: Vec<Vec<f32>>) {
        let mut chunk = self.free.pop().expect("the plan claims what is kept");
        for (layer, weights) in chunk.layers_mut().iter_mut().zip(&weights) {
            layer.set_weights(backend, weights);
        }
        let before = self.kept.insert(version, chunk);
        assert!(before.is_none(), "version {version} is made once");
    }

    /// Gives the memory of a version back.
    pub(super) fn free(&mut self, version: Version) {
        let chunk = self.kept.remove(&version);
        self.free.push(chunk.unwrap_or_else(|| panic!("version {version} is kept")));
    }

    /// Makes the next version from the gradient, or leaves the update out if it is not finite.
    pub(super) fn step(&mut self, setup: &AsyncSetup, backend: &B) -> Updated {
        let Version { replica, base, .. } = self.version;
        for injection in setup.injections_at(replica, base) {
            self.newest.layers_mut().iter_mut().for_each(|layer| injection.apply(backend, layer));
        }
        let sums: Vec<_> = square_sums(backend, self.newest.layers());
        let square_sum = sums.iter().fold(0.0, |sum, tensor| sum + tensor.square_sum);
        let norm = f64::sqrt(square_sum);
        let is_finite = sums.iter().all(|tensor| tensor.nonfinite == 0);
        let clip = clip_coefficient(setup.clip_norm, norm);
        let share = self.rate_share(setup, base);
        let lr = setup.lr_of_update(replica, base) * share;
        let at = Step(base.into());
        if is_finite {
            self.updates += 1;
            let update = Update { config: &setup.optimizer, lr, number: self.updates, clip };
            self.take(backend, &update, at);
        } else {
            self.newest.layers_mut().iter_mut().for_each(|layer| skip(layer, at));
            let unchanged: Vec<Vec<f32>> = self.weights(backend);
            self.track(&unchanged, &unchanged);
        }
        self.accumulated = 0;
        self.version.base += 1;
        Updated { version: self.version, lr, norm, coefficient: is_finite.then_some(clip) }
    }

    /// What an update's learning rate is multiplied with: that of a warm-up is not late, and annealing
    /// begins behind it.
    fn rate_share(&self, setup: &AsyncSetup, update: u32) -> f64 {
        match update.checked_sub(setup.plan.program.variant.warm_up()) {
            Some(update) => annealed_share(self.delay, update, setup.knobs.anneal_updates),
            None => 1.0,
        }
    }

    fn take(&mut self, backend: &B, update: &Update<'_>, at: Step) {
        let before = if self.deltas.is_empty() { Vec::new() } else { self.weights(backend) };
        for layer in self.newest.layers_mut() {
            replay(backend, layer, update, at);
        }
        let after = if self.deltas.is_empty() { Vec::new() } else { self.weights(backend) };
        self.track(&before, &after);
    }

    fn track(&mut self, before: &[Vec<f32>], after: &[Vec<f32>]) {
        for ((delta, before), after) in self.deltas.iter_mut().zip(before).zip(after) {
            track_delta(delta, before, after, delta_decay(self.delay));
        }
    }

    /// Pulls the newest version and a reference model together.
    pub(super) fn average(&mut self, backend: &B, reference: &mut [Vec<f32>], alpha: f32) {
        for (layer, reference) in self.newest.layers_mut().iter_mut().zip(reference) {
            let mut weights = read(backend, layer, &layer.w);
            pull_together(&mut weights, reference, alpha);
            layer.set_weights(backend, &weights);
        }
    }

    /// What the line has taken, counted from what is there.
    pub(super) fn taken(&self, backend: &B) -> Bytes {
        let chunks = std::iter::once(&self.newest).chain(&self.free).chain(self.kept.values());
        let layers = chunks.flat_map(Chunk::layers);
        let deltas = self.deltas.iter().map(|delta| Bytes::of_f32(delta.len()));
        layers.map(|layer| layer.taken(backend)).chain(deltas).sum()
    }

    /// The newest weights, layer by layer.
    pub(super) fn weights(&self, backend: &B) -> Vec<Vec<f32>> {
        self.newest.layers().iter().map(|layer| read(backend, layer, &layer.w)).collect()
    }
}

fn read<B: Backend>(backend: &B, layer: &LayerState<B>, buffer: &B::Buffer) -> Vec<f32> {
    backend.download(View::new(buffer, 0..layer.spec.len()))
}
