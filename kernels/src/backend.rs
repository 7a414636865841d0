//! What a device must be able to do: the operations a transformer's training step
//! is made of.
//!
//! Each operation is a whole fused stage of a layer, so that a device may keep what passes
//! between the parts in registers. Every operation of the backward pass is split the zero-bubble
//! way: `*_input` is B, what another operation waits for; `*_weights` is W, what ends only in a
//! parameter's gradient. Forward and backward keep one order of arguments: shape, operands,
//! parameters, results.
//!
//! An activation is a [`Backend::Buffer`] of rows; a row is one token. A parameter is a
//! [`BufferView`] into a buffer that holds a layer's parameters side by side. Shapes are the
//! caller's to get right: an operation asserts them.
//!
//! A backend's results do not depend on how many threads it uses, on how a model is partitioned
//! over backends, or on when an operation runs. [`crate::conformance`] holds every backend to that.

use std::ops::Range;

mod update;

pub use self::update::{
    AdamWCoefficients, AdamWRange, LayerCandidate, MatrixPart, PackedWeightsOptimizer,
    SQUARE_SUM_CHUNK, SquareSum, UpdateState,
};
pub use crate::allocate::AllocateError;
use crate::fault::DeviceFault;
pub use crate::host_floats::{HostFloats, PendingFloats};
pub use crate::pending::Pending;
pub use crate::shapes::{
    Accumulate, AttentionShape, BufferView, BufferViewMut, MatrixShape, Norm, RotaryDirection,
    RowsShape,
};
use crate::sizes::{ByteCounts, MemoryClaim};
pub use crate::tensor_handle::TensorHandle;

/// What follows the product in a linear layer's forward pass.
#[derive(Debug)]
pub enum ForwardEpilogue<'a, B> {
    /// Nothing follows the product.
    Plain,
    /// The result is GELU of the product; the product itself is kept in `before`.
    Gelu {
        /// Receives GELU's input: the product with its bias.
        before: &'a mut B,
    },
    /// The result is `skip` plus the product.
    Add {
        /// The residual stream that the product is added to.
        skip: &'a B,
    },
}

/// Where a linear layer's input gradient goes.
#[derive(Debug)]
pub enum BackwardEpilogue<'a, B> {
    /// The gradient is written as it is.
    Plain {
        /// Receives the input gradient.
        gradient: &'a mut B,
    },
    /// The gradient is multiplied by GELU's slope.
    Gelu {
        /// Holds GELU's input; receives its gradient.
        before_then_gradient: &'a mut B,
    },
}

/// A linear layer's part of a gradient buffer.
#[derive(Debug)]
pub struct LinearGradient<'a, B> {
    /// Gradient buffer that holds the layer's part.
    pub buffer: &'a mut B,
    /// The matrix in it, `outputs` by `inputs`.
    pub weight: Range<usize>,
    /// Range of the bias in `buffer`, if the layer has one.
    pub bias: Option<Range<usize>>,
}

/// A normalisation's part of a gradient buffer.
#[derive(Debug)]
pub struct NormGradient<'a, B> {
    /// Gradient buffer that holds the normalisation's part.
    pub buffer: &'a mut B,
    /// Range of the weight in `buffer`.
    pub weight: Range<usize>,
    /// Range of the bias in `buffer`, if the normalisation has one.
    pub bias: Option<Range<usize>>,
}

/// The embedding's part of a gradient buffer.
#[derive(Debug)]
pub struct EmbedGradient<'a, B> {
    /// Gradient buffer that holds the embedding's part.
    pub buffer: &'a mut B,
    /// Range of the token table in `buffer`.
    pub tokens: Range<usize>,
    /// Range of the table of positions in `buffer`, if the model has one.
    pub positions: Option<Range<usize>>,
}

/// An earlier slice of the same sequences, while a later one goes backward.
#[derive(Debug)]
pub struct EarlierSlice<'a, B> {
    /// The slice's queries, keys and values.
    pub qkv: &'a B,
    /// Receives later slices' shares of the gradients of its keys and values: a row holds
    /// `kv_heads * head_width` floats of keys and then as many of values.
    pub key_value_gradient: &'a mut B,
}

