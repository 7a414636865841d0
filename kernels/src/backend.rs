//! The operations that a device implements: those a transformer's training step is made of.
//!
//! Each operation is a whole fused stage of a layer, so that a device may keep what passes
//! between the parts in registers. Every operation of the backward pass is split the zero-bubble
//! way: `*_input` is B, the gradient that another operation waits for; `*_weights` is W, the
//! part that ends only in a parameter's gradient. Forward and backward keep one order of
//! arguments: shape, operands, parameters, results.
//!
//! An activation is a [`DeviceMemory::Buffer`] of rows; a row is one token. A parameter is a
//! [`BufferView`] into a buffer that holds a layer's parameters side by side. Shapes are the
//! caller's to get right: an operation asserts them.
//!
//! A backend's results do not depend on how many threads it uses, on how a model is partitioned
//! over backends, or on when an operation runs. [`crate::conformance`] holds every backend to that.

use std::ops::Range;

mod adapter;
mod clock;
mod memory;
mod muon;
mod optimizer;
mod update;

pub use self::adapter::{AdapterArithmetic, AdapterView};
pub use self::clock::DeviceClock;
pub use self::memory::{DeviceMemory, Offload, TensorTransfer};
pub use self::muon::{
    MuonCoefficients, MuonMatrix, MuonOptimizer, MuonRange, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON,
    NEWTON_SCHULZ_ITERATIONS,
};
pub use self::optimizer::{AsyncOptimizer, Optimizer};
pub use self::update::{
    AdamWCoefficients, AdamWRange, LayerCandidate, MatrixPart, PackedWeightsOptimizer,
    SQUARE_SUM_CHUNK, SquareSum, StateRange, UpdateState,
};
pub use crate::allocate::AllocateError;
use crate::fault::DeviceFault;
pub use crate::host_floats::{HostFloats, PendingFloats};
pub use crate::pending::Pending;
use crate::precision::Precision;
pub use crate::shapes::{
    Accumulate, AttentionMask, AttentionShape, BufferView, BufferViewMut, IGNORED_TARGET,
    LossScale, MatrixShape, Norm, RotaryDirection, RowPositions, RowsShape,
};
pub use crate::tensor_handle::TensorHandle;

/// The operation that follows the product in a linear layer's forward pass.
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

