//! What is on its way between machines: first in, first out, unless it is held back.

use std::collections::VecDeque;

use zbelastic_consensus::duty::{Solution, Unsolvable};
use zbelastic_consensus::message::{Envelope, Message};
use zbelastic_trainer::host::{PeerBody, PeerFrame};
use zbelastic_types::NodeId;

/// The content of a letter.
#[derive(Clone)]
pub enum Packet {
    /// To or from a controller.
    Control(Box<Envelope>),
    /// A frame from one worker to another.
    Peer(Box<PeerFrame>),
    /// From a controller's solver to the controller.
    Plan(u64, Box<Result<Solution, Unsolvable>>),
}

/// A packet on its way.
#[derive(Clone)]
pub struct Letter {
    pub from: NodeId,
    pub to: NodeId,
    pub packet: Packet,
}

/// A kind of letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mail {
    /// The sums of one node's stage, on their way to controllers.
    ReportsFrom(NodeId),
    /// Word that an update is held elsewhere.
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
    /// Word that layers are followed.
    Following,
    /// Word that layers of a checkpoint are durable.
    Saved,
    /// Gradients for followers of layers.
    Updates,
    /// Everything to and from one node.
    Link(NodeId),
}

impl Mail {
    fn is_of(self, letter: &Letter) -> bool {
        let Letter { from, to, packet } = letter;
        let message = match packet {
            Packet::Control(envelope) => Some(&envelope.message),
            Packet::Peer(_) | Packet::Plan(..) => None,
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
            Self::Plans => matches!(packet, Packet::Plan(..)),
            Self::Following => matches!(message, Some(Message::Following { .. })),
            Self::Saved => matches!(message, Some(Message::Saved { .. })),
            Self::Updates => match packet {
                Packet::Peer(frame) => matches!(frame.body, PeerBody::Update { .. }),
                Packet::Control(_) | Packet::Plan(..) => false,
            },
            Self::Link(node) => (*from == node) != (*to == node),
        }
    }
}

/// Letters on their way, and those held back.
#[derive(Default)]
pub struct Wire {
    moving: VecDeque<Letter>,
    held: VecDeque<Letter>,
    holds: Vec<Mail>,
    repeats: Vec<Mail>,
}

impl Wire {
    pub fn send(&mut self, letter: Letter) {
        self.moving.push_back(letter);
    }

    pub fn moving(&self) -> usize {
        self.moving.len()
    }

    /// The next letter that is not held back, and how often it arrives.
    pub fn next(&mut self) -> Option<(Letter, u32)> {
        while let Some(letter) = self.moving.pop_front() {
            if self.holds.iter().any(|mail| mail.is_of(&letter)) {
                self.held.push_back(letter);
                continue;
            }
            let is_repeated = self.repeats.iter().any(|mail| mail.is_of(&letter));
            return Some((letter, if is_repeated { 2 } else { 1 }));
        }
        None
    }

    pub fn hold(&mut self, mail: Mail) {
        self.holds.push(mail);
    }

    pub fn repeat(&mut self, mail: Mail) {
        self.repeats.push(mail);
    }

    /// Lets letters through again: those held back come before all others.
    pub fn release(&mut self, mail: Mail) {
        let position = self.holds.iter().position(|held| *held == mail);
        self.holds.remove(position.expect("only what is held back is let go"));
        let (freed, held) = self.held.drain(..).partition(|letter| mail.is_of(letter));
        self.held = held;
        let others = std::mem::replace(&mut self.moving, freed);
        self.moving.extend(others);
    }

    /// Letters held back for one node, taken out.
    pub fn take_held(&mut self, mail: Mail, to: NodeId) -> VecDeque<Letter> {
        let is_taken = |letter: &Letter| mail.is_of(letter) && letter.to == to;
        let (taken, held) = self.held.drain(..).partition(is_taken);
        self.held = held;
        taken
    }

    /// What a node sent and nobody got is lost, and what was on its way to it.
    pub fn forget(&mut self, node: NodeId) {
        let is_other = |letter: &Letter| letter.from != node && letter.to != node;
        self.moving.retain(is_other);
        self.held.retain(is_other);
    }
}
