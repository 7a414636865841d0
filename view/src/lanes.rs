//! Lanes: the operations of stages in the last steps, measured beside planned.
//!
//! They are read from the text of a trace file, which a node answers with and which `train` leaves
//! behind: Chrome's "Trace Event Format". A process `measured` has a thread a stage; a process whose
//! name begins with `planned` has the same threads of a simulation, of a few steps.
//! The name of a slice ends with the number of its step. Times of two stages may be those of two
//! clocks, so lanes are drawn beside each other and never subtracted.
//!
//! A plan of 1,000 nodes has tens of thousands of operations a step. Pages receive them by column, ten
//! bytes each; those of the plan once, and with each step no names but those that its plan lacks.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Steps of which lanes are kept.
pub const LANE_STEPS_KEPT: usize = 50;
/// Most slices of a step that are kept, planned and measured together; of more, those that end last
/// are left out, for a lane of a screen has no more columns than 4,096. As many places [`LaneColumns`]
/// can name.
pub const LANE_SLICES_MAX: usize = 16 * 4096;
/// Most bytes of a trace that are read.
const TRACE_BYTES_MAX: usize = 16 << 20;
/// Planned lanes whose times differ by less than this part of their span are drawn the same, within some
/// pixels of a screen: those that pages have stay. Times of passes are medians, which never rest.
const PLAN_MOVED_MIN: f32 = 1.0 / 64.0;

/// An operation that stages have, in any step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneOperation {
    /// Its name, as schedules write it: `F3`, `B3`, `W3`.
    pub name: String,
    /// Its category: `forward`, `input gradient`, `weight gradient`, `update`, `gate`, ...
    pub category: String,
}

/// What stages do in a step, by column, stage by stage: a row of one column belongs to those at the same
/// place of the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneColumns {
    /// How many rows each stage has.
    pub counts: Vec<u32>,
    /// Which operation: its place among those of the plan, and behind them those of the step.
    pub operations: Vec<u16>,
    /// When it began, in microseconds since the begin of the step's first operation.
    pub start_us: Vec<f32>,
    /// Its duration in microseconds.
    pub duration_us: Vec<f32>,
}

/// A step as it is planned, with the durations that passes had lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlannedLanes {
    /// What steps name it by.
    pub id: u64,
    /// Its operations, each once.
    pub operations: Vec<LaneOperation>,
    /// Its lanes.
    pub lanes: LaneColumns,
}

/// The lanes of a step as it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepLanes {
    /// Number of the step, from 1.
    pub step: u64,
    /// The planned lanes that it is drawn beside.
    pub plan: u64,
    /// Operations that the plan does not have, each once.
    pub operations: Vec<LaneOperation>,
    /// Its lanes.
    pub measured: LaneColumns,
}

/// What a trace adds for pages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedLanes {
    /// Planned lanes, if pages have no such.
    pub plan: Option<PlannedLanes>,
    /// Steps, oldest first.
    pub steps: Vec<StepLanes>,
}

/// The lanes of the last [`LANE_STEPS_KEPT`] steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneLog {
    steps: VecDeque<StepLanes>,
    /// Those that a kept step names, oldest first.
    plans: VecDeque<PlannedLanes>,
    plan_count: u64,
    /// Bytes of the last trace, if it was too long to be read.
    too_long: Option<u64>,
}

