//! Orders for stages that are short of memory, and the remedies of stages: activations are
//! dropped and recomputed (Chen et al., arXiv 1604.06174), or offloaded and reloaded (Wan et al.,
//! ICML 2025, arXiv 2503.01328).
//!
//! Both go with any order, so the search has two parts. Orders are made as if there were more
//! memory than there is, or as if every pass were longer and kept less; then each stage's list is
//! brought within its limit, with as few recomputed and offloaded passes as that needs, and the
//! result is simulated: its cost counts. The bound is that of the same problem where recomputing
//! and copying need no time.

mod limits;

use zbelastic_types::StageIndex;

use super::problem::{ChunkCosts, ScheduleProblem};
use super::{ScheduleSolution, SolveError, reaches, solve_without_savings};
use crate::cost::CopyLanes;
use crate::op::{Compute, MemoryOp, Op};
use crate::program::Program;
use crate::simulate::simulate;
use limits::within_limits;

/// The means of stages to save memory where it is short; nothing by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySavings {
    /// By chunk, in model order: the time and memory of recomputing a pass; empty if no pass is
    /// recomputed.
    pub recomputes: Vec<RecomputeCost>,
    /// By chunk, in model order: the times of its copies; empty if nothing is offloaded.
    pub offloads: Vec<OffloadTransfer>,
    /// Which copies run at once.
    pub lanes: CopyLanes,
}

/// The cost of dropping the activations of a pass after F and of recomputing them before B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecomputeCost {
    /// The time of R.
    pub time: f64,
    /// The memory that it keeps from DROP to R.
    pub after_drop: f64,
}

/// The times of offloading the activations of a pass, and of reloading them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadTransfer {
    /// The time of OFFLOAD.
    pub offload: f64,
    /// The time of RELOAD.
    pub reload: f64,
}

impl MemorySavings {
    /// Whether a stage may recompute or offload anything.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.recomputes.is_empty() || !self.offloads.is_empty()
    }

    /// The memory that a chunk's pass keeps while it waits for its B, at least.
    pub(super) fn waiting_memory_min(&self, chunk: usize, costs: &ChunkCosts) -> f64 {
        if !self.offloads.is_empty() {
            return 0.0;
        }
        self.recomputes.get(chunk).map_or(costs.after_forward, |recompute| recompute.after_drop)
    }
}

/// Factors by which there is more memory than there is, for orders that are brought within the
/// limits afterwards; the most informative first.
const LIMIT_FACTORS: [f64; 11] = [1.0, 2.0, f64::INFINITY, 1.4, 3.0, 1.1, 1.25, 1.6, 1.8, 2.5, 4.0];
/// Factors that are tried before other orders.
const LIMIT_FACTORS_FIRST: usize = 3;
/// Passes that orders have at most, all together, before no more are made.
const DRAFTED_PASSES_MAX: usize = 1_000_000;
/// Orders that are made however large a problem is.
const DRAFTS_MIN: usize = LIMIT_FACTORS_FIRST + 5;
/// Passes that are placed at most for one order that is brought within the limits: there are many,
/// and which is best is not seen before that.
const DRAFT_PASSES_MAX: usize = 100_000;
/// How often orders are made anew for stages that recompute as much as was found to be needed.
const ANTICIPATED_ROUNDS: usize = 2;

/// The same problem with recomputing and copying free of cost: no order costs less than its bound.
pub(super) fn relaxed(problem: &ScheduleProblem) -> ScheduleProblem {
    let relaxed = |(chunk, costs): (usize, &ChunkCosts)| {
        let after_forward = problem.memory_savings.waiting_memory_min(chunk, costs);
        let after_input_gradient = costs.after_input_gradient.min(after_forward);
        ChunkCosts { after_forward, after_input_gradient, ..*costs }
    };
    let chunks: Vec<ChunkCosts> = problem.chunks.iter().enumerate().map(relaxed).collect();
    let limits = if problem.memory_savings.offloads.is_empty() {
        problem.limits.clone()
    } else {
        vec![f64::INFINITY; problem.limits.len()]
    };
    ScheduleProblem { chunks, limits, memory_savings: MemorySavings::default(), ..problem.clone() }
}

