//! Schedules as files of PyTorch's `torch.distributed.pipelining`: one row of comma-separated
//! actions a rank.
//!
//! Letters differ. What is B here, the gradient of the input, is I there; what is BW here, the
//! whole backward pass, is B there; their stages are our chunks, their ranks our stages. A file
//! either has arithmetic only, or sends and receives as well, which its reader runs as they stand.
//! Their receive only announces that something will come, where ours waits for it; so a file's
//! transfers are checked when it is read and placed anew by [`crate::lower`].
//!
//! What zbelastic has beyond that, updates, gates, WE, R and operations on memory, is left out of a
//! file: WE is a share of the W that follows it, and R and the rest change what is kept, not what
//! is computed.

mod read;
mod write;

pub use read::{ReadError, read};
pub use write::{WriteError, write};

use crate::op::{Compute, Flow, Op, Transfer};

/// Which of the two formats a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvFormat {
    /// Arithmetic only, without sends and receives.
    ComputeOnly,
    /// With a send and a receive for everything that changes ranks.
    WithCommunication,
}

const COMPUTE_LETTERS: [(Compute, &str); 4] =
    [(Compute::F, "F"), (Compute::B, "I"), (Compute::W, "W"), (Compute::BW, "B")];

const TRANSFER_LETTERS: [(Transfer, Flow, &str); 4] = [
    (Transfer::Send, Flow::Forward, "SEND_F"),
    (Transfer::Receive, Flow::Forward, "RECV_F"),
    (Transfer::Send, Flow::Backward, "SEND_B"),
    (Transfer::Receive, Flow::Backward, "RECV_B"),
];

/// Actions on sharded parameters and replicas, of which a pipeline here has none: they are passed
/// over.
const PASSED_OVER: [&str; 3] = ["UNSHARD", "RESHARD", "REDUCE_GRAD"];

/// An operation as an action, if they have one for it.
fn action(op: Op) -> Option<String> {
    let (letters, pass) = match op {
        Op::Compute(compute, pass) => {
            (COMPUTE_LETTERS.iter().find(|row| row.0 == compute)?.1, pass)
        }
        Op::Transfer(transfer, flow, pass) => {
            let row = TRANSFER_LETTERS.iter().find(|row| (row.0, row.1) == (transfer, flow));
            (row?.2, pass)
        }
        Op::Update(_) | Op::Reduce(..) | Op::Memory(..) => return None,
    };
    Some(format!("{}{letters}{}", pass.chunk, pass.microbatch))
}

#[cfg(test)]
mod tests {
    use super::{CsvFormat, WriteError, read, write};
    use crate::generate::{generate, generate_sized};
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::op::Op;
    use crate::orders::PipelineSize;
    use crate::program::{Program, Window};

    /// What a file can hold of a program.
    fn passes_of(program: &Program) -> Vec<Vec<Op>> {
        let of_stage = |ops: &Vec<Op>| {
            ops.iter().filter(|op| matches!(op, Op::Compute(..))).copied().collect()
        };
        program.stages.iter().map(of_stage).collect()
    }

    #[test]
    fn what_is_written_is_read_again() {
        for kind in ScheduleKind::ALL {
            if kind.is_sliced() {
                continue;
            }
            for (stages, microbatches) in [(1, 2), (2, 4), (4, 8)] {
                let Ok(program) = generate(kind, stages, microbatches) else { continue };
                let lowered =
                    lower(&program, LowerOptions { window: Window::One, early_head_weights: true });
                for format in [CsvFormat::ComputeOnly, CsvFormat::WithCommunication] {
                    for written in [write(&program, format), write(&lowered, format)] {
                        if program.placement.replica_count() > 1 {
                            assert_eq!(written, Err(WriteError::Replicas { kind, found: 2 }));
                            continue;
                        }
                        let written = written.expect("the model is there once");
                        let found =
                            read(&written).unwrap_or_else(|error| panic!("{kind}: {error}"));
                        assert_eq!(found.stages, passes_of(&program), "{kind} {format:?}");
                        assert_eq!(found.placement, program.placement, "{kind} {format:?}");
                        let name = generate(found.kind, stages, microbatches);
                        assert_eq!(name.map(|named| named.stages), Ok(passes_of(&program)));
                    }
                }
            }
        }
    }

    #[test]
    fn slices_are_not_theirs() {
        let size = PipelineSize::of(ScheduleKind::Seq1F1B, 2, 2);
        let check = |slice_count, expected: Option<&str>| {
            let size = PipelineSize { slice_count, ..size };
            let program = generate_sized(ScheduleKind::Seq1F1B, size).expect("legal");
            let written = write(&program, CsvFormat::ComputeOnly);
            let refused = WriteError::Slices { found: slice_count };
            assert_eq!(written, expected.map(str::to_owned).ok_or(refused));
        };
        check(1, Some("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
        check(2, None);
    }

    #[test]
    fn letters_are_theirs() {
        let check = |kind, format, expected: &str| {
            let program = generate(kind, 2, 2).expect("the size is legal");
            assert_eq!(write(&program, format).as_deref(), Ok(expected));
        };
        check(ScheduleKind::OneFOneB, CsvFormat::ComputeOnly, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
        check(
            ScheduleKind::ZbH1,
            CsvFormat::WithCommunication,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0W0,0RECV_B1,0I1,0W1\n\
             1RECV_F0,1RECV_F1,1F0,1I0,1SEND_B0,1F1,1I1,1SEND_B1,1W0,1W1\n",
        );
    }
}
