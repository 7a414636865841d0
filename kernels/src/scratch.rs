//! The memory that single operations use of a device beside their buffers, counted without one. A
//! stage allocates it when it is made, so that no operation in the middle of a run finds that there
//! is none left.
//!
//! The operations request their memory by the functions below; tests on an emulated device see that
//! the memory counted for a stage is never outgrown.

use crate::precision::Precision;
use crate::shapes::{AttentionShape, MatrixShape, Norm, RowsShape};

/// Buffers of an NVIDIA device start on a multiple of this, which the choice of a product's
/// algorithm relies on.
pub(crate) const CUDA_ALIGNMENT: u64 = 256;
/// Rows that are added up in one chain: GROUP_ROWS of `columns.cu` and `norm.cu`.
pub(crate) const GROUP_ROWS: usize = 16;
/// Sums of groups that one block adds up: AGAIN_ROWS of `columns.cu`.
pub(crate) const AGAIN_ROWS: usize = 1024;
/// Elements that a block squares: PIECE of `optimizer.cu`.
pub(crate) const PIECE: usize = 16_384;
/// Bytes of the structure `SquareSumBatch` of `optimizer.cu`.
pub(crate) const SQUARES_BYTES: usize = 16;
/// Bytes of the structure `DeviceTensor` of `optimizer.cu`.
pub(crate) const TENSOR_BYTES: usize = 24;
/// Bytes of the structure `SteppedTensor` of `optimizer.cu`.
pub(crate) const STEPPED_TENSOR_BYTES: usize = 104;
/// Places that a block of `optimizer.cu` adds up for a fingerprint, and the bytes of the sums that
/// it leaves.
pub(crate) const SUMMED_PLACES: usize = 1024;
pub(crate) const STATE_SUMS_BYTES: usize = 16;
/// Timestamps that may wait to be read: two for each layer of each pass of a large step.
pub(crate) const TIMESTAMPS_MAX: usize = 16_384;
/// Bytes of one timestamp, a `u64` of nanoseconds.
pub(crate) const TIMESTAMP_BYTES: usize = 8;

/// The purpose of scratch. Two of them may be in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScratchSlot {
    /// Token ids, targets, lists of rows and of chunks.
    Lists,
    /// Sums of groups of rows.
    Sums,
    /// Sums of those.
    SumsAgain,
    /// A product on its way through an activation's slope, or gradients of keys and values.
    Product,
    /// Products of outputs and their gradients, a float a row and head.
    RowProducts,
    /// Results that are read by the host.
    Results,
    /// Timestamps of the device's clock.
    Timestamps,
    /// The first key of each row, of the mask that attention used last.
    FirstKeys,
    /// A matrix on its way to Muon's direction.
    Muon,
}

/// The number of slots.
pub(crate) const SLOT_COUNT: usize = 9;

/// An operation that uses scratch, with the shape that determines how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScratchOperation {
    /// The embedding of so many tokens, and the gradient of its tables.
    Embed {
        /// The number of tokens.
        rows: usize,
    },
    /// The gradient of a normalisation.
    Norm {
        /// The kind of normalisation.
        norm: Norm,
        /// The shape of the rows that are normalised.
        rows: RowsShape,
    },
    /// The gradient of a linear layer's bias.
    Bias {
        /// The shape of the gradient whose rows are summed.
        rows: RowsShape,
    },
    /// The gradient of a linear layer behind GELU.
    Gelu {
        /// The shape of GELU's input.
        rows: RowsShape,
    },
    /// Attention under a mask, and its gradient.
    Attention(AttentionShape),
    /// Logits and losses of so many tokens, and their gradients.
    Head {
        /// The number of tokens.
        rows: usize,
    },
    /// The fingerprint of a layer's state, by itself or with its COMMIT.
    StateSums {
        /// Blocks that add it up, at most.
        blocks: usize,
    },
    /// Sums of squares of all tensors at once, and their candidates.
    Squares {
        /// The number of tensors.
        tensors: usize,
        /// The number of pieces that they are cut into.
        pieces: usize,
    },
    /// Muon's update of a matrix.
    Muon {
        /// The shape of the matrix.
        shape: MatrixShape,
    },
    /// Timestamps of the device's clock.
    Timestamps,
}

impl ScratchOperation {
    /// Sums of squares of tensors of these lengths.
    #[must_use]
    pub fn squares(lens: impl IntoIterator<Item = usize>) -> Self {
        let add = |(tensors, pieces), len: usize| (tensors + 1, pieces + len.div_ceil(PIECE));
        let (tensors, pieces) = lens.into_iter().fold((0, 0), add);
        Self::Squares { tensors, pieces }
    }