/// The best order that is found of a problem in which stages may recompute or offload; none costs
/// less than `lower_bound`.
pub(super) fn solve(
    problem: &ScheduleProblem,
    lower_bound: f64,
) -> Result<ScheduleSolution, SolveError> {
    let mut best = BestWithinLimits { problem, lower_bound, found: None };
    let pass_count = 3 * problem.chunks.len() * problem.microbatch_count as usize;
    let drafts_max = (DRAFTED_PASSES_MAX / pass_count).max(DRAFTS_MIN);
    for draft in OrderDraft::all().take(drafts_max) {
        best.offer(draft.order(problem));
    }
    for _ in 0..ANTICIPATED_ROUNDS {
        let Some((least, found)) = best.found.clone() else { break };
        if found.passes_with(MemoryOp::Drop).next().is_none() {
            break;
        }
        for factor in LIMIT_FACTORS.into_iter().take(drafts_max) {
            best.offer(solved(&anticipating(problem, &found, factor)));
        }
        if best.found.as_ref().is_some_and(|(cost, _)| *cost >= least) {
            break;
        }
    }
    let (cost, program) = best.found.ok_or(SolveError::NoOrder)?;
    Ok(ScheduleSolution { program, cost, lower_bound })
}

/// The best program so far among the orders that were brought within the limits.
struct BestWithinLimits<'a> {
    problem: &'a ScheduleProblem,
    lower_bound: f64,
    found: Option<(f64, Program)>,
}

impl BestWithinLimits<'_> {
    fn offer(&mut self, order: Option<Program>) {
        if self.found.as_ref().is_some_and(|(least, _)| reaches(*least, self.lower_bound)) {
            return;
        }
        for program in order.iter().flat_map(|order| within_limits(self.problem, order)) {
            let cost = cost(self.problem, &program);
            if self.found.as_ref().is_none_or(|(least, _)| cost < *least) {
                self.found = Some((cost, program));
            }
        }
    }
}

/// An order of a problem in which stages do nothing to keep less, if there is one.
fn solved(problem: &ScheduleProblem) -> Option<Program> {
    problem.check().ok()?;
    Some(solve_without_savings(problem, DRAFT_PASSES_MAX).program)
}

/// The arithmetic of `program` with as much dropped or offloaded as its stages' limits require, in
/// the way that costs least of those that are tried; `None` if none of them is within the limits.
/// Slices are not offloaded.
///
/// # Panics
/// If the program is not over the problem's placement, or is none that runs to its end.
#[must_use]
pub fn fit_memory_limits(problem: &ScheduleProblem, program: &Program) -> Option<Program> {
    assert_eq!(problem.placement, program.placement, "it is a program of the problem");
    let found = within_limits(problem, &program.arithmetic()).into_iter();
    let least = |a: &(f64, Program), b: &(f64, Program)| a.0.total_cmp(&b.0);
    found.map(|program| (cost(problem, &program), program)).min_by(least).map(|(_, found)| found)
}

fn cost(problem: &ScheduleProblem, program: &Program) -> f64 {
    let timeline = simulate(program, &problem.costs(), 1);
    problem.cost(&timeline.expect("what was made of a program that ran to its end does so"))
}

/// The changed problem that an order is made for, before its stages' lists are brought within
/// their limits.
#[derive(Clone, Copy, Debug)]
enum OrderDraft {
    /// Limits that are so many times those of the problem.
    Looser(f64),
    /// Every pass is recomputed, with W where it fits.
    Recomputed,
    /// Every pass is recomputed, with W right behind B.
    RecomputedFused,
    /// Every pass is offloaded and reloaded, and its stage waits for both, with W where it fits.
    Offloaded,
    /// Every pass is offloaded and reloaded, with W right behind B.
    OffloadedFused,
    /// One microbatch at a time, where no more fits, with W right behind B: then a stage keeps no
    /// more than it must.
    OneByOne,
}

impl OrderDraft {
    fn all() -> impl Iterator<Item = Self> {
        let others = [
            Self::Recomputed,
            Self::RecomputedFused,
            Self::Offloaded,
            Self::OffloadedFused,
            Self::OneByOne,
        ];
        let (first, rest) = LIMIT_FACTORS.split_at(LIMIT_FACTORS_FIRST);
        let times = |factors: &'static [f64]| factors.iter().copied().map(Self::Looser);
        times(first).chain(others).chain(times(rest))
    }

