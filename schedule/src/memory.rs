//! What a program keeps in memory while it runs.
//!
//! The convention is the zero-bubble paper's (Qi et al., ICLR 2024, section 2.3): a pass is charged
//! for what it keeps from the start of F on. B exchanges that for what W needs, at its start, and W
//! or BW gives all of it back when it is done. What a pass needs only while it runs is not counted.

use crate::op::{Compute, Op};
use crate::pass_table::PassTable;
use crate::program::Program;

/// What the passes of a chunk keep for one microbatch, in any one unit of memory; each slice keeps
/// an equal share of it. After W or BW nothing is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkMemory {
    /// From F to B or BW: the activations.
    pub after_forward: f64,
    /// From B to WE or W: the operands of the weights' gradient.
    pub after_input_gradient: f64,
    /// From WE to W: what WE left of them.
    pub after_early_weights: f64,
}

/// The most that each stage keeps at once, in the unit of `chunks`, which has one entry a chunk in
/// model order.
///
/// # Panics
/// If the program names a pass it does not have, or if `chunks` does not name every chunk.
#[must_use]
pub fn peak_memory(program: &Program, chunks: &[ChunkMemory]) -> Vec<f64> {
    assert_eq!(chunks.len(), program.placement.chunk_count() as usize, "one entry a chunk");
    let mut kept_by_pass = PassTable::new(program, 0.0);
    let slices = f64::from(program.slice_count);
    let mut peak_of_stage = |ops: &[Op]| {
        let (mut kept, mut peak) = (0.0, 0.0);
        for op in ops {
            let Op::Compute(compute, pass) = *op else { continue };
            let chunk = chunks[pass.chunk.index()];
            let after = match compute {
                Compute::F => chunk.after_forward,
                Compute::B => chunk.after_input_gradient,
                Compute::WE => chunk.after_early_weights,
                Compute::W | Compute::BW => 0.0,
            };
            let cell = kept_by_pass.get_mut(pass).expect("the program has the passes it names");
            kept += after - *cell;
            *cell = after;
            peak = f64::max(peak, kept);
        }
        // Divided once, so that shares add up.
        peak / slices
    };
    program.lists().map(|(_, ops)| peak_of_stage(ops)).collect()
}

/// How many passes of a chunk are alive at once: how many slots of an exact size to set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassesLive {
    /// From the start of F to the end of W or BW.
    pub slots: u32,
    /// From the start of F to the end of WE, or of W or BW where a pass has no WE: the slots of
    /// what WE consumes.
    pub early_slots: u32,
}

/// The live passes of every chunk, in model order.
///
/// # Panics
/// If the program names a pass it does not have, or ends one that did not begin.
#[must_use]
pub fn live_passes(program: &Program) -> Vec<PassesLive> {
    let chunk_count = program.placement.chunk_count() as usize;
    let mut most = vec![PassesLive::default(); chunk_count];
    let mut now = most.clone();
    let mut ran_early = PassTable::new(program, false);
    for op in program.lists().flat_map(|(_, ops)| ops) {
        let Op::Compute(compute, pass) = *op else { continue };
        let ran_early = ran_early.get_mut(pass).expect("the program has the passes it names");
        let now = &mut now[pass.chunk.index()];
        match compute {
            Compute::F => {
                now.slots += 1;
                now.early_slots += 1;
            }
            Compute::B => {}
            Compute::WE => {
                end_one(&mut now.early_slots);
                *ran_early = true;
            }
            Compute::W | Compute::BW => {
                end_one(&mut now.slots);
                if !*ran_early {
                    end_one(&mut now.early_slots);
                }
            }
        }
        let most = &mut most[pass.chunk.index()];
        most.slots = most.slots.max(now.slots);
        most.early_slots = most.early_slots.max(now.early_slots);
    }
    most
}

fn end_one(alive: &mut u32) {
    *alive = alive.checked_sub(1).expect("a pass begins before it ends");
}

#[cfg(test)]
mod tests {
    use super::{ChunkMemory, PassesLive, live_passes, peak_memory};
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::{Program, Window};

    const STAGES: u32 = 4;
    const MICROBATCHES: u32 = 12;

    fn program(kind: ScheduleKind) -> Program {
        generate(kind, STAGES, MICROBATCHES).expect("the size is legal")
    }

    /// A stage keeps 100 after F and 30 after B, divided among its chunks.
    fn check_peaks(kind: ScheduleKind, expected: [f64; STAGES as usize]) {
        let program = program(kind);
        let share = program.placement.chunk_share();
        let chunk = ChunkMemory {
            after_forward: 100.0 * share,
            after_input_gradient: 30.0 * share,
            after_early_weights: 10.0 * share,
        };
        let chunks = vec![chunk; program.placement.chunk_count() as usize];
        assert_eq!(peak_memory(&program, &chunks), expected, "{kind}");
    }

    #[test]
    fn peaks_are_those_of_the_papers() {
        check_peaks(ScheduleKind::GPipe, [1200.0; 4]);
        check_peaks(ScheduleKind::OneFOneB, [400.0, 300.0, 200.0, 100.0]);
        check_peaks(ScheduleKind::Interleaved, [550.0, 450.0, 350.0, 250.0]);
        check_peaks(ScheduleKind::ZbH1, [400.0, 330.0, 260.0, 190.0]);
        check_peaks(ScheduleKind::ZbH2, [700.0, 560.0, 420.0, 280.0]);
        check_peaks(ScheduleKind::ZbV, [400.0; 4]);
        check_peaks(ScheduleKind::Gems, [100.0; 4]);
        check_peaks(ScheduleKind::Chimera, [300.0, 400.0, 400.0, 300.0]);
    }

    #[test]
    fn early_weights_give_back_what_they_consume() {
        let chunk = |after_input_gradient, after_early_weights| ChunkMemory {
            after_forward: 100.0,
            after_input_gradient,
            after_early_weights,
        };
        let chunks = [chunk(30.0, 30.0), chunk(30.0, 30.0), chunk(30.0, 30.0), chunk(90.0, 10.0)];
        let peak = |early_head_weights| {
            let options = LowerOptions { window: Window::One, early_head_weights };
            peak_memory(&lower(&program(ScheduleKind::ZbH1), options), &chunks)[3]
        };
        // The last stage keeps three microbatches whose W is held back, and one in flight.
        assert_eq!(peak(false), 3.0 * 90.0 + 100.0);
        assert_eq!(peak(true), 3.0 * 10.0 + 100.0);
    }

    #[test]
    fn slots_cover_the_passes_alive_at_once() {
        let check = |kind, slots: &[u32]| {
            let expected: Vec<PassesLive> = slots
                .iter()
                .map(|slots| PassesLive { slots: *slots, early_slots: *slots })
                .collect();
            assert_eq!(live_passes(&program(kind)), expected, "{kind}");
        };
        check(ScheduleKind::GPipe, &[12; 4]);
        check(ScheduleKind::OneFOneB, &[4, 3, 2, 1]);
        check(ScheduleKind::ZbH1, &[4; 4]);
        check(ScheduleKind::ZbH2, &[7; 4]);
        let options = LowerOptions { window: Window::Zero, early_head_weights: true };
        let early = live_passes(&lower(&program(ScheduleKind::ZbH2), options));
        assert_eq!(early[2], PassesLive { slots: 7, early_slots: 7 });
        assert_eq!(early[3], PassesLive { slots: 7, early_slots: 1 });
    }
}
