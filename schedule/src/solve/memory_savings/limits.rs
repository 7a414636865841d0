//! Brings the lists of an order within the limits of their stages.

use zbelastic_types::StageIndex;

use super::{MemorySavings, ScheduleProblem, cost};
use crate::kind::OffloadChunks;
use crate::memory::{ChunkMemory, PassFootprint};
use crate::offload::{OffloadRequest, offload};
use crate::op::{Compute, MemoryOp, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;
use crate::solve::problem::TOLERANCE;

/// Passes that are simulated at most while stages try each other's methods, whatever the gain.
const EXCHANGED_PASSES_MAX: usize = 100_000;

/// The method of a stage to keep less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavingMethod {
    /// Keeps everything, and is within its limit only by the order.
    None,
    /// Drops the passes that wait longest, and recomputes them.
    Recompute,
    /// Offloads passes, and waits for copies where it must.
    Offload,
    /// Offloads the passes whose copies nothing waits for, and drops passes that are still above
    /// the limit.
    OffloadThenRecompute,
}

impl SavingMethod {
    const ALL: [Self; 4] = [Self::None, Self::Recompute, Self::Offload, Self::OffloadThenRecompute];

    fn is_allowed(self, savings: &MemorySavings) -> bool {
        let may_recompute = !savings.recomputes.is_empty();
        let may_offload = !savings.offloads.is_empty();
        match self {
            Self::None => true,
            Self::Recompute => may_recompute,
            Self::Offload => may_offload,
            Self::OffloadThenRecompute => may_recompute && may_offload,
        }
    }
}

/// The lists that one method leads to; `None` for a stage that is above its limit with it.
type StageLists = Vec<Option<Vec<Op>>>;

/// The programs that an order becomes by each method, on all stages where one is needed, and with
/// each stage by the method that suits it. An order that is within all limits is returned alone.
pub(super) fn within_limits(problem: &ScheduleProblem, order: &Program) -> Vec<Program> {
    let with = |lists: Vec<Vec<Op>>| Program { stages: lists, ..order.clone() };
    let methods =
        SavingMethod::ALL.into_iter().filter(|method| method.is_allowed(&problem.memory_savings));
    let mut by_method: Vec<StageLists> = Vec::new();
    for method in methods {
        by_method.push(lists(problem, order, method));
        let is_enough = by_method[0].iter().all(Option::is_some);
        if is_enough {
            break;
        }
    }
    let untouched = by_method[0].clone();
    // A stage that is within its limit stays as it is, independent of the others.
    let filled = |lists: &StageLists| -> Option<Vec<Vec<Op>>> {
        untouched
            .iter()
            .zip(lists)
            .map(|(as_it_is, list)| as_it_is.clone().or(list.clone()))
            .collect()
    };
    let mut found: Vec<Program> = by_method.iter().filter_map(filled).map(with).collect();
    if by_method.len() > 2 {
        found.extend(exchanged(problem, order, (&untouched, &by_method[1..])));
    }
    found
}

/// Stage by stage the method with which the whole costs least, the others left as they are.
fn exchanged(
    problem: &ScheduleProblem,
    order: &Program,
    (untouched, by_method): (&StageLists, &[StageLists]),
) -> Option<Program> {
    let mut chosen: Vec<Vec<Op>> = Vec::with_capacity(untouched.len());
    for (stage, as_it_is) in untouched.iter().enumerate() {
        let any = || by_method.iter().find_map(|lists| lists[stage].clone());
        chosen.push(as_it_is.clone().or_else(any)?);
    }
    let mut best = Program { stages: chosen, ..order.clone() };
    let mut least = cost(problem, &best);
    let mut left = EXCHANGED_PASSES_MAX;
    for stage in (0..untouched.len()).filter(|stage| untouched[*stage].is_none()) {
        for list in by_method.iter().filter_map(|lists| lists[stage].as_ref()) {
            let size: usize = best.stages.iter().map(Vec::len).sum();
            let Some(rest) = left.checked_sub(size) else { return Some(best) };
            left = rest;
            let before = std::mem::replace(&mut best.stages[stage], list.clone());
            let found = cost(problem, &best);
            if found < least {
                least = found;
            } else {
                best.stages[stage] = before;
            }
        }
    }
    Some(best)
}

fn lists(problem: &ScheduleProblem, order: &Program, method: SavingMethod) -> StageLists {
    let dropped = |program: &Program| dropping(problem, program);
    match method {
        SavingMethod::None => fitting(problem, order),
        SavingMethod::Recompute => dropped(order),
        SavingMethod::Offload => {
            fitting(problem, &offloading(problem, order, Some(&problem.limits)))
        }
        SavingMethod::OffloadThenRecompute => dropped(&offloading(problem, order, None)),
    }
}

fn offloading(problem: &ScheduleProblem, order: &Program, limits: Option<&[f64]>) -> Program {
    let costs = problem.costs();
    let memory = problem.memory();
    let chunks = OffloadChunks::Chosen;
    let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits };
    offload(order, request).expect("an order runs to its end")
}

