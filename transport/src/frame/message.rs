//! A frame before it goes and after it came.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use zbelastic_identity::PeerIdentity;

use super::header::{FRAME_BYTES_MAX, META_BYTES_MAX};
use super::pool::FramePart;
use super::rules::{FRAME_PARTS_MAX, FrameClass, body_bytes};

/// Floats that are written from where they lie. The result of `parts` does not change while a frame
/// is under way.
pub trait FrameBody: Send + Sync {
    /// The parts, in order.
    fn parts(&self) -> Vec<&[f32]>;
}

impl FrameBody for Vec<Vec<f32>> {
    fn parts(&self) -> Vec<&[f32]> {
        self.iter().map(Vec::as_slice).collect()
    }
}

/// Which of two frames to one peer goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// A computation waits for it: it goes before everything of the background.
    #[default]
    Critical,
    /// It goes when nothing critical waits.
    Background,
}

/// A frame to send. Copies share their body.
#[derive(Clone)]
pub struct OutgoingFrame {
    class: FrameClass,
    urgency: Urgency,
    meta: Vec<u8>,
    body: Arc<dyn FrameBody>,
    body_bytes: u64,
}

/// Why something cannot be sent as a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameTooLarge {
    /// Its meta is too long.
    #[error("{found} bytes of meta, at most {META_BYTES_MAX} can be sent")]
    Meta {
        /// Length of the meta in bytes.
        found: usize,
    },
    /// It has too many parts.
    #[error("{found} parts, at most {FRAME_PARTS_MAX} can be sent")]
    Parts {
        /// Number of parts of the body.
        found: usize,
    },
    /// Its parts are too long together.
    #[error("the parts have more than {FRAME_BYTES_MAX} bytes together")]
    Body,
}

impl OutgoingFrame {
    /// A frame of `class`, which is critical.
    ///
    /// # Errors
    /// If no receiver would accept it.
    pub fn new(
        class: FrameClass,
        meta: Vec<u8>,
        body: Arc<dyn FrameBody>,
    ) -> Result<Self, FrameTooLarge> {
        if meta.len() > META_BYTES_MAX {
            return Err(FrameTooLarge::Meta { found: meta.len() });
        }
        let lengths: Vec<usize> = body.parts().iter().map(|part| part.len()).collect();
        if lengths.len() > FRAME_PARTS_MAX {
            return Err(FrameTooLarge::Parts { found: lengths.len() });
        }
        let body_bytes = body_bytes(&lengths).ok_or(FrameTooLarge::Body)?;
        Ok(Self { class, urgency: Urgency::default(), meta, body, body_bytes })
    }

    /// The same frame with another urgency. The receiver does not learn of it.
    #[must_use]
    pub fn with_urgency(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }

    /// Class of the frame, by which the receiver finds its rule.
    #[must_use]
    pub fn class(&self) -> FrameClass {
        self.class
    }

    /// Whether it goes before others.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// The meta: bytes that go before the floats.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// The parts of the body, in order.
    #[must_use]
    pub fn parts(&self) -> Vec<&[f32]> {
        self.body.parts()
    }

    /// The bytes of the floats.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }
}

impl fmt::Debug for OutgoingFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_struct("OutgoingFrame");
        tuple.field("class", &self.class).field("urgency", &self.urgency);
        tuple
            .field("meta", &self.meta)
            .field("body_bytes", &self.body_bytes)
            .finish_non_exhaustive()
    }
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedFrame {
    /// Identity of the sender.
    pub from: PeerIdentity,
    /// Class of the frame.
    pub class: FrameClass,
    /// The meta: bytes that went before the floats.
    pub meta: Vec<u8>,
    /// The parts of the body, each as long as the rule of the class sets.
    pub parts: Vec<FramePart>,
}