/// A device that holds tensors and does arithmetic on them.
pub trait Backend: ByteCounts {
    /// A run of 32-bit floats in the device's memory.
    type Buffer;
    /// A linear layer's matrix in the form in which products read it.
    type Matrix;
    /// Memory outside the device for buffers that are offloaded for a while.
    type OffloadBuffer;

    /// The fault that ended the device, if any. Nothing that is read from then on is a result: the
    /// caller checks this before it passes on what was computed.
    fn fault(&self) -> Option<DeviceFault> {
        None
    }

    /// Allocates memory at once for all that is allocated next through this handle, and for the
    /// operations that are run through it later: none of them fails then for lack of memory. A
    /// device that allocates memory as it is needed does nothing.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn claim(&self, claim: &MemoryClaim<'_>) -> Result<(), AllocateError> {
        let _unused = claim;
        Ok(())
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate(&self, len: usize) -> Result<Self::Buffer, AllocateError>;

    /// A buffer of `len` zeros for activations: rows of a residual stream, of queries, keys and
    /// values, of gates, logits and their gradients. A device may hold these in a smaller type;
    /// whatever is copied to it from the host is then rounded to that type.
    ///
    /// Parameters, their gradients and moments, statistics, logarithms of sums, rotary angles and
    /// what later slices add to keys and values are sums of many terms or are read by many; they
    /// come from [`Backend::allocate`].
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate_rows(&self, len: usize) -> Result<Self::Buffer, AllocateError> {
        self.allocate(len)
    }

    /// The end of an operation that the caller knows as one: commands that a device has collected
    /// are issued to it now. Whatever the host reads is complete without this.
    fn flush(&self) {}

    /// The unit roundoff of the type of activations: half the distance from 1 to the next number.
    fn rounding(&self) -> f64 {
        f64::from(f32::EPSILON) / 2.0
    }

    /// The number of floats in a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Copies from the host; lengths are equal.
    fn upload(&self, from: &[f32], to: BufferViewMut<'_, Self::Buffer>);

    /// A buffer that begins with these floats. What lies where the device reads it is not copied.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn adopt(&self, floats: &HostFloats) -> Result<Self::Buffer, AllocateError> {
        let mut buffer = self.allocate(floats.len())?;
        self.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
        Ok(buffer)
    }

    /// What a buffer holds now, on the host. What lies there already is not copied until it is
    /// written.
    fn share(&self, from: &Self::Buffer) -> HostFloats {
        self.download(BufferView::new(from, 0..self.len(from))).into()
    }

