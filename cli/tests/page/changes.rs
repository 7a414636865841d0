//! What happens to a cluster comes to a page that is open, with the numbers that `status --json` and
//! `events --json` have. How long it takes is measured by `page_measures`, an example of `ui`.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::{SpawnedCluster, zbelastic};
use crate::{PageServer, printed_status};

/// More steps than there is time for.
const STEPS: u64 = 100_000;
/// No gradient has so small a norm: each update is clipped.
const CLIPPED: &str = "[optimizer]\nclip = 0.0001\n";

/// The events that `events --json` prints, with steps.
fn printed_events(cluster: &SpawnedCluster) -> Vec<Value> {
    let mut command = zbelastic(&cluster.nodes[0].folder);
    command.args(["events", "--steps", "--json", "--cluster", &cluster.addresses.join(",")]);
    let output = command.output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Waits until an event is printed, the first of those that are meant.
fn printed(cluster: &SpawnedCluster, name: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
    cluster.wait(&format!("the event {name}"), |cluster| {
        let is_it = |event: &Value| event["event"] == name && is_meant(event);
        printed_events(cluster).into_iter().find(is_it)
    })
}

/// Waits until the page has an event as a mark of this kind, and a line of its decisions with the same
/// time and words.
fn wait_for_mark(browser: &Browser, kind: &str, event: &Value) {
    let [at_ms, text] = ["at_ms", "text"].map(|field| &event[field]);
    browser.wait(
        &format!("the mark {kind} of {text}"),
        &format!(
            "return state.marks.some(mark => mark.kind === '{kind}' && mark.at_ms === {at_ms} && mark.text === {text})"
        ),
    );
    browser.wait(
        &format!("the decision {text}"),
        &format!(
            "return [...document.querySelectorAll('#decisions li')].some(line => \
             line.querySelector('time').textContent === clock({at_ms}) && \
             line.querySelector('.tag').textContent === TAGS['{kind}'][0] && \
             line.querySelector('p').textContent === {text})"
        ),
    );
}

#[test]
fn a_clip_a_kill_a_plan_and_a_rewind_come_to_an_open_page_as_events_are_printed() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c"], 4);
    let page = PageServer::start(&cluster.nodes[0].folder, &cluster.addresses[0], "0");
    browser.open(&page.address);
    cluster.run_with(STEPS, CLIPPED);
    check_clip(&browser, &printed(&cluster, "step", |event| event["verdict"] == "clip"));
    drop(cluster.kill("b"));
    let lost = printed(&cluster, "lost", |event| event["name"] == "b");
    wait_for_mark(&browser, "lost", &lost);
    browser.wait(
        "the row of the worker that was killed",
        "const rows = [...document.querySelectorAll('#nodes tr.lost')]; \
         return rows.length === 1 && rows[0].cells[0].textContent === 'b'",
    );
    let is_behind = |event: &Value| event["sequence"].as_u64() > lost["sequence"].as_u64();
    wait_for_mark(&browser, "plan", &printed(&cluster, "plan", is_behind));
    check_plan(&browser, &cluster);
    wait_for_mark(&browser, "checkpoint", &printed(&cluster, "checkpoint", is_behind));
    // Nobody has what was sealed behind the last checkpoint.
    ["a", "c"].iter().for_each(|name| cluster.signal(name, "KILL"));
    let nodes = ["a", "c"].map(|name| cluster.kill(name));
    nodes.into_iter().for_each(|node| cluster.restart(node, &["join", "--spot", "none"]));
    let rewound = printed(&cluster, "rewound", |_| true);
    wait_for_mark(&browser, "rewind", &rewound);
    check_rewind(&browser, &rewound);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// A clipped step has its place and its loss on the page, and the curves have its mark.
fn check_clip(browser: &Browser, event: &Value) {
    let [step, loss] = ["step", "loss"].map(|field| &event[field]);
    browser.wait(
        &format!("the clipped step {step}"),
        &format!(
            "const {{ step, loss, verdicts }} = state.steps, at = step.indexOf({step}); \
             return at >= 0 && loss[at] === {loss} && verdicts[at] === 'c' && charts.marked.clip > 0"
        ),
    );
}

/// The page names the plan that `status --json` does, and has its stages.
fn check_plan(browser: &Browser, cluster: &SpawnedCluster) {
    cluster.wait("the plan that is printed", |cluster| {
        let plan = &printed_status(cluster)["plan"];
        let shown = browser.run("return document.getElementById('plan').textContent");
        let stages = plan["stages"].as_array()?.len();
        let generation = &plan["generation"];
        let shown = shown.as_str()?;
        let is_same = shown.contains(&format!(" {stages} stages,"))
            && shown.ends_with(&format!("generation {generation}"));
        is_same.then_some(())
    });
}

/// The mark of a rewind stands at the step that the run went back to, and steps behind it are there
/// once, computed again.
fn check_rewind(browser: &Browser, event: &Value) {
    let [step, at_ms] = ["to_step", "at_ms"].map(|field| &event[field]);
    browser.wait(
        &format!("the rewind to step {step}, and a step behind it"),
        &format!(
            "const mark = state.marks.find(mark => mark.at_ms === {at_ms} && mark.kind === 'rewind'); \
             return mark.step === {step} && state.steps.step.at(-1) > {step} && charts.marked.rewind > 0"
        ),
    );
    let is_whole = browser.run(
        "return state.steps.step.every((step, at, all) => at === 0 || step === all[at - 1] + 1)",
    );
    assert_eq!(is_whole, json!(true), "each step once");
}
