//! A layer's parameters with all that belongs to training them.

use std::ops::Range;

use zbelastic_kernels::{AdamWNumbers, AllocateError, Backend, MatrixPart, View, ViewMut};
use zbelastic_types::{Bytes, Step};

use super::config::ModelConfig;
use super::parts::LayerParts;
use super::tensors::LayerSpec;
use crate::elastic::LayerImage;

/// Which weights the passes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// The state's.
    State,
    /// Those of a step that is not sealed yet.
    Candidate,
}

/// What a layer is for, which says what it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Passes and optimistic updates: everything.
    Trained,
    /// Updates that are decided on: no candidate, no matrix.
    Replayed,
    /// Passes alone: weights and matrices.
    Frozen,
}

/// Weights, candidate, moments and gradient of one layer on a device.
///
/// The *pre-image* `w`, `m`, `v` is written by [`Self::commit_candidate`] and by the optimizer's
/// commit, nowhere else; the candidate lies beside it, so that dropping it restores everything.
pub struct LayerState<B: Backend> {
    /// Its tensors.
    pub spec: LayerSpec,
    /// Where its operations' parameters lie.
    pub parts: LayerParts,
    /// Weights.
    pub w: B::Buffer,
    /// Weights of a step that is not sealed yet.
    pub candidate: B::Buffer,
    /// First moments.
    pub m: B::Buffer,
    /// Second moments.
    pub v: B::Buffer,
    /// Gradient.
    pub g: B::Buffer,
    matrices: Vec<B::Matrix>,
    live: Live,
    version: Step,
}

