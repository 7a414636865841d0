//! What must hold in every life, and what a campaign must have seen.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_consensus::access::RotationPhase;
use zbelastic_planner::NodeResources;
use zbelastic_policy::data::DataName;
use zbelastic_policy::keep_quota::VERSIONS_AHEAD_MAX;
use zbelastic_policy::piece::PieceRef;
use zbelastic_types::{Bytes, NodeId, Step};

use super::cluster::HousekeepingCluster;
use super::member::HousekeepingMember;
use super::options::STORM_US;
use super::stores::ClosedStores;
use super::world::{MEMORY_AMPLE, MemberMessage, SECOND_US};
use crate::failure::{FailureKind, Invariant, LifeFailure};
use crate::queue::VirtualTime;

/// From a bit that flipped to a copy that is sound again: two passes over a disk, and a fetch.
const MENDED_S: u64 = 80;
/// From the request of a text to the text: five attempts.
const TEXT_S: u64 = 12;
/// From a removal that is agreed on, and from a connection with the leader, to the last connection
/// closed.
const BANNED_S: u64 = 1;
/// From the end of a certificate to another one: two attempts a minute apart, of which the first
/// may have come before the end, and the answer.
const RENEWED_S: u64 = 125;
/// From the end of the storm to when a checkpoint does not wait, and how long one takes then: a
/// copy holder that does not answer is given up after ten seconds, and may be picked for each of
/// two copies.
const SETTLED_S: u64 = 30;
const PLACED_S: u64 = 35;
/// Versions on a disk beyond those kept and those under way: one that is being collected, and the
/// next one.
const VERSIONS_BESIDE: usize = 2;

/// What lives came to. A campaign that did not see one of them has not tried it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HousekeepingMarker {
    /// A checkpoint came about.
    Checkpoint,
    /// The own store did not take a piece.
    OwnStoreRefused,
    /// An operation of a store's files failed, and the store was opened again.
    StoreReopened,
    /// A piece was not kept for another node, by the rule or for want of disk space.
    KeepRefused,
    /// A piece was to be kept, and could not be.
    KeepFailed,
    /// A copy holder did not answer for too long.
    KeeperSilent,
    /// A checkpoint failed, as too few members could take it.
    Excused,
    /// A rotten piece was fetched again.
    PieceMended,
    /// No node sent a sound copy of one.
    NobodyHasPiece,
    /// A damaged copy of a text was found and named.
    DamagedCopyNamed,
    /// A damaged store was put aside as its process started.
    StoreBegunAnew,
    /// A store that was found damaged while its process ran was put aside.
    StoreReplaced,
    /// A claim was refused.
    ClaimRefused,
    /// A hostile copy holder did not answer.
    HostileSilent,
    /// A member was banned by another.
    Banned,
    /// A certificate was renewed over a connection.
    Renewed,
    /// A certificate was renewed at the door.
    RenewedAtTheDoor,
    /// A disk became low.
    DiskLow,
    /// A plan left out a node.
    NodeLeftOut,
    /// An authority was retired, and another one alone is trusted.
    AuthorityRetired,
    /// A leader sealed nothing, since the logs of too many controllers were nearly full.
    HeldForLogs,
    /// It sealed again behind that.
    WentOnWithLogs,
}

impl HousekeepingMarker {
    /// Everything that can be seen.
    pub const ALL: [Self; 22] = [
        Self::Checkpoint,
        Self::OwnStoreRefused,
        Self::StoreReopened,
        Self::KeepRefused,
        Self::KeepFailed,
        Self::KeeperSilent,
        Self::Excused,
        Self::PieceMended,
        Self::NobodyHasPiece,
        Self::DamagedCopyNamed,
        Self::StoreBegunAnew,
        Self::StoreReplaced,
        Self::ClaimRefused,
        Self::HostileSilent,
        Self::Banned,
        Self::Renewed,
        Self::RenewedAtTheDoor,
        Self::DiskLow,
        Self::NodeLeftOut,
        Self::AuthorityRetired,
        Self::HeldForLogs,
        Self::WentOnWithLogs,
    ];
}

/// How often each was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HousekeepingMarkerCounts(BTreeMap<HousekeepingMarker, u64>);

impl HousekeepingMarkerCounts {
    /// It was seen once more.
    pub fn note(&mut self, seen: HousekeepingMarker) {
        *self.0.entry(seen).or_default() += 1;
    }

    /// How often it was.
    #[must_use]
    pub fn count(&self, seen: HousekeepingMarker) -> u64 {
        self.0.get(&seen).copied().unwrap_or_default()
    }

