//! The binary as a person meets it.

mod common;

use std::fs;
use std::process::Stdio;

use common::{refusal, text, zbelastic};
use serde_json::Value;

/// Standard output of a command that succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = zbelastic(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{arguments:?}");
    text(&output.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).expect("JSON")
}

/// Standard error of a command that fails with `code`, and prints nothing on standard output.
fn refused(arguments: &[&str], code: i32) -> String {
    refusal(&mut zbelastic(arguments), code)
}

#[test]
fn every_command_has_help_with_an_example() {
    let commands = [
        "train",
        "schedule render",
        "schedule simulate",
        "config check",
        "config show",
        "config schema",
        "bench train",
        "bench gemm",
        "bench ops",
        "bench step",
        "bench lanes",
        "bench bubble",
        "bench gpu",
        "chaos sim",
        "init",
        "join",
        "leave",
        "token create",
        "token list",
        "token revoke",
        "node list",
        "node show",
        "node drain",
        "node remove",
        "run",
        "pause",
        "resume",
        "stop",
        "status",
        "events",
        "logs",
        "ckpt list",
        "ckpt show",
        "ckpt verify",
        "ckpt restore",
        "ckpt gc",
        "runs list",
        "runs show",
        "runs remove",
        "export",
        "generate",
        "eval",
        "tokenizer train",
        "data prepare",
        "data show",
        "cluster info",
        "cluster backup",
        "cluster recover",
        "chaos run",
        "chaos measure",
        "chaos demo",
    ];
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = printed(&arguments);
        assert!(help.contains(&format!("zbelastic {command}")), "{help}");
        assert!(help.contains("Example"), "{help}");
    }
    let groups = [
        "schedule",
        "config",
        "bench",
        "chaos",
        "token",
        "node",
        "ckpt",
        "cluster",
        "runs",
        "tokenizer",
        "data",
    ];
    for group in groups {
        assert!(printed(&[group, "--help"]).contains("Commands:"));
    }
    assert!(printed(&["--help"]).contains("Exit codes:"));
    assert_eq!(printed(&["--version"]), format!("zbelastic {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_ends_with_2() {
    for arguments in
        [&["trian"][..], &["train", "--wrokers", "2"], &["train", "--workers", "0"], &[]]
    {
        assert_ne!(refused(arguments, 2), "");
    }
}

const ZB_H2: [&str; 6] = ["--kind", "zb-h2", "--stages", "4", "--microbatches", "8"];

/// `schedule VERB --kind zb-h2 --stages 4 --microbatches 8 ..`
fn zb_h2<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["schedule", verb].into_iter().chain(ZB_H2).chain(more.iter().copied()).collect()
}

#[test]
fn a_schedule_is_drawn() {
    let drawing = printed(&zb_h2("render", &[]));
    assert!(drawing.starts_with("zb-h2, 4 stages, 8 microbatches: longest stage 24, makespan 27"));
    assert_eq!(drawing, printed(&zb_h2("render", &["--ascii"])));
    assert!(printed(&zb_h2("render", &["--svg", "-"])).starts_with("<svg "));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let svg = path("a.svg");
    let trace = path("a.json");
    assert_eq!(printed(&zb_h2("render", &["--svg", &svg, "--trace", &trace])), "");
    assert!(fs::read_to_string(&svg).expect("written").ends_with("</svg>\n"));
    let trace = fs::read_to_string(&trace).expect("written");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("a list").len() > 96);
    let nowhere = path("no/such/folder.svg");
    assert!(refused(&zb_h2("render", &["--svg", &nowhere]), 2).starts_with("error: cannot write "));
}

#[test]
fn a_schedule_is_timed() {
    let flags = ["--f", "10", "--b", "11", "--w", "8", "--mf", "2", "--mw", "1", "--json"];
    let report = json(&zb_h2("simulate", &flags));
    assert_eq!(report["kind"], "zb-h2");
    assert_eq!((&report["p"], &report["m"]), (&Value::from(4), &Value::from(8)));
    assert_eq!(report["cost"], 8.0 * 29.0 + 15.0);
    assert_eq!(report["peak_mem"][0], 14.0);
    assert_eq!(report.get("program"), None);
    assert!(report["bubble_span"].as_f64() < report["bubble_sync"].as_f64());
    let table = printed(&zb_h2("simulate", &["--f", "10", "--b", "11", "--w", "8"]));
    assert!(table.contains("longest stage 247, makespan "), "{table}");
}

