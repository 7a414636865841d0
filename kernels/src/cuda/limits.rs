//! Sizes that kernels cannot count or hold, reported before a run begins.
//!
//! The operations assert the same limits where they launch. The code that knows the model and the
//! plan checks here first, so that a shape which is too large is an error with two numbers in it
//! and not a broken assertion in the first pass.

use super::attention::{HEAD_WIDTH_MAX, SLICES_MAX};
use super::columns::GROUP_ROWS;
use super::kernel::{GRID_Y_MAX, THINGS_MAX};

/// The numbers of a model and of its passes that kernels have limits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassShape {
    /// Sequences in a microbatch.
    pub sequences: usize,
    /// Tokens of each sequence that one pass reads: of the longest slice.
    pub sequence_len: usize,
    /// Slices of a sequence.
    pub slices: usize,
    /// Floats of the residual stream.
    pub width: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads.
    pub kv_heads: usize,
    /// Floats in a head.
    pub head_width: usize,
    /// Floats of the MLP's hidden layer.
    pub mlp_width: usize,
}

/// A limit that a model or its batch goes beyond. Each holds the allowed and the
/// requested value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Heads are too wide.
    #[error(
        "heads are {found} floats wide, the device's attention takes at most {limit}; train with \
         more and narrower heads, or on processors"
    )]
    HeadWidth {
        /// Floats that are allowed.
        limit: usize,
        /// Floats that were requested.
        found: usize,
    },
    /// Sequences are cut into too many slices.
    #[error(
        "sequences are cut into {found} slices, the device's attention takes at most {limit}; lower \
         schedule.slices"
    )]
    Slices {
        /// Slices that are allowed.
        limit: usize,
        /// Slices that were requested.
        found: usize,
    },
    /// Attention has a block in one direction of its grid for each head of each sequence.
    #[error(
        "a microbatch has {found} heads in all its sequences, the device takes at most {limit}; \
         lower train.microbatch"
    )]
    SequenceHeads {
        /// Heads of all sequences that are allowed.
        limit: usize,
        /// Heads of all sequences that were requested.
        found: usize,
    },
    /// Gradients of biases have a block in one direction of their grid for each 16 rows.
    #[error("a pass has {found} tokens, the device takes at most {limit}; lower train.microbatch")]
    Tokens {
        /// Tokens that are allowed.
        limit: usize,
        /// Tokens that were requested.
        found: usize,
    },
    /// Kernels count their elements in 32 bits.
    #[error(
        "one operation of a pass takes {found} threads, the device counts at most {limit}; lower \
         train.microbatch"
    )]
    Threads {
        /// Threads that are allowed.
        limit: usize,
        /// Threads that were requested.
        found: usize,
    },
}

impl PassShape {
    /// Rows of a pass.
    const fn rows(&self) -> usize {
        self.sequences * self.sequence_len
    }

    /// The most threads that one operation of a pass needs.
    fn threads(&self) -> usize {
        let Self { sequence_len, width, heads, kv_heads, head_width, mlp_width, .. } = *self;
        let rows = self.rows();
        let queries = heads * head_width;
        let keys = kv_heads * head_width;
        // Elementwise kernels compute four of a row's floats a thread.
        let of_rows = [width, queries + 2 * keys, 2 * mlp_width].map(|width| width.div_ceil(4));
        let widest = of_rows.into_iter().max().expect("there are three");
        // A thread computes four pairs of rotary angles of a head, or one float of the gradients of keys
        // and values and of positions.
        let rotated = (heads + kv_heads) * (head_width / 2).div_ceil(4);
        (rows * widest.max(rotated).max(2 * keys)).max(sequence_len * width)
    }
}

