//! The frames that peers may send now, and how long each part of them is.

use std::collections::BTreeMap;

use thiserror::Error;
use zbelastic_types::NodeId;

use super::header::{FLOAT_BYTES, FRAME_BYTES_MAX};

/// The most parts a frame has: a write hands all of them to the system at once.
pub const FRAME_PARTS_MAX: usize = 64;

/// The class of a frame, which the caller defines.
///
/// A class names a length under *one* plan. Callers give a new plan new classes; else a frame of
/// the old plan that is still under way has a length the new rule forbids, which ends its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameClass(pub u32);

/// Which nodes may send which class of frames, and how many floats each part of it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameRules {
    parts: BTreeMap<(NodeId, FrameClass), Vec<usize>>,
}

/// Why a rule cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RuleError {
    /// Its frames would have more parts than a write may have.
    #[error("frames of class {} have {found} parts, at most {FRAME_PARTS_MAX} are possible", class.0)]
    TooManyParts {
        /// The class that the rule is for.
        class: FrameClass,
        /// Number of parts that the rule names.
        found: usize,
    },
    /// Its frames would be longer than a frame may be.
    #[error("frames of class {} have more than {FRAME_BYTES_MAX} bytes", class.0)]
    TooLong {
        /// The class that the rule is for.
        class: FrameClass,
    },
}

impl FrameRules {
    /// Rules under which no peer may send anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `from` may send frames of `class`, with that many floats in each part. Replaces
    /// the rule of the class before.
    ///
    /// # Errors
    /// If no frame can be like that.
    pub fn allow(
        &mut self,
        from: NodeId,
        class: FrameClass,
        parts: Vec<usize>,
    ) -> Result<(), RuleError> {
        if parts.len() > FRAME_PARTS_MAX {
            return Err(RuleError::TooManyParts { class, found: parts.len() });
        }
        body_bytes(&parts).ok_or(RuleError::TooLong { class })?;
        self.parts.insert((from, class), parts);
        Ok(())
    }

    /// How many floats each part has, if `from` may send the class.
    #[must_use]
    pub fn parts(&self, from: NodeId, class: FrameClass) -> Option<&[usize]> {
        self.parts.get(&(from, class)).map(Vec::as_slice)
    }
}

/// The bytes of a body with these parts, if a frame may be that long.
pub(super) fn body_bytes(parts: &[usize]) -> Option<u64> {
    let sum = parts.iter().try_fold(0_u64, |sum, &floats| {
        sum.checked_add(u64::try_from(floats).ok()?.checked_mul(FLOAT_BYTES)?)
    })?;
    (sum <= FRAME_BYTES_MAX).then_some(sum)
}
