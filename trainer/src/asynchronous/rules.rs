//! The arithmetic that asynchronous methods add to the optimizer's: predictions, corrections, the
//! elastic average. All of it is element by element, in f32, in one order, so its bits depend on
//! its operands alone.

use zbelastic_kernels::AdamWNumbers;

/// Adam's step repeated: w + step * m / (sqrt(v) / correction + epsilon), where `numbers` are those
/// of a learning rate that is as many times larger (XPipe). Without an update there is no state to
/// predict from, and the caller leaves w as it is.
pub(super) fn adam_ahead(w: &[f32], m: &[f32], v: &[f32], numbers: AdamWNumbers) -> Vec<f32> {
    let AdamWNumbers { step, correction2, epsilon, .. } = numbers;
    let one =
        |((w, m), v): ((&f32, &f32), &f32)| w + step * (m / (v.sqrt() / correction2 + epsilon));
    w.iter().zip(m).zip(v).map(one).collect()
}

/// A step along the momentum: w - rate * m (SpecTrain).
pub(super) fn momentum_ahead(w: &[f32], m: &[f32], rate: f32) -> Vec<f32> {
    w.iter().zip(m).map(|(w, m)| w - rate * m).collect()
}

/// Back by the mean change of `updates` updates: w - updates * delta (PipeMare).
pub(super) fn delta_back(w: &[f32], delta: &[f32], updates: f32) -> Vec<f32> {
    w.iter().zip(delta).map(|(w, delta)| w - updates * delta).collect()
}

/// The mean change after one more: decay * delta + (1 - decay) * (after - before).
pub(super) fn track_delta(delta: &mut [f32], before: &[f32], after: &[f32], decay: f32) {
    for ((delta, before), after) in delta.iter_mut().zip(before).zip(after) {
        *delta = decay * *delta + (1.0 - decay) * (after - before);
    }
}

/// How long a change is remembered that the correction spreads over `updates` updates: D to the
/// power of one over them, with the D of PipeMare's section 3.2.
pub(super) fn delta_decay(updates: f64) -> f32 {
    const D: f64 = 0.135;
    libm::pow(D, 1.0 / updates) as f32
}

/// What PipeMare multiplies a stage's learning rate with at an update: 1 / tau^(1 - k/K), where tau
/// is the delay in updates as far as it is more than one, and K the updates of the annealing
/// (section 3.1).
pub(super) fn annealed_share(delay: f64, update: u32, anneal_updates: u64) -> f64 {
    let progress = f64::from(update) / anneal_updates.max(1) as f64;
    libm::pow(delay.max(1.0), -(1.0 - progress.min(1.0)))
}

/// A model and the reference model pull each other together by the share `alpha` of what lies
/// between them (elastic averaging: Zhang et al., NeurIPS 2015, equations 5 and 6).
pub(super) fn pull_together(model: &mut [f32], reference: &mut [f32], alpha: f32) {
    for (w, reference) in model.iter_mut().zip(reference) {
        let pull = alpha * (*w - *reference);
        *w -= pull;
        *reference += pull;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        adam_ahead, annealed_share, delta_back, delta_decay, momentum_ahead, pull_together,
        track_delta,
    };
    use zbelastic_kernels::AdamWNumbers;

    #[test]
    fn predictions_are_those_of_the_formulas() {
        let numbers = AdamWNumbers {
            decay: 1.0,
            beta1: 0.5,
            beta1_rest: 0.5,
            beta2: 0.5,
            beta2_rest: 0.5,
            correction2: 0.5,
            epsilon: 1.0,
            step: -0.25,
            clip: 1.0,
        };
        assert_eq!(adam_ahead(&[1.0], &[2.0], &[4.0], numbers), [1.0 - 0.25 * 2.0 / 5.0]);
        assert_eq!(momentum_ahead(&[1.0], &[2.0], 0.25), [0.5]);
        assert_eq!(delta_back(&[1.0], &[0.25], 2.0), [0.5]);
    }

    #[test]
    fn changes_are_remembered_for_as_long_as_they_are_spread() {
        let mut delta = [1.0];
        track_delta(&mut delta, &[1.0], &[3.0], 0.5);
        assert_eq!(delta, [1.5]);
        assert!((delta_decay(1.0) - 0.135).abs() < 1e-6);
        assert!((delta_decay(2.0) - 0.135f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn a_delayed_stage_begins_slowly() {
        assert_eq!(annealed_share(4.0, 0, 10), 0.25);
        assert_eq!(annealed_share(4.0, 5, 10), 0.5);
        assert_eq!(annealed_share(4.0, 10, 10), 1.0);
        assert_eq!(annealed_share(4.0, 11, 10), 1.0);
        assert_eq!(annealed_share(0.5, 0, 10), 1.0);
        assert_eq!(annealed_share(4.0, 0, 0), 0.25);
    }

    #[test]
    fn model_and_reference_move_by_the_same() {
        let (mut model, mut reference) = ([1.0], [0.0]);
        pull_together(&mut model, &mut reference, 0.25);
        assert_eq!((model, reference), ([0.75], [0.25]));
    }
}
