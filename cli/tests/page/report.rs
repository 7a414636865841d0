//! The report that a run leaves, opened from the disk.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::zbelastic;

const STEPS: u64 = 6;

#[test]
fn the_report_of_a_run_opens_from_the_disk_and_shows_its_steps_and_digest() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!("train --set model.preset=tiny --steps {STEPS} --workers 2 --out run");
    let mut command = zbelastic(folder.path());
    let output = command.args(line.split(' ')).current_dir(folder.path()).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = folder.path().join("run");
    browser.open(&format!("file://{}", run.join("report.html").display()));
    browser.wait("its lanes are drawn", "return lanes.drawn > 5");
    let found = browser.run(
        "return { steps: state.steps.step.length, is_report: state.isReport, \
         shown: document.body.innerText, banner: document.getElementById('banner').hidden, \
         loaded: performance.getEntriesByType('resource').length }",
    );
    assert_eq!(found["steps"], json!(STEPS), "each step once");
    assert_eq!(found["is_report"], json!(true));
    assert_eq!(found["banner"], json!(true), "it was drawn");
    assert_eq!(found["loaded"], json!(0), "it connects to nothing");
    let bubble = "return document.getElementById('bubble').innerText";
    let shown_bubble = browser.run(bubble);
    assert!(shown_bubble.as_str().is_some_and(|text| text.contains("measured")), "{shown_bubble}");
    assert_eq!(browser.run("return document.querySelectorAll('#rate .uplot').length"), json!(1));
    let run = std::fs::read_to_string(run.join("run.json")).expect("it is there");
    let run: Value = serde_json::from_str(&run).expect("JSON");
    let digest = run["digest"].as_str().expect("a digest");
    let shown = found["shown"].as_str().expect("a text");
    assert!(shown.contains(&digest[..12]), "{digest} in {shown}");
    let reason = run["plan"]["reason"].as_str().expect("a text");
    assert!(shown.contains(&format!("begins with {reason}")), "{reason} in {shown}");
    let is_explained = shown_bubble.as_str().is_some_and(|text| text.contains("a step since"));
    assert_eq!(is_explained, !run["causes"].is_null(), "{shown_bubble}");
    assert_eq!(run["name"], "tiny");
    assert!(shown.contains("tiny"), "{shown}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
