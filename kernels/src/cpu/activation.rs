//! Elementwise stages: bias, residual, GELU, SwiGLU.

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch, is_line_aligned};
use super::math::{gelu, gelu_slope, silu, silu_slope};
use crate::backend::RowsShape;

dispatch!(
    /// `y += bias`.
    pub(super) fn finish_plain(bias: &[f32], y: &mut [f32]) = finish_plain_lanes
);
dispatch!(
    /// `y = skip + (y + bias)`.
    pub(super) fn finish_add(bias: Option<&[f32]>, skip: &[f32], y: &mut [f32])
        = finish_add_lanes
);
dispatch!(
    /// `before = y + bias; y = gelu(before)`; [`super::lanes::fence`] must follow the last row.
    pub(super) fn finish_gelu(bias: Option<&[f32]>, before: &mut [f32], y: &mut [f32])
        = finish_gelu_lanes
);
dispatch!(
    /// `before = gradient * gelu'(before)`.
    pub(super) fn apply_gelu_slope(gradient: &[f32], before: &mut [f32]) = gelu_slope_lanes
);

#[inline(always)]
fn finish_plain_lanes<L: Lanes>(bias: &[f32], y: &mut [f32]) {
    for at in (0..y.len()).step_by(LANES) {
        L::load_at(y, at, 0.0).add(L::load_at(bias, at, 0.0)).store_at(y, at);
    }
}

/// `y[at..] + bias[at..]`.
#[inline(always)]
fn biased<L: Lanes>(bias: Option<&[f32]>, y: &[f32], at: usize) -> L {
    let y = L::load_at(y, at, 0.0);
    match bias {
        Some(bias) => y.add(L::load_at(bias, at, 0.0)),
        None => y,
    }
}

#[inline(always)]
fn finish_add_lanes<L: Lanes>(bias: Option<&[f32]>, skip: &[f32], y: &mut [f32]) {
    for at in (0..y.len()).step_by(LANES) {
        L::load_at(skip, at, 0.0).add(biased(bias, y, at)).store_at(y, at);
    }
}

/// `before` is read in the backward pass and goes past the caches.
#[inline(always)]
fn finish_gelu_lanes<L: Lanes>(bias: Option<&[f32]>, before: &mut [f32], y: &mut [f32]) {
    assert_eq!(before.len(), y.len());
    let streams = is_line_aligned(before);
    for at in (0..y.len()).step_by(LANES) {
        let x: L = biased(bias, y, at);
        if streams && at + LANES <= before.len() {
            // SAFETY: the first of sixteen lies on a line, and there are sixteen.
            unsafe { x.stream(before[at..].as_mut_ptr()) };
        } else {
            x.store_at(before, at);
        }
        gelu(x).store_at(y, at);
    }
}

#[inline(always)]
fn gelu_slope_lanes<L: Lanes>(gradient: &[f32], before: &mut [f32]) {
    for at in (0..before.len()).step_by(LANES) {
        let slope = gelu_slope(L::load_at(before, at, 0.0));
        L::load_at(gradient, at, 0.0).mul(slope).store_at(before, at);
    }
}

pub(super) fn gelu_forward(cpu: &CpuBackend, rows: RowsShape, before: &[f32], h: &mut [f32]) {
    assert_eq!(before.len(), rows.count * rows.width);
    assert_eq!(h.len(), before.len());
    let share = cpu.rows_per_task(rows.count) * rows.width;
    let pieces = before.chunks(share).zip(h.chunks_mut(share));
    cpu.threads().for_each(pieces.collect(), |(before, h)| {
        gelu_rows(cpu.instruction_set(), before, h);
    });
}

dispatch!(fn gelu_rows(before: &[f32], h: &mut [f32]) = gelu_rows_lanes);

#[inline(always)]
fn gelu_rows_lanes<L: Lanes>(before: &[f32], h: &mut [f32]) {
    for at in (0..before.len()).step_by(LANES) {
        gelu(L::load_at(before, at, 0.0)).store_at(h, at);
    }
}

pub(super) fn swiglu_forward(cpu: &CpuBackend, rows: RowsShape, gate_up: &[f32], h: &mut [f32]) {
    assert_eq!(gate_up.len(), rows.count * 2 * rows.width);
    assert_eq!(h.len(), rows.count * rows.width);
    let share = cpu.rows_per_task(rows.count);
    let pieces = gate_up.chunks(share * 2 * rows.width).zip(h.chunks_mut(share * rows.width));
    cpu.threads().for_each(pieces.collect(), |(gate_up, h)| {
        swiglu_rows(cpu.instruction_set(), rows.width, gate_up, h);
    });
}

dispatch!(fn swiglu_rows(width: usize, gate_up: &[f32], h: &mut [f32]) = swiglu_rows_lanes);

#[inline(always)]
fn swiglu_rows_lanes<L: Lanes>(width: usize, gate_up: &[f32], h: &mut [f32]) {
    for (gate_up, h) in gate_up.chunks_exact(2 * width).zip(h.chunks_exact_mut(width)) {
        let (gate, up) = gate_up.split_at(width);
        for at in (0..width).step_by(LANES) {
            let gate = L::load_at(gate, at, 0.0);
            silu(gate).mul(L::load_at(up, at, 0.0)).store_at(h, at);
        }
    }
}

pub(super) fn swiglu_backward(
    cpu: &CpuBackend,
    rows: RowsShape,
    gradient: &[f32],
    gate_up_then_gradient: &mut [f32],
) {
    assert_eq!(gradient.len(), rows.count * rows.width);
    assert_eq!(gate_up_then_gradient.len(), rows.count * 2 * rows.width);
    let share = cpu.rows_per_task(rows.count);
    let pieces = gradient
        .chunks(share * rows.width)
        .zip(gate_up_then_gradient.chunks_mut(share * 2 * rows.width));
    cpu.threads().for_each(pieces.collect(), |(gradient, gate_up)| {
        swiglu_slope_rows(cpu.instruction_set(), rows.width, gradient, gate_up);
    });
}

dispatch!(
    fn swiglu_slope_rows(width: usize, gradient: &[f32], gate_up: &mut [f32])
        = swiglu_slope_rows_lanes
);

#[inline(always)]
fn swiglu_slope_rows_lanes<L: Lanes>(width: usize, gradient: &[f32], gate_up: &mut [f32]) {
    for (gradient, gate_up) in gradient.chunks_exact(width).zip(gate_up.chunks_exact_mut(2 * width))
    {
        let (gate, up) = gate_up.split_at_mut(width);
        for at in (0..width).step_by(LANES) {
            let g = L::load_at(gate, at, 0.0);
            let u = L::load_at(up, at, 0.0);
            let dh = L::load_at(gradient, at, 0.0);
            dh.mul(u).mul(silu_slope(g)).store_at(gate, at);
            dh.mul(silu(g)).store_at(up, at);
        }
    }
}
