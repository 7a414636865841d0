//! The live page in a real browser, against a real cluster.

#[path = "page/browser.rs"]
mod browser;
#[path = "page/changes.rs"]
mod changes;
#[path = "page/controller.rs"]
mod controller;
#[path = "page/figures.rs"]
mod figures;
#[expect(dead_code, reason = "the tests of a cluster use more of it")]
#[path = "cluster/harness.rs"]
mod harness;
#[path = "page/http.rs"]
mod http;
#[path = "page/report.rs"]
mod report;
#[path = "page/trouble.rs"]
mod trouble;
#[path = "page/zoom.rs"]
mod zoom;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use harness::{SpawnedCluster, zbelastic};
use serde_json::{Value, json};

use browser::Browser;

const STEPS: u64 = 80;

/// `zbelastic ui` on a port that is free.
struct PageServer {
    child: Child,
    address: String,
}

impl PageServer {
    fn start(folder: &Path, cluster: &str, listen: &str) -> Self {
        let mut command = zbelastic(folder);
        command.args(["ui", "--listen", listen, "--price", "2", "--cluster", cluster]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("page    ").expect("the page's address").to_owned();
        Self { child, address }
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status as `status --json` prints it.
fn printed_status(cluster: &SpawnedCluster) -> Value {
    let mut command = zbelastic(&cluster.nodes[0].folder);
    command.args(["status", "--json", "--cluster", &cluster.addresses.join(",")]);
    let output = command.stderr(Stdio::inherit()).output().expect("the binary runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_page_shows_what_status_prints_and_a_worker_that_was_killed() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b", "c"], 4);
    let page = PageServer::start(&cluster.nodes[0].folder, &cluster.addresses[0], "0");
    browser.open(&page.address);
    cluster.run(STEPS);
    browser.wait("steps appear without loading again", "return state.steps.step.length > 3");
    let killed = cluster.kill("b");
    browser.wait(
        "the loss of a worker is in the list of decisions",
        "return [...document.querySelectorAll('#decisions .tag')].some(tag => tag.textContent === 'lost')",
    );
    browser.wait(
        "the table of nodes shows it",
        "return document.querySelectorAll('#nodes tr.lost').length === 1",
    );
    browser.wait(
        "the table of nodes has its last event",
        "return document.querySelector('#nodes tr.lost').cells[7].textContent.startsWith('lost ')",
    );
    browser.wait(
        "the table of controllers has what it lacks of the log",
        "return document.querySelector('#controllers tr').cells[4].textContent === '0'",
    );
    browser.wait(
        "a bar of memory has the mark of the plan, and says both",
        "const bar = document.querySelector('#nodes .bar b'); \
         return bar !== null && bar.closest('td').title.endsWith(' planned')",
    );
    browser.wait(
        "the table of checkpoints has the names of holders",
        "const held = document.querySelector('#checkpoints tr')?.cells[4].textContent ?? ''; \
         return held.split(', ').some(name => state.status.members.some(member => member.name === name))",
    );
    browser.wait("lanes are drawn", "return state.lanes.length > 1 && lanes.drawn > 5");
    cluster.restart(killed, &["join", "--spot", "none"]);
    cluster.digest(STEPS);
    let printed = printed_status(&cluster);
    let job = &printed["job"];
    browser.wait("the end", "return document.getElementById('phase').textContent === 'done'");
    let found = browser.run(
        "return { step: state.status.job.step, loss: state.status.job.loss, digest: state.status.job.digest, \
         generation: state.status.plan?.generation ?? null, names: state.status.members.map(member => member.name), \
         term: state.status.term, tiles: document.getElementById('tiles').innerText, \
         steps: state.steps.step.length, marks: state.marks.map(mark => mark.kind) }",
    );
    assert_eq!(found["step"], job["step"]);
    assert_eq!(found["loss"], job["loss"]);
    assert_eq!(found["term"], printed["term"]);
    let names = printed["members"].as_array().expect("members").iter();
    let names: Vec<&Value> = names.map(|member| &member["name"]).collect();
    assert_eq!(found["names"], json!(names));
    let tiles = found["tiles"].as_str().expect("a text");
    let loss = format!("{:.4}", job["loss"].as_f64().expect("a number"));
    assert!(tiles.contains("80 / 80") && tiles.contains(&loss), "{tiles}");
    assert_eq!(found["steps"], json!(STEPS), "each step once");
    for kind in ["joined", "lost", "plan", "checkpoint", "run"] {
        let marks = found["marks"].as_array().expect("a list");
        assert!(marks.contains(&json!(kind)), "{kind} in {marks:?}");
    }
    check_keys_and_widths(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // The controller comes back: the page goes on by itself, with its history.
    let controller = cluster.kill("controller");
    browser.wait("it is seen to be gone", "return state.source.state === 'lost'");
    let steps = browser.run("return state.steps.step.length");
    assert_eq!(steps, json!(STEPS), "the history stays");
    cluster.restart(controller, &["init"]);
    browser.wait("it is back", "return state.source.state === 'live'");
    zoom::check_zoom(&browser);
    browser.run("receive({ kind: 'rewound', step: 0 })");
    browser.wait(
        "a run that begins has no curve of the one before",
        "return document.querySelector('#loss .empty') !== null && !document.querySelector('.uplot')",
    );
}

/// Keys move through steps and themes, and no width scrolls sideways.
fn check_keys_and_widths(browser: &Browser) {
    let shown = "return document.getElementById('lane-step').textContent";
    // Traces are requested seldom where they take long, and a run that went back has dropped some.
    browser.wait(
        "the newest of several steps",
        "return state.lanes.length > 1 && state.shown === state.lanes.length - 1 && lanes.lanes === state.lanes.at(-1)",
    );
    let newest = browser.run(shown);
    browser.press("ArrowLeft");
    browser.wait(
        "an older step",
        &format!("return document.getElementById('lane-step').textContent !== {newest}"),
    );
    assert_eq!(browser.run("return document.getElementById('follow').checked"), json!(false));
    browser.press("f");
    browser.wait(
        "the newest step",
        &format!("return document.getElementById('lane-step').textContent === {newest}"),
    );
    let background = "return getComputedStyle(document.documentElement).backgroundColor";
    let system = browser.run(background);
    browser.press("t");
    browser.press("t");
    browser.wait("the dark theme", "return document.documentElement.dataset.theme === 'dark'");
    assert_ne!(browser.run(background), system, "the system's is light");
    for width in [1440, 760, 390] {
        browser.resize(width, 1200);
        let name = format!("return innerWidth === {width}");
        browser.wait("another width", &name);
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert_eq!(wide, json!(width), "nothing is wider than the page");
    }
}
