//! The page beside a controller: at an address of the machine, with a token, and with the history of
//! before a restart.

use std::net::{IpAddr, TcpListener, UdpSocket};

use serde_json::{Value, json};
use zbelastic_api::{TokenCreated, TokenRequest, TokenRole};

use crate::harness::{SpawnedCluster, free_address, zbelastic};
use crate::http::{Answer, events_until, get, log_in};

const STEPS: u64 = 30;

/// An address of this machine that others reach, if it has a network. Nothing is sent.
fn outside_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // TEST-NET-3 of RFC 5737 is nobody's: the way to it is the way outside.
    socket.connect("203.0.113.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then_some(ip)
}

/// A token of the cluster that may be used `uses` times.
fn token(cluster: &SpawnedCluster, role: TokenRole, uses: u32) -> String {
    let request = TokenRequest { role, ttl_s: 3600, uses, ephemeral: false, note: None };
    created(cluster, request).token
}

fn created(cluster: &SpawnedCluster, request: TokenRequest) -> TokenCreated {
    cluster.wait("a token", |cluster| cluster.query(|client| client.create_token(request.clone())))
}

/// A token that has expired opens no session, of a browser or of a scraper, and the cluster's reason is
/// shown.
fn check_expired(cluster: &SpawnedCluster, host: &str) {
    let request =
        TokenRequest { role: TokenRole::Viewer, ttl_s: 1, uses: 10, ephemeral: false, note: None };
    let TokenCreated { token, info, .. } = created(cluster, request);
    cluster.wait("the end of the token's time", |cluster| {
        (cluster.status()?.at_ms >= info.expires_ms).then_some(())
    });
    let bearer = format!("Authorization: Bearer {token}\r\n");
    // Attempts that fail are delayed: the answer after that time is of the token.
    let is_of_token = |answer: &Answer| !answer.body().contains("too many attempts");
    let log_in = || log_in(host, &token).filter(is_of_token);
    let scrape = || get(host, "/metrics", &bearer).filter(is_of_token);
    for refused in [
        cluster.wait("a refused login", |_| log_in()),
        cluster.wait("a refused scrape", |_| scrape()),
    ] {
        assert_eq!(refused.status, 403, "{}", refused.text);
        assert!(refused.body().contains(" expired at "), "{}", refused.text);
        assert!(!refused.text.contains(&token), "{}", refused.text);
    }
}

/// The cookie of a session that a token opens.
fn session(cluster: &SpawnedCluster, host: &str, token: &str) -> String {
    let answer = cluster.wait("a session", |_| {
        // While the controller comes back, the token cannot be checked.
        log_in(host, token).filter(|answer| answer.status != 503)
    });
    assert_eq!(answer.status, 303, "{}", answer.text);
    assert!(!answer.text.contains(token), "an address would be logged: {}", answer.text);
    let cookie = answer.text.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
    format!("Cookie: {}\r\n", cookie.expect("a cookie"))
}

/// The first message of the stream: everything that is known.
fn snapshot(host: &str, cookie: &str) -> Option<Value> {
    let text = events_until(host, cookie, "\n\n")?;
    let line = text.lines().find_map(|line| line.strip_prefix("data: "))?;
    serde_json::from_str(line).ok()
}

#[test]
fn a_controllers_page_lets_in_with_a_token_and_has_its_history_after_a_restart() {
    let Some(ip) = outside_address() else {
        println!("skipped: this machine has no address but the loopback one");
        return;
    };
    let port = TcpListener::bind((ip, 0)).expect("a port").local_addr().expect("it").port();
    let host = format!("{ip}:{port}");
    let address = free_address();
    let listens = ["--bind", &address, "--advertise", &address, "--ui", &host];
    let root = tempfile::tempdir().expect("a folder");
    let mut cluster = SpawnedCluster::founded(root, &listens, address.clone());
    let closed = cluster.wait("the page", |_| get(&host, "/metrics", ""));
    assert_eq!(closed.status, 401, "{}", closed.text);
    assert!(get(&host, "/", "").is_some_and(|page| page.text.contains("location: /login")));
    let worker = token(&cluster, TokenRole::Worker, 1);
    assert_eq!(log_in(&host, &worker).map(|answer| answer.status), Some(403));
    check_expired(&cluster, &host);
    let viewer = token(&cluster, TokenRole::Viewer, 2);
    let cookie = session(&cluster, &host, &viewer);
    cluster.begin(&["a", "b"], STEPS);
    cluster.digest(STEPS);
    let shown = cluster.wait("the end on the page", |_| {
        let status = get(&host, "/status.json", &cookie)?;
        let status: Value = serde_json::from_str(status.body()).ok()?;
        (status["job"]["digest_step"] == json!(STEPS)).then_some(status)
    });
    let printed = super::printed_status(&cluster);
    assert_eq!(shown["job"]["digest"], printed["job"]["digest"]);
    assert_eq!(shown["cluster"]["name"], json!("test"));
    let page = get(&host, "/", &cookie).expect("it listens");
    assert!(page.text.contains("content-security-policy: default-src 'none'"), "{}", page.text);
    // Killed, it takes its page with it; both come back with what was before.
    let controller = cluster.kill("controller");
    cluster.wait("the page ended", |_| get(&host, "/healthz", "").is_none().then_some(()));
    cluster.restart(controller, &["init", "--ui", &host]);
    let cookie = session(&cluster, &host, &viewer);
    let known = cluster.wait("everything from before", |_| {
        let known = snapshot(&host, &cookie)?;
        (known["source"]["state"] == "live").then_some(known)
    });
    let steps: Vec<u64> = (1..=STEPS).collect();
    assert_eq!(known["steps"]["step"], json!(steps), "each step once");
    let log = cluster.nodes[0].folder.with_extension("log");
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains(&format!("http://{host}/")) && !log.contains(&viewer), "{log}");
}

#[test]
fn a_worker_has_no_page_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = zbelastic(folder.path());
    command.args(["join", "--cluster", "127.0.0.1:9", "--token", "none", "--ui"]);
    let output = command.output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("a worker has no page"), "{text}");
}
