//! The times of the operations of a program.

use zbelastic_types::{ChunkIndex, SliceIndex};

use crate::placement::Placement;

/// Durations of one chunk's passes, for one microbatch with all its slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkTimes {
    /// Duration of the forward pass.
    pub f: f64,
    /// Duration of the gradient of the input.
    pub b: f64,
    /// Duration of the gradient of the weights, all of it.
    pub w: f64,
    /// The share of `w` that moves into WE when the program has one for the pass.
    pub w_early: f64,
}

/// Which copies run at once, out of a stage's memory and back into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyLanes {
    /// One copy at a time, in either direction: each is as fast as the connection allows.
    #[default]
    Alternating,
    /// One out and one back at the same time.
    Duplex,
    /// There is no lane: a stage copies in turn with its passes, and computes nothing meanwhile.
    InTurn,
}

/// Durations of one pass of a chunk beside its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryTimes {
    /// R: the activations that DROP freed are recomputed.
    pub recompute: f64,
    /// OFFLOAD: the activations kept after F are copied out.
    pub offload: f64,
    /// RELOAD: they are copied back.
    pub reload: f64,
}

/// Durations of recomputation and copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryCosts {
    /// Which copies run at once.
    pub lanes: CopyLanes,
    /// One entry a chunk, in model order; none at all if R lasts as long as F and a copy needs no
    /// time.
    pub chunks: Vec<MemoryTimes>,
}

/// Durations, all in one unit of the caller's choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One entry a chunk, in model order.
    pub chunks: Vec<ChunkTimes>,
    /// The share of a microbatch's times that each of its slices has, adding up to one; empty if
    /// all are equal. Later slices attend to more, so theirs are larger.
    pub slice_shares: Vec<f64>,
    /// From when a result has left its stage to when it is on another one.
    pub link: f64,
    /// How long a result occupies the link to another stage for those after it: a message's bytes
    /// over the bandwidth. Each pair of stages has a link in each direction, which carries one at a
    /// time. A slice's result has its part of a microbatch's bytes, and its part of this.
    pub occupancy: f64,
    /// From the arrival of the last report to the verdict being known on every stage.
    pub verdict: f64,
    /// STEP, the same on every stage.
    pub step: f64,
    /// R, OFFLOAD and RELOAD.
    pub memory: MemoryCosts,
    /// The time of a chunk's gradient to its sibling on another stage, beside a hop: one entry a
    /// chunk, in model order; none at all if it occupies the link no longer than a result does.
    pub gradients: Vec<f64>,
    /// The time of a tied matrix's gradient from one end of the model to the other, beside a hop.
    pub tied: f64,
}

/// A duration no simulation can run with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// The number of chunks is not the program's.
    #[error("expected times for {expected} chunks, found {found}")]
    ChunkCount {
        /// Number of chunks of the program.
        expected: u32,
        /// Number of chunks with times.
        found: usize,
    },
    /// Negative, infinite or not a number.
    #[error("expected a finite duration of at least 0 for {name}, found {found}")]
    Duration {
        /// Name of the duration.
        name: &'static str,
        /// The duration as found.
        found: f64,
    },
    /// A part that is longer than the whole.
    #[error("chunk {chunk}: expected an early share of at most w = {w}, found {w_early}")]
    EarlyShare {
        /// Index of the chunk in model order.
        chunk: ChunkIndex,
        /// Duration of the chunk's whole W.
        w: f64,
        /// Duration of the part of W that is to run early, in WE.
        w_early: f64,
    },
    /// The number of slices is not the program's.
    #[error("expected shares of {expected} slices, found {found}")]
    SliceCount {
        /// Number of slices of a microbatch in the program.
        expected: u32,
        /// The slices with a share.
        found: usize,
    },
    /// The slices of a microbatch do not make up a microbatch.
    #[error("expected shares of slices that add up to 1, found {sum}")]
    SliceShares {
        /// The sum of the shares.
        sum: f64,
    },
}

impl Costs {
    /// Every stage needs `f`, `b` and `w`, divided evenly among its chunks of a replica, and a hop
    /// between stages lasts `link`. Verdict, step and early weights need no time.
    #[must_use]
    pub fn even(placement: &Placement, f: f64, b: f64, w: f64, link: f64) -> Self {
        let share = |time: f64| time * placement.chunk_share();
        let times = ChunkTimes { f: share(f), b: share(b), w: share(w), w_early: 0.0 };
        let chunks = vec![times; placement.chunk_count() as usize];
        let slice_shares = Vec::new();
        Self {
            chunks,
            slice_shares,
            link,
            occupancy: 0.0,
            verdict: 0.0,
            step: 0.0,
            memory: MemoryCosts::default(),
            gradients: Vec::new(),
            tied: 0.0,
        }
    }

    /// The same with an offload and a reload that last `round_trip` together for all activations
    /// that one microbatch keeps on a stage, divided evenly among its chunks and between the two.
    #[must_use]
    pub fn with_round_trip(mut self, placement: &Placement, round_trip: f64) -> Self {
        let one_way = round_trip / 2.0 * placement.chunk_share();
        let times = |chunk: &ChunkTimes| MemoryTimes {
            recompute: chunk.f,
            offload: one_way,
            reload: one_way,
        };
        self.memory.chunks = self.chunks.iter().map(times).collect();
        self
    }

    /// The times of a pass of `chunk` beside its gradients.
    pub(crate) fn memory_times(&self, chunk: ChunkIndex) -> MemoryTimes {
        let recompute = self.chunks[chunk.index()].f;
        let free = MemoryTimes { recompute, offload: 0.0, reload: 0.0 };
        self.memory.chunks.get(chunk.index()).copied().unwrap_or(free)
    }

