//! Arithmetic between versions of weights: predictions, corrections, the elastic average.

use crate::backend::AdamWCoefficients;

/// Adam's step repeated: `w + step * (m / (sqrt(v) / correction2 + epsilon))`, in f32 and in this
/// order: not an approximation, a backend must meet its bits. So are all that follow.
#[must_use]
pub fn adam_ahead(w: &[f32], m: &[f32], v: &[f32], numbers: AdamWCoefficients) -> Vec<f32> {
    let AdamWCoefficients { step, correction2, epsilon, .. } = numbers;
    let one =
        |((w, m), v): ((&f32, &f32), &f32)| w + step * (m / (v.sqrt() / correction2 + epsilon));
    w.iter().zip(m).zip(v).map(one).collect()
}

/// A step along a direction: `w - rate * direction`.
#[must_use]
pub fn weights_along(w: &[f32], direction: &[f32], rate: f32) -> Vec<f32> {
    w.iter().zip(direction).map(|(w, along)| w - rate * along).collect()
}

/// The mean change after one more: `decay * change + (1 - decay) * (after - before)`.
pub fn track_change(change: &mut [f32], before: &[f32], after: &[f32], decay: f32) {
    for ((change, before), after) in change.iter_mut().zip(before).zip(after) {
        *change = decay * *change + (1.0 - decay) * (after - before);
    }
}

/// Two models move towards each other, each by the share `alpha` of what lies between them.
pub fn pull_together(model: &mut [f32], reference: &mut [f32], alpha: f32) {
    for (w, reference) in model.iter_mut().zip(reference) {
        let pull = alpha * (*w - *reference);
        *w -= pull;
        *reference += pull;
    }
}

#[cfg(test)]
mod tests {
    use super::{adam_ahead, pull_together, track_change, weights_along};
    use crate::backend::AdamWCoefficients;

    #[test]
    fn predictions_are_those_of_the_formulas() {
        let numbers = AdamWCoefficients {
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
        assert_eq!(weights_along(&[1.0], &[2.0], 0.25), [0.5]);
    }

    #[test]
    fn changes_are_remembered_in_the_mean() {
        let mut change = [1.0];
        track_change(&mut change, &[1.0], &[3.0], 0.5);
        assert_eq!(change, [1.5]);
    }

    #[test]
    fn model_and_reference_move_by_the_same() {
        let mut model = [1.0];
        let mut reference = [0.0];
        pull_together(&mut model, &mut reference, 0.25);
        assert_eq!((model, reference), ([0.75], [0.25]));
    }
}
