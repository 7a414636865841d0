//! Orders for stages whose memory is short, and what stages may do about it: activations are given up
//! and made again (Chen et al., arXiv 1604.06174), or leave and come back (Wan et al., ICML 2025,
//! arXiv 2503.01328).
//!
//! Both go with any order, so the search has two parts. Orders are made as if there were more memory
//! than there is, or as if every pass were longer and kept less; then each stage's list is brought
//! within its limit, with as little as does it, and what comes out is simulated. What counts is the
//! cost of that. The bound is that of the same problem where giving up and leaving take no time.

mod limits;

use zbelastic_types::StageIndex;

use super::problem::{ChunkCosts, ScheduleProblem};
use super::{ScheduleSolution, SolveError, reaches, solve_without_savings};
use crate::cost::CopyLanes;
use crate::op::{Compute, MemoryOp, Op};
use crate::program::Program;
use crate::simulate::simulate;
use limits::within_limits;

/// What stages may do where memory is short; nothing by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySavings {
    /// By chunk, in model order: what making a pass again takes; empty if no pass is made again.
    pub recomputes: Vec<RecomputeCost>,
    /// By chunk, in model order: what it takes to leave and to come back; empty if nothing leaves.
    pub offloads: Vec<OffloadTransfer>,
    /// What is copied at once.
    pub lanes: CopyLanes,
}

/// A pass that is given up after F and made again before B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecomputeCost {
    /// How long R takes.
    pub time: f64,
    /// What it keeps from DROP to R.
    pub after_drop: f64,
}

/// What a pass keeps leaves, and comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadTransfer {
    /// How long OFFLOAD takes.
    pub offload: f64,
    /// How long RELOAD takes.
    pub reload: f64,
}

impl MemorySavings {
    /// Whether a stage may do anything.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.recomputes.is_empty() || !self.offloads.is_empty()
    }

    /// What a chunk's pass keeps while it waits for its B, at least.
    pub(super) fn waiting_memory_min(&self, chunk: usize, costs: &ChunkCosts) -> f64 {
        if !self.offloads.is_empty() {
            return 0.0;
        }
        self.recomputes.get(chunk).map_or(costs.after_forward, |remake| remake.after_drop)
    }
}

/// Factors by which there is more memory than there is, for orders that are brought within the limits
/// afterwards; the most informative first.
const LIMIT_FACTORS: [f64; 11] = [1.0, 2.0, f64::INFINITY, 1.4, 3.0, 1.1, 1.25, 1.6, 1.8, 2.5, 4.0];
/// Factors that are tried before other orders.
const LIMIT_FACTORS_FIRST: usize = 3;
/// Passes that orders have at most, all together, before no more are made.
const DRAFTED_PASSES_MAX: usize = 1_000_000;
/// Orders that are made however large a problem is.
const DRAFTS_MIN: usize = LIMIT_FACTORS_FIRST + 5;
/// Passes that are put on boards at most for one order that is brought within the limits: there are
/// many, and which is best is not seen before that.
const DRAFT_PASSES_MAX: usize = 100_000;
/// How often orders are made anew for stages that make as much again as was found to be needed.
const ANTICIPATED_ROUNDS: usize = 2;

/// The same with what stages may do taken as free: no order costs less than the bound of this.
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

/// The best order that is found of a problem whose stages may do something, none of which costs less
/// than `lower_bound`.
pub(super) fn solve(
    problem: &ScheduleProblem,
    lower_bound: f64,
) -> Result<ScheduleSolution, SolveError> {
    let mut best = BestWithinLimits { problem, lower_bound, found: None };
    let pass_count = 3 * problem.chunks.len() * problem.microbatch_count as usize;
    let most = (DRAFTED_PASSES_MAX / pass_count).max(DRAFTS_MIN);
    for draft in OrderDraft::all().take(most) {
        best.offer(draft.order(problem));
    }
    for _ in 0..ANTICIPATED_ROUNDS {
        let Some((least, found)) = best.found.clone() else { break };
        if found.passes_with(MemoryOp::Drop).next().is_none() {
            break;
        }
        for factor in LIMIT_FACTORS.into_iter().take(most) {
            best.offer(solved(&anticipating(problem, &found, factor)));
        }
        if best.found.as_ref().is_some_and(|(cost, _)| *cost >= least) {
            break;
        }
    }
    let (cost, program) = best.found.ok_or(SolveError::NoOrder)?;
    Ok(ScheduleSolution { program, cost, lower_bound })
}

/// The best of what comes of orders that are brought within the limits.
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

/// An order of a problem whose stages do nothing to keep less, if there is one.
fn solved(problem: &ScheduleProblem) -> Option<Program> {
    problem.check().ok()?;
    Some(solve_without_savings(problem, DRAFT_PASSES_MAX).program)
}

