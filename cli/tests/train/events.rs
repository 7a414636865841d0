//! The events and metrics that a script reads.

use serde_json::Value;

use crate::common::text;
use crate::text_folder::{CLIP_NORM, STEP_TOKENS, STEPS, TextFolder, TrainingOutput};

const STEP_KEYS: [&str; 14] = [
    "at_ms",
    "attempts",
    "bubble_measured",
    "bubble_planned",
    "clip",
    "event",
    "gnorm",
    "loss",
    "lr",
    "ms",
    "step",
    "tokens",
    "tokens_per_s",
    "verdict",
];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn check_step(step: &Value) {
    let keys: Vec<&str> = step.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, STEP_KEYS);
    for share in ["bubble_measured", "bubble_planned"] {
        assert!((0.0..1.0).contains(&number(&step[share])), "{share}: {step}");
    }
    let rate = STEP_TOKENS / number(&step["ms"]) * 1e3;
    assert!((number(&step["tokens_per_s"]) / rate - 1.0).abs() < 1e-6, "{step}");
    assert!(number(&step["loss"]) > 0.0, "{step}");
    check_verdict(step);
}

fn check_verdict(step: &Value) {
    match step["verdict"].as_str().expect("a word") {
        "keep" => {
            assert_eq!(step["clip"], 1.0);
            assert!(number(&step["gnorm"]) < CLIP_NORM, "{step}");
        }
        "clip" => {
            let expected = CLIP_NORM / (number(&step["gnorm"]) + 1e-6);
            assert!(expected < 1.0, "{step}");
            assert!((number(&step["clip"]) / expected - 1.0).abs() < 1e-6, "{step}");
        }
        "skip" => assert_eq!((&step["clip"], &step["gnorm"]), (&Value::Null, &Value::Null)),
        other => panic!("a step does not end with {other}"),
    }
}

#[test]
fn a_script_reads_every_step_and_the_end() {
    let run = TextFolder::new().run("--workers 3 --inject step=4,tensor=head,value=nan");
    assert_eq!(run.each("step"), (1..=STEPS).map(Value::from).collect::<Vec<_>>());
    run.of("step").into_iter().for_each(check_step);
    for verdict in ["keep", "clip", "skip"] {
        assert!(run.each("verdict").contains(&verdict.into()), "{verdict}: {}", run.stdout);
    }
    assert_eq!(run.of("done").len(), 1);
    let tokens: Vec<f64> = run.each("tokens").iter().map(number).collect();
    assert!(tokens.iter().zip(1..).all(|(found, step)| *found == STEP_TOKENS * f64::from(step)));
    let times: Vec<f64> = run.each("at_ms").iter().map(number).collect();
    assert!(times[0] > 1e12 && times.is_sorted(), "{times:?}");
    let rates: Vec<f64> = run.each("lr").iter().map(number).collect();
    assert_eq!(rates[..3], [1.5e-3, 3e-3, 3e-3]);
    assert!(rates[2..].windows(2).all(|pair| pair[0] > pair[1]), "{rates:?}");
}

#[test]
fn the_end_says_what_was_trained_and_how() {
    let run = TextFolder::new().run("--workers 3 --schedule zb-v");
    let done = run.done();
    // Embeddings, four blocks of 12 width² + 13 width, and the head with its norm.
    let parameters = (256 + 16) * 32 + 4 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + 256 * 32;
    assert_eq!(done["params"], parameters);
    assert_eq!((&done["steps"], &done["workers"]), (&STEPS.into(), &3.into()));
    assert_eq!((&done["schedule"], &done["interrupted"]), (&"zb-v".into(), &false.into()));
    assert!(number(&done["tokens_per_s"]) > 0.0);
    assert_eq!(run.digest().len(), 64);
    assert!(run.digest().bytes().all(|digit| digit.is_ascii_hexdigit()));
}

#[test]
fn the_loss_falls() {
    let run = TextFolder::new().run("--steps 20 --set optimizer.lr=1e-2");
    let losses: Vec<f64> = run.each("loss").iter().map(number).collect();
    assert!((losses[0] - 256f64.ln()).abs() < 0.2, "{losses:?}");
    assert!(losses[19] < losses[0] - 1.5, "{losses:?}");
    assert!(number(&run.done()["held_out_loss"]) < losses[0] - 1.5, "{}", run.done());
}

