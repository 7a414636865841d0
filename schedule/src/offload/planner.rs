//! Copies of one stage, placed into its list.
//!
//! A position is the place before the operation of that number. OFFLOAD stands at the first position
//! by which its copy is done, RELOAD at the last one from which it is done in time; on a lane that
//! carries one copy at a time the order of the list is that of the copies.

use zbelastic_types::StageIndex;

use super::timetable::Timetable;
use crate::cost::{CopyLanes, Costs};
use crate::op::{Compute, MemoryOp, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;

/// Most times to spare that are tried for a stage.
const SPARES_MAX: usize = 16;
/// Round trips that are tried; the authors ask for three (issue 70 of their repository).
const ROUND_TRIPS: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0];

/// A pass that could leave and come back.
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
    /// The time that is left if it leaves at once and comes back at the last moment.
    fn spare(&self) -> f64 {
        self.due - self.ready - self.offload - self.reload
    }
}

/// What may leave, and when.
#[derive(Clone, Copy)]
pub(super) struct OffloadRule {
    /// Chunks of the stage, from the first one on.
    pub(super) chunk_count: u32,
    /// The time to spare that a trip must have.
    pub(super) spare_min: f64,
    /// The share of a copy's time that is planned with.
    pub(super) copy_time_share: f64,
}

