use std::fs;

use clap::Parser;
use serde_json::Value;
use zbelastic_schedule::ChunkTimes;
use zbelastic_schedule::asynchronous::{AsyncKind, AsyncOp};
use zbelastic_wording::CommandError;

use super::super::inputs::program_text;
use super::{AsyncMemoryCosts, AsyncSimulationInput, replay_with_memory};
use crate::args::{Cli, CliCommand, ScheduleCommand};
use crate::commands::schedule;
use crate::commands::schedule::input_error::{InputError, failure};

fn command(line: &str) -> ScheduleCommand {
    let words = ["zbelastic", "schedule"].into_iter().chain(line.split_whitespace());
    let command = Cli::try_parse_from(words).expect("legal").command;
    let CliCommand::Schedule(command) = command else { panic!("{line}") };
    command
}

/// `schedule simulate` with these flags.
fn read(flags: &str) -> Result<(AsyncSimulationInput, AsyncMemoryCosts), Vec<InputError>> {
    let ScheduleCommand::Simulate(args) = command(&format!("simulate {flags}")) else {
        panic!("simulate")
    };
    let text = program_text(&args.program)?;
    replay_with_memory(&args, text.as_deref())
}

/// Standard output of a command.
fn printed(line: &str) -> String {
    let mut out = Vec::new();
    schedule::run(&command(line), &mut out).unwrap_or_else(|stop| panic!("{line}: {stop:?}"));
    String::from_utf8(out).expect("text")
}

fn json(line: &str) -> Value {
    serde_json::from_str(&printed(&format!("{line} --json"))).expect("JSON")
}

fn refused(line: &str) -> String {
    let stop = schedule::run(&command(line), &mut Vec::new()).expect_err("it is wrong");
    let CommandError::Failed(failure) = stop else { panic!("{line}: {stop:?}") };
    failure.details.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn check_wrong(flags: &str, expected: &str) {
    let Err(errors) = read(flags) else { panic!("{flags} is wrong") };
    let details = failure(errors).details;
    let details: Vec<String> = details.iter().map(ToString::to_string).collect();
    assert_eq!(details.join("\n"), expected, "{flags}");
}

#[test]
fn values_of_a_stage_are_shared_among_its_chunks() {
    let flags = "--kind wpipe --stages 2 --microbatches 2 --f 2,4 --b 6 --w 8,10 --step 3 \
                 --comm 0.5 --occupancy 0.25 --mf 3,5 --weights 7,9";
    let (replay, memory) = read(flags).expect("legal");
    let times = |f, b, w| ChunkTimes { f, b, w, w_early: 0.0 };
    let first = times(1.0, 3.0, 4.0);
    let second = times(2.0, 3.0, 5.0);
    assert_eq!(replay.costs.chunks, [first, second, first, second]);
    assert_eq!((replay.costs.link, replay.costs.occupancy, replay.costs.step), (0.5, 0.25, 3.0));
    let kept: Vec<f64> = memory.chunks.iter().map(|chunk| chunk.after_forward).collect();
    assert_eq!(kept, [1.5, 2.5, 1.5, 2.5]);
    assert_eq!(memory.weights, [7.0, 9.0]);
}

/// Without `--steps` there are enough steps for the pipeline to be full, whatever its size.
#[test]
fn every_schedule_has_a_rhythm_of_its_own_accord() {
    for kind in AsyncKind::ALL {
        for (p, m) in (1..=6).flat_map(|p| (1..=8).map(move |m| (p, m))) {
            let flags = format!("--kind {kind} --stages {p} --microbatches {m}");
            let Ok((replay, _)) = read(&flags) else {
                let needs_filling = matches!(kind, AsyncKind::PipeDream2Bw | AsyncKind::WPipe);
                assert!(needs_filling && m < p, "{flags}");
                continue;
            };
            let steady = replay.simulate().steady();
            assert!(steady.is_some(), "{flags}: {} steps", replay.program.minibatch_count);
        }
    }
}

#[test]
fn a_run_is_as_long_and_keeps_as_much_as_given() {
    let header = |flags: &str| {
        let (replay, _) = read(&format!("{flags} --stages 3 --microbatches 4")).expect("legal");
        replay.program.to_string().lines().next().expect("a header").to_owned()
    };
    let avgpipe = header("--kind avgpipe --pipelines 3 --steps 6");
    assert!(avgpipe.contains("pipelines 3 minibatches 6 microbatches 4"), "{avgpipe}");
    let pipemare = header("--kind pipemare --warm-up 3");
    assert!(pipemare.ends_with("minibatches 9 microbatches 4 update 4 warm-up 3"), "{pipemare}");
    let pipedream = header("--kind pipedream --vertical-sync");
    assert!(pipedream.ends_with("update 1 vertical-sync"), "{pipedream}");
    let (replay, _) =
        read("--kind ampnet --stages 1 --microbatches 4 --cap 2 --update-every 3").expect("legal");
    let [AsyncOp::Dynamic(_, dynamic)] = replay.program.stages[0][..] else { panic!("a region") };
    assert_eq!((dynamic.cap, dynamic.update_every), (2, 3));
}

/// 2BW on four stages: a step is 8 of 3, an update is one of 0.5.
#[test]
fn a_run_is_timed_as_a_whole_and_while_it_is_full() {
    let line = "simulate --kind pipedream-2bw --stages 4 --microbatches 8 --steps 6 --step 0.5 \
                --mf 10 --weights 7";
    let report = json(line);
    assert_eq!((&report["kind"], &report["steps"]), (&"pipedream-2bw".into(), &6.into()));
    assert_eq!(report["period"], 24.5);
    assert_eq!(report["steady"]["bubble"], 0.5 / 24.5);
    assert_eq!(report["steady"]["idle"], Value::from(vec![0.5; 4]));
    // The last update is behind the last pass.
    assert_eq!(report["makespan"], 6.0 * 24.0 + 5.0 * 0.5 + 9.0);
    assert_eq!(report["peak_activations"], Value::from(vec![40.0, 30.0, 20.0, 10.0]));
    assert_eq!(report["peak_versions"], Value::from(vec![2.0; 4]));
    assert_eq!(report["peak_mem"], Value::from(vec![54.0, 44.0, 34.0, 24.0]));
    assert!(report["measured"].as_str().is_some_and(|text| text.contains("the whole run")));
    let table = printed(line);
    let lines: Vec<&str> = table.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            "pipedream-2bw, 4 stages, 8 microbatches in each of 6 steps",
            "whole run: longest stage 155.5, makespan 155.5, bubble rate 7.40 %, synchronized 7.40 %",
            "full pipeline, from the end of step 1 to that of step 5: a step every 24.5, bubble 2.04 %",
        ]
    );
    let short = printed("simulate --kind pipedream --stages 4 --microbatches 1 --steps 1");
    assert!(short.contains("never for as long as a step; take more --steps"), "{short}");
    let short = json("simulate --kind pipedream --stages 4 --microbatches 1 --steps 1");
    assert_eq!((&short["period"], &short["steady"]), (&Value::Null, &Value::Null));
}