impl LaneLog {
    /// Adds the steps of a trace that are whole and not yet known, and returns them: the last
    /// [`LANE_STEPS_KEPT`] of more. A text that is no trace adds none: it may have been cut between two
    /// pieces of different steps.
    pub fn add_trace(&mut self, text: &str) -> AddedLanes {
        self.too_long = (text.len() > TRACE_BYTES_MAX).then_some(text.len() as u64);
        if self.too_long.is_some() {
            return AddedLanes::default();
        }
        let Ok(file) = serde_json::from_str::<TraceFile<'_>>(text) else {
            return AddedLanes::default();
        };
        let TraceLanes { mut measured, planned } = read_trace(&file);
        let newest = self.newest();
        measured.retain(|(step, _)| *step > newest);
        if measured.is_empty() {
            return AddedLanes::default();
        }
        let plan = self.add_plan(&planned);
        let known = self.plans.back().expect("one is kept for these steps");
        let steps = measured.iter().map(|(step, lanes)| {
            let (measured, operations) = columns(lanes, &known.operations);
            StepLanes { step: *step, plan: known.id, operations, measured }
        });
        let steps: Vec<StepLanes> = steps.collect();
        self.steps.extend(steps.iter().cloned());
        while self.steps.len() > LANE_STEPS_KEPT {
            self.steps.pop_front();
        }
        self.drop_plans();
        AddedLanes { plan, steps }
    }

    /// Keeps planned lanes and returns them, unless the newest that are kept are drawn the same.
    fn add_plan(&mut self, planned: &[Vec<LaneSlice<'_>>]) -> Option<PlannedLanes> {
        let (lanes, operations) = columns(planned, &[]);
        let plan = PlannedLanes { id: self.plan_count, operations, lanes };
        if self.plans.back().is_some_and(|last| last.is_drawn_like(&plan)) {
            return None;
        }
        self.plan_count += 1;
        self.plans.push_back(plan.clone());
        Some(plan)
    }

    /// Removes the steps behind `step`, which are computed again.
    pub fn rewind(&mut self, step: u64) {
        self.steps.retain(|lanes| lanes.step <= step);
        self.drop_plans();
    }

    /// Drops planned lanes that no kept step names. Pages do the same.
    fn drop_plans(&mut self) {
        let Self { steps, plans, .. } = self;
        plans.retain(|plan| steps.iter().any(|lanes| lanes.plan == plan.id));
    }

    /// Bytes of the last trace, if it was too long to be read: a step of so many stages and microbatches is
    /// drawn by a program for traces.
    #[must_use]
    pub const fn too_long(&self) -> Option<u64> {
        self.too_long
    }

    /// The newest step whose lanes are kept, or 0: a trace from it on has all that are new.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.steps.back().map_or(0, |lanes| lanes.step)
    }

    /// Lanes of steps, oldest first.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &StepLanes> {
        self.steps.iter()
    }

    /// The planned lanes that these steps name.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = &PlannedLanes> {
        self.plans.iter()
    }
}

impl PlannedLanes {
    /// Whether others have the same operations in the same order, at times that differ by no more than
    /// can be seen.
    fn is_drawn_like(&self, other: &Self) -> bool {
        let rows = |lanes: &LaneColumns| -> Vec<(f32, f32)> {
            lanes.start_us.iter().zip(&lanes.duration_us).map(|(at, us)| (*at, at + us)).collect()
        };
        let own = rows(&self.lanes);
        let span_us = own.iter().fold(0.0, |most: f32, (_, end)| most.max(*end));
        let is_near = |a: f32, b: f32| (a - b).abs() <= span_us * PLAN_MOVED_MIN;
        self.operations == other.operations
            && self.lanes.counts == other.lanes.counts
            && self.lanes.operations == other.lanes.operations
            && own
                .iter()
                .zip(&rows(&other.lanes))
                .all(|(own, other)| is_near(own.0, other.0) && is_near(own.1, other.1))
    }
}

#[derive(Deserialize)]
struct TraceFile<'a> {
    #[serde(borrow, rename = "traceEvents")]
    events: Vec<TraceRow<'a>>,
}

#[derive(Deserialize)]
struct TraceRow<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    ph: Cow<'a, str>,
    pid: u64,
    tid: u64,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(borrow, default)]
    args: RowArguments<'a>,
}

#[derive(Default, Deserialize)]
struct RowArguments<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

/// An operation of a stage in a trace, with its times in microseconds.
struct LaneSlice<'a> {
    name: &'a str,
    category: &'a str,
    start_us: f64,
    duration_us: f64,
}

/// Slices of a process by the step that they name, and within it by thread.
type SlicesByStep<'a> = BTreeMap<u64, BTreeMap<u64, Vec<LaneSlice<'a>>>>;

/// The whole steps of a trace, by their numbers, and one of its plan; each has a lane a stage.
struct TraceLanes<'a> {
    measured: Vec<(u64, Vec<Vec<LaneSlice<'a>>>)>,
    planned: Vec<Vec<LaneSlice<'a>>>,
}

/// The whole steps of a trace: the first and the last of it may be cut.
fn read_trace<'a>(file: &'a TraceFile<'_>) -> TraceLanes<'a> {
    let is_name = |row: &&TraceRow<'_>| row.ph == "M" && row.name == "process_name";
    let names: BTreeMap<u64, &str> =
        file.events.iter().filter(is_name).map(|row| (row.pid, &*row.args.name)).collect();
    let mut measured = SlicesByStep::new();
    let mut planned = SlicesByStep::new();
    for row in file.events.iter().filter(|row| row.ph == "X") {
        let Some((name, step)) = name_and_step(&row.name) else { continue };
        let lanes = match names.get(&row.pid) {
            Some(&"measured") => &mut measured,
            Some(name) if name.starts_with("planned") => &mut planned,
            Some(_) | None => continue,
        };
        let slice = LaneSlice { name, category: &row.cat, start_us: row.ts, duration_us: row.dur };
        lanes.entry(step).or_default().entry(row.tid).or_default().push(slice);
    }
    // A step in the middle of the simulation has neighbours on both sides, as measured ones have.
    let middle = planned.len() / 2;
    let planned = planned.into_values().nth(middle).map(step_lanes).unwrap_or_default();
    let last = measured.len().saturating_sub(1);
    let first = last.saturating_sub(LANE_STEPS_KEPT).max(1);
    let whole = measured.into_iter().take(last).skip(first);
    let measured = whole.map(|(step, slices)| (step, step_lanes(slices)));
    TraceLanes { measured: measured.collect(), planned }
}

