//! The head with the normalisation before it, and the loss.

use zbelastic_kernels::{Accumulate, Backend, LossScale, Pending};

use super::{
    HeadStash, Logits, PassContext, PassScratch, WeightGradients, linear_weights, norm_backward,
    norm_forward, norm_weights,
};
use crate::model::parts::LayerParts;
use crate::model::state::LayerState;

impl<T> HeadStash<T> {
    /// F: the sum of cross-entropies over the microbatch.
    pub(in crate::model) fn forward<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        x: &T,
        targets: &[u32],
        logits: &mut Logits<T>,
    ) -> Pending<f64> {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        norm_forward(context, state, norm, x, &mut self.0);
        let Logits { logits, log_sums } = logits;
        context.backend.head_forward(&self.0.y, state.matrix(0), targets, logits, log_sums)
    }

    /// B, of the loss that `scale` describes.
    pub(in crate::model) fn backward_input<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        (targets, scale): (&[u32], LossScale),
        logits: &mut Logits<T>,
        x_then_gradient: &mut T,
        scratch: &mut PassScratch<T>,
    ) {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        context.backend.head_backward_input(
            targets,
            scale,
            &logits.log_sums,
            state.matrix(0),
            &mut logits.logits,
            &mut scratch.rows,
        );
        norm_backward(context, state, norm, &scratch.rows, None, &mut self.0, x_then_gradient);
    }

    /// W of the head's matrix, which reads the logits' gradient for the last time.
    pub(in crate::model) fn matrix_weights<B: Backend<Buffer = T>>(
        &self,
        context: &PassContext<'_, B>,
        state: &mut LayerState<B>,
        logits: &Logits<T>,
        accumulate: Accumulate,
    ) {
        let (mut to, parts) = WeightGradients::of(state);
        let LayerParts::Head { head, .. } = parts else { unreachable!() };
        linear_weights(context, &mut to, head, &self.0.y, &logits.logits, accumulate);
    }

    /// W of the final normalisation.
    pub(in crate::model) fn norm_weights<B: Backend<Buffer = T>>(
        &self,
        context: &PassContext<'_, B>,
        state: &mut LayerState<B>,
        accumulate: Accumulate,
    ) {
        let (mut to, parts) = WeightGradients::of(state);
        let LayerParts::Head { norm, .. } = parts else { unreachable!() };
        norm_weights(context, &mut to, norm, &self.0, accumulate);
    }
}
