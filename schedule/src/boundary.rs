//! What crosses the boundary between two chunks, and how: follows from the placement alone.

use zbelastic_types::ChunkIndex;

use crate::op::{Compute, Flow, Op, Pass, Transfer};
use crate::placement::Placement;

/// The flow a pass takes part in: it takes its operand from it and adds its result to it.
const fn flow_of(compute: Compute) -> Option<Flow> {
    match compute {
        Compute::F => Some(Flow::Forward),
        Compute::B | Compute::BW => Some(Flow::Backward),
        Compute::W | Compute::WE | Compute::R => None,
    }
}

/// The chunk that `chunk` passes its result on to.
pub(crate) fn chunk_after(
    placement: &Placement,
    chunk: ChunkIndex,
    flow: Flow,
) -> Option<ChunkIndex> {
    let after = match flow {
        Flow::Forward => chunk.0.checked_add(1),
        Flow::Backward => chunk.0.checked_sub(1),
    };
    after.map(ChunkIndex).filter(|after| *after <= placement.last_chunk())
}

/// The chunk that `chunk` has its operand from.
pub(crate) fn chunk_before(
    placement: &Placement,
    chunk: ChunkIndex,
    flow: Flow,
) -> Option<ChunkIndex> {
    let reverse = match flow {
        Flow::Forward => Flow::Backward,
        Flow::Backward => Flow::Forward,
    };
    chunk_after(placement, chunk, reverse)
}

/// The operation that brings a pass its operand, if that comes from another stage.
pub(crate) fn receive_before(placement: &Placement, op: Op) -> Option<Op> {
    let (flow, pass) = boundary_of(op)?;
    let before = chunk_before(placement, pass.chunk, flow)?;
    let is_here = placement.stage_of(before) == placement.stage_of(pass.chunk);
    (!is_here).then_some(Op::Transfer(Transfer::Receive, flow, pass))
}

/// The operation that passes a result on, if a chunk waits for it.
pub(crate) fn transfer_after(placement: &Placement, op: Op) -> Option<Op> {
    let (flow, pass) = boundary_of(op)?;
    let after = chunk_after(placement, pass.chunk, flow)?;
    let is_here = placement.stage_of(after) == placement.stage_of(pass.chunk);
    let transfer = if is_here { Transfer::Local } else { Transfer::Send };
    Some(Op::Transfer(transfer, flow, pass))
}

fn boundary_of(op: Op) -> Option<(Flow, Pass)> {
    match op {
        Op::Compute(compute, pass) => flow_of(compute).map(|flow| (flow, pass)),
        Op::Transfer(..) | Op::Update(_) | Op::Memory(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{receive_before, transfer_after};
    use crate::placement::Placement;

    fn check(placement: &Placement, op: &str, expected: (&str, &str)) {
        let op = op.parse().expect("the word is an operation");
        let text = |op: Option<crate::op::Op>| op.map_or(String::new(), |op| op.to_string());
        let (before, after) = (receive_before(placement, op), transfer_after(placement, op));
        assert_eq!((text(before), text(after)), (expected.0.to_owned(), expected.1.to_owned()));
    }

    #[test]
    fn boundaries_of_a_line() {
        let line = Placement::line(3);
        check(&line, "0F5", ("", "0SEND_F5"));
        check(&line, "1F5", ("1RECV_F5", "1SEND_F5"));
        check(&line, "2F5", ("2RECV_F5", ""));
        check(&line, "2B5", ("", "2SEND_B5"));
        check(&line, "1BW5", ("1RECV_B5", "1SEND_B5"));
        check(&line, "0B5", ("0RECV_B5", ""));
        check(&line, "1W5", ("", ""));
        check(&line, "2WE5", ("", ""));
        check(&line, "4294967295F5", ("", ""));
    }

    #[test]
    fn a_vee_turns_on_its_last_stage() {
        let vee = Placement::vee(2);
        check(&vee, "0F5", ("", "0SEND_F5"));
        check(&vee, "1F5", ("1RECV_F5", "1LOCAL_F5"));
        check(&vee, "2F5", ("", "2SEND_F5"));
        check(&vee, "2B5", ("2RECV_B5", "2LOCAL_B5"));
        check(&vee, "1B5", ("", "1SEND_B5"));
    }
}
