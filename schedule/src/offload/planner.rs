//! Copies of one stage, placed into its list.
//!
//! A position is the place before the operation of that number. OFFLOAD stands at the first
//! position by which its copy is done, RELOAD at the last one from which it is done in time; on a
//! lane that carries one copy at a time the order of the list is that of the copies.

use zbelastic_types::StageIndex;

use super::timetable::Timetable;
use crate::cost::{CopyLanes, Costs};
use crate::op::{Compute, MemoryOp, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;

/// Most times to spare that are tried for a stage.
const SPARES_MAX: usize = 16;
/// Round trips that are tried; the authors require three (issue 70 of their repository).
const ROUND_TRIPS: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0];

/// A pass that could be offloaded and reloaded.
struct OffloadCandidate {
    pass: Pass,
    /// Which of its stage's chunks it is, from 0.
    chunk_position: u32,
    /// The position of the operation that makes what it keeps, and when that ends.
    from_position: usize,
    ready: f64,
    /// The position of the operation that needs it again, and when that starts.
    to_position: usize,
    due: f64,
    offload: f64,
    reload: f64,
}

impl OffloadCandidate {
    /// The time that is left if it is offloaded at once and reloaded at the last moment.
    fn spare(&self) -> f64 {
        self.due - self.ready - self.offload - self.reload
    }
}

/// Which passes may be offloaded, and when.
#[derive(Clone, Copy)]
pub(super) struct OffloadRule {
    /// How many chunks of the stage may be offloaded, from the first one on.
    pub(super) chunk_count: u32,
    /// The time to spare that a candidate must have.
    pub(super) spare_min: f64,
    /// The share of a copy's time that is planned with.
    pub(super) copy_time_share: f64,
}

/// A stage's list with its times, and every pass of it that could be offloaded.
pub(super) struct StageOffloads<'a> {
    ops: &'a [Op],
    starts: &'a [f64],
    ends: &'a [f64],
    lanes: CopyLanes,
    /// In the order in which they are ready.
    candidates: Vec<OffloadCandidate>,
    /// Times closer than this are equal.
    tolerance: f64,
}

impl<'a> StageOffloads<'a> {
    pub(super) fn new(
        program: &'a Program,
        stage: StageIndex,
        timetable: &'a Timetable,
        costs: &Costs,
    ) -> Self {
        let ops = program.ops(stage);
        let starts = &timetable.starts[stage.index()];
        let ends = &timetable.ends[stage.index()];
        let end = ends.last().copied().unwrap_or(0.0);
        let mut made_at = PassTable::new(program, 0_usize);
        let mut candidates = Vec::new();
        for (to_position, op) in ops.iter().enumerate() {
            let Some((pass, cell)) = op.pass().and_then(|p| Some((p, made_at.get_mut(p)?))) else {
                continue;
            };
            match op {
                Op::Compute(Compute::F, _) | Op::Memory(MemoryOp::Drop, _) => *cell = to_position,
                Op::Compute(Compute::R | Compute::B | Compute::BW, _) => {
                    let is_first =
                        candidates.last().is_none_or(|last: &OffloadCandidate| last.pass != pass);
                    let from_position = *cell;
                    let chunk_position =
                        program.placement.chunks_of(stage).position(|c| c == pass.chunk);
                    let chunk_position = chunk_position
                        .and_then(|chunk_position| u32::try_from(chunk_position).ok())
                        .unwrap_or(u32::MAX);
                    let times = costs.memory_times(pass.chunk);
                    if is_first {
                        candidates.push(OffloadCandidate {
                            pass,
                            chunk_position,
                            from_position,
                            ready: ends[from_position],
                            to_position,
                            due: starts[to_position],
                            offload: times.offload,
                            reload: times.reload,
                        });
                    }
                }
                Op::Compute(Compute::W | Compute::WE, _)
                | Op::Memory(MemoryOp::Offload | MemoryOp::Reload, _)
                | Op::Transfer(..)
                | Op::Update(_)
                | Op::Reduce(..) => {}
            }
        }
        candidates.sort_by_key(|candidate| candidate.from_position);
        Self { ops, starts, ends, lanes: costs.memory.lanes, candidates, tolerance: 1e-9 * end }
    }

    /// The times to spare that are tried if the first `chunk_count` chunks may be offloaded: none,
    /// shares and multiples of a round trip, because a lane that is not free takes from them, and
    /// those of the candidates, if they are many [`SPARES_MAX`] of them.
    pub(super) fn spares(&self, chunk_count: u32) -> Vec<f64> {
        let candidates = || {
            self.candidates.iter().filter(|candidate| {
                candidate.chunk_position < chunk_count
                    && candidate.to_position > candidate.from_position + 1
            })
        };
        let mut found: Vec<f64> =
            candidates().map(|candidate| candidate.spare().max(0.0)).collect();
        found.sort_by(f64::total_cmp);
        found.dedup_by(|a, b| *a - *b <= self.tolerance);
        let last = found.len().saturating_sub(1);
        if last >= SPARES_MAX {
            found = (0..SPARES_MAX).map(|i| found[i * last / (SPARES_MAX - 1)]).collect();
        }
        let round_trip =
            candidates().map(|candidate| candidate.offload + candidate.reload).fold(0.0, f64::max);
        found.extend(ROUND_TRIPS.map(|share| share * round_trip));
        found.sort_by(f64::total_cmp);
        found.dedup();
        found
    }

