//! Patterns over names of tensors and modules.
//!
//! A pattern is written part by part between dots, as names are. In a part `*` is any letters, and
//! `0-7` are the blocks from 0 to 7.

/// The last part of a tensor's name that names no bias, as [`super::find_tensor`] reads it too.
const WEIGHT: &str = "weight";
const BIAS: &str = "bias";

/// Why a text is no pattern over names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamePatternError {
    /// A pattern has a part without a letter.
    #[error("`{pattern}` has an empty part; parts stand between dots, as in layers.0-7.attn")]
    EmptyPart {
        /// The pattern as it was written.
        pattern: String,
    },
    /// A range ends before it begins.
    #[error("`{pattern}` has a range that ends before it begins, {first} to {last}")]
    Range {
        /// The pattern as it was written.
        pattern: String,
        /// The first block.
        first: u64,
        /// The last block.
        last: u64,
    },
}

/// A pattern over names.
pub(crate) struct NamePattern<'a> {
    parts: Vec<PartPattern<'a>>,
}

/// A pattern over one part of a name.
enum PartPattern<'a> {
    /// Letters, of which `*` is any number of any.
    Letters(&'a str),
    /// The blocks from the first to the last.
    Blocks { first: u64, last: u64 },
}

impl<'a> NamePattern<'a> {
    pub(crate) fn parse(pattern: &'a str) -> Result<Self, NamePatternError> {
        let part = |part: &'a str| {
            let written = || pattern.to_owned();
            match blocks(part) {
                _ if part.is_empty() => Err(NamePatternError::EmptyPart { pattern: written() }),
                Some((first, last)) if first > last => {
                    Err(NamePatternError::Range { pattern: written(), first, last })
                }
                Some((first, last)) => Ok(PartPattern::Blocks { first, last }),
                None => Ok(PartPattern::Letters(part)),
            }
        };
        Ok(Self { parts: pattern.split('.').map(part).collect::<Result<_, _>>()? })
    }

    /// Whether it is a tensor's name, or the beginning of it.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let is_bias = name.rsplit('.').next() == Some(BIAS);
        let mut parts = name.split('.').chain((!is_bias).then_some(WEIGHT));
        self.parts.iter().all(|pattern| parts.next().is_some_and(|part| pattern.matches(part)))
    }

    /// Whether it is the name, or the end of it.
    pub(super) fn matches_end(&self, name: &str) -> bool {
        let mut parts = name.rsplit('.');
        let mut patterns = self.parts.iter().rev();
        patterns.all(|pattern| parts.next().is_some_and(|part| pattern.matches(part)))
    }
}

/// The first and the last block of `0-7`.
fn blocks(part: &str) -> Option<(u64, u64)> {
    let (first, last) = part.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

impl PartPattern<'_> {
    fn matches(&self, part: &str) -> bool {
        match self {
            Self::Letters(pattern) => matches_letters(pattern, part),
            Self::Blocks { first, last } => {
                part.parse().is_ok_and(|block: u64| (*first..=*last).contains(&block))
            }
        }
    }
}

/// Whether `text` is `pattern`, in which `*` is any number of any letters: what stands before the
/// first star, then what stands between two of them as early as it comes, then what is behind the
/// last.
fn matches_letters(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let (between, end) = rest.rsplit_once('*').map_or((None, rest), |(b, end)| (Some(b), end));
    for piece in between.into_iter().flat_map(|between| between.split('*')) {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_stars_match_parts() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(matches_letters(pattern, text), expected, "{pattern} {text}");
        };
        check("attn", "attn", true);
        check("attn", "attn2", false);
        check("*", "", true);
        check("*", "anything", true);
        check("norm*", "norm1", true);
        check("*1", "norm1", true);
        check("n*m*", "norm1", true);
        check("n*r*1", "norm1", true);
        check("n*r*2", "norm1", false);
        check("q_*", "q", false);
        check("ab*ba", "aba", false);
        check("**", "x", true);
    }
}
