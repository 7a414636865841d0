//! Links between nodes: what is lost, late, there twice, cut, or comes again long after.

use std::collections::{BTreeMap, VecDeque};

use zbelastic_types::NodeId;

use crate::options::NetworkOptions;
use crate::queue::Moment;
use crate::random::Draws;

/// Frames kept to come again.
const OLD_FRAMES_MAX: usize = 64;
/// How much later an old frame comes, in microseconds.
const OLD_FRAME_US: (u64, u64) = (500_000, 12_000_000);

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Each message by itself; it may be lost.
    Control,
    /// Large, and lost only when a connection breaks.
    Tensor,
}

/// What the network counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Messages sent.
    pub sent: u64,
    /// Lost.
    pub lost: u64,
    /// There twice.
    pub doubled: u64,
    /// Old ones that came again.
    pub old: u64,
}

/// The network.
pub struct Network<P> {
    options: NetworkOptions,
    draws: Draws,
    /// Directed links that carry nothing, and how many partitions cut them.
    cut: BTreeMap<(NodeId, NodeId), u32>,
    kept: VecDeque<(NodeId, NodeId, P)>,
    is_calm: bool,
    counts: NetworkCounts,
}

impl<P: Clone> Network<P> {
    /// A whole network.
    #[must_use]
    pub fn new(options: NetworkOptions, draws: Draws) -> Self {
        let (cut, kept) = (BTreeMap::new(), VecDeque::new());
        let counts = NetworkCounts::default();
        Self { options, draws, cut, kept, is_calm: false, counts }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> NetworkCounts {
        self.counts
    }

    /// From now on nothing is lost, and cut links are whole.
    pub fn calm(&mut self) {
        self.is_calm = true;
        self.cut.clear();
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        *self.cut.entry((from, to)).or_default() += 1;
    }

    /// Takes one cut of a direction back; another partition may still hold it.
    pub fn heal(&mut self, from: NodeId, to: NodeId) {
        if let Some(count) = self.cut.get_mut(&(from, to)) {
            *count -= 1;
            self.cut.retain(|_, count| *count > 0);
        }
    }

    /// Whether every link carries.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cut.is_empty()
    }

    /// Whether a direction is cut.
    #[must_use]
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut.contains_key(&(from, to))
    }

    /// Sends a message; calls `deliver` for each time it arrives.
    pub fn send(
        &mut self,
        (now, from, to): (Moment, NodeId, NodeId),
        lane: Lane,
        payload: P,
        mut deliver: impl FnMut(Moment, NodeId, P),
    ) {
        self.counts.sent += 1;
        if self.is_cut(from, to) {
            self.counts.lost += 1;
            return;
        }
        let NetworkOptions { loss, frame_loss, duplicates, late, old_frames, .. } = self.options;
        let delay = self.draws.between(self.options.delay_us_min, self.options.delay_us_max);
        if self.is_calm {
            deliver(now.after(delay), from, payload);
            return;
        }
        let is_lost = match lane {
            Lane::Control => self.draws.chance(loss),
            Lane::Tensor => self.draws.chance(frame_loss),
        };
        if is_lost {
            self.counts.lost += 1;
            return;
        }
        if lane == Lane::Tensor && self.draws.chance(old_frames) {
            self.keep(from, to, payload.clone());
            self.replay(now, &mut deliver, to);
        }
        if self.draws.chance(duplicates) {
            self.counts.doubled += 1;
            let again = self.draws.between(delay, self.options.late_us_max.max(delay));
            deliver(now.after(again), from, payload.clone());
        }
        let delay = if self.draws.chance(late) {
            self.draws.between(delay, self.options.late_us_max.max(delay))
        } else {
            delay
        };
        deliver(now.after(delay), from, payload);
    }

    fn keep(&mut self, from: NodeId, to: NodeId, payload: P) {
        if self.kept.len() == OLD_FRAMES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((from, to, payload));
    }

    /// Something that was sent to the same node long ago comes again.
    fn replay(&mut self, now: Moment, deliver: &mut impl FnMut(Moment, NodeId, P), to: NodeId) {
        let of_node: Vec<usize> = (0..self.kept.len()).filter(|i| self.kept[*i].1 == to).collect();
        let index = *self.draws.pick(&of_node);
        let (from, _, payload) = self.kept[index].clone();
        let delay = self.draws.between(OLD_FRAME_US.0, OLD_FRAME_US.1);
        self.counts.old += 1;
        deliver(now.after(delay), from, payload);
    }
}
