//! A hostile member: it has the credentials of a worker, and sends whatever may hurt others.

use zbelastic_checkpoint::CheckpointId;
use zbelastic_consensus::member::Role;
use zbelastic_policy::data::DataName;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_policy::trust::is_refused_removal;
use zbelastic_transport::{CloseCode, DialProblem, DownReason};
use zbelastic_types::{Digest, LayerId, NodeId, RunId, Step};

use super::agreed::RUN;
use super::check::HousekeepingMarker;
use super::member::peer_role;
use super::pieces::piece_of;
use super::world::{HousekeepingEvent, HousekeepingWorld, MemberMessage, SECOND_US};

/// Bytes that it gives at most of what it announced.
const SERVED_MAX: u64 = 1 << 16;
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

impl HousekeepingWorld<'_> {
    /// It does the next thing, whether it was removed or not.
    pub(super) fn attack(&mut self) {
        let pause = self.draws.between(SECOND_US / 10, 2 * SECOND_US);
        self.queue.push(self.now.after(pause), HousekeepingEvent::Attack);
        let hostile = self.up().find(|member| member.is_hostile).map(|member| member.node);
        let Some(hostile) = hostile else { return };
        let linked = self.up().map(|member| member.node).filter(|node| *node != hostile);
        let linked: Vec<NodeId> = linked.filter(|node| self.is_linked(hostile, *node)).collect();
        if linked.is_empty() {
            return;
        }
        let target = *self.draws.pick(&linked);
        match self.draws.below(12) {
            0 => self.close(hostile, target, CloseCode::Banned),
            1 => self.close(hostile, target, CloseCode::DuplicateIdentity),
            2 => self.refuse_dial(hostile, target),
            3 => self.send(hostile, target, MemberMessage::HeldOut),
            4 => self.send(hostile, target, MemberMessage::StageReport),
            5 => self.send(hostile, target, MemberMessage::Collect(StoreReferences::default())),
            6 => self.send(hostile, target, collect_all()),
            7 => self.send(hostile, target, MemberMessage::KeepData(some_data())),
            _ => {
                let piece = self.bad_piece();
                self.send(hostile, target, MemberMessage::Keep(piece));
            }
        }
    }

    /// A piece that no checkpoint has.
    fn bad_piece(&mut self) -> PieceRef {
        let newest = self.agreed.newest.0;
        let layer = self.draws.below(u64::from(self.options.layers)) as u32;
        let (piece, _) = piece_of(layer, newest);
        match self.draws.below(6) {
            0 => PieceRef { length: 64 << 30, ..piece },
            1 => piece_of(layer, FAR + self.draws.below(FAR)).0,
            2 => PieceRef { layer: LayerId(self.options.layers + layer), ..piece },
            3 => PieceRef { run: RunId(RUN.0 + 1), ..piece },
            4 => PieceRef { length: 1 << 20, ..piece },
            _ => {
                let digest = Digest([self.draws.number() as u8; 32]);
                PieceRef { digest, version: Step(newest + 1), ..piece }
            }
        }
    }

    /// It closes its connection with a code that reports something about the other end.
    fn close(&mut self, hostile: NodeId, target: NodeId, code: CloseCode) {
        if code == CloseCode::DuplicateIdentity {
            self.accuse(hostile, target);
        }
        self.unlink((target, DownReason::ClosedByPeer(code)), hostile);
    }

    /// It accuses the other end of living twice.
    fn accuse(&mut self, hostile: NodeId, target: NodeId) {
        let member = self.members.get_mut(&target).expect("a member");
        let process = &mut member.process;
        let role = process.roster.role(hostile);
        let workers = process.roster.workers_up();
        if process.accusers.record(hostile, peer_role(role), workers) {
            self.end(target, hostile);
        }
    }

    /// It refuses to be connected with, as a controller does with a member that was removed.
    fn refuse_dial(&mut self, hostile: NodeId, target: NodeId) {
        let role = self.members[&target].process.roster.role(hostile);
        let problem = DialProblem::Refused(CloseCode::Banned);
        if is_refused_removal(peer_role(role), &problem) {
            self.end(target, hostile);
        }
    }

    /// How it answers what others send: that it keeps a piece, that it does not, or not at all.
    pub(super) fn handle_hostile_message(
        &mut self,
        node: NodeId,
        from: NodeId,
        message: MemberMessage,
    ) {
        match message {
            MemberMessage::Keep(piece) => match self.draws.below(3) {
                0 => self.send(node, from, MemberMessage::Kept(piece)),
                1 => self.send(node, from, MemberMessage::NotKept(piece)),
                _ => self.check.markers.note(HousekeepingMarker::HostileSilent),
            },
            MemberMessage::Contacts(contacts) => {
                let member = self.members.get_mut(&node).expect("a member");
                member.process.roster.apply_contacts(&contacts);
                member.process.contacts = contacts;
            }
            MemberMessage::Kept(_)
            | MemberMessage::NotKept(_)
            | MemberMessage::Keeping(_)
            | MemberMessage::Collect(_)
            | MemberMessage::KeepData(_)
            | MemberMessage::HeldOut
            | MemberMessage::StageReport
            | MemberMessage::SaveFailed(_) => {}
        }
    }

    /// The worker with the head reports the loss of held-out text.
    pub(super) fn report_held_out_loss(&mut self) {
        let Some(plan) = self.plans.current().cloned() else { return };
        let head = plan.stages.iter().map(|at| at.node).find(|node| plan.has_head(*node));
        let head = head.filter(|node| self.members[node].role == Role::Worker);
        if let (Some(head), Some(leader)) = (head, self.leader()) {
            self.send(head, leader, MemberMessage::HeldOut);
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
