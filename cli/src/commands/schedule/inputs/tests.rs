use std::fs;

use clap::Parser;
use zbelastic_schedule::{ChunkMemory, ChunkTimes, Window};

use super::{SimulationInput, program_text, replay_with_memory};
use crate::args::{Cli, CliCommand, ScheduleCommand};
use crate::commands::schedule::input_error::{InputError, failure};

/// `schedule simulate` with these flags.
fn read(flags: &str) -> Result<(SimulationInput, Vec<ChunkMemory>), Vec<InputError>> {
    let line = format!("zbelastic schedule simulate {flags}");
    let command = Cli::try_parse_from(line.split_whitespace()).expect("legal").command;
    let CliCommand::Schedule(ScheduleCommand::Simulate(args)) = command else { panic!("simulate") };
    let text = program_text(&args.program)?;
    replay_with_memory(&args, text.as_deref())
}

const ZB_V: &str = "--kind zb-v --stages 2 --microbatches 4";

#[test]
fn values_of_a_stage_are_shared_among_its_chunks() {
    let flags = format!("{ZB_V} --f 2,4 --b 6 --w 8,10 --comm 0.5 --mf 3,5 --mw 1");
    let (replay, memory) = read(&flags).expect("legal");
    let times = |f, b, w| ChunkTimes { f, b, w, w_early: 0.0 };
    let first = times(1.0, 3.0, 4.0);
    let second = times(2.0, 3.0, 5.0);
    assert_eq!(replay.costs.chunks, [first, second, second, first]);
    assert_eq!(replay.costs.link, 0.5);
    let kept: Vec<f64> = memory.iter().map(|chunk| chunk.after_forward).collect();
    assert_eq!(kept, [1.5, 2.5, 2.5, 1.5]);
    assert!(memory.iter().all(|chunk| chunk.after_input_gradient == 0.5));
}

#[test]
fn a_stage_holds_as_many_chunks_as_requested() {
    let check = |chunks: &str, expected: usize| {
        let flags = format!("--kind gis --stages 2 --microbatches 4 {chunks}");
        assert_eq!(read(&flags).expect("legal").0.costs.chunks.len(), expected);
    };
    check("", 4);
    check("--chunks 5", 10);
}

#[test]
fn a_window_lowers_the_program_and_looks_at_the_middle_step() {
    let check = |flags: &str, window, steps| {
        let (replay, _) = read(flags).expect("legal");
        assert_eq!(replay.program.window, window);
        assert_eq!((replay.step_count, replay.step), steps);
    };
    check(ZB_V, None, (1, 0));
    check(&format!("{ZB_V} --window 0"), Some(Window::Zero), (3, 1));
    check(&format!("{ZB_V} --window 1"), Some(Window::One), (3, 1));
}

#[test]
fn memory_after_b_is_given_in_three_ways() {
    let check = |flags: &str, expected: f64| {
        let (_, memory) = read(&format!("{ZB_V} {flags}")).expect("legal");
        assert_eq!(2.0 * memory[0].after_input_gradient, expected, "{flags}");
    };
    check("--mf 6", 6.0);
    check("--mf 6 --mw 2", 2.0);
    check("--mf 6 --mw -2", 2.0);
    check("--mf 6 --mb -4", 2.0);
    check("--mf 6 --mb -4 --mw 2", 2.0);
}

#[test]
fn slices_are_as_many_and_take_as_much_as_requested() {
    let check = |flags: &str, slices: u32, shares: &[f64]| {
        let flags = format!("--kind seq1f1b --stages 2 --microbatches 4 {flags}");
        let (replay, _) = read(&flags).expect("legal");
        assert_eq!(replay.program.slice_count, slices);
        assert_eq!(replay.costs.slice_shares, shares);
    };
    check("", 2, &[]);
    check("--slices 3", 3, &[]);
    check("--slices 3 --slice-times 1,1,2", 3, &[0.25, 0.25, 0.5]);
    check_wrong(
        "--kind seq1f1b --stages 2 --microbatches 4 --slice-times 1",
        "  --slice-times: expected 2 numbers, one a slice and not all 0, found `1`",
    );
    check_wrong(
        "--kind seq1f1b --stages 2 --microbatches 4 --slice-times 0,0",
        "  --slice-times: expected 2 numbers, one a slice and not all 0, found `0,0`",
    );
    check_wrong(
        "--kind 1f1b --stages 2 --microbatches 4 --slices 2",
        "  --slices: 1f1b does not cut microbatches into slices: expected 1 slice, found 2
  try: --kind seq1f1b, or leave out --slices",
    );
    check_wrong(
        "--kind seq1f1b --stages 2 --microbatches 4 --slices 0",
        "  --slices: seq1f1b cuts a microbatch into 1 to 65536 slices, found 0
  try: --slices 1 to 65536",
    );
}

