//! Ways to run a method other than its default.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::kind::AsyncKind;

/// A variant in which some of the methods may be run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum AsyncVariant {
    /// As the method is.
    #[default]
    Usual,
    /// So many minibatches first, each with a flush: PipeMare's T3 (Yang et al., MLSys 2021,
    /// section
    /// 3.3).
    WarmUp(u32),
    /// A microbatch reads one version on all stages: the newest of the first stage when it began
    /// (PipeDream: Narayanan et al., SOSP 2019, section 3.3).
    VerticalSync,
}

impl AsyncVariant {
    /// Whether a method has it.
    #[must_use]
    pub fn is_of(self, kind: AsyncKind) -> bool {
        match self {
            Self::Usual => true,
            Self::WarmUp(_) => kind == AsyncKind::PipeMare,
            Self::VerticalSync => kind == AsyncKind::PipeDream,
        }
    }

    /// Minibatches that end with a flush.
    #[must_use]
    pub const fn warm_up(self) -> u32 {
        match self {
            Self::WarmUp(minibatches) => minibatches,
            Self::Usual | Self::VerticalSync => 0,
        }
    }

    /// The words behind a program's header, without those that are none.
    pub(super) fn of_words(words: &[&str]) -> Option<Self> {
        match *words {
            [] => Some(Self::Usual),
            ["vertical-sync"] => Some(Self::VerticalSync),
            ["warm-up", minibatches] => match minibatches.parse() {
                Ok(minibatches) if minibatches > 0 => Some(Self::WarmUp(minibatches)),
                Ok(_) | Err(_) => None,
            },
            _ => None,
        }
    }
}

/// As it stands behind a program's header; nothing for the usual.
impl fmt::Display for AsyncVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => Ok(()),
            Self::WarmUp(minibatches) => write!(f, " warm-up {minibatches}"),
            Self::VerticalSync => write!(f, " vertical-sync"),
        }
    }
}
