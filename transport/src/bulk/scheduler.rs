//! Which holder sends which chunks: the decisions of a fetch, without clocks and streams.
//!
//! Chunks are missing, requested of one holder, or here. A holder that works gets a few ranges
//! ahead, so that it never waits for the next; ranges grow smaller towards the end, so that all
//! holders end together. A holder that has nothing to do is given the chunks that a much slower one
//! owes. No chunk is requested of two holders at once. A holder whose chunk was refused is not
//! requested for that one again, and goes on with the others; one whose chunk did not match its own
//! checksum gets no more ranges while others are left. Holders may join a fetch under way.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// The most ranges of one holder that are open: it works on one, the other waits at its side.
pub(super) const RANGES_AHEAD: usize = 2;
/// The most chunks of a range.
pub(super) const RANGE_CHUNKS_MAX: u64 = 8;
/// How often a holder may fail without a chunk between before it gets no more ranges.
pub(super) const HOLDER_FAILURES_MAX: u32 = 3;
/// How long a holder is left alone after its first failure; after the second twice as long.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// The same after it was overtaken, which is no failure: it may be all there is later. Doubles each
/// time, so that of two that are stalled one has the time to reach its deadline.
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(1);
const DOUBLINGS_MAX: u32 = 6;
/// A holder is overtaken if it would need this many times as long for its owed chunks as the idle
/// one, and [`STEAL_FLOOR`] beyond that. To be overtaken costs the bytes on the way.
const STEAL_FACTOR: u32 = 4;
const STEAL_FLOOR: Duration = Duration::from_millis(200);
/// How often holders are compared while one of them has nothing to do.
const COMPARE_INTERVAL: Duration = Duration::from_millis(50);

/// The state of a fetch. Holders are named by their index in the list, times count from its
/// beginning.
#[derive(Debug)]
pub(super) struct FetchScheduler {
    expected: u64,
    arrived: u64,
    missing: VecDeque<Range<u64>>,
    holders: Vec<HolderState>,
}

#[derive(Debug, Default)]
struct HolderState {
    ranges: VecDeque<Range<u64>>,
    /// When it last got a range after a pause, or sent a chunk.
    last_active: Duration,
    /// Time that it needs for a chunk, as a sliding mean; none before its first.
    pace: Option<Duration>,
    /// Since its last chunk.
    failures: u32,
    /// Since its last chunk.
    overtaken_count: u32,
    status: HolderStatus,
    /// Chunks of it that were not those that were meant.
    refused: BTreeSet<u64>,
}

/// Why a holder gives up its owed chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderSetback {
    /// It was overtaken: [`FetchScheduler::poll_yield`] chose it.
    Overtaken,
    /// A failure that may not come again.
    Passing,
    /// A chunk did not match the holder's own checksum: its memory, or the path to it, is not to be
    /// trusted where another holder is left.
    Damaged,
    /// A failure that would come again.
    Final,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HolderStatus {
    #[default]
    Ready,
    /// To be left alone until then.
    Paused(Duration),
    /// Was chosen to give up its owed chunks, and its setback is not yet reported.
    Yielding,
    /// Gets no more ranges.
    Excluded,
}

impl FetchScheduler {
    /// A fetch of the chunks in these ranges, which do not overlap, of no holder yet.
    pub(super) fn new(wanted: impl IntoIterator<Item = Range<u64>>) -> Self {
        let wanted = wanted.into_iter().filter(|range| !range.is_empty());
        let missing: VecDeque<Range<u64>> = wanted.collect();
        let expected = missing.iter().map(|range| range.end - range.start).sum();
        Self { expected, arrived: 0, missing, holders: Vec::new() }
    }

    /// One more holder has the chunks, from the beginning or from now on: it gets ranges as the
    /// others do. Its index is the number of those before it.
    pub(super) fn add_holder(&mut self) {
        self.holders.push(HolderState::default());
    }

    pub(super) fn is_done(&self) -> bool {
        self.arrived == self.expected
    }

