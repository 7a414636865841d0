//! Files of corpora, stores and tokenizers.

use super::texts;
use crate::targets::{data, tokenizer};

/// The same documents in each format, as the tests of `data` have them.
macro_rules! documents {
    ($ending:literal) => {
        include_bytes!(concat!(
            "../../../../data/tests/oracles/vectors/datasets/documents",
            $ending
        ))
        .to_vec()
    };
}

pub fn plain_texts() -> Vec<Vec<u8>> {
    texts(&["", "one\ntwo%%three", "%%%\u{feff}\r\n\0"])
}

pub fn json_lines() -> Vec<Vec<u8>> {
    texts(&[
        "{\"text\": \"a\\u00e9\\ud83d\\ude00\"}\n\n{\"id\": 1, \"text\": \"\"}\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], \"tools\": []}",
    ])
}

pub fn gzip_lines() -> Vec<Vec<u8>> {
    vec![documents!(".jsonl.gz")]
}

pub fn zstd_lines() -> Vec<Vec<u8>> {
    vec![documents!(".jsonl.zst")]
}

pub fn parquet_rows() -> Vec<Vec<u8>> {
    vec![documents!(".parquet")]
}

/// Ids without a header, and with each of llm.c's.
pub fn token_files() -> Vec<Vec<u8>> {
    let header = |words: [u32; 3]| {
        let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        header.resize(1024, 0);
        header
    };
    let gpt2 = [header([20_240_520, 1, 2]), vec![7, 0, 8, 0]].concat();
    let llama3 = [header([20_240_801, 7, 1]), vec![7, 0, 0, 0]].concat();
    vec![vec![7, 0, 8, 0], gpt2, llama3]
}

pub fn store_manifests() -> Vec<Vec<u8>> {
    let hash = "0123456789abcdef".repeat(4);
    let content = format!(
        "{{\"version\":1,\"tokenizer\":\"{hash}\",\"vocabulary\":300,\"end_of_text\":null,\
         \"sources\":{{\"documents\":0,\"empty\":0,\"bad\":0}},\"shards\":[]}}"
    );
    vec![content.into_bytes()]
}

pub fn shards() -> Vec<Vec<u8>> {
    vec![data::shard()]
}

pub fn journals() -> Vec<Vec<u8>> {
    vec![data::journal()]
}

pub fn tokenizers() -> Vec<Vec<u8>> {
    let files = tokenizer::files();
    let config = files.tokenizer_config.unwrap_or_default();
    let vector = include_bytes!(
        "../../../../tokenizer/tests/oracles/vectors/tokenizers/llama2_bpe/tokenizer.json"
    );
    vec![[files.tokenizer_json, vec![0], config].concat(), vector.to_vec()]
}

pub fn templates() -> Vec<Vec<u8>> {
    texts(&[
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{%- for m in messages -%}{% if m['role'] == 'assistant' %}{% generation %}\
         {{ m.content.strip() }}{% endgeneration %}{% endif %}{{ m | tojson(indent=2) }}{% endfor %}",
    ])
}

pub fn chats() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"messages": [{"role": "user", "content": "b"}], "tools": "[{\"type\": \"function\"}]"}"#,
        r#"{"messages": [{"role": "assistant", "tool_calls": [], "content": null}], "id": 3}"#,
    ])
}
