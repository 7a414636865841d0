//! The optimizer's update of a layer.

use zbelastic_consensus::validation::TensorSum;
use zbelastic_kernels::reference::{AdamWState, adamw, muon};
use zbelastic_kernels::{
    AdamWRange, Backend, BufferView, MuonRange, PackedWeightsOptimizer, SquareSum,
};
use zbelastic_types::{Step, TensorIndex};

use super::config::OptimizerConfig;
use super::kind::{muon_coefficients, muon_matrix};
use crate::model::{AfterCommit, LayerSpec, LayerState, LayerUpdate, TensorSpec};

/// The sum of squares of each tensor's gradient, layer after layer, in one call of the device. A
/// frozen tensor has no gradient: it is reported as zero, which is not computed.
pub fn square_sums<'a, B: Backend + 'a>(
    backend: &B,
    layers: impl IntoIterator<Item = &'a LayerState<B>>,
) -> Vec<TensorSum> {
    let mut reported = Vec::new();
    let mut parts = Vec::new();
    for layer in layers {
        reported.extend(layer.spec.own_tensors().map(ReportedTensor::of));
        let trained = layer.spec.own_tensors().filter(|tensor| !tensor.is_frozen);
        let gradients = trained.map(|tensor| tensor.state_range().gradient());
        parts.extend(gradients.map(|range| BufferView::new(&layer.g, range)));
    }
    tensor_sums(&reported, backend.sum_squares_of_each(&parts))
}

/// A tensor that a layer reports.
struct ReportedTensor {
    tensor: TensorIndex,
    is_frozen: bool,
}

impl ReportedTensor {
    fn of(tensor: &TensorSpec) -> Self {
        Self { tensor: tensor.index, is_frozen: tensor.is_frozen }
    }
}

/// The same, and the candidates that an open gate would compute, from one read of the gradient.
/// They are not in force before [`compute_candidate`] is called for the same update.
pub fn square_sums_ahead<'a, B: Backend + 'a>(
    optimizer: &dyn PackedWeightsOptimizer<B::Buffer, B::Matrix>,
    layers: impl IntoIterator<Item = &'a mut LayerState<B>>,
    update: &OptimizerUpdate<'_>,
) -> Vec<TensorSum> {
    let mut reported = Vec::new();
    let mut are_owned = Vec::new();
    let candidate = |layer: &'a mut LayerState<B>| {
        reported.extend(layer.spec.own_tensors().map(ReportedTensor::of));
        are_owned.extend(layer.spec.trained_tensors().map(|tensor| !tensor.is_shared));
        layer.candidate_ahead(update.of_layer(&layer.spec))
    };
    let candidates = layers.into_iter().map(candidate).collect();
    let sums = are_owned.into_iter().zip(optimizer.candidates_and_squares(candidates));
    let sums = sums.filter(|(is_owned, _)| *is_owned).map(|(_, sum)| sum).collect();
    tensor_sums(&reported, sums)
}

/// The sums of trained tensors, in order, and zeros for the others.
fn tensor_sums(reported: &[ReportedTensor], trained: Vec<SquareSum>) -> Vec<TensorSum> {
    let mut trained = trained.into_iter();
    let sum = |ReportedTensor { tensor, is_frozen }: &ReportedTensor| {
        let tensor = *tensor;
        if *is_frozen {
            return TensorSum { tensor, square_sum: 0.0, nonfinite: 0 };
        }
        let SquareSum { sum, nonfinite } = trained.next().expect("a sum a trained tensor");
        TensorSum { tensor, square_sum: sum, nonfinite }
    };
    reported.iter().map(sum).collect()
}

/// The factor of a gradient of this norm, where it need not be agreed on with other
/// stages.
#[must_use]
pub fn clip_coefficient(clip_norm: Option<f64>, norm: f64) -> f32 {
    let coefficient = clip_norm.map_or(1.0, |clip_norm| clip_norm / (norm + 1e-6));
    if coefficient < 1.0 { coefficient as f32 } else { 1.0 }
}

/// The settings that one update is computed with.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerUpdate<'a> {
    /// Settings of the optimizer.
    pub config: &'a OptimizerConfig,
    /// Learning rate of this update.
    pub lr: f64,
    /// Number of the update among those applied, counted from 1.
    pub number: u64,
    /// Coefficient that gradients are multiplied with to clip their norm.
    pub clip: f32,
}