    /// The order of this draft; `None` if the problem has none.
    fn order(self, problem: &ScheduleProblem) -> Option<Program> {
        let is_allowed = match self {
            Self::Looser(_) | Self::OneByOne => true,
            Self::Recomputed | Self::RecomputedFused => {
                !problem.memory_savings.recomputes.is_empty()
            }
            Self::Offloaded | Self::OffloadedFused => !problem.memory_savings.offloads.is_empty(),
        };
        if !is_allowed {
            return None;
        }
        let other = match self {
            Self::Looser(factor) => with_limits_times(problem, factor),
            Self::Recomputed => with_one_pass_resident(problem, recomputed(problem)),
            Self::RecomputedFused => {
                with_one_pass_resident(problem, recomputed(problem).map(fused))
            }
            Self::Offloaded => with_one_pass_resident(problem, offloaded(problem)),
            Self::OffloadedFused => with_one_pass_resident(problem, offloaded(problem).map(fused)),
            Self::OneByOne => with_limits_for_one(problem),
        };
        let order = solved(&other)?;
        Some(match self {
            Self::Looser(_) | Self::Recomputed | Self::Offloaded => order,
            Self::RecomputedFused | Self::OffloadedFused | Self::OneByOne => fuse(&order),
        })
    }
}

fn without_savings(problem: &ScheduleProblem, limits: Vec<f64>) -> ScheduleProblem {
    ScheduleProblem { limits, memory_savings: MemorySavings::default(), ..problem.clone() }
}

/// The problem with `factor` times the limits.
fn with_limits_times(problem: &ScheduleProblem, factor: f64) -> ScheduleProblem {
    without_savings(problem, problem.limits.iter().map(|limit| limit * factor).collect())
}

/// The problem with limits for one microbatch at a time, or its own where they are higher.
fn with_limits_for_one(problem: &ScheduleProblem) -> ScheduleProblem {
    let of_stage = |(stage, limit): (u32, &f64)| {
        let chunks = problem.placement.chunks_of(StageIndex(stage));
        let one: f64 = chunks.map(|chunk| problem.chunks[chunk.index()].after_forward).sum();
        limit.max(one)
    };
    without_savings(problem, (0..).zip(&problem.limits).map(of_stage).collect())
}

/// Chunks that recompute every pass, so that B is longer, with the memory that is kept after
/// DROP.
fn recomputed(problem: &ScheduleProblem) -> impl Iterator<Item = (ChunkCosts, f64)> {
    let of_chunk = |(costs, recompute): (&ChunkCosts, &RecomputeCost)| {
        let RecomputeCost { time, after_drop } = *recompute;
        (ChunkCosts { b: costs.b + time, ..*costs }, after_drop)
    };
    problem.chunks.iter().zip(&problem.memory_savings.recomputes).map(of_chunk)
}

/// Chunks that offload and reload every pass, while their stage does nothing else.
fn offloaded(problem: &ScheduleProblem) -> impl Iterator<Item = (ChunkCosts, f64)> {
    let of_chunk = |(costs, transfer): (&ChunkCosts, &OffloadTransfer)| {
        let OffloadTransfer { offload, reload } = *transfer;
        (ChunkCosts { f: costs.f + offload, b: costs.b + reload, ..*costs }, 0.0)
    };
    problem.chunks.iter().zip(&problem.memory_savings.offloads).map(of_chunk)
}

/// The same with W as a part of B, so that nothing waits for it.
fn fused((costs, rest): (ChunkCosts, f64)) -> (ChunkCosts, f64) {
    (ChunkCosts { b: costs.b + costs.w, w: 0.0, after_input_gradient: 0.0, ..costs }, rest)
}

