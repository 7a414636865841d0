//! Runs of layers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::LayerId;

/// A contiguous run of layers, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct LayerRange {
    start: LayerId,
    end: LayerId,
}

impl LayerRange {
    /// The layers from `start` up to `end`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(start: u32, end: u32) -> Self {
        assert!(start < end, "a chunk has a layer");
        Self { start: LayerId(start), end: LayerId(end) }
    }

    /// Their numbers.
    #[must_use]
    pub fn ids(self) -> Range<u32> {
        self.start.0..self.end.0
    }

    /// The layers, in model order.
    pub fn layers(self) -> impl Iterator<Item = LayerId> {
        self.ids().map(LayerId)
    }
}

impl From<LayerRange> for (u32, u32) {
    fn from(range: LayerRange) -> Self {
        (range.start.0, range.end.0)
    }
}

impl TryFrom<(u32, u32)> for LayerRange {
    type Error = &'static str;

    fn try_from((start, end): (u32, u32)) -> Result<Self, Self::Error> {
        if start < end {
            Ok(Self::new(start, end))
        } else {
            Err("a run of layers has one at least")
        }
    }
}
