//! The bytes of everything that travels or is kept, compared with files in hexadecimal. A changed
//! byte is another version of the form. After a wanted change: run with `ZBELASTIC_BLESS=1`, read
//! the difference, commit it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::super::encode;
use super::samples::{
    ENTRIES, MESSAGES, briefing, entries, envelope, message_name, messages, state,
};
use super::words::words;

/// Bytes in one line of a file.
const LINE_BYTES: usize = 48;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// A name, and below it the bytes.
fn block(name: &str, bytes: &[u8]) -> String {
    let lines: Vec<String> =
        bytes.chunks(LINE_BYTES).map(|line| format!("  {}\n", hex(line))).collect();
    format!("{name}: {} bytes\n{}", bytes.len(), lines.concat())
}

/// Compares `found` with the golden file `name`, or writes it there if asked to bless.
fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if is_blessing() {
        fs::write(&path, found).expect("the golden folder can be written");
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{name}: {error}; run with ZBELASTIC_BLESS=1 to write it"));
    let mut lines = (1..).zip(expected.lines().zip(found.lines()));
    if let Some((line, (expected, found))) = lines.find(|(_, (old, new))| old != new) {
        panic!("{name} differs in line {line}\nexpected: {expected}\nfound:    {found}");
    }
    assert_eq!(expected, found, "{name} differs in length");
}

#[expect(clippy::disallowed_methods, reason = "the package reads no environment, its tests may")]
fn is_blessing() -> bool {
    std::env::var("ZBELASTIC_BLESS").is_ok_and(|value| value == "1")
}

#[test]
fn every_message_has_these_bytes() {
    let messages = messages();
    assert!(messages.iter().map(message_name).eq(MESSAGES), "an example of each");
    let row = |message| block(message_name(&message), &envelope(message).encode());
    check("messages.txt", &messages.into_iter().map(row).collect::<String>());
}

#[test]
fn every_entry_has_these_bytes() {
    let entries = entries();
    assert!(entries.iter().map(crate::Entry::name).eq(ENTRIES), "an example of each");
    let row = |entry: &crate::Entry| block(entry.name(), &encode(entry));
    check("entries.txt", &entries.iter().map(row).collect::<String>());
}

#[test]
fn a_briefing_has_these_bytes() {
    check("briefing.txt", &block("briefing", &encode(&briefing())));
}

#[test]
fn a_snapshot_has_these_bytes() {
    check("state.txt", &block("state", &encode(&state())));
}

#[test]
fn every_word_has_its_number() {
    check("words.txt", &(words().join("\n") + "\n"));
}
