//! Stamps: lines of text that say which version of the program wrote a folder, with a check at their
//! end, so that a flipped bit is told apart from another version.

/// Hexadecimal digits of a check: the first 4 bytes of the BLAKE3 hash of all before it and its space.
const CHECK_DIGITS: usize = 8;

/// The stamp of a text: its check behind it, and the end of the line.
pub fn stamp_of(text: &str) -> String {
    format!("{text} {}\n", check_of(text))
}

/// Whether a stamp ends with the check of what stands before it.
pub fn has_check(stamp: &str) -> bool {
    let line = stamp.strip_suffix('\n').and_then(|line| line.rsplit_once(' '));
    line.is_some_and(|(text, found)| found == check_of(text))
}

fn check_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..CHECK_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_stamp_is_seen() {
        let stamp = stamp_of("zbelastic-data 1 0.1.0 0.1.0");
        assert!(has_check(&stamp));
        for bit in 0..8 * stamp.len() {
            let mut bytes = stamp.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!String::from_utf8(bytes).is_ok_and(|flipped| has_check(&flipped)), "{bit}");
        }
        for cut in ["", "\n", " \n", "zbelastic-table 1 sled 0.34\n"] {
            assert!(!has_check(cut), "{cut:?}");
        }
    }
}
