//! Lanes: the operations of stages in the last steps, measured beside planned.
//!
//! They are read from the text of a trace file, which a node answers with and which `train` leaves
//! behind: Chrome's "Trace Event Format". A process `measured` has a thread a stage; a process whose
//! name begins with `planned` has the same threads of a simulation, of a few steps.
//! The name of a slice ends with the number of its step. Times of two stages may be those of two
//! clocks, so lanes are drawn beside each other and never subtracted.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Steps of which lanes are kept.
pub const LANE_STEPS_KEPT: usize = 50;
/// Most slices of a step that are kept, planned and measured together; of more, those that end last
/// are left out, for a lane of a screen has no more columns than 4,096.
pub const LANE_SLICES_MAX: usize = 16 * 4096;
/// Most bytes of a trace that are read.
const TRACE_BYTES_MAX: usize = 16 << 20;

/// An operation of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneSlice {
    /// Its name, as schedules write it: `F3`, `B3`, `W3`.
    pub name: String,
    /// Its category: `forward`, `input gradient`, `weight gradient`, `update`, `gate`, ...
    pub category: String,
    /// When it began, in microseconds since the begin of the step's first operation.
    pub start_us: f64,
    /// Its duration in microseconds.
    pub duration_us: f64,
}

/// The lanes of a step. Each list has one lane a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepLanes {
    /// Number of the step, from 1.
    pub step: u64,
    /// As it was measured.
    pub measured: Vec<Vec<LaneSlice>>,
    /// As it is planned, with the durations that passes had lately.
    pub planned: Vec<Vec<LaneSlice>>,
}

/// The lanes of the last [`LANE_STEPS_KEPT`] steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneLog {
    steps: VecDeque<StepLanes>,
    /// Bytes of the last trace, if it was too long to be read.
    too_long: Option<u64>,
}

impl LaneLog {
    /// Adds the steps of a trace that are whole and not yet known, and returns them: the last
    /// [`LANE_STEPS_KEPT`] of more. A text that is no trace adds none: it may have been cut between two
    /// pieces of different steps.
    pub fn add_trace(&mut self, text: &str) -> Vec<StepLanes> {
        self.too_long = (text.len() > TRACE_BYTES_MAX).then_some(text.len() as u64);
        if self.too_long.is_some() {
            return Vec::new();
        }
        let newest = self.newest();
        let new: Vec<StepLanes> =
            read_trace(text).into_iter().filter(|lanes| lanes.step > newest).collect();
        self.steps.extend(new.iter().cloned());
        while self.steps.len() > LANE_STEPS_KEPT {
            self.steps.pop_front();
        }
        new
    }

