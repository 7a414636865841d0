//! Which format of the log the programs of members read, by the protocol versions they speak.

use zbelastic_consensus::codec::Format;
use zbelastic_transport::{VERSIONS, VersionRange};

/// The protocol version of the programs that read a format and no newer one: each format has a
/// version, in their order.
#[must_use]
pub fn version_of(format: Format) -> u16 {
    VERSIONS.oldest + u16::from(format.number() - Format::OLDEST.number())
}

/// The newest format that this program knows to be read by a program that speaks these versions.
#[must_use]
pub fn read_by(versions: VersionRange) -> Format {
    let is_read = |format: &Format| version_of(*format) <= versions.newest;
    let numbers = Format::OLDEST.number()..=Format::NEWEST.number();
    numbers.filter_map(Format::of).rfind(is_read).unwrap_or(Format::OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_a_version_and_the_newest_of_both_belong_together() {
        assert_eq!((version_of(Format::OLDEST), version_of(Format::NEWEST)), (2, VERSIONS.newest));
        let read = |oldest, newest| read_by(VersionRange { oldest, newest }).number();
        assert_eq!(
            [read(2, 2), read(2, 3), read(3, 3), read(3, 9), read(1, 1)],
            [9, 10, 10, 10, 9]
        );
    }
}
