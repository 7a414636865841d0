//! The trace format that Perfetto and Chrome read: JSON with one event a slice ("Trace Event
//! Format", phases `X` and `M`), and the tracks of a timeline in it.

use zbelastic_types::StageIndex;

use super::{short, stage_name, title};
use crate::appearance::{OpAppearance, TimelineMark, TimelineOp};
use crate::op::Compute;
use crate::timeline::{Timeline, TimelineSlice};

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct ChromeTraceTrack {
    /// Lines of the same process are drawn together.
    pub process: String,
    /// The line's own name.
    pub thread: String,
    /// The slices on it, in any order.
    pub slices: Vec<TraceSlice>,
}

/// Something with a name that lasted some time.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSlice {
    /// Its name.
    pub name: String,
    /// Its category; viewers colour and filter by it.
    pub category: &'static str,
    /// When it began, in microseconds since the start of the trace.
    pub start_us: f64,
    /// Its duration, in microseconds.
    pub duration_us: f64,
}

/// `tracks` as the text of a trace file. Processes and threads are numbered in the order in which
/// they first occur, and drawn in it.
///
/// # Panics
/// If a time is infinite or not a number, which JSON cannot hold.
#[must_use]
pub fn write_trace(tracks: &[ChromeTraceTrack]) -> String {
    let mut events = Vec::new();
    let mut processes: Vec<&str> = Vec::new();
    for (thread, track) in tracks.iter().enumerate() {
        let known = processes.iter().position(|process| *process == track.process);
        let process = known.unwrap_or_else(|| {
            events.push(name_event("process_name", processes.len(), thread, &track.process));
            processes.push(&track.process);
            processes.len() - 1
        });
        events.push(name_event("thread_name", process, thread, &track.thread));
        events.extend(track.slices.iter().map(|slice| slice_event(process, thread, slice)));
    }
    format!("{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\"}}\n", events.join(",\n"))
}

/// One track a stage, with passes and updates, and one below it with its copies, if it has any;
/// transfers need no time of their own and are left out. One unit of the timeline becomes `unit_us`
/// microseconds.
#[must_use]
pub fn timeline_tracks<O: TimelineOp>(
    timeline: &Timeline<O>,
    unit_us: f64,
) -> Vec<ChromeTraceTrack> {
    let is_copy = |op: O| match op.appearance() {
        OpAppearance::CopyOut(_) | OpAppearance::CopyBack(_) => true,
        OpAppearance::Pass(..)
        | OpAppearance::Mark(_)
        | OpAppearance::Bookkeeping
        | OpAppearance::Region
        | OpAppearance::Nothing => false,
    };
    let trace_slice = |slice: &TimelineSlice<O>| {
        let category = category(slice.op)?;
        let op = slice.op.text(timeline.slice_count());
        let name = match timeline.step_count() {
            1 => op,
            _ => format!("{op} step {}", slice.step + 1),
        };
        let start_us = slice.start * unit_us;
        let duration_us = slice.duration() * unit_us;
        Some(TraceSlice { name, category, start_us, duration_us })
    };
    let track = |stage: StageIndex, is_copies: bool| ChromeTraceTrack {
        process: title(timeline),
        thread: format!(
            "{}{}",
            stage_name(timeline.placement(), stage),
            if is_copies { " copies" } else { "" }
        ),
        slices: timeline
            .slices(stage)
            .iter()
            .filter(|slice| is_copy(slice.op) == is_copies)
            .filter_map(trace_slice)
            .collect(),
    };
    let of_stage = |stage| {
        let copies = Some(track(stage, true)).filter(|track| !track.slices.is_empty());
        std::iter::once(track(stage, false)).chain(copies)
    };
    timeline.stages().flat_map(of_stage).collect()
}

