//! Machines with programs that are changed for newer ones while the cluster trains.

use std::collections::BTreeMap;

use zbelastic_consensus::codec::Format;
use zbelastic_types::NodeId;

use super::surroundings::Surroundings;
use crate::random::{DrawPurpose, Draws};

/// The share of starts of an old program at which its machine gets the new one.
const CHANGED_SHARE: f64 = 0.5;

/// Which program each machine has, in a life that begins with the program before.
pub(super) struct ProgramVersions {
    reads: BTreeMap<NodeId, Format>,
    draws: Draws,
}

impl ProgramVersions {
    pub(super) fn new(seed: u64) -> Self {
        Self { reads: BTreeMap::new(), draws: Draws::new(seed, DrawPurpose::Programs) }
    }
}

impl Surroundings<'_> {
    /// The newest format that a machine's program reads.
    pub(super) fn reads(&self, node: NodeId) -> Format {
        self.programs.reads.get(&node).copied().unwrap_or(Format::NEWEST)
    }

    /// The format that the cluster begins with.
    pub(super) fn first_format(&self) -> Format {
        if self.case.options.old_programs { Format::OLDEST } else { Format::NEWEST }
    }

    /// A machine's process starts: the first ones have the old program, and those that have it may
    /// get the new one. Machines that come later bring the new one.
    pub(super) fn choose_program(&mut self, node: NodeId, is_first: bool) {
        let is_old = self.reads(node) < Format::NEWEST;
        if is_first {
            self.programs.reads.insert(node, self.first_format());
        } else if is_old && self.programs.draws.chance(CHANGED_SHARE) {
            self.programs.reads.insert(node, Format::NEWEST);
            self.note(|| format!("n{node} has the new program"));
        }
    }
}
