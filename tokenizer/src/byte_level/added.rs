//! Added tokens: strings that become one id wherever they stand in a text.
//!
//! Most are found as they are, the longest of those that begin first. One that strips the spaces
//! beside it, must be a word, or is looked for after normalizing is *irregular*: a text that holds
//! its string is left to the crate.

use aho_corasick::{AhoCorasick, MatchKind};

use super::document::AddedTokenDocument;

#[derive(Debug)]
pub(super) struct AddedTokens {
    regular: AhoCorasick,
    /// By the number of the pattern in `regular`.
    ids: Vec<u32>,
    irregular: AhoCorasick,
}

impl AddedTokens {
    /// None if the strings are more than an automaton can hold, or normalizing could change one.
    pub(super) fn new(
        tokens: &[AddedTokenDocument],
        is_normalized: bool,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Option<Self> {
        // The crate looks for tokens that are not normalized first, and in the rest for the
        // others. Where nothing is normalized and there are only others, these are as regular.
        let are_all_late = !is_normalized && tokens.iter().all(|token| token.normalized);
        let is_regular = |token: &&AddedTokenDocument| {
            let is_plain = !token.single_word && !token.lstrip && !token.rstrip;
            is_plain && (!token.normalized || are_all_late)
        };
        let mut regular = Vec::new();
        let mut irregular = Vec::new();
        for token in tokens.iter().filter(|token| !token.content.is_empty()) {
            let list = if is_regular(&token) { &mut regular } else { &mut irregular };
            list.push(&token.content[..]);
        }
        if is_normalized && !irregular.iter().all(|content| content.is_ascii()) {
            return None;
        }
        let ids = regular.iter().map(|content| id_of(content)).collect::<Option<_>>()?;
        Some(Self { regular: automaton(&regular)?, ids, irregular: automaton(&irregular)? })
    }

    /// Whether the text may hold a token that only the crate can find.
    pub(super) fn is_irregular(&self, text: &str) -> bool {
        self.irregular.patterns_len() > 0 && self.irregular.is_match(text)
    }

    /// Calls `handle` with each part of `text` before a token, and the token's id; at last with the
    /// part behind the last token.
    pub(super) fn for_each_part(&self, text: &str, mut handle: impl FnMut(&str, Option<u32>)) {
        let mut start = 0;
        if self.regular.patterns_len() > 0 {
            for found in self.regular.find_iter(text) {
                let id = self.ids[found.pattern().as_usize()];
                handle(&text[start..found.start()], Some(id));
                start = found.end();
            }
        }
        handle(&text[start..], None);
    }
}

fn automaton(contents: &[&str]) -> Option<AhoCorasick> {
    AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()
}
