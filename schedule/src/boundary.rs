//! What crosses the boundary between two chunks, and how: follows from the placement alone.

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

/// The operation that brings a pass its operand, if that comes from another stage.
pub(crate) fn receive_before(placement: &Placement, op: Op) -> Option<Op> {
    let (flow, pass) = boundary_of(op)?;
    let before = placement.chunk_before(pass.chunk, flow)?;
    let is_here = placement.stage_of(before) == placement.stage_of(pass.chunk);
    (!is_here).then_some(Op::Transfer(Transfer::Receive, flow, pass))
}

/// The operation that passes a result on, if a chunk waits for it.
pub(crate) fn transfer_after(placement: &Placement, op: Op) -> Option<Op> {
    let (flow, pass) = boundary_of(op)?;
    let after = placement.chunk_after(pass.chunk, flow)?;
    let is_here = placement.stage_of(after) == placement.stage_of(pass.chunk);
    let transfer = if is_here { Transfer::Local } else { Transfer::Send };
    Some(Op::Transfer(transfer, flow, pass))
}

fn boundary_of(op: Op) -> Option<(Flow, Pass)> {
    match op {
        Op::Compute(compute, pass) => flow_of(compute).map(|flow| (flow, pass)),
        Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) | Op::Memory(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{receive_before, transfer_after};
    use crate::placement::Placement;

    fn check(placement: &Placement, op: &str, expected: (&str, &str)) {
        let op = op.parse().expect("the word is an operation");
        let text = |op: Option<crate::op::Op>| op.map_or(String::new(), |op| op.to_string());
        let before = receive_before(placement, op);
        let after = transfer_after(placement, op);
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
    fn replicas_end_where_the_model_ends() {
        let cross = Placement::cross(2);
        check(&cross, "0F4", ("", "0SEND_F4"));
        check(&cross, "1F4", ("1RECV_F4", ""));
        check(&cross, "2F5", ("", "2SEND_F5"));
        check(&cross, "3F5", ("3RECV_F5", ""));
        check(&cross, "3BW5", ("", "3SEND_B5"));
        check(&cross, "2BW5", ("2RECV_B5", ""));
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
