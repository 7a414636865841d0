//! The optimizer's update of a layer.

use std::ops::Range;

use zbelastic_consensus::validation::TensorSum;
use zbelastic_kernels::{AdamWRange, Backend, BufferView, PackedWeightsOptimizer, SquareSum};
use zbelastic_types::{Step, TensorIndex};

use super::config::OptimizerConfig;
use crate::model::{AfterCommit, LayerState, TensorSpec};

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
        parts.extend(trained.map(|tensor| BufferView::new(&layer.g, tensor.range.clone())));
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
        layer.candidate_ahead(numbered_runs(layer, update))
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

/// Computes candidate weights from the untouched state and puts them in force.
pub fn compute_candidate<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
) {
    let runs = numbered_runs(layer, update);
    layer.compute_candidate(backend, &runs);
}

/// Updates weights and moments in place, once and for all: the update of a trainer without
/// validation.
pub fn update_in_place<B: Backend>(
    backend: &B,
    layer: &mut LayerState<B>,
    update: &OptimizerUpdate<'_>,
) {
    let runs = numbered_runs(layer, update);
    layer.update_in_place(backend, &runs);
}

fn numbered_runs<B: Backend>(
    layer: &LayerState<B>,
    update: &OptimizerUpdate<'_>,
) -> Vec<AdamWRange> {
    let OptimizerUpdate { config, lr, number, clip } = *update;
    let runs = decay_runs(layer, config).into_iter();
    let numbers = |is_decayed| config.numbers(lr, number, clip, is_decayed);
    runs.map(|(range, is_decayed)| AdamWRange { range, numbers: numbers(is_decayed) }).collect()
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
    let runs = numbered_runs(layer, update);
    layer.commit_candidate(backend, &runs, then);
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

/// Neighbouring tensors that weight decay treats alike, of those that are trained.
fn decay_runs<B: Backend>(
    layer: &LayerState<B>,
    config: &OptimizerConfig,
) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for tensor in layer.spec.trained_tensors() {
        let is_decayed = config.decays(tensor.is_matrix());
        match runs.last_mut() {
            Some((range, last)) if *last == is_decayed && range.end == tensor.range.start => {
                range.end = tensor.range.end;
            }
            Some(_) | None => runs.push((tensor.range.clone(), is_decayed)),
        }
    }
    runs
}
