//! Passes on a grid of slots, and how they are pulled to the front of it.
//!
//! The schedules of Qi et al., *Pipeline parallelism with controllable memory* (NeurIPS 2024, arXiv
//! 2405.15362), begin as a pattern that repeats every six slots. Passes in the first and last
//! repetitions wait for nothing but their slot; pulled to the front, as far as operands and memory
//! allow, they take less time. The grid records what each stage keeps at the end of every slot, so
//! that a move which would keep more than before is found without going through all slots again.

use super::vee::Leg;
use super::{PipelineSize, compute};
use crate::op::{Compute, Op};

/// The passes of one microbatch on a stage. The loss is on the first stage, at the end of the leg
/// up: F goes down and up again, B comes down the leg up and then up the leg down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassStream {
    F(Leg),
    B(Leg),
    W(Leg),
}

impl PassStream {
    const COUNT: usize = 6;

    /// In the order in which a microbatch has them.
    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::F(Leg::Down),
        Self::F(Leg::Up),
        Self::B(Leg::Up),
        Self::B(Leg::Down),
        Self::W(Leg::Up),
        Self::W(Leg::Down),
    ];

    const fn leg(self) -> Leg {
        match self {
            Self::F(leg) | Self::B(leg) | Self::W(leg) => leg,
        }
    }

    pub(super) const fn number(self) -> usize {
        match self {
            Self::F(Leg::Down) => 0,
            Self::F(Leg::Up) => 1,
            Self::B(Leg::Up) => 2,
            Self::B(Leg::Down) => 3,
            Self::W(Leg::Up) => 4,
            Self::W(Leg::Down) => 5,
        }
    }
}

/// The slots of a stage's passes, by [`PassStream::number`] and microbatch; empty where a stream is
/// not placed.
pub(super) type StreamSlots = [Vec<usize>; PassStream::COUNT];

/// How many passes a stage keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KeptPasses {
    /// Passes of chunks, from F to W.
    passes: usize,
    /// Those of them whose B has run; counted only where W has no slot of its own.
    ready: usize,
}

/// Whether W has slots of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightPassMode {
    /// Where it was placed.
    Placed,
    /// In every slot that is free, as soon as there is one to run.
    FillGaps,
}

/// The slots of one stage.
pub(super) struct GridLane {
    pub(super) slots: StreamSlots,
    cells: Vec<Option<PassStream>>,
    kept: Vec<KeptPasses>,
    weights: WeightPassMode,
}

impl GridLane {
    pub(super) fn new(slots: StreamSlots, weights: WeightPassMode) -> Self {
        let end = slots.iter().flatten().max().map_or(0, |last| last + 1);
        let mut cells = vec![None; end];
        for stream in PassStream::ALL {
            for slot in &slots[stream.number()] {
                assert_eq!(cells[*slot].replace(stream), None, "one pass a slot");
            }
        }
        let mut lane = Self { slots, cells, kept: Vec::with_capacity(end), weights };
        let mut kept = KeptPasses::default();
        for cell in &lane.cells {
            kept = lane.after(kept, *cell);
            lane.kept.push(kept);
        }
        lane
    }

    fn after(&self, kept: KeptPasses, cell: Option<PassStream>) -> KeptPasses {
        let KeptPasses { passes, ready } = kept;
        match (cell, self.weights) {
            (Some(PassStream::F(_)), _) => KeptPasses { passes: passes + 1, ready },
            (Some(PassStream::W(_)), _) => KeptPasses { passes: passes - 1, ready },
            (Some(PassStream::B(_)), WeightPassMode::FillGaps) => {
                KeptPasses { passes, ready: ready + 1 }
            }
            (None, WeightPassMode::FillGaps) if ready > 0 => {
                KeptPasses { passes: passes - 1, ready: ready - 1 }
            }
            (Some(PassStream::B(_)), WeightPassMode::Placed) | (None, _) => kept,
        }
    }

    /// Most passes kept at once.
    pub(super) fn peak(&self) -> usize {
        self.kept.iter().map(|kept| kept.passes).max().unwrap_or(0)
    }

    /// Moves a pass into the first of the slots from `first` on, and before its own, that begins
    /// `width` free ones and does not make the stage keep more than `limit`. It stays if there is
    /// none.
    pub(super) fn pull(&mut self, pass: GridPass, first: usize, width: usize, limit: usize) {
        let from = pass.slot;
        for slot in first..from {
            let is_free = self.cells[slot..slot + width].iter().all(Option::is_none);
            if is_free && self.try_move(from, slot, limit) {
                self.slots[pass.stream.number()][pass.microbatch] = slot;
                return;
            }
        }
    }

    /// Whether the pass in slot `from` could go to slot `to`; if so, it is there now.
    fn try_move(&mut self, from: usize, to: usize, limit: usize) -> bool {
        self.cells[to] = self.cells[from].take();
        let mut kept =
            to.checked_sub(1).map_or_else(KeptPasses::default, |before| self.kept[before]);
        let mut changed = Vec::new();
        for slot in to..self.cells.len() {
            kept = self.after(kept, self.cells[slot]);
            if kept.passes > limit {
                self.cells[from] = self.cells[to].take();
                return false;
            }
            if slot >= from && kept == self.kept[slot] {
                break;
            }
            changed.push(kept);
        }
        self.kept[to..to + changed.len()].copy_from_slice(&changed);
        true
    }

