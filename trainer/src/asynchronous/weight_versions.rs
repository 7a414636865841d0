//! The weight versions of a chunk: its newest weights with all that trains them, and the versions
//! that are kept beside them.
//!
//! Versions are kept, predicted, corrected and averaged in the device's memory, in the order of its
//! work: the host waits for nothing but the sums of squares of an update.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_kernels::{AllocateError, Backend, BufferView, BufferViewMut, ByteCounts};
use zbelastic_schedule::asynchronous::{VersionShift, WeightPrediction, WeightVersion};
use zbelastic_types::{Bytes, Step};

use super::rules::{annealed_share, delta_decay};
use super::setup::AsyncSetup;
use super::stage::AsyncUpdate;
use crate::model::{Chunk, LayerSpec, LayerState};
use crate::optimizer::{OptimizerUpdate, clip_coefficient, replay, skip, square_sums};

/// The weights of a chunk in one pipeline.
pub(super) struct WeightVersions<B: Backend> {
    /// The newest version, its moments and the gradient that is adding up.
    pub newest: Chunk<B>,
    /// Version number of the newest weights.
    pub version: WeightVersion,
    /// Updates that were not left out.
    pub updates: u64,
    /// Microbatches in the gradient.
    pub accumulated: u32,
    kept: BTreeMap<WeightVersion, Chunk<B>>,
    /// Memory for as many more versions as the plan claims.
    free: Vec<Chunk<B>>,
    /// The mean changes that corrections are computed from (PipeMare).
    deltas: Option<WeightDeltas<B::Buffer>>,
    /// How far back the correction goes, in updates; 0 if there is none.
    delay: f64,
}

/// The changes of a chunk's weights.
struct WeightDeltas<T> {
    /// In an update, in the mean, layer by layer.
    means: Vec<T>,
    /// By the layer's length, its weights before an update.
    before: BTreeMap<usize, T>,
}

impl<T> WeightDeltas<T> {
    fn new<B: Backend<Buffer = T>>(
        backend: &B,
        specs: &[LayerSpec],
    ) -> Result<Self, AllocateError> {
        let means = specs.iter().map(|spec| backend.allocate(spec.len()));
        let means = means.collect::<Result<_, _>>()?;
        let before = lens(specs).map(|len| Ok((len, backend.allocate(len)?)));
        Ok(Self { means, before: before.collect::<Result<_, _>>()? })
    }

    fn buffers(&self) -> impl Iterator<Item = &T> {
        self.means.iter().chain(self.before.values())
    }
}

/// The different lengths of layers.
fn lens(specs: &[LayerSpec]) -> impl Iterator<Item = usize> {
    specs.iter().map(LayerSpec::len).collect::<BTreeSet<_>>().into_iter()
}

/// The bytes of the buffers that corrections of a chunk of these layers are made of.
pub(super) fn change_bytes<B: ByteCounts>(backend: &B, specs: &[LayerSpec]) -> Bytes {
    let all = specs.iter().map(LayerSpec::len).chain(lens(specs));
    Bytes(all.map(|len| backend.buffer_bytes(len)).sum())
}

/// The plan that the weight versions of a chunk are made from.
pub(super) struct WeightVersionsPlan<'a> {
    pub setup: &'a AsyncSetup,
    pub specs: &'a [LayerSpec],
    pub replica: u32,
    /// Versions kept beside the newest, at most.
    pub kept_max: usize,
    /// How far back a correction goes, in updates; 0 if there is none.
    pub delay: f64,
}

impl<B: Backend> WeightVersions<B> {
    pub(super) fn new(backend: &B, plan: &WeightVersionsPlan<'_>) -> Result<Self, AllocateError> {
        let WeightVersionsPlan { setup, specs, replica, kept_max, delay } = *plan;
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
        let deltas = (delay > 0.0).then(|| WeightDeltas::new(backend, specs)).transpose()?;
        let version = WeightVersion { replica, ..WeightVersion::new(0) };
        let kept = BTreeMap::new();
        Ok(Self { newest, version, updates: 0, accumulated: 0, kept, free, deltas, delay })
    }

    /// The weights that a pass reads.
    ///
    /// # Panics
    /// If they are not there, which a checked program does not lead to.
    pub(super) fn reading(&self, version: WeightVersion) -> &Chunk<B> {
        if version == self.version {
            return &self.newest;
        }
        self.kept.get(&version).unwrap_or_else(|| panic!("version {version} is kept"))
    }

    /// Keeps the newest version beside.
    pub(super) fn stash(&mut self, backend: &B) {
        let mut chunk = self.take_free();
        for (kept, layer) in chunk.layers_mut().iter_mut().zip(self.newest.layers()) {
            kept.copy_weights(backend, layer);
        }
        self.keep(self.version, chunk);
    }

