//! The bytes of everything that travels or is kept, compared with files in hexadecimal. A changed
//! byte is another version of the form. After a wanted change: run with `ZBELASTIC_BLESS=1`, read
//! the difference, commit it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::super::{DecodeError, Format, encode};
use super::samples::{
    ENTRIES, MESSAGES, briefing, entries, envelope, message_name, messages, state,
};
use super::words::words;
use crate::state::State;

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

/// Compares `found` with the golden file `name`, or writes it there if blessing was requested.
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
    let row = |entry: &crate::Entry| block(entry.name(), &entry.encode(Format::OLDEST));
    check("entries.txt", &entries.iter().map(row).collect::<String>());
}

#[test]
fn a_briefing_has_these_bytes() {
    check("briefing.txt", &block("briefing", &encode(&briefing())));
}

#[test]
fn a_snapshot_has_these_bytes() {
    check("state.txt", &block("state", &state().encode()));
}

/// The golden files are those of the oldest format: what the program before wrote is read, and what
/// it reads is written, until all nodes read a newer one.
#[test]
fn only_the_first_byte_tells_the_formats_of_snapshots_and_entries_apart() {
    for format in [Format::OLDEST, Format::NEWEST] {
        let expected = state().in_format(format);
        let bytes = expected.encode();
        assert_eq!((bytes[0], &bytes[1..]), (format.number(), &encode(&state())[1..]));
        assert_eq!(State::decode(Format::NEWEST, &bytes), Ok(expected));
    }
    let (newest, found) = (Format::OLDEST, Format::NEWEST.number());
    let read = State::decode(newest, &state().in_format(Format::NEWEST).encode());
    assert_eq!(read, Err(DecodeError::Version { newest, found }));
    for entry in entries() {
        let raised = matches!(entry, crate::Entry::Format(_));
        let expected = if raised { Format::NEWEST } else { Format::OLDEST };
        assert_eq!(entry.encode(Format::OLDEST)[0], expected.number(), "{}", entry.name());
        assert_eq!(entry.encode(Format::NEWEST)[0], Format::NEWEST.number(), "{}", entry.name());
    }
}

#[test]
fn every_word_has_its_number() {
    check("words.txt", &(words().join("\n") + "\n"));
}
