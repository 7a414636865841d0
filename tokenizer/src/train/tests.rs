use std::collections::BTreeMap;

use proptest::prelude::*;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

use super::*;
use crate::{SpecialTokens, Tokenizer};

const TEXTS: [&str; 5] = [
    "the quick brown fox jumps over the lazy dog, the dog that the fox had seen\n",
    "she sells sea shells; the shells she sells are sea shells, she's sure\n\n",
    "naïve café, 12 345 of them — à la carte ☃ ☃ ☃ ",
    "    def fox(self):\n        return self.fox + 1\n",
    "",
];

fn request(vocab_size: usize, pattern: SplitPattern) -> TrainRequest {
    TrainRequest { pattern, ..TrainRequest::gpt2(vocab_size) }
}

fn trained(request: &TrainRequest, texts: &[&str]) -> TokenizerFiles {
    train(request, texts, |_| ()).expect("the texts can be learnt from")
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let texts: Vec<_> = TEXTS.iter().cycle().take(100).copied().collect();
    let one = trained(&request(400, SplitPattern::Gpt2), &texts);
    for threads in [2, 3, 8].map(|count| NonZeroUsize::new(count).expect("not zero")) {
        let several = TrainRequest { threads, ..request(400, SplitPattern::Gpt2) };
        assert_eq!(trained(&several, &texts), one);
    }
}

/// What the crate's trainer makes of the same texts. It equals ours unless one token comes about in
/// two ways, where the crate counts some pairs short.
#[test]
fn the_crates_trainer_gives_the_same_file() {
    let request = TrainRequest { min_frequency: 3, ..request(330, SplitPattern::Gpt2) };
    let mut trainer = BpeTrainer::builder()
        .vocab_size(request.vocab_size)
        .min_frequency(request.min_frequency)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut theirs = TokenizerBuilder::<
        BPE,
        tokenizers::NormalizerWrapper,
        ByteLevel,
        ByteLevel,
        ByteLevel,
    >::new()
    .with_model(BPE::default())
    .with_normalizer(None)
    .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
    .with_post_processor(Some(ByteLevel::new(true, false, true)))
    .with_decoder(Some(ByteLevel::new(true, true, true)))
    .build()
    .expect("the parts are all there");
    theirs.train(&mut trainer, TEXTS.iter()).expect("the texts can be learnt from");
    let expected = theirs.to_string(true).expect("it can be written");
    let found = trained(&request, &TEXTS).tokenizer_json;
    assert_eq!(String::from_utf8(found).expect("UTF-8"), expected);
}

/// The merges of words, each counted anew after each merge.
fn plain_merges(words: &BTreeMap<String, u64>, count: usize) -> Vec<[String; 2]> {
    let mut words: Vec<(Vec<String>, u64)> = words
        .iter()
        .map(|(word, count)| (word.chars().map(String::from).collect(), *count))
        .collect();
    let mut ids: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
    let mut merges = Vec::new();
    while ids.len() < 3 + count {
        let mut counts = BTreeMap::new();
        let id = |token: &String| ids.iter().position(|known| known == token).expect("known");
        for (word, count) in &words {
            for pair in word.windows(2) {
                *counts.entry((id(&pair[0]), id(&pair[1]))).or_insert(0) += count;
            }
        }
        let best = counts.iter().max_by_key(|(pair, count)| (**count, std::cmp::Reverse(**pair)));
        let Some(((left, right), _)) = best else { break };
        let sides = [ids[*left].clone(), ids[*right].clone()];
        let token = sides.concat();
        for (word, _) in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == sides[0] && word[at + 1] == sides[1] {
                    word.splice(at..at + 2, [token.clone()]);
                }
                at += 1;
            }
        }
        if !ids.contains(&token) {
            ids.push(token);
        }
        merges.push(sides);
    }
    merges
}

proptest! {
    #[test]
    fn merges_are_those_of_counting_anew(
        words in proptest::collection::btree_map("[abc]{1,9}", 1..50u64, 1..20),
        count in 0..20usize,
    ) {
        let text: String = words.iter().map(|(word, n)| format!("{word}\n").repeat(*n as usize)).collect();
        let request = TrainRequest {
            min_frequency: 1,
            special_tokens: Vec::new(),
            eos_token: None,
            ..TrainRequest::gpt2(256 + count)
        };
        let files = trained(&request, &[&text]);
        let json: serde_json::Value = serde_json::from_slice(&files.tokenizer_json).expect("JSON");
        let found: Vec<[String; 2]> =
            serde_json::from_value(json["model"]["merges"].clone()).expect("pairs");
        prop_assert_eq!(found, plain_merges(&words, count));
    }
}

#[test]
fn trained_tokenizers_load_and_give_back_their_texts() {
    for pattern in
        [SplitPattern::Gpt2, SplitPattern::Gpt2Digits, SplitPattern::Llama3, SplitPattern::Qwen2]
    {
        let files = trained(&request(280, pattern), &TEXTS);
        let tokenizer = Tokenizer::from_files(&files).expect("the files are whole");
        assert!(tokenizer.is_fast(), "{pattern:?}");
        assert_eq!(tokenizer.vocab_size(), 280);
        assert_eq!((tokenizer.eos_id(), tokenizer.bos_id()), (Some(0), Some(0)));
        for text in TEXTS {
            let ids = tokenizer.encode(text, SpecialTokens::Include).expect("every byte is known");
            assert!(ids.len() <= text.len());
            assert_eq!(tokenizer.decode(&ids, SpecialTokens::Include).as_deref(), Ok(text));
        }
    }
}

#[test]
fn progress_names_words_and_then_tokens() {
    let mut reports = Vec::new();
    let request = request(280, SplitPattern::Gpt2);
    train(&request, TEXTS, |progress| reports.push(progress))
        .expect("the texts can be learnt from");
    let bytes: u64 = TEXTS.iter().map(|text| text.len() as u64).sum();
    assert!(
        matches!(reports[0], TrainProgress::Words { bytes: read, words: 1.. } if read == bytes)
    );
    assert_eq!(reports.last(), Some(&TrainProgress::Merges { tokens: 280, vocab_size: 280 }));
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let check = |request: TrainRequest, texts: &[&str], expected: &str| {
        let error = train(&request, texts, |_| ()).expect_err("it is refused");
        assert_eq!(error.to_string(), expected);
    };
    let base = TrainRequest::gpt2(257);
    trained(&base, &["a"]);
    let small = "a vocabulary of 256 tokens is too small: 256 bytes and 1 special tokens need 257";
    check(TrainRequest::gpt2(256), &["a"], small);
    let twice = TrainRequest {
        vocab_size: 300,
        special_tokens: vec!["<a>".to_owned(), "<a>".to_owned()],
        ..base.clone()
    };
    let expected =
        "\"<a>\" cannot be a special token: expected texts of two characters or more, each once";
    check(twice, &["a"], expected);
    let other = TrainRequest { eos_token: Some("</s>".to_owned()), ..base.clone() };
    check(other, &["a"], "eos_token is \"</s>\", which is not among the special tokens");
    check(base, &["", ""], "the texts are empty");
}
