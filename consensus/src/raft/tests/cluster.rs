//! Nodes, disks that lose what was not reported, and a network that loses, doubles and reorders.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use zbelastic_types::NodeId;

use super::super::{
    CommittedEntry, FatalReason, PersistToken, RaftMessage, RaftNode, RaftOutput, RaftSetup,
    RaftStartError, RaftStatus, RecordNumber, RecoveredLog, encode_record,
};

/// Draws from a seed.
pub struct SplitMixDraw(SplitMix64);

impl SplitMixDraw {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

#[derive(Clone, Default)]
pub struct RecordDisk {
    /// Number of the first record that is still there.
    pub base: u64,
    pub records: Vec<Vec<u8>>,
}

impl RecordDisk {
    fn end(&self) -> u64 {
        self.base + self.records.len() as u64
    }

    fn trim(&mut self, before: RecordNumber) {
        let trimmed = before.0.saturating_sub(self.base).min(self.records.len() as u64);
        self.records.drain(..trimmed as usize);
        self.base += trimmed;
    }
}

#[derive(Default)]
pub struct RaftMachine {
    pub node: Option<RaftNode>,
    pub disk: RecordDisk,
    /// Records up to here are durable.
    synced: u64,
    under_way: VecDeque<(PersistToken, u64)>,
    pub state: HashStateMachine,
    pub fatal: Option<FatalReason>,
    pub installs: u32,
    first_voters: Vec<NodeId>,
}

/// A state machine: how many entries it has seen, and a sum over them in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashStateMachine {
    pub index: u64,
    pub sum: u64,
}

impl HashStateMachine {
    fn apply(&mut self, entry: &CommittedEntry) {
        assert_eq!(entry.index, self.index + 1, "entries are handed out without a gap");
        self.index = entry.index;
        for &byte in &entry.data {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        [self.index.to_le_bytes(), self.sum.to_le_bytes()].concat()
    }

    fn read(data: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        Self { index: word(0), sum: word(8) }
    }
}

pub struct RaftCluster {
    pub machines: BTreeMap<NodeId, RaftMachine>,
    pub network: Vec<(NodeId, NodeId, RaftMessage)>,
    /// Directed links that lose everything.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    pub draw: SplitMixDraw,
    /// Percent of messages lost, and delivered twice.
    pub loss: u64,
    pub doubles: u64,
    /// Percent of writes under way that become durable in a round.
    pub disk_speed: u64,
    /// Disks that write nothing.
    pub hung: BTreeSet<NodeId>,
    pub compact_after: u64,
    pub trace: String,
    /// What was agreed at each index, by the node that handed it out first.
    pub agreed: BTreeMap<u64, CommittedEntry>,
    states: BTreeMap<u64, u64>,
    leaders: BTreeMap<u64, NodeId>,
    lives: u64,
}

pub fn n(id: u64) -> NodeId {
    NodeId(id)
}

impl RaftCluster {
    pub fn new(seed: u64, voters: u64) -> Self {
        let mut cluster = Self {
            machines: BTreeMap::new(),
            network: Vec::new(),
            cut: BTreeSet::new(),
            draw: SplitMixDraw::new(seed),
            loss: 0,
            doubles: 0,
            disk_speed: 100,
            hung: BTreeSet::new(),
            compact_after: 1_000_000,
            trace: String::new(),
            agreed: BTreeMap::new(),
            states: BTreeMap::new(),
            leaders: BTreeMap::new(),
            lives: 0,
        };
        let voters: Vec<_> = (1..=voters).map(n).collect();
        for &node in &voters {
            cluster.create(node, &voters);
        }
        cluster
    }

    pub fn setup(&mut self, node: NodeId) -> RaftSetup {
        self.lives += 1;
        let mut setup = RaftSetup::new(node, self.lives, 9 + node.0 as u32);
        setup.compact_after = self.compact_after;
        setup.tail_entries = 2;
        setup.snapshot_retry_ticks = 12;
        setup
    }

