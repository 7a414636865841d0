//! The server over real connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use zbelastic_api::sample;
use zbelastic_ui::{
    AccessPolicy, CONNECTIONS_MAX, ServeError, TokenCheck, TokenRefusal, UiServer, UiSettings,
};
use zbelastic_view::{METRIC_NAMES, Observation, RunCosts};

/// A connection that is silent for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads")
}

fn start(policy: AccessPolicy) -> UiServer {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = UiSettings { address, policy, costs: RunCosts::default() };
    UiServer::start(settings, runtime()).expect("a port is free")
}

/// A server that accepts one token.
fn with_token() -> UiServer {
    let check: TokenCheck = Arc::new(|token: &str| match token {
        "zbt1.good" => Ok(()),
        "zbt1.late" => Err(TokenRefusal::Refused { reason: "it has expired".to_owned() }),
        _ => Err(TokenRefusal::NotAToken { reason: "no token".to_owned() }),
    });
    start(AccessPolicy::Token(check))
}

fn connect(server: &UiServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends bytes and returns all that is answered until the connection is closed.
fn exchange(server: &UiServer, request: &str) -> String {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(server: &UiServer, path: &str, headers: &str) -> String {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    exchange(server, &request)
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn log_in(server: &UiServer, token: &str, headers: &str) -> String {
    let form = format!("token={token}");
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    );
    exchange(server, &request)
}

#[test]
fn the_page_its_metrics_and_its_status_are_there_and_nothing_changes_anything() {
    let server = start(AccessPolicy::Loopback);
    assert_eq!(body(&get(&server, "/healthz", "")), "ok\n");
    assert_eq!(status(&get(&server, "/status.json", "")), 503, "nothing was observed");
    let observer = server.observer();
    assert!(observer.send(Observation::Status(Box::new(sample::status()))));
    let page = get(&server, "/", "");
    assert_eq!(status(&page), 200);
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    for asset in ["/app.js", "/charts.js", "/lanes.js", "/uplot.js", "/uplot.css", "/style.css"] {
        assert_eq!(status(&get(&server, asset, "")), 200, "{asset}");
    }
    // The page was answered after the observation had been added.
    let text = get(&server, "/status.json", "");
    let found: serde_json::Value = serde_json::from_str(body(&text)).expect("JSON");
    assert_eq!(found, serde_json::to_value(sample::status()).expect("JSON"));
    let metrics = get(&server, "/metrics", "");
    assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
    assert!(metrics.contains(&format!("{} 1280", METRIC_NAMES[1])), "{metrics}");
    assert_eq!(status(&get(&server, "/nothing", "")), 404);
    let post =
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(status(&exchange(&server, post)), 405);
}

#[test]
fn a_site_with_a_name_of_its_own_for_this_address_is_not_answered() {
    let server = start(AccessPolicy::Loopback);
    let request = "GET /status.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&exchange(&server, request)), 421);
}

#[test]
fn a_stream_begins_with_everything_and_goes_on_with_what_is_new() {
    let server = start(AccessPolicy::Loopback);
    let mut stream = connect(&server);
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut text = String::new();
    let mut read_until = |end: &str, stream: &mut TcpStream| {
        let mut piece = [0; 4096];
        while !text.contains(end) {
            let length = stream.read(&mut piece).expect("it goes on");
            assert!(length > 0, "the stream ended: {text}");
            text.push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    };
    read_until("\"kind\":\"snapshot\"", &mut stream);
    let observer = server.observer();
    assert_eq!(observer.lanes_wanted(), Some(0));
    let reason = "nobody answers".to_owned();
    assert!(observer.send(Observation::Unanswered { reason }));
    read_until("nobody answers", &mut stream);
    drop(server);
    assert!(!observer.send(Observation::Trace(String::new())), "the server has ended");
}

#[test]
fn elsewhere_a_token_opens_a_session_and_an_address_opens_none() {
    let server = with_token();
    assert_eq!(body(&get(&server, "/healthz", "")), "ok\n", "a load balancer has no token");
    assert!(get(&server, "/", "").contains("location: /login"));
    for closed in ["/status.json", "/metrics", "/events", "/app.js", "/metrics?token=zbt1.good"] {
        assert_eq!(status(&get(&server, closed, "")), 401, "{closed}");
    }
    assert_eq!(status(&get(&server, "/login", "")), 200);
    assert_eq!(status(&log_in(&server, "other", "")), 403);
    let late = log_in(&server, "zbt1.late", "");
    assert!(body(&late).contains("it has expired"), "{late}");
    let answer = log_in(&server, "zbt1.good", "Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(status(&answer), 403, "a form of another site");
    let answer = log_in(&server, "zbt1.good", "");
    assert_eq!(status(&answer), 303);
    let cookie = answer.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
    let cookie = cookie.expect("a session");
    assert!(answer.contains("HttpOnly; SameSite=Strict"), "{answer}");
    assert!(!cookie.contains("good"), "the token is not in it");
    assert_eq!(status(&get(&server, "/status.json", &format!("Cookie: {cookie}\r\n"))), 503);
    assert_eq!(status(&get(&server, "/metrics", "Cookie: zbelastic_session=0\r\n")), 401);
    for _ in 0..2 {
        let bearer = "Authorization: Bearer zbt1.good\r\n";
        assert_eq!(status(&get(&server, "/metrics", bearer)), 200);
    }
    assert_eq!(status(&get(&server, "/metrics", "Authorization: Bearer other\r\n")), 403);
}

#[test]
fn bad_input_is_answered_or_closed_and_the_server_goes_on() {
    let server = with_token();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    let bad = ["\r\n\r\n\r\n", "GET", "\u{0}\u{1}\u{2}\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", &long];
    for request in bad {
        let mut stream = connect(&server);
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    let form = "a".repeat(zbelastic_ui::REQUEST_BYTES_MAX);
    assert_eq!(status(&log_in(&server, &form, "")), 413);
    assert_eq!(status(&log_in(&server, "", "")), 400);
    assert_eq!(body(&get(&server, "/healthz", "")), "ok\n");
}

#[test]
fn one_connection_too_many_is_refused_politely() {
    let server = start(AccessPolicy::Loopback);
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = connect(&server);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
        let mut piece = [0; 1024];
        assert!(stream.read(&mut piece).expect("an answer") > 0);
        open.push(stream);
    }
    let mut refusal = String::new();
    connect(&server).read_to_string(&mut refusal).expect("it is sent without a request");
    assert!(refusal.starts_with("HTTP/1.1 503") && refusal.contains("Retry-After"), "{refusal}");
    drop(open);
}

#[test]
fn an_address_that_cannot_be_had_is_named() {
    let server = start(AccessPolicy::Loopback);
    let at = |address| {
        let settings =
            UiSettings { address, policy: AccessPolicy::Loopback, costs: RunCosts::default() };
        UiServer::start(settings, runtime()).err().expect("it cannot be had")
    };
    let taken = at(server.address());
    assert!(matches!(taken, ServeError::Taken { .. }), "{taken}");
    // TEST-NET-1 of RFC 5737 is nobody's.
    let not_ours = at(SocketAddr::from(([192, 0, 2, 1], 0)));
    assert!(matches!(not_ours, ServeError::NotOurs { .. }), "{not_ours}");
}