/// A stage's list with its times, and every pass of it that could leave.
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
        let (starts, ends) = (&timetable.starts[stage.index()], &timetable.ends[stage.index()]);
        let end = ends.last().copied().unwrap_or(0.0);
        let mut made = PassTable::new(program, 0_usize);
        let mut trips = Vec::new();
        for (to, op) in ops.iter().enumerate() {
            let Some((pass, cell)) = op.pass().and_then(|p| Some((p, made.get_mut(p)?))) else {
                continue;
            };
            match op {
                Op::Compute(Compute::F, _) | Op::Memory(MemoryOp::Drop, _) => *cell = to,
                Op::Compute(Compute::R | Compute::B | Compute::BW, _) => {
                    let is_first =
                        trips.last().is_none_or(|last: &OffloadCandidate| last.pass != pass);
                    let from = *cell;
                    let turn = program.placement.chunks_of(stage).position(|c| c == pass.chunk);
                    let turn = turn.and_then(|turn| u32::try_from(turn).ok()).unwrap_or(u32::MAX);
                    let times = costs.memory_times(pass.chunk);
                    let (ready, due) = (ends[from], starts[to]);
                    let (offload, reload) = (times.offload, times.reload);
                    if is_first {
                        trips.push(OffloadCandidate {
                            pass,
                            chunk_position: turn,
                            from_position: from,
                            ready,
                            to_position: to,
                            due,
                            offload,
                            reload,
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
        trips.sort_by_key(|trip| trip.from_position);
        Self {
            ops,
            starts,
            ends,
            lanes: costs.memory.lanes,
            candidates: trips,
            tolerance: 1e-9 * end,
        }
    }

    /// The times to spare that are tried if the first `first` chunks may leave: none, shares and
    /// multiples of a round trip, because a lane that is not free takes from what there is, and those
    /// that there are, if they are many [`SPARES_MAX`] of them.
    pub(super) fn spares(&self, first: u32) -> Vec<f64> {
        let trips = || {
            self.candidates.iter().filter(|trip| {
                trip.chunk_position < first && trip.to_position > trip.from_position + 1
            })
        };
        let mut found: Vec<f64> = trips().map(|trip| trip.spare().max(0.0)).collect();
        found.sort_by(f64::total_cmp);
        found.dedup_by(|a, b| *a - *b <= self.tolerance);
        let last = found.len().saturating_sub(1);
        if last >= SPARES_MAX {
            found = (0..SPARES_MAX).map(|i| found[i * last / (SPARES_MAX - 1)]).collect();
        }
        let round_trip = trips().map(|trip| trip.offload + trip.reload).fold(0.0, f64::max);
        found.extend(ROUND_TRIPS.map(|share| share * round_trip));
        found.sort_by(f64::total_cmp);
        found.dedup();
        found
    }

    /// The list with copies; `None` if what left cannot be back in time, which rounding alone can
    /// bring about.
    pub(super) fn plan(&self, measure: OffloadRule) -> Option<Vec<Op>> {
        let mut run = OffloadPlanner {
            stage: self,
            measure,
            lane: CopyLanePlan { lanes: self.lanes, out: 0.0, back: 0.0 },
            resident: Vec::new(),
            offloaded: Vec::new(),
            waited_until: 0.0,
            ops: Vec::with_capacity(2 * self.ops.len()),
        };
        let mut ready = self.candidates.iter().enumerate().peekable();
        for position in 0..self.ops.len() {
            while let Some((number, trip)) =
                ready.next_if(|(_, trip)| trip.from_position < position)
            {
                if trip.chunk_position < measure.chunk_count {
                    run.resident.push(number);
                }
            }
            run.copy_before(position)?;
            run.ops.push(self.ops[position]);
        }
        Some(run.ops)
    }
}

/// When copies can begin.
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

/// A list while it is gone through. Trips are known by their number.
struct OffloadPlanner<'a> {
    stage: &'a StageOffloads<'a>,
    measure: OffloadRule,
    lane: CopyLanePlan,
    /// What could leave.
    resident: Vec<usize>,
    /// What is away, what is needed first at the end.
    offloaded: Vec<usize>,
    /// Until when the stage has waited for what left.
    waited_until: f64,
    ops: Vec<Op>,
}

impl OffloadPlanner<'_> {
    /// What leaves and comes back before the operation at `position`.
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
            let trip = &self.stage.candidates[number];
            if trip.to_position > position && self.is_back_in_time(next, None) {
                return Some(());
            }
            let before = position.checked_sub(1).map_or(0.0, |before| self.stage.ends[before]);
            let begin = self.lane.back.max(before).max(self.waited_until);
            let until = begin + self.measure.copy_time_share * trip.reload;
            if until > trip.due + self.stage.tolerance {
                return None;
            }
            self.offloaded.pop();
            self.lane.occupy(MemoryOp::Reload, until);
            self.ops.push(Op::Memory(MemoryOp::Reload, trip.pass));
        }
    }

    /// The place among what is here of what leaves next, and when it has left: of all that can have
    /// left by this position and be back in time, what is needed last.
    fn next_offload(&self, position: usize) -> Option<(usize, f64)> {
        let OffloadRule { spare_min: spare, copy_time_share: haste, .. } = self.measure;
        let tolerance = self.stage.tolerance;
        let mut found: Option<(usize, f64, f64)> = None;
        for (at, number) in self.resident.iter().enumerate() {
            let trip = &self.stage.candidates[*number];
            let until = self.lane.out.max(trip.ready) + haste * trip.offload;
            let is_gone = until <= self.stage.starts[position] + tolerance;
            let is_long = trip.due - until >= haste * trip.reload + spare - tolerance;
            if is_gone && is_long && found.is_none_or(|(_, _, due)| trip.due > due) {
                found = Some((at, until, trip.due));
            }
        }
        let (at, until, _) = found?;
        // Nothing comes back before the stage has waited for what leaves.
        let free = self.lane.back.max(until);
        self.is_back_in_time(free, Some(self.resident[at])).then_some((at, until))
    }

    /// Whether everything that is away, and one more, is back in time if it comes from `free` on,
    /// what is needed first first.
    fn is_back_in_time(&self, free: f64, one_more: Option<usize>) -> bool {
        let trips = &self.stage.candidates;
        let mut one_more = one_more;
        let mut end = free;
        let mut take = |trip: &OffloadCandidate| {
            end += self.measure.copy_time_share * trip.reload;
            end <= trip.due + self.stage.tolerance
        };
        for number in self.offloaded.iter().rev() {
            let trip = &trips[*number];
            if let Some(extra) = one_more.take_if(|extra| trips[*extra].due < trip.due)
                && !take(&trips[extra])
            {
                return false;
            }
            if !take(trip) {
                return false;
            }
        }
        one_more.is_none_or(|extra| take(&trips[extra]))
    }

    fn insert_offloaded(&mut self, number: usize) {
        let to = self.stage.candidates[number].to_position;
        let at =
            self.offloaded.partition_point(|other| self.stage.candidates[*other].to_position > to);
        self.offloaded.insert(at, number);
    }
}
