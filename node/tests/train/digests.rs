//! A run is decided by its model, text and seed, not by who computes what when.

use serde_json::{Value, json};

use crate::text_folder::{TextFolder, TrainingOutput};

/// A way to run.
struct RunVariant {
    workers: u32,
    schedule: &'static str,
    window: &'static str,
    threads: u32,
}

const fn way(
    workers: u32,
    schedule: &'static str,
    window: &'static str,
    threads: u32,
) -> RunVariant {
    RunVariant { workers, schedule, window, threads }
}

/// Every number of workers, schedule, window and number of threads.
const WAYS: [RunVariant; 8] = [
    way(1, "gpipe", "0", 1),
    way(2, "1f1b", "1", 2),
    way(3, "interleaved", "1", 1),
    way(4, "zb-h1", "1", 1),
    way(2, "zb-h2", "0", 2),
    way(4, "zb-h2", "1", 1),
    way(3, "zb-v", "1", 1),
    way(2, "auto", "auto", 1),
];

/// Twelve microbatches, which one to four workers can deal out, with a skip and a replay on the
/// way.
const BATCH: &str = "--set train.global_batch=12 --set guard.nonfinite=replay \
    --inject step=3,tensor=layers.2.attn.k,value=nan,attempts=2 \
    --inject step=6,tensor=embed.tokens,value=inf";

fn run(place: &TextFolder, way: &RunVariant, more: &str) -> TrainingOutput {
    let RunVariant { workers, schedule, window, threads } = way;
    let plan = format!("--workers {workers} --schedule {schedule} --window {window}");
    let run = place.run(&format!("{BATCH} {plan} --threads {threads} {more}"));
    let found = run.json("run.json")["plan"].clone();
    assert_eq!((&found["workers"], &found["threads"]), (&json!(workers), &json!(threads)));
    if *schedule != "auto" {
        assert_eq!(found["schedule"], *schedule);
        assert_eq!(found["window"].to_string(), *window);
    }
    run
}

/// What a step came to, whoever took it.
fn step_results(run: &TrainingOutput) -> Vec<Value> {
    let steps = run.of("step").into_iter();
    let told =
        steps.map(|step| json!([step["loss"], step["gnorm"], step["verdict"], step["clip"]]));
    told.collect()
}

fn check(ways: &[RunVariant], more: &str) {
    let place = TextFolder::new();
    let first = run(&place, &ways[0], more);
    for verdict in ["keep", "clip", "skip"] {
        assert!(first.each("verdict").contains(&verdict.into()), "{verdict}: {}", first.stdout);
    }
    for way in &ways[1..] {
        let RunVariant { workers, schedule, window, threads } = way;
        let other = run(&place, way, more);
        let told = format!("{workers} workers, {schedule}, window {window}, {threads} threads");
        assert_eq!(step_results(&other), step_results(&first), "{told}");
        assert_eq!(other.digest(), first.digest(), "{told}");
        let model = "model/model.safetensors";
        assert!(other.file(model) == first.file(model), "{told}");
    }
}

#[test]
fn workers_schedules_windows_and_threads_do_not_show_in_the_digest() {
    check(&WAYS, "");
}

#[test]
fn nor_do_they_with_grouped_queries_and_rotary_positions() {
    let llama = "--set model.family=llama --set model.kv_heads=2";
    check(&[way(4, "zb-h1", "1", 1), way(1, "1f1b", "0", 2)], llama);
}

#[test]
fn seed_text_and_settings_show_in_the_digest() {
    let place = TextFolder::new();
    place.write("other.txt", "a line of another text\n".repeat(200));
    let changes = ["", "--seed 2", "--text other.txt", "--set optimizer.betas=[0.9,0.99]"];
    let mut digests: Vec<String> =
        changes.iter().map(|change| place.run(change).digest().to_owned()).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), changes.len());
}
