//! Adds to a lowered program what a model needs whose head is tied to the token embedding.
//!
//! Both ends of the model hold the matrix, and each computes a part of its gradient. Before a step
//! is reported both add the two parts, the head's first. Where the ends stand on two stages, each
//! part is sent to the other stage right after the last operation that adds to it: the head's with
//! early weights well before the end of the step. The part that arrives is waited for in front of
//! REPORT. Where both stand on one stage, as in a vee, nothing is sent.

use std::collections::BTreeSet;

use zbelastic_types::ChunkIndex;

use crate::op::{Compute, Op, Pass, Transfer, UpdateOp};
use crate::placement::Placement;
use crate::program::Program;
use crate::reduction::Reduction;

/// `program`, which is lowered, with the gradients of the two ends of the model made one. A program
/// that has this already stays as it is; to lower it again leaves it out.
#[must_use]
pub fn tie_ends(program: &Program) -> Program {
    if program.is_tied() {
        return program.clone();
    }
    let placement = &program.placement;
    let stages = program.stages.iter().map(|ops| with_ties(placement, ops)).collect();
    Program { placement: placement.clone(), stages, ..*program }
}

fn with_ties(placement: &Placement, ops: &[Op]) -> Vec<Op> {
    let chunks: BTreeSet<ChunkIndex> = ops.iter().filter_map(|op| op.chunk()).collect();
    let tied = TiedOps::new(placement, ops);
    let mut lowered = ops.to_vec();
    let report = ops.iter().position(|op| *op == Op::Update(UpdateOp::Report));
    // From the back to the front, so that places found in `ops` stay where they are.
    let mut inserted: Vec<(usize, Op)> = Vec::new();
    for op in chunks.into_iter().flat_map(|chunk| ties_at(placement, chunk)) {
        let is_sent = matches!(op, Op::Reduce(Reduction::SendTied, _));
        let complete = ops.iter().rposition(|before| tied.must_precede(op, *before));
        let end = report.unwrap_or(ops.len());
        // A result that other stages wait for is passed on first.
        let passes_on = |op: &&Op| matches!(op, Op::Transfer(Transfer::Send | Transfer::Local, ..));
        let after = |position: usize| {
            position + 1 + ops[position + 1..].iter().take_while(passes_on).count()
        };
        let at = complete.filter(|_| is_sent).map_or(end, after);
        inserted.push((at, op));
    }
    inserted.sort_by_key(|(at, _)| *at);
    for (at, op) in inserted.into_iter().rev() {
        lowered.insert(at, op);
    }
    lowered
}

/// The operations that make the gradient of the tied matrix at `chunk` that of both ends.
fn ties_at(placement: &Placement, chunk: ChunkIndex) -> Vec<Op> {
    let Some(end) = placement.other_end_of(chunk) else { return Vec::new() };
    let reductions: &[Reduction] = if placement.stage_of(end) != placement.stage_of(chunk) {
        &[Reduction::SendTied, Reduction::ReceiveTied, Reduction::Tie]
    } else if placement.is_first(chunk) {
        &[Reduction::Tie]
    } else {
        &[]
    };
    reductions.iter().map(|reduction| Op::Reduce(*reduction, chunk)).collect()
}

/// All operations on tied ends that `program` must have: none, if it has none.
pub(crate) fn ties_of(program: &Program) -> Vec<Op> {
    if !program.is_tied() {
        return Vec::new();
    }
    let chunks = (0..program.placement.chunk_count()).map(ChunkIndex);
    chunks.flat_map(|chunk| ties_at(&program.placement, chunk)).collect()
}

/// The operations of a stage, as far as they concern a tied matrix.
pub(crate) struct TiedOps<'a> {
    placement: &'a Placement,
    /// Passes whose part of the head's matrix is in WE.
    early: BTreeSet<Pass>,
}

impl<'a> TiedOps<'a> {
    pub(crate) fn new(placement: &'a Placement, ops: &[Op]) -> Self {
        let early = |op: &Op| match op {
            Op::Compute(Compute::WE, pass) => Some(*pass),
            Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => None,
        };
        Self { placement, early: ops.iter().filter_map(early).collect() }
    }

    /// Whether `op` must have run before `tie`, an operation on tied ends of the same stage.
    pub(crate) fn must_precede(&self, tie: Op, op: Op) -> bool {
        match tie {
            Op::Reduce(Reduction::SendTied, chunk) => self.adds(chunk, op),
            Op::Reduce(Reduction::Tie, chunk) => {
                let end = self.placement.other_end_of(chunk);
                let is_exchange = |reduction| op == Op::Reduce(reduction, chunk);
                self.adds(chunk, op)
                    || end.is_some_and(|end| self.adds(end, op))
                    || is_exchange(Reduction::SendTied)
                    || is_exchange(Reduction::ReceiveTied)
            }
            Op::Reduce(
                Reduction::ReceiveTied
                | Reduction::Send(_)
                | Reduction::Receive(_)
                | Reduction::Local(_)
                | Reduction::Merge(_),
                _,
            )
            | Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Memory(..) => false,
        }
    }

