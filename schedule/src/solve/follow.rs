//! An order that somebody else made, on a board: each pass as early as it can.

use super::board::Board;
use super::pipeline::Pipeline;
use crate::op::{Compute, Op, Pass};
use crate::program::Program;

/// The order of a program whose chunks run microbatches in turn; `None` if a stage's memory does not
/// hold it, or it stops.
pub(super) fn follow<'a>(pipeline: &'a Pipeline<'a>, program: &Program) -> Option<Board<'a>> {
    let mut board = Board::new(pipeline);
    let mut next = vec![0_usize; pipeline.stage_count()];
    let mut due: Vec<usize> = (0..pipeline.stage_count()).rev().collect();
    while let Some(stage) = due.pop() {
        while let Some(Op::Compute(compute, Pass { chunk, .. })) =
            program.stages[stage].get(next[stage])
        {
            let chunk = chunk.index();
            if !has_come(&board, *compute, chunk) {
                break;
            }
            if *compute == Compute::F && !board.has_room(chunk, 0.0) {
                return None;
            }
            board.put(chunk, *compute);
            next[stage] += 1;
            match compute {
                Compute::F if chunk + 1 < pipeline.chunk_count() => {
                    due.push(pipeline.stage_of(chunk + 1));
                }
                Compute::B if chunk > 0 => due.push(pipeline.stage_of(chunk - 1)),
                Compute::F | Compute::B | Compute::W | Compute::BW | Compute::WE => {}
            }
        }
    }
    let is_done = |(next, list): (&usize, &Vec<Op>)| *next == list.len();
    next.iter().zip(&program.stages).all(is_done).then_some(board)
}

fn has_come(board: &Board<'_>, compute: Compute, chunk: usize) -> bool {
    match compute {
        Compute::F => board.arrival_f(chunk) < f64::INFINITY,
        Compute::B => board.arrival_b(chunk) < f64::INFINITY,
        Compute::W => board.pending(chunk) > 0,
        Compute::BW | Compute::WE => false,
    }
}
