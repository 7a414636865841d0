//! Conversations that have no tokens, and templates that mark answers themselves.

use std::path::Path;

use zbelastic_tokenizer::MessageRole::{Assistant, System, User};
use zbelastic_tokenizer::{
    ChatError, Conversation, ConversationError, TemplateOptions, Tokenizer, TokenizerFiles,
};

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const MARKED: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}";
/// Leaves answers before the last one out, as templates of models that think do.
const FORGETFUL: &str = "{% for m in messages %}{% if loop.last or m.role != 'assistant' %}{{ m.role + ': ' + m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

const QWEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors/tokenizers/qwen_bpe");

fn tokenizer(template: Option<&str>) -> Tokenizer {
    let mut files = TokenizerFiles::read(Path::new(QWEN)).expect("the vector is whole");
    match template {
        Some(template) => files.chat_template = Some(template.as_bytes().to_vec()),
        None => files.tokenizer_config = None,
    }
    Tokenizer::from_files(&files).expect("the vector is whole")
}

fn conversation() -> Conversation {
    Conversation::new([
        (System, "s"),
        (User, "one?"),
        (Assistant, "\n first <|im_end|> \u{2028}"),
        (User, "two?"),
        (Assistant, ""),
        (User, "three?"),
    ])
}

#[test]
fn marks_and_rendering_by_parts_give_the_same_mask() {
    let options = TemplateOptions::default();
    let by_parts = tokenizer(Some(CHATML)).encode_chat(&conversation(), &options);
    let by_marks = tokenizer(Some(MARKED)).encode_chat(&conversation(), &options);
    let tokens = by_parts.expect("the template writes parts as it writes the whole");
    assert_eq!(Ok(&tokens), by_marks.as_ref());
    assert_eq!(tokens.ids.len(), tokens.mask.len());
    let decode = |ids: Vec<u32>| {
        let tokenizer = tokenizer(Some(CHATML));
        tokenizer
            .decode(&ids, zbelastic_tokenizer::SpecialTokens::Include)
            .expect("ids have a text")
    };
    let answers = tokens.ids.iter().zip(&tokens.mask).filter(|(_, is_answer)| **is_answer);
    let answers = decode(answers.map(|(id, _)| *id).collect());
    // The header's newline and the content's first one may be one token.
    assert_eq!(answers.trim_start(), "first <|im_end|> \u{2028}<|im_end|><|im_end|>");
}

#[test]
fn what_has_no_tokens_is_refused_with_the_message() {
    let encode = |template: Option<&str>, conversation: &Conversation| {
        let tokens = tokenizer(template).encode_chat(conversation, &TemplateOptions::default());
        tokens.expect_err("it is refused")
    };
    assert_eq!(encode(None, &conversation()), ChatError::NoTemplate);
    assert_eq!(encode(Some(FORGETFUL), &conversation()), ChatError::NoAnswer { message: 2 });
    let malformed = encode(Some("{% if %}"), &conversation());
    assert!(matches!(malformed, ChatError::Malformed { line: 1, .. }), "{malformed}");
    let refusing = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% endfor %}";
    let cause = "no system role".to_owned();
    assert_eq!(encode(Some(refusing), &conversation()), ChatError::Refused { message: 0, cause });
    let marked = Conversation::new([(Assistant, "a\u{fdd0}")]);
    assert_eq!(encode(Some(MARKED), &marked), ChatError::Noncharacter);
    let user = r#"{"role": "user", "content": "a"}"#;
    for line in [
        r#"{"messages": [{"role": "user", "content": "a\ufdd1"}]}"#.to_owned(),
        r#"{"messages": [{"role": "user", "content": [{"text": "\ufdd0"}]}]}"#.to_owned(),
        r#"{"messages": [{"role": "user", "content": "a", "\ufdd0": 1}]}"#.to_owned(),
        format!(r#"{{"messages": [{user}], "tools": [{{"name": "\ufdd1"}}]}}"#),
    ] {
        let read = Conversation::from_json(&line).expect("a conversation");
        assert_eq!(encode(Some(MARKED), &read), ChatError::Noncharacter, "{line}");
    }
}

