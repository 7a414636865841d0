//! A frame's first bytes, and the decisions that they allow.

use thiserror::Error;

use super::rules::{FrameClass, body_bytes};

/// The most bytes of floats in one frame: 1 GiB, the activations of 32 768 tokens of 8 192 floats.
pub const FRAME_BYTES_MAX: u64 = 1 << 30;
/// The most bytes of a frame's meta.
pub const META_BYTES_MAX: usize = 4096;
/// The bytes of a header.
pub(super) const HEADER_BYTES: usize = 16;
/// The bytes of a float.
pub(super) const FLOAT_BYTES: u64 = size_of::<f32>() as u64;

/// The class and lengths that a frame announces before it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) class: FrameClass,
    pub(super) meta_bytes: u32,
    pub(super) body_bytes: u64,
}

/// The decision about a frame that was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameAdmission {
    /// It matches its rule: accept it.
    Take,
    /// No rule names its class: read past it.
    Skip,
}

/// Why a frame ends the lane it came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameRejection {
    /// Its body has not the length that its class has.
    #[error("a frame of class {} announces {found} bytes, its rule says {expected}", class.0)]
    WrongLength {
        /// The class it named.
        class: FrameClass,
        /// Length of the body by the rule, in bytes.
        expected: u64,
        /// Length that it announced, in bytes.
        found: u64,
    },
    /// No rule names its class, and it is too long to be read past.
    #[error("a frame of class {} announces {found} bytes, at most {FRAME_BYTES_MAX} are read past", class.0)]
    TooLong {
        /// The class it named.
        class: FrameClass,
        /// Length that it announced, in bytes.
        found: u64,
    },
    /// Its meta is too long.
    #[error("a frame of class {} announces {found} bytes of meta, at most {META_BYTES_MAX} are read", class.0)]
    MetaTooLong {
        /// The class it named.
        class: FrameClass,
        /// Length that it announced, in bytes.
        found: u32,
    },
}

impl FrameHeader {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.class.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.meta_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let body_bytes = u64::from(word(8)) | u64::from(word(12)) << 32;
        Self { class: FrameClass(word(0)), meta_bytes: word(4), body_bytes }
    }

    /// Whether the frame may come, by the rule of its class if there is one.
    pub(super) fn check(self, rule: Option<&[usize]>) -> Result<FrameAdmission, FrameRejection> {
        let Self { class, meta_bytes, body_bytes: found } = self;
        if meta_bytes as usize > META_BYTES_MAX {
            return Err(FrameRejection::MetaTooLong { class, found: meta_bytes });
        }
        let Some(parts) = rule else {
            let is_short = found <= FRAME_BYTES_MAX;
            return is_short
                .then_some(FrameAdmission::Skip)
                .ok_or(FrameRejection::TooLong { class, found });
        };
        let expected = body_bytes(parts).expect("rules are checked when they are made");
        if found != expected {
            return Err(FrameRejection::WrongLength { class, expected, found });
        }
        Ok(FrameAdmission::Take)
    }
}
