//! The memory of a program while it runs.
//!
//! The convention is the zero-bubble paper's (Qi et al., ICLR 2024, section 2.3): a pass is charged
//! for the activations it keeps from the start of F on. B exchanges them for the operands of W, at
//! its start, and W or BW frees all of them when it is done. DROP frees the memory that R allocates
//! again at its start; OFFLOAD frees everything, where it stands, and RELOAD allocates it again,
//! where it stands. Memory that a pass needs only while it runs is not counted.

use zbelastic_types::{SliceIndex, StageIndex};

use crate::op::{Compute, MemoryOp, Op};
use crate::pass_table::PassTable;
use crate::program::Program;

/// The memory that the passes of a chunk keep for one microbatch, in any one unit of memory; each
/// slice keeps an equal share of it. After W or BW nothing is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkMemory {
    /// From F to B or BW: the activations.
    pub after_forward: f64,
    /// From DROP to R: the tensors from which activations are recomputed.
    pub after_drop: f64,
    /// From B to WE or W: the operands of the weights' gradient.
    pub after_input_gradient: f64,
    /// From WE to W: the operands that WE left.
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
    let mut kept = PassTable::new(program, PassFootprint::default());
    // Divided once, so that shares add up.
    let slices = f64::from(program.slice_count);
    program.lists().map(|(_, ops)| peak_of_list(ops, chunks, &mut kept) / slices).collect()
}

/// The most that one stage keeps at once. The table is empty again when every pass has ended.
pub(crate) fn peak_of_list(
    ops: &[Op],
    chunks: &[ChunkMemory],
    kept_by_pass: &mut PassTable<PassFootprint>,
) -> f64 {
    let mut kept = 0.0;
    let mut peak = 0.0;
    for op in ops {
        let Some(pass) = op.pass() else { continue };
        let cell = kept_by_pass.get_mut(pass).expect("the program has the passes it names");
        let before = cell.resident();
        cell.apply(*op, chunks[pass.chunk.index()]);
        kept += cell.resident() - before;
        peak = f64::max(peak, kept);
    }
    peak
}

/// The memory that a pass keeps, and whether it is offloaded.
#[derive(Clone, Copy, Default)]
pub(crate) struct PassFootprint {
    amount: f64,
    is_offloaded: bool,
}

impl PassFootprint {
    pub(crate) fn resident(self) -> f64 {
        if self.is_offloaded { 0.0 } else { self.amount }
    }

    pub(crate) fn apply(&mut self, op: Op, chunk: ChunkMemory) {
        match op {
            Op::Compute(Compute::F | Compute::R, _) => self.amount = chunk.after_forward,
            Op::Compute(Compute::B, _) => self.amount = chunk.after_input_gradient,
            Op::Compute(Compute::WE, _) => self.amount = chunk.after_early_weights,
            Op::Compute(Compute::W | Compute::BW, _) => self.amount = 0.0,
            Op::Memory(MemoryOp::Drop, _) => self.amount = chunk.after_drop,
            Op::Memory(MemoryOp::Offload, _) => self.is_offloaded = true,
            Op::Memory(MemoryOp::Reload, _) => self.is_offloaded = false,
            Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => {}
        }
    }
}

/// How many passes of a chunk use memory at once: how many slots of an exact size to reserve. A
/// pass that is offloaded uses none. Memory that DROP frees is counted apart, because it is for the
/// caller to decide which part that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivePasses {
    /// From the start of F to the end of W or BW.
    pub slots: u32,
    /// From the start of F to the end of WE, or of W or BW where a pass has no WE: the slots of
    /// the operands that WE consumes.
    pub early_slots: u32,
    /// As `slots`, but none from DROP to R.
    pub recomputed_slots: u32,
    /// As `early_slots`, but none from DROP to R.
    pub recomputed_early_slots: u32,
    /// Passes that are offloaded.
    pub offloaded: u32,
}

impl LivePasses {
    fn elementwise_max(self, other: Self) -> Self {
        Self {
            slots: self.slots.max(other.slots),
            early_slots: self.early_slots.max(other.early_slots),
            recomputed_slots: self.recomputed_slots.max(other.recomputed_slots),
            recomputed_early_slots: self.recomputed_early_slots.max(other.recomputed_early_slots),
            offloaded: self.offloaded.max(other.offloaded),
        }
    }
}

/// The live passes of every chunk, in model order.
///
/// # Panics
/// If the program names a pass it does not have, or ends one that did not begin.
#[must_use]
pub fn live_passes(program: &Program) -> Vec<LivePasses> {
    live_passes_of(program, |_| true)
}

/// The same, counting passes over some slices only: those that are equally long share slots, and
/// with others they have none in common.
///
/// # Panics
/// As [`live_passes`].
#[must_use]
pub fn live_passes_of(
    program: &Program,
    is_counted: impl Fn(SliceIndex) -> bool,
) -> Vec<LivePasses> {
    count_lives(program, program.stages.iter().flatten(), is_counted)
}

/// Those of the chunks on one stage; chunks of other stages have none.
///
/// # Panics
/// As [`live_passes`], and if the program has no such stage.
#[must_use]
pub fn live_passes_on(
    program: &Program,
    stage: StageIndex,
    is_counted: impl Fn(SliceIndex) -> bool,
) -> Vec<LivePasses> {
    count_lives(program, program.ops(stage).iter(), is_counted)
}