/// A step is 24 of work and half a unit of STEP; the last of four stages begins it 3 late.
#[test]
fn a_window_shows_in_the_period() {
    let period = |window: &[&str], verdict: &str| {
        let flags = [window, &["--verdict", verdict, "--step", "0.5", "--json"]].concat();
        json(&zb_h2("simulate", &flags))["period"].clone()
    };
    assert_eq!(period(&["--window", "0"], "3"), 24.0 + 3.0 + 3.0 + 0.5);
    assert_eq!(period(&["--window", "1"], "2.5"), 24.0 + 0.5);
    // The last stage waits for the verdict behind its first B, 2.5 after its report.
    assert_eq!(period(&["--window", "1"], "3"), 24.0 + 0.5 + 0.5);
    assert_eq!(period(&[], "3"), Value::Null);
}

#[test]
fn a_program_that_was_printed_can_be_read_again() {
    let report = json(&zb_h2("simulate", &["--json", "--program-text", "--window", "1"]));
    let program = report["program"].as_str().expect("a text");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("program.txt");
    fs::write(&file, program).expect("a file");
    let file = file.display().to_string();
    let again = json(&["schedule", "simulate", "--program", &file, "--json", "--program-text"]);
    assert_eq!(again, report);
}

#[test]
fn a_wrong_schedule_is_refused_in_our_words() {
    let error = refused(&zb_h2("simulate", &["--f", "1,2", "--w", "-1"]), 2);
    let expected = "error: the schedule has 2 errors
  --f: expected 1 or 4 values, found 2
  try: one value for all stages, or one a stage, with commas
  --w: expected a number from 0 to 1e15, found `-1`
";
    assert_eq!(error, expected);
}

#[test]
fn a_problem_is_solved_and_the_answer_says_how_good_it_is() {
    let line = "schedule solve --stages 4 --microbatches 8 --f 15,10,10,10 --b 16.5,11,11,11 \
                --w 12,8,8,8 --mw 0.5 --mem-limit 4 --json --program";
    let answer = json(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (&answer["kind"], &answer["p"], &answer["m"]),
        (&"zb-auto".into(), &4.into(), &8.into())
    );
    let number = |name: &str| answer[name].as_f64().unwrap_or_else(|| panic!("{name}: {answer}"));
    assert!(number("cost") >= number("lower_bound") * (1.0 - 1e-9) && number("solve_ms") >= 0.0);
    assert_eq!(answer["proven_optimal"], number("gap") == 0.0);
    let peaks = answer["peak_mem"].as_array().expect("one a stage");
    assert!(peaks.len() == 4 && peaks.iter().all(|peak| peak.as_f64() <= Some(4.0 + 1e-9)));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("solved.txt");
    std::fs::write(&file, answer["program"].as_str().expect("its text")).expect("room");
    let file = file.display().to_string();
    let again = "--f 15,10,10,10 --b 16.5,11,11,11 --w 12,8,8,8 --json";
    let line = ["schedule", "simulate", "--program", &file];
    let replay = json(&line.into_iter().chain(again.split(' ')).collect::<Vec<_>>());
    assert_eq!(replay["cost"], answer["cost"], "what was printed is what was solved");
}

#[test]
fn a_machine_without_a_device_is_refused_with_what_is_missing() {
    if zbelastic_kernels::cuda::devices().is_ok_and(|devices| !devices.is_empty()) {
        println!("skipped: there is a device, and to measure it takes minutes");
        return;
    }
    let stderr = refused(&["bench", "gpu", "--quick"], 7);
    assert!(stderr.starts_with("error: ") && stderr.contains("driver"), "{stderr}");
}

