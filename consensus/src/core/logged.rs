//! The state that a log adds up to, without a node that participates.

use zbelastic_types::ClusterId;

use crate::codec::{self, DecodeError, Format};
use crate::raft::{ENTRY_BYTES_MAX, RecoveredLog};
use crate::state::State;

/// The state at the end of a log, with every entry in it applied.
///
/// Also with those of which it is not known whether they were agreed, for a node whose fellow
/// voters are gone for good: a log records only now and then up to which entry it was agreed.
/// Entries that the state refuses change nothing, as ever.
///
/// # Errors
/// If another version wrote a part of it.
pub fn logged_state(cluster: ClusterId, log: &RecoveredLog) -> Result<State, DecodeError> {
    let mut state = snapshot_state(cluster, Format::NEWEST, log)?;
    for (index, data) in log.proposals() {
        if data.is_empty() {
            state.pass(index);
        } else {
            let entry = codec::decode(data, ENTRY_BYTES_MAX)?;
            let _ = state.apply(index, entry);
        }
    }
    Ok(state)
}

/// The state that a log's entries follow.
pub(super) fn snapshot_state(
    cluster: ClusterId,
    newest: Format,
    log: &RecoveredLog,
) -> Result<State, DecodeError> {
    match log.snapshot_data() {
        Some(data) => State::decode(newest, data),
        None => Ok(State::new(cluster)),
    }
}
