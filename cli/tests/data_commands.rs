//! `tokenizer train`, `data prepare` and `data show` as a person runs them.

mod common;
#[path = "common/site.rs"]
mod site;

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use common::{refusal, text};
use rustix::process::{Pid, Signal, kill_process};
use site::Site;

/// Three documents, of which the last is empty, as `gzip` compresses them.
const CORPUS_GZ: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x50\x0a\xc9\
    \x48\x55\x48\x4e\x2c\x51\x28\x4e\x2c\xd1\x53\xaa\xe5\xaa\x86\x4b\x38\x2a\x14\x64\x16\xa4\
    \xe6\x64\xe6\xa5\x2a\x64\x24\x16\x2b\x14\x97\x24\xa6\xa7\x16\xa3\x2a\x01\x72\x00\x4f\x84\
    \xdb\x52\x49\x00\x00\x00";

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {% generation %}\
    {{ message.content }}{% endgeneration %}\n{% endfor %}";

impl Site {
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).expect("writable");
    }

    /// A tokenizer of 400 tokens of two pages of the documentation, in `tok`.
    fn with_tokenizer() -> Self {
        let site = Self::new();
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let docs = docs.display();
        let pages = format!("{docs}/run-folder.md {docs}/waiting-times.md");
        let special = "--special <|im_start|> <|im_end|>";
        let made = site.printed(&format!(
            "tokenizer train --vocab 400 --to tok --text {pages} {special} --threads 2"
        ));
        assert!(made.starts_with("✔ 400 tokens from "), "{made}");
        site
    }
}

#[test]
fn a_tokenizer_is_trained_a_store_made_with_it_and_shown() {
    let site = Site::with_tokenizer();
    site.write("a.txt", "A worker holds a stage.\n\u{1b}[2J");
    site.write("b.jsonl.gz", CORPUS_GZ);
    let made = site.json("data prepare a.txt b.jsonl.gz --tokenizer tok --to store --threads 2");
    assert_eq!((&made["documents"], &made["empty"]), (&4.into(), &1.into()), "{made}");
    assert_eq!((&made["vocabulary"], &made["end_of_text"]), (&400.into(), &0.into()), "{made}");
    let made = site.printed("data prepare a.txt b.jsonl.gz --tokenizer tok --to again --threads 1");
    assert!(made.contains("documents  4, 1 empty"), "{made}");
    for name in ["manifest.json", "00000.shard"] {
        let read = |store: &str| fs::read(site.path(store).join(name)).expect("readable");
        assert_eq!(read("store"), read("again"), "{name}");
    }
    let line = "data show store --tokenizer tok --samples 1 --window 12";
    let shown = site.json(line);
    let document = &shown["samples"][0]["documents"][0];
    assert!(document["text"].as_str().expect("a text").starts_with("A worker"), "{shown}");
    assert_eq!(shown["samples"][0]["ids"].as_array().map(Vec::len), Some(13));
    let shown = site.printed("data show store --tokenizer tok --samples 1 --window 32");
    assert!(shown.contains("\n  │ A worker holds a stage.\n"), "{shown}");
    assert!(shown.contains("\\u{1b}[2J<|endoftext|>"), "{shown}");
    let ids = site.printed("data show store --samples 1 --window 12");
    assert!(ids.contains("note: these are ids"), "{ids}");
    site.refused("data show store --tokenizer bytes", 2, &["the store's has", "try: "]);
}

#[test]
fn a_store_of_bytes_needs_no_tokenizer() {
    let site = Site::new();
    site.write("a.txt", "one two three");
    site.write("b.txt", "one%%two%%three");
    let made = site.json("data prepare b.txt --separator %% --to three");
    assert_eq!((&made["documents"], &made["tokens"]), (&3.into(), &11.into()), "{made}");
    site.printed("data prepare a.txt --to store");
    let shown = site.printed("data show store --window 7 --samples 1");
    assert!(shown.contains("windows    1 of 7 tokens"), "{shown}");
    assert!(shown.contains("  │ one two \n"), "{shown}");
    let shown = site.printed("data show store");
    assert!(shown.contains("note: the store is shorter than a window"), "{shown}");
}

