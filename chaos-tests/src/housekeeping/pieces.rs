//! Checkpoints of a life: begun, written, kept for others, removed, read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointId, CheckpointStore, Manifest, PieceName};
use zbelastic_policy::WorkCounter;
use zbelastic_policy::collect::collect_garbage;
use zbelastic_policy::keep_rule::check_keep;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_policy::piece_sink::PieceSink;
use zbelastic_policy::scrub::CorruptItem;
use zbelastic_trainer::elastic::{LayerImage, image_bytes, layer_digest};
use zbelastic_transport::ChunkSink;
use zbelastic_types::{Digest, LayerId, NodeId, Step};

use super::agreed::{RUN, UnfinishedCheckpoint};
use super::check::HousekeepingMarker;
use super::world::{FetchReason, HousekeepingEvent, HousekeepingWorld, MemberMessage, SECOND_US};

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
    image_bytes(image_of(layer, version).w.len())
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

impl HousekeepingWorld<'_> {
    /// A version is sealed that becomes a checkpoint: the holders of its layers write them.
    pub(super) fn begin_checkpoint(&mut self) {
        self.queue.push(self.now.after(self.options.checkpoint_us), HousekeepingEvent::Checkpoint);
        let plan = self.plans.current().cloned();
        let Some((plan, leader)) = plan.zip(self.leader()) else { return };
        // Nothing is sealed while the leader lacks a connection with the node of a stage.
        let lives = |node: &NodeId| {
            let member = self.members.get(node).filter(|member| member.is_up());
            member.filter(|_| self.is_linked(leader, *node)).map(|member| member.life)
        };
        let stage_nodes: Option<Vec<(NodeId, u64)>> =
            plan.stages.iter().map(|at| Some((at.node, lives(&at.node)?))).collect();
        let Some(stage_nodes) = stage_nodes else { return };
        self.agreed.newest = Step(self.agreed.newest.0 + STEPS);
        let version = self.agreed.newest;
        let owner = |layer: LayerId| (layer, stage_nodes[layer.index() % stage_nodes.len()]);
        let owners: BTreeMap<_, _> = self.layers().map(owner).collect();
        let begun = self.now;
        let generation = plan.generation;
        let durable = BTreeMap::new();
        self.line(|| format!("checkpoint {version} of plan {generation} begins"));
        let pending = UnfinishedCheckpoint { begun, generation, owners: owners.clone(), durable };
        self.agreed.pending.insert(version, pending);
        self.members.values_mut().for_each(|member| member.process.newest = version);
        for (layer, (node, _)) in owners {
            let (piece, bytes) = piece_of(layer.0, version.0);
            self.save(node, (piece, bytes));
        }
    }

    fn save(&mut self, node: NodeId, (piece, bytes): (PieceRef, Vec<u8>)) {
        let generation = self.agreed.pending[&piece.version].generation;
        let copies = self.options.copies;
        let at = self.now.after(self.draws.between(100, self.options.write_us));
        let member = self.members.get_mut(&node).expect("a member");
        let process = &mut member.process;
        let others = process.roster.keepers(&process.contacts, piece.layer);
        process.copies.begin((piece, generation), copies, others);
        process.offered.insert(piece, Arc::new(bytes));
        self.queue.push(at, HousekeepingEvent::Written { at: (node, member.life), piece });
    }

    /// A piece of a member's own comes to its disk.
    pub(super) fn handle_written(&mut self, at: (NodeId, u64), piece: PieceRef) {
        let Some(member) = self.process(at) else { return };
        let Some(bytes) = member.process.offered.get(&piece).cloned() else { return };
        let has_space =
            member.disk.disk_space().check(zbelastic_types::Bytes(piece.length)).is_ok();
        let is_taken = has_space && !member.disk.is_stuck;
        let store = member.disk.store().filter(|_| is_taken).cloned();
        let put = store.map(|store| store.put(piece.name(), &bytes));
        let failure = put.as_ref().and_then(|put| put.as_ref().err()).map(ToString::to_string);
        let is_here = put.is_some_and(|put| put.is_ok());
        member.process.stored_bytes += u64::from(is_here) * piece.length;
        let next = member.process.copies.note_local(piece, is_here);
        if is_here {
            self.check.note_holder(piece, at.0);
        } else {
            self.check.markers.note(HousekeepingMarker::OwnStoreRefused);
            self.line(|| format!("n{} has no room: {}, or {failure:?}", at.0, !has_space));
        }
        self.continue_copying(at.0, piece, next);
    }

    /// All layers of a version are durable, or one more.
    pub(super) fn note_durable(&mut self, piece: PieceRef) {
        if !self.agreed.note_durable(piece, self.options.kept) {
            return;
        }
        let version = piece.version;
        self.line(|| format!("checkpoint {version} is there"));
        self.check.markers.note(HousekeepingMarker::Checkpoint);
        // One that was late may be older than all that are kept.
        let Some(manifest) = self.manifest(version) else { return };
        let controllers = self.controllers();
        for node in controllers {
            let member = self.members.get(&node).filter(|member| member.is_up());
            // A disk that takes nothing has no manifest either.
            if let Some(store) = member.and_then(|member| member.disk.store()) {
                let _ = store.put_manifest(&manifest);
            }
        }
        self.collect_unused();
    }

    fn manifest(&self, version: Step) -> Option<Manifest> {
        let pieces = self.agreed.checkpoints.get(&version)?;
        let layers: Vec<PieceName> = pieces.iter().map(|piece| piece.name()).collect();
        Some(Manifest {
            version: CheckpointId { run: RUN, version },
            layers,
            document: vec![1],
            data: self.text_name().hash,
            program: "life".to_owned(),
            seed: 0,
        })
    }

    /// Every node removes what no checkpoint refers to.
    pub(super) fn collect_unused(&mut self) {
        let Some(leader) = self.leader() else { return };
        let referred = self.agreed.referred(self.text_name().hash);
        for node in self.agreed.members() {
            if node == leader {
                self.collect_at(node, &referred);
            } else {
                self.send(leader, node, MemberMessage::Collect(referred.clone()));
            }
        }
    }

    pub(super) fn collect_at(&mut self, node: NodeId, referred: &StoreReferences) {
        let count = self.agreed.count;
        let member = self.members.get_mut(&node).expect("a member");
        let Some(store) = member.disk.store() else { return };
        collect_garbage(&**store, referred).expect("a disk in memory does not fail");
        self.check.note_collected(node, count);
    }

    /// Another node requests that a piece is kept here.
    pub(super) fn keep_for(&mut self, node: NodeId, from: NodeId, piece: PieceRef) {
        let layer_bytes = self.layer_bytes.clone();
        let member = self.members.get_mut(&node).expect("a member");
        let job = Some((RUN, layer_bytes.as_slice()));
        let is_kept = check_keep(piece, job, member.process.newest).is_ok()
            && member.process.keeping.push(piece, from).is_ok();
        if is_kept {
            self.keep_next(node);
        } else {
            self.check.markers.note(HousekeepingMarker::KeepRefused);
            self.send(node, from, MemberMessage::NotKept(piece));
        }
    }

    fn keep_next(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).expect("a member");
        if let Some((piece, from)) = member.process.keeping.poll() {
            self.fetch(node, from, piece, FetchReason::Keep);
        }
    }

    /// A piece is being sent here.
    pub(super) fn fetch(
        &mut self,
        node: NodeId,
        from: NodeId,
        piece: PieceRef,
        reason: FetchReason,
    ) {
        let took = self.draws.between(100, self.options.write_us) + self.latency();
        self.check_fetch(node, from, piece);
        let at = (node, self.members[&node].life);
        self.queue
            .push(self.now.after(took), HousekeepingEvent::Fetched { at, from, piece, reason });
    }

    pub(super) fn handle_fetched(
        &mut self,
        at: (NodeId, u64),
        (from, piece): (NodeId, PieceRef),
        reason: FetchReason,
    ) {
        let node = at.0;
        let served = self.serve(node, from, piece);
        let Some(member) = self.process(at) else { return };
        let store = member.disk.store().filter(|_| !member.disk.is_stuck).cloned();
        let is_here = store.as_ref().is_some_and(|store| {
            matches!(reason, FetchReason::Keep) && matches!(store.record(piece.name()), Ok(Some(_)))
        });
        let has_space =
            member.disk.disk_space().check(zbelastic_types::Bytes(piece.length)).is_ok();
        let store = store.filter(|_| has_space);
        let is_kept = is_here
            || store.zip(served).is_some_and(|(store, bytes)| {
                let mut sink = PieceSink::new(store, piece, WorkCounter::default());
                sink.write(0, &bytes).is_ok() && sink.finish().is_ok()
            });
        member.process.stored_bytes += u64::from(is_kept) * piece.length;
        match reason {
            FetchReason::Keep => self.answer_keep(node, from, (piece, is_kept)),
            FetchReason::Mend(others) if !is_kept => self.mend(node, piece, others),
            FetchReason::Mend(_) => self.check.markers.note(HousekeepingMarker::PieceMended),
        }
    }

    fn answer_keep(&mut self, node: NodeId, from: NodeId, (piece, is_kept): (PieceRef, bool)) {
        if is_kept {
            self.check_kept(node, piece);
        } else {
            self.check.markers.note(HousekeepingMarker::KeepFailed);
        }
        let answer =
            if is_kept { MemberMessage::Kept(piece) } else { MemberMessage::NotKept(piece) };
        self.send(node, from, answer);
        let member = self.members.get_mut(&node).expect("a member");
        member.process.keeping.note_done(piece, from);
        self.keep_next(node);
    }

    /// What a node returns to a member that requests a piece.
    fn serve(&self, node: NodeId, from: NodeId, piece: PieceRef) -> Option<Arc<Vec<u8>>> {
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

    /// A second's worth of reading again, on each disk.
    pub(super) fn scrub(&mut self) {
        let up: Vec<NodeId> =
            self.up().filter(|member| !member.is_hostile).map(|member| member.node).collect();
        for node in up {
            let member = self.members.get_mut(&node).expect("a member");
            let Some(store) = member.disk.store().cloned() else { continue };
            let rotten = member.process.scrubber.step(&*store);
            let others = member.process.roster.holders(&member.process.contacts);
            match rotten {
                Some(CorruptItem::Piece { piece, .. }) => {
                    self.line(|| format!("n{node} finds layer {} rotten", piece.layer));
                    self.mend(node, piece, others);
                }
                Some(CorruptItem::Data(name)) => {
                    self.line(|| format!("n{node} finds its text rotten"));
                    self.fetch_text(node, name, others);
                }
                None => {}
            }
        }
    }

    /// A piece is fetched again from the first of these nodes that has it.
    fn mend(&mut self, node: NodeId, piece: PieceRef, mut others: Vec<NodeId>) {
        if others.is_empty() {
            return self.check.markers.note(HousekeepingMarker::NobodyHasPiece);
        }
        let from = others.remove(0);
        self.fetch(node, from, piece, FetchReason::Mend(others));
    }

    /// Time passes for the pieces of a member.
    pub(super) fn tick_pieces(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).expect("a member");
        let process = &mut member.process;
        let keeping = process.keeping.handle_tick(process.stored_bytes);
        if std::mem::replace(&mut process.stored_bytes_before, process.stored_bytes)
            != process.stored_bytes
        {
            process.copies.note_written();
        }
        let late = process.copies.handle_tick();
        for (piece, to) in keeping {
            self.send(node, to, MemberMessage::Keeping(piece));
        }
        for (piece, next) in late {
            self.check.markers.note(HousekeepingMarker::KeeperSilent);
            self.continue_copying(node, piece, next);
        }
    }

    /// Versions whose layers no node writes any more are given up.
    pub(super) fn drop_lost(&mut self) {
        let members = self.agreed.members();
        let is_lost = |(node, life): &(NodeId, u64)| {
            let member = &self.members[node];
            member.life != *life || !members.contains(node)
        };
        let lost: Vec<Step> = { self.agreed.pending.iter() }
            .filter(|(_, pending)| {
                let open = pending.owners.iter();
                let mut open = open.filter(|(layer, _)| !pending.durable.contains_key(layer));
                open.any(|(_, owner)| is_lost(owner))
            })
            .map(|(version, _)| *version)
            .collect();
        for version in lost {
            self.agreed.give_up(version);
        }
    }

    /// The sound bytes of a piece in the store of a member.
    pub(super) fn sound(&self, node: NodeId, piece: PieceRef) -> bool {
        let store = self.members[&node].disk.store();
        let bytes = store.and_then(|store| store.get(piece.name()).ok());
        bytes.is_some_and(|bytes| digest_of(&bytes) == Some(piece.digest))
    }

    /// Whether so many seconds are over since a moment.
    pub(super) fn is_over(&self, since: crate::queue::VirtualTime, seconds: u64) -> bool {
        self.now.0 >= since.0 + seconds * SECOND_US
    }
}

/// The digest of the layer in `bytes`.
fn digest_of(bytes: &[u8]) -> Option<Digest> {
    LayerImage::decode(bytes).ok().map(|image| layer_digest(&image))
}
