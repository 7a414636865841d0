//! The definition of an AdamW step, which backends must meet bit for bit.

use crate::backend::AdamWCoefficients;

/// A tensor's weights and moments.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWState {
    /// The weights of the tensor.
    pub w: Vec<f32>,
    /// The first moments, one for each weight.
    pub m: Vec<f32>,
    /// The second moments, one for each weight.
    pub v: Vec<f32>,
}

/// One step in place, in f32 and in exactly the order that [`AdamWCoefficients`] documents: this
/// one is not an approximation, a backend must meet its bits.
pub fn adamw(state: &mut AdamWState, g: &[f32], numbers: AdamWCoefficients) {
    for (i, g) in g.iter().enumerate() {
        let g = numbers.clip * g;
        state.w[i] *= numbers.decay;
        state.m[i] = state.m[i] * numbers.beta1 + g * numbers.beta1_rest;
        state.v[i] = state.v[i] * numbers.beta2 + (numbers.beta2_rest * g) * g;
        let denominator = state.v[i].sqrt() / numbers.correction2 + numbers.epsilon;
        state.w[i] += (numbers.step * state.m[i]) / denominator;
    }
}
