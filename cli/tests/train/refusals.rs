//! Runs that cannot be trained are refused before anything is written.

use crate::common::refusal;
use crate::text_folder::{TextFolder, TrainingOutput};

/// A run with `more` arguments is refused, with all of `expected` printed and nothing left behind.
fn check(folder: &TextFolder, more: &str, expected: &[&str]) {
    let before = folder.contents();
    for reader in ["", "--json"] {
        let error = refusal(&mut folder.small(&format!("--out out {more} {reader}")), 2);
        for part in expected {
            assert!(error.contains(part), "{more}:\n{error}\nexpected {part}");
        }
    }
    let _ = refusal(&mut folder.small(more), 2);
    assert_eq!(folder.contents(), before, "{more}");
}

#[test]
fn values_that_no_run_can_have_are_refused() {
    let folder = TextFolder::new();
    let check = |more: &str, expected: &[&str]| check(&folder, more, expected);
    check(
        "--set train.stpes=3",
        &["--set: unknown key `train.stpes`", "why: ", "try: train.steps"],
    );
    check("--set trian.steps=3", &["unknown key `trian.steps`", "try: train.steps"]);
    let heads = ["3 heads do not divide a width of 32", "why: ", "try: model.heads = 2 or 4"];
    check("--set model.heads=3", &heads);
    let microbatch = [
        "microbatches of 3 do not make up a batch of 8",
        "why: ",
        "try: train.microbatch = 2 or 4",
    ];
    check("--set train.microbatch=3", &microbatch);
    for lr in ["nan", "inf", "-inf"] {
        let expected = format!("optimizer.lr: expected a finite number from 0, found {lr}");
        check(&format!("--set optimizer.lr={lr}"), &[&expected, "why: ", "try: optimizer.lr = "]);
    }
    check("--set optimizer.lr=-1", &["optimizer.lr: expected a finite number from 0, found -1"]);
    check("--steps 0", &["--steps: train.steps: expected a whole number from 1", "found 0"]);
    let tied = ["model.tied", "updates each chunk by itself", "try: model.tied = false"];
    check("--set model.tied=true --schedule pipedream", &tied);
    let frozen = ["train.freeze", "updates whole layers", "try: no train.freeze"];
    check("--set train.freeze=embed --schedule pipedream", &frozen);
    let nothing = ["no tensor of the model matches `layer.0`", "why: ", "try: layers.0"];
    check("--set train.freeze=layer.0", &nothing);
    check("--set train.freeze=*", &["tensors of the model would be frozen"]);
    let struck = "--set train.freeze=embed --inject step=1,tensor=embed.tokens,value=nan";
    check(struck, &["`embed.tokens` is frozen and has no gradient"]);
    check("--set model.vocab=255", &["255 tokens are too few for text", "try: model.vocab = 256"]);
    let folder = ["no/where/config.json cannot be read", "model.width stands beside model.from_hf"];
    check("--set model.from_hf=no/where", &folder);
    let remote = ["the model cannot be copied", "s3://bucket/model", "no credentials"];
    check("--set model.from_hf=s3://bucket/model", &remote);
    check("no.toml", &["no.toml: cannot be read", "try: "]);
    check("--set steps", &["expected section.key=value, found `steps`", "try: --set"]);
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let folder = TextFolder::new();
    let check = |more: &str, expected: &[&str]| check(&folder, more, expected);
    let workers = ["5 workers for a model of 4 layers", "why: ", "try: --workers 4 or fewer"];
    check("--workers 5", &workers);
    let schedule =
        ["--schedule: schedule.kind: expected one of ", "try: schedule.kind = \"zb-h1\""];
    check("--schedule zb-h3", &schedule);
    let uneven = [
        "interleaved with 3 stages needs a multiple of 3 microbatches, found 4",
        "why: interleaved deals microbatches in groups of one a worker",
        "try: --workers 2, or --schedule 1f1b",
    ];
    check("--schedule interleaved --workers 3 --set train.microbatch=2", &uneven);
    check("--workers 0", &["invalid value '0' for '--workers"]);
    check("--threads 0", &["invalid value '0' for '--threads"]);
    check("--window 2", &["--window: schedule.window: expected one of auto, 0, 1"]);
}

#[test]
fn memory_that_is_too_small_is_refused_with_the_amount_that_is_not() {
    let folder = TextFolder::new();
    let limit = "--schedule zb-h1 --set schedule.max_mem=100KiB";
    let error = refusal(&mut folder.small(limit), 7);
    for part in ["zb-h1: stage ", " needs ", "the limit is 100.0 KiB", "try: "] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let all = refusal(&mut folder.small("--set schedule.max_mem=100KiB"), 7);
    for kind in ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"] {
        assert!(all.contains(&format!("schedule.max_mem: {kind}: stage ")), "{kind}: {all}");
    }
    let hint = error.split_once("try: ").expect("a hint").1;
    let hint = hint.split_once(',').expect("several ways").0;
    let run: TrainingOutput = folder.run(&format!("--schedule zb-h1 {hint} --steps 2"));
    assert_eq!(run.done()["schedule"], "zb-h1", "{hint}");
}