/// One lane a thread, with times since the first operation of all of them.
fn step_lanes<'a>(threads: BTreeMap<u64, Vec<LaneSlice<'a>>>) -> Vec<Vec<LaneSlice<'a>>> {
    let starts = threads.values().flatten().map(|slice| slice.start_us);
    let first_us = starts.fold(f64::INFINITY, f64::min);
    let lane_slices_max = LANE_SLICES_MAX / (2 * threads.len().max(1));
    let lane = |mut slices: Vec<LaneSlice<'a>>| {
        slices.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        slices.truncate(lane_slices_max);
        slices.iter_mut().for_each(|slice| slice.start_us -= first_us);
        slices
    };
    threads.into_values().map(lane).collect()
}

/// Lanes by column, and their operations that are not among the known ones.
fn columns(
    lanes: &[Vec<LaneSlice<'_>>],
    known: &[LaneOperation],
) -> (LaneColumns, Vec<LaneOperation>) {
    let names = known.iter().map(|operation| (&*operation.name, &*operation.category));
    let mut places: BTreeMap<(&str, &str), usize> = names.zip(0..).collect();
    let mut columns = LaneColumns::default();
    let mut added = Vec::new();
    // Tenths of microseconds: more digits are more bytes, and no clock has them.
    let tenths = |us: f64| ((us * 10.0).round() / 10.0) as f32;
    for lane in lanes {
        columns.counts.push(lane.len() as u32);
        for &LaneSlice { name, category, start_us, duration_us } in lane {
            let next = places.len();
            let place = *places.entry((name, category)).or_insert(next);
            if place == next {
                added.push(LaneOperation { name: name.to_owned(), category: category.to_owned() });
            }
            columns.operations.push(place.try_into().expect("no more than LANE_SLICES_MAX"));
            columns.start_us.push(tenths(start_us));
            columns.duration_us.push(tenths(duration_us));
        }
    }
    (columns, added)
}

/// The operation and the step of a slice: `F3 step 12`, `gate of step 12`, `verdict on step 12`.
fn name_and_step(name: &str) -> Option<(&str, u64)> {
    let (before, step) = name.rsplit_once("step ")?;
    let step = step.parse().ok()?;
    let before = before.trim_end();
    let before = before.strip_suffix(" of").or_else(|| before.strip_suffix(" on"));
    Some((before.unwrap_or_else(|| name.split(' ').next().unwrap_or(name)), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str) -> LaneOperation {
        LaneOperation { name: name.to_owned(), category: "forward".to_owned() }
    }

    fn process(pid: u64, name: &str) -> String {
        format!(
            "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{pid},\"tid\":0,\
             \"args\":{{\"name\":\"{name}\"}}}}"
        )
    }

    fn file(rows: &[String]) -> String {
        format!("{{\"traceEvents\":[{}]}}", rows.join(","))
    }

    /// A trace of two stages whose measured steps are these; by the plan the second begins so many
    /// microseconds behind the first.
    fn trace(steps: std::ops::Range<u64>, planned_us: u64) -> String {
        let slice = |pid: u64, tid: u64, step: u64, at: u64| {
            format!(
                "{{\"name\":\"F0 step {step}\",\"cat\":\"forward\",\"ph\":\"X\",\"pid\":{pid},\
                 \"tid\":{tid},\"ts\":{at},\"dur\":5}}"
            )
        };
        let mut events = vec![process(0, "measured"), process(1, "planned: zb-h1")];
        for step in steps.clone() {
            events.extend([slice(0, 0, step, 100 * step), slice(0, 1, step, 100 * step + 10)]);
        }
        for step in 1..=3 {
            events
                .extend([slice(1, 2, step, 50 * step), slice(1, 3, step, 50 * step + planned_us)]);
        }
        file(&events)
    }

    /// The numbers of the steps that a trace adds.
    fn steps(added: &AddedLanes) -> Vec<u64> {
        added.steps.iter().map(|lanes| lanes.step).collect()
    }

    #[test]
    fn whole_steps_are_added_once_and_begin_at_nothing() {
        let mut log = LaneLog::default();
        let added = log.add_trace(&trace(4..8, 7));
        assert_eq!(steps(&added), [5, 6]);
        let measured = &added.steps[0].measured;
        assert_eq!((&measured.counts[..], &measured.start_us[..]), (&[1, 1][..], &[0.0, 10.0][..]));
        let plan = added.plan.expect("the first");
        assert_eq!(plan.lanes.start_us, [0.0, 7.0]);
        assert_eq!(plan.operations, [operation("F0")]);
        let added = log.add_trace(&trace(5..9, 7));
        assert_eq!(steps(&added), [7]);
        log.rewind(5);
        assert_eq!(log.steps().map(|lanes| lanes.step).collect::<Vec<_>>(), [5]);
        let end = 5 + 2 * LANE_STEPS_KEPT as u64;
        let added = steps(&log.add_trace(&trace(5..end, 7)));
        assert_eq!(added.last(), Some(&(end - 2)));
        assert_eq!((added.len(), log.steps().len()), (LANE_STEPS_KEPT, LANE_STEPS_KEPT));
    }

    #[test]
    fn planned_lanes_are_sent_once_and_again_when_they_are_drawn_otherwise() {
        let mut log = LaneLog::default();
        let mut plan_of = |text: &str| log.add_trace(text).plan.map(|plan| plan.id);
        assert_eq!(plan_of(&trace(1..4, 512)), Some(0));
        assert_eq!(plan_of(&trace(2..5, 512)), None, "it is the same");
        // The span is 517 us: 8 of it cannot be seen, 9 can.
        assert_eq!(plan_of(&trace(3..6, 520)), None);
        assert_eq!(plan_of(&trace(4..7, 521)), Some(1));
        assert_eq!(plan_of(&trace(5..8, 521).replace("\"F0 step", "\"F1 step")), Some(2));
        assert_eq!(plan_of(&trace(5..8, 521)), None, "its steps are known");
        assert_eq!(log.steps().map(|lanes| lanes.plan).collect::<Vec<_>>(), [0, 0, 0, 1, 2]);
        log.rewind(3);
        assert_eq!(log.plans().map(|plan| plan.id).collect::<Vec<_>>(), [0], "no other is named");
        log.rewind(0);
        assert_eq!(log.plans().len(), 0);
    }

    #[test]
    fn a_step_brings_the_names_that_its_plan_lacks() {
        let measured_gate = trace(1..4, 7).replacen("F0 step 2", "gate of step 2", 1);
        let added = LaneLog::default().add_trace(&measured_gate);
        let step = &added.steps[0];
        assert_eq!(step.operations, [operation("gate")]);
        assert_eq!(step.measured.operations, [1, 0], "behind those of the plan");
        assert_eq!(added.plan.map(|plan| plan.lanes.operations), Some(vec![0, 0]));
    }

    /// What a page keeps of a step is bounded, and a place in a column is a number of two bytes.
    #[test]
    fn so_many_operations_of_a_step_are_kept() {
        let slice = |pid: u64, step: u64, at: usize| {
            format!(
                "{{\"name\":\"{pid}F{at} step {step}\",\"ph\":\"X\",\"pid\":{pid},\"tid\":0,\
                 \"ts\":{at}}}"
            )
        };
        let mut rows = vec![process(0, "measured"), process(1, "planned: zb-h1")];
        rows.extend([slice(0, 1, 0), slice(0, 3, 0)]);
        rows.extend((0..LANE_SLICES_MAX).flat_map(|at| [slice(0, 2, at), slice(1, 1, at)]));
        let added = LaneLog::default().add_trace(&file(&rows));
        let half = LANE_SLICES_MAX / 2;
        assert_eq!(added.steps[0].measured.operations.last().copied(), Some(u16::MAX));
        assert_eq!(added.steps[0].measured.operations.len(), half);
        assert_eq!(added.plan.map(|plan| plan.operations.len()), Some(half));
    }

    #[test]
    fn a_text_that_is_no_trace_adds_nothing() {
        let nothing = AddedLanes::default();
        let whole = trace(1..4, 7);
        for end in 0..whole.len() {
            assert_eq!(LaneLog::default().add_trace(&whole[..end]), nothing);
        }
        assert_eq!(LaneLog::default().add_trace("{\"traceEvents\":[]}"), nothing);
        assert_eq!(LaneLog::default().add_trace(&trace(1..2, 7)), nothing);
        let mut log = LaneLog::default();
        let long = format!("{}{}", trace(1..5, 7), " ".repeat(TRACE_BYTES_MAX));
        assert_eq!(log.add_trace(&long), nothing);
        assert_eq!(log.too_long(), Some(long.len() as u64), "it does not vanish unsaid");
        assert_eq!(log.add_trace(&trace(1..5, 7)).steps.len(), 2);
        assert_eq!(log.too_long(), None);
    }

    #[test]
    fn names_of_slices_are_split() {
        assert_eq!(name_and_step("F3 step 12"), Some(("F3", 12)));
        assert_eq!(name_and_step("gate of step 12"), Some(("gate", 12)));
        assert_eq!(name_and_step("verdict on step 2"), Some(("verdict", 2)));
        assert_eq!(name_and_step("0F1 held out"), None);
    }
}
