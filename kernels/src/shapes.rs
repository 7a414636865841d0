//! What operations are passed beside buffers: which part of one, and how its rows lie.

use std::ops::Range;

/// Part of a buffer, to be read.
#[derive(Debug)]
pub struct BufferView<'a, B> {
    /// Buffer that the range lies in.
    pub buffer: &'a B,
    /// Range of the floats that are read, counted from the buffer's beginning.
    pub range: Range<usize>,
}

impl<'a, B> BufferView<'a, B> {
    /// The floats `range` of `buffer`.
    pub fn new(buffer: &'a B, range: Range<usize>) -> Self {
        Self { buffer, range }
    }
}

/// Part of a buffer, to be written.
#[derive(Debug)]
pub struct BufferViewMut<'a, B> {
    /// Buffer that the range lies in.
    pub buffer: &'a mut B,
    /// Range of the floats that are written, counted from the buffer's beginning.
    pub range: Range<usize>,
}

impl<'a, B> BufferViewMut<'a, B> {
    /// The floats `range` of `buffer`.
    pub fn new(buffer: &'a mut B, range: Range<usize>) -> Self {
        Self { buffer, range }
    }
}

/// Whether a gradient begins or continues. Microbatch 0 starts, the others add, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// Overwrite what is there.
    Start,
    /// Add to what is there.
    Add,
}

/// The kind of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Mean and variance (Ba et al., arXiv 1607.06450); statistics are mean and inverse deviation.
    Layer {
        /// Constant that is added to the variance.
        epsilon: f32,
    },
    /// Root mean square (Zhang and Sennrich, arXiv 1910.07467); the statistic is its inverse.
    Rms {
        /// Constant that is added to the mean square.
        epsilon: f32,
    },
}

impl Norm {
    /// Floats of statistics kept per row.
    #[must_use]
    pub const fn statistics_per_row(self) -> usize {
        match self {
            Self::Layer { .. } => 2,
            Self::Rms { .. } => 1,
        }
    }

    /// Whether there is a bias beside the weight.
    #[must_use]
    pub const fn has_bias(self) -> bool {
        match self {
            Self::Layer { .. } => true,
            Self::Rms { .. } => false,
        }
    }
}

/// `rows` rows of `width` floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsShape {
    /// The number of rows, one a token.
    pub count: usize,
    /// Floats in a row.
    pub width: usize,
}

/// A linear layer's matrix: `outputs` rows of `inputs` floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// The number of output features, which are the matrix's rows.
    pub outputs: usize,
    /// The number of input features, which are floats in a row.
    pub inputs: usize,
}

/// Causal attention over `sequences` sequences. A row of queries, keys and values holds
/// `heads * head_width` query floats, then `kv_heads * head_width` keys, then as many values.
/// Query head `h` reads key and value head `h / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences in the microbatch.
    pub sequences: usize,
    /// Tokens in a sequence.
    pub sequence_len: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Floats in a head.
    pub head_width: usize,
}

impl AttentionShape {
    /// Tokens of all sequences, which are the rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.sequences * self.sequence_len
    }

    /// Floats of a row of queries.
    #[must_use]
    pub const fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Floats of a row of keys, and of a row of values.
    #[must_use]
    pub const fn key_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// Heads of queries and of keys.
    #[must_use]
    pub const fn qk_heads(&self) -> usize {
        self.heads + self.kv_heads
    }

    /// Floats of a row of queries and keys, without values.
    #[must_use]
    pub const fn qk_width(&self) -> usize {
        self.qk_heads() * self.head_width
    }

    /// Floats of a row of queries, keys and values.
    #[must_use]
    pub const fn qkv_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }
}

/// Which of the keys up to itself a query of causal attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask<'a> {
    /// All of its sequence.
    Causal,
    /// For each row, the position of the first key that it sees, counted from the beginning of its
    /// sequence through earlier slices. It is at most the row's own position, and within a sequence
    /// it never falls. Such masks are the block-diagonal one of packed documents (`cu_seqlens` of
    /// FlashAttention), a sliding window (its `window_size`), and both at once.
    From(&'a [u32]),
}

