//! What goes wrong with a page, and that training goes on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::PageServer;
use crate::browser::Browser;
use crate::harness::{SpawnedCluster, free_address, zbelastic};
use crate::http::get;

const STEPS: u64 = 30;

/// Standard error of `train` with its page at an address that it cannot have; nothing is begun.
fn refused(listen: &str, code: i32) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = zbelastic(folder.path());
    command.args(["train", "--set", "model.preset=tiny", "--steps", "2", "--ui", listen]);
    let output = command.current_dir(folder.path()).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!folder.path().join("runs").exists(), "nothing was begun");
    text
}

#[test]
fn an_address_that_cannot_be_had_is_named_and_a_controller_goes_on_without() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("it has one").to_string();
    let text = refused(&listen, 6);
    assert!(text.contains(&format!("{listen} is taken by another program")), "{text}");
    assert!(text.contains("try: another port"), "{text}");
    let text = refused("0.0.0.0:0", 2);
    assert!(text.contains("try: a loopback address"), "{text}");
    let address = free_address();
    let listens = ["--bind", &address, "--advertise", &address, "--ui", &listen];
    let root = tempfile::tempdir().expect("a folder");
    let mut cluster = SpawnedCluster::founded(root, &listens, address.clone());
    cluster.begin(&["a", "b"], STEPS);
    cluster.digest(STEPS);
    // TEST-NET-1 of RFC 5737 is nobody's.
    let mut foreign = zbelastic(&cluster.nodes[0].folder);
    let foreign = foreign.args(["ui", "--listen", "192.0.2.1:80", "--cluster", &address]).output();
    let foreign = foreign.expect("the binary runs");
    let text = String::from_utf8_lossy(&foreign.stderr);
    assert_eq!(foreign.status.code(), Some(6), "{text}");
    assert!(text.contains("192.0.2.1:80 is not an address of this machine"), "{text}");
    let everywhere = PageServer::start(&cluster.nodes[0].folder, &address, "0.0.0.0:0");
    let host = everywhere.address.trim_start_matches("http://").trim_end_matches('/');
    assert!(!host.starts_with("0.0.0.0") && get(host, "/healthz", "").is_some(), "{host}");
    let log = cluster.nodes[0].folder.with_extension("log");
    cluster.wait("the controller's note", |_| {
        let log = std::fs::read_to_string(&log).ok()?;
        let is_named = log.contains("is taken by another program");
        (is_named && log.contains("note: no page: its process ended")).then_some(())
    });
    drop(taken);
    cluster.wait("the page, once its address is free", |_| get(&listen, "/healthz", ""));
    if let Some(browser) = Browser::start() {
        check_without_scripts(&browser, &format!("http://{listen}/"));
    }
}

/// A browser that does not run the page's scripts shows where the figures are.
fn check_without_scripts(browser: &Browser, address: &str) {
    browser.chrome("Network.enable", &json!({}));
    browser.chrome("Network.setBlockedURLs", &json!({ "urls": ["*/app.js"] }));
    browser.open(address);
    browser.wait(
        "a line about scripts",
        "return getComputedStyle(document.getElementById('banner')).visibility === 'visible'",
    );
    let text = browser.run("return document.getElementById('banner').innerText");
    assert!(text.as_str().is_some_and(|text| text.contains("scripts are off")), "{text}");
    browser.chrome("Network.setBlockedURLs", &json!({ "urls": [] }));
    browser.open(address);
    browser.wait(
        "the page, without that line",
        "return document.getElementById('banner').hidden && state.status !== null",
    );
}

/// Sends requests without a pause until `is_over`, and yields how many were answered.
fn scrape(host: &str, is_over: &AtomicBool) -> usize {
    let mut answered = 0;
    while !is_over.load(Ordering::Relaxed) {
        let metrics = get(host, "/metrics", "").expect("it listens");
        assert_eq!(metrics.status, 200, "{}", metrics.text);
        assert!(metrics.body().ends_with("# EOF\n"), "{}", metrics.text);
        answered += 1;
    }
    answered
}

/// Opens streams of messages, and closes each in the middle of its first one.
fn cut(host: &str, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(host).expect("it listens");
        let request = format!("GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut piece = [0; 256];
        assert!(stream.read(&mut piece).expect("it answers") > 0);
    }
}

#[test]
fn scrapes_without_a_pause_and_streams_that_are_cut_stop_no_run() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b"], 3);
    let page = PageServer::start(&cluster.nodes[0].folder, &cluster.addresses[0], "0");
    let host = page.address.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let scraped = scope.spawn(|| scrape(&host, &is_over));
        scope.spawn(|| cut(&host, &is_over));
        cluster.run(STEPS);
        cluster.digest(STEPS);
        is_over.store(true, Ordering::Relaxed);
        assert!(scraped.join().expect("every scrape was answered") > 0);
    });
    let last = cluster.wait("the last step", |_| {
        let metrics = get(&host, "/metrics", "")?;
        let is_last = metrics.text.contains(&format!("zbelastic_run_step {STEPS}"));
        is_last.then_some(metrics)
    });
    assert!(last.text.contains("zbelastic_up 1"), "{}", last.text);
}
