//! Solutions of the solver, compared with the best of all orders.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use zbelastic_schedule::{
    ChunkCosts, Compute, MemoryOp, MemorySavings, Op, Pass, RecomputeCost, ScheduleProblem,
    StepEnding, Window, solve,
};
use zbelastic_types::StageIndex;

use crate::problems::{SHORT, cost_of, line, vee};

/// Every order of a stage's passes: F before B before W, microbatches in turn, and of two chunks
/// the first one's F before, its B after the other's.
fn orders(chunks: &[u32], microbatches: u32) -> Vec<Vec<Op>> {
    type PassesDone = Vec<[u32; 3]>;
    fn extend(
        chunks: &[u32],
        m: u32,
        done: &mut PassesDone,
        list: &mut Vec<Op>,
        all: &mut Vec<Vec<Op>>,
    ) {
        if done.iter().all(|done| *done == [m; 3]) {
            all.push(list.clone());
            return;
        }
        for position in 0..chunks.len() {
            let [f, b, w] = done[position];
            let f_max = position.checked_sub(1).map_or(m, |before| done[before][0]);
            let b_max = done.get(position + 1).map_or(f, |after| after[1]);
            let next = [(f < f_max, Compute::F), (b < b_max, Compute::B), (w < b, Compute::W)];
            for (kind, (is_legal, compute)) in next.into_iter().enumerate() {
                if is_legal {
                    list.push(Op::Compute(
                        compute,
                        Pass::new(chunks[position], done[position][kind]),
                    ));
                    done[position][kind] += 1;
                    extend(chunks, m, done, list, all);
                    done[position][kind] -= 1;
                    list.pop();
                }
            }
        }
    }
    let mut all = Vec::new();
    extend(chunks, microbatches, &mut vec![[0; 3]; chunks.len()], &mut Vec::new(), &mut all);
    all
}

/// Every order with every choice of passes that are dropped behind F and recomputed before B.
fn recomputed(orders: Vec<Vec<Op>>) -> Vec<Vec<Op>> {
    let with_drops = |(list, which): (&Vec<Op>, u32)| -> Vec<Op> {
        let is_dropped = |pass: Pass| which >> pass.microbatch.0 & 1 == 1;
        let with = |op: &Op| match *op {
            Op::Compute(Compute::F, pass) if is_dropped(pass) => {
                vec![*op, Op::Memory(MemoryOp::Drop, pass)]
            }
            Op::Compute(Compute::B, pass) if is_dropped(pass) => {
                vec![Op::Compute(Compute::R, pass), *op]
            }
            Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => {
                vec![*op]
            }
        };
        list.iter().flat_map(with).collect()
    };
    let choices = |list: &Vec<Op>| -> Vec<Vec<Op>> {
        let microbatches = list.len() as u32 / 3;
        (0..1 << microbatches).map(|which| with_drops((list, which))).collect()
    };
    orders.iter().flat_map(choices).collect()
}

/// The least that any order costs.
fn exact(problem: &ScheduleProblem) -> f64 {
    let mut program = solve(problem).expect("legal").program;
    let chunks_of = |stage| -> Vec<u32> {
        problem.placement.chunks_of(StageIndex(stage)).map(|chunk| chunk.0).collect()
    };
    let choices: Vec<_> = (0..problem.limits.len() as u32)
        .map(|stage| orders(&chunks_of(stage), problem.microbatch_count))
        .map(|orders| if problem.memory_savings.is_any() { recomputed(orders) } else { orders })
        .collect();
    let mut least = f64::INFINITY;
    for number in 0..choices.iter().map(Vec::len).product() {
        let mut rest: usize = number;
        for (list, choices) in program.stages.iter_mut().zip(&choices) {
            list.clone_from(&choices[rest % choices.len()]);
            rest /= choices.len();
        }
        least = least.min(cost_of(problem, &program).unwrap_or(f64::INFINITY));
    }
    least
}

/// Whether the verdict is longer than a pass, and the next step runs meanwhile.
fn waits_long(ending: &StepEnding) -> bool {
    ending.window == Window::One && ending.verdict > SHORT
}

/// Far above what was ever missed where there is a verdict to wait for, and elsewhere.
const LOOSE: f64 = 1.5;
const CLOSE: f64 = 1.25;

/// On problems so small that all orders can be tried, the solver finds the best one, almost always:
/// of 40,000 problems drawn at random it missed it in 54, by up to 13 % where a verdict takes
/// longer than passes do, and by up to 4 % elsewhere. These here are always the same.
#[test]
fn tiny_problems_are_solved_exactly() {
    const PROBLEMS: u32 = 400;
    let problems = prop_oneof![line(2, 3), line(4, 2), vee(1, 2), vee(2, 1)];
    let mut runner = TestRunner::deterministic();
    let mut missed = [0, 0];
    for _ in 0..PROBLEMS {
        let problem = problems.new_tree(&mut runner).expect("nothing is rejected").current();
        let found = solve(&problem).expect("legal");
        let least = exact(&problem);
        assert!(found.lower_bound <= least * (1.0 + 1e-9), "{found:?}, {least}");
        assert!(found.cost >= least * (1.0 - 1e-9), "{found:?}, {least}");
        let is_long = waits_long(&problem.ending);
        let most = if is_long { LOOSE } else { CLOSE };
        assert!(found.cost <= least * most, "{found:?}, {least}");
        missed[usize::from(is_long)] += u32::from(found.cost > least * (1.0 + 1e-9));
    }
    assert!(missed[0] == 0 && missed[1] <= 3, "{missed:?} of {PROBLEMS}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The same where stages may recompute passes. Which ones is decided list by list, so the best
    /// is missed now and then: in 35 of 4,000 problems, by up to 17 % where a verdict takes long,
    /// and by up to 7 % elsewhere.
    #[test]
    fn tiny_problems_with_recomputation_are_solved_closely(
        problem in prop_oneof![line(2, 3), line(3, 2)],
        times in prop::collection::vec((0.0..10.0, 0.0..=1.0), 3),
        share in 0.3..1.0_f64,
    ) {
        let recompute = |(costs, (time, share)): (&ChunkCosts, &(f64, f64))| RecomputeCost {
            time: *time,
            after_drop: share * costs.after_forward,
        };
        let recomputes = problem.chunks.iter().zip(&times).map(recompute).collect();
        let limit = |(limit, costs): (&f64, &ChunkCosts)| f64::max(limit * share, costs.after_forward);
        let limits = problem.limits.iter().zip(&problem.chunks).map(limit).collect();
        let memory_savings = MemorySavings { recomputes, ..MemorySavings::default() };
        let problem = ScheduleProblem { limits, memory_savings, ..problem };
        let found = solve(&problem).expect("legal");
        let least = exact(&problem);
        prop_assert!(found.lower_bound <= least * (1.0 + 1e-9), "{found:?}, {least}");
        prop_assert!(found.cost >= least * (1.0 - 1e-9), "{found:?}, {least}");
        let most = if waits_long(&problem.ending) { LOOSE } else { CLOSE };
        prop_assert!(found.cost <= least * most, "{found:?}, {least}");
    }
}
