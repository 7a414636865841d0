//! `cases.jsonl` and `decode_cases.jsonl` beside a `tokenizer.json`.

use std::num::NonZeroUsize;
use std::path::Path;

use serde::Deserialize;
use zbelastic_tokenizer::{DecodeStream, SpecialTokens, Tokenizer};

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_with_special: Vec<u32>,
    decoded: String,
    decoded_without_special: String,
}

#[derive(Deserialize)]
struct DecodeCase {
    ids: Vec<u32>,
    decoded: String,
}

pub(crate) fn ids_and_texts_are_those_of_tokenizers(folder: &Path) {
    let tokenizer = Tokenizer::open(folder).expect("the tokenizer is understood");
    let cases: Vec<Case> = crate::lines(&folder.join("cases.jsonl"));
    cases.iter().for_each(|case| check_case(&tokenizer, case));
    check_threads(&tokenizer, &cases);
    for case in crate::lines::<DecodeCase>(&folder.join("decode_cases.jsonl")) {
        let found = tokenizer.decode(&case.ids, SpecialTokens::Include);
        assert_eq!(found.as_ref(), Ok(&case.decoded), "{:?}", case.ids);
        check_stream(&tokenizer, &case.ids, &case.decoded);
    }
}

fn check_case(tokenizer: &Tokenizer, case: &Case) {
    let text = &case.text;
    let encode = |special| tokenizer.encode(text, special).expect("the text has ids");
    assert_eq!(encode(SpecialTokens::Exclude), case.ids, "{text:?}");
    assert_eq!(encode(SpecialTokens::Include), case.ids_with_special, "{text:?}");
    let encoding = tokenizer.encode_with_offsets(text).expect("the text has ids");
    assert_eq!(encoding.ids, case.ids, "{text:?}");
    assert!(encoding.offsets.iter().all(|range| text.get(range.clone()).is_some()), "{text:?}");
    let decode = |special| tokenizer.decode(&case.ids, special).expect("the ids have a text");
    assert_eq!(decode(SpecialTokens::Include), case.decoded, "{text:?}");
    assert_eq!(decode(SpecialTokens::Exclude), case.decoded_without_special, "{text:?}");
    check_stream(tokenizer, &case.ids, &case.decoded);
}

/// Many at once, on several threads, give what one after the other gives.
fn check_threads(tokenizer: &Tokenizer, cases: &[Case]) {
    let texts: Vec<_> = cases.iter().map(|case| &case.text).collect();
    let expected: Vec<_> = cases.iter().map(|case| case.ids_with_special.clone()).collect();
    for threads in [1, 3].map(|count| NonZeroUsize::new(count).expect("not zero")) {
        let found = tokenizer.encode_documents(&texts, SpecialTokens::Include, threads);
        assert!(found.is_ok_and(|found| found == expected), "on {threads} threads");
    }
}

/// One by one, ids give the text of all; bytes that are no UTF-8 may be split in another way.
fn check_stream(tokenizer: &Tokenizer, ids: &[u32], decoded: &str) {
    let mut stream = DecodeStream::new(tokenizer, SpecialTokens::Include);
    let mut text = String::new();
    for id in ids {
        text += &stream.push(*id).expect("the ids have a text");
    }
    text += &stream.finish().expect("the ids have a text");
    if !decoded.contains('\u{fffd}') {
        assert_eq!(text, decoded, "{ids:?}");
    }
}
