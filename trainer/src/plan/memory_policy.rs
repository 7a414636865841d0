//! Plans that keep less where a memory limit requires it: as few passes as do it are recomputed, or
//! offloaded.

use zbelastic_kernels::ByteCounts;
use zbelastic_schedule::{
    MemorySavings, MemoryTimes, OffloadTransfer, Program, RecomputeCost, ScheduleKind,
    ScheduleProblem, fit_memory_limits, solve,
};
use zbelastic_types::Bytes;

use super::memory::PassMemory;
use super::solved::{PlanPassMemory, is_solved};
use super::{ChooseRequest, Plan, plan_memory};
use crate::model::{ModelConfig, Recompute};

/// Which passes do something to keep less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassExtent {
    /// All of a schedule that has it, under any memory limit.
    #[default]
    Everywhere,
    /// As few as a stage's limit requires.
    WhereNeeded,
}

/// The means by which passes keep less, and the passes that use them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// The parts that DROP frees and R recomputes.
    pub recompute: Recompute,
    /// Which passes are recomputed.
    pub recomputed: PassExtent,
    /// Which passes are offloaded: those of a schedule that offloads, or, under any, those that
    /// must.
    pub offloaded: PassExtent,
    /// How many replicas have the moments of each layer at least, if the optimizer is sharded over the others.
    pub sharded: Option<u32>,
}

impl MemoryPolicy {
    /// The plan with the optimizer sharded, if it is to be.
    pub(super) fn with_shards(&self, model: &ModelConfig, plan: Plan) -> Plan {
        match self.sharded {
            Some(holders_min) => plan.with_shards(model, holders_min),
            None => plan,
        }
    }

    /// The plan with passes recomputed, if all are. Otherwise it stores the parts that DROP would
    /// free, and has no DROP.
    pub(super) fn applied(&self, plan: Plan) -> Plan {
        match self.recomputed {
            PassExtent::Everywhere => plan.with_recompute(self.recompute),
            PassExtent::WhereNeeded => Plan { recompute: self.recompute, ..plan },
        }
    }

    fn may_drop(&self) -> bool {
        self.recomputed == PassExtent::WhereNeeded && self.recompute.is_any()
    }

    fn drops_all(&self) -> bool {
        self.recomputed == PassExtent::Everywhere && self.recompute.is_any()
    }

    /// PipeOffload's selective schedule offloads what a limit requires, for every value of
    /// `offloaded`.
    fn may_offload(&self, plan: &Plan) -> bool {
        let is_selective = plan.program.kind == ScheduleKind::PoSelective;
        (self.offloaded == PassExtent::WhereNeeded || is_selective) && plan.program.slice_count == 1
    }
}

/// How often limits are corrected by the memory of slots and messages that is not counted here:
/// each pass that is offloaded for it leaves a message behind, so it needs some rounds.
const ROUNDS_MAX: u32 = 16;

/// Plans over the same chunks that stay within the limits of their stages, if any limit is there
/// and passes may do something about it: the plan's own order and one that is solved for. A solver
/// knows no passes that are recomputed under any memory limit, so for these it is the `others`
/// instead.
pub(super) fn memory_limited_plans<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    own: &Plan,
    others: &[Plan],
) -> Vec<Plan> {
    let policy = request.memory;
    let may_do_any = policy.may_drop() || policy.may_offload(own);
    if !may_do_any || request.stage_bytes_max.is_empty() {
        return Vec::new();
    }
    let problem = memory_problem(backend, request, own);
    let mut orders = Vec::from_iter(replan_copies(&problem, &own.program));
    if policy.drops_all() {
        let order = |other: &Plan| replan_copies(&problem, &other.program);
        orders.extend(others.iter().filter_map(order));
    } else if is_solved(own) {
        orders.extend(solve(&problem).map(|found| found.program));
    }
    let plan = |order| within_limits(backend, request, own, (problem.clone(), order));
    orders.into_iter().filter_map(plan).collect()
}

/// Copies that a schedule has for other times or limits are planned anew.
fn replan_copies(problem: &ScheduleProblem, order: &Program) -> Option<Program> {
    let may_offload = !problem.memory_savings.offloads.is_empty();
    if may_offload {
        fit_memory_limits(problem, &order.without_copies())
    } else {
        fit_memory_limits(problem, order)
    }
}

/// A plan within the limits. The memory counted for a pass leaves out the message that one that is
/// offloaded may wait for, and that slots of different chunks are full at different times: where
/// the plan needs more than that, so much less is to be kept.
fn within_limits<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    own: &Plan,
    (mut problem, mut found): (ScheduleProblem, Program),
) -> Option<Plan> {
    for _ in 0..ROUNDS_MAX {
        let order = Program { kind: own.program.kind, ..found };
        let of_kind = request.of_kind(own.program.kind);
        let chunks = own.chunks[..own.placement().chunks_per_replica() as usize].to_vec();
        let plan = Plan::with_program(of_kind, chunks, &order).ok()?;
        let plan = Plan { recompute: own.recompute, ..plan };
        let plan = request.memory.with_shards(request.model, plan);
        let memory = plan_memory(backend, request.model, request.optimizer, &plan, request.beside);
        let mut is_within = true;
        for ((memory, max), limit) in
            memory.iter().zip(request.stage_bytes_max).zip(&mut problem.limits)
        {
            let above = memory.total().0.saturating_sub(max.0);
            is_within &= above == 0;
            *limit = (*limit - above as f64).max(0.0);
        }
        if is_within {
            return Some(plan);
        }
        found = replan_copies(&problem, &order)?;
    }
    None
}

fn memory_problem<B: ByteCounts>(
    backend: &B,
    request: ChooseRequest<'_>,
    own: &Plan,
) -> ScheduleProblem {
    let passes = PlanPassMemory::new(backend, request, own);
    let times = request.pace.chunk_times(own.placement(), &own.chunks);
    let plain = passes.problem(request, own, &times);
    let limits = passes.pass_budgets.iter().zip(&plain.limits);
    let limits = limits.map(|(budget, plain)| budget.unwrap_or(*plain)).collect();
    let costs = request.pace.memory_costs(own);
    let recompute = |(times, memory): (&MemoryTimes, &PassMemory)| {
        let PassMemory { stash, logits, message, .. } = *memory;
        let logits = if own.recompute.recomputes_logits() { Bytes(0) } else { logits };
        RecomputeCost { time: times.recompute, after_drop: (stash + logits + message).0 as f64 }
    };
    let transfer =
        |times: &MemoryTimes| OffloadTransfer { offload: times.offload, reload: times.reload };
    let memory_savings = MemorySavings {
        recomputes: if request.memory.may_drop() {
            costs.chunks.iter().zip(&passes.chunks).map(recompute).collect()
        } else {
            Vec::new()
        },
        offloads: if request.memory.may_offload(own) {
            costs.chunks.iter().map(transfer).collect()
        } else {
            Vec::new()
        },
        lanes: costs.lanes,
    };
    ScheduleProblem { limits, memory_savings, ..plain }
}
