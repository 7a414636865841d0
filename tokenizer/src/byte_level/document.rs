//! The parts of a `tokenizer.json` that the fast path reads.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::split::SplitPattern;

#[derive(Deserialize)]
pub(super) struct TokenizerDocument<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedTokenDocument>,
    pub(super) normalizer: Option<NormalizerKind>,
    pub(super) pre_tokenizer: Option<PreTokenizerDocument>,
    #[serde(borrow)]
    pub(super) model: ModelDocument<'a>,
}

#[derive(Deserialize)]
pub(super) struct AddedTokenDocument {
    pub(super) content: String,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum NormalizerKind {
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizerDocument {
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "default_true")]
        use_regex: bool,
    },
    Split {
        pattern: PatternDocument,
        behavior: String,
        invert: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Sequence {
        pretokenizers: Vec<PreTokenizerDocument>,
    },
    #[serde(other)]
    Other,
}

const fn default_true() -> bool {
    true
}

#[derive(Deserialize)]
pub(super) enum PatternDocument {
    String(IgnoredAny),
    Regex(String),
}

impl PreTokenizerDocument {
    /// The pattern that this cuts text by, if it is a known one and bytes follow.
    pub(super) fn pattern(&self) -> Option<SplitPattern> {
        let Self::Sequence { pretokenizers } = self else {
            return self.is_byte_level(true).then_some(SplitPattern::Gpt2);
        };
        let [first, second] = &pretokenizers[..] else { return None };
        match first {
            Self::Split { pattern: PatternDocument::Regex(regex), behavior, invert: false } => {
                let is_plain = behavior == "Isolated" && second.is_byte_level(false);
                SplitPattern::of_regex(regex).filter(|_| is_plain)
            }
            Self::Digits { individual_digits: true } => {
                second.is_byte_level(true).then_some(SplitPattern::Gpt2Digits)
            }
            Self::Split { .. }
            | Self::Digits { .. }
            | Self::ByteLevel { .. }
            | Self::Sequence { .. }
            | Self::Other => None,
        }
    }

    /// Whether this turns text into bytes, and cuts it by GPT-2's pattern or not at all.
    fn is_byte_level(&self, is_cut: bool) -> bool {
        matches!(self, Self::ByteLevel { add_prefix_space: false, use_regex } if *use_regex == is_cut)
    }
}

/// The model's type, which has to be this one.
#[derive(Deserialize)]
enum ModelKind {
    #[serde(rename = "BPE")]
    Bpe,
}

#[derive(Deserialize)]
pub(super) struct ModelDocument<'a> {
    #[serde(rename = "type")]
    kind: ModelKind,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(borrow)]
    pub(super) vocab: VocabularyDocument<'a>,
    #[serde(borrow)]
    pub(super) merges: Vec<MergeDocument<'a>>,
}

impl ModelDocument<'_> {
    /// Whether pieces are merged without chance and without marks of where they stand in a word.
    pub(super) fn is_plain(&self) -> bool {
        let ModelKind::Bpe = self.kind;
        let is_empty = |mark: &Option<String>| mark.as_ref().is_none_or(String::is_empty);
        self.dropout.is_none_or(|share| share == 0.0)
            && is_empty(&self.continuing_subword_prefix)
            && is_empty(&self.end_of_word_suffix)
    }
}

/// Tokens and their ids, in the order of the file.
pub(super) struct VocabularyDocument<'a>(pub(super) Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for VocabularyDocument<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Cow<'de, str>, u32)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((TokenContent(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries).map(Self)
    }
}

/// A text that is borrowed from the file where it has no escapes.
#[derive(Deserialize)]
struct TokenContent<'a>(#[serde(borrow)] Cow<'a, str>);

/// A merge, as files have it since tokenizers 0.20, or as one text before.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum MergeDocument<'a> {
    Sides([String; 2]),
    Line(#[serde(borrow)] Cow<'a, str>),
}

impl MergeDocument<'_> {
    pub(super) fn sides(&self) -> Option<(&str, &str)> {
        match self {
            Self::Sides([left, right]) => Some((left, right)),
            Self::Line(line) => line.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        }
    }
}
