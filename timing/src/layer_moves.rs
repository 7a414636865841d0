//! Which layers really moved for each plan, as the workers that received them reported.
//!
//! Pure: the caller passes arrivals with their times, and reads sums.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use zbelastic_types::{Generation, LayerId};

/// Plans that are remembered, the newest ones.
const PLANS_MAX: usize = 16;

/// The layers that moved for a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovedLayers {
    /// Layers that arrived somewhere.
    pub layers: u32,
    /// Their bytes, as they travelled.
    pub bytes: u64,
    /// From the first request to the last arrival.
    span: Option<(Instant, Instant)>,
}

impl MovedLayers {
    /// From the first request to the last arrival.
    #[must_use]
    pub fn time(&self) -> Option<Duration> {
        self.span.map(|(from, to)| to - from)
    }
}

/// The layers that moved for the last plans.
#[derive(Debug, Default)]
pub struct LayerMoves {
    plans: BTreeMap<Generation, MovedLayers>,
}

impl LayerMoves {
    /// A layer of so many bytes arrived now for a plan, and was so long on its way.
    pub fn note(&mut self, plan: Generation, bytes: u64, duration: Duration, now: Instant) {
        let requested_at = now.checked_sub(duration).unwrap_or(now);
        let moved = self.plans.entry(plan).or_default();
        moved.layers += 1;
        moved.bytes = moved.bytes.saturating_add(bytes);
        let (from, to) = moved.span.unwrap_or((requested_at, now));
        moved.span = Some((from.min(requested_at), to.max(now)));
        while self.plans.len() > PLANS_MAX {
            self.plans.pop_first();
        }
    }

    /// The layers that moved for a plan so far.
    #[must_use]
    pub fn of(&self, plan: Generation) -> MovedLayers {
        self.plans.get(&plan).copied().unwrap_or_default()
    }
}

/// A layer that arrived ahead of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedAhead {
    /// Its bytes, as they travelled.
    pub bytes: u64,
    /// How long it was on its way.
    pub duration: Duration,
    /// When it was there.
    pub arrived_at: Instant,
}

/// The layers that a worker received ahead of a plan. Which plan follows shows only when it begins:
/// what was copied for one that another came before does not count for that one.
#[derive(Debug, Default)]
pub struct LayersAhead {
    layers: BTreeMap<LayerId, ArrivedAhead>,
}

impl LayersAhead {
    /// A layer arrived. One that arrives again, at a later version, is one layer and the bytes of both,
    /// on its way from the first request.
    pub fn note(&mut self, layer: LayerId, arrived: ArrivedAhead) {
        let Some(before) = self.layers.get_mut(&layer) else {
            self.layers.insert(layer, arrived);
            return;
        };
        before.bytes += arrived.bytes;
        before.duration += arrived.arrived_at - before.arrived_at;
        before.arrived_at = arrived.arrived_at;
    }

    /// A plan begins that needs these layers here: those of them that had arrived. None is left for
    /// the plan after it.
    pub fn take(&mut self, needed: &BTreeSet<LayerId>) -> Vec<ArrivedAhead> {
        let layers = std::mem::take(&mut self.layers);
        let needed = layers.into_iter().filter(|(layer, _)| needed.contains(layer));
        needed.map(|(_, arrived)| arrived).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use zbelastic_types::{Generation, LayerId};

    use super::{ArrivedAhead, LayerMoves, LayersAhead, MovedLayers, PLANS_MAX};

    #[test]
    fn what_was_copied_ahead_counts_for_the_next_plan_that_needs_it() {
        let began = Instant::now();
        let arrived = |bytes, at_ms, duration_ms| ArrivedAhead {
            bytes,
            duration: Duration::from_millis(duration_ms),
            arrived_at: began + Duration::from_millis(at_ms),
        };
        let mut ahead = LayersAhead::default();
        ahead.note(LayerId(3), arrived(100, 40, 30));
        ahead.note(LayerId(5), arrived(7, 50, 3));
        ahead.note(LayerId(3), arrived(101, 90, 20));
        assert_eq!(ahead.take(&[LayerId(2), LayerId(3)].into()), [arrived(201, 90, 80)]);
        assert_eq!(ahead.take(&[LayerId(5)].into()), []);
    }

    #[test]
    fn time_is_from_the_first_question_to_the_last_arrival() {
        let mut moves = LayerMoves::default();
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        moves.note(Generation(2), 100, Duration::from_millis(30), at(50));
        moves.note(Generation(2), 20, Duration::from_millis(60), at(70));
        moves.note(Generation(3), 7, Duration::ZERO, at(90));
        let moved = moves.of(Generation(2));
        assert_eq!((moved.layers, moved.bytes), (2, 120));
        assert_eq!(moved.time(), Some(Duration::from_millis(60)));
        assert_eq!(moves.of(Generation(3)).time(), Some(Duration::ZERO));
        assert_eq!(moves.of(Generation(4)), MovedLayers::default());
        assert_eq!(MovedLayers::default().time(), None);
    }

    #[test]
    fn old_plans_are_forgotten() {
        let mut moves = LayerMoves::default();
        for plan in 0..PLANS_MAX as u64 + 1 {
            moves.note(Generation(plan), 1, Duration::ZERO, Instant::now());
        }
        assert_eq!((moves.of(Generation(0)).layers, moves.of(Generation(1)).layers), (0, 1));
    }
}
