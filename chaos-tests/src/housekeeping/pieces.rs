//! Checkpoints of a life: begun, written, copied to other members, removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_policy::collect::collect_garbage;
use zbelastic_policy::disk_space::{DiskSpaceChange, NodeDisks};
use zbelastic_policy::keep_queue::KeepReport;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_policy::piece_copies::PieceCopyAction;
use zbelastic_trainer::elastic::{LayerImage, image_bytes, layer_digest};
use zbelastic_types::{Bytes, LayerId, NodeId, Step};

use super::agreed::{RUN, UnfinishedCheckpoint};
use super::check::HousekeepingMarker;
use super::options::HousekeepingOptions;
use super::surroundings::HousekeepingSurroundings;
use super::world::{HousekeepingEvent, MemberMessage};

/// Steps from one checkpoint to the next.
const STEPS: u64 = 4;

/// The bytes that a layer has at a version. Layers differ in length, versions do not.
pub(super) fn image_of(layer: u32, version: u64) -> LayerImage {
    let len = 5 + 3 * layer as usize;
    let floats = |part: u64| {
        let first = (version * 7 + u64::from(layer) * 3 + part) as f32;
        (0..len).map(|index| first + index as f32).collect()
    };
    let w = floats(0);
    let m = floats(1);
    let v = floats(2);
    LayerImage { layer: LayerId(layer), version: Step(version), w, m, v }
}

pub(super) fn bytes_of(layer: u32, version: u64) -> u64 {
    image_bytes(image_of(layer, version).state_len())
}

/// A piece with its bytes.
pub(super) fn piece_of(layer: u32, version: u64) -> (PieceRef, Vec<u8>) {
    let image = image_of(layer, version);
    let digest = layer_digest(&image);
    let bytes = image.encode();
    let layer = image.layer;
    let version = image.version;
    let length = bytes.len() as u64;
    (PieceRef { run: RUN, version, layer, digest, length }, bytes)
}

/// Begins checkpoints, writes their pieces and requests copies of them.
pub(super) struct MemberCheckpoints {
    /// From one checkpoint to the next.
    every_us: u64,
    /// The longest that a piece takes to be written.
    write_us: u64,
    /// Copies of a piece that are wanted on other nodes.
    copies: usize,
    /// Number of checkpoints that are kept.
    kept: usize,
}

impl MemberCheckpoints {
    pub(super) fn new(options: &HousekeepingOptions) -> Self {
        Self {
            every_us: options.checkpoint_us,
            write_us: options.write_us,
            copies: options.copies,
            kept: options.kept,
        }
    }

    /// A version is sealed that becomes a checkpoint: the holders of its layers write them.
    pub(super) fn begin_checkpoint(&self, env: &mut HousekeepingSurroundings<'_>) {
        env.queue.push(env.cluster.now.after(self.every_us), HousekeepingEvent::Checkpoint);
        let plan = env.cluster.plans.current().cloned();
        let Some((plan, leader)) = plan.zip(env.cluster.leader()) else { return };
        if env.is_held_for_logs(leader) {
            return;
        }
        // Nothing is sealed while the leader lacks a connection with the node of a stage.
        let lives = |node: &NodeId| {
            let member = env.cluster.members.get(node).filter(|member| member.is_up());
            member.filter(|_| env.cluster.is_linked(leader, *node)).map(|member| member.life)
        };
        let stage_nodes: Option<Vec<(NodeId, u64)>> =
            plan.stages.iter().map(|at| Some((at.node, lives(&at.node)?))).collect();
        let Some(stage_nodes) = stage_nodes else { return };
        env.cluster.agreed.newest = Step(env.cluster.agreed.newest.0 + STEPS);
        let version = env.cluster.agreed.newest;
        let owner = |layer: LayerId| (layer, stage_nodes[layer.index() % stage_nodes.len()]);
        let owners: BTreeMap<_, _> = env.cluster.layers().map(owner).collect();
        let begun = env.cluster.now;
        let generation = plan.generation;
        let durable = BTreeMap::new();
        env.line(|| format!("checkpoint {version} of plan {generation} begins"));
        let pending = UnfinishedCheckpoint { begun, generation, owners: owners.clone(), durable };
        env.cluster.agreed.pending.insert(version, pending);
        env.cluster.members.values_mut().for_each(|member| member.process.newest = version);
        for (layer, (node, _)) in owners {
            let (piece, bytes) = piece_of(layer.0, version.0);
            self.save(env, node, (piece, bytes));
        }
    }