impl AttentionMask<'_> {
    /// That of one sequence's queries, where each sequence has `queries`.
    pub(crate) fn of_sequence(self, sequence: usize, queries: usize) -> Self {
        match self {
            Self::Causal => Self::Causal,
            Self::From(first_keys) => Self::From(&first_keys[sequence * queries..][..queries]),
        }
    }

    /// The first key that a query of the sequence sees.
    pub(crate) fn first_key(self, query: usize) -> usize {
        match self {
            Self::Causal => 0,
            Self::From(first_keys) => first_keys[query] as usize,
        }
    }

    /// The end of the queries, of `queries` of the sequence, that see a key before `key_end`.
    pub(crate) fn query_end(self, key_end: usize, queries: usize) -> usize {
        match self {
            Self::Causal => queries,
            Self::From(first_keys) => first_keys.partition_point(|key| (*key as usize) < key_end),
        }
    }

    /// Checks that a mask is one of this shape, where `before` keys lie in earlier slices.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn check(self, shape: AttentionShape, before: usize) {
        let Self::From(first_keys) = self else { return };
        assert_eq!(first_keys.len(), shape.rows(), "a mask has a first key for each row");
        for of_sequence in first_keys.chunks_exact(shape.sequence_len) {
            assert!(of_sequence.is_sorted(), "what a query does not see no later one sees");
            let mut rows = (before..).zip(of_sequence);
            assert!(rows.all(|(own, first)| *first as usize <= own), "a query sees itself");
        }
    }
}

/// Where the rows of an embedding are in the table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPositions<'a> {
    /// They count through each sequence.
    Counted {
        /// Tokens in a sequence.
        sequence_len: usize,
    },
    /// The position of each row.
    Given(&'a [u32]),
}

impl RowPositions<'_> {
    /// The position of a row.
    pub(crate) fn of(self, row: usize) -> usize {
        match self {
            Self::Counted { sequence_len } => row % sequence_len,
            Self::Given(positions) => positions[row] as usize,
        }
    }

    /// Checks that there are as many as `rows`.
    ///
    /// # Panics
    /// If there are not.
    pub(crate) fn check(self, rows: usize) {
        match self {
            Self::Counted { sequence_len } => assert!(rows.is_multiple_of(sequence_len)),
            Self::Given(positions) => assert_eq!(positions.len(), rows),
        }
    }
}

/// The target of a row that does not count in the loss, as PyTorch's `ignore_index`.
pub const IGNORED_TARGET: u32 = u32::MAX;

/// What the sums over the rows of a head are scaled by where their gradient is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The factor of the sum of cross-entropies.
    pub cross_entropy: f32,
    /// The factor of the sum of squared log sums, which keeps the softmax's normalizer near 1: z-loss
    /// (Chowdhery et al., arXiv 2204.02311, section 5). 0 for none.
    pub z_loss: f32,
}

impl LossScale {
    /// Cross-entropies alone.
    #[must_use]
    pub const fn of_cross_entropy(factor: f32) -> Self {
        Self { cross_entropy: factor, z_loss: 0.0 }
    }

    /// What z-loss adds to the factor of a row's probabilities, for each nat of its log sum: the
    /// derivative of the square.
    pub(crate) fn log_sum_slope(self) -> f32 {
        2.0 * self.z_loss
    }

    /// The factor of a row's probabilities in the gradient of its logits. Without z-loss it is that
    /// of the cross-entropy, to the bit.
    pub(crate) fn of_probabilities(self, log_sum: f32) -> f32 {
        self.cross_entropy + self.log_sum_slope() * log_sum
    }
}

/// The direction in which a rotary embedding turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryDirection {
    /// Turns as in the forward pass.
    Forward,
    /// Turns back again, as the gradient does.
    Backward,
}
