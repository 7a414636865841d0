//! Links between nodes: the messages that are lost, late, there twice, cut off, or come again long
//! after.

use std::collections::{BTreeMap, VecDeque};

use zbelastic_types::NodeId;

use crate::options::NetworkOptions;
use crate::queue::VirtualTime;
use crate::random::Draws;

/// Messages of each lane that are kept to come again.
const OLD_FRAMES_MAX: usize = 64;
/// How much later an old frame comes, in microseconds.
const OLD_FRAME_US: (u64, u64) = (500_000, 12_000_000);

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkLane {
    /// Each message by itself; it may be lost.
    Control,
    /// Large, and lost only when a connection breaks.
    Tensor,
}

/// Messages, each with its sender and its receiver.
type KeptMessages<P> = VecDeque<(NodeId, NodeId, P)>;

/// The network between all nodes of a life.
pub struct SimulatedNetwork<P> {
    options: NetworkOptions,
    draws: Draws,
    /// Directed links that carry nothing, and how many partitions cut them.
    cut: BTreeMap<(NodeId, NodeId), u32>,
    /// Messages that come again, of each lane by itself: control messages are sent far more
    /// often.
    kept_control: KeptMessages<P>,
    kept_tensor: KeptMessages<P>,
    is_calm: bool,
    sent: u64,
}

impl<P: Clone> SimulatedNetwork<P> {
    /// A network of which no link is cut.
    #[must_use]
    pub fn new(options: NetworkOptions, draws: Draws) -> Self {
        let kept_control = VecDeque::new();
        let kept_tensor = VecDeque::new();
        let cut = BTreeMap::new();
        Self { options, draws, cut, kept_control, kept_tensor, is_calm: false, sent: 0 }
    }

    /// Messages sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// From now on nothing is lost, and cut links are whole.
    pub fn calm(&mut self) {
        self.is_calm = true;
        self.cut.clear();
    }

    /// Cuts the link from one node to another, in this direction.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        *self.cut.entry((from, to)).or_default() += 1;
    }

    /// Reverts one cut of a direction; another partition may still hold it.
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
        (now, from, to): (VirtualTime, NodeId, NodeId),
        lane: NetworkLane,
        payload: P,
        mut deliver: impl FnMut(VirtualTime, NodeId, P),
    ) {
        self.sent += 1;
        if self.is_cut(from, to) {
            return;
        }
        let NetworkOptions { loss, frame_loss, duplicates, late, old_frames, .. } = self.options;
        let delay = self.draws.between(self.options.delay_us_min, self.options.delay_us_max);
        if self.is_calm {
            deliver(now.after(delay), from, payload);
            return;
        }
        let is_lost = match lane {
            NetworkLane::Control => self.draws.chance(loss),
            NetworkLane::Tensor => self.draws.chance(frame_loss),
        };
        if is_lost {
            return;
        }
        if self.draws.chance(old_frames) {
            self.keep(lane, (from, to, payload.clone()));
            self.replay(now, &mut deliver, (lane, to));
        }
        if self.draws.chance(duplicates) {
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

    fn kept(&mut self, lane: NetworkLane) -> &mut KeptMessages<P> {
        match lane {
            NetworkLane::Control => &mut self.kept_control,
            NetworkLane::Tensor => &mut self.kept_tensor,
        }
    }

    fn keep(&mut self, lane: NetworkLane, message: (NodeId, NodeId, P)) {
        let kept = self.kept(lane);
        if kept.len() == OLD_FRAMES_MAX {
            kept.pop_front();
        }
        kept.push_back(message);
    }

    /// Something that was sent to the same node on the same lane long ago comes again.
    fn replay(
        &mut self,
        now: VirtualTime,
        deliver: &mut impl FnMut(VirtualTime, NodeId, P),
        (lane, to): (NetworkLane, NodeId),
    ) {
        let kept = self.kept(lane);
        let of_node: Vec<usize> = (0..kept.len()).filter(|i| kept[*i].1 == to).collect();
        let index = *self.draws.pick(&of_node);
        let (from, _, payload) = self.kept(lane)[index].clone();
        let delay = self.draws.between(OLD_FRAME_US.0, OLD_FRAME_US.1);
        deliver(now.after(delay), from, payload);
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::NodeId;

    use super::{NetworkLane, SimulatedNetwork};
    use crate::options::NetworkOptions;
    use crate::queue::VirtualTime;
    use crate::random::{DrawPurpose, Draws};

    #[test]
    fn what_was_sent_long_ago_comes_again_on_its_own_lane() {
        let options = NetworkOptions {
            loss: 0.0,
            frame_loss: 0.0,
            duplicates: 0.0,
            late: 0.0,
            old_frames: 1.0,
            delay_us_min: 1,
            delay_us_max: 2,
            late_us_max: 3,
        };
        let mut network = SimulatedNetwork::new(options, Draws::new(1, DrawPurpose::Network));
        let way = (VirtualTime(0), NodeId(1), NodeId(2));
        for lane in [NetworkLane::Control, NetworkLane::Tensor] {
            let mut old = Vec::new();
            for number in 0..20 {
                network.send(way, lane, (lane, number), |at, _, payload| {
                    old.extend((at > VirtualTime(2)).then_some(payload));
                });
            }
            assert_eq!(old.len(), 20);
            assert!(old.iter().all(|(of, _)| *of == lane), "{old:?}");
            assert!(old.iter().any(|(_, number)| *number < 10), "{old:?}");
        }
    }
}
