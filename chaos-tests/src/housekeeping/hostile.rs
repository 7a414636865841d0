//! A hostile member: it has the credentials of a worker, and sends whatever may hurt others.

use std::collections::VecDeque;

use zbelastic_checkpoint::CheckpointId;
use zbelastic_policy::data::DataName;
use zbelastic_policy::keep_quota::VERSIONS_AHEAD_MAX;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_policy::trust::is_refused_removal;
use zbelastic_transport::{CloseCode, DialProblem, DownReason};
use zbelastic_types::{Digest, LayerId, NodeId, RunId, Step};

use super::agreed::RUN;
use super::check::HousekeepingMarker;
use super::member::peer_role;
use super::net::MemberConnections;
use super::pieces::piece_of;
use super::surroundings::HousekeepingSurroundings;
use super::world::{HousekeepingEvent, MemberMessage, SECOND_US};

/// Bytes that it gives at most of what it announced.
const SERVED_MAX: u64 = 1 << 16;
/// Versions of right digests that it requests to be kept, one after the other.
const FLOOD: u64 = 4 * VERSIONS_AHEAD_MAX as u64;
/// Further ahead than any version that is under way.
const FAR: u64 = 1 << 40;

/// The bytes that it gives for a piece: those of the layer, if it is one, or any.
pub(super) fn served(piece: PieceRef) -> Vec<u8> {
    if piece.length < SERVED_MAX && piece.layer.0 < 64 {
        let (honest, bytes) = piece_of(piece.layer.0, piece.version.0);
        if honest == piece {
            return bytes;
        }
        if honest.length == piece.length {
            return bytes;
        }
    }
    vec![7; piece.length.min(SERVED_MAX) as usize]
}

/// Requests that it remembers at most.
const PRETENDED_MAX: usize = 64;

/// The hostile member of a life, if it has one.
pub(super) struct HostileMember {
    /// The worker that means harm.
    pub(super) node: Option<NodeId>,
    /// Pieces of others that it never keeps, and reports for ever to be keeping.
    pub(super) pretended: VecDeque<(NodeId, PieceRef)>,
}

impl HostileMember {
    /// It does the next thing, whether it was removed or not.
    pub(super) fn attack(
        &mut self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
    ) {
        let pause = env.draws.between(SECOND_US / 10, 2 * SECOND_US);
        env.queue.push(env.cluster.now.after(pause), HousekeepingEvent::Attack);
        let hostile = self.node.filter(|node| env.cluster.members[node].is_up());
        let Some(hostile) = hostile else { return };
        let linked = env.cluster.up().map(|member| member.node).filter(|node| *node != hostile);
        let linked: Vec<NodeId> =
            linked.filter(|node| env.cluster.is_linked(hostile, *node)).collect();
        if linked.is_empty() {
            return;
        }
        for (requested_by, piece) in &self.pretended {
            env.send(hostile, *requested_by, MemberMessage::Keeping(*piece, piece.length));
        }
        let target = *env.draws.pick(&linked);
        match env.draws.below(13) {
            0 => self.close(env, connections, hostile, target, CloseCode::Banned),
            1 => self.close(env, connections, hostile, target, CloseCode::DuplicateIdentity),
            2 => self.refuse_dial(env, connections, hostile, target),
            3 => env.send(hostile, target, MemberMessage::HeldOut),
            4 => env.send(hostile, target, MemberMessage::StageReport),
            5 => env.send(hostile, target, MemberMessage::Collect(StoreReferences::default())),
            6 => env.send(hostile, target, collect_all()),
            7 => {
                let name = self.kept_data(env);
                env.send(hostile, target, MemberMessage::KeepData(name));
            }
            8 => {
                let newest = env.cluster.agreed.newest.0;
                for version in newest + 1..=newest + FLOOD {
                    env.send(hostile, target, MemberMessage::Keep(piece_of(0, version).0));
                }
            }
            _ => {
                let piece = self.bad_piece(env);
                env.send(hostile, target, MemberMessage::Keep(piece));
            }
        }
    }

