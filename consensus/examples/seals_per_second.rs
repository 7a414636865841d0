//! Entries a second through three Raft nodes in one thread: memory only, each write durable at
//! once. It is the cost of the log itself, and so a bound on what a cluster of machines can do.
//!
//! ```text
//! cargo run --release -p zbelastic-consensus --example seals_per_second [entries]
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement reads the clock; the code it measures does not"
)]

use std::collections::VecDeque;
use std::time::Instant;

use zbelastic_consensus::raft::{RaftMessage, RaftNode, RaftOutput, RaftSetup};
use zbelastic_types::NodeId;

const ENTRY_BYTES: usize = 200;
const IN_FLIGHT: u64 = 64;

struct Trio {
    nodes: Vec<RaftNode>,
    network: VecDeque<(NodeId, NodeId, RaftMessage)>,
    /// The last index each node has handed out.
    applied: [u64; 3],
    state_bytes: usize,
}

impl Trio {
    fn new() -> Self {
        let voters: Vec<_> = (1..=3).map(NodeId).collect();
        let nodes = voters.iter().map(|&node| {
            let setup = RaftSetup::new(node, node.0, 9 + node.0 as u32);
            RaftNode::create(setup, &voters, Vec::new()).expect("the setup is usual")
        });
        let nodes = nodes.collect();
        Self { nodes, network: VecDeque::new(), applied: [1; 3], state_bytes: 0 }
    }

    fn perform(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].poll() {
            match output {
                RaftOutput::Send { to, message } => {
                    self.network.push_back((NodeId(at as u64 + 1), to, message));
                }
                RaftOutput::Persist { token, .. } => self.nodes[at].on_persisted(token),
                RaftOutput::Committed(entry) => {
                    self.applied[at] = entry.index;
                    self.state_bytes += entry.data.len();
                }
                RaftOutput::Installed { index, .. } => self.applied[at] = index,
                RaftOutput::AskSnapshot => {
                    let state = vec![0; 1024];
                    self.nodes[at].compact(self.applied[at], state).expect("it was handed out");
                }
                RaftOutput::Trim { .. } | RaftOutput::LeaderChanged { .. } => {}
                RaftOutput::Fatal(reason) => panic!("nothing went wrong here: {reason:?}"),
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((from, to, message)) = self.network.pop_front() {
            let at = to.0 as usize - 1;
            // A refusal is of an early message to a node that is greeting.
            let _ = self.nodes[at].handle(from, message);
            self.perform(at);
        }
    }

    fn elect(&mut self) -> usize {
        loop {
            for at in 0..3 {
                self.nodes[at].tick();
                self.perform(at);
            }
            self.deliver();
            if let Some(at) = (0..3).find(|&at| self.nodes[at].status().leads_applied) {
                return at;
            }
        }
    }

    fn run(&mut self, leader: usize, entries: u64) {
        let first = self.applied[leader];
        let mut proposed = 0;
        while self.applied[leader] - first < entries {
            while proposed < entries && proposed - (self.applied[leader] - first) < IN_FLIGHT {
                let taken = self.nodes[leader].propose(vec![7; ENTRY_BYTES]);
                taken.expect("fewer are in flight than may be");
                proposed += 1;
            }
            self.perform(leader);
            self.deliver();
        }
    }
}

fn main() {
    let entries = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200_000);
    let mut trio = Trio::new();
    let leader = trio.elect();
    let start = Instant::now();
    trio.run(leader, entries);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{entries} entries of {ENTRY_BYTES} bytes, {IN_FLIGHT} in flight: {seconds:.2} s, {:.0} \
         entries a second, the followers at {:?}",
        entries as f64 / seconds,
        trio.applied
    );
    assert_eq!(trio.state_bytes % ENTRY_BYTES, 0, "all entries came whole");
}
