//! Runs without steps, from the command line: they train, repeat to the bit, and refuse what needs
//! steps.

use serde_json::json;

use crate::common::refusal;
use crate::text_folder::{STEPS, TextFolder};

/// All whose order does not depend on which message comes first.
const KINDS: [&str; 7] =
    ["pipedream", "pipedream-2bw", "pipemare", "xpipe", "spectrain", "wpipe", "avgpipe"];

#[test]
fn every_asynchronous_schedule_trains_and_repeats_to_the_bit() {
    let folder = TextFolder::new();
    let mut digests = Vec::new();
    for kind in KINDS {
        let first = folder.run(&format!("--schedule {kind} --workers 2 --threads 1"));
        let again = folder.run(&format!("--schedule {kind} --workers 2 --threads 2"));
        assert_eq!(first.digest(), again.digest(), "{kind}");
        let losses: Vec<f64> = first.each("loss").iter().filter_map(|loss| loss.as_f64()).collect();
        assert_eq!(losses.len(), STEPS, "{kind}");
        assert!(losses[STEPS - 1] < losses[0], "{kind} learns: {losses:?}");
        assert_eq!(first.of("eval").len(), 1, "{kind} evaluates at the end");
        let plan = first.json("run.json")["plan"].clone();
        assert_eq!((&plan["schedule"], &plan["window"]), (&json!(kind), &json!(null)));
        assert!(!first.file("model/model.safetensors").is_empty(), "{kind}");
        digests.push(first.digest().to_owned());
    }
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), KINDS.len(), "no two of them are the same method");
}

#[test]
fn a_region_whose_order_is_found_trains() {
    let run = TextFolder::new().run("--schedule ampnet --workers 3 --set schedule.ampnet_cap=3");
    assert_eq!(run.of("step").len(), STEPS);
}

/// Two runs find two orders; the order of one, run again, has its bits, whatever the threads.
#[test]
fn an_order_that_was_found_is_run_again_to_the_bit() {
    let folder = TextFolder::new();
    let ampnet = "--schedule ampnet --workers 3 --set schedule.ampnet_cap=3";
    let found = folder.run(ampnet);
    let order = found.text("order.txt");
    assert!(order.starts_with("asynchronous ampnet line stages 3 "), "{order}");
    folder.write("found.txt", &order);
    let again = format!("--set schedule.ampnet_order={}", folder.path("found.txt").display());
    for threads in [1, 2] {
        let run = folder.run(&format!("{ampnet} {again} --threads {threads}"));
        assert_eq!(run.digest(), found.digest());
        assert_eq!(run.each("loss"), found.each("loss"));
    }
    let refused = |more: &str, expected: &str| {
        let error = refusal(&mut folder.small(&format!("--out out {again} {more}")), 2);
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("  schedule.ampnet_order"), "{error}");
    };
    let ampnet = "--schedule ampnet --set schedule.ampnet_cap=3";
    refused(&format!("{ampnet} --workers 2"), "expected the order of a run `asynchronous ampnet");
    folder.write("found.txt", order.replacen("0BW0@", "0BW1@", 1));
    refused(&format!("{ampnet} --workers 3"), "expected either one BW");
    folder.write("found.txt", "nothing");
    refused(&format!("{ampnet} --workers 3"), "line 1: expected `asynchronous KIND");
}

/// Without a stage behind it nothing is late, and the run is the synchronous one.
#[test]
fn on_one_stage_pipemare_is_synchronous() {
    let folder = TextFolder::new();
    let losses = |schedule: &str| folder.run(&format!("--workers 1 {schedule}")).each("loss");
    assert_eq!(losses("--schedule pipemare"), losses("--schedule 1f1b"));
}

/// Options of single methods: a warm-up of all steps is the synchronous run, one of some is
/// neither.
#[test]
fn methods_are_run_in_the_ways_that_they_have() {
    let folder = TextFolder::new();
    let model = |more: &str| {
        let run = folder.run(&format!("--workers 2 --set optimizer.clip=0 {more}"));
        run.file("model/model.safetensors")
    };
    let pipemare =
        |steps| model(&format!("--schedule pipemare --set schedule.pipemare_warmup={steps}"));
    assert!(pipemare(STEPS) == model("--schedule 1f1b"), "bit by bit");
    let models = [
        pipemare(0),
        pipemare(STEPS / 2),
        pipemare(STEPS),
        model("--schedule pipedream"),
        model("--schedule pipedream --set schedule.pipedream_sync=vertical"),
    ];
    assert!((1..models.len()).all(|i| !models[..i].contains(&models[i])), "all are others");
}

#[test]
fn what_needs_steps_is_refused() {
    let folder = TextFolder::new();
    let check = |more: &str, expected: &[&str]| {
        let error = refusal(&mut folder.small(&format!("--out out {more}")), 2);
        for part in expected {
            assert!(error.contains(part), "{more}:\n{error}\nexpected {part}");
        }
    };
    let window = ["schedule.window", "xpipe is asynchronous", "try: --window auto"];
    check("--schedule xpipe --window 1", &window);
    check("--schedule xpipe --set train.eval_every=2", &["train.eval_every", "try: "]);
    let chunks = ["6 chunks for 4 layers", "try: --workers 2 or fewer"];
    check("--schedule wpipe --workers 3", &chunks);
    let few = ["needs at least 4 microbatches", "try: a smaller train.microbatch"];
    check("--schedule pipedream-2bw --workers 4 --set train.microbatch=4", &few);
    let uneven = ["8 minibatches cannot be dealt evenly to 3 pipelines", "try: --steps"];
    check("--schedule avgpipe --set schedule.avgpipe_pipelines=3", &uneven);
    let long = ["found 10000000", "try: fewer --steps, or a larger train.microbatch"];
    check("--schedule pipedream --steps 10000000", &long);
}
