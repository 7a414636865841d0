//! Activations that passes free between F and B, and recompute.
//!
//! A pass keeps its parts in two pieces of memory: the part *kept* from F to W, and the part *made
//! again*, which is there from F to DROP and from R to W only. R runs the operations of F on the
//! same weights and operands, so it makes the same bits.
//!
//! A slice of a microbatch keeps the activations that the others attend to, under any configuration
//! ([`RecomputedParts`]): so R of one slice finds the keys and values of those before it.

use serde::{Deserialize, Serialize};

/// Which activations R recomputes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recompute {
    /// Nothing: everything is kept.
    #[default]
    None,
    /// Everything but the chunk's input, and of slices the activations that others of their
    /// microbatch read: queries, keys and values.
    Full,
    /// The results of these operations of each layer.
    Selective(RecomputedOps),
}

/// Operations of a layer that are cheap for the memory they keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecomputedOps {
    /// The normalisation before attention, MLP and head.
    pub norm: bool,
    /// Attention between its two products: R runs as long as F for that part.
    pub attention: bool,
    /// The activation function of the MLP: GELU or SwiGLU.
    pub activation: bool,
}

/// A part of the activations that a pass keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StashPart {
    /// The input of the chunk; later its gradient.
    Input,
    /// The input of a later layer; later its gradient.
    Boundary,
    /// The result that the chunk passed on; later the gradient that came back.
    Result,
    /// The result of a normalisation.
    Norm,
    /// Statistics of a normalisation.
    Statistics,
    /// Its parameters' share of the gradient, from B on.
    Partials,
    /// Queries, keys and values; later their gradients.
    Qkv,
    /// Queries and keys before they were normalised, and statistics of that.
    QkNorm,
    /// The result of attention.
    Attention,
    /// The logarithms of sums of its softmax.
    LogSums,
    /// The shares that later slices add to the gradients of keys and values.
    LaterGradient,
    /// The input of the activation; later its gradient.
    Before,
    /// The result of the activation.
    Hidden,
}

impl StashPart {
    /// Whether it holds something between F and B.
    pub(super) const fn is_left_by_forward(self) -> bool {
        match self {
            Self::Result | Self::Partials => false,
            Self::Input
            | Self::Boundary
            | Self::Norm
            | Self::Statistics
            | Self::Qkv
            | Self::QkNorm
            | Self::Attention
            | Self::LogSums
            | Self::LaterGradient
            | Self::Before
            | Self::Hidden => true,
        }
    }
}

impl Recompute {
    /// Whether DROP frees anything.
    #[must_use]
    pub fn is_any(self) -> bool {
        match self {
            Self::None => false,
            Self::Full => true,
            Self::Selective(ops) => ops != RecomputedOps::default(),
        }
    }

    /// Whether the head's logits are recomputed.
    #[must_use]
    pub const fn recomputes_logits(self) -> bool {
        match self {
            Self::Full => true,
            Self::None | Self::Selective(_) => false,
        }
    }

    /// The parts of passes that are recomputed; `is_cut` is whether they are over slices.
    #[must_use]
    pub const fn parts(self, is_cut: bool) -> RecomputedParts {
        RecomputedParts { recompute: self, is_cut }
    }
}

/// Which parts of a pass are recomputed: the configured ones, without those that other slices of
/// its microbatch read or write. Later slices read keys and values, in F, in R and in B, and add to
/// the gradients of these before the slice itself goes backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecomputedParts {
    recompute: Recompute,
    is_cut: bool,
}

impl RecomputedParts {
    /// Whether a part is one of them.
    pub(super) const fn contain(self, part: StashPart) -> bool {
        match self.recompute {
            Recompute::None => false,
            Recompute::Full => match part {
                StashPart::Input => false,
                // Made with queries and keys, which are not made again in slices.
                StashPart::Qkv | StashPart::QkNorm | StashPart::LaterGradient => !self.is_cut,
                StashPart::Boundary
                | StashPart::Result
                | StashPart::Norm
                | StashPart::Statistics
                | StashPart::Partials
                | StashPart::Attention
                | StashPart::LogSums
                | StashPart::Before
                | StashPart::Hidden => true,
            },
            Recompute::Selective(ops) => match part {
                StashPart::Norm => ops.norm,
                StashPart::Attention | StashPart::LogSums => ops.attention,
                StashPart::Hidden => ops.activation,
                StashPart::Input
                | StashPart::Boundary
                | StashPart::Result
                | StashPart::Statistics
                | StashPart::Partials
                | StashPart::Qkv
                | StashPart::QkNorm
                | StashPart::LaterGradient
                | StashPart::Before => false,
            },
        }
    }
}
