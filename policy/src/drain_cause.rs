//! What a node drains for, as it reports it to controllers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a node drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainCause {
    /// An operator requested it of its process (Ctrl-C): the node is not to return.
    Person,
    /// The system withdraws the machine (SIGTERM): the node should be started again elsewhere.
    Preempted,
    /// The cloud announced that it withdraws the machine.
    Notice,
    /// An operator requested it of a controller, with `node drain`: the node is not to return.
    Command,
}

impl DrainCause {
    /// Whether the machine goes, and the node should be started again elsewhere.
    #[must_use]
    pub const fn is_taken_away(self) -> bool {
        match self {
            Self::Preempted | Self::Notice => true,
            Self::Person | Self::Command => false,
        }
    }
}

impl fmt::Display for DrainCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Person => "by order",
            Self::Preempted => "the machine is being taken away (SIGTERM)",
            Self::Notice => "the cloud takes the machine away",
            Self::Command => "by order (node drain)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_names_what_requested_it() {
        let all =
            [DrainCause::Person, DrainCause::Preempted, DrainCause::Notice, DrainCause::Command];
        let texts = all.map(|cause| cause.to_string());
        let named = [("SIGTERM", 1), ("cloud", 2), ("node drain", 3)];
        assert!(named.iter().all(|(word, at)| texts[*at].contains(word)), "{texts:?}");
        assert_eq!(all.map(DrainCause::is_taken_away), [false, true, true, false]);
    }
}
