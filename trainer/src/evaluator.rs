//! The loss of a model on windows of text, without training it.

use zbelastic_kernels::{AllocateError, Backend, DeviceFault};
use zbelastic_types::LayerRange;

use crate::data::TokenBatch;
use crate::model::{
    BufferSize, Chunk, Logits, MicrobatchShape, ModelConfig, PassContext, PassSizes, PassStash,
    SlicePosition, rotary_angles,
};

/// A model, and the memory of a pass over windows of one length.
pub struct Evaluator<'a, B: Backend> {
    backend: B,
    model: &'a ModelConfig,
    shape: MicrobatchShape,
    chunk: Chunk<B>,
    stash: PassStash<B::Buffer>,
    logits: Logits<B::Buffer>,
    angles: Option<B::Buffer>,
}

impl<'a, B: Backend> Evaluator<'a, B> {
    /// A model with these weights, layer by layer, for windows of `sequence_len` inputs, one at a
    /// time.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn new<W: AsRef<[f32]>>(
        backend: B,
        model: &'a ModelConfig,
        sequence_len: usize,
        weights: impl IntoIterator<Item = W>,
    ) -> Result<Self, AllocateError> {
        let shape = MicrobatchShape { sequences: 1, sequence_len };
        let sizes = PassSizes::whole(model, shape);
        let mut make = |size: BufferSize| size.allocate(&backend);
        let stash = PassStash::build(&sizes, LayerRange::new(0, model.layer_count()), &mut make)?;
        let logits = sizes.logits(&mut make)?;
        let angles = rotary_angles(&backend, model, shape)?;
        let chunk = Chunk::frozen(&backend, model, weights)?;
        Ok(Self { backend, model, shape, chunk, stash, logits, angles })
    }

    /// The sum of cross-entropies over the targets of a window that count, in nats.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the window is of another length.
    pub fn loss_sum(&mut self, window: &TokenBatch) -> Result<f64, DeviceFault> {
        assert_eq!(window.inputs.len(), self.shape.sequence_len, "windows are equally long");
        let context = PassContext {
            backend: &self.backend,
            model: self.model,
            shape: self.shape,
            place: SlicePosition::WHOLE,
            angles: self.angles.as_ref(),
            timer: None,
        };
        let logits = Some(&mut self.logits);
        let loss = self.chunk.forward(&context, window, &mut self.stash, logits);
        loss.expect("the whole model has a loss").wait()
    }
}
