//! The commands that a device is issued between two borders, and which of them are worth a graph.
//!
//! Passes issue the same commands to a device again and again, with the same addresses. A *segment*
//! is the run of commands recorded between two borders. Seen for the second time it becomes a graph
//! of the device, and from then on it is one call. A graph is found by all words of its segment,
//! never by less, so it does exactly what its commands would do. A segment that changes each
//! time, as updates of weights do with their numbers, is never seen twice: of such segments only a
//! hash is kept, and only of the last ones.

use std::collections::BTreeMap;

use super::device::{DeviceCommand, GraphId, MatrixProduct, ProductKind};
use super::kernel::Launch;
use crate::fingerprint::{GOLDEN, mix};

/// How many graphs and hashes are kept, and which segments are worth a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLimits {
    /// Graphs at once. Beyond it one that was not used for [`STALE`] times as many segments is
    /// evicted; while all are in use, further segments stay commands.
    pub graphs: usize,
    /// Hashes of segments that were seen once. Beyond it the oldest is forgotten.
    pub seen: usize,
    /// Commands of a segment, at least: a graph is not started for less.
    pub commands_min: usize,
    /// Commands of a segment, at most: with so many they are issued, border or not, so that the
    /// device does not wait for the host to write.
    pub commands_max: usize,
}

impl GraphLimits {
    /// A stage of a dozen layers with a dozen passes alive has some two hundred segments. A graph
    /// of sixty commands needs some ten thousand bytes of a device.
    pub const DEFAULT: Self = Self { graphs: 512, seen: 4096, commands_min: 8, commands_max: 64 };
}

/// If more segments come in turn than there may be graphs, those that are kept must stay: one that
/// is evicted for the next would be made again in each turn, which lasts longer than issuing its
/// commands.
pub const STALE: u64 = 4;

/// The decision about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentDecision {
    /// Issue its commands one by one.
    Issue,
    /// Make it a graph, record that by [`SegmentCache::insert`], and start the graph.
    Capture,
    /// Start this graph in place of the commands.
    Replay(GraphId),
}

/// A segment that is a graph.
#[derive(Debug)]
struct CapturedSegment {
    words: Vec<u64>,
    graph: GraphId,
    used_at: u64,
}

/// The segments that were seen so far, and those that are graphs.
#[derive(Debug)]
pub struct SegmentCache {
    limits: GraphLimits,
    /// The tick at which each segment was seen, by its hash.
    seen: BTreeMap<u128, u64>,
    /// Which segment was seen at a tick, oldest first.
    oldest: BTreeMap<u64, u128>,
    /// By hash. Of two segments with one hash the first is kept.
    captured: BTreeMap<u128, CapturedSegment>,
    /// Which segment's graph was used at a tick, longest ago first.
    used: BTreeMap<u64, u128>,
    tick: u64,
}

impl SegmentCache {
    /// No segments so far.
    #[must_use]
    pub fn new(limits: GraphLimits) -> Self {
        Self {
            limits,
            seen: BTreeMap::new(),
            oldest: BTreeMap::new(),
            captured: BTreeMap::new(),
            used: BTreeMap::new(),
            tick: 0,
        }
    }

    /// Decides the treatment of a segment of `count` commands, which `words` encode.
    pub fn decide(&mut self, count: usize, words: &[u64]) -> SegmentDecision {
        if count < self.limits.commands_min {
            return SegmentDecision::Issue;
        }
        self.tick += 1;
        let hash = hash(words);
        if let Some(segment) = self.captured.get_mut(&hash) {
            if segment.words != words {
                return SegmentDecision::Issue;
            }
            self.used.remove(&segment.used_at);
            self.used.insert(self.tick, hash);
            segment.used_at = self.tick;
            return SegmentDecision::Replay(segment.graph);
        }
        if let Some(at) = self.seen.remove(&hash) {
            self.oldest.remove(&at);
            if self.has_capacity() {
                return SegmentDecision::Capture;
            }
        }
        self.seen.insert(hash, self.tick);
        self.oldest.insert(self.tick, hash);
        if self.seen.len() > self.limits.seen
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.seen.remove(&oldest);
        }
        SegmentDecision::Issue
    }

    /// Whether there may be another graph, in place of one that is no longer used if need be.
    fn has_capacity(&self) -> bool {
        self.captured.len() < self.limits.graphs || self.stale().is_some()
    }

    /// The graph that was used longest ago, if it was not used for long.
    fn stale(&self) -> Option<(u64, u128)> {
        let (used_at, hash) = self.used.first_key_value()?;
        let since = self.tick - used_at;
        (since > STALE * self.limits.graphs as u64).then_some((*used_at, *hash))
    }

    /// Keeps the graph that was made of a segment after [`SegmentDecision::Capture`]; returns one
    /// that is evicted for it.
    ///
    /// # Panics
    /// If the segment has one already, or there is no capacity.
    pub fn insert(&mut self, words: Vec<u64>, graph: GraphId) -> Option<GraphId> {
        assert!(self.has_capacity(), "a capture is decided where there is capacity");
        let mut evicted = None;
        if self.captured.len() >= self.limits.graphs
            && let Some((used_at, unused)) = self.stale()
        {
            self.used.remove(&used_at);
            evicted = self.captured.remove(&unused).map(|segment| segment.graph);
        }
        let hash = hash(&words);
        self.used.insert(self.tick, hash);
        let before =
            self.captured.insert(hash, CapturedSegment { graph, used_at: self.tick, words });
        assert!(before.is_none(), "a segment is captured once");
        evicted
    }

    /// All graphs that are kept.
    pub fn into_graphs(self) -> impl Iterator<Item = GraphId> {
        self.captured.into_values().map(|segment| segment.graph)
    }

    /// The number of graphs that are kept.
    #[must_use]
    pub fn graphs(&self) -> usize {
        self.captured.len()
    }
}

