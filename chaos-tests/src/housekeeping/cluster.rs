//! The state of a life of housekeeping: its members, the links between them, and the state that they
//! agreed on. The checks read it, and change nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointId, CheckpointStore, Manifest, PieceName};
use zbelastic_consensus::member::Role;
use zbelastic_identity::UnixSeconds;
use zbelastic_policy::data::{DataFetchOutcome, DataName};
use zbelastic_policy::data_chunks::ChunkHashes;
use zbelastic_policy::piece::PieceRef;
use zbelastic_policy::trust::{ClaimContext, MemberClaim, check_claim};
use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_transport::ChunkCheck;
use zbelastic_types::{Bytes, Digest, LayerId, NodeId, StageIndex, Step};

use super::agreed::{AgreedState, RUN};
use super::disk::TEXT_CHUNK;
use super::member::{HousekeepingMember, MemberProcessState, peer_role};
use super::options::HousekeepingOptions;
use super::plans::PlanHistory;
use super::texts::TextRequest;
use super::world::{MemberMessage, SECOND_US};
use crate::queue::VirtualTime;

/// When a life begins, on the calendar.
const BEGINNING: UnixSeconds = UnixSeconds(1_700_000_000);

/// The members of a life, and the links between them.
pub(super) struct HousekeepingCluster {
    pub(super) options: HousekeepingOptions,
    pub(super) now: VirtualTime,
    pub(super) members: BTreeMap<NodeId, HousekeepingMember>,
    /// Which members are connected, each pair with the lower number first.
    pub(super) links: BTreeSet<(NodeId, NodeId)>,
    pub(super) agreed: AgreedState,
    pub(super) plans: PlanHistory,
    /// The hash and length of the text that every member keeps.
    pub(super) text_name: DataName,
    /// The hashes of its chunks.
    pub(super) text_hashes: ChunkHashes,
    /// Hours that passed at once.
    pub(super) skipped_s: u64,
    /// Bytes of all layers of a checkpoint.
    pub(super) checkpoint_bytes: Bytes,
}