    /// The slots of W that run in the gaps: of those that are ready, the leg up first.
    pub(super) fn gap_weights(&self) -> Vec<(usize, PassStream)> {
        let mut ready = [0_usize; 2];
        let mut filled = Vec::new();
        for slot in 0.. {
            match self.cells.get(slot) {
                Some(Some(PassStream::B(leg))) => ready[*leg as usize] += 1,
                Some(Some(PassStream::F(_) | PassStream::W(_))) => {}
                Some(None) | None => {
                    let leg = [Leg::Up, Leg::Down].into_iter().find(|leg| ready[*leg as usize] > 0);
                    if let Some(leg) = leg {
                        ready[leg as usize] -= 1;
                        filled.push((slot, PassStream::W(leg)));
                    } else if slot >= self.cells.len() {
                        break;
                    }
                }
            }
        }
        filled
    }

    /// The slot of the B that is number `count` on this stage, whatever its leg.
    pub(super) fn backward_slot(&self, count: usize) -> Option<usize> {
        let cells = self.cells.iter().enumerate();
        let backwards = cells.filter(|(_, cell)| matches!(cell, Some(PassStream::B(_))));
        backwards.map(|(slot, _)| slot).nth(count)
    }

    /// Every slot that has a pass, in order, with the stream of the pass.
    pub(super) fn streams(&self) -> impl Iterator<Item = (usize, PassStream)> + '_ {
        self.cells.iter().enumerate().filter_map(|(slot, cell)| Some((slot, (*cell)?)))
    }
}

/// A pass with its slot and its stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct GridPass {
    pub(super) slot: usize,
    pub(super) stage: usize,
    pub(super) stream: PassStream,
    pub(super) microbatch: usize,
}

/// After which pass a gradient is sent to the stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackwardMode {
    /// After B, and W runs later.
    Split,
    /// After W, which runs with B as one operation.
    Fused,
}

/// The slots of all stages.
pub(super) struct Grid {
    pub(super) lanes: Vec<GridLane>,
    backward: BackwardMode,
}

impl Grid {
    pub(super) fn new(
        slots: Vec<StreamSlots>,
        weights: WeightPassMode,
        backward: BackwardMode,
    ) -> Self {
        let lanes = slots.into_iter().map(|slots| GridLane::new(slots, weights)).collect();
        Self { lanes, backward }
    }

    /// Most passes that any stage keeps at once.
    pub(super) fn peak(&self) -> usize {
        self.lanes.iter().map(GridLane::peak).max().unwrap_or(0)
    }

    /// Every pass as it stands now, slot by slot and stage by stage.
    pub(super) fn passes(&self) -> Vec<GridPass> {
        let mut passes = Vec::new();
        for (stage, lane) in self.lanes.iter().enumerate() {
            for stream in PassStream::ALL {
                let slots = lane.slots[stream.number()].iter().enumerate();
                let pass = |(microbatch, slot): (usize, &usize)| GridPass {
                    slot: *slot,
                    stage,
                    stream,
                    microbatch,
                };
                passes.extend(slots.map(pass));
            }
        }
        passes.sort_unstable_by_key(|pass| (pass.slot, pass.stage));
        passes
    }

    /// The stage and the stream that a pass has its operand from; none for the model's input.
    pub(super) fn source(&self, stage: usize, stream: PassStream) -> Option<(usize, PassStream)> {
        let last = self.lanes.len() - 1;
        let sent_by = |leg| match self.backward {
            BackwardMode::Split => PassStream::B(leg),
            BackwardMode::Fused => PassStream::W(leg),
        };
        match stream {
            PassStream::F(Leg::Down) => Some((stage.checked_sub(1)?, stream)),
            PassStream::F(Leg::Up) if stage == last => Some((stage, PassStream::F(Leg::Down))),
            PassStream::F(Leg::Up) => Some((stage + 1, stream)),
            PassStream::B(Leg::Up) if stage == 0 => Some((stage, PassStream::F(Leg::Up))),
            PassStream::B(Leg::Up) => Some((stage - 1, sent_by(Leg::Up))),
            PassStream::B(Leg::Down) if stage == last => Some((stage, sent_by(Leg::Up))),
            PassStream::B(Leg::Down) => Some((stage + 1, sent_by(Leg::Down))),
            PassStream::W(leg) => Some((stage, PassStream::B(leg))),
        }
    }

    /// The first slot after a pass's operand and after the microbatch before it.
    pub(super) fn first_slot(&self, pass: GridPass) -> usize {
        let GridPass { stage, stream, microbatch, .. } = pass;
        let slots = |stage: usize, stream: PassStream| &self.lanes[stage].slots[stream.number()];
        let operand = self.source(stage, stream).map(|(at, of)| slots(at, of)[microbatch] + 1);
        let before = microbatch.checked_sub(1).map(|before| slots(stage, stream)[before] + 1);
        operand.max(before).unwrap_or(0)
    }
}

/// The operations of a stage that runs `streams` in this order, each of the kind that `pass_of`
/// returns.
pub(super) fn ops(
    size: PipelineSize,
    stage: u32,
    streams: impl Iterator<Item = PassStream>,
    pass_of: impl Fn(PassStream) -> Option<Compute>,
) -> Vec<Op> {
    let mut microbatches = [0_u32; PassStream::COUNT];
    let mut ops = Vec::new();
    for stream in streams {
        let microbatch = &mut microbatches[stream.number()];
        if let Some(pass) = pass_of(stream) {
            ops.push(compute(pass, stream.leg().chunk(size, stage), *microbatch));
        }
        *microbatch += 1;
    }
    ops
}
