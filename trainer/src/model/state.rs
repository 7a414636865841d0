//! A layer's parameters with all that belongs to training them.

mod sharded;

use std::ops::Range;

use zbelastic_kernels::{
    AllocateError, Backend, BufferView, BufferViewMut, DeviceFault, LayerCandidate,
    PackedWeightsOptimizer, Pending, UpdateState,
};
use zbelastic_types::{Bytes, Fingerprint, Step};

use super::config::ModelConfig;
use super::layer_update::{LayerUpdate, UpdateTarget, placed};
use super::mixing::mix;
use super::parts::{LayerParts, NonMatrixLayout};
use super::tensors::{LayerSpec, TensorSpec};
use crate::layer_image::{LayerImage, PendingImage, fingerprint};

pub use sharded::ShardPart;

/// Which weights the passes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiveWeights {
    State,
    /// Those of a step that is not sealed yet.
    Candidate,
}

/// The purpose of a layer, which decides the memory that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayerRole {
    /// Passes and optimistic updates: everything.
    Trained,
    /// The same, where other replicas get the candidate: all of it has a place of its own.
    Shared,
    /// Passes, and candidates that others compute: no moments.
    Gathered,
    /// Updates that are decided on: no candidate, no matrix.
    Replayed,
    /// Passes alone: weights and matrices.
    Frozen,
}

/// The use of a state that a commit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCommit {
    /// Nothing that changes how the commit runs.
    Nothing,
    /// The state that the commit leaves is attested.
    Attest,
}

