//! Which of the classes that split patterns distinguish a character has.

use std::sync::LazyLock;

use crate::char_set::CharSet;

/// `\p{L}`, `\p{N}`, `[\r\n]`, other `\s`, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CharClass {
    Other,
    Letter,
    Number,
    Space,
    Newline,
}

impl CharClass {
    pub(super) fn is_space(self) -> bool {
        matches!(self, Self::Space | Self::Newline)
    }
}

static CLASSES: LazyLock<Vec<CharClass>> = LazyLock::new(|| {
    let mut classes = vec![CharClass::Other; char::MAX as usize + 1];
    let rows = [
        (r"\p{L}", CharClass::Letter),
        (r"\p{N}", CharClass::Number),
        (r"\s", CharClass::Space),
        (r"[\r\n]", CharClass::Newline),
    ];
    for (pattern, class) in rows {
        for (start, end) in CharSet::parse(pattern).ranges() {
            classes[*start as usize..=*end as usize].fill(class);
        }
    }
    classes
});

/// The class of every character, by its number.
pub(super) fn char_classes() -> &'static [CharClass] {
    &CLASSES
}
