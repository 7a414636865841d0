//! The name that a person gives a node. Names are shown to people and in logs, so they hold nothing
//! that a terminal, a page or a database could interpret as more than a name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest name: the length limit of a label of a host name.
pub const NAME_CHARS_MAX: usize = 63;

/// A name of 1 to 63 of `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// A text that is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("a name has 1 to {NAME_CHARS_MAX} of the characters a-z, 0-9 and -")]
pub struct NodeNameFault;

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameFault;

    fn from_str(text: &str) -> Result<Self, NodeNameFault> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.bytes().all(is_allowed) {
            return Err(NodeNameFault);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for NodeName {
    type Error = NodeNameFault;

    fn try_from(text: String) -> Result<Self, NodeNameFault> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_can_be_shown_anywhere() {
        for good in ["a", "gpu-7", "0", "-", &"x".repeat(63)] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        let bad = ["", "A", "a b", "a\n", "a_b", "\u{1f600}", "\x1b[31m", "<script>", "a'; --"];
        for text in bad.into_iter().chain([&*"x".repeat(64), &*"x".repeat(10_000)]) {
            assert_eq!(text.parse::<NodeName>(), Err(NodeNameFault), "{text:?}");
        }
    }

    #[test]
    fn a_name_is_checked_when_it_is_decoded() {
        let good = postcard::to_allocvec("gpu-7").unwrap();
        assert_eq!(postcard::from_bytes::<NodeName>(&good).unwrap().as_str(), "gpu-7");
        let bad = postcard::to_allocvec("gpu 7").unwrap();
        assert!(postcard::from_bytes::<NodeName>(&bad).is_err());
    }
}
