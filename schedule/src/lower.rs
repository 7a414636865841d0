//! Lowering: adds to a program of arithmetic what a cluster needs to run it.
//!
//! Transfers follow from the placement: an operand from another stage is received right before the
//! pass that needs it, a result is sent right after the pass that made it. Where there are replicas,
//! their gradients are added level by level of a tree, each replica a part of the floats, and the sums are
//! gathered: the first exchange begins right after
//! the chunk's last operation, and is waited for at the end of the step; what a model with tied ends
//! needs beside it is added by [`crate::tie_ends`]. Where the optimizer is sharded, candidate weights are gathered
//! behind STEP. Where the gate stands follows from the window.
//! With window one it stands directly before the first operation that adds to the weights' gradient,
//! the last moment at which the step before can still be dropped, so F and B of the new step run
//! while the verdict travels.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::ChunkIndex;

use crate::boundary::{receive_before, transfer_after};
use crate::op::{Compute, Op, UpdateOp};
use crate::placement::Placement;
use crate::program::{Program, Window};
use crate::reduction::{Reduction, TreeExchange};

/// What a cluster decides about a program beside its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// How many steps may run ahead of the verdict.
    pub window: Window,
    /// Let the part of W that keeps the largest operand run right after B ([`Compute::WE`]).
    /// Changes nothing where B and W are one.
    pub early_head_weights: bool,
}

/// `program` with transfers, updates and, if requested, early weights. What it had of these before
/// is replaced, so a lowered program can be lowered again with other options. Operations on memory
/// stay where they are.
#[must_use]
pub fn lower(program: &Program, options: LowerOptions) -> Program {
    let placement = &program.placement;
    let lower_stage = |ops: &Vec<Op>| {
        let lowered = with_transfers(placement, ops, options.early_head_weights);
        let updated = with_updates(&with_reductions(placement, lowered), options.window);
        with_gathered_candidates(placement, updated)
    };
    Program {
        kind: program.kind,
        placement: placement.clone(),
        microbatch_count: program.microbatch_count,
        slice_count: program.slice_count,
        window: Some(options.window),
        stages: program.stages.iter().map(lower_stage).collect(),
    }
}

fn with_transfers(placement: &Placement, ops: &[Op], early_head_weights: bool) -> Vec<Op> {
    let mut lowered = Vec::with_capacity(2 * ops.len());
    for &op in ops {
        let (compute, pass) = match op {
            Op::Compute(Compute::WE, _) | Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => {
                continue;
            }
            Op::Memory(..) => {
                lowered.push(op);
                continue;
            }
            Op::Compute(compute, pass) => (compute, pass),
        };
        lowered.extend(receive_before(placement, op));
        lowered.push(op);
        lowered.extend(transfer_after(placement, op));
        if early_head_weights && compute == Compute::B && placement.is_last(pass.chunk) {
            lowered.push(Op::Compute(Compute::WE, pass));
        }
    }
    lowered
}

/// Adds the operations that make one gradient of those of all replicas of each chunk. A stage with
/// several chunks finishes an exchange for all of them before the next: while one waits, others add.
fn with_reductions(placement: &Placement, ops: Vec<Op>) -> Vec<Op> {
    if placement.replica_count() == 1 {
        return ops;
    }
    let mut last = BTreeMap::new();
    for (position, op) in ops.iter().enumerate() {
        last.extend(op.chunk().map(|chunk| (chunk, position)));
    }
    let mut lowered = Vec::with_capacity(ops.len() + 4 * last.len());
    let exchanges: Vec<TreeExchange> = of_gradients(placement).collect();
    let send = |chunk, exchange: Option<&TreeExchange>| {
        exchange.and_then(|exchange| passing_of(placement, chunk, *exchange)[0])
    };
    for (position, op) in ops.into_iter().enumerate() {
        lowered.push(op);
        if let Some(chunk) = op.chunk().filter(|chunk| last[chunk] == position) {
            lowered.extend(send(chunk, exchanges.first()));
        }
    }
    for (number, exchange) in exchanges.iter().enumerate() {
        for &chunk in last.keys() {
            let [_, receive] = passing_of(placement, chunk, *exchange);
            lowered.extend(receive);
            lowered.push(Op::Reduce(Reduction::Merge(*exchange), chunk));
            lowered.extend(send(chunk, exchanges.get(number + 1)));
        }
    }
    lowered
}

