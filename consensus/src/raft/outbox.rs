//! The outputs of a node: in order, and messages that report its memory only once that is durable
//! (P1).

use std::collections::VecDeque;

use zbelastic_types::NodeId;

use super::in_flight::{InFlightWrite, InFlightWrites};
use super::message::RaftMessage;
use super::output::{FatalReason, PersistToken, RaftOutput, RecordNumber};
use super::record::{HardVote, RaftRecord};

/// Outputs that wait for the shell, and writes that it has begun.
#[derive(Debug)]
pub(super) struct DurableOutbox {
    outputs: VecDeque<RaftOutput>,
    writes: InFlightWrites,
    /// The hard state last handed out for persisting, and the last that is durable.
    written: HardVote,
    durable: HardVote,
}

impl DurableOutbox {
    /// The outbox of a node that recovered `hard`, and gives its next record this number.
    pub(super) fn new(hard: HardVote, next_record: RecordNumber) -> Self {
        let writes = InFlightWrites::new(next_record);
        Self { outputs: VecDeque::new(), writes, written: hard, durable: hard }
    }

    /// The writes that are not reported yet.
    pub(super) fn writes(&self) -> &InFlightWrites {
        &self.writes
    }

    /// The hard state last handed out for persisting.
    pub(super) fn written(&self) -> HardVote {
        self.written
    }

    /// The last hard state that is durable.
    pub(super) fn durable(&self) -> HardVote {
        self.durable
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    pub(super) fn push(&mut self, output: RaftOutput) {
        self.outputs.push_back(output);
    }

    /// Puts an output before all that wait.
    pub(super) fn push_first(&mut self, output: RaftOutput) {
        self.outputs.push_front(output);
    }

    pub(super) fn pop(&mut self) -> Option<RaftOutput> {
        self.outputs.pop_front()
    }

    /// Sends at once.
    pub(super) fn send(&mut self, messages: impl IntoIterator<Item = (NodeId, RaftMessage)>) {
        let sends = messages.into_iter().map(|(to, message)| RaftOutput::Send { to, message });
        self.outputs.extend(sends);
    }

    /// Sends once all that was handed out so far is durable (P1).
    pub(super) fn hold(&mut self, messages: impl IntoIterator<Item = (NodeId, RaftMessage)>) {
        match self.writes.last() {
            Some(write) => write.held.extend(messages),
            None => self.send(messages),
        }
    }

    /// Hands records out for persisting.
    pub(super) fn persist(&mut self, records: Vec<RaftRecord>) -> &mut InFlightWrite {
        let write = self.writes.begin(records.len());
        let token = write.token;
        self.outputs.push_back(RaftOutput::Persist { token, records });
        write
    }

    /// Hands records out for persisting, the last hard state among them.
    pub(super) fn persist_with(
        &mut self,
        hard: HardVote,
        records: Vec<RaftRecord>,
    ) -> &mut InFlightWrite {
        self.written = hard;
        let write = self.persist(records);
        write.hard = Some(hard);
        write
    }

    /// The write last handed out, if it is not reported yet.
    pub(super) fn last_write(&mut self) -> Option<&mut InFlightWrite> {
        self.writes.last()
    }

    /// Counts a tick; yields for how many ticks the oldest write has been in flight.
    pub(super) fn tick(&mut self) -> u32 {
        self.writes.tick()
    }

    /// The write of `token` is durable, and with it its hard state.
    ///
    /// # Panics
    /// If it is not the oldest in flight: the shell reports out of order.
    pub(super) fn end_write(&mut self, token: PersistToken) -> InFlightWrite {
        let write = self.writes.end(token);
        self.durable = write.hard.unwrap_or(self.durable);
        write
    }

    /// Drops all that waits: the node stops for this reason.
    pub(super) fn stop(&mut self, reason: FatalReason) {
        self.writes.clear();
        self.outputs.clear();
        self.outputs.push_back(RaftOutput::Fatal(reason));
    }
}
