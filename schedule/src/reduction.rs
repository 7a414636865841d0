//! How gradients of the same parameters become one, before a step is reported.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::COLUMNS_MAX;

/// A level of the tree in which the gradients of replicas are added, counted from its leaves. Before
/// level `k` there are sums of the `2^k` replicas of each aligned subtree; at level `k` those of two
/// subtrees beside each other are added, the first one's first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct TreeLevel(pub u8);

impl TreeLevel {
    /// Level 0: of two replicas the only one.
    pub const LEAVES: Self = Self(0);
    /// Levels of a tree over [`COLUMNS_MAX`] columns of two directions each.
    pub const COUNT_MAX: u8 = COLUMNS_MAX.ilog2() as u8 + 1;
}

impl fmt::Display for TreeLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a chunk and its sibling at a level of the tree do with each other's floats.
///
/// Replicas share the additions of the tree: a reduction by recursive halving, then a gather by recursive
/// doubling (Thakur et al., IJHPCA 2005, section 4.5), with the order of additions fixed. Each float is
/// added as the tree has it, and on the way up by one replica of each subtree alone. At the top both
/// siblings add what they have left, which costs the bytes of halving it and gathering the halves, and
/// one message less. So a replica of D sends 2(D-1)/D of a gradient, the fewest there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TreeExchange {
    /// The sums of two subtrees are added. Below the top each sibling adds a half of the floats that it
    /// has left, and leaves the other half to the other one.
    Reduce(TreeLevel),
    /// Each gets the sums of all replicas for the floats that it left to the other at this level.
    Gather(TreeLevel),
    /// Each gets the candidate weights of the floats that it left to the other at this level: behind STEP,
    /// where the optimizer is sharded ([`Placement::sharded`]).
    ///
    /// [`Placement::sharded`]: crate::Placement::sharded
    GatherCandidates(TreeLevel),
}

impl TreeExchange {
    /// The level at which chunks are siblings.
    #[must_use]
    pub const fn level(self) -> TreeLevel {
        match self {
            Self::Reduce(level) | Self::Gather(level) | Self::GatherCandidates(level) => level,
        }
    }

    /// Whether candidate weights are gathered by it: behind STEP.
    #[must_use]
    pub const fn is_of_candidates(self) -> bool {
        match self {
            Self::GatherCandidates(_) => true,
            Self::Reduce(_) | Self::Gather(_) => false,
        }
    }
}

/// A side of an addition in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeSide {
    /// What is added first: of the replicas with the lower numbers.
    Left,
    /// What is added to it.
    Right,
}

/// How two gradients of the same parameters become one.
///
/// Those of the replicas of a chunk, exchange by exchange up a tree and down again: a holder passes floats
/// of what it has to the holder of the sibling. Then those of the matrix that a tied
/// head shares with the embedding: each end of the model passes its part to the other, and both add
/// the two in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Floats of the chunk's own sum are sent to the stage that holds its sibling.
    Send(TreeExchange),
    /// The sibling's arrive from another stage.
    Receive(TreeExchange),
    /// Floats of the chunk's own sum are handed to its sibling on the same stage.
    Local(TreeExchange),
    /// The sibling's floats become part of the chunk's sum: they are added to its own, or put in their
    /// place.
    Merge(TreeExchange),
    /// The chunk's own part of the shared matrix's gradient is sent to the stage with the other end
    /// of the model.
    SendTied,
    /// The other end's part of the shared matrix's gradient arrives from another stage.
    ReceiveTied,
    /// The head's part and the embedding's are added: from here on both ends have the same. Where
    /// both are on one stage, the chunk with the embedding names it.
    Tie,
}

impl Reduction {
    /// Whether it is of the matrix that a tied head shares with the embedding.
    #[must_use]
    pub const fn is_of_tied(self) -> bool {
        match self {
            Self::SendTied | Self::ReceiveTied | Self::Tie => true,
            Self::Send(_) | Self::Receive(_) | Self::Local(_) | Self::Merge(_) => false,
        }
    }

    /// The letters of its text, without the level.
    const fn letters(self) -> &'static str {
        match self {
            Self::Send(TreeExchange::Reduce(_)) => "SEND_G",
            Self::Receive(TreeExchange::Reduce(_)) => "RECV_G",
            Self::Local(TreeExchange::Reduce(_)) => "LOCAL_G",
            Self::Merge(TreeExchange::Reduce(_)) => "REDUCE",
            Self::Send(TreeExchange::Gather(_)) => "SEND_S",
            Self::Receive(TreeExchange::Gather(_)) => "RECV_S",
            Self::Local(TreeExchange::Gather(_)) => "LOCAL_S",
            Self::Merge(TreeExchange::Gather(_)) => "GATHER",
            Self::Send(TreeExchange::GatherCandidates(_)) => "SEND_C",
            Self::Receive(TreeExchange::GatherCandidates(_)) => "RECV_C",
            Self::Local(TreeExchange::GatherCandidates(_)) => "LOCAL_C",
            Self::Merge(TreeExchange::GatherCandidates(_)) => "GATHER_C",
            Self::SendTied => "SEND_T",
            Self::ReceiveTied => "RECV_T",
            Self::Tie => "TIE",
        }
    }

    /// The exchange between replicas that it is of, if it is of one.
    #[must_use]
    pub const fn exchange(self) -> Option<TreeExchange> {
        match self {
            Self::Send(exchange)
            | Self::Receive(exchange)
            | Self::Local(exchange)
            | Self::Merge(exchange) => Some(exchange),
            Self::SendTied | Self::ReceiveTied | Self::Tie => None,
        }
    }

    /// The reduction with this text, if there is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (letters, level) = match text.split_once('.') {
            Some((letters, level)) => (letters, level.parse().ok().filter(|level| *level > 0)?),
            None => (text, 0),
        };
        let exchanges =
            [TreeExchange::Reduce, TreeExchange::Gather, TreeExchange::GatherCandidates];
        let between_replicas = exchanges.into_iter().flat_map(|exchange| {
            let of = exchange(TreeLevel(level));
            [Self::Send(of), Self::Receive(of), Self::Local(of), Self::Merge(of)]
        });
        let tied = [Self::SendTied, Self::ReceiveTied, Self::Tie];
        let mut all = between_replicas.chain(tied.into_iter().filter(|_| level == 0));
        all.find(|reduction| reduction.letters() == letters)
    }
}

/// The letters, and behind a point the level if it is not the first.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letters())?;
        let level = self.exchange().map(TreeExchange::level);
        match level.filter(|level| *level > TreeLevel::LEAVES) {
            Some(level) => write!(f, ".{level}"),
            None => Ok(()),
        }
    }
}
