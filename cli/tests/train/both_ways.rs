//! Output and files of a run are the same with threads and with processes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::folder::{FILES, names};
use crate::text_folder::{TextFolder, TrainingOutput};

/// Where the events are documented.
const DOCUMENTED: &str = include_str!("../../../docs/run-folder.md");
/// Events that only processes print, when nothing happens to them.
const ONLY_OF_PROCESSES: [&str; 1] = ["checkpoint"];

/// The same run with threads and with processes.
fn both(folder: &TextFolder, more: &str) -> (TrainingOutput, TrainingOutput) {
    let threads = folder.run(more);
    let processes = folder.finish(&mut folder.small_in_processes(more));
    (threads, processes)
}

/// Events by their kinds, with all keys that any of a kind has.
fn keys(run: &TrainingOutput) -> BTreeMap<String, BTreeSet<String>> {
    let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in &run.events {
        let kind = event["event"].as_str().expect("a word").to_owned();
        kinds.entry(kind).or_default().extend(event.as_object().expect("fields").keys().cloned());
    }
    kinds
}

/// The fields of an event that do not depend on time, place, and threads or processes.
fn lasting(event: &Value) -> Value {
    let mut event = event.clone();
    let fields = event.as_object_mut().expect("fields");
    let times = ["at_ms", "ms", "tokens_per_s", "bubble_measured", "bubble_planned"];
    for key in times.into_iter().chain(["folder", "attempts"]) {
        fields.remove(key);
    }
    event
}

#[test]
fn a_script_reads_the_same_of_threads_and_of_processes() {
    let more = "--workers 3 --set train.eval_every=4 --inject step=4,tensor=head,value=nan";
    let (threads, processes) = both(&TextFolder::new(), more);
    let expected = keys(&threads);
    let mut found = keys(&processes);
    for kind in ["step", "rollback", "eval", "done"] {
        assert!(expected.contains_key(kind), "{kind}");
    }
    for kind in ONLY_OF_PROCESSES {
        assert!(found.remove(kind).is_some(), "{kind}: {found:?}");
    }
    assert_eq!(found, expected);
    for kind in expected.keys().map(String::as_str).chain(ONLY_OF_PROCESSES) {
        assert!(DOCUMENTED.contains(&format!("`{kind}`")), "{kind} is not documented");
    }
    for kind in expected.keys() {
        let fields_of =
            |run: &TrainingOutput| run.of(kind).into_iter().map(lasting).collect::<Vec<_>>();
        assert_eq!(fields_of(&processes), fields_of(&threads), "{kind}");
    }
}

#[test]
fn a_reader_finds_the_same_files_of_threads_and_of_processes() {
    let folder = TextFolder::new();
    let (threads, processes) = both(&folder, "--workers 2");
    let found: Vec<String> =
        names(&processes).into_iter().filter(|name| name != "cluster").collect();
    assert_eq!((names(&threads), found), (FILES.map(str::to_owned).to_vec(), names(&threads)));
    for file in ["config.toml", "sample.txt", "model/config.json", "model/model.safetensors"] {
        assert_eq!(processes.file(file), threads.file(file), "{file}");
    }
    let tracks = |run: &TrainingOutput| {
        let trace = run.json("trace.json");
        let events = trace["traceEvents"].as_array().expect("a list").clone();
        let names = events.iter().filter(|event| event["ph"] == "M");
        names.map(|event| event["args"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(tracks(&processes), tracks(&threads));
}

/// The first step takes time like any other, and what was planned is what passes took.
#[test]
fn the_times_of_processes_are_measured_as_those_of_threads() {
    let (_, processes) = both(&TextFolder::new(), "--workers 2 --schedule zb-v");
    for step in processes.of("step") {
        let number = |key: &str| step[key].as_f64().unwrap_or_else(|| panic!("{key}: {step}"));
        assert!(number("ms") > 0.0 && number("tokens_per_s") > 0.0, "{step}");
        for share in ["bubble_measured", "bubble_planned"] {
            assert!((0.0..1.0).contains(&number(share)), "{share}: {step}");
        }
    }
    let planned: BTreeSet<String> =
        processes.each("bubble_planned").iter().map(Value::to_string).collect();
    assert!(planned.len() > 1, "it follows what passes take: {planned:?}");
}
