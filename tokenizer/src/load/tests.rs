use std::path::Path;

use super::*;
use crate::{FolderError, SpecialTokens};

/// A vocabulary of words with one special token.
const WORDS: &str = r#"{"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "single_word":
    false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}], "padding":
    null, "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": POST, "normalizer": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "?"}}"#;
const TEMPLATE: &str = r#"{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
    "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A",
    "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<s>": {"id":
    "<s>", "ids": [2], "tokens": ["<s>"]}}}"#;

fn files(json: &str) -> TokenizerFiles {
    TokenizerFiles { tokenizer_json: json.as_bytes().to_vec(), ..TokenizerFiles::default() }
}

fn load(json: &str) -> Result<Tokenizer, LoadError> {
    Tokenizer::from_files(&files(json))
}

#[test]
fn a_file_is_loaded_without_its_truncation_and_with_what_it_puts_in_front() {
    let tokenizer = load(&WORDS.replace("POST", TEMPLATE)).expect("the file is whole");
    assert!(!tokenizer.is_fast());
    assert_eq!(tokenizer.token_to_id("<s>"), Some(2));
    assert_eq!(tokenizer.vocab_size(), 3);
    assert_eq!(tokenizer.encode("a b a", SpecialTokens::Exclude), Ok(vec![0, 1, 0]));
    assert_eq!(tokenizer.encode("a b", SpecialTokens::Include), Ok(vec![2, 0, 1]));
    let error = tokenizer.encode("c", SpecialTokens::Exclude).expect_err("c is unknown");
    assert!(error.to_string().contains("cannot encode"), "{error}");
}

#[test]
fn wrong_files_are_refused_with_the_place_and_what_to_do() {
    let check = |json: &str, expected: &str| {
        let error = load(json).expect_err("it is refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    check("{\n  \"model\": nonsense}", "tokenizer.json, line 2 column 13: expected ident");
    check("{}", "tokenizer.json, line 1 column 2: missing field `model`");
    check("{\"model\": {\"type\": \"BPE\"}}", "tokenizer.json, line 1 column ");
    let unknown = "tokenizer.json: expected a model of type BPE, Unigram, WordLevel, WordPiece, \
                   found \"Bitstream\"";
    check("{\"model\": {\"type\": \"Bitstream\"}}", unknown);
    let twice = TEMPLATE.replace(
        r#"{"SpecialToken": {"id": "<s>",
    "type_id": 0}}"#,
        r#"{"Sequence": {"id": "A", "type_id": 0}}"#,
    );
    check(&WORDS.replace("POST", &twice), "tokenizer.json: the post-processor does not keep");
    let config = TokenizerFiles {
        tokenizer_config: Some(b"{\"bos_token\": }".to_vec()),
        ..files(&WORDS.replace("POST", "null"))
    };
    let error = Tokenizer::from_files(&config).expect_err("it is malformed").to_string();
    assert!(error.starts_with("tokenizer_config.json, line 1 column 15: "), "{error}");
}

#[test]
fn folders_and_files_are_read_with_what_is_beside_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = Tokenizer::open(folder.path()).expect_err("it is empty");
    assert!(matches!(missing, FolderError::Missing { .. }), "{missing}");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it is written");
    };
    write("tokenizer.json", &WORDS.replace("POST", "null"));
    write("special_tokens_map.json", r#"{"eos_token": "<s>"}"#);
    write("chat_template.jinja", "{{ eos_token }}\n");
    let check = |path: &Path| {
        let tokenizer = Tokenizer::open(path).expect("the files are whole");
        assert_eq!((tokenizer.eos_id(), tokenizer.stop_ids()), (Some(2), &[2][..]));
        let nothing = crate::Conversation::new([]);
        let text = tokenizer.apply_chat_template(&nothing, &crate::TemplateOptions::default());
        assert_eq!(text.as_deref(), Ok("<s>"));
    };
    check(folder.path());
    check(&folder.path().join("tokenizer.json"));
    let copy = folder.path().join("a/copy");
    let files = TokenizerFiles::read(folder.path()).expect("the files are there");
    files.write(&copy).expect("they are written");
    assert_eq!(TokenizerFiles::read(&copy).ok(), Some(files));
    check(&copy);
}

#[test]
fn a_model_has_to_have_every_token() {
    let bytes = Tokenizer::bytes();
    assert_eq!(bytes.check_vocabulary(256), Ok(()));
    assert_eq!(bytes.check_vocabulary(300), Ok(()));
    let error = bytes.check_vocabulary(255).expect_err("one is missing");
    assert_eq!((error.tokenizer, error.model), (256, 255));
    let expected = "the tokenizer has 256 tokens, the model's vocabulary 255: ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn bytes_are_their_values() {
    let bytes = Tokenizer::bytes();
    let ids = bytes.encode("é!", SpecialTokens::Include).expect("bytes encode any text");
    assert_eq!(ids, [0xc3, 0xa9, 0x21]);
    assert_eq!(bytes.decode(&ids, SpecialTokens::Include).as_deref(), Ok("é!"));
    assert_eq!(bytes.decode(&[0xc3, 300], SpecialTokens::Include).as_deref(), Ok("\u{fffd}"));
    let encoding = bytes.encode_with_offsets("é!").expect("bytes encode any text");
    assert_eq!(encoding.offsets, [0..2, 0..2, 2..3]);
    let mut stream = crate::DecodeStream::new(&bytes, SpecialTokens::Include);
    let texts: Vec<_> = [0xc3, 0xa9, 0x21, 0xff, 0x21, 0xe2].map(|id| stream.push(id)).into();
    let texts: Vec<_> = texts.into_iter().map(|text| text.expect("bytes decode")).collect();
    assert_eq!(texts, ["", "é", "!", "", "\u{fffd}!", ""]);
    assert_eq!(stream.finish().as_deref(), Ok("\u{fffd}"));
}