fn count_lives<'a>(
    program: &Program,
    ops: impl Iterator<Item = &'a Op>,
    is_counted: impl Fn(SliceIndex) -> bool,
) -> Vec<LivePasses> {
    let chunk_count = program.placement.chunk_count() as usize;
    let mut most = vec![LivePasses::default(); chunk_count];
    let mut now = most.clone();
    let mut lives = PassTable::new(program, PassLiveness::default());
    for op in ops {
        let Some(pass) = op.pass().filter(|pass| is_counted(pass.slice)) else { continue };
        let life = lives.get_mut(pass).expect("the program has the passes it names");
        let now = &mut now[pass.chunk.index()];
        life.count(now, |alive| alive.checked_sub(1).expect("a pass begins before it ends"));
        life.apply(*op);
        life.count(now, |alive| alive + 1);
        let most = &mut most[pass.chunk.index()];
        *most = most.elementwise_max(*now);
    }
    most
}

/// Which memory a pass uses at one point of its stage's list.
#[derive(Clone, Copy, Default)]
struct PassLiveness {
    is_alive: bool,
    ran_early: bool,
    is_dropped: bool,
    is_offloaded: bool,
}

impl PassLiveness {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Compute(Compute::F, _) => self.is_alive = true,
            Op::Compute(Compute::WE, _) => self.ran_early = true,
            Op::Compute(Compute::W | Compute::BW, _) => {
                assert!(self.is_alive, "a pass begins before it ends");
                *self = Self::default();
            }
            Op::Compute(Compute::R, _) => self.is_dropped = false,
            Op::Memory(MemoryOp::Drop, _) => self.is_dropped = true,
            Op::Memory(MemoryOp::Offload, _) => self.is_offloaded = true,
            Op::Memory(MemoryOp::Reload, _) => self.is_offloaded = false,
            Op::Compute(Compute::B, _) | Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => {}
        }
    }

    /// Changes the count of every kind of slot that the pass uses.
    fn count(self, slots: &mut LivePasses, change: impl Fn(u32) -> u32) {
        if self.is_offloaded {
            slots.offloaded = change(slots.offloaded);
        }
        if !self.is_alive || self.is_offloaded {
            return;
        }
        slots.slots = change(slots.slots);
        if !self.ran_early {
            slots.early_slots = change(slots.early_slots);
        }
        if !self.is_dropped {
            slots.recomputed_slots = change(slots.recomputed_slots);
        }
        if !self.ran_early && !self.is_dropped {
            slots.recomputed_early_slots = change(slots.recomputed_early_slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkMemory, LivePasses, live_passes, live_passes_of, peak_memory};
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
            after_drop: 0.0,
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
            after_drop: 0.0,
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
            let expected: Vec<LivePasses> = slots
                .iter()
                .map(|slots| LivePasses {
                    slots: *slots,
                    early_slots: *slots,
                    recomputed_slots: *slots,
                    recomputed_early_slots: *slots,
                    offloaded: 0,
                })
                .collect();
            assert_eq!(live_passes(&program(kind)), expected, "{kind}");
        };
        check(ScheduleKind::GPipe, &[12; 4]);
        check(ScheduleKind::OneFOneB, &[4, 3, 2, 1]);
        check(ScheduleKind::ZbH1, &[4; 4]);
        check(ScheduleKind::ZbH2, &[7; 4]);
        let options = LowerOptions { window: Window::Zero, early_head_weights: true };
        let early = live_passes(&lower(&program(ScheduleKind::ZbH2), options));
        assert_eq!((early[2].slots, early[2].early_slots), (7, 7));
        assert_eq!((early[3].slots, early[3].early_slots), (7, 1));
    }

    #[test]
    fn slices_that_are_counted_alone_take_slots_of_their_own() {
        let program = program(ScheduleKind::Seq1F1B);
        let slots =
            |live: Vec<LivePasses>| -> Vec<u32> { live.iter().map(|live| live.slots).collect() };
        assert_eq!(program.slice_count, 2);
        assert_eq!(slots(live_passes(&program)), [5, 4, 3, 2]);
        // A microbatch's second slice goes forward later and backward sooner.
        assert_eq!(slots(live_passes_of(&program, |slice| slice.0 == 0)), [3, 3, 2, 2]);
        assert_eq!(slots(live_passes_of(&program, |slice| slice.0 == 1)), [2, 2, 1, 1]);
        assert_eq!(slots(live_passes_of(&program, |_| false)), [0; 4]);
    }

    const KEPT: &str = "program gpipe line stages 1 chunks 1 microbatches 3 window -
        stage 0: 0F0 0DROP0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0BW2 0RELOAD1 0BW1 0RELOAD0 0R0 0BW0";

    #[test]
    fn what_is_offloaded_or_dropped_takes_nothing() {
        let program: Program = KEPT.parse().expect("the text is a program");
        let chunk = ChunkMemory {
            after_forward: 100.0,
            after_drop: 20.0,
            after_input_gradient: 0.0,
            after_early_weights: 0.0,
        };
        assert_eq!(peak_memory(&program, &[chunk]), [100.0]);
        let live = live_passes(&program);
        let one = LivePasses {
            slots: 1,
            early_slots: 1,
            recomputed_slots: 1,
            recomputed_early_slots: 1,
            offloaded: 2,
        };
        assert_eq!(live, [one]);
        let dropped = KEPT.replace(" 0OFFLOAD0", "").replace(" 0RELOAD0", "");
        let program: Program = dropped.parse().expect("the text is a program");
        assert_eq!(peak_memory(&program, &[chunk]), [120.0]);
        let live = live_passes(&program);
        assert_eq!(live, [LivePasses { slots: 2, early_slots: 2, offloaded: 1, ..one }]);
        let kept = KEPT.replace(" 0OFFLOAD1", "").replace(" 0RELOAD1", "");
        let program: Program = kept.parse().expect("the text is a program");
        assert_eq!(peak_memory(&program, &[chunk]), [200.0]);
    }
}
