//! Where sequences are cut into slices.
//!
//! A slice is a unit of arithmetic, so a cut follows from the configuration alone: from the model,
//! the length of sequences, how many slices there are and the quantity in which they are alike. It
//! is computed in integers, from counted work and not from measured times, and so it is the same on
//! every machine, on every number of stages and under every pace. This file is a part of the
//! definition of the arithmetic: another cut trains to other bits.
//!
//! By time: a token costs the same products wherever it stands, and attention to all tokens before
//! it, so that later slices, if they are to last as long as earlier ones, have fewer tokens (Sun et
//! al., *Seq1F1B*, NAACL 2025, section 3.4, "computation-wise partition").

use std::ops::Range;

use serde::{Deserialize, Serialize};
use zbelastic_types::{LayerId, SliceIndex};

use super::PlanError;
use super::work::twice_the_pairs;
use crate::model::{LayerKind, MicrobatchShape, ModelConfig, PassSizes, SlicePosition};

/// The quantity in which the slices of a sequence are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SliceBalance {
    /// They have equally many tokens.
    #[default]
    Tokens,
    /// They last equally long, as work is counted.
    Time,
}

/// Slices of equal time that a sequence may have. Each may have a length of its own, and with it
/// slots, scratch memory and a class of frames.
pub const SLICES_OF_EQUAL_TIME_MAX: u32 = 1024;

/// Whether sequences of `sequence_len` tokens can be cut into so many slices: of equally many
/// tokens if they come out even, of equal time if each has a token and there are not too many.
#[must_use]
pub const fn is_legal_cut(by: SliceBalance, sequence_len: usize, slice_count: u32) -> bool {
    let count = slice_count as usize;
    let can_be = match by {
        SliceBalance::Tokens => sequence_len.is_multiple_of(count),
        SliceBalance::Time => slice_count <= SLICES_OF_EQUAL_TIME_MAX,
    };
    can_be && 0 < count && count <= sequence_len
}

/// How sequences of one length are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceCut {
    /// Where each slice ends, in tokens from the beginning of the sequence.
    ends: Vec<usize>,
}

impl SliceCut {
    /// The cut of sequences of `sequence_len` tokens into `slice_count` slices.
    ///
    /// # Errors
    /// If slices of equally many tokens do not come out even, or there are fewer tokens than
    /// slices, or more slices of equal time than may be.
    pub fn new(
        by: SliceBalance,
        work: TokenWork,
        sequence_len: usize,
        slice_count: u32,
    ) -> Result<Self, PlanError> {
        let count = slice_count as usize;
        if !is_legal_cut(by, sequence_len, slice_count) {
            return Err(PlanError::Slices { by, slice_count, sequence_len });
        }
        let ends = match by {
            SliceBalance::Tokens => {
                (1..=count).map(|slice| slice * (sequence_len / count)).collect()
            }
            SliceBalance::Time => ends_of_equal_time(work, sequence_len, count),
        };
        Ok(Self { ends })
    }

    /// Tokens of a sequence.
    #[must_use]
    pub fn sequence_len(&self) -> usize {
        *self.ends.last().expect("a sequence has a slice")
    }

    /// Slices that each sequence is cut into.
    #[must_use]
    pub fn slice_count(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Every slice, in order.
    pub fn slices(&self) -> impl Iterator<Item = SliceIndex> + use<> {
        (0..self.slice_count()).map(SliceIndex)
    }

    /// The tokens of a slice, as they stand in the sequence.
    #[must_use]
    pub fn tokens(&self, slice: SliceIndex) -> Range<usize> {
        let end = self.ends[slice.index()];
        let start = slice.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        start..end
    }

    /// How long a slice is.
    #[must_use]
    pub fn len_of(&self, slice: SliceIndex) -> usize {
        self.tokens(slice).len()
    }

    /// Each length that a slice has, the shortest first.
    #[must_use]
    pub fn lens(&self) -> Vec<usize> {
        let mut lens: Vec<usize> = self.slices().map(|slice| self.len_of(slice)).collect();
        lens.sort_unstable();
        lens.dedup();
        lens
    }

    /// The shape that a pass over a slice of `microbatch` works on.
    #[must_use]
    pub fn shape_of(&self, microbatch: MicrobatchShape, slice: SliceIndex) -> MicrobatchShape {
        MicrobatchShape { sequence_len: self.len_of(slice), ..microbatch }
    }

    /// Sizes of the activations that passes over slices of `len` tokens keep.
    #[must_use]
    pub fn sizes<'a>(
        &self,
        model: &'a ModelConfig,
        microbatch: MicrobatchShape,
        len: usize,
    ) -> PassSizes<'a> {
        let shape = MicrobatchShape { sequence_len: len, ..microbatch };
        PassSizes { model, shape, is_cut: self.ends.len() > 1 }
    }

    /// Where a slice stands.
    #[must_use]
    pub fn place(&self, slice: SliceIndex) -> SlicePosition {
        let first_position = self.tokens(slice).start;
        SlicePosition { slice, count: self.slice_count(), first_position }
    }
}

