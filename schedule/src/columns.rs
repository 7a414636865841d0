//! Replicas of a pipeline, side by side.

use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use crate::op::{Op, Pass};
use crate::placement::{Placement, PlacementError};
use crate::program::Program;

/// Why programs do not stand side by side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnsError {
    /// So many pipelines of this shape are no placement.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A column of another schedule, shape or size than the first.
    #[error("replica {column} has another schedule, shape or size than the first one")]
    Differs {
        /// The column, counted from 0.
        column: u32,
    },
    /// There is no column.
    #[error("no replica at all")]
    None,
}

/// One program of the programs of single pipelines, its columns: column `c` stands on stages of its
/// own, and runs the `c`-th run of the step's microbatches, so many as its program has. The order of
/// operations may differ from column to column. Without transfers and updates: [`crate::lower`] adds
/// them, and with them the exchange of gradients.
///
/// # Errors
/// If the columns are no power of two, or not all of one schedule, shape and size.
pub fn side_by_side(columns: &[Program]) -> Result<Program, ColumnsError> {
    let first = columns.first().ok_or(ColumnsError::None)?;
    let count = columns.len() as u32;
    let own = &first.placement;
    let is_like_first = |column: &Program| {
        let Program { kind, placement, microbatch_count, slice_count, .. } = column;
        (*kind, placement, *microbatch_count, *slice_count)
            == (first.kind, own, first.microbatch_count, first.slice_count)
    };
    if let Some(column) = columns.iter().position(|column| !is_like_first(column)) {
        return Err(ColumnsError::Differs { column: column as u32 });
    }
    let [stages, chunks] = [own.stage_count(), own.chunk_count()];
    let placement = Placement::of_columns(own.shape(), count, count * stages, count * chunks)?;
    let shift = |(index, column): (u32, &Program)| {
        let pass = move |pass: Pass| Pass {
            chunk: ChunkIndex(pass.chunk.0 + index * chunks),
            microbatch: MicrobatchIndex(pass.microbatch.0 + index * first.microbatch_count),
            ..pass
        };
        let op = move |op: Op| match op {
            Op::Compute(compute, of) => Op::Compute(compute, pass(of)),
            Op::Memory(memory, of) => Op::Memory(memory, pass(of)),
            Op::Transfer(transfer, flow, of) => Op::Transfer(transfer, flow, pass(of)),
            Op::Reduce(reduction, of) => Op::Reduce(reduction, ChunkIndex(of.0 + index * chunks)),
            Op::Update(_) => op,
        };
        let arithmetic = column.arithmetic().stages;
        arithmetic.into_iter().map(move |ops| ops.into_iter().map(op).collect())
    };
    Ok(Program {
        kind: first.kind,
        placement,
        microbatch_count: count * first.microbatch_count,
        slice_count: first.slice_count,
        window: None,
        stages: (0..).zip(columns).flat_map(shift).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::{ColumnsError, side_by_side};
    use crate::check::check;
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::{Program, Window};
    use crate::ties::tie_ends;

    fn replicated(kind: ScheduleKind, size: (u32, u32), columns: usize) -> Program {
        let column = generate(kind, size.0, size.1).expect("the size is legal");
        side_by_side(&vec![column; columns]).expect("alike, and a power of two")
    }

    #[test]
    fn two_lines_exchange_their_gradients() {
        let program = replicated(ScheduleKind::ZbH1, (2, 1), 2);
        let options = LowerOptions { window: Window::Zero, early_head_weights: false };
        let expected = "program zb-h1 line replicas 2 stages 4 chunks 4 microbatches 2 window 0\n\
            stage 0: 0F0 0SEND_F0 0RECV_B0 0B0 0W0 0SEND_G 0RECV_G 0REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 1: 1RECV_F0 1F0 1B0 1SEND_B0 1W0 1SEND_G 1RECV_G 1REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 2: 2F1 2SEND_F1 2RECV_B1 2B1 2W1 2SEND_G 2RECV_G 2REDUCE \
            REPORT GATE_THIS STEP COMMIT\n\
            stage 3: 3RECV_F1 3F1 3B1 3SEND_B1 3W1 3SEND_G 3RECV_G 3REDUCE \
            REPORT GATE_THIS STEP COMMIT\n";
        assert_eq!(lower(&program, options).to_string(), expected);
    }

    /// Two directions of two columns: the columns exchange what the directions have added.
    #[test]
    fn levels_follow_each_other_up_the_tree() {
        let program = replicated(ScheduleKind::Gems, (1, 2), 2);
        let options = LowerOptions { window: Window::Zero, early_head_weights: false };
        let lowered = lower(&program, options).to_string();
        let expected = "stage 0: 0F0 0BW0 0LOCAL_G 1F1 1BW1 1LOCAL_G 0REDUCE 0SEND_G.1 \
            1REDUCE 1SEND_G.1 0RECV_G.1 0REDUCE.1 1RECV_G.1 1REDUCE.1 REPORT GATE_THIS STEP COMMIT";
        assert_eq!(lowered.lines().nth(1), Some(expected));
    }

    #[test]
    fn every_schedule_is_legal_in_every_number_of_replicas() {
        for kind in ScheduleKind::ALL {
            for (stages, microbatches) in [(1, 2), (2, 4), (3, 6), (4, 8)] {
                let Ok(column) = generate(kind, stages, microbatches) else { continue };
                for columns in [1, 2, 4, 8] {
                    let program = side_by_side(&vec![column.clone(); columns]).expect("alike");
                    assert_eq!(program.placement.column(), column.placement);
                    for window in [Window::Zero, Window::One] {
                        let options = LowerOptions { window, early_head_weights: true };
                        let lowered = lower(&program, options);
                        for lowered in [tie_ends(&lowered), lowered] {
                            assert_eq!(check(&lowered), Ok(()), "{kind} {stages} x {columns}");
                            assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn columns_are_alike_and_a_power_of_two() {
        let column = |stages| generate(ScheduleKind::ZbH1, stages, 2).expect("the size is legal");
        let refuse = |columns: &[Program]| side_by_side(columns).expect_err("refused");
        assert_eq!(refuse(&[]), ColumnsError::None);
        assert_eq!(refuse(&[column(2), column(3)]), ColumnsError::Differs { column: 1 });
        let found = refuse(&vec![column(2); 3]).to_string();
        let expected =
            "6 chunks over 6 stages do not form 3 replicas of a line, a power of two up to 64";
        assert_eq!(found, expected);
    }
}