    /// Whether no holder is left to request a missing chunk of.
    pub(super) fn is_hopeless(&self) -> bool {
        let mut left = self.holders.iter().filter(|holder| holder.status != HolderStatus::Excluded);
        let Some(first) = left.next() else { return true };
        let mut refused_by_first = first.refused.iter();
        refused_by_first.any(|chunk| {
            left.clone().all(|holder| holder.refused.contains(chunk))
                && self.missing.iter().any(|range| range.contains(chunk))
        })
    }

    /// The chunks that did not arrive: those to be requested, and those that holders owe.
    pub(super) fn missing(&self) -> Vec<Range<u64>> {
        let owed = self.holders.iter().flat_map(|holder| &holder.ranges);
        self.missing.iter().chain(owed).cloned().collect()
    }

    /// Number of chunks that were wanted.
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Chunks to request of `holder` now, in addition to those it owes.
    pub(super) fn poll_range(&mut self, holder: usize, now: Duration) -> Option<Range<u64>> {
        let size = self.range_chunks();
        let state = &mut self.holders[holder];
        if let HolderStatus::Paused(until) = state.status
            && until <= now
        {
            state.status = HolderStatus::Ready;
        }
        if state.status != HolderStatus::Ready || state.ranges.len() >= RANGES_AHEAD {
            return None;
        }
        let mut ranges = self.missing.iter().enumerate();
        let (index, range) =
            ranges.find_map(|(index, range)| Some((index, state.unrefused(range, size)?)))?;
        let around = self.missing.remove(index).expect("it is there");
        let rest = [around.start..range.start, range.end..around.end];
        for part in rest.into_iter().rev().filter(|part| !part.is_empty()) {
            self.missing.insert(index, part);
        }
        if state.ranges.is_empty() {
            state.last_active = now;
        }
        state.ranges.push_back(range.clone());
        Some(range)
    }

    /// The missing chunks divided by the ranges that are open when all work, within bounds.
    fn range_chunks(&self) -> u64 {
        let missing: u64 = self.missing.iter().map(|range| range.end - range.start).sum();
        let working = self.holders.iter().filter(|holder| holder.status != HolderStatus::Excluded);
        let ranges = (working.count().max(1) * RANGES_AHEAD) as u64;
        missing.div_ceil(ranges).clamp(1, RANGE_CHUNKS_MAX)
    }

    /// A chunk came whole, the first of those that `holder` still owed.
    pub(super) fn on_chunk(&mut self, holder: usize, chunk: u64, now: Duration) {
        self.note_received(holder, chunk, now);
        self.arrived += 1;
    }

    /// A chunk came, the first of those that `holder` still owed, and is not the one that was meant:
    /// it is missing again, and that of another holder.
    pub(super) fn on_refused(&mut self, holder: usize, chunk: u64, now: Duration) {
        self.note_received(holder, chunk, now);
        self.holders[holder].refused.insert(chunk);
        self.missing.push_front(chunk..chunk + 1);
    }

    fn note_received(&mut self, holder: usize, chunk: u64, now: Duration) {
        let state = &mut self.holders[holder];
        let range = state.ranges.front_mut().expect("a chunk that was requested");
        assert_eq!(range.start, chunk, "chunks of a holder come in order");
        range.start += 1;
        if range.is_empty() {
            state.ranges.pop_front();
        }
        let took = now.saturating_sub(state.last_active);
        state.pace = Some(state.pace.map_or(took, |pace| (pace * 3 + took) / 4));
        state.last_active = now;
        (state.failures, state.overtaken_count) = (0, 0);
    }