    fn save(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        (piece, bytes): (PieceRef, Vec<u8>),
    ) {
        let generation = env.cluster.agreed.pending[&piece.version].generation;
        let copies = self.copies;
        let at = env.cluster.now.after(env.draws.between(100, self.write_us));
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let process = &mut member.process;
        let others = process.roster.keepers(&process.contacts, piece.layer);
        // Of every other version others have the request before the disk here has the piece, as of
        // the last one of a run.
        let is_offered = (piece.version.0 / STEPS).is_multiple_of(2);
        let next = process.copies.begin((piece, generation), copies, (others, is_offered));
        process.offered.insert(piece, Arc::new(bytes));
        env.queue.push(at, HousekeepingEvent::Written { at: (node, member.life), piece });
        self.continue_copying(env, node, piece, next);
    }

    /// A piece of a member's own comes to its disk.
    pub(super) fn handle_written(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        at: (NodeId, u64),
        piece: PieceRef,
    ) {
        let now = env.cluster.now;
        let Some(member) = env.cluster.process(at) else { return };
        let Some(bytes) = member.process.offered.get(&piece).cloned() else { return };
        let has_space = member.disk.disk_space().check(Bytes(piece.length)).is_ok();
        let is_taken = has_space && !member.disk.is_stuck;
        let store = member.disk.store().filter(|_| is_taken).cloned();
        let put = store.map(|store| store.put(piece.name(), &bytes));
        let failure = put.as_ref().and_then(|put| put.as_ref().err()).map(ToString::to_string);
        let is_here = put.is_some_and(|put| put.is_ok());
        if member.disk.take_failure() {
            member.able_since = now;
        }
        member.process.stored_bytes += u64::from(is_here) * piece.length;
        let next = member.process.copies.note_local(piece, is_here);
        if is_here {
            env.check.note_holder(piece, at.0);
        } else {
            env.check.markers.note(HousekeepingMarker::OwnStoreRefused);
            env.line(|| format!("n{} has no room: {}, or {failure:?}", at.0, !has_space));
        }
        self.continue_copying(env, at.0, piece, next);
    }

    /// All layers of a version are durable, or one more.
    fn note_durable(&self, env: &mut HousekeepingSurroundings<'_>, piece: PieceRef) {
        if !env.cluster.agreed.note_durable(piece, self.kept) {
            return;
        }
        let version = piece.version;
        env.line(|| format!("checkpoint {version} is there"));
        env.check.markers.note(HousekeepingMarker::Checkpoint);
        // One that was late may be older than all that are kept.
        let Some(manifest) = env.cluster.manifest(version) else { return };
        let controllers = env.cluster.controllers();
        for node in controllers {
            let member = env.cluster.members.get(&node).filter(|member| member.is_up());
            // A disk that takes nothing has no manifest either.
            if let Some(store) = member.and_then(|member| member.disk.store()) {
                let _ = store.put_manifest(&manifest);
            }
        }
        self.collect_unused(env);
    }

    /// Every node removes what no checkpoint refers to.
    fn collect_unused(&self, env: &mut HousekeepingSurroundings<'_>) {
        let Some(leader) = env.cluster.leader() else { return };
        let referred = env.cluster.agreed.referred(env.cluster.text_name.hash);
        for node in env.cluster.agreed.members() {
            if node == leader {
                self.collect_at(env, node, &referred);
            } else {
                env.send(leader, node, MemberMessage::Collect(referred.clone()));
            }
        }
    }

    pub(super) fn collect_at(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        referred: &StoreReferences,
    ) {
        let count = env.cluster.agreed.count;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let Some(store) = member.disk.store() else { return };
        // What is left is collected behind the next checkpoint.
        if collect_garbage(&**store, referred).is_err() {
            return;
        }
        env.check.note_collected(node, count);
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.process.keeping.note_referred(referred.versions.iter().copied());
    }

