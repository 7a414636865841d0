//! Runs without steps, from the command line: they train, repeat to the bit, and refuse what needs
//! steps.

use serde_json::json;

use crate::common::refusal;
use crate::place::{Place, STEPS};

/// All whose order does not depend on who comes first.
const KINDS: [&str; 7] =
    ["pipedream", "pipedream-2bw", "pipemare", "xpipe", "spectrain", "wpipe", "avgpipe"];

#[test]
fn every_asynchronous_schedule_trains_and_repeats_to_the_bit() {
    let place = Place::new();
    let mut digests = Vec::new();
    for kind in KINDS {
        let first = place.run(&format!("--schedule {kind} --workers 2 --threads 1"));
        let again = place.run(&format!("--schedule {kind} --workers 2 --threads 2"));
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
    let run = Place::new().run("--schedule ampnet --workers 3 --set schedule.ampnet_cap=3");
    assert_eq!(run.of("step").len(), STEPS);
}

/// Without a stage behind it nothing is late, and the run is the synchronous one.
#[test]
fn on_one_stage_pipemare_is_synchronous() {
    let place = Place::new();
    let losses = |schedule: &str| place.run(&format!("--workers 1 {schedule}")).each("loss");
    assert_eq!(losses("--schedule pipemare"), losses("--schedule 1f1b"));
}

/// Options of single methods: a warm-up of all steps is the synchronous run, one of some is neither.
#[test]
fn methods_are_run_in_the_ways_that_they_have() {
    let place = Place::new();
    let digest = |more: &str| {
        let run = place.run(&format!("--workers 2 --set optimizer.clip=0 {more}"));
        run.digest().to_owned()
    };
    let pipemare =
        |steps| digest(&format!("--schedule pipemare --set schedule.pipemare_warmup={steps}"));
    assert_eq!(pipemare(STEPS), digest("--schedule 1f1b"));
    let digests = [
        pipemare(0),
        pipemare(STEPS / 2),
        pipemare(STEPS),
        digest("--schedule pipedream"),
        digest("--schedule pipedream --set schedule.pipedream_sync=vertical"),
    ];
    assert!((1..digests.len()).all(|i| !digests[..i].contains(&digests[i])), "{digests:?}");
}

#[test]
fn what_needs_steps_is_refused() {
    let place = Place::new();
    let check = |more: &str, expected: &[&str]| {
        let error = refusal(&mut place.small(&format!("--out out {more}")), 2);
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
