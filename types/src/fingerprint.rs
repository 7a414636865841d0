//! The fingerprint that a state is compared by, where it lies.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 128 bits by which holders of one state compare it. Equal states have equal fingerprints, and
/// different ones different fingerprints but by chance. It names nothing: that is a
/// [`Digest`](crate::Digest).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub [u64; 2]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0;
        write!(f, "{first:016x}{second:016x}")
    }
}