    /// Adds those of another life.
    pub fn merge(&mut self, other: &Self) {
        for (seen, count) in &other.0 {
            *self.0.entry(*seen).or_default() += count;
        }
    }
}

/// What the checks remember.
#[derive(Default)]
pub struct HousekeepingChecker {
    /// What this life came to.
    pub markers: HousekeepingMarkerCounts,
    /// The nodes that should have a piece: it was acknowledged there, and what was done to it since
    /// was mended.
    holders: BTreeMap<PieceRef, BTreeSet<NodeId>>,
    /// Versions of which a layer failed, which was looked at when it did.
    failed: BTreeSet<Step>,
    rotten: BTreeMap<(NodeId, PieceRef), VirtualTime>,
    /// Those of them that should have the piece once it is sound.
    to_mend: BTreeSet<(NodeId, PieceRef)>,
    rotten_texts: BTreeMap<NodeId, VirtualTime>,
    texts_missing: BTreeMap<NodeId, VirtualTime>,
    removed: BTreeMap<NodeId, VirtualTime>,
    /// When each node collected last, by the number of the checkpoint.
    collected: BTreeMap<NodeId, u64>,
    /// Stores that are closed.
    pub(super) stores: ClosedStores,
    /// Whether the run was held for want of space for logs when a version was to be sealed last.
    was_held: bool,
    /// The first failure of the life.
    pub(super) failure: Option<LifeFailure>,
}

impl HousekeepingChecker {
    pub(super) fn note_holder(&mut self, piece: PieceRef, node: NodeId) {
        self.holders.entry(piece).or_default().insert(node);
    }

    pub(super) fn note_lost_disk(&mut self, node: NodeId) {
        for nodes in self.holders.values_mut() {
            nodes.remove(&node);
        }
        self.rotten.retain(|(at, _), _| *at != node);
        self.to_mend.retain(|(at, _)| *at != node);
    }

    pub(super) fn note_rot(&mut self, node: NodeId, piece: PieceRef, now: VirtualTime) {
        if self.holders.entry(piece).or_default().remove(&node) {
            self.to_mend.insert((node, piece));
        }
        self.rotten.insert((node, piece), now);
    }

    pub(super) fn note_rotten_text(&mut self, node: NodeId, now: VirtualTime) {
        self.rotten_texts.insert(node, now);
    }

    pub(super) fn note_removed(&mut self, node: NodeId, now: VirtualTime) {
        self.removed.insert(node, now);
    }

    pub(super) fn note_collected(&mut self, node: NodeId, count: u64) {
        self.collected.insert(node, count);
    }

    /// A version is to be sealed, and the run is held for want of space for logs or not.
    pub(super) fn note_held(&mut self, is_held: bool) {
        match (std::mem::replace(&mut self.was_held, is_held), is_held) {
            (_, true) => self.markers.note(HousekeepingMarker::HeldForLogs),
            (true, false) => self.markers.note(HousekeepingMarker::WentOnWithLogs),
            (false, false) => {}
        }
    }

    /// The first failure of a life counts.
    pub(super) fn fail(&mut self, failure: LifeFailure) {
        self.failure.get_or_insert(failure);
    }

    fn broken(&mut self, invariant: Invariant, message: impl FnOnce() -> String) {
        self.fail(LifeFailure::safety(invariant, message()));
    }

    /// H11: a member that was removed is cut off by every member that is there, within a second.
    pub(super) fn check_bans(&mut self, cluster: &HousekeepingCluster) {
        let removed: Vec<(NodeId, VirtualTime)> =
            self.removed.iter().map(|(node, at)| (*node, *at)).collect();
        for (gone, since) in removed {
            let over = |member: &&HousekeepingMember| {
                let is_late = cluster.is_over(member.led_since.max(since), BANNED_S);
                member.node != gone && member.is_honest_and_up() && is_late
            };
            let open = cluster.members.values().filter(over);
            let open = open.map(|member| member.node).find(|node| cluster.is_linked(*node, gone));
            if let Some(node) = open {
                let message = || format!("n{gone} was removed at {since}, n{node} is connected");
                self.broken(Invariant::H11, message);
            }
        }
    }

    /// H12: no certificate is over for long while a process could have another one.
    pub(super) fn check_certificates(&mut self, cluster: &HousekeepingCluster) {
        let members = cluster.agreed.members();
        let late = cluster.members.values().filter(|member| {
            let is_over = member.ended_since.is_some_and(|since| cluster.is_over(since, RENEWED_S));
            is_over && !member.is_hostile && members.contains(&member.node)
        });
        if let Some(node) = late.map(|member| member.node).next() {
            self.broken(Invariant::H12, || format!("the certificate of n{node} ended long ago"));
        }
    }

