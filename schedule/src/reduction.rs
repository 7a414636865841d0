//! How gradients of the same parameters become one, before a step is reported.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::COLUMNS_MAX;

/// A level of the tree in which the gradients of replicas are added, counted from its leaves. Before
/// level `k` each replica has the sum of the `2^k` replicas around it, an aligned subtree; at level `k`
/// it exchanges it with that of the subtree beside it, and both add the two, the first one's first.
///
/// So all replicas compute the whole tree, each with as many messages as there are levels: the exchange
/// of recursive doubling (Thakur et al., IJHPCA 2005, section 4.4), with the order of additions fixed.
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
/// Those of the replicas of a chunk, level by level of a tree: a holder passes what it has to the holder
/// of the subtree beside it, and both add the two in one order. Then those of the matrix that a tied
/// head shares with the embedding: each end of the model passes its part to the other, and both add
/// the two in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// The chunk's own sum is sent to the stage that holds its sibling at this level.
    Send(TreeLevel),
    /// The sibling's sum arrives from another stage.
    Receive(TreeLevel),
    /// The chunk's own sum is handed to its sibling on the same stage.
    Local(TreeLevel),
    /// The chunk's sum and its sibling's are added: from here on both have the same.
    Add(TreeLevel),
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
            Self::Send(_) | Self::Receive(_) | Self::Local(_) | Self::Add(_) => false,
        }
    }

    /// The letters of its text, without the level.
    const fn letters(self) -> &'static str {
        match self {
            Self::Send(_) => "SEND_G",
            Self::Receive(_) => "RECV_G",
            Self::Local(_) => "LOCAL_G",
            Self::Add(_) => "REDUCE",
            Self::SendTied => "SEND_T",
            Self::ReceiveTied => "RECV_T",
            Self::Tie => "TIE",
        }
    }

    const fn level(self) -> Option<TreeLevel> {
        match self {
            Self::Send(level) | Self::Receive(level) | Self::Local(level) | Self::Add(level) => {
                Some(level)
            }
            Self::SendTied | Self::ReceiveTied | Self::Tie => None,
        }
    }

    /// The reduction with this text, if there is one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (letters, level) = match text.split_once('.') {
            Some((letters, level)) => (letters, level.parse().ok().filter(|level| *level > 0)?),
            None => (text, 0),
        };
        let of_level = [Self::Send, Self::Receive, Self::Local, Self::Add];
        let of_level = of_level.map(|reduction| reduction(TreeLevel(level)));
        let tied = [Self::SendTied, Self::ReceiveTied, Self::Tie];
        let mut all = of_level.into_iter().chain(tied.into_iter().filter(|_| level == 0));
        all.find(|reduction| reduction.letters() == letters)
    }
}

/// The letters, and behind a point the level if it is not the first.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letters())?;
        match self.level().filter(|level| *level > TreeLevel::LEAVES) {
            Some(level) => write!(f, ".{level}"),
            None => Ok(()),
        }
    }
}