#[test]
fn tables_of_schedules_are_timed_and_nothing_else_is_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("table.csv");
    std::fs::write(&table, "p,m,kind\n4,8,zb-h1\n4,8,1f1b\n").expect("room");
    let table = table.to_str().expect("a path");
    let timed = printed(&["schedule", "simulate", "--csv", table]);
    assert_eq!(timed.lines().count(), 3, "{timed}");
    assert!(refused(&["schedule", "simulate", "--csv", table, "--json"], 2).contains("--csv"));
    assert!(refused(&["schedule", "simulate"], 2).contains("--kind"));
}

/// Steps follow each other as closely as the order was solved for, also behind a verdict that is
/// long.
#[test]
fn an_order_that_is_solved_for_a_verdict_runs_as_it_says() {
    let line = "schedule solve --stages 8 --microbatches 32 --mem-limit 16 --verdict 32 --json";
    for window in ["0", "1"] {
        let more = ["--window", window];
        let answer = json(&line.split(' ').chain(more).collect::<Vec<_>>());
        let time = |name: &str| answer[name].as_f64().expect("a time");
        assert!(time("period") <= time("step_time") + 1e-9, "{answer}");
        assert!(time("period") > 96.0, "it is longer than without: {answer}");
    }
}

#[test]
fn stages_without_memory_recompute_passes_or_offload_them() {
    let line = "schedule solve --stages 4 --microbatches 16 --f 10 --b 11 --w 8 --mw 0.5 --json";
    let answer = |more: &str| json(&line.split(' ').chain(more.split(' ')).collect::<Vec<_>>());
    let time = |answer: &Value| answer["step_time"].as_f64().expect("a time");
    let plain = answer("--mem-limit 1.5");
    let again = answer("--mem-limit 1.5 --recompute");
    assert!(time(&again) < 0.6 * time(&plain), "{again} {plain}");
    assert!(again["remade"].is_array() && again["left"].is_null() && plain["remade"].is_null());
    let slower = answer("--mem-limit 1.5 --recompute 20,20,20,20");
    assert!(time(&slower) > time(&again), "{slower}");
    let both = answer("--mem-limit 2 --recompute --offload 20");
    let peaks = both["peak_mem"].as_array().expect("one a stage");
    assert!(peaks.iter().all(|peak| peak.as_f64() <= Some(2.0 + 1e-9)), "{both}");
    assert!(both["left"].is_array(), "{both}");
    let replayed = answer("--mem-limit 3 --kind 1f1b --offload 20");
    assert!(replayed["left"].is_array() && replayed["step_time"].is_number(), "{replayed}");
    let stderr = |more: &str| {
        let words: Vec<&str> = line.split(' ').chain(more.split(' ')).collect();
        refused(&words, 2)
    };
    assert!(stderr("--recompute x").contains("--recompute"));
    assert!(stderr("--recompute --md 2").contains("--md 1 or less"));
    assert!(stderr("--offload -1").contains("--offload"));
    assert!(stderr("--mem-limit 0.5 --recompute --offload 1").contains("--mem-limit 1 or more"));
}

#[test]
fn a_schedule_goes_to_pytorch_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for form in ["--pytorch", "--pytorch-comms"] {
        let file = folder.path().join("schedule.csv").display().to_string();
        let line = "schedule render --kind zb-v --stages 3 --microbatches 6";
        printed(&line.split(' ').chain([form, &file]).collect::<Vec<_>>());
        let times = ["--f", "2", "--json"];
        let read = json(&[&["schedule", "simulate", "--program", &file][..], &times].concat());
        let line = "schedule simulate --kind zb-v --stages 3 --microbatches 6";
        let own = json(&line.split(' ').chain(times).collect::<Vec<_>>());
        assert_eq!(read, own, "{form}");
    }
}

