//! The fast path of byte-level BPE against the crate, over texts that are drawn.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use zbelastic_tokenizer::train::{TrainRequest, train};
use zbelastic_tokenizer::{SpecialTokens, SplitPattern, Tokenizer};

const CORPUS: &str = include_str!("../../docs/architecture.md");
const PATTERNS: [SplitPattern; 4] =
    [SplitPattern::Gpt2, SplitPattern::Gpt2Digits, SplitPattern::Llama3, SplitPattern::Qwen2];

/// A trained tokenizer of each pattern, and Qwen's with form C and added tokens of all kinds.
static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let trained = PATTERNS.map(|pattern| {
        let request = TrainRequest { pattern, ..TrainRequest::gpt2(900) };
        let files = train(&request, [CORPUS], |_| ()).expect("the page can be learnt from");
        Tokenizer::from_files(&files).expect("the files are whole")
    });
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/vectors/tokenizers");
    let qwen = Tokenizer::open(&vectors.join("qwen_bpe")).expect("the vector is whole");
    trained.into_iter().chain([qwen]).collect()
});

fn check(text: &str) {
    for tokenizer in TOKENIZERS.iter() {
        assert!(tokenizer.is_fast());
        let fast = tokenizer.encode(text, SpecialTokens::Exclude).expect("every byte is known");
        let slow = tokenizer.encode_with_offsets(text).expect("every byte is known");
        assert_eq!(fast, slow.ids, "{text:?}");
    }
}

#[test]
fn pages_have_the_ids_of_the_crate() {
    check(CORPUS);
    check(&CORPUS.replace('\n', "\r\n\t"));
    check(&"=".repeat(3000));
    check(&"ab".repeat(3000));
    check(&" ".repeat(3000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn drawn_texts_have_the_ids_of_the_crate(
        text in "(\\PC|[ -~]|[a-z]{1,7}|[0-9]{1,5}|[\\s]{1,4}|'([sdmtSDMTſ]|ll|ve|re|LL|Ve|RE)|[\u{300}-\u{36f}]|[àéô가-힣一-龥]|[\u{0}-\u{20}]|[\u{80}-\u{a0}]|[½²Ⅷ٣]|<\\|(endoftext|im_start|im_end)\\|>|</?tool_call>| {0,3}<blank>){0,24}",
    ) {
        check(&text);
    }
}