/// The exchanges before a step is reported.
fn of_gradients(placement: &Placement) -> impl Iterator<Item = TreeExchange> + use<> {
    TreeExchange::all_of(placement).filter(|exchange| !exchange.is_of_candidates())
}

/// Those behind STEP.
fn of_candidates(placement: &Placement) -> impl Iterator<Item = TreeExchange> + use<> {
    TreeExchange::all_of(placement).filter(|exchange| exchange.is_of_candidates())
}

/// Adds behind STEP the operations that gather candidate weights, exchange by exchange.
fn with_gathered_candidates(placement: &Placement, mut ops: Vec<Op>) -> Vec<Op> {
    let chunks: BTreeSet<ChunkIndex> = ops.iter().filter_map(|op| op.chunk()).collect();
    let gathered = of_candidates(placement).flat_map(|exchange| {
        let sent = chunks.iter().flat_map(move |chunk| passing_of(placement, *chunk, exchange)[0]);
        let merged = chunks.iter().flat_map(move |chunk| {
            let merge = Op::Reduce(Reduction::Merge(exchange), *chunk);
            passing_of(placement, *chunk, exchange)[1].into_iter().chain([merge])
        });
        sent.chain(merged)
    });
    let step = ops.iter().position(|op| *op == Op::Update(UpdateOp::Step));
    let behind = step.map_or(ops.len(), |step| step + 1);
    ops.splice(behind..behind, gathered.collect::<Vec<_>>());
    ops
}

/// How floats of a chunk's sum get to its sibling in an exchange, and the sibling's to it.
pub(crate) fn passing_of(
    placement: &Placement,
    chunk: ChunkIndex,
    exchange: TreeExchange,
) -> [Option<Op>; 2] {
    let sibling = placement.sibling_at(chunk, exchange.level());
    let Some(sibling) = sibling else { return [None, None] };
    if placement.stage_of(sibling) == placement.stage_of(chunk) {
        [Some(Op::Reduce(Reduction::Local(exchange), chunk)), None]
    } else {
        [Reduction::Send(exchange), Reduction::Receive(exchange)]
            .map(|reduction| Some(Op::Reduce(reduction, chunk)))
    }
}

fn with_updates(ops: &[Op], window: Window) -> Vec<Op> {
    let update = |update: &UpdateOp| Op::Update(*update);
    let at = match window {
        Window::Zero => ops.len(),
        Window::One => ops.iter().position(|op| op.accumulates()).unwrap_or(ops.len()),
    };
    let (before, after) = ops.split_at(at);
    let gate = opening(window).iter().map(update);
    let tail = closing(window).iter().map(update);
    before.iter().copied().chain(gate).chain(after.iter().copied()).chain(tail).collect()
}

/// The updates before the first accumulating operation.
pub(crate) const fn opening(window: Window) -> &'static [UpdateOp] {
    match window {
        Window::Zero => &[],
        Window::One => &[UpdateOp::GatePrevious, UpdateOp::Commit],
    }
}

/// The updates that end a step.
pub(crate) const fn closing(window: Window) -> &'static [UpdateOp] {
    match window {
        Window::Zero => &[UpdateOp::Report, UpdateOp::GateThis, UpdateOp::Step, UpdateOp::Commit],
        Window::One => &[UpdateOp::Report, UpdateOp::Step],
    }
}

#[cfg(test)]
mod tests {
    use super::{LowerOptions, lower};
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::program::Window;

    fn check(kind: ScheduleKind, options: LowerOptions, expected: &str) {
        let program = generate(kind, 2, 2).expect("the size is legal");
        let lowered = lower(&program, options);
        let lines: Vec<String> = lowered.to_string().lines().skip(1).map(str::to_owned).collect();
        let expected: Vec<String> =
            expected.trim().lines().map(|line| line.trim().to_owned()).collect();
        assert_eq!(lines, expected);
        let twice =
            lower(&lower(&program, LowerOptions { window: Window::Zero, ..options }), options);
        assert_eq!(twice, lowered, "lowering again replaces what was lowered");
    }