impl<B: Backend> LayerState<B> {
    /// A layer with these weights and moments of zero.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn new(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        weights: &[f32],
    ) -> Result<Self, AllocateError> {
        Self::with_room(backend, model, spec, weights, Room::Trained)
    }

    fn with_room(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        weights: &[f32],
        room: Room,
    ) -> Result<Self, AllocateError> {
        let parts = LayerParts::new(model, &spec);
        let buffer = |is_needed| backend.allocate(if is_needed { spec.len() } else { 0 });
        let (mut w, candidate) = (buffer(true)?, buffer(room == Room::Trained)?);
        let is_updated = room != Room::Frozen;
        let (m, v, g) = (buffer(is_updated)?, buffer(is_updated)?, buffer(is_updated)?);
        backend.upload(weights, ViewMut::new(&mut w, 0..spec.len()));
        let allocate = |linear: &super::parts::LinearParts| backend.allocate_matrix(linear.shape);
        let read = parts.matrices().into_iter().filter(|_| room != Room::Replayed);
        let matrices = read.map(allocate).collect::<Result<_, _>>()?;
        let (live, version) = (Live::State, Step(0));
        let mut state = Self { spec, parts, w, candidate, m, v, g, matrices, live, version };
        state.load_matrices(backend);
        Ok(state)
    }

    /// A layer with these weights that can be read and not trained: it has no candidate, no moments
    /// and no gradient.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn frozen(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        weights: &[f32],
    ) -> Result<Self, AllocateError> {
        Self::with_room(backend, model, spec, weights, Room::Frozen)
    }

    /// A layer with these weights and moments of zero on which the optimizer is replayed and no
    /// pass is run: it has no candidate, and no matrix in the form products read.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn replayed(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        weights: &[f32],
    ) -> Result<Self, AllocateError> {
        Self::with_room(backend, model, spec, weights, Room::Replayed)
    }

    /// What this layer has taken, counted from what is there.
    #[must_use]
    pub fn taken(&self, backend: &B) -> Bytes {
        let Self { parts, w, candidate, m, v, g, matrices, .. } = self;
        let buffers =
            [w, candidate, m, v, g].map(|buffer| backend.buffer_bytes(backend.len(buffer)));
        let matrices = parts.matrices().into_iter().zip(matrices);
        let matrices = matrices.map(|(linear, _)| backend.matrix_bytes(linear.shape));
        Bytes(buffers.into_iter().chain(matrices).sum())
    }

    /// Puts other weights in force; moments and gradient stay.
    pub(crate) fn set_weights(&mut self, backend: &B, weights: &[f32]) {
        backend.upload(weights, ViewMut::new(&mut self.w, 0..self.spec.len()));
        self.set_live(backend, Live::State);
    }

    /// The weights that the passes read.
    #[must_use]
    pub fn weights(&self) -> &B::Buffer {
        match self.live {
            Live::State => &self.w,
            Live::Candidate => &self.candidate,
        }
    }

    /// A parameter that the passes read.
    #[must_use]
    pub fn view(&self, range: &Range<usize>) -> View<'_, B::Buffer> {
        View::new(self.weights(), range.clone())
    }

    /// The matrix at `index` of [`LayerParts::matrices`].
    #[must_use]
    pub fn matrix(&self, index: usize) -> &B::Matrix {
        &self.matrices[index]
    }

    /// Which weights are in force.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live
    }

    /// Puts the state's weights or the candidate in force.
    pub fn set_live(&mut self, backend: &B, live: Live) {
        self.live = live;
        self.load_matrices(backend);
    }

    /// Computes candidate weights from the untouched state and puts them in force. `runs` cover the
    /// layer, each with its numbers.
    pub(crate) fn compute_candidate(
        &mut self,
        backend: &B,
        runs: impl Iterator<Item = (Range<usize>, AdamWNumbers)>,
    ) {
        let Self { parts, w, candidate, m, v, g, matrices, .. } = self;
        for_each_run(parts, matrices, runs, |range, numbers, within| {
            backend.adamw_candidate(range, w, m, v, g, numbers, candidate, within);
        });
        self.live = Live::Candidate;
    }

    /// Updates weights and moments in place, as a trainer without validation does. `runs` cover
    /// the layer, each with its numbers.
    ///
    /// # Panics
    /// If a candidate is in force.
    pub(crate) fn update_in_place(
        &mut self,
        backend: &B,
        runs: impl Iterator<Item = (Range<usize>, AdamWNumbers)>,
    ) {
        assert_eq!(self.live, Live::State, "there is nothing to validate");
        let Self { parts, w, m, v, g, matrices, .. } = self;
        for_each_run(parts, matrices, runs, |range, numbers, within| {
            backend.adamw_in_place(range, g, numbers, w, m, v, within);
        });
    }

    /// The step whose verdict is applied next.
    #[must_use]
    pub fn version(&self) -> Step {
        self.version
    }

    /// Counts the verdict on `step` as applied.
    ///
    /// # Panics
    /// If it is not the next one (rule R8).
    pub(crate) fn advance_from(&mut self, step: Step) {
        assert_eq!(self.version, step, "R8: a verdict is applied once, to the version before it");
        self.version = step.next();
    }

    /// The sealed state as it travels; never the candidate.
    #[must_use]
    pub fn image(&self, backend: &B) -> LayerImage {
        let read = |buffer: &B::Buffer| backend.download(View::new(buffer, 0..self.spec.len()));
        let (w, m, v) = (read(&self.w), read(&self.m), read(&self.v));
        LayerImage { layer: self.spec.layer, version: self.version, w, m, v }
    }

    /// Takes the state that travelled here.
    ///
    /// # Panics
    /// If it is of another layer, or of another length.
    pub fn restore(&mut self, backend: &B, image: &LayerImage) {
        assert_eq!(self.spec.layer, image.layer, "a layer is restored as itself");
        let len = self.spec.len();
        for (floats, buffer) in
            [(&image.w, &mut self.w), (&image.m, &mut self.m), (&image.v, &mut self.v)]
        {
            backend.upload(floats, ViewMut::new(buffer, 0..len));
        }
        self.version = image.version;
        self.set_live(backend, Live::State);
    }

    /// The candidate becomes the state's weights; what the passes read stays what it was.
    ///
    /// # Panics
    /// If the candidate is not in force.
    pub fn commit_candidate(&mut self) {
        assert_eq!(self.live, Live::Candidate, "only a candidate in force is committed");
        std::mem::swap(&mut self.w, &mut self.candidate);
        self.live = Live::State;
    }

    fn load_matrices(&mut self, backend: &B) {
        let weights = match self.live {
            Live::State => &self.w,
            Live::Candidate => &self.candidate,
        };
        for (matrix, linear) in self.matrices.iter_mut().zip(self.parts.matrices()) {
            backend.load_matrix(View::new(weights, linear.weight.clone()), matrix);
        }
    }
}

/// Calls `update` for each run with the matrices that lie within it.
fn for_each_run<M>(
    parts: &LayerParts,
    matrices: &mut [M],
    runs: impl Iterator<Item = (Range<usize>, AdamWNumbers)>,
    mut update: impl FnMut(Range<usize>, AdamWNumbers, &mut [MatrixPart<'_, M>]),
) {
    let ranges = parts.matrices().into_iter().map(|linear| linear.weight.clone());
    let mut forms = ranges.zip(matrices).peekable();
    for (range, numbers) in runs {
        let mut within = Vec::new();
        while let Some((range, matrix)) = forms.next_if(|(form, _)| form.end <= range.end) {
            within.push(MatrixPart { range, matrix });
        }
        update(range, numbers, &mut within);
    }
    assert!(forms.peek().is_none(), "the runs cover every matrix");
}
