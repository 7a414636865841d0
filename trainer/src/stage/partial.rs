//! A part of a gradient on its way to the stage that has the other part.
//!
//! Where a program has replicas of the model, each sums the gradients of its own microbatches. Before
//! a step is reported these sums are added level by level of a tree, always in one order, each replica
//! some of the floats, and then gathered: so all have the same bits, and go on having them. Where the head
//! is tied to the embedding, both ends of the model add their parts of one matrix's gradient, the head's
//! first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::{Placement, TreeExchange};
use zbelastic_types::ChunkIndex;

/// Gradients of an exchange that may wait for a chunk: of this turn, of the next, and of a sibling's that is
/// further for having dropped one.
pub const PARTIALS_PER_CHUNK: usize = 3;

/// Number of an exchange of a chunk in a step: those with its siblings up the tree and down again, and
/// behind them that of a tied matrix's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartialExchange(pub u8);

impl PartialExchange {
    /// The first one.
    pub const FIRST: Self = Self(0);

    /// That between siblings.
    #[must_use]
    pub fn of(placement: &Placement, exchange: TreeExchange) -> Self {
        Self(exchange.number(placement) as u8)
    }

    /// That of the two parts of a tied matrix's gradient.
    #[must_use]
    pub fn of_tied(placement: &Placement) -> Self {
        Self(TreeExchange::all_of(placement).count() as u8)
    }

    /// What siblings exchange; none if it is that of a tied matrix's parts.
    #[must_use]
    pub fn between_siblings(self, placement: &Placement) -> Option<TreeExchange> {
        TreeExchange::all_of(placement).nth(usize::from(self.0))
    }
}

/// Floats of a chunk's gradient over the microbatches of some replicas, or one end's part of a tied matrix's, or
/// candidate weights in the place of gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialGradient {
    /// The turn it was computed in.
    pub turn: Turn,
    /// The chunk that adds it to its own: the sibling of the one it was computed on, or the other end
    /// of the model.
    pub chunk: ChunkIndex,
    /// The exchange that it is a part of.
    pub exchange: PartialExchange,
    /// Those floats of the gradient that the chunk merges in this exchange, layer after layer, or that of the
    /// tied matrix.
    pub floats: Vec<f32>,
    /// Cross-entropies of the subtree's microbatches, slice by slice, if the chunk ends the model and adds.
    pub losses: Vec<f64>,
}

/// How long a partial gradient is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialLength {
    /// Numbers of the gradient.
    pub floats: usize,
    /// Number of cross-entropies: one for each slice of each microbatch of the subtree, or none.
    pub losses: usize,
}

/// Why a partial gradient was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartialRefusal {
    /// It was computed in a turn that is over or was dropped.
    #[error("a gradient of {found}, the open turn is {expected}")]
    Stale {
        /// Turn that is open here.
        expected: Turn,
        /// Turn of the partial gradient.
        found: Turn,
    },
    /// It is not as long as the chunk's own.
    #[error("{found:?} for chunk {chunk}, expected {expected:?}")]
    Length {
        /// The chunk that adds it.
        chunk: ChunkIndex,
        /// Lengths that the plan predicts.
        expected: PartialLength,
        /// Lengths of the gradient that arrived.
        found: PartialLength,
    },
    /// Its chunk is not on this stage, or waits for no gradient of another.
    #[error("a gradient for chunk {chunk}, which waits for none on this stage")]
    Elsewhere {
        /// The chunk that should add it.
        chunk: ChunkIndex,
    },
    /// More wait than may.
    #[error("more than {PARTIALS_PER_CHUNK} gradients of an exchange wait for chunk {chunk}")]
    Full {
        /// The chunk that should add them.
        chunk: ChunkIndex,
    },
}

/// Partial gradients that arrived and wait for REDUCE, GATHER or TIE.
#[derive(Default)]
pub(super) struct PartialInbox {
    waiting: BTreeMap<(ChunkIndex, PartialExchange, Turn), PartialGradient>,
}

