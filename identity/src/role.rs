//! The five things a holder of a certificate can be.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The kind of a peer, which limits the messages that it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PeerRole {
    /// A person's command line.
    Admin,
    /// A process that decides: it holds the replicated state and the authority's key.
    Controller,
    /// A process that trains.
    Worker,
    /// A person's command line that may only read.
    Viewer,
    /// A person's command line that sends commands about runs and checkpoints, and none about
    /// membership.
    Operator,
}

/// A word that is no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a role: one of admin, controller, worker, viewer, operator is")]
pub struct UnknownRole;

impl PeerRole {
    /// Every role, in order.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Controller, Self::Worker, Self::Viewer, Self::Operator];

    /// The role as a word, as a certificate holds it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }

    /// The role as one letter, as a token holds it.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Admin => 'a',
            Self::Controller => 'c',
            Self::Worker => 'w',
            Self::Viewer => 'v',
            Self::Operator => 'o',
        }
    }

    /// Whether others may dial a holder of this role. The command lines of people only send
    /// requests.
    #[must_use]
    pub const fn serves(self) -> bool {
        match self {
            Self::Controller | Self::Worker => true,
            Self::Admin | Self::Viewer | Self::Operator => false,
        }
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for PeerRole {
    type Err = UnknownRole;

    fn from_str(word: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.word() == word).ok_or(UnknownRole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_read_back_from_its_word_and_has_a_letter_of_its_own() {
        for role in PeerRole::ALL {
            assert_eq!(role.word().parse(), Ok(role));
            let same = PeerRole::ALL.iter().filter(|other| other.letter() == role.letter());
            assert_eq!(same.count(), 1);
        }
        for other in ["", "Worker", "worker ", "root"] {
            assert_eq!(other.parse::<PeerRole>(), Err(UnknownRole));
        }
    }
}
