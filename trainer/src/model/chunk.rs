//! A chunk: a run of layers on one stage, and the activations that its passes keep.

use zbelastic_kernels::{
    Accumulate, AllocateError, Backend, BufferView, BufferViewMut, ByteCounts, DeviceFault,
    EarlierSlice, LossScale, Pending, TensorHandle,
};
use zbelastic_types::Bytes;

use super::buffer_size::BufferSize;
use super::config::{Family, LayerKind, ModelConfig};
use super::layer_times::LayerOp;
use super::layers::{
    FirstKeys, Logits, PassContext, PassScratch, Projections, SlicePosition, embed_forward,
    embed_weights,
};
use super::pass_stash::{LayerStash, PassStash, download};
use super::recompute::Recompute;
use super::state::LayerState;
use super::tensors::model_layers;
use crate::data::{MicrobatchShape, TokenBatch};

/// Adds up the bytes of a stash on `backend`.
pub fn count_bytes<B: ByteCounts, R>(
    backend: &B,
    build: impl FnOnce(&mut dyn FnMut(BufferSize) -> Result<(), std::convert::Infallible>) -> R,
) -> Bytes {
    let mut bytes = 0;
    let mut count = |size: BufferSize| {
        bytes += size.bytes(backend);
        Ok(())
    };
    build(&mut count);
    Bytes(bytes)
}

/// A run of layers with their state.
pub struct Chunk<B: Backend> {
    layers: Vec<LayerState<B>>,
}

impl<B: Backend> Chunk<B> {
    /// A chunk of these layers, which follow each other.
    #[must_use]
    pub fn new(layers: Vec<LayerState<B>>) -> Self {
        Self { layers }
    }