    /// The time of the gradient of `chunk` to another stage, beside a hop.
    pub(crate) fn gradient_time(&self, chunk: ChunkIndex) -> f64 {
        self.gradients.get(chunk.index()).copied().unwrap_or(self.occupancy)
    }

    /// The share of a microbatch's times that one of `slice_count` slices has.
    pub(crate) fn slice_share(&self, slice: SliceIndex, slice_count: u32) -> f64 {
        match self.slice_shares.get(slice.index()) {
            Some(share) => *share,
            None => 1.0 / f64::from(slice_count),
        }
    }

    pub(crate) fn check(&self, placement: &Placement, slice_count: u32) -> Result<(), CostError> {
        let expected = placement.chunk_count();
        if self.chunks.len() != expected as usize {
            return Err(CostError::ChunkCount { expected, found: self.chunks.len() });
        }
        check_durations([
            ("link", self.link),
            ("occupancy", self.occupancy),
            ("verdict", self.verdict),
            ("step", self.step),
            ("tied", self.tied),
        ])?;
        for (chunk, times) in (0..).map(ChunkIndex).zip(&self.chunks) {
            let ChunkTimes { f, b, w, w_early } = *times;
            check_durations([("f", f), ("b", b), ("w", w), ("w_early", w_early)])?;
            if w_early > w {
                return Err(CostError::EarlyShare { chunk, w, w_early });
            }
        }
        self.check_slices(slice_count)?;
        self.check_gradients(expected)?;
        self.check_memory(expected)
    }

    fn check_slices(&self, expected: u32) -> Result<(), CostError> {
        let found = self.slice_shares.len();
        if found == 0 {
            return Ok(());
        }
        if found != expected as usize {
            return Err(CostError::SliceCount { expected, found });
        }
        for share in &self.slice_shares {
            check_durations([("the share of a slice", *share)])?;
        }
        let sum: f64 = self.slice_shares.iter().sum();
        if (sum - 1.0).abs() > SHARES_SUM_ERROR_MAX {
            return Err(CostError::SliceShares { sum });
        }
        Ok(())
    }

    fn check_gradients(&self, expected: u32) -> Result<(), CostError> {
        let found = self.gradients.len();
        if found != 0 && found != expected as usize {
            return Err(CostError::ChunkCount { expected, found });
        }
        self.gradients.iter().try_for_each(|time| check_durations([("a gradient", *time)]))
    }

    fn check_memory(&self, expected: u32) -> Result<(), CostError> {
        let found = self.memory.chunks.len();
        if found != 0 && found != expected as usize {
            return Err(CostError::ChunkCount { expected, found });
        }
        for MemoryTimes { recompute, offload, reload } in &self.memory.chunks {
            check_durations([
                ("recompute", *recompute),
                ("offload", *offload),
                ("reload", *reload),
            ])?;
        }
        Ok(())
    }
}

/// How far from one shares may add up to: more than rounding does, less than matters.
const SHARES_SUM_ERROR_MAX: f64 = 1e-6;

fn check_durations<const N: usize>(durations: [(&'static str, f64); N]) -> Result<(), CostError> {
    let legal = |found: f64| found.is_finite() && found >= 0.0;
    match durations.into_iter().find(|(_, found)| !legal(*found)) {
        Some((name, found)) => Err(CostError::Duration { name, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkTimes, CostError, Costs, MemoryTimes};
    use crate::placement::Placement;
    use zbelastic_types::ChunkIndex;

    #[test]
    fn a_round_trip_is_divided_among_chunks_and_ways() {
        let vee = Placement::vee(2);
        let costs = Costs::even(&vee, 4.0, 6.0, 2.0, 0.5).with_round_trip(&vee, 12.0);
        let times = MemoryTimes { recompute: 2.0, offload: 3.0, reload: 3.0 };
        assert_eq!(costs.memory.chunks, [times; 4]);
        assert_eq!(costs.check(&vee, 1), Ok(()));
    }

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
            assert_eq!(costs.check(&placement, 2), expected);
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
        const TIMES: MemoryTimes = MemoryTimes { recompute: 1.0, offload: 2.0, reload: 3.0 };
        check(|costs| costs.memory.chunks = vec![TIMES; 2], Ok(()));
        let none = CostError::Duration { name: "reload", found: -3.0 };
        let backwards = |costs: &mut Costs| {
            costs.memory.chunks = vec![MemoryTimes { reload: -3.0, ..TIMES }; 2];
        };
        check(backwards, Err(none));
        check(|costs| costs.memory.chunks = vec![TIMES], Err(count));
        check(|costs| costs.gradients = vec![1.0], Err(count));
        let negative = CostError::Duration { name: "a gradient", found: -1.0 };
        check(|costs| costs.gradients = vec![1.0, -1.0], Err(negative));
        check(|costs| costs.slice_shares = vec![0.25, 0.75], Ok(()));
        let count = CostError::SliceCount { expected: 2, found: 3 };
        check(|costs| costs.slice_shares = vec![0.25, 0.25, 0.5], Err(count));
        let negative = CostError::Duration { name: "the share of a slice", found: -0.5 };
        check(|costs| costs.slice_shares = vec![-0.5, 1.5], Err(negative));
        let sum = CostError::SliceShares { sum: 1.25 };
        check(|costs| costs.slice_shares = vec![0.5, 0.75], Err(sum));
    }
}