    /// The chunks that `holder` owed are missing again. It is left alone for a while, or for good.
    pub(super) fn on_setback(&mut self, holder: usize, setback: HolderSetback, now: Duration) {
        let is_other = |(index, other): (usize, &HolderState)| {
            index != holder && other.status != HolderStatus::Excluded
        };
        let has_others = self.holders.iter().enumerate().any(is_other);
        let state = &mut self.holders[holder];
        // The front goes in last, so that it is requested first.
        while let Some(range) = state.ranges.pop_back() {
            self.missing.push_front(range);
        }
        state.status = match setback {
            HolderSetback::Overtaken => {
                let pause = OVERTAKEN_PAUSE * 2_u32.pow(state.overtaken_count.min(DOUBLINGS_MAX));
                state.overtaken_count += 1;
                HolderStatus::Paused(now + pause)
            }
            HolderSetback::Damaged if has_others => HolderStatus::Excluded,
            HolderSetback::Passing | HolderSetback::Damaged
                if state.failures + 1 < HOLDER_FAILURES_MAX =>
            {
                state.failures += 1;
                HolderStatus::Paused(now + FAILURE_PAUSE * state.failures)
            }
            HolderSetback::Passing | HolderSetback::Damaged | HolderSetback::Final => {
                HolderStatus::Excluded
            }
        };
    }

    /// A holder that has to give up its owed chunks, because another is idle and much faster. It
    /// owes all of that until [`FetchScheduler::on_setback`].
    pub(super) fn poll_yield(&mut self, now: Duration) -> Option<usize> {
        let is_yielding = |holder: &HolderState| holder.status == HolderStatus::Yielding;
        if self.holders.iter().any(is_yielding) {
            return None;
        }
        // What is missing all the same was refused of the idle holder.
        let has_nothing = |holder: &&HolderState| {
            self.missing.iter().all(|range| holder.unrefused(range, 1).is_none())
        };
        let idle = self.holders.iter().filter(|holder| holder.is_idle()).filter(has_nothing);
        let idle: Vec<&HolderState> = idle.collect();
        let is_victim = |holder: &HolderState| {
            let able = idle.iter().filter(|idle| idle.may_send_all(&holder.ranges));
            let pace = able.map(|idle| idle.pace.unwrap_or(STEAL_FLOOR)).min();
            pace.is_some_and(|pace| holder.is_overtaken(pace, now))
        };
        let victim = self.holders.iter().position(is_victim)?;
        self.holders[victim].status = HolderStatus::Yielding;
        Some(victim)
    }

    /// When to decide again although nothing happened.
    pub(super) fn poll_timeout(&self, now: Duration) -> Option<Duration> {
        let pauses = self.holders.iter().filter_map(|holder| match holder.status {
            HolderStatus::Paused(until) => Some(until.max(now)),
            HolderStatus::Ready | HolderStatus::Yielding | HolderStatus::Excluded => None,
        });
        let is_idle = self.holders.iter().any(HolderState::is_idle);
        pauses.chain(is_idle.then_some(now + COMPARE_INTERVAL)).min()
    }
}

impl HolderState {
    /// The first chunks of a range, at most so many, that were not refused of this holder.
    fn unrefused(&self, range: &Range<u64>, size: u64) -> Option<Range<u64>> {
        let start = range.clone().find(|chunk| !self.refused.contains(chunk))?;
        let refused = self.refused.range(start..).next();
        let end = refused.map_or(range.end, |refused| range.end.min(*refused));
        Some(start..end.min(start + size))
    }

    /// Whether no chunk of these ranges was refused of this holder.
    fn may_send_all(&self, ranges: &VecDeque<Range<u64>>) -> bool {
        ranges.iter().all(|range| self.refused.range(range.clone()).next().is_none())
    }

    fn is_idle(&self) -> bool {
        self.status == HolderStatus::Ready && self.ranges.is_empty()
    }

    fn is_overtaken(&self, idle_pace: Duration, now: Duration) -> bool {
        let owed: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
        let owed = u32::try_from(owed).expect("a few ranges of a few chunks");
        let silent = now.saturating_sub(self.last_active);
        let pace = self.pace.map_or(silent, |pace| pace.max(silent));
        let is_slow = pace * owed > idle_pace * owed * STEAL_FACTOR + STEAL_FLOOR;
        self.status == HolderStatus::Ready && owed > 0 && is_slow
    }
}

#[cfg(test)]
mod tests;
