//! Sets of characters by the tables of `regex-syntax`, which are those of the regular expressions that the crate
//! `tokenizers` runs.

use regex_syntax::hir::{Class, HirKind};

/// Ranges of characters, in order.
pub(crate) struct CharSet(Vec<(char, char)>);

impl CharSet {
    /// The set that a class of a regular expression is.
    ///
    /// # Panics
    /// If the pattern is none.
    pub(crate) fn parse(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).expect("the pattern is well formed");
        let HirKind::Class(Class::Unicode(set)) = hir.kind() else {
            unreachable!("{pattern} is a class of characters")
        };
        Self(set.ranges().iter().map(|range| (range.start(), range.end())).collect())
    }

    /// The first and the last character of each range.
    pub(crate) fn ranges(&self) -> &[(char, char)] {
        &self.0
    }

    pub(crate) fn contains(&self, c: char) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < c);
        self.0.get(at).is_some_and(|(start, _)| *start <= c)
    }
}
