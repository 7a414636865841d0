//! Sizes and names as typed.

use zbelastic_api::NAME_BYTES_MAX;
use zbelastic_config::parse_size;
use zbelastic_consensus::contact::{ContactRefusal, check_name};
use zbelastic_types::Bytes;

/// Most characters of a name: the limit of certificates and of the log, less the suffix that `init`
/// puts behind the cluster's name for its first controller.
const NODE_NAME_MAX: usize = 63 - "-1".len();

/// Why a text is no size or name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is no size.
    #[error("expected a size such as 10GiB, 512MiB or plain bytes")]
    Size,
    /// It is no size of a file of weights.
    #[error("expected a size such as 5GB, 500MB or 2GiB, and more than nothing")]
    ShardSize,
    /// Thousands instead of 1024.
    #[error("expected a size such as 10GiB: units are of 1024, {written}iB instead of {written}B")]
    DecimalSize {
        /// Letter of the unit that was typed.
        written: char,
    },
    /// It is no name.
    #[error(
        "expected a name of 1 to {NODE_NAME_MAX} of the characters a-z, 0-9 and -, that begins \
         with a letter or digit"
    )]
    Name,
    /// A name that would be read as a number.
    #[error("a name of digits alone would be read as a node's number")]
    DigitsName,
    /// A note is too long.
    #[error("{found} bytes, at most {NAME_BYTES_MAX}")]
    Note {
        /// Length of the note, in bytes.
        found: usize,
    },
}

/// `10GiB`, `512MiB`, `4096`.
///
/// # Errors
/// If it is none.
pub fn parse_bytes(text: &str) -> Result<Bytes, QuantityError> {
    let text = text.trim();
    let letter = text.strip_suffix('B').and_then(|text| text.chars().next_back());
    match (parse_size(text), letter) {
        (Some(size), _) => Ok(size),
        (None, Some(written @ ('K' | 'M' | 'G' | 'T'))) => {
            Err(QuantityError::DecimalSize { written })
        }
        (None, Some(_) | None) => Err(QuantityError::Size),
    }
}

/// Bytes of a file of weights: `5GB`, `500MB`, `2GiB`. KB, MB and GB are of 1,000, as transformers
/// counts them.
///
/// # Errors
/// If it is none, or no bytes at all.
pub fn parse_shard_bytes(text: &str) -> Result<u64, QuantityError> {
    let text = text.trim();
    let thousands = [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];
    let decimal = thousands.into_iter().find_map(|(unit, bytes)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(bytes)
    });
    let bytes = decimal.or_else(|| parse_size(text).map(|size| size.0));
    bytes.filter(|bytes| *bytes > 0).ok_or(QuantityError::ShardSize)
}

/// A name of a cluster or a node.
///
/// # Errors
/// If it is none.
pub fn parse_name(text: &str) -> Result<String, QuantityError> {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_fitting = text.bytes().all(|letter| is_letter(letter) || letter == b'-');
    let begins = text.bytes().next().is_some_and(is_letter);
    if !begins || text.len() > NODE_NAME_MAX || !is_fitting {
        return Err(QuantityError::Name);
    }
    if text.bytes().all(|letter| letter.is_ascii_digit()) {
        return Err(QuantityError::DigitsName);
    }
    Ok(text.to_owned())
}

/// A zone, as a cloud or a person calls it.
///
/// # Errors
/// If it is empty, too long, or of other letters than a node's name.
pub fn parse_zone(text: &str) -> Result<String, ContactRefusal> {
    check_name(text)?;
    Ok(text.to_owned())
}

/// A note that a person makes.
///
/// # Errors
/// If it is too long.
pub fn parse_note(text: &str) -> Result<String, QuantityError> {
    let found = text.len();
    if found > NAME_BYTES_MAX { Err(QuantityError::Note { found }) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_of_1024() {
        assert_eq!(parse_bytes("10GiB"), Ok(Bytes(10 << 30)));
        assert_eq!(parse_bytes("4096"), Ok(Bytes(4096)));
        assert_eq!(parse_bytes("10GB"), Err(QuantityError::DecimalSize { written: 'G' }));
        for text in ["", "0", "lots", "GiB", "-1", "B"] {
            assert_eq!(parse_bytes(text), Err(QuantityError::Size), "{text}");
        }
    }

    #[test]
    fn files_of_weights_are_of_thousands() {
        let check = |text, expected| assert_eq!(parse_shard_bytes(text), expected, "{text}");
        check("5GB", Ok(5_000_000_000));
        check("200 KB", Ok(200_000));
        check("2GiB", Ok(2 << 30));
        check("4096", Ok(4096));
        for text in ["", "0", "0MB", "-1", "GB", "1.5GB", "99999999999GB"] {
            check(text, Err(QuantityError::ShardSize));
        }
    }

    #[test]
    fn names_are_plain() {
        let longest = "a".repeat(NODE_NAME_MAX);
        for name in ["a", "gpu-7-rack-2", "7b", "a-", longest.as_str()] {
            assert_eq!(parse_name(name), Ok(name.to_owned()));
        }
        let longer = "a".repeat(NODE_NAME_MAX + 1);
        let controls = ["a\n", "a\u{1b}[2J", "a\0"];
        let others = ["", "-a", "A", "a b", "a_b", "a.b", "zürich", "w😀", "../x", "<b>", "o'k"];
        for name in others.into_iter().chain(controls).chain([longer.as_str()]) {
            assert_eq!(parse_name(name), Err(QuantityError::Name), "{name}");
        }
        assert_eq!(parse_name("12"), Err(QuantityError::DigitsName));
        let longest = "a".repeat(NAME_BYTES_MAX);
        let longer = "a".repeat(NAME_BYTES_MAX + 1);
        assert!(parse_note(&longest).is_ok());
        assert_eq!(parse_note(&longer), Err(QuantityError::Note { found: NAME_BYTES_MAX + 1 }));
    }
}
