//! The last steps of a run, for Perfetto.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::text_folder::TextFolder;

/// A line of a trace.
struct ParsedTrack {
    thread: String,
    slices: Vec<ParsedSlice>,
}

#[derive(Debug)]
struct ParsedSlice {
    name: String,
    category: String,
    start_us: f64,
    end_us: f64,
}

/// The tracks of a trace by process.
fn tracks(trace: &Value) -> BTreeMap<String, Vec<ParsedTrack>> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let number = |value: &Value| value.as_f64().expect("a number");
    let events = trace["traceEvents"].as_array().expect("a list");
    let mut processes = BTreeMap::new();
    let mut tracks = BTreeMap::new();
    for event in events {
        let process = event["pid"].as_u64();
        let thread = event["tid"].as_u64();
        match (event["ph"].as_str(), event["name"].as_str()) {
            (Some("M"), Some("process_name")) => {
                processes.insert(process, text(&event["args"]["name"]));
            }
            (Some("M"), Some("thread_name")) => {
                let track =
                    ParsedTrack { thread: text(&event["args"]["name"]), slices: Vec::new() };
                assert!(tracks.insert((process, thread), track).is_none());
            }
            (Some("X"), Some(name)) => {
                let track = tracks.get_mut(&(process, thread)).expect("a name comes first");
                let start_us = number(&event["ts"]);
                let duration_us = number(&event["dur"]);
                let end_us = start_us + duration_us;
                let name = name.to_owned();
                let category = text(&event["cat"]);
                track.slices.push(ParsedSlice { name, category, start_us, end_us });
            }
            (_, _) => panic!("{event}"),
        }
    }
    let mut by_process: BTreeMap<String, Vec<ParsedTrack>> = BTreeMap::new();
    for ((process, _), track) in tracks {
        by_process.entry(processes[&process].clone()).or_default().push(track);
    }
    by_process
}

/// The last eight steps of `microbatches` on every worker, in an order that can have been.
fn check_track(track: &ParsedTrack, microbatches: usize) {
    let mut counts = BTreeMap::new();
    for slice in &track.slices {
        assert!(slice.start_us <= slice.end_us, "{slice:?}");
        *counts.entry(slice.category.as_str()).or_insert(0) += 1;
    }
    for passes in ["forward", "input gradient", "weight gradient"] {
        assert!(counts[passes] >= 8 * microbatches, "{passes}: {counts:?}");
    }
    for once in ["gate", "update"] {
        assert!(counts[once] >= 8, "{once}: {counts:?}");
    }
    let mut slices: Vec<&ParsedSlice> = track.slices.iter().collect();
    slices.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    for pair in slices.windows(2) {
        // To the nanosecond, which is how times are written.
        assert!(pair[0].end_us < pair[1].start_us + 2e-3, "one thing after the other: {pair:?}");
    }
}

#[test]
fn the_trace_shows_the_last_steps_as_they_were_and_as_planned() {
    let more = "--steps 12 --workers 3 --schedule zb-h1 --window 1 --set optimizer.clip=0";
    let text_folder = TextFolder::new();
    let run = text_folder.run(more);
    let tracks = tracks(&run.json("trace.json"));
    let processes: Vec<&str> = tracks.keys().map(String::as_str).collect();
    assert_eq!(processes, ["measured", "planned: zb-h1, 3 stages, 8 microbatches"]);
    for tracks in tracks.values() {
        let threads: Vec<&str> = tracks.iter().map(|track| track.thread.as_str()).collect();
        assert_eq!(threads, ["worker 0", "worker 1", "worker 2"]);
        tracks.iter().for_each(|track| check_track(track, 8));
    }
    let last = |track: &ParsedTrack| track.slices.iter().any(|slice| slice.name == "0F7 step 12");
    assert!(last(&tracks["measured"][0]), "the last step is the run's");
    let first = |slice: &ParsedSlice| slice.name.ends_with(" step 3");
    assert!(!tracks["measured"].iter().any(|track| track.slices.iter().any(first)));
}

#[test]
fn the_trace_shows_a_run_that_waits_for_its_verdicts() {
    let text_folder = TextFolder::new();
    let run = text_folder.run("--workers 2 --schedule 1f1b --window 0");
    let tracks = tracks(&run.json("trace.json"));
    for track in tracks.values().flatten() {
        let found: BTreeSet<&str> =
            track.slices.iter().map(|slice| slice.category.as_str()).collect();
        for category in ["forward", "both gradients", "gate", "update"] {
            assert!(found.contains(category), "{category}: {found:?}");
        }
    }
}

/// Perfetto drops slices that begin before 0.
#[test]
fn nothing_in_the_trace_begins_before_it() {
    let text_folder = TextFolder::new();
    let run = text_folder.run("--steps 20 --workers 4 --schedule zb-h1 --window 1");
    let tracks = tracks(&run.json("trace.json"));
    let slices = tracks.values().flatten().flat_map(|track| &track.slices);
    let early: Vec<_> = slices.filter(|slice| slice.start_us < 0.0).collect();
    assert!(early.is_empty(), "{early:?}");
}

#[test]
fn steps_of_the_trace_are_counted_from_one() {
    let text_folder = TextFolder::new();
    let tracks = tracks(&text_folder.run("").json("trace.json"));
    for (process, tracks) in &tracks {
        let has = |step: &str| {
            let mut slices = tracks.iter().flat_map(|track| &track.slices);
            slices.any(|slice| slice.name.ends_with(step))
        };
        assert!(has(" step 1") && has(" step 8") && !has(" step 0"), "{process}");
    }
}