    /// H13: a member refuses another one for the authority that made its certificate.
    pub(super) fn note_refused_authority(
        &mut self,
        cluster: &HousekeepingCluster,
        (one, other): (NodeId, NodeId),
        phase: Option<RotationPhase>,
    ) {
        let by = cluster.members[&other].authority.by;
        let trusts = &cluster.members[&one].authority.trusts;
        self.broken(Invariant::H13, || {
            format!("n{one} trusts {trusts:?}, the certificate of n{other} is by {by}: {phase:?}")
        });
    }

    /// H1: no store has more versions than are kept, under way, or failed since, and those that a
    /// hostile member may have kept in each life of the store's process.
    pub(super) fn check_disks(&mut self, cluster: &HousekeepingCluster) {
        let under_way = cluster.agreed.pending.len() + cluster.agreed.failed;
        let most = cluster.options.kept + VERSIONS_BESIDE + under_way;
        let ahead = if cluster.options.is_hostile { VERSIONS_AHEAD_MAX } else { 0 };
        let count = cluster.agreed.count;
        let leader = cluster.leader();
        for member in cluster.members.values().filter(|member| member.is_honest_and_up()) {
            let is_reached =
                leader.is_some_and(|at| at == member.node || cluster.is_linked(at, member.node));
            // What may go it learned with the last checkpoint.
            let is_due = cluster.is_over(member.led_since.max(member.able_since), 1)
                && self.collected.get(&member.node).is_some_and(|at| *at >= count);
            let Some(store) = member.disk.store().filter(|_| is_reached && is_due) else {
                continue;
            };
            // One that has stopped is opened again within a second.
            let Ok(names) = store.names() else { continue };
            let versions: BTreeSet<_> = names.iter().map(|name| name.version).collect();
            let found = versions.len().max(names.len().div_ceil(cluster.options.layers as usize));
            let most = most + ahead * (member.life as usize + 1);
            if found > most {
                let message = format!("n{} has {found} versions, {most} at most", member.node);
                return self.broken(Invariant::H1, || message);
            }
        }
    }

    /// H15: a store that is closed is opened again, or another one is begun.
    pub(super) fn check_closed(&mut self, cluster: &HousekeepingCluster) {
        if let Some(message) = self.stores.late(cluster) {
            self.broken(Invariant::H15, || message);
        }
    }

    /// H3: what rotted is sound again, as long as a disk has it sound.
    pub(super) fn check_rot(&mut self, cluster: &HousekeepingCluster) {
        let rotten: Vec<_> = self.rotten.iter().map(|(at, since)| (*at, *since)).collect();
        for ((node, piece), since) in rotten {
            let member = &cluster.members[&node];
            let is_kept = member
                .disk
                .store()
                .is_none_or(|store| store.record(piece.name()).is_ok_and(|r| r.is_some()));
            let is_sound = cluster.sound(node, piece);
            if is_sound || (member.is_up() && !is_kept) {
                self.rotten.remove(&(node, piece));
                if self.to_mend.remove(&(node, piece)) && is_sound {
                    self.note_holder(piece, node);
                }
                continue;
            }
            let can_mend = member.is_up() && member.has_disk();
            let mut others = cluster.members.values().filter(|other| other.is_honest_and_up());
            let known = member.process.roster.holders(&member.process.contacts);
            let is_there = others.any(|other| {
                let is_near = cluster.is_linked(node, other.node) && known.contains(&other.node);
                is_near && cluster.sound(other.node, piece)
            });
            if !can_mend || !is_there {
                self.rotten.insert((node, piece), cluster.now);
            } else if cluster.is_over(since, MENDED_S) {
                let message = format!(
                    "layer {} of {} rotted at n{node} at {since}",
                    piece.layer, piece.version
                );
                return self.broken(Invariant::H3, || message);
            }
        }
    }