/// The category by which viewers colour and filter an operation; `None` for transfers and DROP,
/// which need no time.
#[must_use]
pub fn category<O: TimelineOp>(op: O) -> Option<&'static str> {
    match op.appearance() {
        OpAppearance::Pass(Compute::F, ..) => Some("forward"),
        OpAppearance::Pass(Compute::B, ..) => Some("input gradient"),
        OpAppearance::Pass(Compute::W, ..) => Some("weight gradient"),
        OpAppearance::Pass(Compute::WE, ..) => Some("early weight gradient"),
        OpAppearance::Pass(Compute::BW, ..) => Some("both gradients"),
        OpAppearance::Pass(Compute::R, ..) => Some("forward again"),
        OpAppearance::CopyOut(_) => Some("copy out"),
        OpAppearance::CopyBack(_) => Some("copy back"),
        OpAppearance::Mark(TimelineMark::Gate) => Some("gate"),
        OpAppearance::Mark(TimelineMark::Step) | OpAppearance::Bookkeeping => Some("update"),
        OpAppearance::Mark(TimelineMark::Reduce) => Some("reduce"),
        OpAppearance::Mark(TimelineMark::Stash | TimelineMark::Predict | TimelineMark::Free) => {
            Some("version")
        }
        OpAppearance::Mark(TimelineMark::Average) => Some("average"),
        OpAppearance::Region => Some("dynamic region"),
        OpAppearance::Nothing => None,
    }
}

fn name_event(what: &str, process: usize, thread: usize, name: &str) -> String {
    format!(
        "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{thread},\
         \"args\":{{\"name\":{}}}}}",
        json_string(name)
    )
}

fn slice_event(process: usize, thread: usize, slice: &TraceSlice) -> String {
    format!(
        "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{process},\"tid\":{thread},\
         \"ts\":{},\"dur\":{}}}",
        json_string(&slice.name),
        json_string(slice.category),
        json_number(slice.start_us),
        json_number(slice.duration_us)
    )
}

/// Microseconds to the nanosecond.
fn json_number(number: f64) -> String {
    assert!(number.is_finite(), "a trace has finite times, found {number}");
    short(number)
}

fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            control if control < ' ' => {
                json.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::{ChromeTraceTrack, TraceSlice, json_string, write_trace};

    #[test]
    fn strings_are_escaped() {
        let check = |text: &str, expected: &str| assert_eq!(json_string(text), expected);
        check("stage 0", "\"stage 0\"");
        check("a\"b\\c", "\"a\\\"b\\\\c\"");
        check("\n\u{1f} ", "\"\\u000a\\u001f \"");
        check("Ωμ", "\"Ωμ\"");
    }

    #[test]
    fn tracks_of_one_process_share_its_number() {
        let track = |process: &str, thread: &str| ChromeTraceTrack {
            process: process.to_owned(),
            thread: thread.to_owned(),
            slices: vec![TraceSlice {
                name: "0F0".to_owned(),
                category: "forward",
                start_us: 1.5,
                duration_us: 2.0,
            }],
        };
        let tracks = [track("a", "x"), track("b", "x"), track("a", "y")];
        let slice = |pid, tid| {
            format!(
                "{{\"ph\":\"X\",\"name\":\"0F0\",\"cat\":\"forward\",\"pid\":{pid},\"tid\":{tid},\
                 \"ts\":1.5,\"dur\":2}}"
            )
        };
        let name = |what, pid, tid, name| {
            format!(
                "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{pid},\"tid\":{tid},\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            )
        };
        let events = [
            name("process_name", 0, 0, "a"),
            name("thread_name", 0, 0, "x"),
            slice(0, 0),
            name("process_name", 1, 1, "b"),
            name("thread_name", 1, 1, "x"),
            slice(1, 1),
            name("thread_name", 0, 2, "y"),
            slice(0, 2),
        ];
        let expected = format!(
            "{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\"}}\n",
            events.join(",\n")
        );
        assert_eq!(write_trace(&tracks), expected);
    }
}
