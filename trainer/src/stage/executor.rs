//! The operations that a stage engine computes with.

use std::ops::Range;

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::validation::{LayerFingerprint, TensorSum};
use zbelastic_kernels::{DeviceFault, LossScale, Pending, PendingFloats, TensorHandle};
use zbelastic_schedule::{Flow, Pass, TreeSide};
use zbelastic_types::{ChunkIndex, LayerId, SliceIndex, Step};

use super::injection::Injection;
use super::stash_store::StashStoreError;
use crate::data::TokenBatch;
use crate::layer_image::{LayerImage, PendingImage, layer_digest, layer_fingerprint};
use crate::model::{Span, TiedEnd, TiedParts};
use crate::outer::OuterWeights;

/// One optimizer update: the values that its numbers depend on besides the settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRequest {
    /// Step that the update belongs to.
    pub step: Step,
    /// The update's number, counted from 1.
    pub number: u64,
    /// Coefficient that gradients are multiplied with to clip their norm.
    pub clip: f32,
}

/// The arithmetic of a stage engine: passes, gradients and updates of the chunks of one stage.
/// [`super::BackendExecutor`] does them on a device; a simulation may do them on hashes. The engine
/// decides the order in which they run.
///
/// Weights that passes read are those of the state, or the candidate's between
/// [`UpdateExecutor::compute_candidate`] and [`UpdateExecutor::drop_candidate`] or
/// [`UpdateExecutor::commit`].
pub trait StageExecutor:
    PassExecutor + GradientExecutor + UpdateExecutor + SealedState + OuterExecutor + OperationClock
{
    /// The fault that ended the device, if any. Values computed since are not results.
    fn fault(&self) -> Option<DeviceFault> {
        None
    }

    /// The chunks of this stage.
    fn chunk_indices(&self) -> Vec<ChunkIndex>;

    /// Whether a chunk is here.
    fn has_chunk(&self, chunk: ChunkIndex) -> bool;

    /// The end of an operation: commands that were put off to be enqueued on a device at once are
    /// enqueued.
    fn flush(&mut self) {}
}

/// The passes of a stage, and the boundary tensors between its chunks and those of others.
pub trait PassExecutor {
    /// Floats of a boundary tensor of this slice.
    fn frame_len(&self, slice: SliceIndex) -> usize;

    /// Slots that passes under way hold.
    fn slots_in_use(&self) -> usize;

    /// Frees the passes that a dropped turn left.
    fn drop_passes(&mut self);

    /// F; yields the loss if the chunk has the head.
    ///
    /// # Errors
    /// If the device that holds the operand failed before it was read.
    fn forward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault>;

    /// F for a result alone: the stash is not read afterwards.
    ///
    /// # Errors
    /// If the device that holds the operand failed before it was read.
    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault>;

    /// B: computes the gradient of the chunk's input, of the loss that the scale describes if the
    /// chunk has the head.
    ///
    /// # Errors
    /// If the device that holds the operand failed before it was read.
    fn backward_input(
        &mut self,
        pass: Pass,
        loss: (&TokenBatch, LossScale),
        gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault>;

    /// W of the head's matrix, after which the logits are not read any more.
    fn head_weights(&mut self, pass: Pass);

    /// W of the part that is left, after which the stash is not read any more. Microbatches add up
    /// in their order.
    fn backward_weights(&mut self, pass: Pass, batch: &TokenBatch);

    /// DROP: frees the activations that R recomputes.
    fn drop_activations(&mut self, pass: Pass);

    /// R: recomputes the activations that DROP freed. The batch is that of F.
    fn recompute(&mut self, pass: Pass, batch: &TokenBatch);

    /// OFFLOAD: the activations of the pass go to the second store, and their slots are free.
    ///
    /// # Errors
    /// If the store refuses it: then it is still here.
    fn offload(&mut self, pass: Pass) -> Result<(), StashStoreError>;

    /// RELOAD: they acquire slots and are back, to the same bits.
    ///
    /// # Errors
    /// If the store does not give it back: then it stays offloaded.
    fn reload(&mut self, pass: Pass) -> Result<(), StashStoreError>;

    /// Begins to bring a boundary tensor that arrived to where it is computed with.
    fn receive(&mut self, tensor: TensorHandle) -> TensorHandle {
        tensor
    }

    /// The result that the last F or B left.
    fn take_result(&mut self, flow: Flow, pass: Pass) -> TensorHandle;
}

/// The gradients of a step, once its last W has run.
pub trait GradientExecutor {
    /// Floats of the gradient of each layer of a chunk.
    fn layer_lens(&self, chunk: ChunkIndex) -> Vec<usize>;

    /// These floats of a chunk's gradient as it is, of all its layers one after another.
    fn partial(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32>;

    /// Makes floats of the gradient of `chunk` the sum of its own and those of another, left plus right,
    /// where its own is on this side: as many as there are, from the first one's index on.
    fn reduce(&mut self, chunk: ChunkIndex, other: (usize, &[f32]), own_side: TreeSide);

    /// Puts sums of all replicas in the place of floats of the gradient of `chunk`, from the first one's
    /// index on.
    fn gather(&mut self, chunk: ChunkIndex, sums: (usize, &[f32]));

    /// Floats of the gradient of the matrix that a tied head shares with the embedding.
    fn tied_len(&self) -> usize;

    /// The part of that gradient that `chunk`, at this end of the model, has.
    fn tied_part(&self, chunk: ChunkIndex, end: TiedEnd) -> Vec<f32>;

    /// Makes that gradient the sum of both parts, the head's first, at the ends of the model that
    /// are here: each a chunk, and the end that it is at.
    fn tie(&mut self, ends: &[(ChunkIndex, TiedEnd)], parts: TiedParts);

    /// The gradient is complete: the next step's begins anew.
    ///
    /// # Panics
    /// If a microbatch is missing.
    fn freeze(&mut self);

    /// Corrupts a gradient on purpose, if its tensor is here.
    fn inject(&mut self, injection: &Injection);

    /// The sum of squares of each tensor's gradient, in model order within each chunk. Of the
    /// replicas of a layer the first one's counts, here and in all reads of the state.
    fn square_sums(&mut self) -> Vec<TensorSum>;

    /// The same, where an open gate would compute the candidate of `request` next: a device that
    /// gains by it computes it as well. It is in force from [`UpdateExecutor::compute_candidate`] on, and not
    /// before.
    fn square_sums_ahead(&mut self, _request: UpdateRequest) -> Vec<TensorSum> {
        self.square_sums()
    }

    /// The frozen gradient of each layer, on its way: the reader waits for it.
    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)>;

