//! `NAME.jsonl`: what a chat template makes of each line of `conversations.jsonl`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use zbelastic_tokenizer::{Conversation, TemplateOptions, Tokenizer};

const CONVERSATIONS: &str = "conversations.jsonl";
/// The tokenizers of templates that are not named like theirs.
const TOKENIZERS: [(&str, &str); 2] = [("chatml", "qwen_bpe"), ("llama3", "llama3_bpe")];

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    mask: Vec<u8>,
    prompt_text: String,
}

pub(crate) fn is_case(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jsonl") && !path.ends_with(CONVERSATIONS)
}

fn tokenizer_folder(cases: &Path) -> PathBuf {
    let name = cases.file_stem().expect("a case has a name").to_string_lossy();
    let row = TOKENIZERS.iter().find(|row| row.0 == name);
    let folder = cases.parent().and_then(Path::parent).expect("cases are in a folder of a folder");
    folder.join("tokenizers").join(row.map_or(&name[..], |row| row.1))
}

pub(crate) fn texts_ids_and_masks_are_those_of_transformers(path: &Path) {
    let tokenizer = Tokenizer::open(&tokenizer_folder(path)).expect("the tokenizer is understood");
    let cases: Vec<Case> = crate::lines(path);
    let conversations = crate::raw_lines(&path.with_file_name(CONVERSATIONS));
    assert_eq!(cases.len(), conversations.len());
    for (case, line) in cases.iter().zip(conversations) {
        let conversation = Conversation::from_json(&line).expect("a conversation");
        let prompt = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
        let text = tokenizer.apply_chat_template(&conversation, &prompt);
        assert_eq!(text.as_ref(), Ok(&case.prompt_text), "{line}");
        let tokens = tokenizer.encode_chat(&conversation, &TemplateOptions::default());
        let tokens = tokens.unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(tokens.text, case.text);
        assert_eq!(tokens.ids, case.ids, "{line}");
        let mask: Vec<_> = tokens.mask.iter().map(|is_answer| u8::from(*is_answer)).collect();
        assert_eq!(mask, case.mask, "{line}");
    }
}
