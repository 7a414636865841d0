//! Pieces of a life that members keep for others, and read again.

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_policy::WorkCounter;
use zbelastic_policy::keep_queue::BegunPiece;
use zbelastic_policy::keep_rule::check_keep;
use zbelastic_policy::piece::PieceRef;
use zbelastic_policy::piece_sink::PieceSink;
use zbelastic_policy::scrub::CorruptItem;
use zbelastic_transport::ChunkSink;
use zbelastic_types::{Bytes, NodeId};

use super::agreed::RUN;
use super::check::HousekeepingMarker;
use super::surroundings::HousekeepingSurroundings;
use super::texts::TextFetches;
use super::world::{FetchReason, HousekeepingEvent, MemberMessage};

/// Fetches pieces to keep them for other members, and again where a disk damaged them.
pub(super) struct MemberKeeping {
    /// Bytes of each layer of a checkpoint.
    pub(super) layer_bytes: Vec<u64>,
    /// The longest that a piece takes to be fetched.
    pub(super) write_us: u64,
}

impl MemberKeeping {
    /// Another node requests that a piece is kept here.
    pub(super) fn keep_for(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        from: NodeId,
        piece: PieceRef,
    ) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let job = Some((RUN, self.layer_bytes.as_slice()));
        let is_kept = check_keep(piece, job, member.process.newest).is_ok()
            && member.process.keeping.push(piece, from).is_ok();
        if is_kept {
            self.keep_next(env, node);
        } else {
            env.check.markers.note(HousekeepingMarker::KeepRefused);
            env.send(node, from, MemberMessage::NotKept(piece));
        }
    }

    fn keep_next(&self, env: &mut HousekeepingSurroundings<'_>, node: NodeId) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let begun: Vec<_> = std::iter::from_fn(|| member.process.keeping.poll()).collect();
        for BegunPiece { piece, requested_by, arrived, .. } in begun {
            self.fetch(env, node, requested_by, piece, FetchReason::Keep(arrived));
        }
    }

    /// A piece is fetched from a member.
    fn fetch(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        from: NodeId,
        piece: PieceRef,
        reason: FetchReason,
    ) {
        let took = env.draws.between(100, self.write_us) + env.latency();
        let most = self.layer_bytes.iter().max().copied().unwrap_or_default();
        env.check.check_fetch((node, from), piece, Bytes(most));
        let at = (node, env.cluster.members[&node].life);
        env.queue.push(
            env.cluster.now.after(took),
            HousekeepingEvent::Fetched { at, from, piece, reason },
        );
    }

    pub(super) fn handle_fetched(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        at: (NodeId, u64),
        (from, piece): (NodeId, PieceRef),
        reason: FetchReason,
    ) {
        let node = at.0;
        let served = env.cluster.serve(node, from, piece);
        let now = env.cluster.now;
        let Some(member) = env.cluster.process(at) else { return };
        let store = member.disk.store().filter(|_| !member.disk.is_stuck).cloned();
        let is_here = store.as_ref().is_some_and(|store| {
            matches!(reason, FetchReason::Keep(_))
                && matches!(store.record(piece.name()), Ok(Some(_)))
        });
        let has_space = member.disk.disk_space().check(Bytes(piece.length)).is_ok();
        let store = store.filter(|_| has_space);
        let is_kept = is_here
            || store.zip(served).is_some_and(|(store, bytes)| {
                let mut sink = PieceSink::new(store, piece, WorkCounter::default());
                sink.write(0, &bytes).is_ok() && sink.finish().is_ok()
            });
        if member.disk.take_failure() {
            member.able_since = now;
        }
        let bytes = u64::from(is_kept) * piece.length;
        member.process.stored_bytes += bytes;
        match reason {
            FetchReason::Keep(arrived) => {
                arrived.add(bytes);
                self.answer_keep(env, node, from, (piece, is_kept));
            }
            FetchReason::Mend(others) if !is_kept => self.mend(env, node, piece, others),
            FetchReason::Mend(_) => env.check.markers.note(HousekeepingMarker::PieceMended),
        }
    }

    fn answer_keep(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        from: NodeId,
        (piece, is_kept): (PieceRef, bool),
    ) {
        if is_kept {
            env.check.check_kept(&env.cluster, node, piece);
        } else {
            env.check.markers.note(HousekeepingMarker::KeepFailed);
        }
        let answer =
            if is_kept { MemberMessage::Kept(piece) } else { MemberMessage::NotKept(piece) };
        env.send(node, from, answer);
        let member = env.cluster.members.get_mut(&node).expect("a member");
        member.process.keeping.note_done(piece, from, is_kept);
        self.keep_next(env, node);
    }

    /// A second's worth of reading again, on each disk.
    pub(super) fn scrub(&self, env: &mut HousekeepingSurroundings<'_>, texts: &TextFetches) {
        let up: Vec<NodeId> = env
            .cluster
            .up()
            .filter(|member| !member.is_hostile)
            .map(|member| member.node)
            .collect();
        for node in up {
            let member = env.cluster.members.get_mut(&node).expect("a member");
            let store = member.disk.store().cloned();
            let rotten = member.process.scrubber.step(store.as_deref());
            let others = member.process.roster.holders(&member.process.contacts);
            match rotten {
                Some(CorruptItem::Piece { piece, .. }) => {
                    env.line(|| format!("n{node} finds layer {} rotten", piece.layer));
                    self.mend(env, node, piece, others);
                }
                Some(CorruptItem::Data(name)) => {
                    env.line(|| format!("n{node} finds its text rotten"));
                    texts.fetch_text(env, node, name, others);
                }
                None => {}
            }
        }
    }

    /// A piece is fetched again from the first of these nodes that has it.
    fn mend(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        piece: PieceRef,
        mut others: Vec<NodeId>,
    ) {
        if others.is_empty() {
            return env.check.markers.note(HousekeepingMarker::NobodyHasPiece);
        }
        let from = others.remove(0);
        self.fetch(env, node, from, piece, FetchReason::Mend(others));
    }
}