    /// The whole of `model` for passes alone, with these weights of each layer in its order.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn frozen<W: AsRef<[f32]>>(
        backend: &B,
        model: &ModelConfig,
        weights: impl IntoIterator<Item = W>,
    ) -> Result<Self, AllocateError> {
        let layers = model_layers(model).into_iter().zip(weights);
        let layers = layers
            .map(|(spec, weights)| LayerState::frozen(backend, model, spec, weights.as_ref()));
        Ok(Self::new(layers.collect::<Result<_, _>>()?))
    }

    /// The layers of the chunk, in model order.
    #[must_use]
    pub fn layers(&self) -> &[LayerState<B>] {
        &self.layers
    }

    /// Its layers, to be updated.
    pub fn layers_mut(&mut self) -> &mut [LayerState<B>] {
        &mut self.layers
    }

    /// Whether it begins with the embedding.
    #[must_use]
    pub fn has_embedding(&self) -> bool {
        self.layers.first().is_some_and(|layer| layer.spec.kind == LayerKind::Embed)
    }

    /// Whether it ends with the head.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.layers.last().is_some_and(|layer| layer.spec.kind == LayerKind::Head)
    }

    /// Puts the tensor that arrived where the first layer reads it.
    pub fn set_input(&self, backend: &B, input: &[f32], stash: &mut PassStash<B::Buffer>) {
        backend.upload(input, BufferViewMut::new(&mut stash.residuals[0], 0..input.len()));
    }

    /// Puts a boundary tensor that arrived where the first layer reads it.
    ///
    /// # Errors
    /// If the device that holds it failed before it was read.
    pub fn take_input(
        &self,
        backend: &B,
        input: TensorHandle,
        stash: &mut PassStash<B::Buffer>,
    ) -> Result<(), DeviceFault> {
        let len = input.len();
        backend.import_tensor(input, BufferViewMut::new(&mut stash.residuals[0], 0..len))
    }

    /// The result of the last layer, on its way to the chunk after this one.
    #[must_use]
    pub fn send_output(&self, backend: &B, stash: &PassStash<B::Buffer>) -> TensorHandle {
        pack(backend, &stash.residuals[self.layers.len()])
    }

    /// Puts the gradient that came back as a boundary tensor where B reads it.
    ///
    /// # Errors
    /// If the device that holds it failed before it was read.
    pub fn take_gradient(
        &self,
        backend: &B,
        gradient: TensorHandle,
        stash: &mut PassStash<B::Buffer>,
    ) -> Result<(), DeviceFault> {
        let len = gradient.len();
        let to = &mut stash.residuals[self.layers.len()];
        backend.import_tensor(gradient, BufferViewMut::new(to, 0..len))
    }

    /// The gradient that B left, on its way to the chunk before this one.
    #[must_use]
    pub fn send_gradient(&self, backend: &B, stash: &PassStash<B::Buffer>) -> TensorHandle {
        pack(backend, &stash.residuals[0])
    }

    /// The result of the last layer for the chunk after this one.
    #[must_use]
    pub fn output(&self, backend: &B, stash: &PassStash<B::Buffer>) -> Vec<f32> {
        download(backend, &stash.residuals[self.layers.len()])
    }

    /// Puts the gradient that came back where B reads it.
    pub fn set_gradient(&self, backend: &B, gradient: &[f32], stash: &mut PassStash<B::Buffer>) {
        let to = &mut stash.residuals[self.layers.len()];
        backend.upload(gradient, BufferViewMut::new(to, 0..gradient.len()));
    }

    /// The gradient that B left for the chunk before this one.
    #[must_use]
    pub fn input_gradient(&self, backend: &B, stash: &PassStash<B::Buffer>) -> Vec<f32> {
        download(backend, &stash.residuals[0])
    }

    /// F. With the head, the sum of cross-entropies over the microbatch.
    pub fn forward(
        &self,
        context: &PassContext<'_, B>,
        batch: &TokenBatch,
        stash: &mut PassStash<B::Buffer>,
        logits: Option<&mut Logits<B::Buffer>>,
    ) -> Option<Pending<f64>> {
        self.forward_slice(context, batch, &[], stash, logits)
    }

    /// F of a slice, with the keys and values of the slices before it, in order.
    pub fn forward_slice(
        &self,
        context: &PassContext<'_, B>,
        batch: &TokenBatch,
        earlier: &[&mut PassStash<B::Buffer>],
        stash: &mut PassStash<B::Buffer>,
        logits: Option<&mut Logits<B::Buffer>>,
    ) -> Option<Pending<f64>> {
        let made = (Projections::Made, earlier);
        self.run_forward((context, LayerOp::Forward), batch, made, stash, logits)
    }

    fn run_forward(
        &self,
        (context, part): (&PassContext<'_, B>, LayerOp),
        batch: &TokenBatch,
        (projections, earlier): (Projections, &[&mut PassStash<B::Buffer>]),
        stash: &mut PassStash<B::Buffer>,
        mut logits: Option<&mut Logits<B::Buffer>>,
    ) -> Option<Pending<f64>> {
        let mut loss = None;
        let first_keys = FirstKeys::new(context, batch);
        context.begin();
        let PassStash { residuals, layers } = stash;
        for (index, (state, layer)) in self.layers.iter().zip(layers).enumerate() {
            let (before, after) = residuals.split_at_mut(index + 1);
            let x = &before[index];
            let y = &mut after[0];
            match layer {
                LayerStash::Embed => embed_forward(context, state, batch, y),
                LayerStash::Attention(stash) => {
                    let earlier = &attended(earlier, index)[..];
                    let earlier = (projections, first_keys.mask(), earlier);
                    stash.forward(context, state, earlier, x, y);
                }
                LayerStash::Mlp(stash) => stash.forward(context, state, x, y),
                LayerStash::Head(stash) => {
                    let logits = logits.take().expect("the head's chunk has logits");
                    loss = Some(stash.forward(context, state, x, &batch.targets, logits));
                }
            }
            context.pass(state.spec.kind, part);
        }
        loss
    }

    /// R: makes again what `recompute` selects, from the rest of the stash and from the keys and
    /// values of the slices before, in order.
    pub fn recompute(
        &self,
        context: &PassContext<'_, B>,
        batch: &TokenBatch,
        recompute: Recompute,
        earlier: &[&mut PassStash<B::Buffer>],
        stash: &mut PassStash<B::Buffer>,
        logits: Option<&mut Logits<B::Buffer>>,
    ) {
        let ops = match recompute {
            Recompute::None => return,
            Recompute::Full => {
                let is_cut = context.place.is_cut();
                let projections = if is_cut { Projections::Found } else { Projections::Made };
                let made = (projections, earlier);
                self.run_forward((context, LayerOp::Recompute), batch, made, stash, logits);
                return;
            }
            Recompute::Selective(ops) => ops,
        };
        let first_keys = FirstKeys::new(context, batch);
        context.begin();
        let PassStash { residuals, layers } = stash;
        for (index, (state, layer)) in self.layers.iter().zip(layers).enumerate() {
            let x = &residuals[index];
            match layer {
                LayerStash::Embed => {}
                LayerStash::Attention(stash) => {
                    let earlier = (first_keys.mask(), &attended(earlier, index)[..]);
                    stash.recompute(context, state, earlier, x, ops);
                }
                LayerStash::Mlp(stash) => stash.recompute(context, state, x, ops),
                LayerStash::Head(stash) => stash.recompute(context, state, x, ops),
            }
            context.pass(state.spec.kind, LayerOp::Recompute);
        }
    }

    /// B, of the loss that the scale describes.
    pub fn backward_input(
        &self,
        context: &PassContext<'_, B>,
        loss: (&TokenBatch, LossScale),
        stash: &mut PassStash<B::Buffer>,
        logits: Option<&mut Logits<B::Buffer>>,
        scratch: &mut PassScratch<B::Buffer>,
    ) {
        self.backward_input_slice(context, loss, &mut [], stash, logits, scratch);
    }

    /// B of a slice, which adds to the gradients of the slices before it, in order.
    pub fn backward_input_slice(
        &self,
        context: &PassContext<'_, B>,
        (batch, scale): (&TokenBatch, LossScale),
        earlier: &mut [&mut PassStash<B::Buffer>],
        stash: &mut PassStash<B::Buffer>,
        mut logits: Option<&mut Logits<B::Buffer>>,
        scratch: &mut PassScratch<B::Buffer>,
    ) {
        let first_keys = FirstKeys::new(context, batch);
        context.begin();
        let PassStash { residuals, layers } = stash;
        for (index, (state, layer)) in self.layers.iter().zip(layers).enumerate().rev() {
            let (before, after) = residuals.split_at_mut(index + 1);
            let x = &mut before[index];
            let gradient = &after[0];
            match layer {
                LayerStash::Embed => {}
                LayerStash::Attention(stash) => {
                    let earlier = (first_keys.mask(), &mut earlier_slices(earlier, index)[..]);
                    stash.backward_input(context, state, earlier, gradient, x, scratch);
                }
                LayerStash::Mlp(stash) => {
                    stash.backward_input(context, state, gradient, x, scratch);
                }
                LayerStash::Head(stash) => {
                    let logits = logits.take().expect("the head's chunk has logits");
                    let loss = (&batch.targets[..], scale);
                    stash.backward_input(context, state, loss, logits, x, scratch);
                }
            }
            context.pass(state.spec.kind, LayerOp::InputGradient);
        }
    }

    /// B and W of one layer after the other, as training without a pipeline runs them: the same
    /// operations as the passes alone, each layer's operands still warm.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &mut self,
        context: &PassContext<'_, B>,
        (batch, scale): (&TokenBatch, LossScale),
        earlier: &mut [&mut PassStash<B::Buffer>],
        stash: &mut PassStash<B::Buffer>,
        logits: &mut Logits<B::Buffer>,
        scratch: &mut PassScratch<B::Buffer>,
        accumulate: Accumulate,
    ) {
        let first_keys = FirstKeys::new(context, batch);
        let PassStash { residuals, layers } = stash;
        for (index, (state, layer)) in self.layers.iter_mut().zip(layers).enumerate().rev() {
            let (before, after) = residuals.split_at_mut(index + 1);
            let x = &mut before[index];
            let gradient = &after[0];
            open(context, state, accumulate);
            match layer {
                LayerStash::Embed => embed_weights(context, state, batch, gradient, accumulate),
                LayerStash::Attention(stash) => {
                    let earlier = (first_keys.mask(), &mut earlier_slices(earlier, index)[..]);
                    stash.backward_input(context, state, earlier, gradient, x, scratch);
                    stash.backward_weights(context, state, gradient, scratch, accumulate);
                }
                LayerStash::Mlp(stash) => {
                    stash.backward_input(context, state, gradient, x, scratch);
                    stash.backward_weights(context, state, gradient, scratch, accumulate);
                }
                LayerStash::Head(stash) => {
                    let loss = (&batch.targets[..], scale);
                    stash.backward_input(context, state, loss, logits, x, scratch);
                    stash.matrix_weights(context, state, logits, accumulate);
                    stash.norm_weights(context, state, accumulate);
                }
            }
        }
    }

    /// W of the head's matrix.
    pub fn head_weights(
        &mut self,
        context: &PassContext<'_, B>,
        stash: &PassStash<B::Buffer>,
        logits: &Logits<B::Buffer>,
        accumulate: Accumulate,
    ) {
        if let (Some(state), Some(LayerStash::Head(stash))) =
            (self.layers.last_mut(), stash.layers.last())
        {
            context.begin();
            open(context, state, accumulate);
            stash.matrix_weights(context, state, logits, accumulate);
            context.pass(state.spec.kind, LayerOp::EarlyWeightGradient);
        }
    }

    /// W of everything but the head's matrix.
    pub fn backward_weights(
        &mut self,
        context: &PassContext<'_, B>,
        batch: &TokenBatch,
        stash: &PassStash<B::Buffer>,
        scratch: &mut PassScratch<B::Buffer>,
        accumulate: Accumulate,
    ) {
        context.begin();
        let PassStash { residuals, layers } = stash;
        for (index, (state, layer)) in self.layers.iter_mut().zip(layers).enumerate().rev() {
            let gradient = &residuals[index + 1];
            open(context, state, accumulate);
            match layer {
                LayerStash::Embed => embed_weights(context, state, batch, gradient, accumulate),
                LayerStash::Attention(stash) => {
                    stash.backward_weights(context, state, gradient, scratch, accumulate);
                }
                LayerStash::Mlp(stash) => {
                    stash.backward_weights(context, state, gradient, scratch, accumulate);
                }
                LayerStash::Head(stash) => stash.norm_weights(context, state, accumulate),
            }
            context.pass(state.spec.kind, LayerOp::WeightGradient);
        }
    }
}

