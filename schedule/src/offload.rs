//! Offloading: the activations of a pass are copied to the host between F and B, and back (Wan et
//! al.,
//! *PipeOffload*, ICML 2025, arXiv 2503.01328, section 3).
//!
//! Adds OFFLOAD and RELOAD to a program of arithmetic. Promises: at the times that were given no
//! pass runs later than without them, unless a limit cannot be met otherwise; and no stage
//! keeps more than without them.
//!
//! Every F is delayed as far as it can be without another pass being later: that makes time
//! for copies while the pipeline fills. Then the list of each stage is gone through once. A pass is
//! offloaded as soon as the lane is free, the one that is needed last first, unless the passes that
//! are offloaded could then not be reloaded in time; and it is reloaded as late as it can be.
//! Passes with too little time to spare between F and B are passed over. The authors require three
//! round trips; here every rule that makes a difference is tried, up to a limit, and the best
//! stands: least memory, then fewest copies.

mod planner;
mod timetable;

use std::cmp::Ordering;

use zbelastic_types::StageIndex;

use crate::cost::Costs;
use crate::kind::OffloadChunks;
use crate::memory::{ChunkMemory, PassFootprint, peak_of_list};
use crate::op::Op;
use crate::pass_table::PassTable;
use crate::program::Program;
use crate::simulate::SimulateError;
use planner::{OffloadRule, StageOffloads};
use timetable::Timetable;

/// The chunks that are offloaded, and the costs and limits of the plan.
#[derive(Clone, Copy, Debug)]
pub struct OffloadRequest<'a> {
    /// The times of passes and copies.
    pub costs: &'a Costs,
    /// The memory that passes keep, in model order.
    pub memory: &'a [ChunkMemory],
    /// Which chunks may be offloaded.
    pub chunks: OffloadChunks,
    /// The most that each stage may keep, in the unit of `memory`, if that is limited. Then no
    /// more is copied than the limit requires, and passes wait for copies where it cannot be met
    /// otherwise.
    pub limits: Option<&'a [f64]>,
}

/// The shares of a copy's time that are planned with, one after the other, while a limit is not
/// met: the smaller, the more is offloaded, and the longer passes wait in the end.
const COPY_TIME_SHARES: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.0];

/// The arithmetic of `program` with OFFLOAD and RELOAD. Those that it had before are replaced. To
/// be lowered afterwards, also if it was lowered before. A program with slices gets none: later
/// slices of a microbatch read activations of earlier ones.
///
/// # Errors
/// If the costs are not this program's, or it does not reach its end.
///
/// # Panics
/// If `memory` does not name every chunk, or `limits` not every stage.
pub fn offload(program: &Program, request: OffloadRequest<'_>) -> Result<Program, SimulateError> {
    assert_eq!(request.memory.len(), program.placement.chunk_count() as usize, "one entry a chunk");
    let program = program.arithmetic().without_copies();
    if program.slice_count > 1 {
        return Ok(program);
    }
    let timetable = Timetable::new(&program, request.costs)?;
    let mut kept = PassTable::new(&program, PassFootprint::default());
    let mut stages = Vec::with_capacity(program.stages.len());
    for (stage, ops) in program.lists() {
        let candidates = StageOffloads::new(&program, stage, &timetable, request.costs);
        let limit = request.limits.map(|limits| limits[stage.index()]);
        let mut candidate = |ops: Vec<Op>| {
            let peak = peak_of_list(&ops, request.memory, &mut kept);
            let copies = ops.iter().filter(|op| op.is_copy()).count();
            OffloadPlan { ops, peak, copies, limit }
        };
        let mut best = candidate(ops.to_vec());
        for copy_time_share in
            &COPY_TIME_SHARES[..if limit.is_some() { COPY_TIME_SHARES.len() } else { 1 }]
        {
            for (chunk_count, spare_min) in choices(&program, stage, request.chunks, &candidates) {
                let found = candidates.plan(OffloadRule {
                    chunk_count,
                    spare_min,
                    copy_time_share: *copy_time_share,
                });
                let found = found.map(&mut candidate);
                best = found.into_iter().fold(best, OffloadPlan::better);
            }
            if best.above_limit() == 0.0 {
                break;
            }
        }
        stages.push(best.ops);
    }
    Ok(Program { stages, ..program })
}

/// Every number of chunks that may be offloaded, each with every time to spare that is worth
/// trying.
fn choices(
    program: &Program,
    stage: StageIndex,
    chunks: OffloadChunks,
    candidates: &StageOffloads<'_>,
) -> impl Iterator<Item = (u32, f64)> {
    let chunk_count = program.placement.chunks_of(stage).count();
    let chunk_count = u32::try_from(chunk_count).expect("chunks are counted in u32");
    let chunk_counts = match chunks {
        OffloadChunks::First(count) => count.min(chunk_count)..=count.min(chunk_count),
        OffloadChunks::Chosen => 1..=chunk_count,
    };
    chunk_counts.flat_map(|chunk_count| {
        candidates.spares(chunk_count).into_iter().map(move |spare_min| (chunk_count, spare_min))
    })
}

/// A stage's list with copies, with its peak of memory.
struct OffloadPlan {
    ops: Vec<Op>,
    peak: f64,
    copies: usize,
    limit: Option<f64>,
}

impl OffloadPlan {
    fn above_limit(&self) -> f64 {
        self.limit.map_or(0.0, |limit| (self.peak - limit).max(0.0))
    }

    /// The memory that plans are compared by: the part above the limit, or all where there is none.
    fn excess(&self) -> f64 {
        if self.limit.is_some() { self.above_limit() } else { self.peak }
    }

    fn better(self, other: Self) -> Self {
        let order = other.excess().total_cmp(&self.excess());
        match order.then(other.copies.cmp(&self.copies)) {
            Ordering::Less => other,
            Ordering::Equal | Ordering::Greater => self,
        }
    }
}