/// An event without the fields that depend on time and place.
fn lasting(line: &str) -> Value {
    let mut event: Value = serde_json::from_str(line).expect("JSON");
    let fields = event.as_object_mut().expect("an object");
    for key in ["at_ms", "ms", "tokens_per_s", "bubble_measured", "bubble_planned", "folder"] {
        fields.remove(key);
    }
    event
}

#[test]
fn metrics_are_kept_for_readers_of_the_run() {
    let folder = TextFolder::new();
    let injected = "--set train.eval_every=4 --inject step=3,tensor=head,value=inf";
    let run = folder.run(injected);
    let metrics = run.text("metrics.jsonl");
    assert_eq!(metrics, run.stdout);
    let output = folder.small(injected).args(["--out", "read"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    let kept = std::fs::read_to_string(folder.path("read/metrics.jsonl")).expect("kept");
    assert!(kept.lines().map(lasting).eq(metrics.lines().map(lasting)), "{kept}");
}

#[test]
fn the_same_run_reports_the_same_and_leaves_the_same() {
    let folder = TextFolder::new();
    let runs: [TrainingOutput; 2] = std::array::from_fn(|_| folder.run("--set train.eval_every=3"));
    let [first, second] = &runs;
    assert!(first.stdout.lines().map(lasting).eq(second.stdout.lines().map(lasting)));
    for file in ["config.toml", "sample.txt", "model/config.json", "model/model.safetensors"] {
        assert_eq!(first.file(file), second.file(file), "{file}");
    }
}

#[test]
fn held_out_text_is_read_every_so_many_steps_and_at_the_end() {
    let folder = TextFolder::new();
    let mut ends = Vec::new();
    let mut check = |steps: u64, every: u64, expected: &[u64]| {
        let more = format!("--steps {steps} --set train.eval_every={every}");
        let run = folder.run(&more);
        let evaluated: Vec<u64> =
            run.of("eval").iter().map(|eval| eval["step"].as_u64().expect("a count")).collect();
        assert_eq!(evaluated, expected, "{more}");
        for (before, event) in run.events.iter().zip(&run.events[1..]) {
            if event["event"] == "eval" {
                assert_eq!((&before["event"], &before["step"]), (&"step".into(), &event["step"]));
            }
        }
        let last = run.of("eval").pop().expect("the last step is evaluated");
        assert_eq!(run.done()["held_out_loss"], last["held_out_loss"], "{more}");
        assert!(number(&last["held_out_loss"]) > 1.0, "{more}");
        ends.push((steps, run.digest().to_owned()));
    };
    check(8, 3, &[3, 6, 8]);
    check(8, 0, &[8]);
    check(4, 1, &[1, 2, 3, 4]);
    assert_eq!(ends[0], ends[1], "to look changes nothing");
}

#[test]
fn held_out_text_is_read_with_a_single_microbatch() {
    let one = "--set train.global_batch=1 --set data.held_out=0.5 --set train.eval_every=4";
    for workers in [2, 4] {
        let run = TextFolder::new().run(&format!("{one} --schedule 1f1b --workers {workers}"));
        assert_eq!(run.of("eval").len(), STEPS / 4, "{}", run.stdout);
    }
}

#[test]
fn without_held_out_text_there_is_nothing_to_evaluate() {
    let run = TextFolder::new().run("--set data.held_out=0 --set train.eval_every=2");
    assert!(run.of("eval").is_empty(), "{}", run.stdout);
    assert_eq!(run.done()["held_out_loss"], Value::Null);
}

#[test]
fn a_note_does_not_get_between_a_script_and_its_json() {
    let folder = TextFolder::new();
    let mut command = folder.small("--set optimizer.warmup=9 --json");
    let output = command.output().expect("it runs");
    let notes = text(&output.stderr);
    assert!(
        notes.starts_with("note: optimizer.warmup = 9 is more than train.steps = 8"),
        "{notes}"
    );
    assert_eq!(notes.lines().count(), 1);
    assert_eq!(TrainingOutput::read(&folder, text(&output.stdout)).of("step").len(), STEPS);
}
