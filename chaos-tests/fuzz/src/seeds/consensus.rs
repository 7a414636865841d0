//! The messages and records of a group of three, and the bytes that are pinned for each form.

use std::collections::VecDeque;

use zbelastic_consensus::Entry;
use zbelastic_consensus::codec::{decode, encode};
use zbelastic_consensus::raft::{
    RaftMessage, RaftNode, RaftOutput, RaftRecord, RaftSetup, encode_record,
};
use zbelastic_types::NodeId;

use crate::targets::consensus::{ELECTION_TICKS, golden, voters};

/// Ticks in which the group elects and agrees.
const TICKS: u32 = 4 * ELECTION_TICKS;

/// Each message, as it is pinned.
pub fn envelopes() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../consensus/tests/golden/messages.txt");
    golden(text).into_iter().map(|(_, bytes)| bytes).collect()
}

pub fn snapshots() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../consensus/tests/golden/state.txt");
    golden(text).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Each entry alone, and all of them.
pub fn entries() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../consensus/tests/golden/entries.txt");
    let entry = |(_, bytes): (String, Vec<u8>)| {
        decode::<Entry>(&bytes, bytes.len()).expect("an entry of this version")
    };
    let entries: Vec<Entry> = golden(text).into_iter().map(entry).collect();
    entries.chunks(1).chain([entries.as_slice()]).map(|entries| encode(&entries.to_vec())).collect()
}

/// The acts of a group of three, as node 1 saw it.
#[derive(Default)]
struct RaftTranscript {
    /// Messages that it received, with their senders, and ticks, which have sender 0.
    received: Vec<(u8, RaftMessage)>,
    written: Vec<RaftRecord>,
}

impl RaftTranscript {
    fn live() -> Self {
        // Node 1 stands for election first.
        let setup = |node: NodeId| RaftSetup::new(node, 7, ELECTION_TICKS * node.0 as u32);
        let start = |node| RaftNode::create(setup(node), &voters(), vec![1]);
        let mut nodes = voters().map(|node| start(node).expect("a setup that can be"));
        let mut life = Self::default();
        for tick in 0..TICKS {
            nodes.iter_mut().for_each(RaftNode::tick);
            life.received.push((0, RaftMessage::Raft(Vec::new())));
            if tick.is_multiple_of(ELECTION_TICKS) {
                // A node that does not lead refuses.
                let _ = nodes[0].propose(vec![tick as u8]);
            }
            life.settle(&mut nodes);
        }
        life
    }

    /// Carries messages until there are none.
    fn settle(&mut self, nodes: &mut [RaftNode; 3]) {
        let mut under_way = VecDeque::new();
        loop {
            for (from, node) in voters().into_iter().zip(nodes.iter_mut()) {
                while let Some(output) = node.poll() {
                    under_way.extend(self.done(from, node, output));
                }
            }
            let Some((from, to, message)) = under_way.pop_front() else { return };
            if to == NodeId(1) {
                self.received.push((from.0 as u8, message.clone()));
            }
            // Refusals are part of the life.
            let _ = nodes[to.0 as usize - 1].handle(from, message);
        }
    }

    /// Carries out an output of a node; returns the message that it sends, if it sends one, with
    /// both ends.
    fn done(
        &mut self,
        from: NodeId,
        node: &mut RaftNode,
        output: RaftOutput,
    ) -> Option<(NodeId, NodeId, RaftMessage)> {
        match output {
            RaftOutput::Send { to, message } => return Some((from, to, message)),
            RaftOutput::Persist { token, records } => {
                if from == NodeId(1) {
                    self.written.extend(records);
                }
                node.on_persisted(token);
            }
            RaftOutput::Trim { .. }
            | RaftOutput::Committed(_)
            | RaftOutput::Installed { .. }
            | RaftOutput::RequestSnapshot
            | RaftOutput::LeaderChanged { .. }
            | RaftOutput::Fatal(_) => {}
        }
        None
    }
}

pub fn raft_messages() -> Vec<u8> {
    encode(&RaftTranscript::live().received)
}

/// One record of each of the first writes.
pub fn log_records() -> Vec<Vec<u8>> {
    RaftTranscript::live().written.iter().take(8).map(encode_record).collect()
}

pub fn log() -> Vec<u8> {
    encode(&RaftTranscript::live().written)
}
