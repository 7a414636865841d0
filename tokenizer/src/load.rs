//! A tokenizer from the bytes of its files.

mod patterns;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Encoding, Token};
use zbelastic_types::Digest;

use crate::backend::{Backend, JsonBackend};
use crate::byte_level::ByteLevelBpe;
use crate::chat::{ChatFormat, ChatTemplate};
use crate::files::{FolderError, TOKENIZER_JSON, TokenizerFiles};
use crate::load_error::{LoadError, MODELS};
use crate::special_tokens::{NamedTokens, SpecialTokensMap};
use crate::tokenizer::Tokenizer;
use patterns::translate_patterns;

/// As much of a `tokenizer.json` as an exact error needs, and its parts that have patterns.
#[derive(Deserialize)]
struct Outline {
    model: ModelOutline,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct ModelOutline {
    /// Files written before tokenizers 0.9 have none.
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Tokenizer {
    /// The tokenizer of a model's folder, or of a `tokenizer.json` with the files beside it.
    ///
    /// # Errors
    /// If there is none, or its files cannot be read or understood.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let files = TokenizerFiles::read(path)?;
        Self::from_files(&files)
            .map_err(|cause| FolderError::Load { folder: path.to_owned(), cause })
    }

    /// The tokenizer that these files are.
    ///
    /// A chat template that cannot be compiled is no error until it is used.
    ///
    /// # Errors
    /// If a file is malformed or has something in it that is not understood.
    pub fn from_files(files: &TokenizerFiles) -> Result<Self, LoadError> {
        let named = NamedTokens::read(files)?;
        let (mut slow, json) = read_tokenizer_json(&files.tokenizer_json, named.has_prefix_space)?;
        slow.set_encode_special_tokens(named.splits_special);
        let json = &*add_named(&mut slow, &named, &json)?;
        let (prefix, suffix) = added_around(&mut slow)?;
        let special = SpecialTokensMap::read(files, &named, |token| slow.token_to_id(token))?;
        let (prefix, suffix) = match named.around {
            Some([begins, ends]) => {
                let token = |is_there: bool, id: Option<u32>| id.filter(|_| is_there).into_iter();
                (token(begins, special.bos).collect(), token(ends, special.eos).collect())
            }
            None => (prefix, suffix),
        };
        let fast = ByteLevelBpe::new(json, |token| slow.token_to_id(token));
        let fast = fast.filter(|_| !named.splits_special);
        let highest = slow.get_vocab(true).into_values().max();
        let source = match &files.chat_template {
            Some(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            None => named.chat_template.clone(),
        };
        let compile =
            |source: String| ChatTemplate::compile(&source, &named.contents, &named.additional);
        let template = source.map(compile);
        let tools = files.chat_template.is_none().then_some(named.tool_template.clone()).flatten();
        let tool_template = tools.map(compile);
        let backend = Backend::Json(Box::new(JsonBackend { slow, fast, prefix, suffix }));
        Ok(Self {
            chat: ChatFormat::new(template, tool_template, &backend, &special.stop),
            backend,
            special,
            vocab_size: highest.map_or(0, |highest| highest + 1),
            content_hash: Digest(*blake3::hash(json).as_bytes()),
        })
    }
}

/// The crate's tokenizer, and the `tokenizer.json` that it is one of: the given one, with the space in front
/// of texts that is wanted.
fn read_tokenizer_json(
    json: &[u8],
    has_prefix_space: Option<bool>,
) -> Result<(tokenizers::Tokenizer, Cow<'_, [u8]>), LoadError> {
    let malformed = |cause: &serde_json::Error| LoadError::malformed(TOKENIZER_JSON, cause);
    let outline: Outline = serde_json::from_slice(json).map_err(|cause| malformed(&cause))?;
    let Outline { model, normalizer, mut pre_tokenizer, decoder } = outline;
    let wanted = has_prefix_space.filter(|_| pre_tokenizer["type"] == "ByteLevel").map(Value::Bool);
    let prefix_space = pre_tokenizer.get_mut("add_prefix_space").zip(wanted);
    let changed = prefix_space.filter(|(found, wanted)| *found != wanted);
    let json = match changed.map(|(found, wanted)| *found = wanted) {
        Some(()) => {
            let parts = [("pre_tokenizer", pre_tokenizer.clone())];
            Cow::Owned(with_parts(json, parts).map_err(|cause| malformed(&cause))?)
        }
        None => Cow::Borrowed(json),
    };
    if let Some(found) = model.kind.filter(|kind| !MODELS.contains(&&kind[..])) {
        return Err(LoadError::UnknownModel { found });
    }
    let mut parts =
        [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)];
    let is_translated =
        parts.iter_mut().fold(false, |translated, (_, part)| translate_patterns(part) | translated);
    let translated = is_translated.then(|| with_parts(&json, parts)).transpose();
    let translated = translated.map_err(|cause| malformed(&cause))?;
    let read = tokenizers::Tokenizer::from_bytes(translated.as_deref().unwrap_or(&json));
    let mut slow = read.map_err(|cause| {
        cause.downcast_ref().map(malformed).unwrap_or_else(|| LoadError::Malformed {
            file: TOKENIZER_JSON,
            line: 0,
            column: 0,
            cause: cause.to_string(),
        })
    })?;
    // What a file says about cutting and filling up is meant for one use of it, not for corpora.
    slow.with_padding(None);
    slow.with_truncation(None).expect("no truncation is always allowed");
    Ok((slow, json))
}

/// A `tokenizer.json` with other parts in place of its own.
fn with_parts<const N: usize>(
    json: &[u8],
    parts: [(&str, Value); N],
) -> Result<Vec<u8>, serde_json::Error> {
    let mut document: Map<String, Value> = serde_json::from_slice(json)?;
    document.extend(parts.map(|(name, part)| (name.to_owned(), part)));
    serde_json::to_vec(&document)
}

/// Adds the tokens that the files beside `tokenizer.json` name. Yields the `tokenizer.json` with them,
/// which is the one that is there where texts have the same ids by it.
fn add_named<'a>(
    slow: &mut tokenizers::Tokenizer,
    named: &NamedTokens,
    json: &'a [u8],
) -> Result<Cow<'a, [u8]>, LoadError> {
    let known = slow.get_added_tokens_decoder();
    let in_order: BTreeMap<&u32, &AddedToken> = known.iter().collect();
    let mut tokens = named.to_add(in_order.values().map(|token| (*token).clone()));
    tokens.retain(|token| in_order.values().all(|known| *known != token));
    // The crate looks for all added tokens anew where some are added.
    if tokens.is_empty() {
        return Ok(Cow::Borrowed(json));
    }
    let not_added = |cause: tokenizers::Error| LoadError::AddedToken { cause: cause.to_string() };
    slow.add_tokens(tokens).map_err(not_added)?;
    let added = slow.get_added_tokens_decoder();
    let is_same = |(id, token): (&u32, &AddedToken)| {
        let as_special = |known: &AddedToken| known.clone().special(token.special);
        known.get(id).is_some_and(|known| as_special(known) == *token)
    };
    if added.len() == known.len() && added.iter().all(is_same) {
        return Ok(Cow::Borrowed(json));
    }
    Ok(Cow::Owned(slow.to_string(false).map_err(not_added)?.into_bytes()))
}

/// Detaches the post-processor, and returns the ids that it puts in front and behind.
fn added_around(slow: &mut tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), LoadError> {
    const TEXT_ID: u32 = 0;
    let text = Encoding::from_tokens(vec![Token::new(TEXT_ID, "a".to_owned(), (0, 1))], 0);
    let processed = slow.post_process(text, None, true).map_err(|_| LoadError::PostProcessor)?;
    let ids = processed.get_ids();
    let mask = processed.get_special_tokens_mask();
    let place = mask.iter().position(|special| *special == 0);
    let place = place.filter(|place| {
        mask.iter().filter(|special| **special == 0).count() == 1 && ids[*place] == TEXT_ID
    });
    let place = place.ok_or(LoadError::PostProcessor)?;
    let around = (ids[..place].to_vec(), ids[place + 1..].to_vec());
    slow.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
    Ok(around)
}

#[cfg(test)]
mod tests;