    /// H3 for texts: a member that wants one has it, and a damaged one is fetched again.
    pub(super) fn check_texts(&mut self, cluster: &HousekeepingCluster) {
        let name = cluster.text_name;
        let has_sound = |member: &HousekeepingMember| {
            member.texts.get(name.hash).is_some_and(|bytes| DataName::of(&bytes) == name)
        };
        let mut late = None;
        for member in cluster.members.values().filter(|member| !member.is_hostile) {
            let node = member.node;
            let others = cluster.members.values().filter(|other| other.is_honest_and_up());
            let known = member.process.roster.holders(&member.process.contacts);
            let others = others.filter(|other| {
                cluster.is_linked(node, other.node)
                    && known.contains(&other.node)
                    && other.texts.get(name.hash).is_some()
            });
            let sources: Vec<&HousekeepingMember> = others.chain([member]).collect();
            // Each chunk is sound at one of them, and so are their hashes, or all of it.
            let is_there = (0..cluster.text_chunks())
                .all(|chunk| sources.iter().any(|source| cluster.has_chunk(source, chunk)));
            let is_checked = sources
                .iter()
                .any(|source| source.texts.hashes(name).is_some() || has_sound(source));
            let can = member.is_up() && is_there && is_checked;
            let is_missing = member.texts.get(name.hash).is_none();
            let (since, limit) = if is_missing {
                (&mut self.texts_missing, TEXT_S)
            } else {
                (&mut self.rotten_texts, MENDED_S)
            };
            if has_sound(member) {
                self.texts_missing.remove(&node);
                self.rotten_texts.remove(&node);
                continue;
            }
            let since = since.entry(node).or_insert(cluster.now);
            if !can {
                *since = cluster.now;
            } else if cluster.now.0 >= since.0 + limit * SECOND_US {
                late = Some((node, *since));
            }
        }
        if let Some((node, since)) = late {
            let message = || {
                format!(
                    "n{node} has no sound text since {since}, and each chunk is sound somewhere"
                )
            };
            self.broken(Invariant::H3, message);
        }
    }

    /// H2: when all is well, a checkpoint that was begun is placed soon.
    pub(super) fn check_placed(&mut self, cluster: &HousekeepingCluster) {
        let settled_at = VirtualTime(STORM_US + SETTLED_S * SECOND_US);
        let members = cluster.agreed.members();
        let begun = cluster.agreed.pending.iter();
        let mut open = begun.filter(|(version, _)| !self.failed.contains(version));
        let late = open.find(|(_, pending)| {
            let mut owners = pending.owners.values();
            let are_there = owners
                .all(|(node, life)| cluster.members[node].life == *life && members.contains(node));
            are_there && pending.begun >= settled_at && cluster.is_over(pending.begun, PLACED_S)
        });
        if let Some((version, pending)) = late {
            let owners = pending.owners.iter();
            let open = owners.filter(|(layer, _)| !pending.durable.contains_key(layer));
            let open: Vec<_> =
                open.map(|(layer, (node, _))| format!("layer {layer} of n{node}")).collect();
            let message = format!(
                "checkpoint {version} was begun at {}, and is not placed: {open:?}",
                pending.begun
            );
            self.fail(liveness(message));
        }
    }

    /// H2: a piece has fewer copies than are wanted only if too few members could have taken it,
    /// and none only if no member could.
    pub(super) fn check_copies(
        &mut self,
        cluster: &HousekeepingCluster,
        node: NodeId,
        piece: PieceRef,
        (copies, wanted): (usize, usize),
    ) {
        let Some(begun) = cluster.agreed.pending.get(&piece.version).map(|pending| pending.begun)
        else {
            return;
        };
        let able = cluster.members.values().filter(|member| {
            let is_near = member.node == node || cluster.is_linked(node, member.node);
            let is_able = member.is_honest_and_up() && member.has_disk();
            is_able && is_near && member.able_since < begun
        });
        let able = able.count();
        let layer = piece.layer;
        let version = piece.version;
        let enough = if copies == 0 { 1 } else { wanted };
        if copies == 0 {
            self.failed.insert(version);
        }
        if able >= enough {
            let message = format!(
                "layer {layer} of {version} has {copies} of {wanted} copies, and {able} members could take it"
            );
            self.broken(Invariant::H2, || message);
        } else {
            self.markers.note(HousekeepingMarker::Excused);
        }
    }

    /// H4: a member that reports to keep a piece has it.
    pub(super) fn check_kept(
        &mut self,
        cluster: &HousekeepingCluster,
        node: NodeId,
        piece: PieceRef,
    ) {
        if self.rotten.contains_key(&(node, piece)) {
            return;
        }
        if !cluster.sound(node, piece) {
            let layer = piece.layer;
            let version = piece.version;
            let message = || format!("n{node} says it keeps layer {layer} of {version}: not that");
            self.broken(Invariant::H4, message);
        }
        self.note_holder(piece, node);
    }

