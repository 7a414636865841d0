//! The same training, serial, in one loop, as simply written as can be.
//!
//! No pipeline, no program, no candidate, no verdict: microbatch after microbatch, then the norm,
//! then AdamW in place. Its results are right because the loop is plain; [`crate::stage`] must
//! yield the same bits. Lanes run one after the other, and their gradients are added as the tree
//! over them says; then, where the head is tied to the embedding, the two parts of their matrix's
//! gradient. Slices, like microbatches and lanes, are a part of the arithmetic: a plan that has them
//! is compared with a loop that has them.

mod islands;

use std::ops::Range;

use zbelastic_kernels::reference::AdamWState;
use zbelastic_kernels::{
    Accumulate, AllocateError, Backend, BufferView, BufferViewMut, DeviceFault, DeviceSizes,
    LossScale,
};
use zbelastic_types::{LayerId, MicrobatchIndex, SliceIndex, Step};

use crate::data::{BatchSource, TokenBatch};
use crate::digest::{StateDigest, state_digest};
use crate::elastic::{LayerImage, layer_digest};
use crate::model::{
    BufferSize, Chunk, LayerRange, LayerState, LayerUpdate, Logits, PassContext, PassScratch,
    PassStash, TensorSpec, model_layers, slice_angles,
};
use crate::optimizer::{OptimizerUpdate, clip_coefficient, update_in_place};
use crate::outer::OuterWeights;
use crate::plan::{BatchShape, SliceCut};
use crate::stage::StageSetup;

pub use islands::IslandsReference;

/// Why a step of the reference has its losses.
const WORKS: &str = "a reference steps on a device that works";

/// A serial training run.
pub struct SerialReference<B: Backend, S> {
    setup: StageSetup,
    backend: B,
    source: S,
    model: Chunk<B>,
    cut: SliceCut,
    slices: Vec<SliceMemory<B::Buffer>>,
    updates: u64,
    /// Steps behind it, those that were skipped included.
    version: Step,
}

/// The memory that passes over a slice work in.
struct SliceMemory<T> {
    stash: PassStash<T>,
    logits: Logits<T>,
    scratch: PassScratch<T>,
    angles: Option<T>,
}

/// The results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceStep {
    /// The mean cross-entropy over the targets of the step that count.
    pub loss: f64,
    /// The global gradient norm before clipping.
    pub norm: f64,
    /// Its square, as it was added up.
    pub square_sum: f64,
    /// The sum of cross-entropies, as it was added up and as it is reported.
    pub loss_sum: f64,
}