/// Whether every operation of a pass of this shape can be launched.
///
/// # Errors
/// The first limit that it goes beyond.
pub fn check(shape: &PassShape) -> Result<(), LimitError> {
    let beyond = |limit, found| (found > limit).then_some((limit, found));
    if let Some((limit, found)) = beyond(HEAD_WIDTH_MAX, shape.head_width) {
        return Err(LimitError::HeadWidth { limit, found });
    }
    if let Some((limit, found)) = beyond(SLICES_MAX, shape.slices) {
        return Err(LimitError::Slices { limit, found });
    }
    if let Some((limit, found)) = beyond(GRID_Y_MAX, shape.sequences * shape.heads) {
        return Err(LimitError::SequenceHeads { limit, found });
    }
    if let Some((limit, found)) = beyond(GRID_Y_MAX * GROUP_ROWS, shape.rows()) {
        return Err(LimitError::Tokens { limit, found });
    }
    if let Some((limit, found)) = beyond(THINGS_MAX - 1, shape.threads()) {
        return Err(LimitError::Threads { limit, found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::kernel::{Arguments, Kernel, Launch};

    /// GPT-2 with 124 million parameters, 16 sequences of 1,024 tokens.
    const SMALL: PassShape = PassShape {
        sequences: 16,
        sequence_len: 1024,
        slices: 1,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        mlp_width: 3072,
    };

    #[test]
    fn what_people_train_is_within_all_limits() {
        let long = PassShape { sequences: 1, sequence_len: 131_072, ..SMALL };
        let wide = PassShape { width: 8192, heads: 64, kv_heads: 8, head_width: 128, ..SMALL };
        for shape in [SMALL, long, PassShape { mlp_width: 28_672, ..wide }] {
            assert_eq!(check(&shape), Ok(()), "{shape:?}");
        }
    }

    #[test]
    fn each_limit_is_reported_with_its_numbers_from_the_first_exceeded() {
        let heads = |head_width| PassShape { head_width, heads: 1, kv_heads: 1, ..SMALL };
        assert_eq!(check(&heads(256)), Ok(()));
        assert_eq!(check(&heads(257)), Err(LimitError::HeadWidth { limit: 256, found: 257 }));
        let slices = |slices| PassShape { slices, ..SMALL };
        assert_eq!(check(&slices(64)), Ok(()));
        assert_eq!(check(&slices(65)), Err(LimitError::Slices { limit: 64, found: 65 }));
        let heads = |sequences| PassShape { sequences, sequence_len: 1, heads: 15, ..SMALL };
        assert_eq!(check(&heads(4369)), Ok(()));
        let error = LimitError::SequenceHeads { limit: 65_535, found: 65_550 };
        assert_eq!(check(&heads(4370)), Err(error));
        let narrow = PassShape { width: 8, heads: 1, kv_heads: 1, head_width: 8, ..SMALL };
        let tokens =
            |sequence_len| PassShape { sequences: 1, sequence_len, mlp_width: 8, ..narrow };
        assert_eq!(check(&tokens(1_048_560)), Ok(()));
        let error = LimitError::Tokens { limit: 1_048_560, found: 1_048_561 };
        assert_eq!(check(&tokens(1_048_561)), Err(error));
        // Half a million rows of as many floats of gate and up as four billion threads take.
        let rows = PassShape { sequences: 1, sequence_len: 1 << 19, ..narrow };
        let threads = |mlp_width| PassShape { mlp_width, ..rows };
        assert_eq!(check(&threads(16_382)), Ok(()));
        let error = LimitError::Threads { limit: 4_294_966_270, found: 1 << 32 };
        assert_eq!(check(&threads(16_384)), Err(error));
        assert!(error.to_string().contains("4294966270"), "{error}");
    }

    /// The assertions behind the limits: what is let through is launched, what is not would panic.
    #[test]
    fn limits_are_those_of_launches() {
        let threads = |count| move || drop(Launch::over(Kernel::Rotate, count, Arguments::new()));
        let blocks =
            |y| move || drop(Launch::blocks(Kernel::ColumnSums, [1, y], 32, Arguments::new()));
        threads(THINGS_MAX - 1)();
        blocks(GRID_Y_MAX)();
        assert!(std::panic::catch_unwind(threads(THINGS_MAX)).is_err());
        assert!(std::panic::catch_unwind(blocks(GRID_Y_MAX + 1)).is_err());
    }
}