    /// The fingerprint of a layer that consists of tensors of these lengths.
    #[must_use]
    pub fn state_sums(lens: impl IntoIterator<Item = usize>) -> Self {
        Self::StateSums { blocks: lens.into_iter().map(|len| len.div_ceil(SUMMED_PLACES)).sum() }
    }

    /// The scratch that it requests: slots and the bytes of each.
    fn scratch_requests(self, precision: Precision) -> Vec<(ScratchSlot, usize)> {
        match self {
            Self::Embed { rows } => vec![(ScratchSlot::Lists, owners_bytes(rows))],
            Self::Norm { norm, rows } => {
                sums_requests(RowsShape { width: partials_len(norm, rows.width), ..rows })
            }
            Self::Bias { rows } => sums_requests(rows),
            Self::Gelu { rows } => {
                vec![(ScratchSlot::Product, rows.count * rows.width * precision.bytes())]
            }
            Self::Attention(shape) => vec![
                (ScratchSlot::FirstKeys, shape.rows() * 4),
                (ScratchSlot::Product, key_values(shape) * 4),
                (ScratchSlot::RowProducts, shape.rows() * shape.heads * 4),
            ],
            Self::Head { rows } => {
                vec![(ScratchSlot::Lists, rows * 4), (ScratchSlot::Results, rows * 8)]
            }
            Self::StateSums { blocks } => {
                vec![
                    (ScratchSlot::Sums, blocks * STATE_SUMS_BYTES),
                    (ScratchSlot::Results, STATE_SUMS_BYTES),
                ]
            }
            Self::Squares { tensors, pieces } => vec![
                (ScratchSlot::Lists, tensors * (TENSOR_BYTES + STEPPED_TENSOR_BYTES)),
                (ScratchSlot::Sums, pieces * SQUARES_BYTES),
                (ScratchSlot::Results, tensors * SQUARES_BYTES),
            ],
            Self::Muon { shape } => {
                vec![(ScratchSlot::Muon, MuonScratch::new(shape, precision).bytes())]
            }
            Self::Timestamps => vec![(ScratchSlot::Timestamps, TIMESTAMPS_MAX * TIMESTAMP_BYTES)],
        }
    }
}

/// What Muon's update of one matrix keeps in scratch, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MuonScratch {
    shape: MatrixShape,
    precision: Precision,
}

impl MuonScratch {
    pub(crate) const fn new(shape: MatrixShape, precision: Precision) -> Self {
        Self { shape, precision }
    }

    /// Pieces of the matrix: PIECE of `muon.cu`.
    pub(crate) fn pieces(self) -> usize {
        (self.shape.outputs * self.shape.inputs).div_ceil(PIECE)
    }

    /// The matrix as floats, sums of squares of its pieces, the matrix and its product with the
    /// polynomial in the type of activations, the Gram matrix of its shorter side, and the square of
    /// that: bytes of each.
    fn lens(self) -> [usize; 6] {
        let MatrixShape { outputs, inputs } = self.shape;
        let whole = outputs * inputs;
        let short = outputs.min(inputs);
        let row = self.precision.bytes();
        let parts = [whole * 4, self.pieces() * 8, whole * row, whole * row];
        let [floats, sums, x, product] = parts;
        let square = short * short * row;
        [floats, sums, x, product, square, square]
            .map(|bytes| bytes.next_multiple_of(CUDA_ALIGNMENT as usize))
    }

    /// Where each begins.
    pub(crate) fn offsets(self) -> [usize; 6] {
        let mut next = 0;
        self.lens().map(|bytes| {
            next += bytes;
            next - bytes
        })
    }

    /// The bytes of all.
    pub(crate) fn bytes(self) -> usize {
        self.lens().iter().sum()
    }
}

/// The bytes that each slot must hold for all of these operations.
pub(crate) fn slot_bytes(
    operations: &[ScratchOperation],
    precision: Precision,
) -> [u64; SLOT_COUNT] {
    let mut slots = [0; SLOT_COUNT];
    for (slot, bytes) in
        operations.iter().flat_map(|operation| operation.scratch_requests(precision))
    {
        let most = &mut slots[slot as usize];
        *most = bytes.max(*most as usize) as u64;
    }
    slots
}

/// Sums of groups of rows, and of groups of those.
fn sums_requests(rows: RowsShape) -> Vec<(ScratchSlot, usize)> {
    let groups = rows.count.div_ceil(GROUP_ROWS);
    let again = if groups > AGAIN_ROWS { again_bytes(groups, rows.width) } else { 0 };
    vec![(ScratchSlot::Sums, sums_bytes(rows.count, rows.width)), (ScratchSlot::SumsAgain, again)]
}