    /// The list with copies; `None` if a pass cannot be reloaded in time, which rounding alone can
    /// bring about.
    pub(super) fn plan(&self, rule: OffloadRule) -> Option<Vec<Op>> {
        let mut planner = OffloadPlanner {
            stage: self,
            rule,
            lane: CopyLanePlan { lanes: self.lanes, out: 0.0, back: 0.0 },
            resident: Vec::new(),
            offloaded: Vec::new(),
            waited_until: 0.0,
            ops: Vec::with_capacity(2 * self.ops.len()),
        };
        let mut ready = self.candidates.iter().enumerate().peekable();
        for position in 0..self.ops.len() {
            while let Some((number, candidate)) =
                ready.next_if(|(_, candidate)| candidate.from_position < position)
            {
                if candidate.chunk_position < rule.chunk_count {
                    planner.resident.push(number);
                }
            }
            planner.copy_before(position)?;
            planner.ops.push(self.ops[position]);
        }
        Some(planner.ops)
    }
}

/// When the lanes of the copies are free.
#[derive(Clone, Copy)]
struct CopyLanePlan {
    lanes: CopyLanes,
    out: f64,
    back: f64,
}

impl CopyLanePlan {
    fn occupy(&mut self, memory: MemoryOp, until: f64) {
        match (self.lanes, memory) {
            (CopyLanes::Alternating | CopyLanes::InTurn, _) => {
                (self.out, self.back) = (until, until)
            }
            (CopyLanes::Duplex, MemoryOp::Reload) => self.back = until,
            (CopyLanes::Duplex, MemoryOp::Offload | MemoryOp::Drop) => self.out = until,
        }
    }
}

/// A list while it is gone through. Candidates are known by their number.
struct OffloadPlanner<'a> {
    stage: &'a StageOffloads<'a>,
    rule: OffloadRule,
    lane: CopyLanePlan,
    /// The candidates that are ready and could be offloaded.
    resident: Vec<usize>,
    /// The candidates that are offloaded; the one that is needed first is the last.
    offloaded: Vec<usize>,
    /// Until when the stage has waited for offloads.
    waited_until: f64,
    ops: Vec<Op>,
}

impl OffloadPlanner<'_> {
    /// Adds the offloads and reloads before the operation at `position`.
    fn copy_before(&mut self, position: usize) -> Option<()> {
        self.resident.retain(|number| self.stage.candidates[*number].to_position > position);
        loop {
            if let Some((at, until)) = self.next_offload(position) {
                let number = self.resident.remove(at);
                self.waited_until = until;
                self.lane.occupy(MemoryOp::Offload, until);
                self.ops.push(Op::Memory(MemoryOp::Offload, self.stage.candidates[number].pass));
                self.insert_offloaded(number);
                continue;
            }
            let Some(number) = self.offloaded.last().copied() else { return Some(()) };
            let next = self.lane.back.max(self.stage.ends[position]);
            let candidate = &self.stage.candidates[number];
            if candidate.to_position > position && self.is_back_in_time(next, None) {
                return Some(());
            }
            let before = position.checked_sub(1).map_or(0.0, |before| self.stage.ends[before]);
            let begin = self.lane.back.max(before).max(self.waited_until);
            let until = begin + self.rule.copy_time_share * candidate.reload;
            if until > candidate.due + self.stage.tolerance {
                return None;
            }
            self.offloaded.pop();
            self.lane.occupy(MemoryOp::Reload, until);
            self.ops.push(Op::Memory(MemoryOp::Reload, candidate.pass));
        }
    }

    /// The place among the resident candidates of the one that is offloaded next, and when that is
    /// done: of all that can be offloaded by this position and reloaded in time, the one that is
    /// needed last.
    fn next_offload(&self, position: usize) -> Option<(usize, f64)> {
        let OffloadRule { spare_min, copy_time_share, .. } = self.rule;
        let tolerance = self.stage.tolerance;
        let mut found: Option<(usize, f64, f64)> = None;
        for (at, number) in self.resident.iter().enumerate() {
            let candidate = &self.stage.candidates[*number];
            let until = self.lane.out.max(candidate.ready) + copy_time_share * candidate.offload;
            let is_offloaded = until <= self.stage.starts[position] + tolerance;
            let is_long =
                candidate.due - until >= copy_time_share * candidate.reload + spare_min - tolerance;
            if is_offloaded && is_long && found.is_none_or(|(_, _, due)| candidate.due > due) {
                found = Some((at, until, candidate.due));
            }
        }
        let (at, until, _) = found?;
        // Nothing is reloaded before the stage has waited for the offload.
        let free = self.lane.back.max(until);
        self.is_back_in_time(free, Some(self.resident[at])).then_some((at, until))
    }

    /// Whether everything that is offloaded, and one more, is reloaded in time if the lane is free
    /// from `free` on, what is needed first first.
    fn is_back_in_time(&self, free: f64, one_more: Option<usize>) -> bool {
        let candidates = &self.stage.candidates;
        let mut one_more = one_more;
        let mut end = free;
        let mut take = |candidate: &OffloadCandidate| {
            end += self.rule.copy_time_share * candidate.reload;
            end <= candidate.due + self.stage.tolerance
        };
        for number in self.offloaded.iter().rev() {
            let candidate = &candidates[*number];
            if let Some(extra) = one_more.take_if(|extra| candidates[*extra].due < candidate.due)
                && !take(&candidates[extra])
            {
                return false;
            }
            if !take(candidate) {
                return false;
            }
        }
        one_more.is_none_or(|extra| take(&candidates[extra]))
    }

    fn insert_offloaded(&mut self, number: usize) {
        let to_position = self.stage.candidates[number].to_position;
        let at = self
            .offloaded
            .partition_point(|other| self.stage.candidates[*other].to_position > to_position);
        self.offloaded.insert(at, number);
    }
}
