//! Recomputation: activations are dropped after F and recomputed before B.
//!
//! It goes with every schedule, because R needs nothing from other stages: it is one operation more
//! in the list, and the order of all others stays. What is dropped, all but the chunk's input or
//! single parts of each layer, is for the trainer to decide.

use std::collections::BTreeSet;

use crate::op::{Compute, MemoryOp, Op, Pass};
use crate::program::Program;

/// The arithmetic of `program` with DROP behind the F, and R before the B or BW, of every pass
/// between whose F and B its stage runs another pass: elsewhere nothing would be saved. What it had
/// of these before is replaced. To be lowered afterwards, also if it was lowered before.
///
/// R stands right before its B, so that lowering puts the receive between them: R runs while the
/// gradient is awaited.
///
/// Of slices each has its own DROP and R. What others read of it, the keys and values, is not
/// dropped, so R of one waits for no other.
#[must_use]
pub fn recompute(program: &Program) -> Program {
    let arithmetic = program.arithmetic();
    let stages = arithmetic.stages.iter().map(|ops| with_recomputation(ops)).collect();
    Program { stages, ..arithmetic }
}

fn with_recomputation(ops: &[Op]) -> Vec<Op> {
    let is_old = |op: &Op| matches!(op, Op::Compute(Compute::R, _) | Op::Memory(MemoryOp::Drop, _));
    let ops: Vec<Op> = ops.iter().filter(|op| !is_old(op)).copied().collect();
    let passes: Vec<(Compute, Pass)> = ops.iter().filter_map(|op| op.arithmetic()).collect();
    let turns_at_once =
        |pair: &&[(Compute, Pass)]| pair[0].0 == Compute::F && pair[0].1 == pair[1].1;
    let at_once: BTreeSet<Pass> =
        passes.windows(2).filter(turns_at_once).map(|pair| pair[0].1).collect();
    let mut with = Vec::with_capacity(2 * ops.len());
    for op in ops {
        match op.arithmetic().filter(|(_, pass)| !at_once.contains(pass)) {
            Some((Compute::F, pass)) => with.extend([op, Op::Memory(MemoryOp::Drop, pass)]),
            Some((Compute::B | Compute::BW, pass)) => {
                with.extend([Op::Compute(Compute::R, pass), op]);
            }
            Some((Compute::W | Compute::WE | Compute::R, _)) | None => with.push(op),
        }
    }
    with
}

#[cfg(test)]
mod tests {
    use super::recompute;
    use crate::check::check;
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::Window;

    #[test]
    fn what_waits_is_dropped_and_recomputed() {
        let program = generate(ScheduleKind::ZbH1, 2, 2).expect("the size is legal");
        let found = recompute(&program);
        let text = found.to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "stage 0: 0F0 0DROP0 0F1 0DROP1 0R0 0B0 0W0 0R1 0B1 0W1",
            "stage 1: 1F0 1B0 1F1 1B1 1W0 1W1",
        ];
        assert_eq!(lines, expected);
        let options = LowerOptions { window: Window::One, early_head_weights: true };
        let lowered = lower(&found, options);
        assert_eq!(check(&lowered), Ok(()));
        assert!(lowered.to_string().contains("0F0 0SEND_F0 0DROP0 0F1"), "{lowered}");
        assert!(lowered.to_string().contains("0R0 0RECV_B0 0B0"), "{lowered}");
        assert_eq!(recompute(&lowered), found, "earlier DROP and R are replaced");
    }

    #[test]
    fn slices_are_recomputed_one_by_one() {
        let program = generate(ScheduleKind::Seq1F1B, 2, 2).expect("the size is legal");
        let text = recompute(&program).to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "stage 0: 0F0.0 0DROP0.0 0F0.1 0DROP0.1 0F1.0 0DROP1.0 0R0.1 0BW0.1 0F1.1 0DROP1.1 \
             0R0.0 0BW0.0 0R1.1 0BW1.1 0R1.0 0BW1.0",
            "stage 1: 1F0.0 1DROP0.0 1F0.1 1BW0.1 1F1.0 1DROP1.0 1R0.0 1BW0.0 1F1.1 1BW1.1 1R1.0 \
             1BW1.0",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn every_schedule_can_recompute() {
        for kind in ScheduleKind::ALL {
            for (stages, microbatches) in [(2, 6), (4, 12)] {
                let program = generate(kind, stages, microbatches).expect("the size is legal");
                let found = recompute(&program);
                assert_eq!(check(&found), Ok(()), "{kind}");
                let options = LowerOptions { window: Window::Zero, early_head_weights: true };
                assert_eq!(check(&lower(&found, options)), Ok(()), "{kind}");
            }
        }
    }
}
