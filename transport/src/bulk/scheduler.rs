//! Which holder sends which chunks: the decisions of a fetch, without clocks and streams.
//!
//! Chunks are missing, requested of one holder, or here. A holder that works gets a few orders ahead,
//! so that it never waits for the next; orders grow smaller towards the end, so that all holders
//! end together. A holder that has nothing to do takes over what was requested of a much slower one.
//! No chunk is requested of two holders at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The most orders of one holder that are open: it works on one, the other waits at its side.
pub(super) const ORDERS_AHEAD: usize = 2;
/// The most chunks of an order.
pub(super) const ORDER_CHUNKS_MAX: u64 = 8;
/// How often a holder may fail without a chunk between before it gets no more orders.
pub(super) const HOLDER_FAILURES_MAX: u32 = 3;
/// How long a holder is left alone after its first failure; after the second twice as long.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// The same after it was overtaken, which is no failure: it may be all there is later. Doubles each
/// time, so that of two that are stalled one has the time to reach its deadline.
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(1);
const DOUBLINGS_MAX: u32 = 6;
/// A holder is overtaken if it would need this many times as long for its rest as the idle one,
/// and [`STEAL_FLOOR`] beyond that. To be overtaken costs what is on the way.
const STEAL_FACTOR: u32 = 4;
const STEAL_FLOOR: Duration = Duration::from_millis(200);
/// How often holders are compared while one of them has nothing to do.
const STEAL_LOOK: Duration = Duration::from_millis(50);

/// The state of a fetch. Holders go by their place in the list, times count from its beginning.
#[derive(Debug)]
pub(super) struct FetchScheduler {
    expected: u64,
    arrived: u64,
    missing: VecDeque<Range<u64>>,
    holders: Vec<HolderState>,
}

#[derive(Debug, Default)]
struct HolderState {
    orders: VecDeque<Range<u64>>,
    /// When it last got an order after a pause, or sent a chunk.
    last_active: Duration,
    /// How long a chunk takes it, as a sliding mean.
    pace: Option<Duration>,
    /// Since its last chunk.
    failures: u32,
    /// Since its last chunk.
    overtaken_count: u32,
    status: HolderStatus,
}

/// Why a holder gives up what it owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderSetback {
    /// It was overtaken: [`FetchScheduler::poll_yield`] chose it.
    Overtaken,
    /// What may be better the next time.
    Passing,
    /// A failure that would come again.
    Final,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HolderStatus {
    #[default]
    Ready,
    /// To be left alone until then.
    Paused(Duration),
    /// Was chosen to give up what it owes, and its setback is not yet reported.
    Yielding,
    /// Gets no more orders.
    Excluded,
}

impl FetchScheduler {
    pub(super) fn new(chunks: u64, holders: usize) -> Self {
        assert!(holders > 0, "somebody is asked");
        let missing = (chunks > 0).then_some(0..chunks).into_iter().collect();
        let holders = (0..holders).map(|_| HolderState::default()).collect();
        Self { expected: chunks, arrived: 0, missing, holders }
    }

    pub(super) fn is_done(&self) -> bool {
        self.arrived == self.expected
    }