/// Also of a region: what is printed is the order that was found in it.
#[test]
fn a_program_that_was_printed_can_be_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("program.txt");
    for kind in AsyncKind::ALL {
        let size = format!("--kind {kind} --stages 3 --microbatches 4");
        let times = "--f 1,2,1 --comm 0.25 --step 0.5 --program-text";
        let report = json(&format!("simulate {size} {times}"));
        fs::write(&file, report["program"].as_str().expect("a text")).expect("a file");
        let again = json(&format!("simulate --program {} {times}", file.display()));
        assert_eq!(again, report, "{kind}");
    }
}

#[test]
fn a_run_is_drawn_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("a.svg");
    let trace = folder.path().join("a.json");
    for kind in AsyncKind::ALL {
        let size = format!("render --kind {kind} --stages 4 --microbatches 12");
        let drawing = printed(&size);
        assert!(drawing.starts_with(&format!("{kind}, 4 stages, 12 microbatches in each of ")));
        assert!(drawing.lines().skip(1).all(|row| row.len() <= 130), "{drawing}");
        assert!(drawing.contains("S step"), "{drawing}");
        let files = format!("--svg {} --trace {}", svg.display(), trace.display());
        assert_eq!(printed(&format!("{size} {files}")), "");
        assert!(fs::read_to_string(&svg).expect("written").ends_with("</svg>\n"));
        let text = fs::read_to_string(&trace).expect("written");
        let text: Value = serde_json::from_str(&text).expect("JSON");
        assert!(text["traceEvents"].as_array().expect("a list").len() > 2 * 4 * 24);
    }
}

