//! Brings the lists of an order within the limits of their stages.

use zbelastic_types::StageIndex;

use super::{MemorySavings, ScheduleProblem, cost};
use crate::memory::{ChunkMemory, PassFootprint};
use crate::offload::{OffloadChunks, OffloadRequest, offload};
use crate::op::{Compute, MemoryOp, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;
use crate::solve::problem::TOLERANCE;

/// Passes that are simulated at most while stages try each other's means, whatever is gained.
const EXCHANGED_PASSES_MAX: usize = 100_000;

/// What a stage does to keep less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavingMethod {
    None,
    /// Gives up what waits longest.
    Recompute,
    /// Lets passes leave, and waits for copies where it must.
    Offload,
    /// Lets leave what no pass waits for, and gives up what is too much then.
    OffloadThenRecompute,
}

impl SavingMethod {
    const ALL: [Self; 4] = [Self::None, Self::Recompute, Self::Offload, Self::OffloadThenRecompute];

    fn is_allowed(self, relief: &MemorySavings) -> bool {
        let (drops, leaves) = (!relief.recomputes.is_empty(), !relief.offloads.is_empty());
        match self {
            Self::None => true,
            Self::Recompute => drops,
            Self::Offload => leaves,
            Self::OffloadThenRecompute => drops && leaves,
        }
    }
}

/// The lists of one means; `None` for a stage that is above its limit with it.
type StageLists = Vec<Option<Vec<Op>>>;

/// What comes of an order by each means, on all stages where it is needed, and where stages take what
/// suits them. What needs nothing is there alone.
pub(super) fn within_limits(problem: &ScheduleProblem, order: &Program) -> Vec<Program> {
    let with = |lists: Vec<Vec<Op>>| Program { stages: lists, ..order.clone() };
    let means =
        SavingMethod::ALL.into_iter().filter(|means| means.is_allowed(&problem.memory_savings));
    let mut by_means: Vec<StageLists> = Vec::new();
    for means in means {
        by_means.push(lists(problem, order, means));
        let is_enough = by_means[0].iter().all(Option::is_some);
        if is_enough {
            break;
        }
    }
    let untouched = by_means[0].clone();
    // Who fits as it is does nothing, whatever others do.
    let filled = |lists: &StageLists| -> Option<Vec<Vec<Op>>> {
        untouched.iter().zip(lists).map(|(as_is, list)| as_is.clone().or(list.clone())).collect()
    };
    let mut found: Vec<Program> = by_means.iter().filter_map(filled).map(with).collect();
    if by_means.len() > 2 {
        found.extend(exchanged(problem, order, (&untouched, &by_means[1..])));
    }
    found
}

/// Stage by stage the means that makes the whole cost least, the others left as they are.
fn exchanged(
    problem: &ScheduleProblem,
    order: &Program,
    (untouched, by_means): (&StageLists, &[StageLists]),
) -> Option<Program> {
    let mut chosen: Vec<Vec<Op>> = Vec::with_capacity(untouched.len());
    for (stage, as_is) in untouched.iter().enumerate() {
        let any = || by_means.iter().find_map(|lists| lists[stage].clone());
        chosen.push(as_is.clone().or_else(any)?);
    }
    let mut best = Program { stages: chosen, ..order.clone() };
    let mut least = cost(problem, &best);
    let mut left = EXCHANGED_PASSES_MAX;
    for stage in (0..untouched.len()).filter(|stage| untouched[*stage].is_none()) {
        for list in by_means.iter().filter_map(|lists| lists[stage].as_ref()) {
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

fn lists(problem: &ScheduleProblem, order: &Program, means: SavingMethod) -> StageLists {
    let dropped = |program: &Program| dropping(problem, program);
    match means {
        SavingMethod::None => fitting(problem, order),
        SavingMethod::Recompute => dropped(order),
        SavingMethod::Offload => {
            fitting(problem, &offloading(problem, order, Some(&problem.limits)))
        }
        SavingMethod::OffloadThenRecompute => dropped(&offloading(problem, order, None)),
    }
}

fn offloading(problem: &ScheduleProblem, order: &Program, limits: Option<&[f64]>) -> Program {
    let (costs, memory) = (problem.costs(), problem.memory());
    let chunks = OffloadChunks::Chosen;
    let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits };
    offload(order, request).expect("an order runs to its end")
}

/// The lists of the stages that hold what they keep.
fn fitting(problem: &ScheduleProblem, program: &Program) -> StageLists {
    let fits = problem.stages_that_fit(program);
    program.stages.iter().zip(fits).map(|(ops, fits)| fits.then(|| ops.clone())).collect()
}

/// The lists of stages that give up as few passes as bring them within their limits.
fn dropping(problem: &ScheduleProblem, program: &Program) -> StageLists {
    let mut drops = DropPlanner {
        memory: problem.memory(),
        passes: PassTable::new(program, WaitingPass::default()),
        waiting: Vec::new(),
        kept: 0.0,
        limit: 0.0,
    };
    let slices = f64::from(program.slice_count);
    let of_stage = |(stage, ops): (StageIndex, &[Op])| {
        // What slices keep is counted as if each kept all of its microbatch.
        drops.limit = problem.limits[stage.index()] * (1.0 + TOLERANCE) * slices;
        drops.of_list(ops)
    };
    program.lists().map(of_stage).collect()
}

/// A pass while a list is gone through.
#[derive(Clone, Copy, Default)]
struct WaitingPass {
    kept: PassFootprint,
    /// Where its B stands.
    due: usize,
    /// Whether the list already fixes what becomes of it.
    is_settled: bool,
    is_dropped: bool,
}

/// Goes through lists, and gives up what would be above the limit: of what waits that which waits
/// longest, which takes the fewest passes if all keep the same.
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
        let is_done = ops.iter().all(|op| self.take(*op));
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

    /// Yields whether the limit holds at this operation.
    fn take(&mut self, op: Op) -> bool {
        let Some(pass) = op.pass() else { return true };
        let is_backward = matches!(op, Op::Compute(Compute::B | Compute::BW, _));
        if is_backward {
            self.waiting.retain(|other| *other != pass);
        }
        let cell = self.passes.get(pass).expect("a list has passes of its program");
        let is_within = if is_backward && cell.is_dropped {
            self.run(Op::Compute(Compute::R, pass)) && self.run(op)
        } else {
            self.run(op)
        };
        if matches!(op, Op::Compute(Compute::F, _)) && !cell.is_settled {
            self.waiting.push(pass);
        }
        is_within
    }

    fn run(&mut self, op: Op) -> bool {
        self.change(op);
        while self.kept > self.limit {
            let due = |pass: &Pass| self.passes.get(*pass).map_or(0, |waiting| waiting.due);
            let saves = |pass: &Pass| {
                let chunk = self.memory[pass.chunk.index()];
                chunk.after_drop < chunk.after_forward
            };
            let candidates = self.waiting.iter().copied().filter(saves);
            let Some(victim) = candidates.max_by_key(due) else { return false };
            self.waiting.retain(|pass| *pass != victim);
            self.change(Op::Memory(MemoryOp::Drop, victim));
            self.passes.get_mut(victim).expect("it waits").is_dropped = true;
        }
        true
    }

    fn change(&mut self, op: Op) {
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