/// Times are the machine's affair; that a whole pipeline runs on a device of its own is not.
#[test]
fn a_pipeline_on_paced_devices_is_held_against_its_plan() {
    let line = "bench bubble --stages 2 --microbatches 4 --pass 1ms --steps 2 --json";
    let rows = json(&line.split_whitespace().collect::<Vec<_>>());
    let planned = |name: &str| {
        let rows = rows.as_array().expect("a row a schedule");
        let row = rows.iter().find(|row| row["schedule"] == name);
        let row = row.unwrap_or_else(|| panic!("{name}: {rows:?}"));
        assert!(row["measured"].as_f64() > Some(-1.0) && row["step_ms"].as_f64() >= Some(12.0));
        row["planned"].as_f64().expect("a share")
    };
    assert!((planned("1f1b") - 3.0 / 15.0).abs() < 1e-9);
    assert!(planned("zb-h2").abs() < 1e-9 && planned("zb-v").abs() < 1e-9);
}

/// Four pipelines of two stages beside one of one stage.
#[test]
fn pipelines_side_by_side_on_paced_devices_are_held_against_their_plan() {
    let line = "bench bubble --stages 2 --replicas 4 --schedule zb-h2,chimera --scaled-from 2 \
                --microbatches 4 --pass 1ms --steps 2 --json";
    let rows = json(&line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.as_array().expect("a row a schedule");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["schedule"].as_str()).collect();
    assert_eq!(names, ["zb-h2", "chimera"]);
    let planned = rows[0]["planned_step_ms"].as_f64().expect("a time");
    assert!((planned - 12.0).abs() < 1e-9, "four microbatches of 3 ms: {planned}");
    for row in rows {
        let [step, over, scaling] =
            ["step_ms", "step_over_plan", "weak_scaling"].map(|name| row[name].as_f64());
        assert!(step >= Some(12.0) && over >= Some(1.0) && scaling > Some(0.0), "{row}");
    }
    let refused = refused(&["bench", "bubble", "--replicas", "3"], 2);
    assert!(refused.contains("a power of two"), "{refused}");
}

/// Times are the machine's affair here too.
#[test]
fn lanes_are_measured_beside_one() {
    let answer =
        json(&["bench", "lanes", "--config", "A", "--lanes", "4", "--rounds", "1", "--json"]);
    assert_eq!((answer["lanes"].as_u64(), answer["microbatches"].as_u64()), (Some(4), Some(4)));
    assert!(answer["one_lane_ms"].as_f64() > Some(0.0), "{answer}");
    assert!(answer["ratio"].as_f64() > Some(0.0), "{answer}");
}

#[test]
fn a_run_is_planned_before_it_begins() {
    let line = "plan --set model.preset=tiny --nodes 2 --compare 1f1b,zb-h1 --threads 1";
    let words: Vec<&str> = line.split_whitespace().collect();
    let text = printed(&words);
    assert!(text.contains("2 stages: n0 n1") && text.contains("<- chosen"), "{text}");
    let answer = json(&[&words[..], &["--json"]].concat());
    let rows = answer["schedules"].as_array().expect("a row a schedule");
    let chosen = rows.iter().filter(|row| row["is_chosen"] == true);
    assert_eq!(chosen.count(), 1, "{answer}");
    assert!(rows.iter().all(|row| row["step_ms"].as_f64() > Some(0.0)), "{answer}");
}

#[test]
fn every_schedule_is_listed() {
    let list = printed(&["schedule", "list"]);
    let entries = json(&["schedule", "list", "--json"]);
    let entries = entries.as_array().expect("a list");
    assert_eq!(entries.len(), 29);
    for entry in entries {
        assert!(list.contains(entry["name"].as_str().expect("a name")));
    }
}

#[test]
fn the_configuration_shown_can_be_read_again() {
    let shown = printed(&["config", "show", "--steps", "7", "--set", "schedule.kind=zb-h1"]);
    assert!(shown.contains("steps = 7                        # --steps\n"), "{shown}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.toml");
    fs::write(&file, &shown).expect("a file");
    let file = file.display().to_string();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  #").next().unwrap_or("").to_owned()).collect()
    };
    assert_eq!(values(&printed(&["config", "show", &file])), values(&shown));
    let shown = json(&["config", "show", &file, "--json"]);
    assert_eq!(shown["train"]["steps"]["value"], 7);
    assert_eq!(shown["model"]["family"]["value"], "llama");
    assert!(shown["train"]["steps"]["origin"].as_str().expect("text").contains("run.toml:"));
}

