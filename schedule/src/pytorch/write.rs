//! Writes a program as a file.

use zbelastic_types::StageIndex;

use super::{CsvFormat, action};
use crate::boundary::transfer_after;
use crate::cost::Costs;
use crate::kind::ScheduleKind;
use crate::op::{Op, Pass, Transfer};
use crate::program::Program;
use crate::simulate::simulate;

/// Why a program has no file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The program has several replicas of the model; a file's stages make up one.
    #[error(
        "{kind} has {found} replicas of the model, and a file of PyTorch's names stages of one{}",
        if *found > 2 || kind.replica_count() == 1 { ": write that of a single pipeline" } else { "" }
    )]
    Replicas {
        /// Schedule of the program.
        kind: ScheduleKind,
        /// How many times the model is there.
        found: u32,
    },
    /// The program has slices; an action in a file is on a whole microbatch.
    #[error(
        "files of PyTorch have no slices of a microbatch, expected a program of 1 slice, \
         found {found}"
    )]
    Slices {
        /// Slices of a microbatch.
        found: u32,
    },
}

/// The file of a program that [`crate::check`] accepts. With communication, a send stands right
/// behind what makes its content, and the receive where the other rank stands by then if all passes
/// take equally long: so two ranks send and receive in one order, and a receive is not posted so
/// early that others wait behind it.
///
/// # Errors
/// If there are several replicas of the model, or if microbatches are cut into slices.
///
/// # Panics
/// If the program does not reach its end.
pub fn write(program: &Program, format: CsvFormat) -> Result<String, WriteError> {
    if program.slice_count > 1 {
        return Err(WriteError::Slices { found: program.slice_count });
    }
    let placement = &program.placement;
    let found = placement.replica_count();
    if found > 1 {
        return Err(WriteError::Replicas { kind: program.kind, found });
    }
    let mut rows = vec![Vec::new(); program.stages.len()];
    for (stage, op) in in_order_of_time(program) {
        rows[stage.index()].extend(action(op));
        let (CsvFormat::WithCommunication, Some(send @ Op::Transfer(Transfer::Send, flow, pass))) =
            (format, transfer_after(placement, op))
        else {
            continue;
        };
        rows[stage.index()].extend(action(send));
        let chunk = placement.chunk_after(pass.chunk, flow).expect("a send has a reader");
        let reader = placement.stage_of(chunk).expect("a chunk has a stage");
        let receive = Op::Transfer(Transfer::Receive, flow, Pass { chunk, ..pass });
        rows[reader.index()].extend(action(receive));
    }
    Ok(rows.iter().map(|row| row.join(",") + "\n").collect())
}

/// The arithmetic of all stages as it ends, if all passes take equally long.
fn in_order_of_time(program: &Program) -> Vec<(StageIndex, Op)> {
    let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0);
    let timeline = simulate(program, &costs, 1).expect("a checked program reaches its end");
    let mut ends = Vec::new();
    for stage in timeline.stages() {
        let passes =
            timeline.slices(stage).iter().filter(|slice| matches!(slice.op, Op::Compute(..)));
        ends.extend(passes.map(|slice| (slice.end, stage, slice.op)));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    ends.into_iter().map(|(_, stage, op)| (stage, op)).collect()
}