fn check_wrong(flags: &str, expected: &str) {
    let Err(errors) = read(flags) else { panic!("{flags} is wrong") };
    let details = failure(errors).details;
    let details: Vec<String> = details.iter().map(ToString::to_string).collect();
    assert_eq!(details.join("\n"), expected, "{flags}");
}

#[test]
fn everything_wrong_is_reported_at_once() {
    check_wrong(
        &format!("{ZB_V} --f 1,-1 --b 1,2,3 --w nan --comm inf --window 2 --mf x --mb 1,1,1"),
        "  --f: expected a number from 0 to 1e15, found `-1`
  --b: expected 1 or 2 values, found 3
  try: one value for all stages, or one a stage, with commas
  --w: expected a number from 0 to 1e15, found `nan`
  --comm: expected a number from 0 to 1e15, found `inf`
  --window: expected 0 or 1, found `2`
  --mf: expected a number from 0 to 1e15, found `x`
  --mb: expected 1 or 2 values, found 3
  try: one value for all stages, or one a stage, with commas",
    );
    check_wrong(
        "--kind zb-h3 --stages 0 --microbatches 4",
        "  --kind: unknown schedule `zb-h3`; expected one of gpipe, 1f1b, interleaved, zb-h1, \
         zb-h2, zb-auto, zb-v, looped-bfs, gis, gis-h, po, v-half, v-min, 1f1b-v, dualpipe-v, \
         gems, chimera, seq1f1b, po-half, po-full, po-selective\n  try: zb-h1",
    );
    check_wrong(
        "--kind zb-h1 --stages 0 --microbatches 4",
        "  --stages: zb-h1 needs 1 to 65536 stages, found 0\n  try: --stages 1 to 65536",
    );
    check_wrong(
        "--kind zb-h1 --stages 4 --microbatches 0",
        "  --microbatches: a step needs 1 to 65536 microbatches, found 0
  try: --microbatches 1 to 65536",
    );
    check_wrong(
        "--kind interleaved --stages 4 --microbatches 6",
        "  --microbatches: interleaved with 4 stages needs a multiple of 4 microbatches, found 6
  try: --microbatches 4 or 8",
    );
    check_wrong(
        "--kind dualpipe-v --stages 4 --microbatches 6",
        "  --microbatches: dualpipe-v with 4 stages needs 8 microbatches or more, found 6
  try: --microbatches 8 or more",
    );
    check_wrong(
        "--kind chimera --stages 3 --microbatches 6",
        "  --stages: chimera needs an even number of stages, found 3
  why: two directions meet in one slot of the middle stage
  try: --stages 2 or 4",
    );
    check_wrong(
        &format!("{ZB_V} --chunks 3"),
        "  --chunks: a stage of zb-v holds 2 chunks, found 3\n  try: --chunks 2",
    );
    check_wrong(
        &format!("{ZB_V} --mf 1 --mb -2"),
        "  --mb: --mf plus --mb is -1 on stage 0, less than nothing
  why: B cannot give back more than F kept",
    );
    check_wrong(
        &format!("{ZB_V} --mf 3 --mb -1 --mw 2,1"),
        "  --mb: --mf plus --mb is 2 on stage 1, but --mw is 1
  why: what B leaves is what W needs: both say the same
  try: leave out --mb or --mw",
    );
}

#[test]
fn a_program_that_is_none_or_breaks_a_rule_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("program.txt");
    let check = |text: &str, expected: &str| {
        fs::write(&file, text).expect("a file");
        let expected = expected.replace("FILE", &file.display().to_string());
        check_wrong(&format!("--program {}", file.display()), &expected);
    };
    let header = "program zb-h1 line stages 1 chunks 1 microbatches 1 window -";
    check(
        &format!("{header}\nstage 0: 0F0 0B0 W0"),
        "  FILE: line 2: `W0` is no operation: expected an update such as REPORT, or a chunk, \
         letters and a microbatch such as 2F0\n  try: `zbelastic schedule simulate .. \
         --program-text` prints a program to begin with",
    );
    check(
        &format!("{header}\nstage 0: 0B0 0F0 0W0"),
        "  FILE: stage 0: expected 0F0 before 0B0, found it after
  FILE: the program stops: stage 0 waits at 0B0 in step 0",
    );
    let missing = folder.path().join("none.txt");
    let Err(errors) = read(&format!("--program {}", missing.display())) else { panic!("none") };
    assert!(matches!(errors[..], [InputError::Unreadable { .. }]));
}