impl OptimizerUpdate<'_> {
    /// The ranges of a layer that are trained, as long as can be, each with its numbers.
    pub(crate) fn of_layer(&self, spec: &LayerSpec) -> LayerUpdate {
        let mut all = LayerUpdate::default();
        for tensor in spec.trained_tensors() {
            match self.config.kind.muon_momentum(spec, tensor) {
                Some(momentum) => self.add_muon(&mut all.muon, tensor, momentum),
                None => self.add_adamw(&mut all.adamw, tensor),
            }
        }
        all
    }

    /// The update of one tensor by the slow definitions of both optimizers.
    pub(crate) fn apply_reference(
        &self,
        spec: &LayerSpec,
        tensor: &TensorSpec,
        state: &mut AdamWState,
        g: &[f32],
    ) {
        let Self { config, lr, number, clip } = *self;
        match config.kind.muon_momentum(spec, tensor) {
            Some(momentum) => {
                let numbers = muon_coefficients(momentum, lr, config.decay_of(tensor), clip);
                let matrix = muon_matrix(tensor.matrix_shape(), lr);
                muon(&mut state.w, &mut state.m, g, matrix, numbers);
            }
            None => {
                adamw(state, g, config.numbers(lr, number, clip, config.decay_of(tensor)));
            }
        }
    }

    /// Neighbouring tensors that weight decay treats alike are one range.
    fn add_adamw(&self, ranges: &mut Vec<AdamWRange>, tensor: &TensorSpec) {
        let Self { config, lr, number, clip } = *self;
        let numbers = config.numbers(lr, number, clip, config.decay_of(tensor));
        let range = tensor.state_range();
        let mut last = ranges.last_mut().filter(|last| last.numbers == numbers);
        if !last.as_mut().is_some_and(|last| last.range.extend(&range)) {
            ranges.push(AdamWRange { range, numbers });
        }
    }

    /// Queries, keys and values are three matrices, and gate and up two, though products read them
    /// as one: each is orthogonalised by itself. Neighbours that weight decay treats alike are one range,
    /// so that what is read as one lies in one.
    fn add_muon(&self, ranges: &mut Vec<MuonRange>, tensor: &TensorSpec, momentum: f64) {
        let Self { config, lr, clip, .. } = *self;
        let matrix = muon_matrix(tensor.matrix_shape(), lr);
        let numbers = muon_coefficients(momentum, lr, config.decay_of(tensor), clip);
        let range = tensor.state_range();
        if let Some(last) = ranges.last_mut().filter(|last| last.numbers == numbers)
            && last.range.extend(&range)
        {
            return last.matrices.push(matrix);
        }
        ranges.push(MuonRange { range, matrices: vec![matrix], numbers });
    }
}

/// Computes candidate weights from the untouched state and puts them in force.
pub fn compute_candidate<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
) {
    let update = update.of_layer(&layer.spec);
    layer.compute_candidate(backend, &update);
}

/// Updates weights and moments in place, once and for all: the update of a trainer without
/// validation.
pub fn update_in_place<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
) {
    let update = update.of_layer(&layer.spec);
    layer.update_in_place(backend, &update);
}

/// Puts the state's weights back in force. Nothing else is to undo.
pub fn drop_candidate<B: Backend>(backend: &B, layer: &mut LayerState<B>) {
    layer.put_state_in_force(backend);
}

/// Makes the candidate the state: moments, then weights.
///
/// # Panics
/// If the layer is not at `step` (rule R8), or the candidate is not in force.
pub fn commit<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
    step: Step,
    then: AfterCommit,
) {
    layer.advance_from(step);
    let update = update.of_layer(&layer.spec);
    layer.commit_candidate(backend, &update, then);
}

/// Applies an update whose verdict is known: one pass, and the bits of candidate and commit.
///
/// # Panics
/// If the layer is not at `step` (rule R8), or a candidate is in force.
pub fn replay<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
    step: Step,
) {
    layer.advance_from(step);
    update_in_place(backend, layer, update);
}

/// Leaves the state as it is, one step on.
///
/// # Panics
/// If the layer is not at `step` (rule R8).
pub fn skip<B: Backend>(layer: &mut LayerState<B>, step: Step) {
    layer.advance_from(step);
}