    /// Whether `op` adds to the gradient of the tied matrix at `chunk`.
    fn adds(&self, chunk: ChunkIndex, op: Op) -> bool {
        match op {
            Op::Compute(Compute::W, pass) if self.early.contains(&pass) => {
                // The head's matrix is done, and what is left is the embedding's.
                pass.chunk == chunk && self.placement.is_first(chunk)
            }
            Op::Compute(compute, pass) => pass.chunk == chunk && compute.accumulates(),
            Op::Reduce(Reduction::Merge(_), of) => of == chunk,
            Op::Reduce(..) | Op::Transfer(..) | Op::Update(_) | Op::Memory(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tie_ends;
    use crate::check::check;
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::Window;

    fn check_lists(kind: ScheduleKind, stage_count: u32, window: Window, expected: &[&str]) {
        let program = generate(kind, stage_count, 2).expect("the size is legal");
        let lowered = lower(&program, LowerOptions { window, early_head_weights: true });
        let tied = tie_ends(&lowered);
        assert_eq!(tied.to_string().lines().skip(1).collect::<Vec<_>>(), expected);
        assert_eq!(check(&tied), Ok(()));
        assert_eq!(tie_ends(&tied), tied, "ends are tied once");
        assert_eq!(tied.to_string().parse(), Ok(tied.clone()));
        let options = LowerOptions { window, early_head_weights: true };
        assert_eq!(lower(&tied, options), lowered, "what is lowered again has to be tied again");
    }

    #[test]
    fn each_end_sends_its_part_as_soon_as_it_is_complete() {
        let lists = [
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 GATE_PREVIOUS COMMIT 0W0 \
             0RECV_B1 0B1 0W1 0SEND_T 0RECV_T 0TIE REPORT STEP",
            "stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 GATE_PREVIOUS COMMIT 1WE0 1RECV_F1 1F1 1B1 \
             1SEND_B1 1WE1 1SEND_T 1W0 1W1 1RECV_T 1TIE REPORT STEP",
        ];
        check_lists(ScheduleKind::ZbH1, 2, Window::One, &lists);
        let lists = [
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1 0SEND_T 0RECV_T 0TIE \
             REPORT GATE_THIS STEP COMMIT",
            "stage 1: 1RECV_F0 1F0 1RECV_F1 1F1 1BW0 1SEND_B0 1BW1 1SEND_B1 1SEND_T 1RECV_T 1TIE \
             REPORT GATE_THIS STEP COMMIT",
        ];
        check_lists(ScheduleKind::GPipe, 2, Window::Zero, &lists);
    }

    #[test]
    fn ends_on_one_stage_send_nothing() {
        let lists = [
            "stage 0: 0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3B0 3SEND_B0 GATE_PREVIOUS COMMIT \
             3WE0 3W0 3RECV_F1 3F1 3B1 3SEND_B1 3WE1 3W1 0RECV_B0 0B0 0W0 0RECV_B1 0B1 0W1 \
             0TIE REPORT STEP",
            "stage 1: 1RECV_F0 1F0 1LOCAL_F0 2F0 2SEND_F0 1RECV_F1 1F1 1LOCAL_F1 2F1 2SEND_F1 \
             2RECV_B0 2B0 2LOCAL_B0 GATE_PREVIOUS COMMIT 2W0 1B0 1SEND_B0 1W0 \
             2RECV_B1 2B1 2LOCAL_B1 2W1 1B1 1SEND_B1 1W1 REPORT STEP",
        ];
        check_lists(ScheduleKind::ZbV, 2, Window::One, &lists);
    }

    /// With two replicas every stage at an end holds one end of each, whose twins' gradients were
    /// added before.
    #[test]
    fn replicas_are_added_first() {
        let lists = [
            "stage 0: 0F0 0SEND_F0 0RECV_B0 0BW0 0SEND_G 3RECV_F1 3F1 3BW1 3SEND_B1 3SEND_G \
             0RECV_G 0REDUCE 3RECV_G 3REDUCE 0TIE REPORT GATE_THIS STEP COMMIT",
            "stage 1: 1RECV_F0 1F0 1BW0 1SEND_B0 1SEND_G 2F1 2SEND_F1 2RECV_B1 2BW1 2SEND_G \
             1RECV_G 1REDUCE 2RECV_G 2REDUCE 2TIE REPORT GATE_THIS STEP COMMIT",
        ];
        check_lists(ScheduleKind::Gems, 2, Window::Zero, &lists);
    }
}