/// Chunks that keep only so much between F and B, on stages that have memory for one whole pass.
/// The activations that they keep after B count as if they were kept before.
fn with_one_pass_resident(
    problem: &ScheduleProblem,
    chunks: impl Iterator<Item = (ChunkCosts, f64)>,
) -> ScheduleProblem {
    let waiting = |(costs, rest): (ChunkCosts, f64)| {
        let after_forward = rest.max(costs.after_input_gradient);
        ChunkCosts { after_forward, ..costs }
    };
    let chunks: Vec<ChunkCosts> = chunks.map(waiting).collect();
    let of_stage = |(stage, limit): (u32, &f64)| {
        let of_chunks = |amount: &dyn Fn(usize) -> f64| {
            let chunks = problem.placement.chunks_of(StageIndex(stage));
            chunks.map(|chunk| amount(chunk.index())).fold(0.0, f64::max)
        };
        let rest = |chunk: usize| chunks[chunk].after_forward;
        let running = of_chunks(&|chunk| problem.chunks[chunk].after_forward - rest(chunk));
        // Of passes without memory there may be any number.
        if of_chunks(&rest) > 0.0 { limit - running } else { f64::INFINITY }
    };
    let limits = (0..).zip(&problem.limits).map(of_stage).collect();
    ScheduleProblem { chunks, ..without_savings(problem, limits) }
}

/// The problem with `factor` times the limits, for stages that recompute as many passes as those of
/// `found`.
fn anticipating(problem: &ScheduleProblem, found: &Program, factor: f64) -> ScheduleProblem {
    let mut recompute_counts = vec![0_u32; problem.chunks.len()];
    for (_, pass) in found.passes_with(MemoryOp::Drop) {
        recompute_counts[pass.chunk.index()] += 1;
    }
    let longer = |((costs, recompute), count): ((&ChunkCosts, &RecomputeCost), u32)| {
        let share = f64::from(count) / f64::from(problem.microbatch_count);
        ChunkCosts { b: costs.b + share * recompute.time, ..*costs }
    };
    let chunks = problem
        .chunks
        .iter()
        .zip(&problem.memory_savings.recomputes)
        .zip(recompute_counts)
        .map(longer);
    ScheduleProblem { chunks: chunks.collect(), ..with_limits_times(problem, factor) }
}

