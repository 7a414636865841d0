//! What happened in a play, as far as claims are about it.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::state::{EntryRefusal, StateChange};
use zbelastic_consensus::validation::{Seal, Turn};
use zbelastic_trainer::elastic::LayerImage;
use zbelastic_trainer::runtime::PeerBody;
use zbelastic_types::{NodeId, Step};

/// What happened in a play, as claims need it.
#[derive(Default)]
pub struct PlayRecord {
    changes: BTreeMap<u64, StateChange>,
    ignored: BTreeMap<u64, (&'static str, EntryRefusal)>,
    refusals: BTreeMap<&'static str, u64>,
    /// The turns under which a step was begun anywhere.
    turns: BTreeMap<Step, BTreeSet<Turn>>,
    /// The nodes that have begun a step, with the step.
    begun: BTreeSet<(NodeId, Step)>,
    /// Floats of weights and moments that were sent ahead of a plan, and when it began.
    floats_ahead: usize,
    floats_at_once: usize,
}

impl PlayRecord {
    /// # Panics
    /// If another controller applied something else there (invariant S2).
    pub fn applied(&mut self, index: u64, change: StateChange) {
        if let Some(known) = self.changes.get(&index) {
            assert_eq!(*known, change, "S2: entry {index} is applied everywhere alike");
        }
        self.changes.insert(index, change);
    }

    pub fn ignored(&mut self, index: u64, entry: &'static str, refusal: EntryRefusal) {
        self.ignored.insert(index, (entry, refusal));
    }

    pub fn refused(&mut self, name: &'static str) {
        *self.refusals.entry(name).or_default() += 1;
    }

    pub fn ran(&mut self, node: NodeId, turn: Turn) {
        self.turns.entry(turn.step).or_default().insert(turn);
        self.begun.insert((node, turn.step));
    }

    pub fn has_begun(&self, node: NodeId, step: Step) -> bool {
        self.begun.contains(&(node, step))
    }

    /// A worker sends another something.
    pub fn sent(&mut self, body: &PeerBody) {
        let floats = |image: &LayerImage| image.w.len() + image.m.len() + image.v.len();
        match body {
            PeerBody::StandbyLayer { image, .. } => self.floats_ahead += image.float_count(),
            PeerBody::Layer(image) => self.floats_at_once += floats(image),
            PeerBody::Frame(_)
            | PeerBody::Prefix(_)
            | PeerBody::Partial(_)
            | PeerBody::Gradients { .. }
            | PeerBody::Fetch { .. }
            | PeerBody::StandbyRequest { .. }
            | PeerBody::StandbyUpdate { .. } => {}
        }
    }

    /// Floats of layers that were sent ahead of a plan, and when it began.
    pub fn floats_sent(&self) -> (usize, usize) {
        (self.floats_ahead, self.floats_at_once)
    }

    /// Steps that were begun more than once.
    pub fn redone(&self) -> Vec<u64> {
        let redone = self.turns.iter().filter(|(_, turns)| turns.len() > 1);
        redone.map(|(step, _)| step.0).collect()
    }

    /// What was agreed on, with its index.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &StateChange)> {
        self.changes.iter().map(|(index, change)| (*index, change))
    }

    /// Every seal, with its index and whether the step was sealed before.
    pub fn seals(&self) -> impl Iterator<Item = (u64, &Seal, bool)> {
        self.changes().filter_map(|(index, change)| match change {
            StateChange::Sealed { seal, is_repeated, .. } => Some((index, seal, *is_repeated)),
            StateChange::Members(_)
            | StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => None,
        })
    }

    /// Entries that changed nothing when they were applied.
    pub fn ignored_entries(&self) -> impl Iterator<Item = &(&'static str, EntryRefusal)> {
        self.ignored.values()
    }

    /// How often an input was dropped under this word.
    pub fn refusals_of(&self, name: &str) -> u64 {
        self.refusals.get(name).copied().unwrap_or(0)
    }

    pub fn refusals(&self) -> &BTreeMap<&'static str, u64> {
        &self.refusals
    }
}