#[test]
fn chats_are_rendered_by_the_template_beside_the_tokenizer() {
    let site = Site::with_tokenizer();
    let chat = r#"{"turns": [{"role": "user", "content": "Hi"}]}"#;
    site.write("chat.jsonl", chat);
    let line = "data prepare chat.jsonl --field turns --tokenizer tok --to store";
    site.refused(line, 2, &["chat.jsonl:1: ", "no chat template", "try: ", "chat_template.jinja"]);
    site.write("tok/chat_template.jinja", TEMPLATE);
    site.printed(line);
    let shown = site.json("data show store --tokenizer tok --window 4 --samples 1");
    assert_ne!(shown["samples"][0]["loss"][0], serde_json::json!([0, 4]), "{shown}");
}

#[test]
fn what_counts_in_the_loss_is_shown_in_brackets_where_there_is_no_terminal() {
    let site = Site::new();
    site.write("a.txt", "héy%%yes\n%%");
    site.printed("data prepare a.txt --separator %% --to store");
    let line = "data show store --samples 1 --window 7";
    let shown = site.printed(line);
    assert!(shown.contains("window 0: 7 of 7 targets count in the loss\n"), "{shown}");
    assert!(!shown.contains('⟦'), "all counts: {shown}");
    let shown = site.printed(&format!("{line} --packing documents"));
    assert!(shown.contains("window 0: 6 of 7 targets count in the loss: ⟦these⟧\n"), "{shown}");
    assert!(shown.contains("  document 0, ids 0 to 3\n  │ h⟦éy⟧\n"), "{shown}");
    assert!(shown.contains("  document 1, ids 4 to 7\n  │ y⟦es⟧\n"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = site.json(&format!("{line} --packing documents"));
    assert_eq!(shown["samples"][0]["loss"], serde_json::json!([[0, 3], [4, 7]]), "{shown}");
    site.refused(&format!("{line} --packing nonsense"), 2, &["concat, documents"]);
}

#[test]
fn chats_that_cannot_be_rendered_are_bad_ones() {
    let site = Site::with_tokenizer();
    let chat = |role: &str, content: &str| {
        format!("{{\"messages\": [{{\"role\": \"{role}\", \"content\": {content}}}]}}\n")
    };
    let good = chat("user", "\"Hi\"");
    let others = [("system", "\"Hi\""), ("gpt", "\"Hi\""), ("user", "null"), ("user", "3")];
    let others: String = others.map(|(role, content)| chat(role, content)).concat();
    site.write("chat.jsonl", good.clone() + &others + &good);
    let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no \
        system role') }}{% endif %}{{ m.content.strip() }}{% endfor %}";
    site.write("tok/chat_template.jinja", template);
    let line = "data prepare chat.jsonl --tokenizer tok --to store";
    let parts = ["  chat.jsonl:2: ", "no system role", "; --skip-bad counts such records"];
    site.refused(line, 2, &parts);
    let made = site.json(&format!("{line} --skip-bad"));
    assert_eq!((&made["documents"], &made["bad"]), (&2.into(), &4.into()), "{made}");
    for wrong in ["{% if %}", "{{ nonsense() }}"] {
        site.write("tok/chat_template.jinja", wrong);
        let line = "data prepare chat.jsonl --tokenizer tok --to none --skip-bad";
        site.refused(line, 2, &["  chat.jsonl:1: ", "try: mend the template"]);
        assert!(!site.path("none").exists(), "nothing is half written");
    }
}

#[test]
fn sources_that_give_no_token_are_said_to() {
    let site = Site::new();
    site.write("empty.jsonl", "{\"text\": \"\"}\n");
    site.write("bad.jsonl", "{\n");
    site.write("none.jsonl", "\n");
    let check = |name: &str, why: &str| {
        let made = site.printed(&format!("data prepare {name}.jsonl --skip-bad --to {name}"));
        let note = format!("\nnote: not one token, so nothing can be trained on it: {why}\n");
        assert!(made.contains("tokens     0 in 0 shards") && made.contains(&note), "{made}");
    };
    check("empty", "the documents have no text");
    check("bad", "all that the sources hold is bad");
    check("none", "the sources hold no document");
    site.write("a.txt", "a");
    let made = site.printed("data prepare a.txt --to one");
    assert!(!made.contains("note: not one token"), "{made}");
}

/// Starts `line` and ends it with `signal` behind the first shard.
fn end_behind_first_shard(site: &Site, line: &str, signal: Signal) -> Output {
    let mut command = site.command(line);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it runs");
    let began = Instant::now();
    while !site.path("store/00000.shard").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no shard");
        thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), signal).expect("it is alive");
    child.wait_with_output().expect("it ends")
}

