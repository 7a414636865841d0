//! The outputs of a controller, for its shell to carry out.

use std::collections::VecDeque;

use zbelastic_types::{ClusterId, NodeId};

use crate::codec::DecodeError;
use crate::duty::{NoPlan, SolveRequest};
use crate::message::{Envelope, Message};
use crate::raft::{FatalReason, PersistToken, RaftRecord, RecordNumber};
use crate::state::{EntryRefusal, StateChange};

/// One thing to do, returned by [`super::Core::poll_output`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a message; it may be lost.
    Send {
        /// The node that it is sent to.
        to: NodeId,
        /// The message, and the cluster that it names.
        message: Box<Envelope>,
    },
    /// Make records durable, in this order, then call [`super::Core::on_persisted`].
    Persist {
        /// To be passed to [`super::Core::on_persisted`].
        token: PersistToken,
        /// The records to write, oldest first.
        records: Vec<RaftRecord>,
    },
    /// Records before this one are not needed any more.
    Trim {
        /// The first record that is needed.
        before: RecordNumber,
    },
    /// Find a plan; the answer is an [`super::Input::Solved`].
    Solve(SolveRequest),
    /// For logs, status and tests: the entry that was agreed, or why none was.
    Event(Event),
    /// This node must stop. The cause says whether, and as what, it may come back.
    Fatal(FatalCause),
}

/// An entry or snapshot that was applied, a plan that is given up, or a change of leader.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An entry was applied.
    Applied {
        /// Index of the entry in the log.
        index: u64,
        /// Term in which it was proposed.
        term: u64,
        /// The change of the state by the entry.
        change: Box<StateChange>,
    },
    /// An entry changed nothing.
    Refused {
        /// Index of the entry in the log.
        index: u64,
        /// Term in which it was proposed.
        term: u64,
        /// Name of the kind of entry.
        entry: &'static str,
        /// Why the entry changed nothing.
        refusal: EntryRefusal,
    },
    /// A plan that is needed is not proposed.
    NoPlan(NoPlan),
    /// A snapshot replaced entries.
    Installed {
        /// Index of the last entry that the snapshot holds.
        index: u64,
    },
    /// Another leader, none, or another term.
    Leader {
        /// The leader, if this node knows one.
        leader: Option<NodeId>,
        /// The term that this node is in.
        term: u64,
    },
}

/// Why a node must stop.
#[derive(Clone, Debug, PartialEq)]
pub enum FatalCause {
    /// Its log cannot be that of the voter with its id. It may come back as a new one only.
    Log(FatalReason),
    /// An entry or snapshot that is agreed on and that this program cannot read: of another
    /// version, or not of the form that this program knows. It must not be left out, or this node
    /// would apply something else than the others. The log is intact: the node may come back with
    /// the program that wrote it, or with a newer one.
    Version(DecodeError),
    /// A snapshot of another cluster. The state on disk now is not this cluster's: the node may
    /// come back as a new one only.
    OtherCluster {
        /// The cluster that this node belongs to.
        expected: ClusterId,
        /// The cluster named in the snapshot.
        found: ClusterId,
    },
}

/// Outputs that wait for the shell, in the order in which they must be begun.
#[derive(Debug)]
pub(super) struct Outbox {
    cluster: ClusterId,
    outputs: VecDeque<Output>,
}

impl Outbox {
    /// No outputs yet, of a node of this cluster.
    pub(super) fn new(cluster: ClusterId) -> Self {
        Self { cluster, outputs: VecDeque::new() }
    }

    pub(super) fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        let message = Box::new(Envelope { cluster: self.cluster, message });
        self.push(Output::Send { to, message });
    }

    pub(super) fn report(&mut self, event: Event) {
        self.push(Output::Event(event));
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}
