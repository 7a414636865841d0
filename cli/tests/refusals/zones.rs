//! The zone of a worker: the typed one, or else the one that the cloud's metadata service names.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use crate::site::{ControllerSite, SiteNode, wait_until};

/// A metadata service of Amazon, in a zone. Yields its address; it ends with the test.
fn metadata_service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            let line = String::from_utf8_lossy(&request[..length]).into_owned();
            let (status, body) = if line.starts_with("PUT /latest/api/token") {
                ("200 OK", "token")
            } else if line.contains("/placement/availability-zone") {
                ("200 OK", "us-east-1a")
            } else {
                ("404 Not Found", "")
            };
            let length = body.len();
            // A client that is gone requests nothing more.
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    format!("http://{address}")
}

#[test]
fn a_worker_stands_in_the_zone_that_its_cloud_names_unless_another_one_is_typed() {
    let site = ControllerSite::new();
    let service = metadata_service();
    let start = |folder: &Path, arguments: &[&str]| {
        let variables = [("ZBELASTIC_METADATA_URL", service.as_str())];
        SiteNode::start_with(folder, arguments, &variables)
    };
    let zone = |name: &str| site.member(name).expect("a member")["zone"].clone();
    let token = site.token(&["--uses", "2"]);
    let named = |name| {
        let mut join = site.join(&token, name);
        join.truncate(join.len() - 2);
        join
    };
    let asked = start(&site.path("asked"), &named("asked"));
    wait_until("the worker", || site.member("asked").is_some());
    assert_eq!(zone("asked"), "us-east-1a", "{}", asked.log_text());
    asked.wait_for_log("zone us-east-1a, as the metadata of aws name it");
    let typed = start(&site.path("typed"), &[&named("typed")[..], &["--zone", "rack-1"]].concat());
    wait_until("the worker", || site.member("typed").is_some());
    assert_eq!(zone("typed"), "rack-1", "{}", typed.log_text());
    assert!(!typed.log_text().contains("us-east-1a"), "{}", typed.log_text());
}
