//! Documents as a tokenizer of files encodes them.

use std::fs;
use std::path::Path;

use zbelastic_data::document::{Chat, Document, TextPart};
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments, EncodeError};
use zbelastic_tokenizer::train::{TrainRequest, train};

use super::TokenizerEncoder;

const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: \
    {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}\
    {% else %}{{ message.content }}{% endif %}\n{% endfor %}";

/// A small tokenizer in a folder.
fn write_tokenizer(folder: &Path) {
    let request = TrainRequest::gpt2(300);
    let files = train(&request, ["the cat and the hat and the mat"], |_| {}).expect("a text");
    files.write(folder).expect("writable");
}

fn chat(field: &str) -> Document {
    let record = format!(
        r#"{{"{field}": [{{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Yes"}}]}}"#
    );
    Document::Chat(Chat { record, messages_field: field.to_owned(), message_count: 2 })
}

#[test]
fn the_built_in_tokenizer_is_the_encoder_of_bytes() {
    let encoder = TokenizerEncoder::open(Path::new("bytes")).expect("built in");
    for text in ["", "a\0é😀\r\n"] {
        let document = Document::Text(TextPart::whole(text.to_owned()));
        assert_eq!(encoder.encode(&document), BytesEncoder.encode(&document));
    }
    assert_eq!(encoder.tokenizer_hash(), BytesEncoder.tokenizer_hash());
    assert_eq!(encoder.vocabulary(), BytesEncoder.vocabulary());
    assert_eq!(encoder.end_of_text(), BytesEncoder.end_of_text());
    assert_eq!(encoder.encode(&chat("messages")), Err(EncodeError::NoChatTemplate));
}

#[test]
fn parts_have_the_ids_of_their_texts_and_the_end_is_left_to_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    write_tokenizer(folder.path());
    let encoder = TokenizerEncoder::open(folder.path()).expect("a tokenizer");
    assert_eq!(encoder.end_of_text(), Some(0));
    let whole = Document::Text(TextPart::whole("the cat".to_owned()));
    let encoded = encoder.encode(&whole).expect("any text");
    assert_eq!((encoder.decode(&encoded.ids).as_str(), encoded.loss_mask), ("the cat", None));
    assert!(!encoded.ids.contains(&0), "{:?}", encoded.ids);
}

#[test]
fn a_beginning_token_stands_before_first_parts_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    write_tokenizer(folder.path());
    let path = folder.path().join("tokenizer.json");
    let text = fs::read_to_string(&path).expect("written");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let special = serde_json::json!({ "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } });
    let sequence = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [special, sequence], "pair": [sequence, sequence],
        "special_tokens": {
            "<|endoftext|>": { "id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"] },
        },
    });
    fs::write(&path, json.to_string()).expect("writable");
    let encoder = TokenizerEncoder::open(&path).expect("a tokenizer");
    let part = |is_first| TextPart { text: "the".to_owned(), is_first, is_last: false };
    let encoded = [true, false]
        .map(|is_first| encoder.encode(&Document::Text(part(is_first))).expect("any text"));
    assert_eq!(encoded[0].ids[0], 0);
    assert_eq!(encoded[0].ids[1..], encoded[1].ids);
}

#[test]
fn chats_are_rendered_and_what_the_assistant_writes_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    write_tokenizer(folder.path());
    let encoder = TokenizerEncoder::open(folder.path()).expect("a tokenizer");
    let no_template = encoder.tokenizer_hash();
    assert_eq!(encoder.encode(&chat("messages")), Err(EncodeError::NoChatTemplate));
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).expect("writable");
    let encoder = TokenizerEncoder::open(folder.path()).expect("a tokenizer");
    assert_ne!(encoder.tokenizer_hash(), no_template);
    let encoded =
        ["messages", "turns"].map(|field| encoder.encode(&chat(field)).expect("rendered"));
    assert_eq!(encoded[0], encoded[1]);
    let mask = encoded[0].loss_mask.as_ref().expect("a chat");
    let ids = encoded[0].ids.iter().zip(mask);
    let answer: Vec<u32> = ids.filter(|(_, counts)| **counts).map(|(id, _)| *id).collect();
    assert!(encoder.decode(&answer).contains("Yes"), "{:?}", encoder.decode(&answer));
    assert!(encoder.decode(&encoded[0].ids).starts_with("<|endoftext|>user: Hi"));
    let unknown = chat("messages");
    let Document::Chat(unknown) = unknown else { unreachable!("a chat") };
    let record = unknown.record.replace("assistant", "gpt");
    let unknown = Document::Chat(Chat { record, ..unknown });
    let error = encoder.encode(&unknown).expect_err("no role").to_string();
    assert!(error.contains("message 1 has the role \"gpt\""), "{error}");
}

#[test]
fn the_hash_does_not_depend_on_a_temperature() {
    let folder = tempfile::tempdir().expect("a folder");
    write_tokenizer(folder.path());
    let hash = |config: &str| {
        fs::write(folder.path().join("generation_config.json"), config).expect("writable");
        TokenizerEncoder::open(folder.path()).expect("a tokenizer").tokenizer_hash()
    };
    let plain = hash(r#"{"eos_token_id": 0}"#);
    assert_eq!(hash(r#"{"eos_token_id": 0, "temperature": 0.6}"#), plain);
    assert_ne!(hash(r#"{"eos_token_id": [0, 1]}"#), plain);
}

#[test]
fn a_template_that_writes_the_day_has_the_one_that_is_given() {
    let folder = tempfile::tempdir().expect("a folder");
    write_tokenizer(folder.path());
    let template = format!("{{{{ strftime_now('%d %B %Y') }}}}{TEMPLATE}");
    fs::write(folder.path().join("chat_template.jinja"), template).expect("writable");
    let encoder = || TokenizerEncoder::open(folder.path()).expect("a tokenizer");
    assert_eq!(encoder().encode(&chat("messages")), Err(EncodeError::NoDate));
    let dated = encoder().with_date("2026-11-29".parse().ok());
    let encoded = dated.encode(&chat("messages")).expect("it has a day");
    assert!(dated.decode(&encoded.ids).contains("29 November 2026"));
    assert_eq!((encoder().settings(), dated.settings().is_some()), (None, true));
    assert_eq!(encoder().tokenizer_hash(), dated.tokenizer_hash());
}
