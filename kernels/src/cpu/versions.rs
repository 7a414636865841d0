//! Arithmetic between versions of weights. It runs once an update, over memory that nothing else
//! uses meanwhile: one thread of plain loops is as fast as the memory.

use crate::backend::AdamWCoefficients;

pub(super) fn adam_ahead([w, m, v]: [&[f32]; 3], numbers: AdamWCoefficients, to: &mut [f32]) {
    let AdamWCoefficients { step, correction2, epsilon, .. } = numbers;
    assert!([w, m, v].iter().all(|part| part.len() == to.len()));
    for (((to, w), m), v) in to.iter_mut().zip(w).zip(m).zip(v) {
        *to = w + step * (m / (v.sqrt() / correction2 + epsilon));
    }
}

pub(super) fn weights_along(w: &[f32], direction: &[f32], rate: f32, to: &mut [f32]) {
    assert!([w, direction].iter().all(|part| part.len() == to.len()));
    for ((to, w), along) in to.iter_mut().zip(w).zip(direction) {
        *to = w - rate * along;
    }
}

pub(super) fn track_change(before: &[f32], after: &[f32], decay: f32, change: &mut [f32]) {
    assert!([before, after].iter().all(|part| part.len() == change.len()));
    let rest = 1.0 - decay;
    for ((change, before), after) in change.iter_mut().zip(before).zip(after) {
        *change = decay * *change + rest * (after - before);
    }
}

pub(super) fn pull_together(alpha: f32, w: &mut [f32], reference: &mut [f32]) {
    assert_eq!(w.len(), reference.len());
    for (w, reference) in w.iter_mut().zip(reference) {
        let pull = alpha * (*w - *reference);
        *w -= pull;
        *reference += pull;
    }
}