    /// Data that no job has, or the job's, again and again.
    fn kept_data(&self, env: &HousekeepingSurroundings<'_>) -> DataName {
        let of_job = env.cluster.text_name;
        // Without a draw, which would give all lives another course.
        if env.cluster.now.0.is_multiple_of(2) { of_job } else { some_data() }
    }

    /// A piece that no checkpoint has.
    fn bad_piece(&self, env: &mut HousekeepingSurroundings<'_>) -> PieceRef {
        let newest = env.cluster.agreed.newest.0;
        let layer = env.draws.below(u64::from(env.cluster.options.layers)) as u32;
        let (piece, _) = piece_of(layer, newest);
        match env.draws.below(6) {
            0 => PieceRef { length: 64 << 30, ..piece },
            1 => piece_of(layer, FAR + env.draws.below(FAR)).0,
            2 => PieceRef { layer: LayerId(env.cluster.options.layers + layer), ..piece },
            3 => PieceRef { run: RunId(RUN.0 + 1), ..piece },
            4 => PieceRef { length: 1 << 20, ..piece },
            _ => {
                let digest = Digest([env.draws.number() as u8; 32]);
                PieceRef { digest, version: Step(newest + 1), ..piece }
            }
        }
    }

    /// It closes its connection with a code that reports something about the other end.
    fn close(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        hostile: NodeId,
        target: NodeId,
        code: CloseCode,
    ) {
        if code == CloseCode::DuplicateIdentity {
            self.accuse(env, connections, hostile, target);
        }
        connections.unlink(env, (target, DownReason::ClosedByPeer(code)), hostile);
    }

    /// It accuses the other end of living twice.
    fn accuse(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        hostile: NodeId,
        target: NodeId,
    ) {
        let member = env.cluster.members.get_mut(&target).expect("a member");
        let process = &mut member.process;
        let role = process.roster.role(hostile);
        let workers = process.roster.workers_up();
        if process.accusers.record(hostile, peer_role(role), workers) {
            connections.end(env, target, hostile);
        }
    }

    /// It refuses to be connected with, as a controller does with a member that was removed.
    fn refuse_dial(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        connections: &MemberConnections,
        hostile: NodeId,
        target: NodeId,
    ) {
        let role = env.cluster.members[&target].process.roster.role(hostile);
        let problem = DialProblem::Refused(CloseCode::Banned);
        if is_refused_removal(peer_role(role), &problem) {
            connections.end(env, target, hostile);
        }
    }

    /// How it answers what others send: that it keeps a piece, that it does not, or not at all.
    pub(super) fn handle_hostile_message(
        &mut self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        from: NodeId,
        message: MemberMessage,
    ) {
        match message {
            MemberMessage::Keep(piece) => match env.draws.below(3) {
                0 => env.send(node, from, MemberMessage::Kept(piece)),
                1 => env.send(node, from, MemberMessage::NotKept(piece)),
                _ => {
                    env.check.markers.note(HousekeepingMarker::HostileSilent);
                    self.pretended.truncate(PRETENDED_MAX - 1);
                    self.pretended.push_front((from, piece));
                }
            },
            MemberMessage::Contacts(contacts) => {
                let member = env.cluster.members.get_mut(&node).expect("a member");
                member.process.roster.apply_contacts(&contacts);
                member.process.contacts = contacts;
            }
            MemberMessage::Kept(_)
            | MemberMessage::NotKept(_)
            | MemberMessage::Keeping(..)
            | MemberMessage::Collect(_)
            | MemberMessage::KeepData(_)
            | MemberMessage::HeldOut
            | MemberMessage::StageReport
            | MemberMessage::SaveFailed(_)
            | MemberMessage::Disk(_) => {}
        }
    }
}

/// That nothing is referred to any more, of any run.
fn collect_all() -> MemberMessage {
    let version = CheckpointId { run: RunId(RUN.0 + 1), version: Step(0) };
    MemberMessage::Collect(StoreReferences { versions: vec![version], data: Some(Vec::new()) })
}

fn some_data() -> DataName {
    DataName { hash: Digest([9; 32]), length: 64 << 30 }
}