/// The first W of a step writes over a gradient that may still be on its way to another worker.
fn open<B: Backend>(
    context: &PassContext<'_, B>,
    state: &mut LayerState<B>,
    accumulate: Accumulate,
) {
    match accumulate {
        Accumulate::Start => state.settle_gradient(context.backend),
        Accumulate::Add => {}
    }
}

fn pack<B: Backend>(backend: &B, buffer: &B::Buffer) -> TensorHandle {
    backend.export_tensor(BufferView::new(buffer, 0..backend.len(buffer)))
}

/// The keys and values that a layer of a later slice attends to.
fn attended<'s, T>(earlier: &'s [&mut PassStash<T>], layer: usize) -> Vec<&'s T> {
    earlier.iter().map(|slice| slice.attention(layer).qkv()).collect()
}

/// The keys, values and gradients in a layer of earlier slices that a later one uses.
fn earlier_slices<'s, T>(
    earlier: &'s mut [&mut PassStash<T>],
    layer: usize,
) -> Vec<EarlierSlice<'s, T>> {
    let of_slice = |slice: &'s mut &mut PassStash<T>| match &mut slice.layers[layer] {
        LayerStash::Attention(stash) => stash.as_earlier(),
        LayerStash::Embed | LayerStash::Mlp(_) | LayerStash::Head(_) => {
            unreachable!("slices have the layers of their chunk")
        }
    };
    earlier.iter_mut().map(of_slice).collect()
}