    /// Does what is next for a piece of a member's own.
    pub(super) fn continue_copying(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        piece: PieceRef,
        next: PieceCopyAction,
    ) {
        match next {
            PieceCopyAction::Wait => {}
            PieceCopyAction::Request(nodes) => {
                nodes.into_iter().for_each(|to| env.send(node, to, MemberMessage::Keep(piece)));
            }
            PieceCopyAction::Durable { copies, wanted, .. } => {
                self.end_copying(env, node, piece);
                if copies < wanted {
                    self.note_copies(env, node, piece, (copies, wanted));
                }
                self.note_durable(env, piece);
            }
            PieceCopyAction::Failed { wanted, .. } => {
                self.end_copying(env, node, piece);
                self.note_copies(env, node, piece, (0, wanted));
                let controllers = env.cluster.controllers();
                let failed = MemberMessage::SaveFailed(piece.version);
                controllers.into_iter().for_each(|to| env.send(node, to, failed.clone()));
            }
        }
    }

    /// A piece has fewer copies than are wanted.
    fn note_copies(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        piece: PieceRef,
        (copies, wanted): (usize, usize),
    ) {
        let PieceRef { layer, version, .. } = piece;
        if env.cluster.agreed.pending.contains_key(&version) {
            env.line(|| format!("layer {layer} of {version}: {copies} of {wanted} copies"));
        }
        env.check.check_copies(&env.cluster, node, piece, (copies, wanted));
    }

    fn end_copying(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId, piece: PieceRef) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.process.offered.remove(&piece);
    }

    /// Versions whose layers no node writes any more are given up.
    pub(super) fn drop_lost(&self, env: &mut HousekeepingSurroundings<'_>) {
        let members = env.cluster.agreed.members();
        let is_lost = |(node, life): &(NodeId, u64)| {
            let member = &env.cluster.members[node];
            member.life != *life || !members.contains(node)
        };
        let lost: Vec<Step> = { env.cluster.agreed.pending.iter() }
            .filter(|(_, pending)| {
                let open = pending.owners.iter();
                let mut open = open.filter(|(layer, _)| !pending.durable.contains_key(layer));
                open.any(|(_, owner)| is_lost(owner))
            })
            .map(|(version, _)| *version)
            .collect();
        for version in lost {
            env.cluster.agreed.give_up(version);
        }
    }

    pub(super) fn note_copy(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        from: NodeId,
        (piece, is_kept): (PieceRef, bool),
    ) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let next = member.process.copies.note_kept(piece, from, is_kept);
        self.continue_copying(env, node, piece, next);
    }

    /// Time passes for the pieces of a member.
    pub(super) fn tick_pieces(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let process = &mut member.process;
        let keeping = process.keeping.handle_tick();
        if std::mem::replace(&mut process.stored_bytes_before, process.stored_bytes)
            != process.stored_bytes
        {
            process.copies.note_written();
        }
        let late = process.copies.handle_tick();
        for KeepReport { piece, requested_by, left } in keeping {
            env.send(node, requested_by, MemberMessage::Keeping(piece, left));
        }
        for (piece, next) in late {
            env.check.markers.note(HousekeepingMarker::KeeperSilent);
            self.continue_copying(env, node, piece, next);
        }
    }

    /// A look at a member's disk.
    pub(super) fn tick_disk_space(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let checkpoint = env.cluster.checkpoint_bytes;
        let member = env.cluster.members.get_mut(&node).expect("a member");
        if !member.process.disk_watch.handle_tick() {
            return;
        }
        let store = Some(member.disk.disk_space());
        let disks = NodeDisks { store, data: Some(member.disk.log_space()) };
        let change = member.process.disk_watch.note(disks, checkpoint);
        let low = member.process.disk_watch.low();
        if let Some(space) = disks.reported() {
            env.report_disk(node, (space, low));
        }
        match change {
            Some(DiskSpaceChange::Low(_)) => {
                env.check.markers.note(HousekeepingMarker::DiskLow);
                self.collect_unused(env);
            }
            Some(DiskSpaceChange::Ample) | None => {}
        }
    }
}
