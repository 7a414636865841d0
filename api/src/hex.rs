//! A digest as hexadecimal text.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zbelastic_types::Digest;

/// A digest that is 64 hexadecimal letters in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HexDigest(pub Digest);

impl HexDigest {
    /// The digest that 64 hexadecimal letters write.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Digest::parse(text).map(Self)
    }

    /// Its first letters, enough to tell two digests apart.
    #[must_use]
    pub fn short(self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl From<Digest> for HexDigest {
    fn from(digest: Digest) -> Self {
        Self(digest)
    }
}

impl From<blake3::Hash> for HexDigest {
    fn from(hash: blake3::Hash) -> Self {
        Self(Digest(*hash.as_bytes()))
    }
}

impl fmt::Display for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for HexDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HexDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("expected 64 hexadecimal letters"))
    }
}