/// Rotary angles of every position, as [`Backend::rotate`] receives them, if the model's family has
/// them.
///
/// # Errors
/// If the device's memory does not hold them.
pub fn rotary_angles<B: Backend>(
    backend: &B,
    model: &ModelConfig,
    shape: MicrobatchShape,
) -> Result<Option<B::Buffer>, AllocateError> {
    slice_angles(backend, model, shape, SlicePosition::WHOLE)
}

/// The same for the positions of a slice of this shape that stands there.
///
/// # Errors
/// If the device's memory does not hold them.
pub fn slice_angles<B: Backend>(
    backend: &B,
    model: &ModelConfig,
    shape: MicrobatchShape,
    place: SlicePosition,
) -> Result<Option<B::Buffer>, AllocateError> {
    match model.family {
        Family::Gpt2 => return Ok(None),
        Family::Llama => {}
    }
    let width = model.head_width as usize;
    let mut angles = Vec::with_capacity(shape.sequence_len * width);
    let frequencies: Vec<f64> = (0..width / 2).map(|pair| model.rotary_frequency(pair)).collect();
    let first = place.first_position;
    for position in first..first + shape.sequence_len {
        let of_position = || frequencies.iter().map(|frequency| position as f64 * frequency);
        angles.extend(of_position().map(|angle| libm::cos(angle) as f32));
        angles.extend(of_position().map(|angle| libm::sin(angle) as f32));
    }
    let mut buffer = backend.allocate(angles.len())?;
    backend.upload(&angles, BufferViewMut::new(&mut buffer, 0..angles.len()));
    Ok(Some(buffer))
}
