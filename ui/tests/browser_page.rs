//! The page in a headless Chromium: what it draws and keeps of a thousand nodes, and a stream that is cut.

#[expect(dead_code, reason = "the tests of the page use more of it")]
#[path = "../../cli/tests/page/browser.rs"]
mod browser;
#[path = "common/fleet.rs"]
mod fleet;

use std::net::SocketAddr;

use serde_json::json;
use tokio::runtime::Builder;
use zbelastic_ui::{AccessPolicy, UiServer, UiSettings};
use zbelastic_view::{LANE_STEPS_KEPT, Observation, RunCosts};

use browser::Browser;

const NODES: u64 = 1000;

/// A server at a port of the loopback address, or at any that is free.
fn start(port: u16) -> UiServer {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let settings =
        UiSettings { address, policy: AccessPolicy::Loopback, costs: RunCosts::default() };
    UiServer::start(settings, runtime.expect("threads")).expect("the port is free")
}

#[test]
fn a_page_of_a_thousand_nodes_keeps_their_plan_once_and_makes_no_row_again_that_says_the_same() {
    let Some(browser) = Browser::start() else { return };
    let server = start(0);
    let observer = server.observer();
    let send = |observed| assert!(observer.send(observed), "the server runs");
    let mut status = fleet::status(NODES);
    send(Observation::Status(Box::new(status.clone())));
    send(Observation::Trace(fleet::trace(1, NODES, 1)));
    browser.open(&format!("http://{}/", server.address()));
    browser.wait("a row a node", "return document.querySelectorAll('#nodes tr').length === 1000");
    browser.wait("the lanes of both", "return lanes.drawn === 2 * 3 * 1000");
    // Steps that are observed while the page is open name the plan that it has.
    let last = LANE_STEPS_KEPT as u64 + 2;
    (2..last).for_each(|step| send(Observation::Trace(fleet::trace(step, NODES, 1))));
    let newest = format!("return state.lanes.at(-1)?.step === {last}");
    browser.wait("the newest step", &newest);
    let kept = browser.run(
        "return { steps: state.lanes.length, plans: new Set(state.lanes.map(lanes => lanes.planned)).size, \
         bytes: state.lanes.flatMap(({ measured }) => Object.values(measured)) \
         .reduce((sum, column) => sum + column.buffer.byteLength, 0) }",
    );
    // Ten bytes a pass, and four for the number of each stage's.
    let bytes = LANE_STEPS_KEPT as u64 * NODES * (3 * 10 + 4);
    assert_eq!(kept, json!({ "steps": LANE_STEPS_KEPT, "plans": 1, "bytes": bytes }));
    browser.run(
        "window.rows = [...document.querySelectorAll('#nodes tr')]; lanes.canvas.scrollIntoView(); \
         const { left, top } = lanes.canvas.getBoundingClientRect(); \
         lanes.point({ clientX: left + lanes.places[0].left + 1, clientY: top + 2 })",
    );
    let tip = browser.run("return lanes.tip.textContent");
    assert_eq!(tip, json!("F0 (forward), stage 0, measured: 1.90 ms from 0.00 ms"));
    status.members[7].memory_used = status.members[7].memory_planned;
    send(Observation::Status(Box::new(status)));
    browser.wait(
        "a row that says something else",
        "return !window.rows[6].isConnected && document.querySelectorAll('#nodes tr').length === 1000",
    );
    let changed = browser.run(
        "const rows = [...document.querySelectorAll('#nodes tr')]; \
         return rows.flatMap((row, at) => row === window.rows[at] ? [] : [row.cells[0].textContent])",
    );
    assert_eq!(changed, json!(["spot-6"]));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_page_whose_stream_is_cut_says_so_and_goes_on_when_its_server_is_back() {
    let Some(browser) = Browser::start() else { return };
    let server = start(0);
    let address = server.address();
    let shows = |server: &UiServer| {
        let status = Observation::Status(Box::new(fleet::status(2)));
        assert!(server.observer().send(status), "the server runs");
        browser.wait(
            "a page that is live, without a banner",
            "return document.getElementById('live-text').textContent === 'live' && \
             document.getElementById('banner').hidden && document.querySelectorAll('#nodes tr').length === 2",
        );
    };
    browser.open(&format!("http://{address}/"));
    shows(&server);
    drop(server);
    browser.wait(
        "a banner that says what is shown",
        "const banner = document.getElementById('banner'); return !banner.hidden && \
         banner.textContent.includes('the connection to zbelastic ui ended') && \
         document.getElementById('live-text').textContent === 'lost'",
    );
    let rows = browser.run("return document.querySelectorAll('#nodes tr').length");
    assert_eq!(rows, json!(2), "what was seen stays");
    shows(&start(address.port()));
}
