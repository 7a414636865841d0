//! Placeholder until the frame part is merged.

use std::fmt;
use std::sync::Arc;

use crate::identity::PeerIdentity;

/// What a frame is, in the caller's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameClass(pub u32);

/// Written without copying.
pub trait FrameBody: Send + Sync {
    /// The parts.
    fn parts(&self) -> Vec<&[f32]>;
}

/// A frame to send.
#[derive(Clone)]
pub struct OutgoingFrame {
    /// What it is.
    pub class: FrameClass,
    /// Small.
    pub meta: Vec<u8>,
    /// Large.
    pub body: Arc<dyn FrameBody>,
}

impl fmt::Debug for OutgoingFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingFrame").field("class", &self.class).finish_non_exhaustive()
    }
}

/// A frame that came.
#[derive(Clone, Debug)]
pub struct ReceivedFrame {
    /// From whom.
    pub from: PeerIdentity,
    /// What it is.
    pub class: FrameClass,
    /// Small.
    pub meta: Vec<u8>,
    /// Large.
    pub parts: Vec<Vec<f32>>,
}

/// What may come.
#[derive(Clone, Debug, Default)]
pub struct FrameRules {}