/// Weights, candidate, moments and gradient of one layer on a device.
///
/// A step writes the *pre-image* `w`, `m`, `v` by [`Self::commit_candidate`] or
/// [`Self::update_in_place`] alone; the candidate lies beside it, so that dropping it restores
/// everything. Beside steps [`Self::write_weights`] does, for versions of weights. On a device
/// whose candidates are packed weights ([`Optimizer::packed_weights_optimizer`]) those of matrices
/// are the packed weights that passes read, and only the parameters in no matrix have a place of
/// their own.
pub struct LayerState<B: Backend> {
    /// The layer's id and kind, and its tensors in order.
    pub spec: LayerSpec,
    /// Where its operations' parameters lie.
    pub parts: LayerParts,
    /// Weights of the state; a candidate does not change them.
    pub w: B::Buffer,
    /// Weights of a step that is not sealed yet: all of them, or those of no matrix.
    candidate: B::Buffer,
    /// The places in the candidate of parameters that are in no matrix, if no others lie there.
    non_matrix: Option<NonMatrixLayout>,
    /// First moments of AdamW, and Muon's momentum, of what has moments ([`TensorSpec::moments`]).
    ///
    /// [`TensorSpec::moments`]: super::tensors::TensorSpec::moments
    pub m: B::Buffer,
    /// Second moments of AdamW; those of Muon's matrices stay zero.
    pub v: B::Buffer,
    /// Gradient, summed over microbatches, of what has one ([`LayerSpec::gradient_of`]).
    pub g: B::Buffer,
    matrices: Vec<B::Matrix>,
    /// Both matrices of each adapter, where W runs.
    pub(super) adapters: Vec<[B::Matrix; 2]>,
    live: LiveWeights,
    /// The update whose candidate lies in the packed weights and was not requested yet. While it
    /// does, they must not be read: [`Self::undo_computed_ahead`].
    computed_ahead: Option<LayerUpdate>,
    version: Step,
    /// Those of the state's fingerprint, if the pass that wrote the state left them.
    sums: Option<Pending<[u64; 2]>>,
    role: LayerRole,
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
        let moments = spec.state_len().moments;
        let start = InitialState::of_weights(backend, weights, moments)?;
        Self::with_role(backend, model, spec, start, LayerRole::Trained)
    }

    /// The layer of an image, to be trained. Tensors of the image that lie where the device reads
    /// them are not copied until they are written, or the image is gone.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If the image is of another layer, or of another length.
    pub fn of_image(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        image: &LayerImage,
    ) -> Result<Self, AllocateError> {
        let start = InitialState::of_image(backend, &spec, image)?;
        Self::with_role(backend, model, spec, start, LayerRole::Trained)
    }

    fn with_role(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        InitialState { w, m, v, version }: InitialState<B>,
        role: LayerRole,
    ) -> Result<Self, AllocateError> {
        let parts = LayerParts::new(model, &spec);
        let non_matrix = match role {
            LayerRole::Shared | LayerRole::Gathered => None,
            LayerRole::Trained | LayerRole::Replayed | LayerRole::Frozen => {
                non_matrix_layout(backend, &parts, &spec)
            }
        };
        let of_candidate = match role {
            LayerRole::Trained => non_matrix.as_ref().map_or(spec.len(), NonMatrixLayout::floats),
            LayerRole::Shared | LayerRole::Gathered => spec.len(),
            LayerRole::Replayed | LayerRole::Frozen => 0,
        };
        // A commit makes it the weights of the state, which others may hold when this is gone.
        let candidate = backend.allocate_apart(of_candidate)?;
        let of_gradient = if role == LayerRole::Frozen { 0 } else { spec.gradient_len() };
        let g = backend.allocate(of_gradient)?;
        let allocate = |linear: &super::parts::LinearParts| backend.allocate_matrix(linear.shape);
        let read = parts.matrices().into_iter().filter(|_| role != LayerRole::Replayed);
        let matrices = read.map(allocate).collect::<Result<_, _>>()?;
        let adapters = adapter_matrices(backend, &parts, role)?;
        let live = LiveWeights::State;
        let computed_ahead = None;
        let sums = None;
        let mut state = Self {
            spec,
            parts,
            w,
            candidate,
            non_matrix,
            m,
            v,
            g,
            matrices,
            adapters,
            live,
            computed_ahead,
            version,
            sums,
            role,
        };
        if of_candidate > 0 {
            state.copy_frozen_to_candidate(backend);
        }
        state.put_state_in_force(backend);
        Ok(state)
    }

    /// No update writes frozen parameters: what a candidate has of them was put there once. A
    /// commit that exchanges state and candidate leaves it true.
    fn copy_frozen_to_candidate(&mut self, backend: &B) {
        let Self { spec, parts, w, candidate, non_matrix, .. } = self;
        let is_in_matrix = |range: &Range<usize>| {
            let mut matrices = parts.matrices().into_iter();
            matrices
                .any(|matrix| matrix.weight.start <= range.start && range.end <= matrix.weight.end)
        };
        for tensor in spec.tensors.iter().filter(|tensor| tensor.is_frozen) {
            let place = match non_matrix {
                Some(_) if is_in_matrix(&tensor.range) => continue,
                Some(layout) => layout.place(&tensor.range),
                None => tensor.range.clone(),
            };
            let from = BufferView::new(&*w, tensor.range.clone());
            backend.copy(from, BufferViewMut::new(candidate, place));
        }
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
        let start = InitialState::of_weights(backend, weights, 0)?;
        Self::with_role(backend, model, spec, start, LayerRole::Frozen)
    }

    /// The layer of an image on which the optimizer is replayed and no pass is run: it has no
    /// candidate, and no packed weights. The image is adopted as [`Self::of_image`] adopts it.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If the image is of another layer, or of another length.
    pub fn replayed(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        image: &LayerImage,
    ) -> Result<Self, AllocateError> {
        let start = InitialState::of_image(backend, &spec, image)?;
        Self::with_role(backend, model, spec, start, LayerRole::Replayed)
    }

    /// Bytes that this layer has allocated, counted from its buffers.
    #[must_use]
    pub fn allocated_bytes(&self, backend: &B) -> Bytes {
        let Self { parts, w, candidate, m, v, g, matrices, adapters, .. } = self;
        let buffers =
            [w, candidate, m, v, g].map(|buffer| backend.buffer_bytes(backend.len(buffer)));
        let matrices = parts.matrices().into_iter().zip(matrices);
        let matrices = matrices.map(|(linear, _)| backend.matrix_bytes(linear.shape));
        let adapters = parts.adapters().into_iter().zip(adapters);
        let adapters = adapters.flat_map(|((adapter, inputs), _)| adapter.shapes(inputs));
        let adapters = adapters.map(|shape| backend.matrix_bytes(shape));
        Bytes(buffers.into_iter().chain(matrices).chain(adapters).sum())
    }

    /// The floats of its trained tensors as they are sealed, in order. Waits for the device.
    pub(crate) fn trained_weights(&self, backend: &B) -> Vec<f32> {
        let read =
            |tensor: &TensorSpec| backend.download(BufferView::new(&self.w, tensor.range.clone()));
        self.spec.trained_tensors().flat_map(read).collect()
    }

    /// Mixes weights into its trained tensors, of whose own this share stays, and puts them in force. On
    /// the host, so that every device comes to the same bits.
    pub(crate) fn mix_weights(&mut self, backend: &B, others: &[f32], local_share: f32) {
        let mut own = self.trained_weights(backend);
        mix(&mut own, others, local_share);
        let ranges: Vec<_> =
            self.spec.trained_tensors().map(|tensor| tensor.range.clone()).collect();
        self.write_weights(backend, |w| {
            let mut left = &own[..];
            for range in ranges {
                let (floats, rest) = left.split_at(range.len());
                backend.upload(floats, BufferViewMut::new(w, range));
                left = rest;
            }
        });
    }

    /// Puts other weights in force; moments and gradient stay.
    pub(crate) fn set_weights(&mut self, backend: &B, weights: &[f32]) {
        let all = 0..self.spec.len();
        self.write_weights(backend, |w| backend.upload(weights, BufferViewMut::new(w, all)));
    }

    /// Puts the weights of another layer like this one in force, without a wait for a device.
    pub(crate) fn copy_weights(&mut self, backend: &B, of: &Self) {
        let all = 0..self.spec.len();
        self.write_weights(backend, |w| {
            backend.copy(BufferView::new(&of.w, all.clone()), BufferViewMut::new(w, all));
        });
    }

    /// Puts in force the weights that `write` writes.
    pub(crate) fn write_weights(&mut self, backend: &B, write: impl FnOnce(&mut B::Buffer)) {
        self.settle_state(backend);
        write(&mut self.w);
        self.sums = None;
        if backend.len(&self.candidate) > 0 {
            self.copy_frozen_to_candidate(backend);
        }
        self.put_state_in_force(backend);
    }

    /// A parameter that the passes read, and that is of no matrix.
    #[must_use]
    pub fn view(&self, range: &Range<usize>) -> BufferView<'_, B::Buffer> {
        match (self.live, &self.non_matrix) {
            (LiveWeights::State, _) => BufferView::new(&self.w, range.clone()),
            (LiveWeights::Candidate, None) => BufferView::new(&self.candidate, range.clone()),
            (LiveWeights::Candidate, Some(layout)) => {
                BufferView::new(&self.candidate, layout.place(range))
            }
        }
    }

    /// The matrix at `index` of [`LayerParts::matrices`].
    #[must_use]
    pub fn matrix(&self, index: usize) -> &B::Matrix {
        &self.matrices[index]
    }

    /// Puts the state's weights in force: a candidate is dropped.
    pub fn put_state_in_force(&mut self, backend: &B) {
        (self.live, self.computed_ahead) = (LiveWeights::State, None);
        for (matrix, linear) in self.matrices.iter_mut().zip(self.parts.matrices()) {
            if linear.adapters.is_empty() {
                backend.load_matrix(BufferView::new(&self.w, linear.weight.clone()), matrix);
            }
        }
        self.load_adapters(backend);
    }

    /// Puts the adapters in force that are among the live parameters: in the matrices that they adapt, which
    /// are frozen themselves, and for W.
    fn load_adapters(&mut self, backend: &B) {
        let mut matrices = std::mem::take(&mut self.matrices);
        let mut adapters = std::mem::take(&mut self.adapters);
        for (matrix, linear) in matrices.iter_mut().zip(self.parts.matrices()) {
            if linear.adapters.is_empty() {
                continue;
            }
            assert!(!linear.is_trained(&self.spec), "what is adapted is frozen");
            let views =
                linear.adapters.iter().map(|adapter| adapter.view(|range| self.view(range)));
            let base = BufferView::new(&self.w, linear.weight.clone());
            backend.load_adapted_matrix(base, &views.collect::<Vec<_>>(), matrix);
        }
        for ([a, b], (parts, _)) in adapters.iter_mut().zip(self.parts.adapters()) {
            backend.load_matrix(self.view(&parts.a), a);
            backend.load_matrix(self.view(&parts.b), b);
        }
        (self.matrices, self.adapters) = (matrices, adapters);
    }

    /// Computes candidate weights from the untouched state and puts them in force. One that was
    /// computed before it was requested is there already.
    ///
    /// Of a layer whose candidates others compute nothing is computed, and its state is in force until one came.
    pub(crate) fn compute_candidate(&mut self, backend: &B, update: &LayerUpdate) {
        if self.role == LayerRole::Gathered {
            if self.spec.gradient_len() == 0 {
                // All of it is frozen: nobody sends it, and the candidate is there already.
                self.live = LiveWeights::Candidate;
            } else if self.live == LiveWeights::Candidate {
                self.put_state_in_force(backend);
            }
            return;
        }
        self.live = LiveWeights::Candidate;
        if self.computed_ahead.take().is_some_and(|ahead| ahead == *update) {
            self.load_adapters(backend);
            return;
        }
        let optimizer = self.packed_weights_optimizer(backend);
        let Self { parts, w, candidate, m, v, g, matrices, .. } = self;
        if let Some(optimizer) = optimizer {
            let mut matrices = placed(parts, matrices);
            let state = UpdateState { w, m, v, g };
            optimizer.candidate(&update.adamw, state, candidate, &mut matrices);
            update.pack_muon(backend, [w, m, g], &mut matrices);
        } else {
            let target = UpdateTarget::Candidate { w, m, v, candidate };
            update.apply(backend, (parts, matrices), g, target);
        }
        self.load_adapters(backend);
    }

    /// The device's optimizer of packed weights, if the candidates of this layer are such.
    fn packed_weights_optimizer<'b>(
        &self,
        backend: &'b B,
    ) -> Option<&'b dyn PackedWeightsOptimizer<B::Buffer, B::Matrix>> {
        self.non_matrix.as_ref().and(backend.packed_weights_optimizer())
    }

    /// The next candidate is computed whole, to the same bits, even if parts of it are there.
    pub(crate) fn forget_computed_ahead(&mut self) {
        self.computed_ahead = None;
    }

    /// The buffers and matrices that a device needs to compute the candidate with the sums of
    /// squares, before it is requested. Once it has, packed weights are no longer those of the
    /// state.
    ///
    /// # Panics
    /// If a candidate is in force.
    pub(crate) fn candidate_ahead(
        &mut self,
        update: LayerUpdate,
    ) -> LayerCandidate<'_, B::Buffer, B::Matrix> {
        assert_eq!(self.live, LiveWeights::State, "a candidate in force is not computed again");
        let Self { spec, parts, w, candidate, m, v, g, matrices, computed_ahead, .. } = self;
        let tensors = spec.trained_tensors().map(|tensor| tensor.range.clone()).collect();
        let runs = computed_ahead.insert(update).all_adamw();
        let state = UpdateState { w, m, v, g };
        let matrices = placed(parts, matrices);
        LayerCandidate { runs, state, rest: candidate, matrices, tensors }
    }

    /// Undoes a candidate that was computed and not requested: before passes read weights.
    pub(crate) fn undo_computed_ahead(&mut self, backend: &B) {
        if self.computed_ahead.is_some() {
            self.put_state_in_force(backend);
        }
    }

    /// Updates weights and moments in place, as a trainer without validation does.
    ///
    /// # Panics
    /// If a candidate is in force.
    pub(crate) fn update_in_place(&mut self, backend: &B, update: &LayerUpdate) {
        assert_eq!(self.live, LiveWeights::State, "there is nothing to validate");
        (self.computed_ahead, self.sums) = (None, None);
        self.settle_state(backend);
        let Self { parts, w, m, v, g, matrices, .. } = self;
        update.apply(backend, (parts, matrices), g, UpdateTarget::InPlace { w, m, v });
        self.load_adapters(backend);
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

    /// The sealed state as it travels; never the candidate. Floats on the host are copied when they
    /// are written while the image is there, and not before.
    #[must_use]
    pub fn image(&self, backend: &B) -> LayerImage {
        let [w, m, v] = [&self.w, &self.m, &self.v].map(|part| backend.share(part));
        LayerImage { layer: self.spec.layer, version: self.version, w, m, v }
    }

    /// The same, on its way to the host: the device goes on meanwhile.
    #[must_use]
    pub fn pending_image(&mut self, backend: &B) -> PendingImage {
        let parts =
            [&mut self.w, &mut self.m, &mut self.v].map(|part| backend.begin_download(part));
        PendingImage::new(self.spec.layer, self.version, parts)
    }

    /// Writes to the gradient from now on come after the copy that still reads it.
    pub(crate) fn settle_gradient(&mut self, backend: &B) {
        backend.order_after_copies(&mut self.g);
    }

    /// Writes to weights and moments from now on come after the copies that still read
    /// them.
    fn settle_state(&mut self, backend: &B) {
        [&mut self.w, &mut self.m, &mut self.v]
            .into_iter()
            .for_each(|part| backend.order_after_copies(part));
    }

    /// The candidate becomes the state's weights, and the moments of the same step the state's;
    /// the weights that passes read stay as they were. `update` is the one that the candidate was
    /// computed of.
    ///
    /// Where a state is attested next, the device adds up its fingerprint in the same pass if it
    /// can.
    ///
    /// # Panics
    /// If the candidate is not in force.
    pub(crate) fn commit_candidate(
        &mut self,
        backend: &B,
        update: &LayerUpdate,
        then: AfterCommit,
    ) {
        assert_eq!(self.live, LiveWeights::Candidate, "only a candidate in force is committed");
        self.settle_state(backend);
        let optimizer = self.packed_weights_optimizer(backend);
        let Self { spec, w, candidate, m, v, g, role, .. } = self;
        let all_trained = spec.trained_tensors().count() == spec.tensors.len();
        let covers_all = all_trained && update.muon.is_empty();
        self.sums = match (optimizer, then) {
            (Some(optimizer), AfterCommit::Attest) if covers_all => {
                Some(optimizer.commit_and_sum(&update.adamw, g, w, m, v))
            }
            (Some(optimizer), AfterCommit::Attest | AfterCommit::Nothing) => {
                optimizer.commit(&update.adamw, g, w, m, v);
                update.commit_muon(backend, g, [w, m]);
                None
            }
            (None, _) => {
                if *role != LayerRole::Gathered {
                    update.commit(backend, g, [m, v]);
                }
                std::mem::swap(w, candidate);
                None
            }
        };
        self.live = LiveWeights::State;
    }

    /// The sums of the sealed state's fingerprint; never the candidate's. Those that a commit left
    /// are there; otherwise the device goes over the state.
    pub(crate) fn state_sums(&self, backend: &B) -> Pending<[u64; 2]> {
        let Self { w, m, v, .. } = self;
        self.sums.clone().unwrap_or_else(|| backend.state_sums(w, m, v))
    }

    /// The fingerprint of the sealed state from its sums, which are waited for.
    pub(crate) fn fingerprint_of(
        &self,
        sums: &Pending<[u64; 2]>,
    ) -> Result<Fingerprint, DeviceFault> {
        Ok(fingerprint(self.spec.layer, self.version, self.spec.state_len(), sums.wait()?))
    }
}