/// A vocabulary of words with two added tokens, of which `<e>` is normalized and not special.
fn lowercased() -> TokenizerFiles {
    let added = r#""special": true}, {"id": 3, "content": "<E>", "single_word": false, "lstrip":
        false, "rstrip": false, "normalized": true, "special": false}]"#;
    let json = WORDS.replace("POST", "null").replace("\"special\": true}]", added);
    files(&json.replace("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}"))
}

#[test]
fn added_tokens_are_decoded_as_they_are_written() {
    let tokenizer = Tokenizer::from_files(&lowercased()).expect("the file is whole");
    assert_eq!(tokenizer.encode("A <e>", SpecialTokens::Exclude), Ok(vec![0, 3]));
    let text = tokenizer.decode(&[0, 3, 2], SpecialTokens::Include).expect("ids have a text");
    assert_eq!(text, "a <E> <s>");
    let text = tokenizer.decode(&[0, 3, 2], SpecialTokens::Exclude).expect("ids have a text");
    assert_eq!(text, "a <E>");
}

#[test]
fn tokens_that_are_named_are_special_and_there() {
    let config = |config: &str| TokenizerFiles {
        tokenizer_config: Some(config.as_bytes().to_vec()),
        ..lowercased()
    };
    let named = config(r#"{"eos_token": "<E>", "pad_token": "[PAD]"}"#);
    let tokenizer = Tokenizer::from_files(&named).expect("the files are whole");
    assert_eq!(tokenizer.vocab_size(), 5);
    assert_eq!(tokenizer.encode("a [PAD] <E>", SpecialTokens::Exclude), Ok(vec![0, 4, 3]));
    let text = tokenizer.decode(&[0, 3, 4], SpecialTokens::Exclude).expect("ids have a text");
    assert_eq!(text, "a");
    // By its files it is another tokenizer only if texts have other ids.
    let hash = |files| Tokenizer::from_files(&files).expect("the files are whole").content_hash();
    assert_ne!(hash(named), hash(lowercased()));
    assert_eq!(hash(config(r#"{"eos_token": "<E>"}"#)), hash(lowercased()));
}

#[test]
fn the_class_of_llama_decides_what_stands_around_a_text() {
    let check = |class: &str, flags: &str, expected: &[u32]| {
        let config = format!(
            r#"{{"tokenizer_class": "{class}", "bos_token": "<s>", "eos_token": "<E>"{flags}}}"#
        );
        let mut named = lowercased();
        let json = String::from_utf8(named.tokenizer_json).expect("UTF-8");
        let json =
            json.replace("\"post_processor\": null", &format!("\"post_processor\": {TEMPLATE}"));
        named.tokenizer_json = json.into_bytes();
        named.tokenizer_config = Some(config.into_bytes());
        let tokenizer = Tokenizer::from_files(&named).expect("the files are whole");
        assert_eq!(
            tokenizer.encode("a", SpecialTokens::Include).as_deref(),
            Ok(expected),
            "{flags}"
        );
    };
    check("PreTrainedTokenizerFast", r#", "add_bos_token": false"#, &[2, 0]);
    check("LlamaTokenizerFast", "", &[2, 0]);
    check("LlamaTokenizer", r#", "add_bos_token": false, "add_eos_token": true"#, &[0, 3]);
    check("GemmaTokenizerFast", r#", "add_eos_token": true"#, &[2, 0, 3]);
}

#[test]
fn the_configuration_decides_on_a_space_in_front_and_on_special_tokens_in_a_text() {
    let encode = |has_space: bool, config: Option<&str>, text: &str| {
        let byte_level = format!(
            r#"{{"type": "ByteLevel", "add_prefix_space": {has_space}, "trim_offsets": true}}"#
        );
        let json = WORDS.replace("POST", "null").replace(r#"{"type": "Whitespace"}"#, &byte_level);
        let mut named = files(&json.replace(r#""b": 1"#, "\"\u{120}a\": 1"));
        named.tokenizer_config = config.map(|config| config.as_bytes().to_vec());
        let tokenizer = Tokenizer::from_files(&named).expect("the files are whole");
        tokenizer.encode(text, SpecialTokens::Exclude).ok()
    };
    let rows = [
        (true, None, 1),
        (false, None, 0),
        (true, Some("{}"), 0),
        (false, Some(r#"{"add_prefix_space": true}"#), 1),
        (true, Some(r#"{"add_prefix_space": true, "tokenizer_class": "LlamaTokenizer"}"#), 1),
        (true, Some(r#"{"tokenizer_class": "LlamaTokenizer"}"#), 1),
    ];
    for (has_space, config, expected) in rows {
        assert_eq!(encode(has_space, config, "a"), Some(vec![expected]), "{config:?}");
    }
    assert_eq!(encode(false, Some(r#"{"split_special_tokens": false}"#), "<s>"), Some(vec![2]));
    // Its parts are no words of the vocabulary.
    assert_eq!(encode(false, Some(r#"{"split_special_tokens": true}"#), "<s>"), None);
}
