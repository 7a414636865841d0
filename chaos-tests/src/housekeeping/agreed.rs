//! What the controllers of a life have agreed on: members by the product's own state, and
//! checkpoints by a list, for whole clusters agree on those elsewhere ([`crate::world`]).

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_checkpoint::CheckpointId;
use zbelastic_consensus::access::{AccessChange, AuthorityChange};
use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::entry::Entry;
use zbelastic_consensus::member::{MemberChange, Resources, Role};
use zbelastic_consensus::state::State;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_types::{Bytes, ClusterId, Digest, Generation, LayerId, NodeId, RunId, Step};

use crate::queue::VirtualTime;

/// The run of every life.
pub const RUN: RunId = RunId(1);

/// A version that is to become a checkpoint.
#[derive(Clone, Debug)]
pub struct UnfinishedCheckpoint {
    /// When it was begun.
    pub begun: VirtualTime,
    /// The plan under which it was sealed.
    pub generation: Generation,
    /// The node that has a layer, and in which of its lives it has it.
    pub owners: BTreeMap<LayerId, (NodeId, u64)>,
    /// Pieces by layer, as they become durable.
    pub durable: BTreeMap<LayerId, PieceRef>,
}

/// What is agreed on.
pub struct AgreedState {
    /// The replicated state, with members and credentials.
    pub state: State,
    /// The newest sealed version.
    pub newest: Step,
    /// Checkpoints that are kept, with their pieces.
    pub checkpoints: BTreeMap<Step, Vec<PieceRef>>,
    /// Checkpoints whose pieces are not all durable yet.
    pub pending: BTreeMap<Step, UnfinishedCheckpoint>,
    /// Versions that were begun since the last checkpoint, and failed.
    pub failed: usize,
    /// Checkpoints that came about.
    pub count: u64,
}

impl AgreedState {
    /// A cluster of these controllers, in which so many more nodes have credentials.
    #[must_use]
    pub fn new(controllers: u64, nodes_max: u64, is_ephemeral: bool) -> Self {
        let first: Vec<NodeId> = (1..=controllers).map(NodeId).collect();
        let credentials = crate::access::credentials(controllers, 0);
        let credentials = credentials.filter(|(node, _)| node.0 <= nodes_max);
        let credentials = credentials.map(|(node, mut credential)| {
            credential.is_ephemeral = is_ephemeral && node.0 > controllers;
            (node, credential)
        });
        let state = State::new(ClusterId(7)).with_controllers(crate::access::contacts(&first));
        Self {
            state: state.with_credentials(credentials),
            newest: Step(0),
            checkpoints: BTreeMap::new(),
            pending: BTreeMap::new(),
            failed: 0,
            count: 0,
        }
    }

    fn apply(&mut self, entry: Entry) -> bool {
        let index = self.state.applied() + 1;
        self.state.apply(index, entry).is_ok()
    }

    /// A worker is admitted.
    ///
    /// # Panics
    /// If it has no credential.
    pub fn admit(&mut self, node: NodeId, memory: Bytes) {
        let resources = Resources { memory, speed_permille: 1000, class: DeviceClass::Processors };
        let boot = 1;
        let role = Role::Worker;
        let contact = Contact::of_node(node);
        let admit = MemberChange::Admit { node, boot, role, resources, contact };
        assert!(self.apply(Entry::Members(vec![admit])), "node {node} has a credential");
    }

    /// A node is removed by an operator.
    pub fn remove(&mut self, node: NodeId) -> bool {
        self.apply(Entry::Access(AccessChange::Revoked { node }))
    }

    /// A change of authority begins or is further.
    ///
    /// # Panics
    /// If it does not follow.
    pub fn rotate(&mut self, change: AuthorityChange) {
        let is_next = self.apply(Entry::Access(AccessChange::Authority(change)));
        assert!(is_next, "a step that was decided by the state follows");
    }

    /// Pieces and texts that nodes keep.
    #[must_use]
    pub fn referred(&self, text: Digest) -> StoreReferences {
        let versions = self.checkpoints.keys().chain(self.pending.keys()).chain(&[Step(0)]);
        let named = |version: &Step| CheckpointId { run: RUN, version: *version };
        StoreReferences { versions: versions.map(named).collect(), data: Some(vec![text]) }
    }

    /// A layer is durable. Yields whether its version has become a checkpoint.
    pub fn note_durable(&mut self, piece: PieceRef, kept: usize) -> bool {
        let Some(pending) = self.pending.get_mut(&piece.version) else { return false };
        pending.durable.insert(piece.layer, piece);
        if pending.durable.len() < pending.owners.len() {
            return false;
        }
        let pending = self.pending.remove(&piece.version).expect("looked at above");
        self.checkpoints.insert(piece.version, pending.durable.into_values().collect());
        while self.checkpoints.len() > kept {
            self.checkpoints.pop_first();
        }
        (self.failed, self.count) = (0, self.count + 1);
        true
    }

    /// A version does not become a checkpoint. Yields whether it was to.
    pub fn give_up(&mut self, version: Step) -> bool {
        let was_pending = self.pending.remove(&version).is_some();
        self.failed += usize::from(was_pending);
        was_pending
    }

    /// Members that were removed.
    #[must_use]
    pub fn members(&self) -> BTreeSet<NodeId> {
        let live = self.state.members().iter().filter(|(_, member)| member.is_live());
        live.map(|(node, _)| *node).collect()
    }
}