#[test]
fn what_was_interrupted_or_killed_goes_on_to_the_same_store() {
    let site = Site::new();
    let lines: String = (0..600_000).map(|line| format!("line {line} of the corpus\n")).collect();
    site.write("a.txt", lines);
    site.printed("data prepare a.txt --to whole --shard-tokens 100000");
    let line = "data prepare a.txt --to store --shard-tokens 100000";
    let Output { status, stderr, .. } = end_behind_first_shard(&site, line, Signal::INT);
    let message = text(&stderr);
    assert_eq!(status.code(), Some(130), "{message}");
    assert!(message.contains("finishing the batch"), "{message}");
    assert!(message.contains("error: interrupted\n  store: keeps "), "{message}");
    assert!(message.contains("\n  try: the same command goes on behind them"), "{message}");
    site.refused("data show store", 6, &["is not finished", "try: "]);
    let other = ["has finished shards of another request", "try: the same request again, --to"];
    site.refused("data prepare a.txt --to store --shard-tokens 200000", 6, &other);
    assert_eq!(end_behind_first_shard(&site, line, Signal::KILL).status.code(), None);
    site.printed(line);
    let manifest = |store: &str| fs::read(site.path(store).join("manifest.json")).expect("whole");
    assert_eq!(manifest("store"), manifest("whole"));
    site.refused(line, 6, &["there is a store already", "zbelastic data show store"]);
}

#[test]
fn what_is_wrong_with_a_corpus_is_said_with_its_place() {
    let site = Site::new();
    site.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\n{\"body\": \"c\"}\n");
    let to = "--to store";
    site.refused(&format!("data prepare nowhere {to}"), 5, &["nowhere does not exist", "try: "]);
    site.refused(&format!("data prepare bad.jsonl {to}"), 2, &["  bad.jsonl:2: is no JSON object"]);
    site.write("fields.jsonl", "{\"body\": \"c\", \"id\": \"d\"}\n");
    let parts = ["fields.jsonl:1: has no field title, only body, id", "try: --field NAME"];
    site.refused(&format!("data prepare fields.jsonl --field title {to}"), 2, &parts);
    site.write("latin.txt", b"caf\xe9");
    site.refused(&format!("data prepare latin.txt {to}"), 2, &["latin.txt: byte 3 is not UTF-8"]);
    site.write("a.pdf", "");
    site.refused(&format!("data prepare a.pdf {to}"), 2, &["a.pdf has no known format", "try: "]);
    let made = site.json(&format!("data prepare bad.jsonl --skip-bad {to}"));
    assert_eq!((&made["documents"], &made["bad"]), (&1.into(), &2.into()), "{made}");
}

#[test]
fn files_of_the_store_itself_are_no_sources() {
    let site = Site::new();
    let lines: String = (0..600_000).map(|line| format!("line {line} of the corpus\n")).collect();
    site.write("a.txt", lines);
    site.write("bad.jsonl", "{");
    site.refused("data prepare bad.jsonl --to store", 2, &["bad.jsonl:1: is no JSON object"]);
    assert!(!site.path("store").exists(), "nothing is half written");
    let line = "data prepare . --to store --skip-bad --shard-tokens 100000";
    assert_eq!(end_behind_first_shard(&site, line, Signal::KILL).status.code(), None);
    let made = site.printed(line);
    assert!(made.contains("documents  1, 1 bad ones left out"), "{made}");
    assert!(made.contains("note: left out of the sources: 1 file in store itself"), "{made}");
}

