//! F, B and W on the chunks of a stage, and boundary tensors in and out.

use std::borrow::Cow;

use zbelastic_kernels::{Backend, DeviceFault, LossScale, Pending, TensorHandle};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_types::SliceIndex;

use super::BackendExecutor;
use crate::data::TokenBatch;
use crate::model::PassSizes;
use crate::stage::chunk_workspace::{
    ChunkWorkspace, MicrobatchSlice, PassWorkingSet, next_in_order,
};
use crate::stage::executor::PassExecutor;
use crate::stage::lane_sums::GradientShare;
use crate::stage::stash_store::StashStoreError;

impl<B: Backend> PassExecutor for BackendExecutor<B> {
    fn frame_len(&self, slice: SliceIndex) -> usize {
        PassSizes::whole(&self.model, self.cut.shape_of(self.shape, slice)).residual()
    }

    fn slots_in_use(&self) -> usize {
        self.chunks.values().map(ChunkWorkspace::slots_in_use).sum()
    }

    fn drop_passes(&mut self) {
        self.result = None;
        self.offload_target.clear();
        self.chunks.values_mut().for_each(ChunkWorkspace::release_all);
    }

    /// F; yields the loss if the chunk has the head.
    fn forward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let batch = &self.part_of(batch, pass);
        self.bring_layers(pass.chunk);
        let Self { backend, chunks, .. } = &mut *self;
        let backend = &*backend;
        let layers = chunks.get_mut(&pass.chunk).into_iter().flat_map(|it| it.chunk.layers_mut());
        layers.for_each(|layer| layer.undo_computed_ahead(backend));
        let (context, workspace, _) = self.context(pass);
        workspace.open(part(pass));
        let PassWorkingSet { chunk, stash, earlier, logits, .. } =
            workspace.working(context.backend, part(pass));
        if let Some(input) = input {
            chunk.take_input(context.backend, input, stash)?;
        }
        let loss = chunk.forward_slice(&context, batch, &earlier, stash, logits);
        if loss.is_none() {
            let output = chunk.send_output(context.backend, stash);
            self.result = Some((Flow::Forward, pass, output));
        }
        Ok(loss)
    }

    /// F whose stash is read by later slices alone.
    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let loss = self.forward(pass, batch, input)?;
        let slices = self.cut.slice_count();
        let (_, workspace, _) = self.context(pass);
        if workspace.chunk.has_head() {
            workspace.close_logits(part(pass));
        }
        // A step may claim slots for no more than the recomputed activations of one pass.
        workspace.release_recomputed(part(pass));
        if pass.slice.0 + 1 == slices {
            let parts = (0..slices).map(|slice| (pass.microbatch, SliceIndex(slice)));
            parts.for_each(|part| workspace.close(part));
        }
        Ok(loss)
    }

    fn backward_input(
        &mut self,
        pass: Pass,
        (batch, scale): (&TokenBatch, LossScale),
        gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault> {
        let batch = &self.part_of(batch, pass);
        let loss = (&**batch, scale);
        let (context, workspace, scratch) = self.context(pass);
        let PassWorkingSet { chunk, stash, mut earlier, logits, .. } =
            workspace.working(context.backend, part(pass));
        if let Some(gradient) = gradient {
            chunk.take_gradient(context.backend, gradient, stash)?;
        }
        chunk.backward_input_slice(&context, loss, &mut earlier, stash, logits, scratch);
        if !chunk.has_embedding() {
            let output = chunk.send_gradient(context.backend, stash);
            self.result = Some((Flow::Backward, pass, output));
        }
        Ok(())
    }

    /// W of the head's matrix, after which the logits are not read any more.
    fn head_weights(&mut self, pass: Pass) {
        let order = self.lane_order;
        let (context, workspace, _) = self.context(pass);
        let addition = next_in_order(&order, order.place_of(pass), &mut workspace.head_accumulated);
        let PassWorkingSet { chunk, lanes, stash, logits, .. } =
            workspace.working(context.backend, part(pass));
        let logits = logits.expect("the head's chunk has logits until here");
        let to = (GradientShare::HeadMatrix, addition);
        lanes.add((context.backend, chunk), to, |chunk, accumulate| {
            chunk.head_weights(&context, stash, logits, accumulate);
        });
        workspace.close_logits(part(pass));
    }

    /// W of the part that is left, after which the stash is not read any more.
    fn backward_weights(&mut self, pass: Pass, batch: &TokenBatch) {
        let order = self.lane_order;
        let place = order.place_of(pass);
        let batch = &self.part_of(batch, pass);
        let (_, workspace, _) = self.context(pass);
        if workspace.chunk.has_head() && workspace.head_accumulated == place {
            self.head_weights(pass);
        }
        let (context, workspace, scratch) = self.context(pass);
        let addition = next_in_order(&order, place, &mut workspace.accumulated);
        let PassWorkingSet { chunk, lanes, stash, .. } =
            workspace.working(context.backend, part(pass));
        let to = (GradientShare::Rest, addition);
        lanes.add((context.backend, chunk), to, |chunk, accumulate| {
            chunk.backward_weights(&context, batch, stash, scratch, accumulate);
        });
        workspace.close(part(pass));
    }

    fn drop_activations(&mut self, pass: Pass) {
        self.context(pass).1.drop_recomputed(part(pass));
    }

    fn recompute(&mut self, pass: Pass, batch: &TokenBatch) {
        let (batch, recompute) = (&self.part_of(batch, pass), self.recompute);
        let (context, workspace, _) = self.context(pass);
        workspace.reopen(part(pass));
        let PassWorkingSet { chunk, stash, earlier, logits, .. } =
            workspace.working(context.backend, part(pass));
        chunk.recompute(&context, batch, recompute, &earlier, stash, logits);
    }

    fn offload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let of = (pass, self.cut.len_of(pass.slice));
        let workspace = self.chunks.get_mut(&pass.chunk).expect("a pass of this stage's chunks");
        self.offload_target.offload(&self.backend, workspace, of)
    }

    fn reload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let of = (pass, self.cut.len_of(pass.slice));
        let workspace = self.chunks.get_mut(&pass.chunk).expect("a pass of this stage's chunks");
        self.offload_target.reload(&self.backend, workspace, of)
    }

    fn receive(&mut self, tensor: TensorHandle) -> TensorHandle {
        self.backend.begin_upload(tensor)
    }

    /// The result of the last F or B.
    fn take_result(&mut self, flow: Flow, pass: Pass) -> TensorHandle {
        match self.result.take() {
            Some((of_flow, of_pass, tensor)) if (of_flow, of_pass) == (flow, pass) => tensor,
            other => panic!(
                "the result of {pass:?} is passed on at once, found {:?}",
                other.map(|r| r.1)
            ),
        }
    }
}

impl<B: Backend> BackendExecutor<B> {
    /// The tokens that a pass is over.
    fn part_of<'b>(&self, batch: &'b TokenBatch, pass: Pass) -> Cow<'b, TokenBatch> {
        match self.cut.slice_count() {
            1 => Cow::Borrowed(batch),
            _ => Cow::Owned(batch.slice(self.shape.sequence_len, &self.cut.tokens(pass.slice))),
        }
    }
}

/// The part of a microbatch that a pass has a slot for.
const fn part(pass: Pass) -> MicrobatchSlice {
    (pass.microbatch, pass.slice)
}
