//! Messages in flight between machines: first in, first out, unless it is held back.

use std::collections::VecDeque;

use zbelastic_consensus::duty::{PlanSolution, PlanUnsolvable};
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_trainer::runtime::{PeerBody, PeerFrame};
use zbelastic_types::NodeId;

/// What a message contains.
#[derive(Clone)]
pub enum PlayPacket {
    /// To or from a controller.
    Control(Box<Envelope>),
    /// A frame from one worker to another.
    Peer(Box<PeerFrame>),
    /// From a controller's solver to the controller.
    Plan(u64, Box<Result<PlanSolution, PlanUnsolvable>>),
}

/// A packet in flight, with its sender and its receiver.
#[derive(Clone)]
pub struct PlayMessage {
    pub from: NodeId,
    pub to: NodeId,
    pub packet: PlayPacket,
}

/// Which messages are held back or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlayMessageKind {
    /// The sums of one node's stage, sent to controllers.
    ReportsFrom(NodeId),
    /// Reports that an update is held elsewhere.
    Held,
    /// What controllers send to workers, each seal included.
    Briefings,
    /// What they send to one worker.
    BriefingsTo(NodeId),
    /// What controllers send each other, each proposal included.
    Raft,
    /// Plans that a solver has found.
    Plans,
    /// What one node reports to hold.
    InventoryFrom(NodeId),
    /// Reports that layers are followed.
    Following,
    /// Reports that layers of a checkpoint are durable.
    Saved,
    /// Gradients for followers of layers.
    Updates,
    /// Everything to and from one node.
    Link(NodeId),
}

impl PlayMessageKind {
    fn is_of(self, message: &PlayMessage) -> bool {
        let PlayMessage { from, to, packet } = message;
        let message = match packet {
            PlayPacket::Control(envelope) => Some(&envelope.message),
            PlayPacket::Peer(_) | PlayPacket::Plan(..) => None,
        };
        let is_report = matches!(message, Some(Message::Report { .. }));
        let is_briefing = matches!(message, Some(Message::Briefing(_)));
        match self {
            Self::ReportsFrom(node) => is_report && *from == node,
            Self::InventoryFrom(node) => {
                matches!(message, Some(Message::Inventory { .. })) && *from == node
            }
            Self::Held => matches!(message, Some(Message::Held { .. })),
            Self::Briefings => is_briefing,
            Self::BriefingsTo(node) => is_briefing && *to == node,
            Self::Raft => matches!(message, Some(Message::Raft(_))),
            Self::Plans => matches!(packet, PlayPacket::Plan(..)),
            Self::Following => matches!(message, Some(Message::Following { .. })),
            Self::Saved => matches!(message, Some(Message::Saved { .. })),
            Self::Updates => match packet {
                PlayPacket::Peer(frame) => matches!(frame.body, PeerBody::StandbyUpdate { .. }),
                PlayPacket::Control(_) | PlayPacket::Plan(..) => false,
            },
            Self::Link(node) => (*from == node) != (*to == node),
        }
    }
}

/// Messages in flight, and those held back.
#[derive(Default)]
pub struct PlayNetwork {
    moving: VecDeque<PlayMessage>,
    held: VecDeque<PlayMessage>,
    holds: Vec<PlayMessageKind>,
    repeats: Vec<PlayMessageKind>,
}

impl PlayNetwork {
    pub fn send(&mut self, message: PlayMessage) {
        self.moving.push_back(message);
    }

    pub fn moving(&self) -> usize {
        self.moving.len()
    }

    /// The next message that is not held back, and how often it arrives.
    pub fn next(&mut self) -> Option<(PlayMessage, u32)> {
        while let Some(message) = self.moving.pop_front() {
            if self.holds.iter().any(|kind| kind.is_of(&message)) {
                self.held.push_back(message);
                continue;
            }
            let is_repeated = self.repeats.iter().any(|kind| kind.is_of(&message));
            return Some((message, if is_repeated { 2 } else { 1 }));
        }
        None
    }

    pub fn hold(&mut self, kind: PlayMessageKind) {
        self.holds.push(kind);
    }

    pub fn repeat(&mut self, kind: PlayMessageKind) {
        self.repeats.push(kind);
    }

    /// Lets messages through again: those held back come before all others.
    pub fn release(&mut self, kind: PlayMessageKind) {
        let position = self.holds.iter().position(|held| *held == kind);
        self.holds.remove(position.expect("only what is held back is let go"));
        let (freed, held) = self.held.drain(..).partition(|message| kind.is_of(message));
        self.held = held;
        let others = std::mem::replace(&mut self.moving, freed);
        self.moving.extend(others);
    }

    /// Messages held back for one node, taken out.
    pub fn take_held(&mut self, kind: PlayMessageKind, to: NodeId) -> VecDeque<PlayMessage> {
        let is_taken = |message: &PlayMessage| kind.is_of(message) && message.to == to;
        let (taken, held) = self.held.drain(..).partition(is_taken);
        self.held = held;
        taken
    }

    /// Drops all messages in flight from a node and to it.
    pub fn forget(&mut self, node: NodeId) {
        let is_other = |message: &PlayMessage| message.from != node && message.to != node;
        self.moving.retain(is_other);
        self.held.retain(is_other);
    }
}