#[test]
fn lines_that_are_no_conversations_are_refused_with_the_place() {
    let check = |line: &str, expected: &str| {
        let error = Conversation::from_json(line).expect_err("it is refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    check("{\"messages\": 1}", "column 14: ");
    check("{\"text\": \"a\"}", "column ");
    let user = r#"{"role": "user", "content": "a"}"#;
    check(&format!("{{\"messages\": [{user}, {{}}]}}"), "message 1 has no role");
    let gpt = r#"{"role": "gpt", "content": "a"}"#;
    check(
        &format!("{{\"messages\": [{user}, {gpt}]}}"),
        "message 1 has the role \"gpt\"; expected",
    );
    let empty = r#"{"role": "assistant", "content": null}"#;
    let expected = "message 1 has neither a content nor tool_calls";
    check(&format!("{{\"messages\": [{user}, {empty}]}}"), expected);
    let line = r#"{"messages": [{"role": "assistant", "tool_calls": []}], "id": 3}"#;
    let called = Conversation::from_json(line).expect("a call needs no content");
    assert_eq!((called.len(), called.roles()), (1, &[Assistant][..]));
    assert!(matches!(Conversation::from_json(""), Err(ConversationError::Malformed { .. })));
}

#[test]
fn messages_are_read_from_the_field_that_is_named() {
    let line = r#"{"id": 3, "turns": [{"role": "user", "content": "Hi"}], "tools": null}"#;
    let conversation = Conversation::from_json_field(line, "turns").expect("a conversation");
    assert_eq!(conversation.roles(), [User]);
    assert_eq!(
        Conversation::from_json_field(line, "messages").err(),
        Conversation::from_json(line).err()
    );
    let missing = Conversation::from_json_field(line, "id").expect_err("a number").to_string();
    assert!(missing.contains("missing list `id`"), "{missing}");
}

#[test]
fn tools_reach_the_template_as_a_list_whatever_a_data_set_has_them_in() {
    let template = "{% if tools is not none %}{{ tools | tojson }}{% endif %}";
    let tokenizer = tokenizer(Some(template));
    let line = |tools: &str| {
        let messages = r#"[{"role": "user", "content": "Hi"}]"#;
        format!("{{\"messages\": {messages}, \"turns\": {messages}, \"tools\": {tools}}}")
    };
    let both = |tools: &str| {
        let line = line(tools);
        ["messages", "turns"].map(|field| Conversation::from_json_field(&line, field))
    };
    let check = |tools: &str, expected: &str| {
        for conversation in both(tools) {
            let conversation = conversation.expect("a conversation");
            let text = tokenizer.apply_chat_template(&conversation, &TemplateOptions::default());
            assert_eq!(text.as_deref(), Ok(expected), "{tools}");
        }
    };
    check(r#"[{"type": "function", "a": 1}]"#, r#"[{"type": "function", "a": 1}]"#);
    check(r#""[{\"type\":\"function\",\"a\":1}]""#, r#"[{"type": "function", "a": 1}]"#);
    check("null", "");
    check(r#""null""#, "");
    check("[]", "[]");
    check(r#""""#, "[]");
    let refused = |tools: &str, expected: &str| {
        for conversation in both(tools) {
            let error = conversation.expect_err("no tools").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    };
    refused(r#""[{""#, "tools are a text that is no JSON (EOF");
    refused(r#"["a"]"#, "tools are a list of other things; expected a list of JSON schemas");
    refused("{}", "tools are map; ");
    refused("3", "tools are number; ");
}

#[test]
fn conversations_with_tools_have_the_template_that_is_named_for_them() {
    let mut files = TokenizerFiles::read(Path::new(QWEN)).expect("the vector is whole");
    let named = r#"{"chat_template": [{"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools | length }}"}]}"#;
    files.tokenizer_config = Some(named.as_bytes().to_vec());
    let tokenizer = Tokenizer::from_files(&files).expect("the vector is whole");
    let check = |tools: &str, expected: &str| {
        let line = format!(r#"{{"messages": [{{"role": "user", "content": "a"}}]{tools}}}"#);
        let conversation = Conversation::from_json(&line).expect("a conversation");
        let text = tokenizer.apply_chat_template(&conversation, &TemplateOptions::default());
        assert_eq!(text.as_deref(), Ok(expected));
    };
    check("", "plain");
    check(r#", "tools": [{"type": "function"}]"#, "with 1");
}