    #[test]
    fn window_one_gates_before_the_first_accumulation() {
        check(
            ScheduleKind::ZbH1,
            LowerOptions { window: Window::One, early_head_weights: false },
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 GATE_PREVIOUS COMMIT 0W0 \
                 0RECV_B1 0B1 0W1 REPORT STEP
             stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 GATE_PREVIOUS COMMIT \
                 1W0 1W1 REPORT STEP",
        );
        check(
            ScheduleKind::OneFOneB,
            LowerOptions { window: Window::One, early_head_weights: true },
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 GATE_PREVIOUS COMMIT 0BW0 \
                 0RECV_B1 0BW1 REPORT STEP
             stage 1: 1RECV_F0 1F0 GATE_PREVIOUS COMMIT 1BW0 1SEND_B0 1RECV_F1 1F1 1BW1 1SEND_B1 \
                 REPORT STEP",
        );
    }

    #[test]
    fn window_zero_gates_before_the_step() {
        check(
            ScheduleKind::ZbH1,
            LowerOptions { window: Window::Zero, early_head_weights: true },
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0W0 0RECV_B1 0B1 0W1 \
                 REPORT GATE_THIS STEP COMMIT
             stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 1WE0 1RECV_F1 1F1 1B1 1SEND_B1 1WE1 1W0 1W1 \
                 REPORT GATE_THIS STEP COMMIT",
        );
    }

    #[test]
    fn a_vee_hands_over_on_the_spot() {
        check(
            ScheduleKind::ZbV,
            LowerOptions { window: Window::One, early_head_weights: true },
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3B0 3SEND_B0 \
                 GATE_PREVIOUS COMMIT 3WE0 3W0 3RECV_F1 3F1 3B1 3SEND_B1 3WE1 3W1 \
                 0RECV_B0 0B0 0W0 0RECV_B1 0B1 0W1 REPORT STEP
             stage 1: 1RECV_F0 1F0 1LOCAL_F0 2F0 2SEND_F0 1RECV_F1 1F1 1LOCAL_F1 2F1 2SEND_F1 \
                 2RECV_B0 2B0 2LOCAL_B0 GATE_PREVIOUS COMMIT 2W0 1B0 1SEND_B0 1W0 \
                 2RECV_B1 2B1 2LOCAL_B1 2W1 1B1 1SEND_B1 1W1 REPORT STEP",
        );
    }

    /// The middle stage of three holds both replicas of the middle chunk.
    #[test]
    fn replicas_exchange_their_gradients_and_add_them() {
        let program = generate(ScheduleKind::Gems, 3, 2).expect("the size is legal");
        let options = LowerOptions { window: Window::Zero, early_head_weights: true };
        let lowered = lower(&program, options).to_string();
        let expected = [
            "stage 0: 0F0 0SEND_F0 0RECV_B0 0BW0 0SEND_G 5RECV_F1 5F1 5BW1 5SEND_B1 5SEND_G \
             0RECV_G 0REDUCE 5RECV_G 5REDUCE REPORT GATE_THIS STEP COMMIT",
            "stage 1: 1RECV_F0 1F0 1SEND_F0 1RECV_B0 1BW0 1SEND_B0 1LOCAL_G \
             4RECV_F1 4F1 4SEND_F1 4RECV_B1 4BW1 4SEND_B1 4LOCAL_G \
             1REDUCE 4REDUCE REPORT GATE_THIS STEP COMMIT",
            "stage 2: 2RECV_F0 2F0 2BW0 2SEND_B0 2SEND_G 3F1 3SEND_F1 3RECV_B1 3BW1 3SEND_G \
             2RECV_G 2REDUCE 3RECV_G 3REDUCE REPORT GATE_THIS STEP COMMIT",
        ];
        assert_eq!(lowered.lines().skip(1).collect::<Vec<_>>(), expected);
    }
}