/// The forward work of a sequence's first tokens, in multiplications and additions: that of the
/// whole model, as the paper has it. Of B and W each slice has the same share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWork {
    /// Of the products, for each token.
    products: u128,
    /// Of attention: for the first n tokens of a sequence so much times n squared, half of a square
    /// of scores and half of one of weighted values; with a sliding window less.
    attention: u128,
    sliding_window: Option<u32>,
}

impl TokenWork {
    /// The work of the tokens of this model.
    #[must_use]
    pub fn new(model: &ModelConfig) -> Self {
        let matrices = |kind: LayerKind| match kind {
            LayerKind::Embed => vec![],
            LayerKind::Attention { .. } => vec![model.qkv_matrix(), model.out_matrix()],
            LayerKind::Mlp { .. } => vec![model.up_matrix(), model.down_matrix()],
            LayerKind::Head => vec![model.head_matrix()],
        };
        let kinds = (0..model.layer_count()).map(|layer| model.layer_kind(LayerId(layer)));
        let products = kinds.flat_map(matrices).map(|m| (m.outputs * m.inputs) as u128).sum();
        let attention = u128::from(model.blocks) * model.query_width() as u128;
        Self { products, attention, sliding_window: model.sliding_window }
    }

    /// Sequences have 2^20 tokens at most, and matrices 2^44 numbers: it fits, and many times over.
    fn of_first(self, tokens: usize) -> u128 {
        let tokens = tokens as u128;
        tokens * self.products + self.attention * twice_the_pairs(tokens, self.sliding_window)
    }

    /// The share of a sequence's work that is a slice's.
    #[must_use]
    pub fn share(self, cut: &SliceCut, slice: SliceIndex) -> f64 {
        let Range { start, end } = cut.tokens(slice);
        let whole = self.of_first(cut.sequence_len()) as f64;
        (self.of_first(end) - self.of_first(start)) as f64 / whole
    }
}

/// Each end is where the work before it is nearest to its part of the whole, the earlier one of
/// two; no slice is empty.
fn ends_of_equal_time(work: TokenWork, sequence_len: usize, count: usize) -> Vec<usize> {
    let whole = work.of_first(sequence_len);
    let mut ends = Vec::with_capacity(count);
    let mut before = 0;
    for slice in 1..=count {
        // Both sides of the comparison times the number of slices, so that nothing is rounded.
        let target = whole * slice as u128;
        let found = |tokens: usize| work.of_first(tokens) * count as u128;
        let off = |tokens: usize| found(tokens).abs_diff(target);
        let first = before + 1;
        let last = sequence_len - (count - slice);
        let reached = first_reaching(first, last, |tokens| found(tokens) >= target);
        let is_before_nearer = reached > first && off(reached - 1) <= off(reached);
        let end = if is_before_nearer { reached - 1 } else { reached };
        ends.push(end);
        before = end;
    }
    ends
}