impl<B: Backend, S: BatchSource> SerialReference<B, S> {
    /// A run of `setup` from its first step.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn new(setup: &StageSetup, backend: B, source: S) -> Result<Self, AllocateError> {
        let cut = setup.plan.cut(&setup.model);
        let microbatch = setup.plan.batch.microbatch;
        let mut make = |size: BufferSize| size.allocate(&backend);
        let all = LayerRange::new(0, setup.model.layer_count());
        let mut slices = Vec::new();
        for slice in cut.slices() {
            let sizes = cut.sizes(&setup.model, microbatch, cut.len_of(slice));
            slices.push(SliceMemory {
                stash: PassStash::build(&sizes, all, &mut make)?,
                logits: sizes.logits(&mut make)?,
                scratch: sizes.scratch(&mut make)?,
                angles: slice_angles(&backend, &setup.model, sizes.shape, cut.place(slice))?,
            });
        }
        let layers = model_layers(&setup.model)
            .into_iter()
            .map(|spec| {
                let weights = setup.weights.of_layer(&spec);
                LayerState::new(&backend, &setup.model, spec, &weights)
            })
            .collect::<Result<_, _>>()?;
        let model = Chunk::new(layers);
        let setup = setup.clone();
        Ok(Self { setup, backend, source, model, cut, slices, updates: 0, version: Step(0) })
    }

    /// One step; `is_skipped` reads the batch and leaves the state alone.
    ///
    /// # Panics
    /// If the device fails, as in each step.
    pub fn step(&mut self, step: Step, is_skipped: bool) -> ReferenceStep {
        let tokens = self.setup.plan.batch.tokens() as f64;
        let loss_sum = self.accumulate(step, PassOrder::Apart);
        let square_sum = self.square_sum();
        let norm = square_sum.sqrt();
        self.version = step.next();
        if !is_skipped {
            self.update(step, norm);
        }
        ReferenceStep { loss: loss_sum / tokens, norm, square_sum, loss_sum }
    }

    /// The same step with B and W of a layer side by side and the device's own optimizer pass, in
    /// place: the cost of training without a pipeline and without validation. Benchmarks measure
    /// against it.
    pub fn step_in_place(&mut self, step: Step) -> ReferenceStep {
        let tokens = self.setup.plan.batch.tokens() as f64;
        let loss_sum = self.accumulate(step, PassOrder::Together);
        let square_sum = self.square_sum();
        let norm = square_sum.sqrt();
        self.updates += 1;
        self.version = step.next();
        let StageSetup { optimizer, clip_norm, step_count, .. } = &self.setup;
        let lr = optimizer.lr_at(step, *step_count);
        let clip = clip_coefficient(*clip_norm, norm);
        let update = OptimizerUpdate { config: optimizer, lr, number: self.updates, clip };
        for layer in self.model.layers_mut() {
            update_in_place(&self.backend, layer, &update);
        }
        ReferenceStep { loss: loss_sum / tokens, norm, square_sum, loss_sum }
    }

    /// The gradient of a step, and the sum of its losses in microbatch order.
    fn accumulate(&mut self, step: Step, order: PassOrder) -> f64 {
        let BatchShape { microbatch_count, lanes, .. } = self.setup.plan.batch;
        let targets = self.source.targets(self.setup.batch_step(step), microbatch_count);
        let scale = targets.loss_scale(self.setup.z_loss);
        let losses = self.lanes((step, order, scale), 0..lanes.get());
        self.tie_gradients();
        targets.reported_sum(losses.into_iter().fold(0.0, |sum, loss| sum + loss))
    }

    /// The gradient of some neighbouring lanes: that of one, or of the first half plus that of the
    /// second. Yields the losses of their microbatches, in order.
    fn lanes(&mut self, of: (Step, PassOrder, LossScale), lanes: Range<u32>) -> Vec<f64> {
        if lanes.len() == 1 {
            return self.lane(of, lanes.start);
        }
        let middle = u32::midpoint(lanes.start, lanes.end);
        let mut losses = self.lanes(of, lanes.start..middle);
        let left = self.gradients();
        losses.extend(self.lanes(of, middle..lanes.end));
        self.add_gradients_before(&left);
        losses
    }

    /// The gradient of one lane: a chain over its microbatches.
    fn lane(&mut self, (step, order, scale): (Step, PassOrder, LossScale), lane: u32) -> Vec<f64> {
        let BatchShape { microbatch_count, lanes, .. } = self.setup.plan.batch;
        let length = microbatch_count / lanes.get();
        let mut losses = Vec::new();
        let mut accumulate = Accumulate::Start;
        for k in lane * length..(lane + 1) * length {
            let of = (step, MicrobatchIndex(k));
            losses.extend(self.microbatch(of, scale, order, accumulate));
            accumulate = Accumulate::Add;
        }
        losses
    }

    /// Where the head is tied to the embedding: the head's part of their matrix's gradient plus the
    /// embedding's, at both ends of the model.
    fn tie_gradients(&mut self) {
        if !self.setup.model.ties_gradients() {
            return;
        }
        let [embedding, .., head] = self.model.layers_mut() else { return };
        let place = |layer: &LayerState<B>| {
            layer.spec.tied_range().map(|range| layer.spec.gradient_of(&range))
        };
        let [Some(embedded), Some(of_head)] = [&*embedding, &*head].map(place) else { return };
        let read = |layer: &LayerState<B>, range: &Range<usize>| {
            self.backend.download(BufferView::new(&layer.g, range.clone()))
        };
        let parts = read(head, &of_head).into_iter().zip(read(embedding, &embedded));
        let sum: Vec<f32> = parts.map(|(head, embedding)| head + embedding).collect();
        self.backend.upload(&sum, BufferViewMut::new(&mut embedding.g, embedded));
        self.backend.upload(&sum, BufferViewMut::new(&mut head.g, of_head));
    }

    /// The gradient of each layer, in model order.
    fn gradients(&self) -> Vec<Vec<f32>> {
        let read = |layer: &LayerState<B>| {
            self.backend.download(BufferView::new(&layer.g, 0..layer.spec.gradient_len()))
        };
        self.model.layers().iter().map(read).collect()
    }

    /// Puts `before` plus the gradient in the gradient's place.
    fn add_gradients_before(&mut self, before: &[Vec<f32>]) {
        let now = self.gradients();
        for ((layer, before), now) in self.model.layers_mut().iter_mut().zip(before).zip(now) {
            let sum: Vec<f32> = before.iter().zip(&now).map(|(a, b)| a + b).collect();
            self.backend.upload(&sum, BufferViewMut::new(&mut layer.g, 0..sum.len()));
        }
    }

    /// All passes of a microbatch: its slices forward in turn, each with a loss, and backward in
    /// reverse, each adding its gradient.
    fn microbatch(
        &mut self,
        (step, microbatch): (Step, MicrobatchIndex),
        scale: LossScale,
        order: PassOrder,
        accumulate: Accumulate,
    ) -> Vec<f64> {
        let batch = self.source.training(self.setup.batch_step(step), microbatch);
        let losses = self.forward(&batch).expect(WORKS);
        for slice in (0..self.slices.len()).rev() {
            let tokens = slice_of(&self.cut, &batch, slice);
            let (before, own) = self.slices.split_at_mut(slice);
            let mut earlier: Vec<&mut PassStash<B::Buffer>> =
                before.iter_mut().map(|slice| &mut slice.stash).collect();
            let SliceMemory { stash, logits, scratch, angles } = &mut own[0];
            let context = context(&self.setup, &self.backend, (&self.cut, slice), angles);
            let accumulate = if context.place.is_last() { accumulate } else { Accumulate::Add };
            let model = &mut self.model;
            let scaled = (&tokens, scale);
            match order {
                PassOrder::Apart => {
                    let earlier = &mut earlier;
                    let with_logits = Some(&mut *logits);
                    model.backward_input_slice(
                        &context,
                        scaled,
                        earlier,
                        stash,
                        with_logits,
                        scratch,
                    );
                    model.head_weights(&context, stash, logits, accumulate);
                    model.backward_weights(&context, &tokens, stash, scratch, accumulate);
                }
                PassOrder::Together => {
                    let earlier = &mut earlier;
                    model.backward(&context, scaled, earlier, stash, logits, scratch, accumulate);
                }
            }
        }
        losses
    }

    /// F of all slices, and the loss of each.
    fn forward(&mut self, batch: &TokenBatch) -> Result<Vec<f64>, DeviceFault> {
        let mut losses = Vec::with_capacity(self.slices.len());
        for slice in 0..self.slices.len() {
            let tokens = slice_of(&self.cut, batch, slice);
            let (before, own) = self.slices.split_at_mut(slice);
            let earlier: Vec<&mut PassStash<B::Buffer>> =
                before.iter_mut().map(|slice| &mut slice.stash).collect();
            let SliceMemory { stash, logits, angles, .. } = &mut own[0];
            let context = context(&self.setup, &self.backend, (&self.cut, slice), angles);
            let loss = self.model.forward_slice(&context, &tokens, &earlier, stash, Some(logits));
            losses.push(loss.expect("the whole model has a loss").wait()?);
        }
        Ok(losses)
    }

    /// Tensor by tensor in model order, in f64.
    fn square_sum(&self) -> f64 {
        let mut total = 0.0;
        for layer in self.model.layers() {
            for tensor in layer.spec.own_tensors().filter(|tensor| !tensor.is_frozen) {
                let view = BufferView::new(&layer.g, tensor.state_range().gradient());
                total += self.backend.sum_squares(view).sum;
            }
        }
        total
    }

    /// The floats of the trained tensors of a layer, in order.
    #[must_use]
    pub fn trained_weights(&self, layer: LayerId) -> Vec<f32> {
        self.model.layers()[layer.index()].trained_weights(&self.backend)
    }

    /// Mixes outer weights into those of a layer.
    pub fn mix_outer(&mut self, outer: &OuterWeights) {
        let OuterWeights { layer, weights, local_share, .. } = outer;
        self.model.layers_mut()[layer.index()].mix_weights(&self.backend, weights, *local_share);
    }

    fn update(&mut self, step: Step, norm: f64) {
        let StageSetup { optimizer, clip_norm, step_count, .. } = &self.setup;
        let clip = clip_coefficient(*clip_norm, norm);
        self.updates += 1;
        let lr = optimizer.lr_at(step, *step_count);
        let update = OptimizerUpdate { config: optimizer, lr, number: self.updates, clip };
        for layer in self.model.layers_mut() {
            // Products of a device are its own, and so is what Muon makes of them.
            let of_device = match self.backend.sizes() {
                DeviceSizes::Processors(_) => LayerUpdate::default(),
                DeviceSizes::Cuda(_) => update.of_layer(&layer.spec),
            };
            let LayerState { spec, w, m, g, .. } = &mut *layer;
            of_device.commit_muon(&self.backend, g, [w, m]);
            let is_done = |tensor: &TensorSpec| {
                !of_device.muon.is_empty() && optimizer.kind.muon_momentum(spec, tensor).is_some()
            };
            let tensors = spec.trained_tensors().filter(|tensor| !is_done(tensor));
            for tensor in tensors.cloned().collect::<Vec<_>>() {
                let places = tensor.state_range();
                let read = |buffer: &B::Buffer, range: Range<usize>| {
                    self.backend.download(BufferView::new(buffer, range))
                };
                let g = read(&layer.g, places.gradient());
                let [m, v] = [&layer.m, &layer.v].map(|part| read(part, places.moments()));
                let mut state = AdamWState { w: read(&layer.w, places.weights.clone()), m, v };
                update.apply_reference(&layer.spec, &tensor, &mut state, &g);
                for (floats, buffer, range) in [
                    (state.w, &mut layer.w, places.weights.clone()),
                    (state.m, &mut layer.m, places.moments()),
                    (state.v, &mut layer.v, places.moments()),
                ] {
                    self.backend.upload(&floats, BufferViewMut::new(buffer, range));
                }
            }
            layer.put_state_in_force(&self.backend);
        }
    }

    /// The mean cross-entropy over held-out text, or `None` if there is none.
    ///
    /// # Errors
    /// If the device fails.
    pub fn held_out_loss(&mut self, microbatches_max: u32) -> Result<Option<f64>, DeviceFault> {
        let mut loss_sum = 0.0;
        let mut targets = 0;
        for index in 0..microbatches_max {
            let Some(batch) = self.source.held_out(index) else { break };
            loss_sum = self.forward(&batch)?.into_iter().fold(loss_sum, |sum, loss| sum + loss);
            targets += batch.target_count();
        }
        Ok((targets > 0).then(|| loss_sum / targets as f64))
    }

    /// The logits of one batch, `rows` by vocabulary.
    pub fn logits(&mut self, batch: &TokenBatch) -> Vec<f32> {
        self.forward(batch).expect(WORKS);
        let read = |slice: &SliceMemory<B::Buffer>| {
            let logits = slice.logits.values();
            self.backend.download(BufferView::new(logits, 0..self.backend.len(logits)))
        };
        let slices: Vec<Vec<f32>> = self.slices.iter().map(read).collect();
        let vocabulary = self.setup.model.vocabulary as usize;
        let cut = &self.cut;
        let sequences = 0..self.setup.plan.batch.microbatch.sequences;
        let rows = sequences.flat_map(|sequence| {
            cut.slices().zip(&slices).flat_map(move |(slice, logits)| {
                let len = cut.len_of(slice) * vocabulary;
                &logits[sequence * len..][..len]
            })
        });
        rows.copied().collect()
    }

    /// The layers of the model, in order.
    #[must_use]
    pub fn layers(&self) -> &[LayerState<B>] {
        self.model.layers()
    }

    /// The device that the reference computes on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The digest of the state.
    #[must_use]
    pub fn digest(&self) -> StateDigest {
        let layers = self.model.layers();
        let digest = |layer: &LayerState<B>| {
            let image = LayerImage { version: self.version, ..layer.image(&self.backend) };
            layer_digest(&image)
        };
        state_digest(layers.iter().map(digest), self.updates)
    }
}

/// Whether all of B runs before W, or each layer's B and W side by side.
#[derive(Clone, Copy, Debug)]
enum PassOrder {
    Apart,
    Together,
}

fn context<'c, B: Backend>(
    setup: &'c StageSetup,
    backend: &'c B,
    (cut, slice): (&SliceCut, usize),
    angles: &'c Option<B::Buffer>,
) -> PassContext<'c, B> {
    let slice = SliceIndex(slice as u32);
    let model = &setup.model;
    let shape = cut.shape_of(setup.plan.batch.microbatch, slice);
    PassContext {
        backend,
        model,
        shape,
        place: cut.place(slice),
        angles: angles.as_ref(),
        timer: None,
    }
}

fn slice_of(cut: &SliceCut, batch: &TokenBatch, slice: usize) -> TokenBatch {
    batch.slice(cut.sequence_len(), &cut.tokens(SliceIndex(slice as u32)))
}
