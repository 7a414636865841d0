//! Special tokens by their names, as `tokenizer_config.json`, `special_tokens_map.json` and
//! `generation_config.json` have them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;

use crate::files::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, TokenizerFiles};
use crate::load_error::LoadError;

/// The names that transformers gives to special tokens, which chat templates use too.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The key of special tokens without a name of their own.
const ADDITIONAL: &str = "additional_special_tokens";

/// Special tokens by name, and the chat templates of `tokenizer_config.json`.
#[derive(Debug, Default)]
pub(crate) struct NamedTokens {
    pub(crate) contents: Vec<(&'static str, String)>,
    /// Special tokens without a name.
    pub(crate) additional: Vec<String>,
    /// Added tokens by id, as `tokenizer_config.json` lists them.
    added: BTreeMap<u32, AddedToken>,
    /// Whether the begin and the end token are put around a text, where the tokenizer's class decides
    /// that and not the post-processor.
    pub(crate) around: Option<[bool; 2]>,
    /// Whether a space is put in front of a text, where `tokenizer_config.json` decides that. Where it says nothing
    /// there is none, but for the classes of Llama and Gemma, which leave it to `tokenizer.json`.
    pub(crate) has_prefix_space: Option<bool>,
    /// Whether special tokens that are written in a text are split as any other text.
    pub(crate) splits_special: bool,
    pub(crate) chat_template: Option<String>,
    /// The template for conversations with tools, if there is another for these.
    pub(crate) tool_template: Option<String>,
}

/// Ids of special tokens.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokensMap {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) stop: Vec<u32>,
}

fn parse(file: &'static str, bytes: Option<&Vec<u8>>) -> Result<Value, LoadError> {
    let parsed = bytes.map(|bytes| serde_json::from_slice(bytes)).transpose();
    let parsed = parsed.map_err(|cause| LoadError::malformed(file, &cause))?;
    Ok(parsed.unwrap_or(Value::Null))
}

/// A token that is written as its content, or as an object with it.
fn content(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

impl NamedTokens {
    /// From both files. The configuration counts before the map, unless it is of a time when
    /// transformers read the map first: then it has no `added_tokens_decoder`.
    pub(crate) fn read(files: &TokenizerFiles) -> Result<Self, LoadError> {
        let config = parse(TOKENIZER_CONFIG, files.tokenizer_config.as_ref())?;
        let map = parse(SPECIAL_TOKENS_MAP, files.special_tokens_map.as_ref())?;
        let is_new = config.get("added_tokens_decoder").is_some();
        let [first, second] = if is_new { [&config, &map] } else { [&map, &config] };
        let named = |name: &'static str| {
            let token = first.get(name).or_else(|| second.get(name))?;
            Some((name, content(token)?))
        };
        let contents = NAMES.into_iter().filter_map(named).collect();
        let additional = first.get(ADDITIONAL).or_else(|| second.get(ADDITIONAL));
        let additional = additional.and_then(Value::as_array).into_iter().flatten();
        let malformed = |cause| LoadError::malformed(TOKENIZER_CONFIG, &cause);
        let added = config.get("added_tokens_decoder").filter(|added| !added.is_null());
        let added: Option<BTreeMap<u32, ListedToken>> =
            added.map(BTreeMap::deserialize).transpose().map_err(malformed)?;
        let added = added.unwrap_or_default().into_iter();
        let templates = &config["chat_template"];
        Ok(Self {
            contents,
            additional: additional.filter_map(content).collect(),
            added: added.map(|(id, token)| (id, token.into())).collect(),
            around: around(&config),
            has_prefix_space: prefix_space(&config),
            splits_special: config["split_special_tokens"].as_bool().unwrap_or(false),
            chat_template: templates
                .as_str()
                .map(str::to_owned)
                .or_else(|| template_named("default", templates)),
            tool_template: template_named("tool_use", templates),
        })
    }

    /// The added tokens that transformers gives a tokenizer with these files beside those that it has,
    /// which are `known` (`PreTrainedTokenizerFast.__init__`): the listed ones, of which those with a
    /// name are special, and the named ones that are not among them.
    pub(crate) fn to_add(&self, known: impl IntoIterator<Item = AddedToken>) -> Vec<AddedToken> {
        let named = self.contents.iter().map(|(_, content)| content).chain(&self.additional);
        let named: Vec<&String> = named.collect();
        let mut tokens: Vec<AddedToken> = known.into_iter().collect();
        for token in self.added.values() {
            match tokens.iter_mut().find(|known| known.content == token.content) {
                Some(known) => *known = token.clone(),
                None => tokens.push(token.clone()),
            }
        }
        for token in &mut tokens {
            token.special |= named.contains(&&token.content);
        }
        for content in named {
            if tokens.iter().all(|token| token.content != *content) {
                tokens.push(AddedToken::from(content.clone(), true));
            }
        }
        tokens
    }

    fn content(&self, name: &str) -> Option<&str> {
        let found = self.contents.iter().find(|(known, _)| *known == name);
        found.map(|(_, content)| &content[..])
    }
}

/// An added token as `tokenizer_config.json` lists it; what is not there is as transformers has it.
#[derive(Deserialize)]
struct ListedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl From<ListedToken> for AddedToken {
    fn from(listed: ListedToken) -> Self {
        let ListedToken { content, single_word, lstrip, rstrip, normalized, special } = listed;
        let normalized = normalized.unwrap_or(!special);
        Self { content, single_word, lstrip, rstrip, normalized, special }
    }
}

