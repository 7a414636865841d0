//! Classes of characters as Python's `str` has them.

use std::sync::LazyLock;

use crate::char_set::CharSet;

macro_rules! char_sets {
    ($($(#[$doc:meta])* $name:ident = $pattern:expr;)*) => {
        $($(#[$doc])* pub(super) static $name: LazyLock<CharSet> =
            LazyLock::new(|| CharSet::parse($pattern));)*
    };
}

char_sets! {
    /// What `repr` escapes: controls, unassigned characters, and white space but the plain one.
    UNPRINTABLE = r"[[\p{C}\p{Z}]--[ ]]";
    /// Characters with a case.
    CASED = r"\p{Cased}";
    /// Those of `isalpha`.
    LETTER = r"\p{L}";
    /// Those of `isdecimal`.
    DECIMAL = r"\p{Nd}";
    /// Those of `isdigit`: decimal ones, superscripts, and those in circles and the like.
    DIGIT = "[\\p{Nd}\u{b2}\u{b3}\u{b9}\u{1369}-\u{1371}\u{19da}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}\
        \u{2460}-\u{2468}\u{2474}-\u{247c}\u{2488}-\u{2490}\u{24ea}\u{24f5}-\u{24fd}\u{24ff}\
        \u{2776}-\u{277e}\u{2780}-\u{2788}\u{278a}-\u{2792}\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}\
        \u{11052}-\u{1105a}\u{1f100}-\u{1f10a}]";
    /// The first character of a name.
    NAME_START = r"[_\p{XID_Start}]";
    /// The others of a name.
    NAME = r"\p{XID_Continue}";
    /// Titlecase letters.
    TITLECASE = r"\p{Lt}";
}

/// `str.isspace`: Unicode's White_Space, and four separators that are not in it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.isnumeric`, of ideographs the common ones.
pub(super) fn is_numeric(c: char) -> bool {
    c.is_numeric() || "〇一二三四五六七八九十百千万億兆零壱弐参".contains(c)
}

/// `str.casefold`. Cherokee is folded to capital letters.
pub(super) fn casefold(text: &str) -> String {
    let fold = |c: char| match c {
        'ı' => "ı".to_owned(),
        'ẞ' => "ss".to_owned(),
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => c.to_uppercase().collect(),
        _ => c.to_uppercase().flat_map(char::to_lowercase).collect(),
    };
    text.chars().map(fold).collect()
}