/// A device that trains a model: the arithmetic of its passes, over the memory of the other traits.
///
/// The author of a backend writes one trait after another, each of a few methods:
///
/// | trait | what it is |
/// |---|---|
/// | [`DeviceMemory`] | buffers, and copies between them and the host |
/// | [`Backend`] | forward and backward passes |
/// | [`Optimizer`] | sums of squares, candidates and commits |
/// | [`TensorTransfer`] | boundary tensors, and copies beside the work; by default the work waits |
/// | [`Offload`] | buffers that are away for a while |
/// | [`DeviceClock`] | timestamps of a device that works later; by default it does not |
/// | [`AsyncOptimizer`] | weights of asynchronous schedules |
/// | [`AdapterArithmetic`] | matrices with low-rank adapters |
pub trait Backend:
    DeviceMemory
    + TensorTransfer
    + Offload
    + DeviceClock
    + Optimizer
    + AsyncOptimizer
    + AdapterArithmetic
{
    /// The fault that ended the device, if any. Nothing that is read from then on is a result: the
    /// caller checks this before it passes on computed values.
    fn fault(&self) -> Option<DeviceFault> {
        None
    }

    /// The end of an operation that the caller knows as one: commands that a device has collected
    /// are issued to it now. Every read of the host is complete without this.
    fn flush(&self) {}

    /// The unit roundoff of the type of products' factors: half the distance from 1 to the next number.
    fn rounding(&self) -> f64 {
        Precision::F32.rounding()
    }

    /// `out[i] = tokens_table[token_i] + positions_table[position_i]`.
    fn embed_forward(
        &self,
        positions: RowPositions<'_>,
        tokens: &[u32],
        token_table: BufferView<'_, Self::Buffer>,
        position_table: Option<BufferView<'_, Self::Buffer>>,
        out: &mut Self::Buffer,
    );

    /// W of the embedding: rows of `gradient` added to the tables in token order.
    fn embed_backward_weights(
        &self,
        positions: RowPositions<'_>,
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

    /// QK-norm: normalises each head of queries and of keys in place, by its root mean square;
    /// `weights` are `head_width` floats for all heads of queries, and then as many for those of keys
    /// (Dehghani et al., arXiv 2302.05442, section 2). Keeps what B needs: in `before` the queries and keys as they
    /// were, without values, and a statistic for each head in `statistics`.
    fn qk_norm_forward(
        &self,
        norm: Norm,
        shape: AttentionShape,
        weights: BufferView<'_, Self::Buffer>,
        qkv: &mut Self::Buffer,
        before: &mut Self::Buffer,
        statistics: &mut Self::Buffer,
    );

    /// B of QK-norm: replaces the gradients of queries and keys in `gradient`, whose rows
    /// have those of values as well, and leaves this microbatch's share of the weights' gradient in
    /// `partials` (`2 * head_width` floats). What `before` holds then has no meaning. W is
    /// [`Backend::norm_backward_weights`] of that width.
    #[allow(clippy::too_many_arguments)]
    fn qk_norm_backward_input(
        &self,
        norm: Norm,
        shape: AttentionShape,
        statistics: &Self::Buffer,
        weights: BufferView<'_, Self::Buffer>,
        before: &mut Self::Buffer,
        gradient: &mut Self::Buffer,
        partials: &mut Self::Buffer,
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

    /// Causal softmax attention to the keys that the mask leaves; keeps the logarithm of each row's
    /// sum of exponentials in `log_sums`, heads side by side. What is masked takes part in sums as an
    /// exact zero.
    fn attention_forward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        qkv: &Self::Buffer,
        out: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    );

    /// B of attention: replaces queries, keys and values by their gradients. Scores are computed
    /// again from `log_sums` (Dao et al., arXiv 2205.14135, section 3.1).
    fn attention_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
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
        mask: AttentionMask<'_>,
        earlier: &[&Self::Buffer],
        qkv: &Self::Buffer,
        out: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    );

    /// B of a slice, which comes after that of all later ones: replaces its queries, keys and
    /// values by their gradients and adds to those of the earlier slices' keys and values. `later`
    /// holds the sums that later slices have added to its own; without it this is the last slice,
    /// which overwrites the gradients of the earlier ones instead.
    #[allow(clippy::too_many_arguments)]
    fn attention_slice_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        earlier: &mut [EarlierSlice<'_, Self::Buffer>],
        later: Option<&Self::Buffer>,
        out: &Self::Buffer,
        log_sums: &Self::Buffer,
        gradient: &Self::Buffer,
        qkv_then_gradient: &mut Self::Buffer,
    );

    /// `h = gelu(before)`: the result of [`ForwardEpilogue::Gelu`], to the same bits.
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
    /// it is read. A row whose target is [`IGNORED_TARGET`] adds nothing.
    fn head_forward(
        &self,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        targets: &[u32],
        logits: &mut Self::Buffer,
        log_sums: &mut Self::Buffer,
    ) -> Pending<f64>;

    /// B of the head: replaces logits by their gradient, of the loss that `scale` describes, and
    /// computes the gradient of `x`. The gradient of a row whose target is [`IGNORED_TARGET`] is
    /// zero.
    #[allow(clippy::too_many_arguments)]
    fn head_backward_input(
        &self,
        targets: &[u32],
        scale: LossScale,
        log_sums: &Self::Buffer,
        matrix: &Self::Matrix,
        logits_then_gradient: &mut Self::Buffer,
        gradient: &mut Self::Buffer,
    );
}
