//! Bytes that were cut, changed or never meant: refused with the reason, and nothing falls over.

use std::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::{DecodeError, Format, decode, encode};
use super::samples::{briefing, entries, envelope, messages, running, state};
use crate::codec::MESSAGE_BYTES_MAX;
use crate::entry::Entry;
use crate::fixture::{FixtureLog, spec};
use crate::message::Envelope;
use crate::state::State;

const LIMIT: usize = 1 << 20;

/// What is believed to be a value is one: it survives being written and read again.
fn check_believed<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = decode(bytes, LIMIT).ok()?;
    let again = encode(&value);
    let read: T = decode(&again, LIMIT).expect("what was written is read");
    assert_eq!(encode(&read), again, "{value:?}");
    Some(value)
}

fn check_cuts_and_versions<T: Serialize + DeserializeOwned + Debug + PartialEq>(value: &T) {
    let bytes = encode(value);
    assert_eq!(decode::<T>(&bytes, bytes.len()).as_ref(), Ok(value), "the limit is allowed");
    let (limit, found) = (bytes.len() - 1, bytes.len());
    let long = decode::<T>(&bytes, limit);
    assert_eq!(long, Err(DecodeError::TooLong { limit, found }), "{value:?}");
    assert_eq!(decode::<T>(&[], LIMIT), Err(DecodeError::Empty));
    for kept in 1..bytes.len() {
        assert_eq!(decode::<T>(&bytes[..kept], LIMIT), Err(DecodeError::Form), "{kept} {value:?}");
    }
    for count in 1..4 {
        let longer = [bytes.clone(), vec![0; count]].concat();
        assert_eq!(decode::<T>(&longer, LIMIT), Err(DecodeError::Trailing { count }), "{value:?}");
    }
    for found in 0..=u8::MAX {
        let other = [&[found], &bytes[1..]].concat();
        let decoded = decode::<T>(&other, LIMIT);
        match Format::of(found) {
            Some(_) => assert_eq!(decoded.as_ref(), Ok(value), "format {found}"),
            None => assert_eq!(decoded, Err(unread(found)), "{value:?}"),
        }
    }
}

/// Why bytes of this version are not decoded.
fn unread(found: u8) -> DecodeError {
    DecodeError::Version { newest: Format::NEWEST, found }
}

#[test]
fn cuts_additions_and_other_versions_are_refused() {
    messages().into_iter().map(envelope).for_each(|envelope| check_cuts_and_versions(&envelope));
    entries().iter().for_each(check_cuts_and_versions);
    check_cuts_and_versions(&briefing());
    check_cuts_and_versions(&state());
}

/// The length is looked at first, then the version: nothing else is known of a newer form.
#[test]
fn an_envelope_that_is_too_long_is_refused_whatever_it_says() {
    let found = MESSAGE_BYTES_MAX + 1;
    let newer = Format::NEWEST.number() + 1;
    for version in [Format::OLDEST.number(), newer] {
        let limit = MESSAGE_BYTES_MAX;
        let long = Envelope::decode(&vec![version; found]);
        assert_eq!(long, Err(DecodeError::TooLong { limit, found }));
    }
    let next = Envelope::decode(&vec![newer; MESSAGE_BYTES_MAX]);
    assert_eq!(next, Err(unread(newer)));
}

/// A list whose length is more than there are bytes is refused without room being made for it.
#[test]
fn lists_that_claim_to_be_endless_are_refused() {
    let endless = [&[0xff; 9][..], &[1]].concat();
    let members = [&[Format::OLDEST.number(), 0], &endless[..]].concat();
    assert_eq!(decode::<Entry>(&members, LIMIT), Err(DecodeError::Form));
    for bytes in entries().iter().map(encode) {
        for kept in 1..bytes.len() {
            check_believed::<Entry>(&[&bytes[..kept], &endless].concat());
        }
    }
}

/// States in which an entry may find itself.
fn states() -> Vec<State> {
    let mut loading = FixtureLog::with_job(spec(), &[1, 2]);
    loading.adopt(loading.plan(&[1, 2]));
    loading.apply(Entry::Ready(loading.ready(0)));
    let mut closed = running();
    closed.apply(closed.rewind(0));
    let logs =
        [FixtureLog::empty(), FixtureLog::with_job(spec(), &[1, 2]), loading, running(), closed];
    logs.into_iter().map(|log| log.state).chain([state()]).collect()
}

/// Whatever an entry holds, it is applied, or refused with nothing changed but the index.
fn check_applied(states: &[State], entry: &Entry) {
    for state in states {
        let index = state.applied() + 1;
        let (mut before, mut after) = (state.clone(), state.clone());
        if after.apply(index, entry.clone()).is_err() {
            before.pass(index);
            assert_eq!(encode(&after), encode(&before), "{entry:?}");
        }
    }
}

/// Every byte of a value with each of its bits turned, with all of them, and emptied.
fn each_changed_byte(bytes: &[u8], mut check: impl FnMut(&[u8])) {
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() {
        let masks = (0..8).map(|bit| 1 << bit).chain([0xff, bytes[at]]);
        for mask in masks {
            changed[at] = bytes[at] ^ mask;
            check(&changed);
        }
        changed[at] = bytes[at];
    }
}

#[test]
fn no_changed_byte_of_a_message_or_a_snapshot_is_the_end() {
    for message in messages() {
        each_changed_byte(&envelope(message).encode(), |bytes| {
            check_believed::<Envelope>(bytes);
        });
    }
    each_changed_byte(&encode(&state()), |bytes| {
        check_believed::<State>(bytes);
    });
}

#[test]
fn an_entry_with_a_changed_byte_is_applied_or_changes_nothing() {
    let states = states();
    let mut believed = 0;
    for entry in entries() {
        each_changed_byte(&encode(&entry), |bytes| {
            if let Some(entry) = check_believed::<Entry>(bytes) {
                believed += 1;
                check_applied(&states, &entry);
            }
        });
    }
    assert!(believed > 1000, "most changes are still entries, {believed} were");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_bytes_are_refused_or_are_what_they_seem(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        is_of_this_version in any::<bool>(),
    ) {
        if let (true, Some(version)) = (is_of_this_version, bytes.first_mut()) {
            *version = Format::OLDEST.number();
        }
        check_believed::<Envelope>(&bytes);
        check_believed::<State>(&bytes);
        if let Some(entry) = check_believed::<Entry>(&bytes) {
            check_applied(&states(), &entry);
        }
    }

    #[test]
    fn an_entry_with_several_changed_bytes_is_applied_or_changes_nothing(
        which in 0..9_usize,
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = encode(&entries()[which]);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some(entry) = check_believed::<Entry>(&bytes) {
            check_applied(&states(), &entry);
        }
    }
}