    /// H10: no message makes a node fetch what no layer can be.
    pub(super) fn check_fetch(
        &mut self,
        (node, from): (NodeId, NodeId),
        piece: PieceRef,
        most: Bytes,
    ) {
        let length = Bytes(piece.length);
        if length > most {
            let message = || format!("n{from} makes n{node} fetch {length}");
            self.broken(Invariant::H10, message);
        }
    }

    /// H10: what a hostile member sends, and what only others may send, changes nothing.
    pub(super) fn check_claimed(
        &mut self,
        cluster: &HousekeepingCluster,
        node: NodeId,
        from: NodeId,
        message: &MemberMessage,
    ) {
        let is_claim = match message {
            // It is fetched once at a time, and a sound copy stays.
            MemberMessage::KeepData(name) => *name != cluster.text_name,
            MemberMessage::Collect(_) | MemberMessage::HeldOut | MemberMessage::StageReport => true,
            MemberMessage::Keep(_)
            | MemberMessage::Kept(_)
            | MemberMessage::NotKept(_)
            | MemberMessage::Keeping(..)
            | MemberMessage::SaveFailed(_)
            | MemberMessage::Contacts(_)
            | MemberMessage::Disk(_) => false,
        };
        if is_claim && cluster.members[&from].is_hostile {
            let message = format!("n{node} believes n{from}: {message:?}");
            self.broken(Invariant::H10, || message);
        }
    }

    /// H10: no process ends because of what a hostile member sends.
    pub(super) fn check_end(
        &mut self,
        cluster: &HousekeepingCluster,
        node: NodeId,
        because_of: NodeId,
    ) {
        let is_removed = self.removed.contains_key(&node);
        if !is_removed && !cluster.members[&node].is_hostile {
            self.broken(Invariant::H10, || format!("n{because_of} ends n{node}"));
        }
    }

    /// H9: a store of checkpoints keeps no node from starting.
    pub(super) fn check_not_started(&mut self, node: NodeId, error: &str) {
        self.broken(Invariant::H9, || format!("n{node} does not start: {error}"));
    }

    /// H6: there is a plan while a node has memory for it, and no stage takes more than its node
    /// has.
    pub(super) fn check_plan(
        &mut self,
        cluster: &HousekeepingCluster,
        nodes: &[NodeResources],
        solved: Result<Vec<(NodeId, Bytes)>, String>,
    ) {
        let memory = |node: &NodeId| cluster.members[node].memory;
        let ample = nodes.iter().filter(|(node, _)| memory(node) == MEMORY_AMPLE).count();
        let message = match solved {
            Ok(stages) => {
                let over = stages.into_iter().find(|(node, taken)| *taken > memory(node));
                over.map(|(node, taken)| format!("the stage of n{node} takes {taken}"))
            }
            Err(why) => (ample > 0).then(|| format!("no plan, though {ample} have memory: {why}")),
        };
        if let Some(message) = message {
            self.broken(Invariant::H6, || message);
        }
    }

    /// H4 and H2 at the end of a life.
    pub(super) fn check_ending(&mut self, cluster: &HousekeepingCluster) {
        let Some((version, pieces)) = cluster.agreed.checkpoints.last_key_value() else {
            return self.check_any(cluster, None);
        };
        let version = *version;
        let pieces = pieces.clone();
        for piece in pieces {
            let holders = self.holders.get(&piece).cloned().unwrap_or_default();
            let should = holders.iter().any(|node| cluster.members[node].disk.store().is_some());
            let has = cluster.members.keys().any(|node| cluster.sound(*node, piece));
            if should && !has {
                let message = format!("layer {} of checkpoint {version} is nowhere", piece.layer);
                return self.broken(Invariant::H4, || message);
            }
        }
        self.check_any(cluster, Some(version));
    }

    /// After the storm a checkpoint is completed, if there is a plan.
    fn check_any(&mut self, cluster: &HousekeepingCluster, last: Option<Step>) {
        let is_recent = last.is_some_and(|version| version.0 + 40 > cluster.agreed.newest.0);
        let able = cluster.members.values().filter(|member| member.is_honest_and_up()).count();
        let is_possible = cluster.plans.current().is_some() && able > cluster.options.copies;
        if is_possible && !is_recent {
            let newest = cluster.agreed.newest;
            self.fail(liveness(format!(
                "{newest} steps are sealed, the last checkpoint is {last:?}"
            )));
        }
    }
}

fn liveness(message: String) -> LifeFailure {
    LifeFailure { kind: FailureKind::Liveness, invariant: Some(Invariant::H2), message }
}