/// The arithmetic of `program` with as much given up or away as its stages' limits require, in the way
/// that costs least of those that are tried; `None` if none of them does. Of slices nothing
/// leaves.
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

/// What an order is made for, before its stages' lists are brought within their limits.
#[derive(Clone, Copy, Debug)]
enum OrderDraft {
    /// So many times the memory there is.
    Looser(f64),
    /// Every pass is made again, with W where it fits.
    Recomputed,
    /// Every pass is made again, with W right behind B.
    RecomputedFused,
    /// Every pass leaves and comes back, and its stage waits for both, with W where it fits.
    Offloaded,
    /// Every pass leaves and comes back, with W right behind B.
    OffloadedFused,
    /// One microbatch at a time, where no more fits, with W right behind B: then a stage keeps no more
    /// than it must.
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
        let looser = |factors: &'static [f64]| factors.iter().copied().map(Self::Looser);
        looser(first).chain(others).chain(looser(rest))
    }

    /// `None` if there is none for it.
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
            Self::Looser(factor) => looser(problem, factor),
            Self::Recomputed => with_one_pass_resident(problem, recomputed(problem)),
            Self::RecomputedFused => {
                with_one_pass_resident(problem, recomputed(problem).map(fused))
            }
            Self::Offloaded => with_one_pass_resident(problem, offloaded(problem)),
            Self::OffloadedFused => with_one_pass_resident(problem, offloaded(problem).map(fused)),
            Self::OneByOne => looser_to_one(problem),
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

/// With so many times the memory there is.
fn looser(problem: &ScheduleProblem, factor: f64) -> ScheduleProblem {
    without_savings(problem, problem.limits.iter().map(|limit| limit * factor).collect())
}

/// With memory for one microbatch at a time, or what there is if that is more.
fn looser_to_one(problem: &ScheduleProblem) -> ScheduleProblem {
    let of_stage = |(stage, limit): (u32, &f64)| {
        let chunks = problem.placement.chunks_of(StageIndex(stage));
        let one: f64 = chunks.map(|chunk| problem.chunks[chunk.index()].after_forward).sum();
        limit.max(one)
    };
    without_savings(problem, (0..).zip(&problem.limits).map(of_stage).collect())
}

/// Chunks whose every pass is given up and made again, so that B is longer, with what DROP leaves.
fn recomputed(problem: &ScheduleProblem) -> impl Iterator<Item = (ChunkCosts, f64)> {
    let of_chunk = |(costs, remake): (&ChunkCosts, &RecomputeCost)| {
        let RecomputeCost { time, after_drop } = *remake;
        (ChunkCosts { b: costs.b + time, ..*costs }, after_drop)
    };
    problem.chunks.iter().zip(&problem.memory_savings.recomputes).map(of_chunk)
}

/// Chunks whose every pass leaves, and whose stage does nothing else meanwhile, nor while it comes back.
fn offloaded(problem: &ScheduleProblem) -> impl Iterator<Item = (ChunkCosts, f64)> {
    let of_chunk = |(costs, trip): (&ChunkCosts, &OffloadTransfer)| {
        let OffloadTransfer { offload, reload } = *trip;
        (ChunkCosts { f: costs.f + offload, b: costs.b + reload, ..*costs }, 0.0)
    };
    problem.chunks.iter().zip(&problem.memory_savings.offloads).map(of_chunk)
}

/// The same with W as a part of B, so that nothing waits for it.
fn fused((costs, rest): (ChunkCosts, f64)) -> (ChunkCosts, f64) {
    (ChunkCosts { b: costs.b + costs.w, w: 0.0, after_input_gradient: 0.0, ..costs }, rest)
}

/// Chunks that keep only so much between F and B, on stages that have room for one that is whole. What
/// they keep after B counts as if it were kept before.
fn with_one_pass_resident(
    problem: &ScheduleProblem,
    chunks: impl Iterator<Item = (ChunkCosts, f64)>,
) -> ScheduleProblem {
    let at_rest = |(costs, rest): (ChunkCosts, f64)| {
        let after_forward = rest.max(costs.after_input_gradient);
        ChunkCosts { after_forward, ..costs }
    };
    let chunks: Vec<ChunkCosts> = chunks.map(at_rest).collect();
    let of_stage = |(stage, limit): (u32, &f64)| {
        let of_chunks = |amount: &dyn Fn(usize) -> f64| {
            let chunks = problem.placement.chunks_of(StageIndex(stage));
            chunks.map(|chunk| amount(chunk.index())).fold(0.0, f64::max)
        };
        let rest = |chunk: usize| chunks[chunk].after_forward;
        let in_hand = of_chunks(&|chunk| problem.chunks[chunk].after_forward - rest(chunk));
        // Of what takes no memory there may be any number.
        if of_chunks(&rest) > 0.0 { limit - in_hand } else { f64::INFINITY }
    };
    let limits = (0..).zip(&problem.limits).map(of_stage).collect();
    ScheduleProblem { chunks, ..without_savings(problem, limits) }
}

