//! The connections of a node to the others: which are requested, which are up, the meaning of their
//! ends for this process, and which controllers it remembers for its next start.

use std::net::SocketAddr;
use std::time::Instant;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_identity::PeerIdentity;
use zbelastic_policy::roster::Roster;
use zbelastic_policy::trust::{DuplicateIdentityReports, is_removal};
use zbelastic_transport::{DialProblem, DownReason, Transport};
use zbelastic_types::NodeId;

use super::journal::Journal;
use super::node_record::NodeRecordWriter;
use super::peer_directory::PeerDirectory;
use super::process_exit::ProcessExit;
use super::violations::PeerViolations;
use zbelastic_node_folder::node_record::NodeRecord;

/// A node's knowledge of its connections.
pub struct PeerConnections {
    directory: PeerDirectory,
    /// Connections that ended because one end broke a rule.
    violations: PeerViolations,
    duplicates: DuplicateIdentityReports,
    node_record: NodeRecord,
    writer: NodeRecordWriter,
}

impl PeerConnections {
    /// Requests connections to the controllers of a directory.
    #[must_use]
    pub fn begin(
        directory: PeerDirectory,
        (node_record, writer): (NodeRecord, NodeRecordWriter),
        transport: &Transport,
    ) -> Self {
        directory.begin(transport);
        Self {
            directory,
            violations: PeerViolations::default(),
            duplicates: DuplicateIdentityReports::default(),
            node_record,
            writer,
        }
    }

    /// Where the other nodes are.
    #[must_use]
    pub const fn directory(&self) -> &PeerDirectory {
        &self.directory
    }

    /// The members of the cluster, and which of them are connected.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        self.directory.roster()
    }

    /// The record that this node keeps about itself between two starts.
    #[must_use]
    pub const fn node_record(&self) -> &NodeRecord {
        &self.node_record
    }

    /// Another controller sent the name of the cluster and when it was founded.
    pub fn save_founding(&mut self, founding: (String, Option<u64>)) {
        self.writer.save_founding(&mut self.node_record, founding);
    }

    /// A node is connected.
    pub fn note_up(&mut self, node: NodeId) {
        self.directory.note_up(node);
    }

    /// A node is not connected any more. Yields how this process ends, if the reason is that it was
    /// removed.
    pub fn note_down(
        &mut self,
        peer: PeerIdentity,
        reason: DownReason,
        journal: &mut Journal,
    ) -> Option<ProcessExit> {
        self.directory.note_down(peer.node);
        let violation = self.violations.note_down(peer.node, reason, Instant::now());
        violation.into_iter().for_each(|kind| journal.record(kind));
        is_removal(peer.role, reason).then_some(ProcessExit::Removed)
    }

    /// A node met another process with this node's identity. Yields how this process ends, once
    /// enough nodes report that.
    pub fn note_duplicate(&mut self, reported_by: NodeId) -> Option<ProcessExit> {
        let role = self.directory.role(reported_by);
        let workers = self.roster().workers_up();
        let is_believed = self.duplicates.record(reported_by, role, workers);
        is_believed.then_some(ProcessExit::Duplicate { reported_by })
    }

    /// A node is not reached, which is logged. Yields how this process ends, if that is final.
    pub fn note_dial_failed(
        &self,
        node: NodeId,
        (address, problem): (SocketAddr, &DialProblem),
        journal: &mut Journal,
    ) -> Option<ProcessExit> {
        let exit = ProcessExit::of_refusal(node, self.directory.role(node), problem);
        if exit.is_none() {
            journal.log(format!("node {node} is not reached at {address}: {problem}"));
        }
        exit
    }

    /// Requests connections to the members, if they changed; without contacts they are those of
    /// before. The controllers are remembered, and removed nodes are logged.
    pub fn follow(
        &mut self,
        transport: &Transport,
        contacts: Option<&Contacts>,
        journal: &mut Journal,
    ) {
        let controllers = self.directory.follow(transport, contacts);
        for node in self.directory.poll_banned() {
            journal.log(format!("node {node} was removed: no connection of it is accepted"));
        }
        if let Some(controllers) = controllers {
            self.writer.save_controllers(&mut self.node_record, controllers);
        }
    }
}
