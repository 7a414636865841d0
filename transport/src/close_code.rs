//! Why a connection is closed, as a number on the wire.

use std::fmt;

/// Why a connection was closed on purpose. The number of each never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseCode {
    /// The process ends, or does not need the peer any more.
    Left,
    /// The certificate belongs to another cluster, or is none of ours.
    NotThisCluster,
    /// The member was removed.
    Banned,
    /// The two programs have no protocol version in common.
    Version,
    /// A newer connection of the same process is there.
    Replaced,
    /// A process with the same identity is there, and it started later.
    DuplicateIdentity,
    /// The role may not send this kind of message.
    Forbidden,
    /// A length is above its limit, or not the one expected.
    Length,
    /// Bytes that do not make sense.
    Malformed,
    /// More connections than the limit.
    Crowded,
    /// A hello, or the choice of a path, was not sent in time.
    Late,
    /// A code this program does not know; a newer one wrote it.
    Unknown(u32),
}

impl CloseCode {
    /// The code as it travels.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Left => 0,
            Self::NotThisCluster => 1,
            Self::Banned => 2,
            Self::Version => 3,
            Self::Replaced => 4,
            Self::DuplicateIdentity => 5,
            Self::Forbidden => 6,
            Self::Length => 7,
            Self::Malformed => 8,
            Self::Crowded => 9,
            Self::Late => 10,
            Self::Unknown(number) => number,
        }
    }

    /// The code of a number. Numbers above 32 bits are none of ours.
    #[must_use]
    pub fn of(number: u64) -> Self {
        match number {
            0 => Self::Left,
            1 => Self::NotThisCluster,
            2 => Self::Banned,
            3 => Self::Version,
            4 => Self::Replaced,
            5 => Self::DuplicateIdentity,
            6 => Self::Forbidden,
            7 => Self::Length,
            8 => Self::Malformed,
            9 => Self::Crowded,
            10 => Self::Late,
            other => Self::Unknown(u32::try_from(other).unwrap_or(u32::MAX)),
        }
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it left"),
            Self::NotThisCluster => f.write_str("the certificate is not of this cluster"),
            Self::Banned => f.write_str("the member was removed"),
            Self::Version => f.write_str("no protocol version in common"),
            Self::Replaced => f.write_str("a newer connection took its place"),
            Self::DuplicateIdentity => f.write_str("another process has the same identity"),
            Self::Forbidden => f.write_str("the role may not send that"),
            Self::Length => f.write_str("a length above its limit or not as expected"),
            Self::Malformed => f.write_str("bytes that make no sense"),
            Self::Crowded => f.write_str("too many connections"),
            Self::Late => f.write_str("not in time"),
            Self::Unknown(number) => write!(f, "code {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CloseCode;

    #[test]
    fn every_number_comes_back_as_the_code_it_was() {
        for number in 0..64_u64 {
            assert_eq!(u64::from(CloseCode::of(number).number()), number);
        }
        assert_eq!(CloseCode::of(10), CloseCode::Late);
        assert_eq!(CloseCode::of(11), CloseCode::Unknown(11));
        assert_eq!(CloseCode::of(u64::MAX), CloseCode::Unknown(u32::MAX));
    }
}
