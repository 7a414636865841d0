//! Linear layers: products with their epilogues fused in.

use std::ops::Range;

use super::activation::{apply_gelu_slope, finish_add, finish_gelu, finish_plain};
use super::backend::CpuBackend;
use super::buffer::CpuBuffer;
use super::lanes::fence;
use super::matmul::{
    PackedMatrix, PrefetchRange, RowProduct, SumStorage, multiply_rows, with_scratch,
};
use crate::backend::{BackwardEpilogue, ForwardEpilogue};

/// What one task of a forward product may touch.
struct ForwardTask<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    finish: ForwardFinish<'a>,
}

enum ForwardFinish<'a> {
    Plain,
    Gelu { before: &'a mut [f32] },
    Add { skip: &'a [f32] },
}

pub(super) fn forward(
    cpu: &CpuBackend,
    rows: usize,
    x: &[f32],
    matrix: &PackedMatrix,
    bias: Option<&[f32]>,
    epilogue: ForwardEpilogue<'_, CpuBuffer>,
    y: &mut [f32],
) {
    let inputs = matrix.depth();
    let outputs = matrix.columns();
    assert_eq!(x.len(), rows * inputs);
    assert_eq!(y.len(), rows * outputs);
    let share = cpu.rows_per_task(rows);
    let pieces = x.chunks(share * inputs).zip(y.chunks_mut(share * outputs));
    let tasks: Vec<_> = match epilogue {
        ForwardEpilogue::Plain => {
            pieces.map(|(x, y)| ForwardTask { x, y, finish: ForwardFinish::Plain }).collect()
        }
        ForwardEpilogue::Gelu { before } => {
            let before = before.as_mut_slice();
            assert_eq!(before.len(), rows * outputs);
            let befores = before.chunks_mut(share * outputs);
            let with_before =
                |((x, y), before)| ForwardTask { x, y, finish: ForwardFinish::Gelu { before } };
            pieces.zip(befores).map(with_before).collect()
        }
        ForwardEpilogue::Add { skip } => {
            assert_eq!(skip.as_slice().len(), rows * outputs);
            let skips = skip.as_slice().chunks(share * outputs);
            let with_skip =
                |((x, y), skip)| ForwardTask { x, y, finish: ForwardFinish::Add { skip } };
            pieces.zip(skips).map(with_skip).collect()
        }
    };
    cpu.threads().for_each(tasks, |task| forward_task(cpu, matrix, bias, task));
}

fn forward_task(
    cpu: &CpuBackend,
    matrix: &PackedMatrix,
    bias: Option<&[f32]>,
    task: ForwardTask<'_>,
) {
    let ForwardTask { x, y, mut finish } = task;
    let inputs = matrix.depth();
    let outputs = matrix.columns();
    let set = cpu.instruction_set();
    let finish_reads = match &finish {
        ForwardFinish::Plain | ForwardFinish::Gelu { .. } => PrefetchRange::NOTHING,
        ForwardFinish::Add { skip } => PrefetchRange::rows(skip, outputs),
    };
    let finish_row = |row: usize, columns: &Range<usize>, y: &mut [f32]| {
        let bias = bias.map(|bias| &bias[columns.clone()]);
        let range = row * outputs + columns.start..row * outputs + columns.end;
        match &mut finish {
            ForwardFinish::Plain => {
                if let Some(bias) = bias {
                    finish_plain(set, bias, y);
                }
            }
            ForwardFinish::Gelu { before } => finish_gelu(set, bias, &mut before[range], y),
            ForwardFinish::Add { skip } => finish_add(set, bias, &skip[range], y),
        }
    };
    with_scratch(|scratch| {
        let factors =
            RowProduct { set, row_count: x.len() / inputs, left: x, matrix, finish_reads };
        let strip = scratch.strips.as_mut_slice();
        multiply_rows(factors, strip, SumStorage::Result(y), finish_row);
    });
    fence();
}

pub(super) fn backward_input(
    cpu: &CpuBackend,
    rows: usize,
    gradient: &[f32],
    matrix: &PackedMatrix,
    epilogue: BackwardEpilogue<'_, CpuBuffer>,
) {
    let outputs = matrix.depth();
    let inputs = matrix.columns();
    assert_eq!(gradient.len(), rows * outputs);
    let (result, through_gelu) = match epilogue {
        BackwardEpilogue::Plain { gradient } => (gradient, false),
        BackwardEpilogue::Gelu { before_then_gradient } => (before_then_gradient, true),
    };
    let result = result.as_mut_slice();
    assert_eq!(result.len(), rows * inputs);
    let share = cpu.rows_per_task(rows);
    let tasks: Vec<_> =
        gradient.chunks(share * outputs).zip(result.chunks_mut(share * inputs)).collect();
    cpu.threads().for_each(tasks, |(gradient, result)| {
        if through_gelu {
            backward_task_gelu(cpu, gradient, matrix, result);
        } else {
            backward_task(cpu, gradient, matrix, result);
        }
    });
}

fn backward_task(cpu: &CpuBackend, gradient: &[f32], matrix: &PackedMatrix, result: &mut [f32]) {
    let outputs = matrix.depth();
    with_scratch(|scratch| {
        let row_count = gradient.len() / outputs;
        let set = cpu.instruction_set();
        let finish_reads = PrefetchRange::NOTHING;
        let factors = RowProduct { set, row_count, left: gradient, matrix, finish_reads };
        let strip = scratch.strips.as_mut_slice();
        multiply_rows(factors, strip, SumStorage::Result(result), |_, _, _| {});
    });
}

/// The sums pass through scratch memory, because GELU's input lies where the result belongs.
fn backward_task_gelu(
    cpu: &CpuBackend,
    gradient: &[f32],
    matrix: &PackedMatrix,
    before_then_gradient: &mut [f32],
) {
    let outputs = matrix.depth();
    let inputs = matrix.columns();
    let set = cpu.instruction_set();
    let finish_reads = PrefetchRange::rows(before_then_gradient, inputs);
    with_scratch(|scratch| {
        let finish = |row: usize, columns: &Range<usize>, sums: &mut [f32]| {
            let before = &mut before_then_gradient[row * inputs..][columns.clone()];
            apply_gelu_slope(set, sums, before);
        };
        let row_count = gradient.len() / outputs;
        let factors = RowProduct { set, row_count, left: gradient, matrix, finish_reads };
        let storage = SumStorage::Passing(scratch.passing.as_mut_slice());
        multiply_rows(factors, scratch.strips.as_mut_slice(), storage, finish);
    });
}