#[test]
fn text_that_cannot_be_trained_on_is_refused() {
    let folder = TextFolder::new();
    folder.write("empty.txt", "");
    folder.write("short.txt", "just 16 bytes .\n");
    std::fs::create_dir(folder.path("bare")).expect("a folder");
    let check = |more: &str, expected: &[&str]| check(&folder, more, expected);
    check("--text empty.txt", &["--text: data.text: empty.txt is empty", "why: "]);
    check("--text none.txt", &["--text: data.text: none.txt does not exist", "try: "]);
    let short =
        ["too short: 15 bytes remain", "holding out 1, a window takes 17", "try: more text"];
    check("--text short.txt", &short);
    check("--text bare", &["bare has no file of text", "why: "]);
    check("--text no*.md", &["no*.md has no file of text"]);
    let all = "--text empty.txt none.txt bare text.txt";
    check(all, &["the text has 3 errors", "empty.txt is empty", "none.txt does", "bare has no"]);
    check("--set train.seq_len=9999", &["the text is too short", "a window takes 10000"]);
}

#[test]
#[cfg(target_os = "linux")]
fn text_that_cannot_be_read_is_refused() {
    // Not even root can read the first page of a process.
    check(&TextFolder::new(), "--text /proc/self/mem", &["/proc/self/mem cannot be read: "]);
}

#[test]
fn injections_that_cannot_strike_are_refused() {
    let folder = TextFolder::new();
    let check = |more: &str, expected: &[&str]| check(&folder, more, expected);
    let unknown = ["the model has no tensor `heat`", "why: ", "try: head\n"];
    check("--inject step=1,tensor=heat,value=nan", &unknown);
    let value = ["`zero` is no value; expected nan, inf, x1000 or bit=0 to bit=31", "try: "];
    check("--inject step=1,tensor=head,value=zero", &value);
    check("--inject step=1,tensor=head,bit=32", &["`32` is no bit", "0 to 31"]);
    let beyond = ["step 9 is beyond the 8 steps of the run", "why: ", "try: step=1 to step=8"];
    check("--inject step=9,tensor=head,value=nan", &beyond);
    check("--inject step=0,tensor=head,value=nan", &["`0` is no step"]);
    check("--inject step=1,tensor=head", &["value is missing"]);
    let several = "--inject step=9,tensor=heat,value=nan \
        --inject step=1,tensor=layers.9.mlp.up,value=inf";
    let expected = ["--inject has 3 errors", "step 9 is beyond", "`heat`", "`layers.9.mlp.up`"];
    check(several, &expected);
    let malformed = "--inject what --inject step=1,tensor=head,value=one,attempts=2";
    check(malformed, &["--inject has 2 errors", "`what` is not of the form", "`one` is no value"]);
}

#[test]
fn everything_wrong_is_reported_at_once_with_its_place() {
    let folder = TextFolder::new();
    let config = "[model]\npreset = \"tiny\"\nheads = 3\n\n[train]\nstps = 4\n\n[optimizer]\n\
        lr = nan\nbetas = [0.9, 1.0]\n";
    folder.write("bad.toml", config);
    let before = folder.contents();
    let arguments = "train bad.toml --window 7 --inject step=1,tensor=head,value=zero";
    let error = refusal(&mut folder.command(arguments), 2);
    assert!(error.starts_with("error: the configuration has 6 errors\n"), "{error}");
    for part in [
        "\n  bad.toml:3: model.heads: ",
        "\n  bad.toml:6: unknown key `train.stps`\n",
        "\n  try: train.steps\n",
        "\n  bad.toml:9: optimizer.lr: ",
        "\n  bad.toml:10: optimizer.betas: ",
        "\n  --window: schedule.window: ",
        "\n  --inject step=1,tensor=head,value=zero: ",
    ] {
        assert!(error.contains(part), "{error}\nexpected {part}");
    }
    assert_eq!(folder.contents(), before);
}

#[test]
fn injections_text_and_plan_are_reported_together() {
    let folder = TextFolder::new();
    let before = folder.contents();
    let arguments = "train --set model.preset=tiny --workers 5 --text none.txt --inject step";
    let error = refusal(&mut folder.command(arguments), 2);
    assert!(error.starts_with("error: the run has 3 errors\n"), "{error}");
    for part in ["\n  --inject step: ", "none.txt does not exist", "\n  --workers: 5 workers"] {
        assert!(error.contains(part), "{error}\nexpected {part}");
    }
    assert_eq!(folder.contents(), before);
}

/// Only a run in processes has traces.
#[test]
fn a_collector_of_traces_without_an_address_is_refused_by_the_name_of_the_variable() {
    let folder = TextFolder::new();
    let before = folder.contents();
    for variable in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        let mut command = folder.small_in_processes("--out out");
        let error = refusal(command.env(variable, "localhost:4318"), 2);
        let expected = format!("\n  {variable}: localhost:4318: no ");
        assert!(error.contains(&expected), "{error}\nexpected {expected}");
    }
    assert_eq!(folder.contents(), before);
}
