//! Schedules with two replicas of the model, from the command line: they train to the bits of every
//! schedule with as many lanes, whatever the workers, in threads and in processes.

use serde_json::json;

use crate::common::refusal;
use crate::text_folder::{STEPS, TextFolder};

#[test]
fn both_schedules_train_to_the_bits_of_one_worker() {
    let folder = TextFolder::new();
    let alone = folder.run("--schedule 1f1b --workers 1 --threads 1 --set train.lanes=2");
    for (kind, workers) in [("gems", 3), ("chimera", 2), ("chimera", 4)] {
        for window in [0, 1] {
            let lanes = "--set train.lanes=2";
            let more = format!("--schedule {kind} --workers {workers} --window {window} {lanes}");
            let run = folder.run(&format!("{more} --threads 2"));
            assert_eq!(run.digest(), alone.digest(), "{more}");
            assert_eq!(run.each("loss"), alone.each("loss"), "{more}");
            assert_eq!(run.each("gnorm"), alone.each("gnorm"), "{more}");
            let model = "model/model.safetensors";
            assert!(run.file(model) == alone.file(model), "{more}: each layer is written once");
            assert_eq!(run.json("run.json")["plan"]["schedule"], json!(kind));
        }
    }
    assert_eq!(alone.of("step").len(), STEPS);
    let other = folder.run("--schedule 1f1b --workers 2");
    assert_ne!(other.digest(), alone.digest(), "another order of the same sum");
}

#[test]
fn a_corrupted_gradient_is_left_out_of_both_replicas() {
    let folder = TextFolder::new();
    let struck = "--set train.lanes=2 --inject step=3,tensor=layers.2.mlp.up,value=nan";
    let alone = folder.run(&format!("--schedule gems --workers 1 {struck}"));
    let run = folder.run(&format!("--schedule chimera --workers 4 {struck}"));
    assert_eq!(run.digest(), alone.digest());
    assert_eq!(run.of("rollback").len(), 1);
}

/// An odd number of stages has one in the middle that trains the same layers twice.
#[test]
fn processes_train_to_the_bits_of_threads() {
    let folder = TextFolder::new();
    let in_threads = folder.run("--schedule zb-h1 --workers 1 --set train.lanes=2");
    for more in ["--schedule chimera --workers 2", "--schedule gems --workers 3"] {
        let more = &format!("{more} --set train.lanes=2");
        let run = folder.finish(&mut folder.small_in_processes(more));
        assert_eq!(run.digest(), in_threads.digest(), "{more}");
        assert_eq!(run.each("loss"), in_threads.each("loss"), "{more}");
    }
}

/// Stages, replicas and directions in every way that four lanes can be dealt.
#[test]
fn pipelines_side_by_side_train_to_the_bits_of_one_worker() {
    let folder = TextFolder::new();
    let lanes = "--set train.lanes=4";
    let alone = folder.run(&format!("--schedule 1f1b --workers 1 {lanes}"));
    let mut expected = vec![
        ("--workers 4 --replicas 2 --schedule zb-h1 --window 1", 2),
        ("--workers 4 --replicas 4 --window 0", 4),
        ("--workers 6 --replicas 2 --schedule zb-v", 2),
        ("--workers 4 --replicas 2 --schedule chimera", 2),
        // More workers than blocks: the planner has use for the others.
        ("--workers 8", 2),
        ("--workers 4", 1),
    ];
    for (more, replicas) in &expected {
        let run = folder.run(&format!("{more} {lanes}"));
        assert_eq!(run.digest(), alone.digest(), "{more}");
        assert_eq!(run.each("loss"), alone.each("loss"), "{more}");
        assert_eq!(run.each("gnorm"), alone.each("gnorm"), "{more}");
        let model = "model/model.safetensors";
        assert!(run.file(model) == alone.file(model), "{more}: each layer is written once");
        assert_eq!(run.json("run.json")["plan"]["replicas"], json!(replicas), "{more}");
    }
    expected.truncate(2);
    for (more, _) in expected {
        let run = folder.finish(&mut folder.small_in_processes(&format!("{more} {lanes}")));
        assert_eq!(run.digest(), alone.digest(), "{more}, in processes");
        assert_eq!(run.each("loss"), alone.each("loss"), "{more}, in processes");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let folder = TextFolder::new();
    let check = |more: &str, expected: &[&str]| {
        let error = refusal(&mut folder.small(&format!("--out out {more}")), 2);
        for part in expected {
            assert!(error.contains(part), "{more}:\n{error}\nexpected {part}");
        }
    };
    let odd =
        ["--workers: chimera needs an even number of stages, found 3", "--workers 2, --workers 4"];
    check("--schedule chimera --workers 3 --set train.lanes=2", &odd);
    let one_lane = ["gems runs lanes in two directions", "found 1", "train.lanes = 2 or more"];
    check("--schedule gems --workers 2", &one_lane);
    let few = ["1 microbatches cannot be dealt evenly to 2 lanes", "another train.microbatch"];
    check("--schedule gems --workers 2 --set train.microbatch=8 --set train.lanes=2", &few);
    let uneven = ["5 workers cannot be dealt evenly to 2 replicas", "--workers 4 or --workers 6"];
    check("--workers 5 --replicas 2 --set train.lanes=2", &uneven);
    let three = ["schedule.replicas: the number of replicas", "schedule.replicas = 2 or 4"];
    check("--workers 3 --replicas 3 --set train.lanes=4", &three);
    let few = ["4 replicas of gpipe need 4 lanes or more, found 2", "train.lanes = 4 or more"];
    check("--workers 4 --replicas 4 --set train.lanes=2", &few);
    let odd = refusal(
        &mut folder.command(
            "plan --set model.preset=tiny --set model.layers=4 --set train.lanes=2 --schedule chimera \
             --nodes 3",
        ),
        2,
    );
    assert!(
        odd.contains("even number of stages, found 3") && odd.contains("one node more or less"),
        "{odd}"
    );
}