impl PartialInbox {
    /// Stores one. `expected` is what the chunk's own is like, or `None` if it waits for none.
    pub(super) fn insert(
        &mut self,
        now: Turn,
        partial: PartialGradient,
        expected: Option<PartialLength>,
    ) -> Result<(), PartialRefusal> {
        let PartialGradient { turn, chunk, exchange, ref floats, ref losses } = partial;
        let expected = expected.ok_or(PartialRefusal::Elsewhere { chunk })?;
        if turn < now {
            return Err(PartialRefusal::Stale { expected: now, found: turn });
        }
        let found = PartialLength { floats: floats.len(), losses: losses.len() };
        if found != expected {
            return Err(PartialRefusal::Length { chunk, expected, found });
        }
        let is_alike = |(of, found, _): &&(ChunkIndex, PartialExchange, Turn)| {
            (*of, *found) == (chunk, exchange)
        };
        let of_chunk = self.waiting.keys().filter(is_alike).count();
        if of_chunk >= PARTIALS_PER_CHUNK {
            return Err(PartialRefusal::Full { chunk });
        }
        self.waiting.insert((chunk, exchange, turn), partial);
        Ok(())
    }

    /// Whether the one of this turn is there.
    pub(super) fn has(&self, chunk: ChunkIndex, exchange: PartialExchange, turn: Turn) -> bool {
        self.waiting.contains_key(&(chunk, exchange, turn))
    }

    /// Removes the one of this turn and returns it.
    pub(super) fn take(
        &mut self,
        chunk: ChunkIndex,
        exchange: PartialExchange,
        turn: Turn,
    ) -> Option<PartialGradient> {
        self.waiting.remove(&(chunk, exchange, turn))
    }

    /// Drops everything of turns before `now`.
    pub(super) fn forget_before(&mut self, now: Turn) {
        self.waiting.retain(|(_, _, turn), _| *turn >= now);
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::validation::Turn;
    use zbelastic_types::{Attempt, ChunkIndex, Generation, Step};

    use super::{
        PARTIALS_PER_CHUNK, PartialExchange, PartialGradient, PartialInbox, PartialLength,
        PartialRefusal,
    };

    const CHUNK: ChunkIndex = ChunkIndex(3);
    const EXCHANGE: PartialExchange = PartialExchange::FIRST;
    const LENGTH: PartialLength = PartialLength { floats: 2, losses: 1 };

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(0), step: Step(step), attempt: Attempt(0) }
    }

    fn partial(step: u64) -> PartialGradient {
        PartialGradient {
            turn: turn(step),
            chunk: CHUNK,
            exchange: EXCHANGE,
            floats: vec![1.0, 2.0],
            losses: vec![0.5],
        }
    }

    #[test]
    fn what_does_not_belong_is_named() {
        let mut partials = PartialInbox::default();
        let mut check = |partial, expected, refusal| {
            assert_eq!(partials.insert(turn(5), partial, expected), Err(refusal));
        };
        check(partial(5), None, PartialRefusal::Elsewhere { chunk: CHUNK });
        let stale = PartialRefusal::Stale { expected: turn(5), found: turn(4) };
        check(partial(4), Some(LENGTH), stale);
        let short = PartialGradient { floats: vec![1.0], ..partial(5) };
        let found = PartialLength { floats: 1, losses: 1 };
        let refusal = PartialRefusal::Length { chunk: CHUNK, expected: LENGTH, found };
        check(short, Some(LENGTH), refusal);
        let many = PartialGradient { losses: vec![0.5; 2], ..partial(5) };
        let found = PartialLength { floats: 2, losses: 2 };
        let refusal = PartialRefusal::Length { chunk: CHUNK, expected: LENGTH, found };
        check(many, Some(LENGTH), refusal);
    }

    #[test]
    fn as_many_wait_as_may_and_none_of_a_turn_that_is_over() {
        let mut partials = PartialInbox::default();
        let last = 5 + PARTIALS_PER_CHUNK as u64;
        for step in 5..last {
            assert_eq!(partials.insert(turn(5), partial(step), Some(LENGTH)), Ok(()));
        }
        let full = partials.insert(turn(5), partial(last), Some(LENGTH));
        assert_eq!(full, Err(PartialRefusal::Full { chunk: CHUNK }));
        assert!(partials.has(CHUNK, EXCHANGE, turn(5)));
        // Each subtree's sum waits beside the others.
        let exchange = PartialExchange(1);
        let other = PartialGradient { exchange, ..partial(5) };
        assert_eq!(partials.insert(turn(5), other.clone(), Some(LENGTH)), Ok(()));
        assert_eq!(partials.take(CHUNK, exchange, turn(5)), Some(other));
        partials.forget_before(turn(6));
        assert!(!partials.has(CHUNK, EXCHANGE, turn(5)));
        assert_eq!(partials.take(CHUNK, EXCHANGE, turn(6)), Some(partial(6)));
        assert_eq!(partials.take(CHUNK, EXCHANGE, turn(6)), None);
        assert_eq!(partials.insert(turn(6), partial(last), Some(LENGTH)), Ok(()));
    }
}