#[test]
fn flags_that_mean_nothing_are_refused_by_name() {
    let size = "--stages 4 --microbatches 4";
    check_wrong(
        &format!("--kind pipedream {size} --window 1 --cap 3 --verdict 2 --f x"),
        "  --cap: this is for ampnet\n  try: leave out --cap
  --window: this is for synchronous schedules\n  try: leave out --window
  --verdict: this is for synchronous schedules\n  try: leave out --verdict
  --f: expected a number from 0 to 1e15, found `x`",
    );
    check_wrong(
        &format!(
            "--kind xpipe {size} --mem-limit 3 --pipelines 2 --warm-up 1 --vertical-sync --recompute"
        ),
        "  --pipelines: this is for avgpipe\n  try: leave out --pipelines
  --warm-up: this is for pipemare\n  try: leave out --warm-up
  --vertical-sync: this is for pipedream\n  try: leave out --vertical-sync
  --recompute: this is for synchronous schedules\n  try: leave out --recompute
  --mem-limit: this is for synchronous schedules\n  try: leave out --mem-limit",
    );
    assert_eq!(
        refused(&format!("render --kind wpipe {size} --pytorch -")),
        "  --pytorch: this is for synchronous schedules\n  try: leave out --pytorch",
    );
    assert_eq!(
        refused(&format!("simulate --kind 1f1b {size} --steps 3 --weights 1")),
        "  --steps: this is for asynchronous schedules\n  try: leave out --steps
  --weights: this is for asynchronous schedules\n  try: leave out --weights",
    );
    assert_eq!(
        refused(&format!("solve --kind xpipe {size}")).lines().skip(1).collect::<Vec<_>>(),
        [
            "  why: it is asynchronous: it has no step to solve",
            "  try: zbelastic schedule simulate --kind xpipe",
        ]
    );
}

#[test]
fn sizes_that_a_schedule_does_not_have_are_refused() {
    check_wrong(
        "--kind avgpipe --stages 2 --microbatches 2 --pipelines 2 --steps 3",
        "  --steps: 3 minibatches cannot be dealt evenly to 2 pipelines
  why: pipelines take steps in turn\n  try: --steps 4",
    );
    check_wrong(
        "--kind wpipe --stages 4 --microbatches 3",
        "  --microbatches: wpipe with 4 stages needs at least 4 microbatches in a minibatch, found 3
  why: a version must be complete before it is read a step later\n  try: --microbatches 4 or more",
    );
    check_wrong(
        "--kind ampnet --stages 4 --microbatches 3 --cap 0",
        "  --cap: ampnet needs 1 to 65536 microbatches under way, found 0\n  try: --cap 1 to 65536",
    );
    check_wrong(
        "--kind pipedream --stages 4 --microbatches 0",
        "  --microbatches: pipedream needs 1 to 65536 microbatches, found 0
  try: --microbatches 1 to 65536",
    );
    check_wrong(
        "--kind pipedream --stages 1024 --microbatches 1024 --steps 2",
        "  --steps: an asynchronous program has at most 1048576 passes (chunks times microbatches \
         of the whole run), found 2097152\n  try: fewer --steps, or fewer --microbatches",
    );
}

/// What is wrong with a program is reported with the operation and the rule.
#[test]
fn a_program_that_is_none_or_breaks_a_rule_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("program.txt");
    let check = |text: &str, expected: &str| {
        fs::write(&file, text).expect("a file");
        let expected = expected.replace("FILE", &file.display().to_string());
        check_wrong(&format!("--program {}", file.display()), &expected);
        assert_eq!(refused(&format!("render --program {}", file.display())), expected);
    };
    let header = "asynchronous pipedream line stages 1 chunks 1 pipelines 1 minibatches 1 \
                  microbatches 1 update 1";
    check(
        &format!("{header}\nstage 0: 0F0 0BW0@0 0STEP1"),
        "  FILE: line 2: `0F0`: expected a version such as 5 behind @ for a pass, and for nothing \
         else\n  try: `zbelastic schedule simulate .. --program-text` prints a program to begin with",
    );
    check(
        &format!("{header}\nstage 0: 0F0@0 0BW0@0 0STASH0 0STEP1"),
        "  FILE: stage 0: chunk 0 keeps 1 versions at 0STASH0, at most 0 may be
  FILE: stage 0: version 0 of chunk 0 is never freed",
    );
    check(
        &format!("{header}\nstage 0: 0F0@0 0BW0@1 0STEP1"),
        "  FILE: stage 0: 0BW0@1 names a version that is not there; the newest is 0
  FILE: stage 0: expected 0BW0@1 to read version 0",
    );
    check(
        &format!("{header}\nstage 0: 0BW0@0 0F0@0 0STEP1"),
        "  FILE: stage 0: expected 0F0 before 0BW0, found it after
  FILE: the program stops: stage 0 waits at 0BW0 in step 0",
    );
}
