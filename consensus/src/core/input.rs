//! The inputs of a controller.

use std::collections::BTreeSet;

use zbelastic_types::{NodeId, Step};

use super::OperatorCommand;
use crate::codec::Format;
use crate::duty::{PlanMeasurement, PlanSolution, PlanUnsolvable};
use crate::message::Envelope;

/// One thing that happened, handled by [`super::Core::handle`].
#[derive(Clone, Debug)]
pub enum Input {
    /// A tick of the node's clock.
    Tick,
    /// A message arrived.
    Message {
        /// The node that sent it.
        from: NodeId,
        /// The message, and the cluster that it names.
        message: Box<Envelope>,
    },
    /// The solver's answer to an [`super::Output::Solve`].
    Solved {
        /// The number in the request that is answered.
        number: u64,
        /// The plan, or why there is none.
        solution: Box<Result<PlanSolution, PlanUnsolvable>>,
    },
    /// A node is connected.
    Connected {
        /// The connected node.
        node: NodeId,
        /// The newest format of entries and snapshots that its program reads.
        reads: Format,
    },
    /// The connection to a node ended.
    Closed {
        /// The node at the other end of the connection.
        node: NodeId,
        /// How it ended.
        end: ConnectionEnd,
    },
    /// The measurement of the plan in force. Only a leader accepts it.
    Measured(Box<PlanMeasurement>),
    /// A layer of a checkpoint could be written to no disk. Only a leader accepts it.
    CheckpointUnplaced {
        /// The version that was to become a checkpoint.
        version: Step,
    },
    /// A node's disk was low, and has space again. Only a leader accepts it.
    DiskAmple,
    /// The logs of these controllers are nearly full, and the others would be no majority; none if that is over. Only a
    /// leader accepts it.
    LogsFull {
        /// The controllers.
        nodes: BTreeSet<NodeId>,
    },
    /// A command of an operator.
    Command(OperatorCommand),
}

/// How a connection ended: what that shows of the process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// It was closed, or its process is another one now: that life is over.
    Closed,
    /// Nothing came for so long that it was given up. The process may stand still, or the network
    /// be cut, which heartbeats show as well: it is no more evidence than their silence (rule R9).
    Silent,
}