/// The order with every W right behind its B.
fn fuse(order: &Program) -> Program {
    let fused = |ops: &Vec<Op>| {
        let with_weights = |op: &Op| match *op {
            Op::Compute(Compute::B, pass) => {
                vec![*op, Op::Compute(Compute::W, pass)]
            }
            Op::Compute(Compute::W, _) => Vec::new(),
            Op::Compute(Compute::F | Compute::BW | Compute::WE | Compute::R, _)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => vec![*op],
        };
        ops.iter().flat_map(with_weights).collect()
    };
    Program { stages: order.stages.iter().map(fused).collect(), ..order.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::placement::Placement;
    use crate::solve::{StageCosts, lower_bound, solve};

    const STAGE: ChunkCosts =
        ChunkCosts { f: 10.0, b: 11.0, w: 8.0, after_forward: 1.0, after_input_gradient: 0.5 };

    fn problem(limit: f64, savings: MemorySavings) -> ScheduleProblem {
        let stages = [StageCosts { chunks: STAGE, limit }; 4];
        ScheduleProblem {
            memory_savings: savings,
            ..ScheduleProblem::of_stages(Placement::line(4), &stages, 0.0, 16)
        }
    }

    fn recomputes() -> MemorySavings {
        MemorySavings {
            recomputes: vec![RecomputeCost { time: 10.0, after_drop: 0.0 }; 4],
            ..MemorySavings::default()
        }
    }

    fn offloads() -> MemorySavings {
        let transfer = OffloadTransfer { offload: 10.0, reload: 10.0 };
        MemorySavings { offloads: vec![transfer; 4], ..MemorySavings::default() }
    }

    /// By stage, to how many passes an operation on memory is applied.
    fn counts(program: &Program, memory: MemoryOp) -> Vec<usize> {
        let of_stage = |stage| program.passes_with(memory).filter(|(at, _)| *at == stage).count();
        program.lists().map(|(stage, _)| of_stage(stage)).collect()
    }

    #[test]
    fn memory_for_one_microbatch_holds_a_whole_pipeline_that_recomputes() {
        let plain = solve(&problem(1.0, MemorySavings::default())).expect("one at a time");
        let found = solve(&problem(1.0, recomputes())).expect("one that is resident");
        // One at a time takes 16 round trips; every pass once more, and a filling and a draining.
        assert_eq!((plain.cost, found.cost), (1_472.0, 16.0 * 39.0 + 42.0));
        assert_eq!(counts(&found.program, MemoryOp::Drop), [16, 16, 16, 0]);
        assert_eq!(found.lower_bound, 16.0 * 29.0, "as if R took no time");
    }

    #[test]
    fn no_more_is_saved_than_the_limits_require() {
        let both = MemorySavings { offloads: offloads().offloads, ..recomputes() };
        let roomy = solve(&problem(7.0, both.clone())).expect("it fits");
        let plain = solve(&problem(7.0, MemorySavings::default())).expect("it fits");
        assert_eq!(roomy.cost, plain.cost);
        for memory in [MemoryOp::Drop, MemoryOp::Offload] {
            assert_eq!(counts(&roomy.program, memory), [0; 4]);
        }
        let found = solve(&problem(2.5, recomputes())).expect("it fits");
        let drops = counts(&found.program, MemoryOp::Drop);
        assert!(drops.iter().all(|drops| *drops < 16), "{drops:?}");
        let [made, copied, either] = [recomputes(), offloads(), both]
            .map(|savings| solve(&problem(2.5, savings)).expect("fits"));
        assert!(either.cost < made.cost && either.cost < copied.cost, "{either:?}");
    }

    #[test]
    fn an_order_made_by_hand_is_brought_within_the_limits() {
        let order = generate(ScheduleKind::OneFOneB, 4, 16).expect("legal");
        for savings in [recomputes(), offloads()] {
            let problem = problem(3.0, savings);
            assert!(!problem.fits_memory(&order));
            let found = fit_memory_limits(&problem, &order).expect("it can be");
            assert_eq!(check(&found), Ok(()));
            assert!(problem.fits_memory(&found));
            let bound = lower_bound(&problem).expect("legal");
            assert!(bound <= cost(&problem, &found));
            assert_eq!(found.ops(StageIndex(2)), order.ops(StageIndex(2)), "it fits as it is");
        }
        assert_eq!(fit_memory_limits(&problem(3.0, MemorySavings::default()), &order), None);
        assert_eq!(fit_memory_limits(&problem(4.0, recomputes()), &order), Some(order));
    }

    /// Of two that wait when a third begins, the first would have to be recomputed at once.
    #[test]
    fn what_waits_longest_is_recomputed() {
        let order = generate(ScheduleKind::GPipe, 1, 3).expect("legal");
        let stages = [StageCosts { chunks: STAGE, limit: 2.0 }];
        let problem = ScheduleProblem::of_stages(Placement::line(1), &stages, 0.0, 3);
        let recompute = RecomputeCost { time: 10.0, after_drop: 0.0 };
        let savings = MemorySavings { recomputes: vec![recompute], ..MemorySavings::default() };
        let found =
            fit_memory_limits(&ScheduleProblem { memory_savings: savings, ..problem }, &order)
                .expect("two fit");
        let text = found.to_string();
        assert!(text.contains("stage 0: 0F0 0F1 0DROP1 0F2 0BW0 0R1 0BW1 0BW2"), "{text}");
    }

    /// Two chunks of one stage, of which one waits while the other runs.
    #[test]
    fn a_waiting_pass_leaves_memory_for_another_chunk() {
        let stage = StageCosts { chunks: STAGE, limit: 0.75 };
        let over = |savings| {
            let problem = ScheduleProblem::of_stages(Placement::vee(1), &[stage], 0.0, 3);
            solve(&ScheduleProblem { memory_savings: savings, ..problem })
        };
        let stage = StageIndex(0);
        let refusal = SolveError::Limit { stage, needed: 1.0, limit: 0.75 };
        assert_eq!(over(MemorySavings::default()), Err(refusal));
        let recompute = |after_drop| RecomputeCost { time: 5.0, after_drop };
        let savings = |after_drop| MemorySavings {
            recomputes: vec![recompute(after_drop); 2],
            ..MemorySavings::default()
        };
        let found = over(savings(0.25)).expect("0.5 and 0.25");
        assert_eq!(counts(&found.program, MemoryOp::Drop), [3]);
        let refusal = SolveError::Limit { stage, needed: 0.8, limit: 0.75 };
        assert_eq!(over(savings(0.3)), Err(refusal));
        let found = over(MemorySavings {
            offloads: vec![OffloadTransfer { offload: 1.0, reload: 1.0 }; 2],
            ..savings(0.5)
        });
        assert_eq!(
            counts(&found.expect("what is offloaded takes no memory").program, MemoryOp::Offload),
            [3]
        );
    }
}