/// Two chains over the words with different beginnings. Chance collisions cost a graph or an extra
/// one, never a result: words are compared before a replay.
fn hash(words: &[u64]) -> u128 {
    let chain = |begin: u64| {
        let next = |state: u64, word: &u64| mix((state ^ *word).wrapping_add(GOLDEN));
        words.iter().fold(mix(begin ^ words.len() as u64), next)
    };
    u128::from(chain(1)) << 64 | u128::from(chain(0x0123_4567_89ab_cdef))
}

impl DeviceCommand {
    /// Appends the words that encode the command. No two lists of commands have the same words.
    pub fn write_words(&self, words: &mut Vec<u64>) {
        match self {
            Self::Launch(launch) => {
                let Launch { kernel, grid: [x, y], threads, shared_bytes, arguments } = launch;
                words.extend([0, *kernel as u64]);
                words.extend([*x, *y, *threads, *shared_bytes].map(u64::from));
                arguments.write_words(words);
            }
            Self::Multiply(product) => {
                let MatrixProduct { kind, rows, outputs, inputs, left, right, result, addend } =
                    *product;
                let kind = match kind {
                    ProductKind::Forward => 0,
                    ProductKind::Input => 1,
                    ProductKind::Weights { is_added: false } => 2,
                    ProductKind::Weights { is_added: true } => 3,
                };
                words.extend([1, kind]);
                words.extend([rows, outputs, inputs].map(|size| size as u64));
                words.extend([left, right, result].map(|address| address.0));
                // No memory begins at zero.
                words.push(addend.map_or(0, |address| address.0));
            }
            Self::Copy { from, to, bytes } => words.extend([2, from.0, to.0, *bytes]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::DeviceAddress;
    use crate::cuda::kernel::{Arguments, Kernel};

    const SMALL: GraphLimits = GraphLimits { graphs: 3, seen: 4, commands_min: 2, commands_max: 8 };

    fn words(number: u64) -> Vec<u64> {
        vec![7, number, number ^ 3]
    }

    #[test]
    fn a_segment_is_issued_then_captured_then_replayed() {
        let mut segments = SegmentCache::new(SMALL);
        assert_eq!(segments.decide(2, &words(1)), SegmentDecision::Issue);
        assert_eq!(segments.decide(2, &words(1)), SegmentDecision::Capture);
        assert_eq!(segments.insert(words(1), GraphId(5)), None);
        for _ in 0..3 {
            assert_eq!(segments.decide(2, &words(1)), SegmentDecision::Replay(GraphId(5)));
        }
        assert_eq!(segments.decide(2, &words(2)), SegmentDecision::Issue, "other words");
        assert_eq!((segments.graphs(), segments.seen.len()), (1, 1));
    }

    #[test]
    fn a_graph_is_not_started_for_few_commands() {
        let mut segments = SegmentCache::new(SMALL);
        for _ in 0..4 {
            assert_eq!(segments.decide(1, &words(1)), SegmentDecision::Issue);
        }
        assert_eq!(segments.seen.len(), 0);
    }

    #[test]
    fn what_never_comes_again_is_forgotten() {
        let mut segments = SegmentCache::new(SMALL);
        for number in 0..100 {
            assert_eq!(segments.decide(2, &words(number)), SegmentDecision::Issue);
            assert!(segments.seen.len() <= SMALL.seen);
        }
        assert_eq!(
            segments.decide(2, &words(96)),
            SegmentDecision::Capture,
            "one of the last four"
        );
        assert_eq!(segments.decide(2, &words(95)), SegmentDecision::Issue, "the fifth");
    }

    fn make(segments: &mut SegmentCache, number: u64) -> Option<GraphId> {
        assert_eq!(segments.decide(2, &words(number)), SegmentDecision::Issue);
        assert_eq!(segments.decide(2, &words(number)), SegmentDecision::Capture);
        segments.insert(words(number), GraphId(number))
    }

    #[test]
    fn a_graph_that_was_not_used_for_long_is_evicted() {
        let mut segments = SegmentCache::new(SMALL);
        (0..3).for_each(|number| assert_eq!(make(&mut segments, number), None));
        // Number 1 is the one that is not used.
        for _ in 0..STALE * 3 / 2 {
            assert_eq!(segments.decide(2, &words(0)), SegmentDecision::Replay(GraphId(0)));
            assert_eq!(segments.decide(2, &words(2)), SegmentDecision::Replay(GraphId(2)));
        }
        assert_eq!(make(&mut segments, 3), Some(GraphId(1)));
        assert_eq!(segments.graphs(), SMALL.graphs);
        assert_eq!(segments.decide(2, &words(0)), SegmentDecision::Replay(GraphId(0)));
        assert_eq!(segments.decide(2, &words(1)), SegmentDecision::Issue, "it was evicted");
    }

    #[test]
    fn more_segments_than_graphs_in_turn_leave_the_graphs_alone() {
        let mut segments = SegmentCache::new(SMALL);
        (0..3).for_each(|number| assert_eq!(make(&mut segments, number), None));
        for _ in 0..20 {
            for number in 0..7 {
                let expected = if number < 3 {
                    SegmentDecision::Replay(GraphId(number))
                } else {
                    SegmentDecision::Issue
                };
                assert_eq!(segments.decide(2, &words(number)), expected);
            }
        }
    }

    /// Against a model that keeps everything: a replay is always of the same words.
    #[test]
    fn a_replay_is_of_exactly_what_was_captured() {
        let mut segments = SegmentCache::new(SMALL);
        let mut captured: BTreeMap<GraphId, Vec<u64>> = BTreeMap::new();
        let mut next = 0;
        let mut replays = 0;
        for draw in 0..20_000u64 {
            // Some often, most seldom, and others after a while.
            let number = draw / 500 + mix(draw) % (1 + mix(draw + 1) % 12);
            let words = words(number);
            match segments.decide(2, &words) {
                SegmentDecision::Issue => {}
                SegmentDecision::Capture => {
                    next += 1;
                    let evicted = segments.insert(words.clone(), GraphId(next));
                    if let Some(evicted) = evicted {
                        captured.remove(&evicted).expect("a graph is evicted once");
                    }
                    captured.insert(GraphId(next), words);
                }
                SegmentDecision::Replay(graph) => {
                    assert_eq!(captured.get(&graph), Some(&words));
                    replays += 1;
                }
            }
            assert_eq!(captured.len(), segments.graphs());
            assert!(segments.graphs() <= SMALL.graphs && segments.seen.len() <= SMALL.seen);
        }
        assert!(replays > 1000, "{replays}");
    }

    /// Every command of a small world has words of its own, and so has every list of two.
    #[test]
    fn commands_have_different_words() {
        let mut commands = Vec::new();
        for arguments in [
            Arguments::new(),
            Arguments::new().count(1),
            Arguments::new().count(1).count(2),
            Arguments::new().count(2).count(1),
            // The same words as two counts, in one argument.
            Arguments::new().structure(&[1, 0, 2, 0]),
        ] {
            for (grid, threads, shared) in [([1, 2], 3, 0), ([2, 1], 3, 0), ([1, 2], 3, 4)] {
                for kernel in [Kernel::Rotate, Kernel::AddFloats] {
                    let launch = Launch::blocks(kernel, grid, threads, arguments.clone());
                    commands.push(DeviceCommand::Launch(launch.with_shared_bytes(shared)));
                }
            }
        }
        let kinds = [
            ProductKind::Forward,
            ProductKind::Input,
            ProductKind::Weights { is_added: false },
            ProductKind::Weights { is_added: true },
        ];
        for kind in kinds {
            for [a, b, c] in [[1, 2, 3], [2, 1, 3], [1, 3, 2]] {
                let [left, right, result] = [a, b, c].map(|at| DeviceAddress(at as u64));
                for (rows, outputs, inputs) in [(1, 1, 1), (a, b, c)] {
                    for addend in [None, Some(left)] {
                        let product = MatrixProduct {
                            kind,
                            rows,
                            outputs,
                            inputs,
                            left,
                            right,
                            result,
                            addend,
                        };
                        commands.push(DeviceCommand::Multiply(product));
                    }
                }
            }
        }
        for (from, to, bytes) in [(1, 2, 3), (2, 1, 3), (1, 2, 4)] {
            commands.push(DeviceCommand::Copy {
                from: DeviceAddress(from),
                to: DeviceAddress(to),
                bytes,
            });
        }
        let mut found = std::collections::BTreeSet::new();
        let mut lists = 0;
        let all = || std::iter::once(None).chain(commands.iter().map(Some));
        for (first, second) in all().flat_map(|first| all().map(move |second| (first, second))) {
            if first.is_none() && second.is_some() {
                continue;
            }
            let mut words = Vec::new();
            first.into_iter().chain(second).for_each(|command| command.write_words(&mut words));
            assert!(found.insert(words), "{first:?} {second:?}");
            lists += 1;
        }
        assert_eq!(found.len(), lists);
    }
}
