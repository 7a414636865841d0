//! How long the operations of a program take.

use zbelastic_types::ChunkIndex;

use crate::placement::Placement;

/// Durations of one chunk's passes, for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkTimes {
    /// The forward pass.
    pub f: f64,
    /// The gradient of the input.
    pub b: f64,
    /// The gradient of the weights, all of it.
    pub w: f64,
    /// The share of `w` that moves into WE when the program has one for the pass.
    pub w_early: f64,
}

/// Durations, all in one unit of the caller's choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One entry a chunk, in model order.
    pub chunks: Vec<ChunkTimes>,
    /// From when a result has left its stage to when it is on another one.
    pub link: f64,
    /// How long a result keeps the way to another stage from those after it: a message's bytes over
    /// the bandwidth. Each pair of stages has a way in each direction, which carries one at a time.
    pub occupancy: f64,
    /// From the arrival of the last report to the verdict being known on every stage.
    pub verdict: f64,
    /// STEP, the same on every stage.
    pub step: f64,
}

/// A duration no simulation can run with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// The number of chunks is not the program's.
    #[error("expected times for {expected} chunks, found {found}")]
    ChunkCount {
        /// The program's chunks.
        expected: u32,
        /// The chunks with times.
        found: usize,
    },
    /// Negative, infinite or not a number.
    #[error("expected a finite duration of at least 0 for {name}, found {found}")]
    Duration {
        /// Which duration.
        name: &'static str,
        /// The duration as found.
        found: f64,
    },
    /// A part that is longer than the whole.
    #[error("chunk {chunk}: expected an early share of at most w = {w}, found {w_early}")]
    EarlyShare {
        /// The chunk.
        chunk: ChunkIndex,
        /// Its whole W.
        w: f64,
        /// The share said to run early.
        w_early: f64,
    },
}

impl Costs {
    /// Every stage takes `f`, `b` and `w`, divided evenly among its chunks of a replica, and a hop between
    /// stages takes `link`. Verdict, step and early weights take no time.
    #[must_use]
    pub fn even(placement: &Placement, f: f64, b: f64, w: f64, link: f64) -> Self {
        let share = |time: f64| time * placement.chunk_share();
        let times = ChunkTimes { f: share(f), b: share(b), w: share(w), w_early: 0.0 };
        let chunks = vec![times; placement.chunk_count() as usize];
        Self { chunks, link, occupancy: 0.0, verdict: 0.0, step: 0.0 }
    }

    pub(crate) fn check(&self, placement: &Placement) -> Result<(), CostError> {
        let expected = placement.chunk_count();
        if self.chunks.len() != expected as usize {
            return Err(CostError::ChunkCount { expected, found: self.chunks.len() });
        }
        check_durations([
            ("link", self.link),
            ("occupancy", self.occupancy),
            ("verdict", self.verdict),
            ("step", self.step),
        ])?;
        for (chunk, times) in (0..).map(ChunkIndex).zip(&self.chunks) {
            let ChunkTimes { f, b, w, w_early } = *times;
            check_durations([("f", f), ("b", b), ("w", w), ("w_early", w_early)])?;
            if w_early > w {
                return Err(CostError::EarlyShare { chunk, w, w_early });
            }
        }
        Ok(())
    }
}

fn check_durations<const N: usize>(durations: [(&'static str, f64); N]) -> Result<(), CostError> {
    let legal = |found: f64| found.is_finite() && found >= 0.0;
    match durations.into_iter().find(|(_, found)| !legal(*found)) {
        Some((name, found)) => Err(CostError::Duration { name, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkTimes, CostError, Costs};
    use crate::placement::Placement;
    use zbelastic_types::ChunkIndex;

    #[test]
    fn even_costs_are_divided_among_the_chunks_of_a_stage() {
        let line = Costs::even(&Placement::line(3), 4.0, 6.0, 2.0, 0.5);
        assert_eq!(line.chunks, [ChunkTimes { f: 4.0, b: 6.0, w: 2.0, w_early: 0.0 }; 3]);
        let vee = Costs::even(&Placement::vee(2), 4.0, 6.0, 2.0, 0.5);
        assert_eq!(vee.chunks, [ChunkTimes { f: 2.0, b: 3.0, w: 1.0, w_early: 0.0 }; 4]);
    }

    #[test]
    fn a_cost_that_is_no_duration_is_named() {
        let placement = Placement::line(2);
        let check = |change: fn(&mut Costs), expected: Result<(), CostError>| {
            let mut costs = Costs::even(&placement, 1.0, 1.0, 1.0, 0.0);
            change(&mut costs);
            assert_eq!(costs.check(&placement), expected);
        };
        check(|_| {}, Ok(()));
        let count = CostError::ChunkCount { expected: 2, found: 1 };
        check(|costs| costs.chunks.truncate(1), Err(count));
        let negative = CostError::Duration { name: "link", found: -1.0 };
        check(|costs| costs.link = -1.0, Err(negative));
        let infinite = CostError::Duration { name: "b", found: f64::INFINITY };
        check(|costs| costs.chunks[1].b = f64::INFINITY, Err(infinite));
        check(|costs| costs.chunks[1].w_early = 1.0, Ok(()));
        let chunk = ChunkIndex(1);
        let share = CostError::EarlyShare { chunk, w: 1.0, w_early: 1.5 };
        check(|costs| costs.chunks[1].w_early = 1.5, Err(share));
    }
}