impl HousekeepingCluster {
    /// The leader: the first controller that runs.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let controllers = self.up().filter(|member| member.role == Role::Controller);
        let valid = |member: &&HousekeepingMember| !member.is_ended(self.calendar());
        controllers.filter(valid).map(|member| member.node).next()
    }

    pub(super) fn up(&self) -> impl Iterator<Item = &HousekeepingMember> {
        self.members.values().filter(|member| member.is_up())
    }

    pub(super) fn controllers(&self) -> BTreeSet<NodeId> {
        (1..=self.options.controllers).map(NodeId).collect()
    }

    pub(super) fn is_paused(&self, (node, life): (NodeId, u64)) -> bool {
        let member = &self.members[&node];
        member.running == MemberProcessState::Paused && member.life == life
    }

    /// A process in one of its lives, if it runs.
    pub(super) fn process(
        &mut self,
        (node, life): (NodeId, u64),
    ) -> Option<&mut HousekeepingMember> {
        self.members.get_mut(&node).filter(|member| member.is_up() && member.life == life)
    }

    /// The time that a right clock shows.
    pub(super) fn calendar(&self) -> UnixSeconds {
        BEGINNING.plus(self.skipped_s + self.now.0 / SECOND_US)
    }

    /// The layers that a checkpoint has.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerId> + use<> {
        (0..self.options.layers).map(LayerId)
    }

    pub(super) fn manifest(&self, version: Step) -> Option<Manifest> {
        let pieces = self.agreed.checkpoints.get(&version)?;
        let layers: Vec<PieceName> = pieces.iter().map(|piece| piece.name()).collect();
        Some(Manifest {
            version: CheckpointId { run: RUN, version },
            layers,
            document: vec![1],
            data: self.text_name.hash,
            program: "life".to_owned(),
            seed: 0,
        })
    }

    /// What a node returns to a member that requests a piece.
    pub(super) fn serve(
        &self,
        node: NodeId,
        from: NodeId,
        piece: PieceRef,
    ) -> Option<Arc<Vec<u8>>> {
        let holder = self.members.get(&from).filter(|member| member.is_up())?;
        if !self.is_linked(node, from) {
            return None;
        }
        if holder.is_hostile {
            return Some(Arc::new(super::hostile::served(piece)));
        }
        let offered = holder.process.offered.get(&piece).cloned();
        let stored = || Some(Arc::new(holder.disk.store()?.get(piece.name()).ok()?));
        offered.or_else(stored)
    }

    /// The sound bytes of a piece in the store of a member.
    pub(super) fn sound(&self, node: NodeId, piece: PieceRef) -> bool {
        let store = self.members[&node].disk.store();
        let bytes = store.and_then(|store| store.get(piece.name()).ok());
        bytes.is_some_and(|bytes| digest_of(&bytes) == Some(piece.digest))
    }

    /// Whether so many seconds are over since a moment.
    pub(super) fn is_over(&self, since: VirtualTime, seconds: u64) -> bool {
        self.now.0 >= since.0 + seconds * SECOND_US
    }

    pub(super) fn is_linked(&self, one: NodeId, other: NodeId) -> bool {
        self.links.contains(&pair(one, other))
    }

    /// Whether what a message claims counts with a node.
    pub(super) fn counts(&self, node: NodeId, from: NodeId, message: &MemberMessage) -> bool {
        let plan = self.plans.current();
        let claim = match message {
            MemberMessage::Collect(_) => MemberClaim::Collect,
            MemberMessage::KeepData(name) => MemberClaim::KeepData(*name),
            MemberMessage::HeldOut => MemberClaim::HeldOut,
            MemberMessage::StageReport => MemberClaim::StageReport {
                generation: plan.map(|plan| plan.generation).unwrap_or_default(),
                stage: StageIndex(0),
            },
            MemberMessage::Keep(_)
            | MemberMessage::Kept(_)
            | MemberMessage::NotKept(_)
            | MemberMessage::Keeping(..)
            | MemberMessage::SaveFailed(_)
            | MemberMessage::Contacts(_)
            | MemberMessage::Disk(_) => return true,
        };
        let own = peer_role(self.members[&node].role);
        let job_data = [self.text_name];
        let known = ClaimContext {
            own,
            plan: plan.map(|plan| &**plan),
            had_head: false,
            job_data: &job_data,
        };
        check_claim((from, peer_role(self.members[&from].role)), claim, known).is_ok()
    }

    /// The result of a request of a node for hashes, chunks or all of the text.
    pub(super) fn served_text(&self, node: NodeId, request: &TextRequest) -> DataFetchOutcome {
        match request {
            TextRequest::Hashes(other) => self.served_hashes(node, *other),
            TextRequest::Chunks(others) => self.served_chunks(node, others),
            TextRequest::Whole(other) => self.served_whole(node, *other),
        }
    }

    /// The node with this id, if `node` is connected to it.
    fn reached(&self, node: NodeId, other: NodeId) -> Option<&HousekeepingMember> {
        let is_linked = self.is_linked(node, other);
        self.members.get(&other).filter(|member| is_linked && member.is_up())
    }

    fn served_hashes(&self, node: NodeId, other: NodeId) -> DataFetchOutcome {
        let name = self.text_name;
        let there = self.reached(node, other);
        let found = there.and_then(|member| Some((member, member.texts.served_hashes(name.hash)?)));
        match found {
            None => DataFetchOutcome::Missing,
            Some((member, list))
                if !member.is_hostile && ChunkHashes::decode(name, &list, TEXT_CHUNK).is_ok() =>
            {
                DataFetchOutcome::Sound { damaged: Vec::new() }
            }
            Some(_) => DataFetchOutcome::Damaged(vec![other]),
        }
    }

    fn served_whole(&self, node: NodeId, other: NodeId) -> DataFetchOutcome {
        let name = self.text_name;
        let there = self.reached(node, other);
        let found = there.and_then(|member| Some((member, member.texts.get(name.hash)?)));
        match found {
            None => DataFetchOutcome::Missing,
            Some((member, copy)) if !member.is_hostile && DataName::of(&copy) == name => {
                DataFetchOutcome::Sound { damaged: Vec::new() }
            }
            Some(_) => DataFetchOutcome::Damaged(vec![other]),
        }
    }

    /// Each chunk that is not sound here comes from any of these that has it sound.
    fn served_chunks(&self, node: NodeId, others: &[NodeId]) -> DataFetchOutcome {
        let lacks = |chunk: &u64| !self.has_chunk(&self.members[&node], *chunk);
        let wanted: Vec<u64> = (0..self.text_chunks()).filter(lacks).collect();
        let there = others.iter().filter_map(|other| self.reached(node, *other));
        let there: Vec<_> =
            there.filter(|member| member.texts.get(self.text_name.hash).is_some()).collect();
        let is_whole = |member: &HousekeepingMember| {
            wanted.iter().all(|chunk| !member.is_hostile && self.has_chunk(member, *chunk))
        };
        let damaged = there.iter().filter(|member| !is_whole(member));
        let damaged: Vec<NodeId> = damaged.map(|member| member.node).collect();
        let is_served = wanted.iter().all(|chunk| {
            there.iter().any(|member| !member.is_hostile && self.has_chunk(member, *chunk))
        });
        match is_served {
            true => DataFetchOutcome::Sound { damaged },
            false if damaged.is_empty() => DataFetchOutcome::Missing,
            false => DataFetchOutcome::Damaged(damaged),
        }
    }

    /// Number of chunks of the text.
    pub(super) fn text_chunks(&self) -> u64 {
        TEXT_CHUNK.count(self.text_name.length)
    }

    /// Whether a chunk of a member's copy of the text is sound.
    pub(super) fn has_chunk(&self, member: &HousekeepingMember, chunk: u64) -> bool {
        let Some(copy) = member.texts.get(self.text_name.hash) else { return false };
        let mut chunks = copy.chunks(TEXT_CHUNK.bytes() as usize);
        chunks.nth(chunk as usize).is_some_and(|bytes| self.text_hashes.is_sound(chunk, bytes))
    }

    /// A member that runs and is not hostile.
    pub(super) fn victim(&self, draw: u64) -> Option<NodeId> {
        let up: Vec<NodeId> =
            self.up().filter(|member| !member.is_hostile).map(|member| member.node).collect();
        (!up.is_empty()).then(|| up[(draw % up.len() as u64) as usize])
    }

    /// Since when a member's certificate is over though it could have another one.
    pub(super) fn note_certificates(&mut self) {
        let now = self.calendar();
        let is_led = self.leader().is_some();
        let at = self.now;
        for member in self.members.values_mut().filter(|member| member.is_up()) {
            let is_over = is_led && member.is_ended(now);
            member.ended_since = is_over.then(|| member.ended_since.unwrap_or(at));
        }
    }

    /// Whether a second begins.
    pub(super) const fn is_second(&self) -> bool {
        self.now.0.is_multiple_of(SECOND_US)
    }
}

/// The link between two nodes, the lower number first.
pub(super) const fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    if one.0 < other.0 { (one, other) } else { (other, one) }
}

/// The digest of the layer in `bytes`.
fn digest_of(bytes: &[u8]) -> Option<Digest> {
    LayerImage::decode(bytes).ok().map(|image| layer_digest(&image))
}