    /// Makes a temporary version of the newest.
    pub(super) fn predict(
        &mut self,
        setup: &AsyncSetup,
        backend: &B,
        rule: WeightPrediction,
        version: WeightVersion,
    ) {
        let lr = setup.lr_of_update(version.replica, version.base);
        let distance = match version.shift {
            VersionShift::Ahead(updates) => f64::from(updates),
            VersionShift::Back(_) => self.delay,
            VersionShift::None => unreachable!("a temporary version lies somewhere else"),
        };
        let mut chunk = self.take_free();
        let layers = chunk.layers_mut().iter_mut().zip(self.newest.layers());
        for (index, (predicted, layer)) in layers.enumerate() {
            let LayerState { w, m, v, .. } = layer;
            // Without an update there is no state to predict from.
            if matches!(rule, WeightPrediction::Adam) && self.updates == 0 {
                predicted.copy_weights(backend, layer);
                continue;
            }
            predicted.write_weights(backend, |to| match rule {
                WeightPrediction::Adam => {
                    let numbers = setup.optimizer.numbers(lr * distance, self.updates, 1.0, 0.0);
                    backend.adam_ahead(w, m, v, numbers, to);
                }
                WeightPrediction::Momentum => {
                    backend.weights_along(w, m, (lr * distance) as f32, to)
                }
                WeightPrediction::Delta => {
                    let deltas = self.deltas.as_ref().expect("a correction has a delay");
                    backend.weights_along(w, &deltas.means[index], distance as f32, to);
                }
            });
        }
        self.keep(version, chunk);
    }

    fn take_free(&mut self) -> Chunk<B> {
        self.free.pop().expect("the plan claims what is kept")
    }

    fn keep(&mut self, version: WeightVersion, chunk: Chunk<B>) {
        let before = self.kept.insert(version, chunk);
        assert!(before.is_none(), "version {version} is made once");
    }

    /// Gives the memory of a version back.
    pub(super) fn free(&mut self, version: WeightVersion) {
        let chunk = self.kept.remove(&version);
        self.free.push(chunk.unwrap_or_else(|| panic!("version {version} is kept")));
    }

    /// Makes the next version from the gradient, or leaves the update out if it is not finite.
    pub(super) fn step(&mut self, setup: &AsyncSetup, backend: &B) -> AsyncUpdate {
        let WeightVersion { replica, base, .. } = self.version;
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
            let update =
                OptimizerUpdate { config: &setup.optimizer, lr, number: self.updates, clip };
            self.apply_update(backend, &update, at);
        } else {
            self.skip_update(backend, at);
        }
        self.accumulated = 0;
        self.version.base += 1;
        AsyncUpdate { version: self.version, lr, norm, coefficient: is_finite.then_some(clip) }
    }

    /// The factor of an update's learning rate: that of a warm-up is not late, and
    /// annealing begins behind it.
    fn rate_share(&self, setup: &AsyncSetup, update: u32) -> f64 {
        match update.checked_sub(setup.plan.program.variant.warm_up()) {
            Some(update) => annealed_share(self.delay, update, setup.knobs.anneal_updates),
            None => 1.0,
        }
    }

    fn apply_update(&mut self, backend: &B, update: &OptimizerUpdate<'_>, at: Step) {
        let decay = delta_decay(self.delay);
        for (index, layer) in self.newest.layers_mut().iter_mut().enumerate() {
            let Some(deltas) = &mut self.deltas else {
                replay(backend, layer, update, at);
                continue;
            };
            let len = layer.spec.len();
            let before = deltas.before.get_mut(&len).expect("there is one for each length");
            backend.copy(BufferView::new(&layer.w, 0..len), BufferViewMut::new(before, 0..len));
            replay(backend, layer, update, at);
            backend.track_change(before, &layer.w, decay, &mut deltas.means[index]);
        }
    }

    fn skip_update(&mut self, backend: &B, at: Step) {
        let decay = delta_decay(self.delay);
        for (index, layer) in self.newest.layers_mut().iter_mut().enumerate() {
            skip(layer, at);
            if let Some(deltas) = &mut self.deltas {
                backend.track_change(&layer.w, &layer.w, decay, &mut deltas.means[index]);
            }
        }
    }

    /// Pulls the newest version and a reference model together.
    pub(super) fn average(&mut self, backend: &B, reference: &mut [B::Buffer], alpha: f32) {
        for (layer, reference) in self.newest.layers_mut().iter_mut().zip(reference) {
            layer.write_weights(backend, |w| backend.pull_together(alpha, w, reference));
        }
    }

    /// A model that the newest version and those of other pipelines pull, which begins as this one.
    pub(super) fn reference(&self, backend: &B) -> Result<Vec<B::Buffer>, AllocateError> {
        let copied = |layer: &LayerState<B>| {
            let all = 0..layer.spec.len();
            let mut copy = backend.allocate(all.len())?;
            backend
                .copy(BufferView::new(&layer.w, all.clone()), BufferViewMut::new(&mut copy, all));
            Ok(copy)
        };
        self.newest.layers().iter().map(copied).collect()
    }

    /// Bytes that all versions have allocated, counted from their buffers.
    pub(super) fn allocated_bytes(&self, backend: &B) -> Bytes {
        let chunks = std::iter::once(&self.newest).chain(&self.free).chain(self.kept.values());
        let layers = chunks.flat_map(Chunk::layers);
        let deltas = self.deltas.iter().flat_map(WeightDeltas::buffers);
        let deltas = deltas.map(|buffer| Bytes(backend.buffer_bytes(backend.len(buffer))));
        layers.map(|layer| layer.allocated_bytes(backend)).chain(deltas).sum()
    }
}