/// With so many times the memory there is, for stages that make as many passes again as those of `found`.
fn anticipating(problem: &ScheduleProblem, found: &Program, factor: f64) -> ScheduleProblem {
    let mut again = vec![0_u32; problem.chunks.len()];
    for (_, pass) in found.passes_with(MemoryOp::Drop) {
        again[pass.chunk.index()] += 1;
    }
    let longer = |((costs, remake), again): ((&ChunkCosts, &RecomputeCost), u32)| {
        let share = f64::from(again) / f64::from(problem.microbatch_count);
        ChunkCosts { b: costs.b + share * remake.time, ..*costs }
    };
    let chunks =
        problem.chunks.iter().zip(&problem.memory_savings.recomputes).zip(again).map(longer);
    ScheduleProblem { chunks: chunks.collect(), ..looser(problem, factor) }
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

    fn problem(limit: f64, relief: MemorySavings) -> ScheduleProblem {
        let stages = [StageCosts { chunks: STAGE, limit }; 4];
        ScheduleProblem {
            memory_savings: relief,
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
        let trip = OffloadTransfer { offload: 10.0, reload: 10.0 };
        MemorySavings { offloads: vec![trip; 4], ..MemorySavings::default() }
    }

    /// By stage, how many passes have this done to them.
    fn counts(program: &Program, memory: MemoryOp) -> Vec<usize> {
        let of_stage = |stage| program.passes_with(memory).filter(|(at, _)| *at == stage).count();
        program.lists().map(|(stage, _)| of_stage(stage)).collect()
    }

    #[test]
    fn memory_for_one_microbatch_holds_a_whole_pipeline_that_recomputes() {
        let plain = solve(&problem(1.0, MemorySavings::default())).expect("one at a time");
        let found = solve(&problem(1.0, recomputes())).expect("one in hand");
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
            .map(|relief| solve(&problem(2.5, relief)).expect("fits"));
        assert!(either.cost < made.cost && either.cost < copied.cost, "{either:?}");
    }

    #[test]
    fn an_order_made_by_hand_is_brought_within_the_limits() {
        let order = generate(ScheduleKind::OneFOneB, 4, 16).expect("legal");
        for relief in [recomputes(), offloads()] {
            let problem = problem(3.0, relief);
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

    /// Of two that wait when a third begins, the first would have to be made again at once.
    #[test]
    fn what_waits_longest_is_recomputed() {
        let order = generate(ScheduleKind::GPipe, 1, 3).expect("legal");
        let stages = [StageCosts { chunks: STAGE, limit: 2.0 }];
        let problem = ScheduleProblem::of_stages(Placement::line(1), &stages, 0.0, 3);
        let remake = RecomputeCost { time: 10.0, after_drop: 0.0 };
        let relief = MemorySavings { recomputes: vec![remake], ..MemorySavings::default() };
        let found =
            fit_memory_limits(&ScheduleProblem { memory_savings: relief, ..problem }, &order)
                .expect("two fit");
        let text = found.to_string();
        assert!(text.contains("stage 0: 0F0 0F1 0DROP1 0F2 0BW0 0R1 0BW1 0BW2"), "{text}");
    }

    /// Two chunks of one stage, of which one is at rest while the other is in hand.
    #[test]
    fn a_waiting_pass_leaves_memory_for_another_chunk() {
        let stage = StageCosts { chunks: STAGE, limit: 0.75 };
        let over = |relief| {
            let problem = ScheduleProblem::of_stages(Placement::vee(1), &[stage], 0.0, 3);
            solve(&ScheduleProblem { memory_savings: relief, ..problem })
        };
        let stage = StageIndex(0);
        let refusal = SolveError::Limit { stage, needed: 1.0, limit: 0.75 };
        assert_eq!(over(MemorySavings::default()), Err(refusal));
        let remake = |after_drop| RecomputeCost { time: 5.0, after_drop };
        let relief = |after_drop| MemorySavings {
            recomputes: vec![remake(after_drop); 2],
            ..MemorySavings::default()
        };
        let found = over(relief(0.25)).expect("0.5 and 0.25");
        assert_eq!(counts(&found.program, MemoryOp::Drop), [3]);
        let refusal = SolveError::Limit { stage, needed: 0.8, limit: 0.75 };
        assert_eq!(over(relief(0.3)), Err(refusal));
        let found = over(MemorySavings {
            offloads: vec![OffloadTransfer { offload: 1.0, reload: 1.0 }; 2],
            ..relief(0.5)
        });
        assert_eq!(
            counts(&found.expect("what is away takes nothing").program, MemoryOp::Offload),
            [3]
        );
    }
}
