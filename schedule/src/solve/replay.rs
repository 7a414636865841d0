//! An order that was made elsewhere, placed again: each pass as early as it can.

use super::order_builder::{OrderBuilder, PlacedPass};
use super::pipeline::PipelineIndex;
use crate::op::{Compute, Op};

/// The orders of stages that have arithmetic only, and whose chunks run microbatches in turn. Their
/// BW becomes B and W, one after the other.
pub(super) fn orders_of(stages: &[Vec<Op>]) -> Vec<Vec<PlacedPass>> {
    let placed_passes = |op: &Op| {
        let (computes, pass): (&[Compute], _) = match op {
            Op::Compute(Compute::BW, pass) => (&[Compute::B, Compute::W], pass),
            Op::Compute(Compute::F, pass) => (&[Compute::F], pass),
            Op::Compute(Compute::B, pass) => (&[Compute::B], pass),
            Op::Compute(Compute::W, pass) => (&[Compute::W], pass),
            Op::Compute(Compute::WE | Compute::R, _)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => {
                return Vec::new();
            }
        };
        let placed = |compute: &Compute| PlacedPass { compute: *compute, chunk: pass.chunk.0 };
        computes.iter().map(placed).collect()
    };
    stages.iter().map(|ops| ops.iter().flat_map(placed_passes).collect()).collect()
}

/// The builder with the given orders; `None` if a stage's memory does not hold its order, or if the
/// stages deadlock.
pub(super) fn replay<'a>(
    pipeline: &'a PipelineIndex<'a>,
    orders: &[Vec<PlacedPass>],
) -> Option<OrderBuilder<'a>> {
    let mut builder = OrderBuilder::new(pipeline);
    let mut next = vec![0_usize; pipeline.stage_count()];
    let mut awake: Vec<usize> = (0..pipeline.stage_count()).rev().collect();
    while let Some(stage) = awake.pop() {
        while let Some(PlacedPass { compute, chunk }) = orders[stage].get(next[stage]).copied() {
            let chunk = chunk as usize;
            if !has_arrived(&builder, compute, chunk) {
                break;
            }
            if compute == Compute::F && !builder.has_memory(chunk, 0.0) {
                return None;
            }
            builder.place(chunk, compute);
            next[stage] += 1;
            match compute {
                Compute::F if chunk + 1 < pipeline.chunk_count() => {
                    awake.push(pipeline.stage_of(chunk + 1));
                }
                Compute::B if chunk > 0 => awake.push(pipeline.stage_of(chunk - 1)),
                Compute::F | Compute::B | Compute::W | Compute::BW | Compute::WE | Compute::R => {}
            }
        }
    }
    let is_done = |(next, order): (&usize, &Vec<PlacedPass>)| *next == order.len();
    next.iter().zip(orders).all(is_done).then_some(builder)
}

fn has_arrived(builder: &OrderBuilder<'_>, compute: Compute, chunk: usize) -> bool {
    match compute {
        Compute::F => builder.arrival_f(chunk) < f64::INFINITY,
        Compute::B => builder.arrival_b(chunk) < f64::INFINITY,
        Compute::W => builder.pending(chunk) > 0,
        Compute::BW | Compute::WE | Compute::R => false,
    }
}