/// The first buffers of a layer's state.
struct InitialState<B: Backend> {
    w: B::Buffer,
    m: B::Buffer,
    v: B::Buffer,
    version: Step,
}

impl<B: Backend> InitialState<B> {
    /// These weights, and so many moments of zero.
    fn of_weights(backend: &B, weights: &[f32], moments: usize) -> Result<Self, AllocateError> {
        let mut w = backend.allocate(weights.len())?;
        backend.upload(weights, BufferViewMut::new(&mut w, 0..weights.len()));
        let moments = || backend.allocate(moments);
        Ok(Self { w, m: moments()?, v: moments()?, version: Step(0) })
    }

    fn of_image(backend: &B, spec: &LayerSpec, image: &LayerImage) -> Result<Self, AllocateError> {
        let LayerImage { layer, version, w, m, v } = image;
        assert_eq!(spec.layer, *layer, "a layer is restored as itself");
        assert_eq!(spec.state_len(), image.state_len(), "an image is as long as its layer");
        let w = backend.adopt(w)?;
        let m = backend.adopt(m)?;
        let v = backend.adopt(v)?;
        Ok(Self { w, m, v, version: *version })
    }
}

/// Memory for both matrices of each adapter of a layer whose W runs.
fn adapter_matrices<B: Backend>(
    backend: &B,
    parts: &LayerParts,
    role: LayerRole,
) -> Result<Vec<[B::Matrix; 2]>, AllocateError> {
    let runs_w = match role {
        LayerRole::Trained | LayerRole::Shared | LayerRole::Gathered => true,
        LayerRole::Replayed | LayerRole::Frozen => false,
    };
    let adapters = parts.adapters().into_iter().filter(|_| runs_w);
    let matrices = adapters.map(|(adapter, inputs)| {
        let [a, b] = adapter.shapes(inputs);
        Ok([backend.allocate_matrix(a)?, backend.allocate_matrix(b)?])
    });
    matrices.collect()
}

/// The places in a candidate of parameters that are in no matrix, on a device where no others lie
/// there.
fn non_matrix_layout<B: Backend>(
    backend: &B,
    parts: &LayerParts,
    spec: &LayerSpec,
) -> Option<NonMatrixLayout> {
    backend.packed_weights_optimizer().map(|_| NonMatrixLayout::new(parts, spec))
}
