//! What a log adds up to for a node when no other voter is left.

use std::sync::Arc;

use super::super::logged_state;
use super::in_process::{CONTROLLER, n};
use crate::codec::{self, DecodeError, Format};
use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, spec};
use crate::job::JobChange;
use crate::raft::{
    HardVote, LogEntry, Members, Payload, RaftRecord, RecoveredLog, SnapshotImage, encode_record,
};
use crate::state::State;

const INDEX: u64 = 40;

/// The records of a lone voter that wrote these entries behind a snapshot of `state`, and not yet
/// that any of them is agreed.
fn unconfirmed(state: &State, later: Vec<Payload>) -> RecoveredLog {
    let members = Members::first(&[n(CONTROLLER)]);
    let image = SnapshotImage { index: INDEX, term: 1, members, data: state.encode() };
    let entry = |(index, payload)| LogEntry { index, term: 1, payload };
    let records = [
        RaftRecord::Snapshot(image),
        RaftRecord::HardState(HardVote { term: 1, vote: None, commit: INDEX }),
        RaftRecord::Append((INDEX + 1..).zip(later).map(entry).collect()),
    ];
    let bytes: Vec<_> = records.iter().map(encode_record).collect();
    RecoveredLog::from_records(bytes.iter().map(Vec::as_slice)).expect("the records add up")
}

fn pause() -> Payload {
    Payload::Data(codec::encode(&Entry::Job(JobChange::Pause)))
}

#[test]
fn entries_count_that_are_not_known_to_be_agreed() {
    let mut expected = FixtureLog::running(spec(), &[1, 2]).state;
    let second = Entry::Job(JobChange::Start(Arc::new(spec())));
    let refused = Payload::Data(codec::encode(&second));
    let later = vec![Payload::Data(Vec::new()), refused, Payload::Change(Vec::new()), pause()];
    let found = logged_state(CLUSTER, &unconfirmed(&expected, later)).expect("it is all of now");
    expected.pass(INDEX + 1);
    expected.apply(INDEX + 2, second).expect_err("one is under way");
    expected.pass(INDEX + 3);
    expected.apply(INDEX + 4, Entry::Job(JobChange::Pause)).expect("it fits");
    assert_eq!(found, expected);
    assert_eq!(found.applied(), INDEX + 4);
}

#[test]
fn entries_of_another_version_are_told() {
    let version = Format::NEWEST.number() + 1;
    let later = vec![pause(), Payload::Data(vec![version])];
    let found = logged_state(CLUSTER, &unconfirmed(&State::new(CLUSTER), later));
    assert_eq!(found, Err(DecodeError::Version { newest: Format::NEWEST, found: version }));
}

#[test]
fn log_without_records_is_the_state_of_a_new_cluster() {
    let found = logged_state(CLUSTER, &RecoveredLog::default());
    assert_eq!(found, Ok(State::new(CLUSTER)));
}