/// The lists of the stages that have the memory for their activations.
fn fitting(problem: &ScheduleProblem, program: &Program) -> StageLists {
    let fits = problem.stages_that_fit(program);
    program.stages.iter().zip(fits).map(|(ops, fits)| fits.then(|| ops.clone())).collect()
}

/// The lists of stages that drop as few passes as bring them within their limits.
fn dropping(problem: &ScheduleProblem, program: &Program) -> StageLists {
    let mut planner = DropPlanner {
        memory: problem.memory(),
        passes: PassTable::new(program, WaitingPass::default()),
        waiting: Vec::new(),
        kept: 0.0,
        limit: 0.0,
    };
    let slices = f64::from(program.slice_count);
    let of_stage = |(stage, ops): (StageIndex, &[Op])| {
        // Activations of slices are counted as if each kept all of its microbatch.
        planner.limit = problem.limits[stage.index()] * (1.0 + TOLERANCE) * slices;
        planner.of_list(ops)
    };
    program.lists().map(of_stage).collect()
}

/// The state of a pass while a list is gone through.
#[derive(Clone, Copy, Default)]
struct WaitingPass {
    kept: PassFootprint,
    /// The position of its B.
    due: usize,
    /// Whether the list already drops or offloads it.
    is_settled: bool,
    is_dropped: bool,
}

/// Goes through lists, and drops the passes that would be above the limit: of the passes that wait
/// the one that waits longest, which needs the fewest passes if all keep the same.
struct DropPlanner {
    memory: Vec<ChunkMemory>,
    passes: PassTable<WaitingPass>,
    /// Passes between F and B.
    waiting: Vec<Pass>,
    kept: f64,
    limit: f64,
}

impl DropPlanner {
    fn of_list(&mut self, ops: &[Op]) -> Option<Vec<Op>> {
        self.read(ops);
        let is_done = ops.iter().all(|op| self.apply_with_drop(*op));
        is_done.then(|| self.with_drops(ops))
    }

    fn read(&mut self, ops: &[Op]) {
        (self.kept, self.waiting) = (0.0, Vec::new());
        for (position, op) in ops.iter().enumerate() {
            let Some(waiting) = op.pass().and_then(|pass| self.passes.get_mut(pass)) else {
                continue;
            };
            match op {
                Op::Compute(Compute::B | Compute::BW, _) => waiting.due = position,
                Op::Memory(..) => waiting.is_settled = true,
                Op::Compute(Compute::F | Compute::W | Compute::WE | Compute::R, _)
                | Op::Transfer(..)
                | Op::Update(_)
                | Op::Reduce(..) => {}
            }
        }
    }

    /// Applies an operation. Yields whether the stage is within its limit there.
    fn apply_with_drop(&mut self, op: Op) -> bool {
        let Some(pass) = op.pass() else { return true };
        let is_backward = matches!(op, Op::Compute(Compute::B | Compute::BW, _));
        if is_backward {
            self.waiting.retain(|other| *other != pass);
        }
        let cell = self.passes.get(pass).expect("a list has passes of its program");
        let is_within = if is_backward && cell.is_dropped {
            self.apply_within_limit(Op::Compute(Compute::R, pass)) && self.apply_within_limit(op)
        } else {
            self.apply_within_limit(op)
        };
        if matches!(op, Op::Compute(Compute::F, _)) && !cell.is_settled {
            self.waiting.push(pass);
        }
        is_within
    }

    fn apply_within_limit(&mut self, op: Op) -> bool {
        self.apply(op);
        while self.kept > self.limit {
            let due = |pass: &Pass| self.passes.get(*pass).map_or(0, |waiting| waiting.due);
            let saves = |pass: &Pass| {
                let chunk = self.memory[pass.chunk.index()];
                chunk.after_drop < chunk.after_forward
            };
            let candidates = self.waiting.iter().copied().filter(saves);
            let Some(victim) = candidates.max_by_key(due) else { return false };
            self.waiting.retain(|pass| *pass != victim);
            self.apply(Op::Memory(MemoryOp::Drop, victim));
            self.passes.get_mut(victim).expect("it waits").is_dropped = true;
        }
        true
    }

    fn apply(&mut self, op: Op) {
        let Some(pass) = op.pass() else { return };
        let chunk = self.memory[pass.chunk.index()];
        let waiting = self.passes.get_mut(pass).expect("a list has passes of its program");
        let before = waiting.kept.resident();
        waiting.kept.apply(op, chunk);
        self.kept += waiting.kept.resident() - before;
    }

    fn with_drops(&self, ops: &[Op]) -> Vec<Op> {
        let with = |op: &Op| {
            let is_dropped =
                op.pass().and_then(|pass| self.passes.get(pass)).is_some_and(|p| p.is_dropped);
            match op.arithmetic().filter(|_| is_dropped) {
                Some((Compute::F, pass)) => vec![*op, Op::Memory(MemoryOp::Drop, pass)],
                Some((Compute::B | Compute::BW, pass)) => {
                    vec![Op::Compute(Compute::R, pass), *op]
                }
                Some((Compute::W | Compute::WE | Compute::R, _)) | None => vec![*op],
            }
        };
        ops.iter().flat_map(with).collect()
    }
}
