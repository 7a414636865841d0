//! The header of a control frame.

use crate::limits::{CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX, CONTROL_PIECE_BYTES_MAX};

/// The bytes of a control frame's header.
pub(super) const HEADER_BYTES: usize = 9;

/// The kinds of control frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFrameKind {
    /// A whole message, in one frame.
    Whole,
    /// The start of a long message.
    Start,
    /// A piece of the long message that was started last.
    Piece,
}

/// A header with a length within the limit of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlFrameHeader {
    pub(super) kind: ControlFrameKind,
    pub(super) length: usize,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlHeaderFault {
    /// The first byte names no kind.
    Kind { found: u8 },
    /// The length in bytes is zero, or above the limit of the kind.
    Length { found: u64 },
}

impl ControlFrameKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Whole => 0,
            Self::Start => 1,
            Self::Piece => 2,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Whole),
            1 => Some(Self::Start),
            2 => Some(Self::Piece),
            _ => None,
        }
    }

    const fn length_max(self) -> usize {
        match self {
            Self::Whole => CONTROL_FRAME_BYTES_MAX,
            Self::Start => CONTROL_MESSAGE_BYTES_MAX,
            Self::Piece => CONTROL_PIECE_BYTES_MAX,
        }
    }
}

impl ControlFrameHeader {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        assert!((1..=self.kind.length_max()).contains(&self.length), "senders keep to the limits");
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.byte();
        bytes[1..].copy_from_slice(&(self.length as u64).to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, ControlHeaderFault> {
        let [byte, length @ ..] = bytes;
        let kind = ControlFrameKind::of(byte).ok_or(ControlHeaderFault::Kind { found: byte })?;
        let found = u64::from_le_bytes(length);
        let length = usize::try_from(found).map_err(|_| ControlHeaderFault::Length { found })?;
        let is_allowed = (1..=kind.length_max()).contains(&length);
        is_allowed.then_some(Self { kind, length }).ok_or(ControlHeaderFault::Length { found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, length: u64) -> Result<ControlFrameHeader, ControlHeaderFault> {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = kind;
        bytes[1..].copy_from_slice(&length.to_le_bytes());
        ControlFrameHeader::decode(bytes)
    }

    #[test]
    fn a_length_is_taken_up_to_the_limit_of_its_kind() {
        for kind in [ControlFrameKind::Whole, ControlFrameKind::Start, ControlFrameKind::Piece] {
            let max = kind.length_max();
            for length in [1, max - 1, max] {
                let expected = ControlFrameHeader { kind, length };
                assert_eq!(ControlFrameHeader::decode(expected.encode()), Ok(expected));
            }
            for found in [0, max as u64 + 1, 1 << 63, u64::MAX] {
                assert_eq!(header(kind.byte(), found), Err(ControlHeaderFault::Length { found }));
            }
        }
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        assert!(header(2, 1).is_ok());
        for found in [3, 4, 127, 255] {
            assert_eq!(header(found, 1), Err(ControlHeaderFault::Kind { found }));
        }
    }
}
