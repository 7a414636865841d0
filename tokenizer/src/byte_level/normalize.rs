//! Unicode's form C, at little cost for text that is in it already.
//!
//! The crate's normalizer is called for the parts of a text that could change: runs of characters
//! that may combine, each with the character before it. A cut before a character of class 0
//! with NFC_Quick_Check=Yes does not change the result (Unicode Standard Annex 15, section 9).

use std::borrow::Cow;

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

/// Ranges of characters that combine with nothing before them and stay as they are: the scripts
/// and symbols of most text. Others are normalized, at more cost.
const INERT: [(u32, u32); 26] = [
    (0x0, 0x2ff),
    (0x370, 0x373),
    (0x375, 0x377),
    (0x37f, 0x37f),
    (0x388, 0x3ff),
    (0x400, 0x482),
    (0x48a, 0x52f),
    (0x531, 0x58f),
    (0x5d0, 0x5ea),
    (0x620, 0x64a),
    (0x660, 0x66f),
    (0x671, 0x6d3),
    (0x904, 0x939),
    (0x93d, 0x94c),
    (0xe01, 0xe37),
    (0x10a0, 0x10ff),
    (0x1e00, 0x1eff),
    (0x2002, 0x20cf),
    (0x2100, 0x2125),
    (0x212c, 0x2328),
    (0x232b, 0x2adb),
    (0x3000, 0x3029),
    (0x3030, 0x3098),
    (0x309b, 0xa66e),
    (0xac00, 0xd7a3),
    (0x1f300, 0x1faff),
];

fn is_inert(c: char) -> bool {
    let c = u32::from(c);
    c < 0x300 || INERT.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// `text` after the crate's normalizer for form C.
pub(super) fn nfc<'a>(text: &'a str, normalizer: &NormalizerWrapper) -> Cow<'a, str> {
    if text.is_ascii() || text.chars().all(is_inert) {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.find(|c| !is_inert(c)) {
        let before = rest[..first].chars().next_back().map_or(0, char::len_utf8);
        let start = first - before;
        let end = rest[first..].find(is_inert).map_or(rest.len(), |length| first + length);
        result.push_str(&rest[..start]);
        let mut part = NormalizedString::from(&rest[start..end]);
        normalizer.normalize(&mut part).expect("form C exists for every text");
        result.push_str(part.get());
        rest = &rest[end..];
    }
    result.push_str(rest);
    Cow::Owned(result)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::normalizers::unicode::NFC;

    use super::*;

    fn whole(text: &str) -> String {
        let mut text = NormalizedString::from(text);
        NFC.normalize(&mut text).expect("form C exists for every text");
        text.get().to_owned()
    }

    #[test]
    fn inert_characters_stay_behind_any_other() {
        for c in (0..=0x1ffff).filter_map(char::from_u32).filter(|c| is_inert(*c)) {
            for before in ["", "e", "\u{1100}", "\u{ac00}", "か", "\u{915}", "a\u{327}"] {
                let expected = format!("{}{c}", whole(before));
                assert_eq!(whole(&format!("{before}{c}")), expected, "U+{:04X}", u32::from(c));
            }
            // A mark of class 1 would move before a character of any class above.
            let marked = format!("{c}\u{334}");
            assert_eq!(whole(&marked), marked, "U+{:04X}", u32::from(c));
        }
    }

    proptest! {
        #[test]
        fn parts_give_what_the_whole_gives(
            text in "([a-z ]|[àéûñ]|[\u{300}-\u{345}]|[\u{1100}-\u{11ff}]|[\u{ac00}-\u{ac20}]|[\u{915}-\u{95f}]|\\PC){0,40}",
        ) {
            prop_assert_eq!(nfc(&text, &NFC.into()), whole(&text));
        }
    }
}