    /// The frozen gradient of one layer, if it is here.
    fn gradient(&mut self, layer: LayerId) -> Option<PendingFloats> {
        self.gradients().into_iter().find_map(|(of, g)| (of == layer).then_some(g))
    }
}

/// AdamW in two halves: a candidate ahead of the verdict, and its commit or undo by the verdict.
pub trait UpdateExecutor {
    /// Computes candidate weights from the untouched state and puts them in force.
    fn compute_candidate(&mut self, request: UpdateRequest);

    /// Puts the state's weights back in force.
    fn drop_candidate(&mut self);

    /// Weights of the candidate of `chunk`, of whole layers: each where its gradient's float lies.
    fn candidates(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32>;

    /// Puts candidates in force that other replicas computed, from the index of the first float on. They are of
    /// whole layers that are not updated here.
    fn gather_candidates(&mut self, chunk: ChunkIndex, weights: (usize, &[f32]));

    /// Makes the candidate the state: moments, then weights; one version on. A layer that is updated elsewhere
    /// and whose candidate did not come stays as it is: it is not sealed, and not read any more.
    fn commit(&mut self, request: UpdateRequest);

    /// The same, where [`SealedState::attested`] reports the state that it leaves in the next step.
    fn commit_to_attest(&mut self, request: UpdateRequest) {
        self.commit(request);
    }

    /// Leaves the state as it is, one version on.
    fn skip(&mut self, step: Step);
}

/// The layers of a stage as they are sealed; never the candidate.
pub trait SealedState {
    /// Steps sealed before the state.
    fn version(&self) -> Step;

    /// The sealed state of each layer; never the candidate.
    fn images(&self) -> Vec<LayerImage>;

    /// The sealed state of one layer, if it is here, on its way: the reader waits for it.
    fn pending_image(&mut self, layer: LayerId) -> Option<PendingImage> {
        let image = self.images().into_iter().find(|image| image.layer == layer);
        image.map(PendingImage::from)
    }

    /// The sealed state of the layers of later replicas on this stage.
    fn twin_images(&self) -> Vec<LayerImage> {
        Vec::new()
    }

    /// The sealed state of every layer here: of one that several replicas share, once where the
    /// executor has it once.
    fn all_images(&self) -> Vec<LayerImage> {
        self.images().into_iter().chain(self.twin_images()).collect()
    }

    /// The digest of each layer's sealed state, in the order of layers.
    fn digests(&self) -> Vec<LayerDigest> {
        digests_of(&self.images())
    }

    /// The digest of the sealed state of each layer of a later replica, in the order of layers.
    fn twin_digests(&self) -> Vec<LayerDigest> {
        digests_of(&self.twin_images())
    }

    /// The fingerprints of the state that a report carries now and then: of the layers of first
    /// replicas, then of those of later ones, each in the order of layers.
    ///
    /// # Errors
    /// If the device failed before they were read.
    fn attested(&self) -> Result<Vec<LayerFingerprint>, DeviceFault> {
        let mut attested = fingerprints_of(&self.images());
        attested.extend(fingerprints_of(&self.twin_images()));
        Ok(attested)
    }
}

/// The weights that islands exchange: of sealed layers, and only of what is trained.
pub trait OuterExecutor {
    /// The floats of the trained tensors of a layer as it is sealed, in order. Waits for them.
    fn trained_weights(&self, layer: LayerId) -> Vec<f32>;

    /// Mixes outer weights into those of a layer and puts them in force. No candidate is there.
    fn mix_outer(&mut self, outer: &OuterWeights);
}

/// Times of operations by the device's own clock. Every default is of a device whose operations are
/// done when they return, so that the host's clock times them.
pub trait OperationClock {
    /// Operations whose times [`Self::spans`] would return: of a device that runs later the work
    /// that is enqueued, and is timed by its own clock.
    fn spans_recorded(&self) -> usize {
        0
    }

    /// Their times since the last call, in order. Waits for them.
    fn spans(&self) -> Vec<Span> {
        Vec::new()
    }

    /// The time that the device's clock shows once all that was enqueued is done, if there is one.
    /// There must be nothing left for [`Self::spans`] to return.
    fn device_now_us(&self) -> Option<f64> {
        None
    }
}

fn fingerprints_of(images: &[LayerImage]) -> Vec<LayerFingerprint> {
    let mut fingerprints: Vec<LayerFingerprint> =
        images.iter().map(|image| (image.layer, layer_fingerprint(image))).collect();
    fingerprints.sort_unstable_by_key(|(layer, _)| *layer);
    fingerprints
}

fn digests_of(images: &[LayerImage]) -> Vec<LayerDigest> {
    let mut digests: Vec<LayerDigest> =
        images.iter().map(|image| (image.layer, layer_digest(image))).collect();
    digests.sort_unstable_by_key(|(layer, _)| *layer);
    digests
}
