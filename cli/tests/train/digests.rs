//! A run is decided by its model, text and seed, not by which worker computes what when.

use serde_json::{Value, json};

use crate::text_folder::{TextFolder, TrainingOutput};

/// A variant of a run: workers, schedule, window and threads.
struct RunVariant {
    workers: u32,
    schedule: &'static str,
    window: &'static str,
    threads: u32,
}

const fn variant(
    workers: u32,
    schedule: &'static str,
    window: &'static str,
    threads: u32,
) -> RunVariant {
    RunVariant { workers, schedule, window, threads }
}

/// Every number of workers, schedule, window and number of threads.
const WAYS: [RunVariant; 8] = [
    variant(1, "gpipe", "0", 1),
    variant(2, "1f1b", "1", 2),
    variant(3, "interleaved", "1", 1),
    variant(4, "zb-h1", "1", 1),
    variant(2, "zb-h2", "0", 2),
    variant(4, "zb-h2", "1", 1),
    variant(3, "zb-v", "1", 1),
    variant(2, "auto", "auto", 1),
];

/// Twelve microbatches, which one to four workers can deal out, with a skip and a replay on the
/// way.
const BATCH: &str = "--set train.global_batch=12 --set guard.nonfinite=replay \
    --inject step=3,tensor=layers.2.attn.k,value=nan,attempts=2 \
    --inject step=6,tensor=embed.tokens,value=inf";

fn run(folder: &TextFolder, variant: &RunVariant, more: &str) -> TrainingOutput {
    let RunVariant { workers, schedule, window, threads } = variant;
    let plan = format!("--workers {workers} --schedule {schedule} --window {window}");
    let run = folder.run(&format!("{BATCH} {plan} --threads {threads} {more}"));
    let found = run.json("run.json")["plan"].clone();
    assert_eq!((&found["workers"], &found["threads"]), (&json!(workers), &json!(threads)));
    if *schedule != "auto" {
        assert_eq!(found["schedule"], *schedule);
        assert_eq!(found["window"].to_string(), *window);
    }
    run
}

/// The results of the steps, which must not depend on the workers.
fn step_results(run: &TrainingOutput) -> Vec<Value> {
    let steps = run.of("step").into_iter();
    let results =
        steps.map(|step| json!([step["loss"], step["gnorm"], step["verdict"], step["clip"]]));
    results.collect()
}

fn check(ways: &[RunVariant], more: &str) {
    let folder = TextFolder::new();
    let first = run(&folder, &ways[0], more);
    for verdict in ["keep", "clip", "skip"] {
        assert!(first.each("verdict").contains(&verdict.into()), "{verdict}: {}", first.stdout);
    }
    for variant in &ways[1..] {
        let RunVariant { workers, schedule, window, threads } = variant;
        let other = run(&folder, variant, more);
        let settings = format!("{workers} workers, {schedule}, window {window}, {threads} threads");
        assert_eq!(step_results(&other), step_results(&first), "{settings}");
        assert_eq!(other.digest(), first.digest(), "{settings}");
        let model = "model/model.safetensors";
        assert!(other.file(model) == first.file(model), "{settings}");
    }
}

#[test]
fn workers_schedules_windows_and_threads_do_not_show_in_the_digest() {
    check(&WAYS, "");
}

/// Injections strike what is trained: neither attention of block 2 nor the embedding is frozen.
#[test]
fn nor_do_they_with_frozen_tensors() {
    let frozen = "--set train.freeze=[\"layers.0-1\",\"layers.*.attn.q\",\"norm\"]";
    check(&[variant(4, "zb-h1", "1", 1), variant(1, "1f1b", "0", 2)], frozen);
}

#[test]
fn nor_do_they_with_grouped_queries_and_rotary_positions() {
    let llama = "--set model.family=llama --set model.kv_heads=2";
    check(&[variant(4, "zb-h1", "1", 1), variant(1, "1f1b", "0", 2)], llama);
}

#[test]
fn seed_text_and_settings_show_in_the_digest() {
    let folder = TextFolder::new();
    folder.write("other.txt", "a line of another text\n".repeat(200));
    let changes = [
        "",
        "--seed 2",
        "--text other.txt",
        "--set optimizer.betas=[0.9,0.99]",
        "--set train.precision=bf16",
    ];
    let mut digests: Vec<String> =
        changes.iter().map(|change| folder.run(change).digest().to_owned()).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), changes.len());
}

#[test]
fn nor_do_they_with_bfloat16_factors() {
    let ways =
        [variant(1, "gpipe", "0", 2), variant(3, "zb-v", "1", 1), variant(2, "1f1b", "1", 1)];
    let precision = "--set train.precision=bf16";
    check(&ways, precision);
    let folder = TextFolder::new();
    let threads = folder.run(precision);
    let processes = folder.finish(&mut folder.small_in_processes(precision));
    assert_eq!(processes.digest(), threads.digest());
}