/// Classes of transformers that make a post-processor of `add_bos_token` and `add_eos_token`
/// (`update_post_processor`), in place of the one in `tokenizer.json`.
const CLASSES_AROUND: [&str; 6] = [
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
];

fn around(config: &Value) -> Option<[bool; 2]> {
    let class = config["tokenizer_class"].as_str()?;
    let flag = |key: &str, default| config[key].as_bool().unwrap_or(default);
    let flags = [flag("add_bos_token", true), flag("add_eos_token", false)];
    CLASSES_AROUND.contains(&class).then_some(flags)
}

/// Whether a space is put in front of a text. The classes of Llama and Gemma leave it to `tokenizer.json` unless the
/// configuration says it.
fn prefix_space(config: &Value) -> Option<bool> {
    let is_said = config["add_prefix_space"].as_bool();
    let is_decided = config.is_object() && around(config).is_none();
    is_said.or(is_decided.then_some(false))
}

/// Of several templates the one with this name.
fn template_named(name: &str, templates: &Value) -> Option<String> {
    let found = templates.as_array()?.iter().find(|template| template["name"] == name)?;
    found["template"].as_str().map(str::to_owned)
}

/// As much of `generation_config.json` as concerns tokens.
#[derive(Deserialize)]
struct GenerationConfig {
    bos_token_id: Option<u32>,
    pad_token_id: Option<u32>,
    eos_token_id: Option<OneOrMore>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

impl SpecialTokensMap {
    pub(crate) fn read(
        files: &TokenizerFiles,
        named: &NamedTokens,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<Self, LoadError> {
        let generation = files.generation_config.as_ref();
        let generation = generation.map(|bytes| serde_json::from_slice::<GenerationConfig>(bytes));
        let generation = generation.transpose();
        let generation =
            generation.map_err(|cause| LoadError::malformed(GENERATION_CONFIG, &cause))?;
        let id = |name: &str| named.content(name).and_then(&id_of);
        let generation_id =
            |field: fn(&GenerationConfig) -> Option<u32>| generation.as_ref().and_then(field);
        let bos = id("bos_token").or_else(|| generation_id(|config| config.bos_token_id));
        let pad = id("pad_token").or_else(|| generation_id(|config| config.pad_token_id));
        let mut stop = match generation.as_ref().and_then(|config| config.eos_token_id.as_ref()) {
            None => Vec::new(),
            Some(OneOrMore::One(id)) => vec![*id],
            Some(OneOrMore::More(ids)) => ids.clone(),
        };
        let eos = id("eos_token").or_else(|| stop.first().copied());
        stop.extend(eos);
        stop.sort_unstable();
        stop.dedup();
        Ok(Self { bos, eos, pad, stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, map: &str) -> NamedTokens {
        let files = TokenizerFiles {
            tokenizer_config: Some(config.as_bytes().to_vec()),
            special_tokens_map: Some(map.as_bytes().to_vec()),
            ..TokenizerFiles::default()
        };
        NamedTokens::read(&files).expect("JSON")
    }

    #[test]
    fn the_configuration_counts_before_the_map_if_it_is_complete() {
        let map = r#"{"eos_token": {"content": "</s>"}, "pad_token": "<pad>"}"#;
        let new =
            read(r#"{"added_tokens_decoder": {}, "eos_token": "<e>", "pad_token": null}"#, map);
        assert_eq!((new.content("eos_token"), new.content("pad_token")), (Some("<e>"), None));
        let old = read(r#"{"eos_token": "<e>", "bos_token": "<b>"}"#, map);
        assert_eq!(
            (old.content("eos_token"), old.content("bos_token")),
            (Some("</s>"), Some("<b>"))
        );
    }

    #[test]
    fn of_several_templates_the_default_is_read() {
        let named = r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(read(named, "{}").chat_template.as_deref(), Some("d"));
        assert_eq!(read(r#"{"chat_template": "one"}"#, "{}").chat_template.as_deref(), Some("one"));
        assert_eq!(read("{}", "{}").chat_template, None);
        let tools = named.replace("rag", "tool_use");
        assert_eq!(read(&tools, "{}").tool_template.as_deref(), Some("r"));
        assert_eq!(read(r#"{"chat_template": "one"}"#, "{}").tool_template, None);
    }

    #[test]
    fn named_tokens_are_special_and_added() {
        let config = r#"{"eos_token": "<e>", "pad_token": "<p>", "additional_special_tokens": ["<x>"],
            "added_tokens_decoder": {"11": {"content": "<x>", "lstrip": true, "special": false}}}"#;
        let known = ["<e>", "<k>"].map(|content| AddedToken::from(content, false));
        let tokens = read(config, "{}").to_add(known);
        let found: Vec<_> =
            tokens.iter().map(|token| (&token.content[..], token.special, token.lstrip)).collect();
        let expected = [
            ("<e>", true, false),
            ("<k>", false, false),
            ("<x>", true, true),
            ("<p>", true, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn generation_ends_after_each_of_its_ids() {
        let files = TokenizerFiles {
            generation_config: Some(br#"{"eos_token_id": [9, 4], "pad_token_id": 1}"#.to_vec()),
            ..TokenizerFiles::default()
        };
        let contents = vec![("eos_token", "<e>".to_owned())];
        let named = NamedTokens { contents, ..NamedTokens::default() };
        let map = SpecialTokensMap::read(&files, &named, |_| Some(7)).expect("JSON");
        assert_eq!((map.bos, map.eos, map.pad, map.stop), (None, Some(7), Some(1), vec![4, 7, 9]));
    }
}
