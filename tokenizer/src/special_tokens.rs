//! Special tokens by their names, as `tokenizer_config.json`, `special_tokens_map.json` and
//! `generation_config.json` have them.

use serde::Deserialize;
use serde_json::Value;

use crate::files::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, TokenizerFiles};
use crate::load_error::LoadError;

/// The names that transformers gives to special tokens, which chat templates use too.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special tokens by name, and the chat template of `tokenizer_config.json`.
#[derive(Debug, Default)]
pub(crate) struct NamedTokens {
    pub(crate) contents: Vec<(&'static str, String)>,
    pub(crate) chat_template: Option<String>,
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
        Ok(Self { contents, chat_template: chat_template(&config["chat_template"]) })
    }

    fn content(&self, name: &str) -> Option<&str> {
        let found = self.contents.iter().find(|(known, _)| *known == name);
        found.map(|(_, content)| &content[..])
    }
}

/// The one template, or of several the one named `default`.
fn chat_template(template: &Value) -> Option<String> {
    let named = template.as_array().into_iter().flatten();
    let default = named.into_iter().find(|named| named["name"] == "default");
    default.map_or(template, |named| &named["template"]).as_str().map(str::to_owned)
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
    }

    #[test]
    fn generation_ends_after_each_of_its_ids() {
        let files = TokenizerFiles {
            generation_config: Some(br#"{"eos_token_id": [9, 4], "pad_token_id": 1}"#.to_vec()),
            ..TokenizerFiles::default()
        };
        let contents = vec![("eos_token", "<e>".to_owned())];
        let named = NamedTokens { contents, chat_template: None };
        let map = SpecialTokensMap::read(&files, &named, |_| Some(7)).expect("JSON");
        assert_eq!((map.bos, map.eos, map.pad, map.stop), (None, Some(7), Some(1), vec![4, 7, 9]));
    }
}
