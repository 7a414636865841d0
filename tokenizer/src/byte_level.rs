//! Byte-level BPE without the crate's strings and alignments, with the same ids.
//!
//! [`ByteLevelBpe::new`] recognises a `tokenizer.json` of known parts alone; for any
//! other, and for texts with an added token that is more than a string to be found, the crate
//! encodes. Pieces that are one token are looked up whole, in a table that is built once and holds
//! every token that its bytes merge to; nothing changes while texts are encoded.

mod added;
mod classes;
mod document;
mod merges;
mod normalize;
mod split;

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::normalizers::unicode::NFC;

use self::added::AddedTokens;
use self::document::{ModelDocument, NormalizerKind, TokenizerDocument};
use self::merges::{Merge, MergeList, MergeScratch};
use crate::table::{ByteStringTable, IdPair, PairTable};

pub use split::SplitPattern;

/// The character that stands for each byte in a vocabulary: itself where it is visible, else one
/// from U+0100 on (GPT-2's `bytes_to_unicode`).
pub(crate) fn byte_characters() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| {
        let c = char::from(u8::try_from(byte).expect("an index below 256"));
        let is_visible = matches!(c, '!'..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{ff}');
        if is_visible { c } else { next.next().expect("fewer than 256 are invisible") }
    })
}

/// A byte-level BPE of known parts alone.
#[derive(Debug)]
pub(crate) struct ByteLevelBpe {
    /// Pieces that are one token, and the ids of these.
    whole_pieces: ByteStringTable,
    whole_ids: Vec<u32>,
    merges: MergeList,
    pattern: SplitPattern,
    form_c: Option<NormalizerWrapper>,
    added: AddedTokens,
}

impl ByteLevelBpe {
    /// The fast path of this `tokenizer.json`, if there is one. `id_of` yields the ids that the
    /// crate gives to added tokens.
    pub(crate) fn new(json: &[u8], id_of: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let document: TokenizerDocument<'_> = serde_json::from_slice(json).ok()?;
        let pattern = document.pre_tokenizer.as_ref()?.pattern()?;
        let form_c = match document.normalizer {
            None => None,
            Some(NormalizerKind::Nfc) => Some(NFC.into()),
            Some(NormalizerKind::Other) => return None,
        };
        let added = AddedTokens::new(&document.added_tokens, form_c.is_some(), id_of)?;
        let model = document.model;
        let vocabulary = Vocabulary::new(&model).filter(|_| model.is_plain())?;
        let merges = vocabulary.merges(&model)?;
        let (whole_pieces, whole_ids) = vocabulary.whole_pieces(&merges, model.ignore_merges);
        Some(Self { whole_pieces, whole_ids, merges, pattern, form_c, added })
    }

    /// Appends the ids of `text`, without those put in front or behind. Appends nothing and
    /// returns false for a text that the crate has to encode.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> bool {
        if self.added.is_irregular(text) {
            return false;
        }
        let start = ids.len();
        let mut scratch = MergeScratch::default();
        let mut is_regular = true;
        self.added.for_each_part(text, |part, token| {
            is_regular = is_regular && self.encode_part(part, &mut scratch, ids);
            ids.extend(token);
        });
        if !is_regular {
            ids.truncate(start);
        }
        is_regular
    }

    /// Appends the ids of a text without added tokens; false if normalizing has made one.
    fn encode_part(&self, part: &str, scratch: &mut MergeScratch, ids: &mut Vec<u32>) -> bool {
        let normalized = self.form_c.as_ref().map(|form_c| normalize::nfc(part, form_c));
        let part = normalized.as_deref().unwrap_or(part);
        if self.form_c.is_some() && self.added.is_irregular(part) {
            return false;
        }
        self.pattern.for_each_piece(part, |piece| match self.whole_pieces.get(piece) {
            Some(index) => ids.push(self.whole_ids[index]),
            None => self.merges.encode(piece, scratch, ids),
        });
        true
    }
}

/// Tokens as the bytes that they stand for.
struct Vocabulary {
    tokens: ByteStringTable,
    ids: Vec<u32>,
}

impl Vocabulary {
    /// None if a byte has no token.
    fn new(model: &ModelDocument<'_>) -> Option<Self> {
        let mut vocabulary = Self { tokens: ByteStringTable::new(), ids: Vec::new() };
        let bytes_of = ByteCharacters::new();
        for (token, id) in &model.vocab.0 {
            // A token that holds another character can match no piece.
            let Some(bytes) = bytes_of.bytes(token) else { continue };
            if vocabulary.tokens.insert(&bytes) == vocabulary.ids.len() {
                vocabulary.ids.push(*id);
            }
        }
        (0..=255).all(|byte| vocabulary.id(&[byte]).is_some()).then_some(vocabulary)
    }

    fn id(&self, bytes: &[u8]) -> Option<u32> {
        self.tokens.get(bytes).map(|index| self.ids[index])
    }

    /// None if a merge names something that is not in the vocabulary.
    fn merges(&self, model: &ModelDocument<'_>) -> Option<MergeList> {
        let byte_ids =
            std::array::from_fn(|byte| self.id(&[byte as u8]).expect("every byte has a token"));
        let bytes_of = ByteCharacters::new();
        let mut pairs = PairTable::new();
        for (rank, merge) in (0..).zip(&model.merges) {
            let (left, right) = merge.sides()?;
            let mut bytes = bytes_of.bytes(left)?;
            let right = bytes_of.bytes(right)?;
            let pair = IdPair { left: self.id(&bytes)?, right: self.id(&right)? };
            bytes.extend(right);
            pairs.insert(pair, Merge { rank, id: self.id(&bytes)? });
        }
        Some(MergeList { byte_ids, pairs })
    }

    /// The tokens that a piece of their bytes becomes: all of them if merges are ignored, else
    /// those that merges lead to.
    fn whole_pieces(&self, merges: &MergeList, are_all: bool) -> (ByteStringTable, Vec<u32>) {
        let mut pieces = ByteStringTable::new();
        let mut ids = Vec::new();
        let mut scratch = MergeScratch::default();
        let mut merged = Vec::new();
        for index in 0..self.tokens.len() {
            merged.clear();
            merges.encode(self.tokens.string(index), &mut scratch, &mut merged);
            if are_all || merged == [self.ids[index]] {
                pieces.insert(self.tokens.string(index));
                ids.push(self.ids[index]);
            }
        }
        (pieces, ids)
    }
}

/// The bytes that characters of a vocabulary stand for.
struct ByteCharacters([Option<u8>; 512]);

impl ByteCharacters {
    fn new() -> Self {
        let mut bytes = [None; 512];
        (0..=255).zip(byte_characters()).for_each(|(byte, c)| bytes[c as usize] = Some(byte));
        Self(bytes)
    }

    fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.0.get(c as usize).copied().flatten()).collect()
    }
}