    /// Removes the steps behind `step`, which are computed again.
    pub fn rewind(&mut self, step: u64) {
        self.steps.retain(|lanes| lanes.step <= step);
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
}

#[derive(Deserialize)]
struct TraceFile {
    #[serde(rename = "traceEvents")]
    events: Vec<TraceRow>,
}

#[derive(Deserialize)]
struct TraceRow {
    name: String,
    ph: String,
    pid: u64,
    tid: u64,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: RowArguments,
}

#[derive(Default, Deserialize)]
struct RowArguments {
    #[serde(default)]
    name: String,
}

/// Slices of a process by the step that they name, and within it by thread.
type SlicesByStep = BTreeMap<u64, BTreeMap<u64, Vec<LaneSlice>>>;

/// The whole steps of a trace: the first and the last of it may be cut.
fn read_trace(text: &str) -> Vec<StepLanes> {
    let Ok(file) = serde_json::from_str::<TraceFile>(text) else { return Vec::new() };
    let is_name = |row: &&TraceRow| row.ph == "M" && row.name == "process_name";
    let names: BTreeMap<u64, &str> =
        file.events.iter().filter(is_name).map(|row| (row.pid, row.args.name.as_str())).collect();
    let mut measured = SlicesByStep::new();
    let mut planned = SlicesByStep::new();
    for row in file.events.iter().filter(|row| row.ph == "X") {
        let Some((name, step)) = name_and_step(&row.name) else { continue };
        let lanes = match names.get(&row.pid) {
            Some(&"measured") => &mut measured,
            Some(name) if name.starts_with("planned") => &mut planned,
            Some(_) | None => continue,
        };
        let slice = LaneSlice {
            name: name.to_owned(),
            category: row.cat.clone(),
            start_us: row.ts,
            duration_us: row.dur,
        };
        lanes.entry(step).or_default().entry(row.tid).or_default().push(slice);
    }
    // A step in the middle of the simulation has neighbours on both sides, as measured ones have.
    let middle = planned.len() / 2;
    let planned = planned.into_values().nth(middle).map(step_lanes).unwrap_or_default();
    let last = measured.len().saturating_sub(1);
    // Each has a copy of what is planned, so none is made of a step that is not kept.
    let first = last.saturating_sub(LANE_STEPS_KEPT).max(1);
    let whole = measured.into_iter().take(last).skip(first);
    let lanes = whole.map(|(step, slices)| StepLanes {
        step,
        measured: step_lanes(slices),
        planned: planned.clone(),
    });
    lanes.collect()
}

/// One lane a thread, with times since the first operation of all of them.
fn step_lanes(threads: BTreeMap<u64, Vec<LaneSlice>>) -> Vec<Vec<LaneSlice>> {
    let starts = threads.values().flatten().map(|slice| slice.start_us);
    let first_us = starts.fold(f64::INFINITY, f64::min);
    let lane_slices_max = LANE_SLICES_MAX / (2 * threads.len().max(1));
    let lane = |mut slices: Vec<LaneSlice>| {
        slices.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        slices.truncate(lane_slices_max);
        // Tenths of microseconds: more digits are more bytes, and no clock has them.
        let tenths = |us: f64| (us * 10.0).round() / 10.0;
        slices.iter_mut().for_each(|slice| {
            slice.start_us = tenths(slice.start_us - first_us);
            slice.duration_us = tenths(slice.duration_us);
        });
        slices
    };
    threads.into_values().map(lane).collect()
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

    /// A trace of two stages whose measured steps are these.
    fn trace(steps: std::ops::Range<u64>) -> String {
        let process = |pid: u64, name: &str| {
            format!(
                "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{pid},\"tid\":0,\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            )
        };
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
            events.extend([slice(1, 2, step, 50 * step), slice(1, 3, step, 50 * step + 7)]);
        }
        format!("{{\"traceEvents\":[{}]}}", events.join(","))
    }

    #[test]
    fn whole_steps_are_added_once_and_begin_at_nothing() {
        let mut log = LaneLog::default();
        let added = log.add_trace(&trace(4..8));
        assert_eq!(added.iter().map(|lanes| lanes.step).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(added[0].measured.len(), 2);
        assert_eq!(added[0].measured[1][0].start_us, 10.0);
        assert_eq!(added[0].planned[1][0].start_us, 7.0);
        assert_eq!(added[0].planned[1][0].name, "F0");
        let added = log.add_trace(&trace(5..9));
        assert_eq!(added.iter().map(|lanes| lanes.step).collect::<Vec<_>>(), [7]);
        log.rewind(5);
        assert_eq!(log.steps().map(|lanes| lanes.step).collect::<Vec<_>>(), [5]);
        let end = 5 + 2 * LANE_STEPS_KEPT as u64;
        let added = log.add_trace(&trace(5..end));
        assert_eq!(added.iter().map(|lanes| lanes.step).max(), Some(end - 2));
        assert_eq!((added.len(), log.steps().len()), (LANE_STEPS_KEPT, LANE_STEPS_KEPT));
    }

    #[test]
    fn a_text_that_is_no_trace_adds_nothing() {
        let whole = trace(1..4);
        for end in 0..whole.len() {
            assert_eq!(LaneLog::default().add_trace(&whole[..end]), []);
        }
        assert_eq!(LaneLog::default().add_trace("{\"traceEvents\":[]}"), []);
        assert_eq!(LaneLog::default().add_trace(&trace(1..2)), []);
        let mut log = LaneLog::default();
        let long = format!("{}{}", trace(1..5), " ".repeat(TRACE_BYTES_MAX));
        assert_eq!(log.add_trace(&long), []);
        assert_eq!(log.too_long(), Some(long.len() as u64), "it does not vanish unsaid");
        assert_eq!(log.add_trace(&trace(1..5)).len(), 2);
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