    /// Whether no holder is left to request chunks of.
    pub(super) fn is_hopeless(&self) -> bool {
        self.holders.iter().all(|holder| holder.status == HolderStatus::Excluded)
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Chunks to request of `holder` now, in addition to what it owes.
    pub(super) fn poll_order(&mut self, holder: usize, now: Duration) -> Option<Range<u64>> {
        let size = self.order_chunks();
        let state = &mut self.holders[holder];
        if let HolderStatus::Paused(until) = state.status
            && until <= now
        {
            state.status = HolderStatus::Ready;
        }
        if state.status != HolderStatus::Ready || state.orders.len() >= ORDERS_AHEAD {
            return None;
        }
        let first = self.missing.front_mut()?;
        let order = first.start..first.end.min(first.start + size);
        first.start = order.end;
        if first.is_empty() {
            self.missing.pop_front();
        }
        if state.orders.is_empty() {
            state.last_active = now;
        }
        state.orders.push_back(order.clone());
        Some(order)
    }

    /// What is missing divided by the orders that are open when all work, within bounds.
    fn order_chunks(&self) -> u64 {
        let missing: u64 = self.missing.iter().map(|range| range.end - range.start).sum();
        let working = self.holders.iter().filter(|holder| holder.status != HolderStatus::Excluded);
        let orders = (working.count().max(1) * ORDERS_AHEAD) as u64;
        missing.div_ceil(orders).clamp(1, ORDER_CHUNKS_MAX)
    }

    /// A chunk came whole, the first of those that `holder` still owed.
    pub(super) fn on_chunk(&mut self, holder: usize, chunk: u64, now: Duration) {
        let state = &mut self.holders[holder];
        let order = state.orders.front_mut().expect("a chunk that was asked for");
        assert_eq!(order.start, chunk, "chunks of a holder come in order");
        order.start += 1;
        if order.is_empty() {
            state.orders.pop_front();
        }
        let took = now.saturating_sub(state.last_active);
        state.pace = Some(state.pace.map_or(took, |pace| (pace * 3 + took) / 4));
        state.last_active = now;
        (state.failures, state.overtaken_count) = (0, 0);
        self.arrived += 1;
    }

    /// What `holder` owed is missing again. It is left alone for a while, or for good.
    pub(super) fn on_setback(&mut self, holder: usize, setback: HolderSetback, now: Duration) {
        let state = &mut self.holders[holder];
        // The front goes in last, so that it is requested first.
        while let Some(order) = state.orders.pop_back() {
            self.missing.push_front(order);
        }
        state.status = match setback {
            HolderSetback::Overtaken => {
                let rest = OVERTAKEN_PAUSE * 2_u32.pow(state.overtaken_count.min(DOUBLINGS_MAX));
                state.overtaken_count += 1;
                HolderStatus::Paused(now + rest)
            }
            HolderSetback::Passing if state.failures + 1 < HOLDER_FAILURES_MAX => {
                state.failures += 1;
                HolderStatus::Paused(now + FAILURE_PAUSE * state.failures)
            }
            HolderSetback::Passing | HolderSetback::Final => HolderStatus::Excluded,
        };
    }

    /// A holder that has to give up what it owes, because another is idle and much faster. It owes
    /// all of that until [`FetchScheduler::on_setback`].
    pub(super) fn poll_yield(&mut self, now: Duration) -> Option<usize> {
        let is_yielding = |holder: &HolderState| holder.status == HolderStatus::Yielding;
        if !self.missing.is_empty() || self.holders.iter().any(is_yielding) {
            return None;
        }
        let idle = self.holders.iter().filter(|holder| holder.is_idle());
        let thief_pace = idle.map(|holder| holder.pace.unwrap_or(STEAL_FLOOR)).min()?;
        let mut working = self.holders.iter().enumerate();
        let (victim, _) = working.find(|(_, holder)| holder.is_overtaken(thief_pace, now))?;
        self.holders[victim].status = HolderStatus::Yielding;
        Some(victim)
    }

    /// When to look again although nothing happened.
    pub(super) fn poll_timeout(&self, now: Duration) -> Option<Duration> {
        let rests = self.holders.iter().filter_map(|holder| match holder.status {
            HolderStatus::Paused(until) => Some(until.max(now)),
            HolderStatus::Ready | HolderStatus::Yielding | HolderStatus::Excluded => None,
        });
        let is_idle = self.holders.iter().any(HolderState::is_idle);
        rests.chain(is_idle.then_some(now + STEAL_LOOK)).min()
    }
}

impl HolderState {
    fn is_idle(&self) -> bool {
        self.status == HolderStatus::Ready && self.orders.is_empty()
    }

    fn is_overtaken(&self, thief_pace: Duration, now: Duration) -> bool {
        let rest: u64 = self.orders.iter().map(|order| order.end - order.start).sum();
        let rest = u32::try_from(rest).expect("a few orders of a few chunks");
        let silent = now.saturating_sub(self.last_active);
        let pace = self.pace.map_or(silent, |pace| pace.max(silent));
        let is_slow = pace * rest > thief_pace * rest * STEAL_FACTOR + STEAL_FLOOR;
        self.status == HolderStatus::Ready && rest > 0 && is_slow
    }
}

#[cfg(test)]
mod tests;
