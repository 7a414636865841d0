//! Layers whose updates replicas share: some compute the candidates, and the others get them.

use zbelastic_kernels::{AllocateError, Backend, BufferView, BufferViewMut};

use super::{InitialState, LayerRole, LayerState, LiveWeights};
use crate::layer_image::LayerImage;
use crate::model::config::ModelConfig;
use crate::model::tensors::LayerSpec;

/// What a replica does of the updates of a layer, where the optimizer is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardPart {
    /// It has the moments, and computes candidates that others get.
    Updated,
    /// It gets the candidates of another.
    Gathered,
}

impl<B: Backend> LayerState<B> {
    /// The layer of an image, trained with others: this replica updates it and sends its candidates, or gets
    /// those of another and has no moments.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If the image is of another layer, or of another length.
    pub fn of_sharded(
        backend: &B,
        model: &ModelConfig,
        spec: LayerSpec,
        image: &LayerImage,
        part: ShardPart,
    ) -> Result<Self, AllocateError> {
        let (start, role) = match part {
            ShardPart::Updated => {
                (InitialState::of_image(backend, &spec, image)?, LayerRole::Shared)
            }
            ShardPart::Gathered => {
                (InitialState::of_weights_in(backend, &spec, image)?, LayerRole::Gathered)
            }
        };
        Self::with_role(backend, model, spec, start, role)
    }

    /// Puts the weights in force of what has a gradient behind the floats that `to` has, each where its gradient
    /// lies. Waits for the device.
    ///
    /// # Panics
    /// If a candidate is in force that has no place of its own.
    pub(crate) fn weights_in_force_to(&self, backend: &B, to: &mut Vec<f32>) {
        let live = match (self.live, &self.non_matrix) {
            (LiveWeights::State, _) => &self.w,
            (LiveWeights::Candidate, None) => &self.candidate,
            (LiveWeights::Candidate, Some(_)) => panic!("candidates that are sent lie whole"),
        };
        for tensor in self.spec.tensors.iter().filter(|tensor| tensor.gradient.is_some()) {
            backend.download_to(BufferView::new(live, tensor.range.clone()), to);
        }
    }

    /// Puts a candidate in force that another replica computed: the weights of what has a gradient.
    ///
    /// # Panics
    /// If this layer's candidates are computed here, or they are not as many.
    pub(crate) fn gather_candidate(&mut self, backend: &B, weights: &[f32]) {
        assert_eq!(self.role, LayerRole::Gathered, "what is computed here is not gathered");
        assert_eq!(weights.len(), self.spec.gradient_len(), "a candidate of this layer");
        let mut left = weights;
        for tensor in self.spec.tensors.iter().filter(|tensor| tensor.gradient.is_some()) {
            let (floats, rest) = left.split_at(tensor.range.len());
            backend.upload(floats, BufferViewMut::new(&mut self.candidate, tensor.range.clone()));
            left = rest;
        }
        self.live = LiveWeights::Candidate;
        for (matrix, linear) in self.matrices.iter_mut().zip(self.parts.matrices()) {
            if linear.adapters.is_empty() {
                let candidate = BufferView::new(&self.candidate, linear.weight.clone());
                backend.load_matrix(candidate, matrix);
            }
        }
        self.load_adapters(backend);
    }

    /// Whether a candidate is missing that another replica computes.
    pub(crate) fn lacks_candidate(&self) -> bool {
        self.role == LayerRole::Gathered && self.live == LiveWeights::State
    }

    /// Whether the moments are here: not where candidates are gathered.
    #[must_use]
    pub(crate) fn has_moments(&self) -> bool {
        self.role != LayerRole::Gathered
    }
}

impl<B: Backend> InitialState<B> {
    /// The weights of an image, without its moments.
    fn of_weights_in(
        backend: &B,
        spec: &LayerSpec,
        image: &LayerImage,
    ) -> Result<Self, AllocateError> {
        assert_eq!(spec.layer, image.layer, "a layer is restored as itself");
        assert_eq!(spec.len(), image.w.len(), "an image is as long as its layer");
        let nothing = || backend.allocate(0);
        let [w, m, v] = [backend.adopt(&image.w)?, nothing()?, nothing()?];
        Ok(Self { w, m, v, version: image.version })
    }
}
