//! The messages, entries and records of controllers.

use std::fmt::Debug;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zbelastic_consensus::codec::{decode, encode};
use zbelastic_consensus::message::Envelope;
use zbelastic_consensus::raft::{
    RaftMessage, RaftNode, RaftOutput, RaftRecord, RaftSetup, RecoveredLog, decode_record,
    encode_record,
};
use zbelastic_consensus::{Entry, State};
use zbelastic_types::{ClusterId, NodeId};

use crate::DecodeOutcome;

/// Ticks until node 1 stands for election; node 2 and node 3 stand later.
pub const ELECTION_TICKS: u32 = 10;
/// Entries, messages or records of one input that are looked at.
const STEPS: usize = 64;

/// A snapshot with something in each of its parts: the bytes that are pinned for its form.
static GOLDEN: LazyLock<State> = LazyLock::new(|| {
    let bytes = golden(include_str!("../../../../consensus/tests/golden/state.txt"));
    let (_, bytes) = bytes.into_iter().next().expect("one block");
    decode(&bytes, bytes.len()).expect("a snapshot of this version")
});

/// The blocks of a golden file: a name, and below it bytes in hexadecimal.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn golden(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut blocks: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if let Some(digits) = line.strip_prefix("  ") {
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
            let (_, bytes) = blocks.last_mut().expect("a name comes first");
            bytes.extend((0..digits.len()).step_by(2).map(byte));
        } else {
            let (name, _) = line.split_once(':').expect("a name");
            blocks.push((name.to_owned(), Vec::new()));
        }
    }
    blocks
}

/// Bytes that are believed to be a value are one: the value survives being written and read again.
fn decoded<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = decode(bytes, bytes.len()).ok()?;
    let again = encode(&value);
    let read: T = decode(&again, again.len()).expect("it reads what it wrote");
    assert_eq!(encode(&read), again, "{value:?}");
    Some(value)
}

/// Messages of the protocol.
pub fn envelopes(bytes: &[u8]) -> DecodeOutcome {
    let value = decoded::<Envelope>(bytes);
    assert_eq!(value.is_some(), Envelope::decode(bytes).is_ok());
    DecodeOutcome::of(value.is_some())
}

/// An entry is applied, or refused with nothing changed but the index.
fn apply(state: &mut State, entry: &Entry) {
    let index = state.applied() + 1;
    let mut before = state.clone();
    if state.apply(index, entry.clone()).is_err() {
        before.pass(index);
        assert_eq!(encode(state), encode(&before), "{entry:?}");
    }
}

/// Entries from a new cluster on, and after a snapshot. The resulting state can be sent.
pub fn entries(bytes: &[u8]) -> DecodeOutcome {
    let Some(entries) = decoded::<Vec<Entry>>(bytes) else { return DecodeOutcome::Refused };
    for mut state in [State::new(ClusterId(1)), GOLDEN.clone()] {
        for entry in entries.iter().take(STEPS) {
            apply(&mut state, entry);
        }
        decoded::<State>(&encode(&state)).expect("a snapshot of it can be read");
    }
    DecodeOutcome::Accepted
}

/// A snapshot is believed as it is; every query of a state works on it.
pub fn snapshots(bytes: &[u8]) -> DecodeOutcome {
    let Some(state) = decoded::<State>(bytes) else { return DecodeOutcome::Refused };
    let _ = (
        state.membership().contacts(),
        state.open_turn(),
        state.is_running(),
        state.live_workers().count(),
    );
    DecodeOutcome::Accepted
}

/// A node's writes are durable at once; its other outputs are dropped.
fn settle(node: &mut RaftNode) {
    while let Some(output) = node.poll() {
        if let RaftOutput::Persist { token, .. } = output {
            node.on_persisted(token);
        }
    }
}

/// The members of a Raft group of three.
#[must_use]
pub fn voters() -> [NodeId; 3] {
    [1, 2, 3].map(NodeId)
}

/// A message is handled or refused, independently of its content; a sender of 0 is a tick.
pub fn raft_messages(bytes: &[u8]) -> DecodeOutcome {
    let Some(messages) = decoded::<Vec<(u8, RaftMessage)>>(bytes) else {
        return DecodeOutcome::Refused;
    };
    let setup = RaftSetup::new(NodeId(1), 7, ELECTION_TICKS);
    let mut node = RaftNode::create(setup, &voters(), vec![1]).expect("a setup that can be");
    let mut handled = false;
    for (sender, message) in messages.into_iter().take(STEPS) {
        settle(&mut node);
        if sender == 0 {
            node.tick();
        } else {
            handled |= node.handle(NodeId(sender.into()), message).is_ok();
        }
    }
    settle(&mut node);
    DecodeOutcome::of(handled)
}

/// Bytes that are accepted as a record are one.
pub fn log_records(bytes: &[u8]) -> DecodeOutcome {
    let Ok(record) = decode_record(bytes) else { return DecodeOutcome::Refused };
    assert_eq!(decode_record(&encode_record(&record)), Ok(record));
    DecodeOutcome::Accepted
}

/// Records that are whole add up to a log from which a node starts, or are refused.
pub fn logs(bytes: &[u8]) -> DecodeOutcome {
    let Some(records) = decoded::<Vec<RaftRecord>>(bytes) else { return DecodeOutcome::Refused };
    let records: Vec<Vec<u8>> = records.iter().take(STEPS).map(encode_record).collect();
    let Ok(log) = RecoveredLog::from_records(records.iter().map(Vec::as_slice)) else {
        return DecodeOutcome::Refused;
    };
    assert!(!log.torn, "every record is whole");
    let Ok(mut node) = RaftNode::recover(RaftSetup::new(NodeId(1), 7, ELECTION_TICKS), log) else {
        return DecodeOutcome::Refused;
    };
    settle(&mut node);
    for _ in 0..2 * ELECTION_TICKS {
        node.tick();
        settle(&mut node);
    }
    DecodeOutcome::Accepted
}