#[test]
fn every_key_is_explained() {
    let schema = printed(&["config", "schema"]);
    let rows = json(&["config", "schema", "--json"]);
    for row in rows.as_array().expect("a list") {
        let [key, doc] = ["key", "doc"].map(|name| row[name].as_str().expect("text"));
        assert!(schema.contains(&format!("  {key}: ")) && schema.contains(doc), "{key}");
    }
}

#[test]
fn a_configuration_is_checked_with_its_text() {
    assert!(printed(&["config", "check"]).starts_with("ok\n"));
    assert_eq!(json(&["config", "check", "--json"])["ok"], true);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("a.txt"), "a line of text\n".repeat(40)).expect("a file");
    fs::write(path("empty.txt"), "").expect("a file");
    let checked = printed(&["config", "check", "--text", &path("*.txt")]);
    assert!(checked.contains("text   600 bytes in 2 files"), "{checked}");
    let error = refused(&["config", "check", "--text", &path("empty.txt"), &path("none")], 2);
    let expected = format!(
        "error: the text has 2 errors
  --text: data.text: {} is empty
  why: there is nothing in it to learn
  try: a text of some thousand bytes
  --text: data.text: {} does not exist
  try: a path seen from the working folder, or a glob such as 'docs/**/*.md'
",
        path("empty.txt"),
        path("none")
    );
    assert_eq!(error, expected);
    let long = ["config", "check", "--set", "train.seq_len=600", "--text", &path("a.txt")];
    assert!(refused(&long, 2).contains("the text is too short"));
}

#[test]
fn a_wrong_configuration_is_refused_with_all_its_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.toml");
    let config = "[model]\npreset = \"tiny\"\nheads = 3\n[optimizer]\nlr = inf\nwarmpu = 3\n";
    fs::write(&file, config).expect("a file");
    let file = file.display().to_string();
    let error = refused(&["config", "check", &file, "--schedule", "zb-h9"], 2);
    assert!(error.starts_with("error: the configuration has 4 errors\n"), "{error}");
    for line in ["3: model.heads: ", "5: optimizer.lr: ", "6: unknown key `optimizer.warmpu`"] {
        assert!(error.contains(&format!("  {file}:{line}")), "{error}");
    }
    assert!(error.contains("  --schedule: schedule.kind: expected one of"), "{error}");
    let output = zbelastic(&["config", "check", &file, "--json"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["errors"].as_array().expect("a list").len(), 3);
    assert_eq!(report["errors"][1]["try"], "optimizer.warmup");
}

#[test]
fn a_wrong_injection_is_refused() {
    let error = refused(&["train", "--inject", "step=1,tensor=heat,value=nan"], 2);
    assert!(error.contains("the model has no tensor `heat`"), "{error}");
    assert!(error.contains("  try: head\n"), "{error}");
    let error = refused(&["train", "--inject", "step=1,tensor=head,value=zero"], 2);
    assert!(error.contains("`zero` is no value"), "{error}");
}

/// `zbelastic .. | head -1`: the reader goes away, and that is no failure.
#[test]
fn a_closed_output_ends_a_command_quietly() {
    let arguments = ["schedule", "simulate", "--kind", "gpipe", "--stages", "64"];
    let more = ["--microbatches", "512", "--program-text"];
    let mut command = zbelastic(&arguments);
    command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn chaos_sim_is_the_command_of_the_simulator() {
    let life = printed(&["chaos", "sim", "--seed", "1"]);
    assert!(life.starts_with("seed 1\n") && life.ends_with("\npassed\n"), "{life}");
    let campaign = printed(&["chaos", "sim", "--count", "2", "--jobs", "1"]);
    assert!(campaign.ends_with("\npassed: 2 lives\n"), "{campaign}");
    assert!(printed(&["chaos", "sim", "--help"]).contains("10 safety: an invariant was broken"));
    let stderr = refused(&["chaos", "sim", "--replay", "no/such.json"], 2);
    assert!(stderr.starts_with("error: no/such.json: "), "{stderr}");
    assert_ne!(refused(&["chaos", "sim", "--seed", "1", "--count", "2"], 2), "");
}