#[test]
fn what_is_wrong_with_a_tokenizer_or_a_folder_is_said() {
    let site = Site::new();
    site.write("a.txt", "one two three");
    let prepare = "data prepare a.txt --to store --tokenizer";
    site.refused(&format!("{prepare} nowhere"), 5, &["nowhere: there is no tokenizer.json", "try"]);
    fs::create_dir(site.path("broken")).expect("a folder");
    site.write("broken/tokenizer.json", "{\"model\": ");
    site.refused(&format!("{prepare} broken"), 2, &["broken: tokenizer.json, line 1 column"]);
    site.refused("data prepare a.txt --to broken", 6, &["other files", "try: --to a new folder"]);
    site.refused("data show broken", 5, &["no token store in broken", "try: "]);
    site.refused("data show nowhere", 5, &["no token store in nowhere"]);
    let train = "tokenizer train --text a.txt";
    site.refused(&format!("{train} --vocab 300 --to broken"), 6, &["is there already", "try: "]);
    site.refused(&format!("{train} --vocab 9 --to tok"), 2, &["--vocab: ", "try: --vocab 257"]);
    let special = format!("{train} --vocab 300 --to tok --special x");
    site.refused(&special, 2, &["--special: ", "cannot be a special token"]);
    site.write("empty.txt", "");
    site.refused("tokenizer train --text empty.txt --vocab 300 --to tok", 2, &["texts are empty"]);
    site.write("ids.bin", [0; 4]);
    site.refused("tokenizer train --text ids.bin --vocab 300 --to tok", 2, &["ids.bin: holds"]);
    site.write("bad.jsonl", "{");
    let mut command = site.command("tokenizer train --text bad.jsonl --vocab 300 --to tok");
    let message = refusal(&mut command, 2);
    assert!(message.contains("bad.jsonl:1: ") && !message.contains("--skip-bad"), "{message}");
    let made = site.printed(&format!("{train} --vocab 300 --to tok"));
    assert!(made.contains("note: not 300: no other pair"), "{made}");
}

/// Bytes that were altered are found by reading every shard, and by that alone.
#[test]
fn a_store_is_verified_shard_by_shard() {
    let site = Site::new();
    for name in ["a.txt", "b.txt", "c.txt"] {
        // More than is encoded at once.
        site.write(name, "one two three four\n".repeat(16_000));
    }
    site.printed("data prepare a.txt b.txt c.txt --to store --shard-tokens 1000");
    let shards = site.json("data show store")["shards"].as_u64().expect("a count");
    assert!(shards > 1, "{shards}");
    let shown = site.printed("data show store --verify");
    assert!(shown.contains("verified   every shard"), "{shown}");
    assert_eq!(site.json("data show store --verify")["verified"], true);
    for shard in ["store/00000.shard", "store/00001.shard"] {
        let mut bytes = fs::read(site.path(shard)).expect("whole");
        bytes[0] ^= 1;
        fs::write(site.path(shard), bytes).expect("writable");
    }
    let shown = site.printed("data show store");
    assert!(!shown.contains("verified"), "{shown}");
    let parts = ["the token store is damaged", "00000.shard: has hash", "00001.shard: has hash"];
    site.refused("data show store --verify", 8, &parts);
    site.refused("data show store --verify --json", 8, &["00001.shard"]);
}

#[test]
fn a_folder_that_cannot_be_written_and_a_damaged_store_are_said() {
    let site = Site::new();
    site.write("a.txt", "one two three");
    let refused = ["cannot write /dev/full", "try: "];
    site.refused("data prepare a.txt --to /dev/full", 2, &refused);
    site.printed("data prepare a.txt --to store");
    let shard = site.path("store/00000.shard");
    let mut bytes = fs::read(&shard).expect("whole");
    bytes.pop();
    fs::write(&shard, bytes).expect("writable");
    site.refused("data show store", 8, &["the token store is damaged", "00000.shard", "try: "]);
}

#[test]
fn an_address_that_cannot_be_read_is_said_with_what_to_do_and_leaves_nothing() {
    let site = Site::new();
    let check = |entry: &str, code: i32, parts: &[&str]| {
        let mut command = site.command(&format!("data prepare {entry} --to store"));
        for (name, _) in std::env::vars_os() {
            if ["AWS_", "AZURE_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        // Nothing listens there.
        let message = refusal(command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9"), code);
        for part in parts {
            assert!(message.contains(part), "{entry}: no {part:?} in:\n{message}");
        }
        assert!(!site.path("store").exists(), "{message}");
    };
    check(
        "s4://books/a.txt",
        2,
        &["s4://books/a.txt: is no address of a known", "try: such as s3"],
    );
    check("https://h.example/books/", 2, &["a web server lists no files", "try: the address of"]);
    check("http://h.example/a.txt", 2, &["over plain http://", "try: https://"]);
    check("s3://books/a.txt", 2, &["  s3://books/a.txt: no credentials: ", "AWS_ACCESS_KEY_ID"]);
    check(
        "az://books/a.txt",
        2,
        &["  az://books/a.txt: no credentials: ", "AZURE_STORAGE_ACCOUNT"],
    );
}