    pub fn create(&mut self, id: NodeId, voters: &[NodeId]) {
        let setup = self.setup(id);
        let first = HashStateMachine { index: u64::from(!voters.is_empty()), sum: 7 };
        let node = Some(RaftNode::create(setup, voters, first.bytes()).unwrap());
        let first_voters = voters.to_vec();
        let machine = RaftMachine { node, state: first, first_voters, ..RaftMachine::default() };
        self.machines.insert(id, machine);
        self.drain(id);
    }

    /// Loses what was not reported; `torn` leaves that many bytes of the first record lost.
    pub fn crash(&mut self, node: NodeId, torn: Option<usize>) {
        let machine = self.machines.get_mut(&node).unwrap();
        machine.node = None;
        machine.under_way.clear();
        let kept = (machine.synced.max(machine.disk.base) - machine.disk.base) as usize;
        let lost: Vec<_> = machine.disk.records.drain(kept..).collect();
        if let (Some(bytes), Some(first)) = (torn, lost.first()) {
            machine.disk.records.push(first[..bytes.min(first.len() - 1)].to_vec());
        }
    }

    /// Starts from the disk; whether a torn record was cut.
    pub fn restart(&mut self, node: NodeId) -> bool {
        let setup = self.setup(node);
        let machine = self.machines.get_mut(&node).unwrap();
        let records = machine.disk.records.iter().map(Vec::as_slice);
        let recovered = RecoveredLog::from_records(records).unwrap();
        let torn = recovered.torn;
        machine.disk.base = 0;
        machine.disk.records.truncate(recovered.records.0 as usize);
        machine.synced = recovered.records.0;
        machine.state =
            recovered.snapshot_data().map_or(HashStateMachine::default(), HashStateMachine::read);
        match RaftNode::recover(setup, recovered) {
            Ok(raft) => machine.node = Some(raft),
            Err(refusal) => {
                assert_eq!(refusal, RaftStartError::NeverStarted);
                let voters = machine.first_voters.clone();
                self.create(node, &voters);
            }
        }
        self.drain(node);
        torn
    }

    pub fn node(&mut self, node: NodeId) -> &mut RaftNode {
        self.machines.get_mut(&node).unwrap().node.as_mut().unwrap()
    }

    pub fn status(&self, node: NodeId) -> RaftStatus {
        self.machines[&node].node.as_ref().unwrap().status()
    }

    pub fn live(&self) -> Vec<NodeId> {
        let live = self.machines.iter().filter(|(_, machine)| machine.node.is_some());
        live.map(|(&node, _)| node).collect()
    }

    /// Performs all outputs of the node, but for making writes durable.
    pub fn drain(&mut self, node: NodeId) {
        while let Some(output) = self.node(node).poll() {
            self.trace.push_str(&format!("{node} {output:?}\n"));
            self.perform(node, output);
        }
        let status = self.status(node);
        if status.is_leader {
            let leader = *self.leaders.entry(status.term).or_insert(node);
            assert_eq!(leader, node, "one leader in term {}", status.term);
        }
    }

    fn perform(&mut self, node: NodeId, output: RaftOutput) {
        let machine = self.machines.get_mut(&node).unwrap();
        match output {
            RaftOutput::Send { to, message } => self.network.push((node, to, message)),
            RaftOutput::Persist { token, records } => {
                machine.disk.records.extend(records.iter().map(encode_record));
                machine.under_way.push_back((token, machine.disk.end()));
            }
            RaftOutput::Trim { before } => machine.disk.trim(before),
            RaftOutput::Committed(entry) => {
                machine.state.apply(&entry);
                let sum = machine.state.sum;
                let index = entry.index;
                let agreed = self.agreed.entry(index).or_insert_with(|| entry.clone());
                assert_eq!(*agreed, entry, "node {node} agrees");
                assert_eq!(*self.states.entry(index).or_insert(sum), sum);
            }
            RaftOutput::Installed { index, data, .. } => {
                machine.state = HashStateMachine::read(&data);
                machine.installs += 1;
                assert_eq!(machine.state.index, index);
            }
            RaftOutput::RequestSnapshot => {
                let state = machine.state;
                let raft = machine.node.as_mut().unwrap();
                raft.compact(state.index, state.bytes()).unwrap();
            }
            RaftOutput::LeaderChanged { .. } => {}
            RaftOutput::Fatal(reason) => machine.fatal = Some(reason),
        }
    }