    /// Copies a range of a buffer to the host.
    fn download(&self, from: BufferView<'_, Self::Buffer>) -> Vec<f32>;

    /// Copies within the device; lengths are equal.
    fn copy(&self, from: BufferView<'_, Self::Buffer>, to: BufferViewMut<'_, Self::Buffer>);

    /// Whether operations are enqueued here and done later: then only [`Self::record_timestamp`]
    /// knows when.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Records a timestamp, by the device's own clock, once everything enqueued before is done.
    /// False if it was not recorded: too many wait to be read, or operations are done when they
    /// return.
    fn record_timestamp(&self) -> bool {
        false
    }

    /// The timestamps recorded since the last call, in order, in microseconds. Waits for them;
    /// fewer than were recorded if the device failed.
    fn read_timestamps(&self) -> Vec<f64> {
        Vec::new()
    }

    /// A copy for another backend, which may be on another thread. A device does not wait for
    /// anything to make it.
    fn export_tensor(&self, from: BufferView<'_, Self::Buffer>) -> TensorHandle {
        self.download(from).into()
    }

    /// Copies the numbers of a tensor into a buffer; lengths are equal. A device that can copy them
    /// from another does not wait for anything either.
    ///
    /// # Errors
    /// If the numbers are waited for, and the device that holds them fails.
    fn import_tensor(
        &self,
        tensor: TensorHandle,
        to: BufferViewMut<'_, Self::Buffer>,
    ) -> Result<(), DeviceFault> {
        self.upload(&tensor.into_floats()?, to);
        Ok(())
    }

    /// Begins to copy a tensor of activations that another process sent to the device, beside
    /// whatever that does.
    fn begin_upload(&self, tensor: TensorHandle) -> TensorHandle {
        tensor
    }

    /// The floats of a buffer on their way to the host, beside whatever the device does next: the
    /// reader waits. The buffer may be read meanwhile; before it is written the caller calls
    /// [`Backend::order_after_copies`].
    fn begin_download(&self, from: &mut Self::Buffer) -> PendingFloats {
        self.download(BufferView::new(from, 0..self.len(from))).into()
    }

    /// Memory of the host for offloaded buffers, allocated once. `None` if the device's memory is
    /// the host's: then the caller that would offload a buffer keeps it.
    ///
    /// # Errors
    /// If the host has no such memory left.
    fn reserve_offload(&self, bytes: u64) -> Result<Option<Self::OffloadBuffer>, AllocateError>;

    /// Copies buffers, one behind the other, to `host` from its byte `start` on, beside whatever
    /// the device does next. Until [`Backend::order_after_copies`] nothing else may use them.
    fn offload(&self, parts: &mut [&mut Self::Buffer], host: &mut Self::OffloadBuffer, start: u64);

    /// Copies back what was offloaded from `start` on, into buffers of the same lengths, beside
    /// whatever the device does next. Until [`Backend::order_after_copies`] nothing else may use
    /// them.
    fn reload(&self, host: &mut Self::OffloadBuffer, start: u64, parts: &mut [&mut Self::Buffer]);

    /// Orders what is enqueued on the device from now on after the copies that still use this
    /// buffer.
    fn order_after_copies(&self, _buffer: &mut Self::Buffer) {}

    /// Allocates a matrix of zeros.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate_matrix(&self, shape: MatrixShape) -> Result<Self::Matrix, AllocateError>;

    /// Packs `from`, `outputs` by `inputs` in row-major order, into the form that products read.
    fn load_matrix(&self, from: BufferView<'_, Self::Buffer>, to: &mut Self::Matrix);

    /// `out[i] = tokens_table[token_i] + positions_table[i mod sequence_len]`.
    fn embed_forward(
        &self,
        sequence_len: usize,
        tokens: &[u32],
        token_table: BufferView<'_, Self::Buffer>,
        position_table: Option<BufferView<'_, Self::Buffer>>,
        out: &mut Self::Buffer,
    );

    /// W of the embedding: rows of `gradient` added to the tables in token order.
    fn embed_backward_weights(
        &self,
        sequence_len: usize,
        tokens: &[u32],
        gradient: &Self::Buffer,
        to: EmbedGradient<'_, Self::Buffer>,
        accumulate: Accumulate,
    );

    /// Normalises rows of `x` into `y` and keeps the statistics.
    #[allow(clippy::too_many_arguments)]
    fn norm_forward(
        &self,
        norm: Norm,
        rows: RowsShape,
        x: &Self::Buffer,
        weight: BufferView<'_, Self::Buffer>,
        bias: Option<BufferView<'_, Self::Buffer>>,
        y: &mut Self::Buffer,
        statistics: &mut Self::Buffer,
    );

    /// B of a normalisation on a residual stream: replaces `x` by `skip` plus the gradient that
    /// comes through the normalisation, and leaves this microbatch's share of the weight's and
    /// bias's gradient in `partials` (`width` floats each).
    #[allow(clippy::too_many_arguments)]
    fn norm_backward_input(
        &self,
        norm: Norm,
        rows: RowsShape,
        gradient: &Self::Buffer,
        skip: Option<&Self::Buffer>,
        weight: BufferView<'_, Self::Buffer>,
        statistics: &Self::Buffer,
        x_then_gradient: &mut Self::Buffer,
        partials: &mut Self::Buffer,
    );

    /// W of a normalisation: adds `partials`.
    fn norm_backward_weights(
        &self,
        norm: Norm,
        width: usize,
        partials: &Self::Buffer,
        to: NormGradient<'_, Self::Buffer>,
        accumulate: Accumulate,
    );

    /// `y = epilogue(x * matrix^T + bias)`.
    fn linear_forward(
        &self,
        rows: usize,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        bias: Option<BufferView<'_, Self::Buffer>>,
        epilogue: ForwardEpilogue<'_, Self::Buffer>,
        y: &mut Self::Buffer,
    );

    /// B of a linear layer: `epilogue(gradient * matrix)`.
    fn linear_backward_input(
        &self,
        rows: usize,
        gradient: &Self::Buffer,
        matrix: &Self::Matrix,
        epilogue: BackwardEpilogue<'_, Self::Buffer>,
    );

    /// W of a linear layer: `gradient^T * x`, and the column sums of `gradient` for the bias.
    fn linear_backward_weights(
        &self,
        rows: usize,
        shape: MatrixShape,
        x: &Self::Buffer,
        gradient: &Self::Buffer,
        to: LinearGradient<'_, Self::Buffer>,
        accumulate: Accumulate,
    );

    /// Turns queries and keys by their position (Su et al., arXiv 2104.09864; halves, not pairs).
    /// `angles` holds, for each position, `head_width / 2` cosines and then as many sines.
    fn rotate(
        &self,
        shape: AttentionShape,
        angles: &Self::Buffer,
        direction: RotaryDirection,
        qkv: &mut Self::Buffer,
    );

    /// Causal softmax attention; keeps the logarithm of each row's sum of exponentials in
    /// `log_sums`, heads side by side.
    fn attention_forward(
        &self,
        shape: AttentionShape,
        qkv: &Self::Buffer,
        out: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    );

    /// B of attention: replaces queries, keys and values by their gradients. Scores are computed
    /// again from `log_sums` (Dao et al., arXiv 2205.14135, section 3.1).
    fn attention_backward(
        &self,
        shape: AttentionShape,
        out: &Self::Buffer,
        log_sums: &Self::Buffer,
        gradient: &Self::Buffer,
        qkv_then_gradient: &mut Self::Buffer,
    );

    /// Attention of one slice of each sequence: its queries see the keys and values of the
    /// `earlier` slices of the same sequences, in order, and of their own up to themselves. Slices
    /// need not be equally long: `shape` is that of the one whose queries these are, and an earlier
    /// one's length follows from its buffer, which has nothing else in it. A row gets what
    /// [`Backend::attention_forward`] gives it over the whole sequence.
    fn attention_slice_forward(
        &self,
        shape: AttentionShape,
        earlier: &[&Self::Buffer],
        qkv: &Self::Buffer,
        out: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    );

    /// B of a slice, which comes after that of all later ones: replaces its queries, keys and
    /// values by their gradients and adds to those of the earlier slices' keys and values. `later`
    /// is what later slices have added to its own; without it this is the last slice, which
    /// overwrites the gradients of the earlier ones instead.
    #[allow(clippy::too_many_arguments)]
    fn attention_slice_backward(
        &self,
        shape: AttentionShape,
        earlier: &mut [EarlierSlice<'_, Self::Buffer>],
        later: Option<&Self::Buffer>,
        out: &Self::Buffer,
        log_sums: &Self::Buffer,
        gradient: &Self::Buffer,
        qkv_then_gradient: &mut Self::Buffer,
    );

    /// `h = gelu(before)`: what [`ForwardEpilogue::Gelu`] left, to the same bits.
    fn gelu_forward(&self, rows: RowsShape, before: &Self::Buffer, h: &mut Self::Buffer);

    /// `h = silu(gate) * up`; a row of `gate_up` holds `width` floats of each (Shazeer, arXiv
    /// 2002.05202).
    fn swiglu_forward(&self, rows: RowsShape, gate_up: &Self::Buffer, h: &mut Self::Buffer);

    /// B of SwiGLU: replaces gate and up by their gradients.
    fn swiglu_backward(
        &self,
        rows: RowsShape,
        gradient: &Self::Buffer,
        gate_up_then_gradient: &mut Self::Buffer,
    );

    /// Logits, the logarithm of each row's sum of their exponentials, and the sum over rows of the
    /// cross-entropy with `targets`, in nats: the loss, which the device may leave unfinished until
    /// it is read.
    fn head_forward(
        &self,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        targets: &[u32],
        logits: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    ) -> Pending<f64>;

    /// B of the head: replaces logits by their gradient, scaled by `scale`, and computes the
    /// gradient of `x`.
    #[allow(clippy::too_many_arguments)]
    fn head_backward_input(
        &self,
        targets: &[u32],
        scale: f32,
        log_sums: &Self::Buffer,
        matrix: &Self::Matrix,
        logits_then_gradient: &mut Self::Buffer,
        gradient: &mut Self::Buffer,
    );

    /// The sum of squares of a tensor.
    fn sum_squares(&self, x: BufferView<'_, Self::Buffer>) -> SquareSum;

    /// The sums of squares of many tensors, each that of [`Backend::sum_squares`]; in one go where
    /// a device gains by it.
    fn sum_squares_of_each(&self, tensors: &[BufferView<'_, Self::Buffer>]) -> Vec<SquareSum> {
        let sum = |x: &BufferView<'_, Self::Buffer>| {
            self.sum_squares(BufferView::new(x.buffer, x.range.clone()))
        };
        tensors.iter().map(sum).collect()
    }

    /// The sums of a state's fingerprint ([`crate::fingerprint`]) over all of `w`, `m` and `v`,
    /// which are of equal length. A device may leave them unfinished until they are read.
    fn state_sums(&self, w: &Self::Buffer, m: &Self::Buffer, v: &Self::Buffer)
    -> Pending<[u64; 2]>;

    /// How an update ahead of its verdict is computed where candidates are packed weights; `None`
    /// where they lie beside the state, as [`Backend::adamw_candidate`] leaves them.
    fn packed_weights_optimizer(
        &self,
    ) -> Option<&dyn PackedWeightsOptimizer<Self::Buffer, Self::Matrix>> {
        None
    }

    /// The weights after an AdamW step, beside the state: reads `w`, `m`, `v`, `g` over `range`
    /// and writes `candidate` there. The matrices, which lie within `range` in order, are packed
    /// into the form that products read at once, as by [`Backend::load_matrix`].
    #[allow(clippy::too_many_arguments)]
    fn adamw_candidate(
        &self,
        range: Range<usize>,
        w: &Self::Buffer,
        m: &Self::Buffer,
        v: &Self::Buffer,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        candidate: &mut Self::Buffer,
        matrices: &mut [MatrixPart<'_, Self::Matrix>],
    );

    /// The moments after the same step, in place.
    fn adamw_commit(
        &self,
        range: Range<usize>,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        m: &mut Self::Buffer,
        v: &mut Self::Buffer,
    );

    /// The same step as a trainer without validation takes it: weights and moments in place, in
    /// one pass, and the matrices packed. What optimistic steps are measured against.
    #[allow(clippy::too_many_arguments)]
    fn adamw_in_place(
        &self,
        range: Range<usize>,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        w: &mut Self::Buffer,
        m: &mut Self::Buffer,
        v: &mut Self::Buffer,
        matrices: &mut [MatrixPart<'_, Self::Matrix>],
    );

    /// `to = w + step * (m / (sqrt(v) / correction2 + epsilon))`: weights that many of Adam's steps
    /// ahead as `step` is large. This and the operations that follow are of whole buffers of one
    /// length, and meet the bits of [`crate::reference`].
    fn adam_ahead(
        &self,
        w: &Self::Buffer,
        m: &Self::Buffer,
        v: &Self::Buffer,
        numbers: AdamWCoefficients,
        to: &mut Self::Buffer,
    );

    /// `to = w - rate * direction`.
    fn weights_along(
        &self,
        w: &Self::Buffer,
        direction: &Self::Buffer,
        rate: f32,
        to: &mut Self::Buffer,
    );

    /// `change = decay * change + (1 - decay) * (after - before)`.
    fn track_change(
        &self,
        before: &Self::Buffer,
        after: &Self::Buffer,
        decay: f32,
        change: &mut Self::Buffer,
    );

    /// `w` and `reference` move towards each other, each by `alpha` of their difference.
    fn pull_together(&self, alpha: f32, w: &mut Self::Buffer, reference: &mut Self::Buffer);
}
