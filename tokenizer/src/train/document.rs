//! `tokenizer.json` and `tokenizer_config.json` of a vocabulary, as `save_pretrained` of
//! transformers writes them.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::TrainRequest;
use super::merges::LearntVocabulary;
use crate::{SplitPattern, TokenizerFiles};

/// The length that transformers writes where a tokenizer sets no limit.
const NO_MAX_LENGTH: u64 = 1_000_000_000_000_000_000;

#[derive(Serialize)]
struct TokenizerJson<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: (),
    pre_tokenizer: Part,
    post_processor: Part,
    decoder: Part,
    model: Model<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: (),
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "in_order")]
    vocab: &'a [String],
    merges: Vec<[&'a str; 2]>,
}

/// Tokens as a map to their ids, in the order of ids.
fn in_order<S: Serializer>(tokens: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(tokens.len()))?;
    for (id, token) in tokens.iter().enumerate() {
        map.serialize_entry(token, &id)?;
    }
    map.end()
}

/// Parts in the order of keys that the crate writes.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Part {
    ByteLevel { add_prefix_space: bool, trim_offsets: bool, use_regex: bool },
    Digits { individual_digits: bool },
    Split { pattern: Regex, behavior: &'static str, invert: bool },
    Sequence { pretokenizers: [Box<Part>; 2] },
}

#[derive(Serialize)]
struct Regex {
    #[serde(rename = "Regex")]
    regex: &'static str,
}

fn byte_level(use_regex: bool) -> Part {
    Part::ByteLevel { add_prefix_space: false, trim_offsets: true, use_regex }
}

/// Behind a model the first switch has no effect; this is how GPT-2 has it.
const fn byte_level_behind(trim_offsets: bool) -> Part {
    Part::ByteLevel { add_prefix_space: true, trim_offsets, use_regex: true }
}

fn pre_tokenizer(pattern: SplitPattern) -> Part {
    let sequence = |first, use_regex| {
        let pretokenizers = [first, byte_level(use_regex)].map(Box::new);
        Part::Sequence { pretokenizers }
    };
    match pattern {
        SplitPattern::Gpt2 => byte_level(true),
        SplitPattern::Gpt2Digits => sequence(Part::Digits { individual_digits: true }, true),
        SplitPattern::Llama3 | SplitPattern::Qwen2 => {
            let pattern = Regex { regex: pattern.regex() };
            sequence(Part::Split { pattern, behavior: "Isolated", invert: false }, false)
        }
    }
}

/// The files of a trained tokenizer.
pub(super) fn files(request: &TrainRequest, vocabulary: &LearntVocabulary) -> TokenizerFiles {
    let added = request.special_tokens.iter().enumerate().map(|(id, content)| AddedToken {
        id,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
    });
    let tokenizer = TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: added.collect(),
        normalizer: (),
        pre_tokenizer: pre_tokenizer(request.pattern),
        post_processor: byte_level_behind(false),
        decoder: byte_level_behind(true),
        model: Model {
            kind: "BPE",
            dropout: (),
            unk_token: (),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: vocabulary.tokens(),
            merges: vocabulary.merges().collect(),
        },
    };
    TokenizerFiles {
        tokenizer_json: pretty(&tokenizer),
        tokenizer_config: Some(pretty(&config(request))),
        ..TokenizerFiles::default()
    }
}

fn config(request: &TrainRequest) -> Value {
    let decoder: serde_json::Map<_, _> = request
        .special_tokens
        .iter()
        .enumerate()
        .map(|(id, content)| {
            let token = json!({
                "content": content,
                "lstrip": false,
                "normalized": false,
                "rstrip": false,
                "single_word": false,
                "special": true,
            });
            (id.to_string(), token)
        })
        .collect();
    json!({
        "add_prefix_space": false,
        "added_tokens_decoder": decoder,
        "bos_token": request.eos_token,
        "eos_token": request.eos_token,
        "clean_up_tokenization_spaces": false,
        "model_max_length": NO_MAX_LENGTH,
        "tokenizer_class": "PreTrainedTokenizerFast",
    })
}

fn pretty(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(document).expect("the document has texts as keys")
}