    /// Makes some of the writes under way durable, oldest first.
    pub fn sync(&mut self, node: NodeId, share: u64) {
        loop {
            let is_lucky = self.draw.percent(share);
            let machine = self.machines.get_mut(&node).unwrap();
            let Some(raft) = machine.node.as_mut() else { return };
            let Some(&(token, end)) = machine.under_way.front() else { return };
            if !is_lucky || self.hung.contains(&node) {
                return;
            }
            machine.under_way.pop_front();
            machine.synced = end;
            raft.on_persisted(token);
            self.drain(node);
        }
    }

    /// One tick of all, then each message that is under way now is delivered, lost or doubled.
    pub fn round(&mut self) {
        for node in self.live() {
            self.node(node).tick();
            self.drain(node);
        }
        for _ in 0..4 {
            self.deliver();
            for node in self.live() {
                self.sync(node, self.disk_speed);
            }
        }
    }

    pub fn deliver(&mut self) {
        let mut messages = std::mem::take(&mut self.network);
        while !messages.is_empty() {
            let at = self.draw.below(messages.len() as u64) as usize;
            let (from, to, message) = messages.swap_remove(at);
            let is_lost = self.draw.percent(self.loss) || self.cut.contains(&(from, to));
            let copies = 1 + u32::from(self.draw.percent(self.doubles));
            for _ in 0..if is_lost { 0 } else { copies } {
                self.hand_over(from, to, message.clone());
            }
        }
    }

    fn hand_over(&mut self, from: NodeId, to: NodeId, message: RaftMessage) {
        let is_live = self.machines.get(&to).is_some_and(|machine| machine.node.is_some());
        if is_live {
            if let Err(refusal) = self.node(to).handle(from, message) {
                self.trace.push_str(&format!("{to} refuses {refusal:?}\n"));
            }
            self.drain(to);
        }
    }

    pub fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            self.round();
        }
    }

    /// The leader that may decide, if all live nodes are of one mind.
    pub fn leader(&self) -> Option<NodeId> {
        let live = self.live().into_iter();
        let mut leading = live.filter(|&node| self.status(node).leads_applied);
        leading.by_ref().max_by_key(|&node| self.status(node).term)
    }

    pub fn elect(&mut self) -> NodeId {
        for _ in 0..200 {
            self.round();
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("a leader is elected; {}", self.summary());
    }

    pub fn propose(&mut self, node: NodeId, data: &[u8]) {
        self.node(node).propose(data.to_vec()).unwrap();
        self.drain(node);
    }

    /// Proposes through the leader and waits until all of `nodes` have handed it out.
    pub fn commit_on(&mut self, data: &[u8], nodes: &[NodeId]) {
        let leader = self.elect();
        self.propose(leader, data);
        let index = self.status(leader).last_index;
        for _ in 0..200 {
            if nodes.iter().all(|&node| self.status(node).applied >= index) {
                assert_eq!(self.agreed[&index].data, data);
                return;
            }
            self.round();
        }
        panic!("entry {index} is handed out on {nodes:?}; {}", self.summary());
    }

    pub fn part(&mut self, one: &[u64], other: &[u64]) {
        for (&a, &b) in one.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
            self.cut.extend([(n(a), n(b)), (n(b), n(a))]);
        }
    }

    pub fn summary(&self) -> String {
        let each = self.live().into_iter().map(|node| format!("\n{:?}", self.status(node)));
        each.collect()
    }
}