/// The first number from `first` to `last` for which `is_reached`, which then holds for all behind
/// it; `last` if there is none.
fn first_reaching(first: usize, last: usize, is_reached: impl Fn(usize) -> bool) -> usize {
    let mut low = first;
    let mut high = last;
    while low < high {
        let middle = low + (high - low) / 2;
        if is_reached(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use zbelastic_types::SliceIndex;

    use super::{SliceBalance, SliceCut, TokenWork};
    use crate::model::{Family, FrozenTensors, LlamaFeatures, ModelConfig};
    use crate::plan::PlanError;

    const GPT2_SMALL: ModelConfig = ModelConfig {
        family: Family::Gpt2,
        blocks: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        mlp_width: 3072,
        features: LlamaFeatures::NONE,
        vocabulary: 50_304,
        sliding_window: None,
        positions: 1024,
        norm_epsilon: 1e-5,
        rope_theta: 1e4,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    };

    fn lens(by: SliceBalance, work: TokenWork, sequence_len: usize, count: u32) -> Vec<usize> {
        let cut = SliceCut::new(by, work, sequence_len, count).expect("a legal cut");
        cut.slices().map(|slice| cut.len_of(slice)).collect()
    }

    /// These numbers are a part of the arithmetic: a change to them changes the bits of runs.
    #[test]
    fn cuts_are_those_of_the_version_before() {
        let work = TokenWork::new(&GPT2_SMALL);
        let check = |sequence_len, expected: &[usize]| {
            let found = lens(SliceBalance::Time, work, sequence_len, expected.len() as u32);
            assert_eq!(found, expected, "{sequence_len}");
        };
        check(1024, &[270, 260, 251, 243]);
        check(8192, &[2740, 2107, 1778, 1567]);
        check(131_072, &[73029, 32827, 25216]);
        assert_eq!(lens(SliceBalance::Tokens, work, 1024, 4), [256; 4]);
    }

    /// Against the plain search: of all places that leave a token for each slice, the nearest.
    #[test]
    fn ends_are_nearest_to_equal_parts_of_the_work() {
        let works = [(1, 0), (0, 1), (100, 1), (1, 100), (7, 3)];
        for (products, attention) in works {
            let work = TokenWork { products, attention, sliding_window: None };
            for (len, count) in (1..=40).flat_map(|len| (1..=len.min(9)).map(move |n| (len, n))) {
                let cut =
                    SliceCut::new(SliceBalance::Time, work, len, count as u32).expect("legal");
                let mut before = 0;
                for slice in 1..=count {
                    let target = work.of_first(len) * slice as u128;
                    let off = |end: &usize| (work.of_first(*end) * count as u128).abs_diff(target);
                    let nearest = (before + 1..=len - (count - slice)).min_by_key(off);
                    let tokens = cut.tokens(SliceIndex(slice as u32 - 1));
                    assert_eq!(Some(tokens.end), nearest, "{work:?} {len} {count}");
                    assert_eq!(tokens.start, before);
                    before = tokens.end;
                }
                assert_eq!((before, cut.sequence_len()), (len, len));
            }
        }
    }

    #[test]
    fn without_attention_equal_times_are_equal_lengths() {
        let work = TokenWork { products: 5, attention: 0, sliding_window: None };
        assert_eq!(lens(SliceBalance::Time, work, 48, 6), lens(SliceBalance::Tokens, work, 48, 6));
        let alone = TokenWork { products: 0, attention: 1, sliding_window: None };
        // Squares: a half of the work is before 1/sqrt(2) of the way.
        assert_eq!(lens(SliceBalance::Time, alone, 1000, 2), [707, 293]);
    }

    /// Behind the window every token has the same work.
    #[test]
    fn a_window_makes_late_slices_as_long_as_others() {
        let windowed = TokenWork { products: 0, attention: 1, sliding_window: Some(100) };
        let found = lens(SliceBalance::Time, windowed, 10_000, 4);
        assert!(found.iter().all(|len| len.abs_diff(2500) <= 50), "{found:?}");
        let wide = TokenWork { sliding_window: Some(10_000), ..windowed };
        let whole = TokenWork { sliding_window: None, ..windowed };
        assert_eq!(
            lens(SliceBalance::Time, wide, 10_000, 4),
            lens(SliceBalance::Time, whole, 10_000, 4)
        );
    }

    #[test]
    fn shares_add_up_and_are_nearly_equal() {
        let work = TokenWork::new(&GPT2_SMALL);
        let cut = SliceCut::new(SliceBalance::Time, work, 4096, 5).expect("legal");
        let shares: Vec<f64> = cut.slices().map(|slice| work.share(&cut, slice)).collect();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{shares:?}");
        assert!(shares.iter().all(|share| (share - 0.2).abs() < 1e-3), "{shares:?}");
        let even = SliceCut::new(SliceBalance::Tokens, work, 4096, 4).expect("legal");
        assert!(work.share(&even, SliceIndex(3)) > 1.2 * work.share(&even, SliceIndex(0)));
    }

    #[test]
    fn work_is_counted_as_plans_count_it() {
        let microbatch = crate::model::MicrobatchShape { sequences: 1, sequence_len: 512 };
        let counted = crate::plan::layer_work(&GPT2_SMALL, microbatch);
        let flop: f64 = counted.iter().map(|layer| layer.f).sum();
        // Two operations each: a multiplication and an addition.
        assert_eq!(2.0 * TokenWork::new(&GPT2_SMALL).of_first(512) as f64, flop);
    }

    #[test]
    fn cuts_that_cannot_be_are_refused() {
        let work = TokenWork { products: 1, attention: 1, sliding_window: None };
        for (by, count, len) in [
            (SliceBalance::Tokens, 3, 8),
            (SliceBalance::Tokens, 16, 8),
            (SliceBalance::Tokens, 0, 8),
            (SliceBalance::Time, 9, 8),
            (SliceBalance::Time, 0, 8),
        ] {
            let refused = PlanError::Slices { by, slice_count: count, sequence_len: len };
            assert_eq!(SliceCut::new(by, work, len, count), Err(refused));
        }
    }
}