/// A sum for each group of so many rows.
pub(crate) const fn sums_bytes(rows: usize, width: usize) -> usize {
    rows.div_ceil(GROUP_ROWS) * width * 4
}

/// A sum for each group of so many sums.
pub(crate) const fn again_bytes(groups: usize, width: usize) -> usize {
    groups.div_ceil(AGAIN_ROWS) * width * 4
}

/// Lists of entries and where they start, if all tokens differ, and of rows.
const fn owners_bytes(rows: usize) -> usize {
    (3 * rows + 1) * 4
}

/// Floats of a microbatch's share of a normalisation's parameter gradients.
pub(crate) const fn partials_len(norm: Norm, width: usize) -> usize {
    if norm.has_bias() { 2 * width } else { width }
}

/// Floats of the keys and values of all rows.
pub(crate) const fn key_values(shape: AttentionShape) -> usize {
    shape.rows() * 2 * shape.key_width()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operation: ScratchOperation, expected: &[(ScratchSlot, u64)]) {
        let found = slot_bytes(&[operation], Precision::Bf16);
        let mut slots = [0; SLOT_COUNT];
        expected.iter().for_each(|(slot, bytes)| slots[*slot as usize] = *bytes);
        assert_eq!(found, slots, "{operation:?}");
    }

    #[test]
    fn each_operation_requests_what_its_shape_says() {
        let rows = |count, width| RowsShape { count, width };
        check(ScratchOperation::Embed { rows: 100 }, &[(ScratchSlot::Lists, 1204)]);
        check(
            ScratchOperation::Head { rows: 100 },
            &[(ScratchSlot::Lists, 400), (ScratchSlot::Results, 800)],
        );
        check(ScratchOperation::Gelu { rows: rows(10, 30) }, &[(ScratchSlot::Product, 600)]);
        let bias = |count| ScratchOperation::Bias { rows: rows(count, 10) };
        check(bias(16_384), &[(ScratchSlot::Sums, 1024 * 40)]);
        let long = [(ScratchSlot::Sums, 1025 * 40), (ScratchSlot::SumsAgain, 2 * 40)];
        check(bias(16_385), &long);
        let norm = Norm::Layer { epsilon: 1e-5 };
        check(ScratchOperation::Norm { norm, rows: rows(17, 10) }, &[(ScratchSlot::Sums, 160)]);
        let norm = Norm::Rms { epsilon: 1e-5 };
        check(ScratchOperation::Norm { norm, rows: rows(17, 10) }, &[(ScratchSlot::Sums, 80)]);
        let sequences = 2;
        let sequence_len = 5;
        let heads = 4;
        let kv_heads = 2;
        let head_width = 8;
        let shape = AttentionShape { sequences, sequence_len, heads, kv_heads, head_width };
        let attention = [
            (ScratchSlot::FirstKeys, 10 * 4),
            (ScratchSlot::Product, 10 * 32 * 4),
            (ScratchSlot::RowProducts, 10 * 4 * 4),
        ];
        check(ScratchOperation::Attention(shape), &attention);
        let squares =
            [(ScratchSlot::Lists, 256), (ScratchSlot::Sums, 3 * 16), (ScratchSlot::Results, 32)];
        check(ScratchOperation::squares([16_384, 16_385]), &squares);
        let sums = [(ScratchSlot::Sums, 3 * 16), (ScratchSlot::Results, 16)];
        check(ScratchOperation::state_sums([1024, 1025]), &sums);
    }

    #[test]
    fn muon_requests_a_matrix_four_times_and_its_shorter_side_squared_twice() {
        let shape = MatrixShape { outputs: 64, inputs: 512 };
        // Floats, and two sums of pieces; two matrices and two squares in halves.
        let bytes = 4 * 32_768 + 256 + 2 * 2 * 32_768 + 2 * 2 * 4096;
        check(ScratchOperation::Muon { shape }, &[(ScratchSlot::Muon, bytes)]);
        let scratch = MuonScratch::new(shape, Precision::F32);
        assert_eq!(scratch.offsets()[2], 4 * 32_768 + 256);
        assert_eq!(scratch.bytes(), 3 * 4 * 32_768 + 256 + 2 * 4 * 4096);
    }

    #[test]
    fn a_slot_holds_the_largest_of_all_operations() {
        let all = [ScratchOperation::Embed { rows: 10 }, ScratchOperation::Head { rows: 100 }];
        let slots = slot_bytes(&all, Precision::F32);
        assert_eq!(
            (slots[ScratchSlot::Lists as usize], slots[ScratchSlot::Results as usize]),
            (400, 800)
        );
        assert_eq!(slots, slot_bytes(&[all[1], all[0]], Precision::F32));
    }
}
