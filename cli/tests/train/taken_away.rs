//! Runs whose machine is taken away: what is saved, and where.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::endings::{RunningTraining, STEADY};
use crate::mirrored::mirrored;
use crate::text_folder::TextFolder;

/// The answer of Amazon's metadata service once a spot machine is marked.
const MARKED: &str = r#"{"action": "terminate", "time": "2036-11-21T12:01:03Z"}"#;

/// A metadata service of Amazon. The machine is marked from when `is_marked` is set. Yields its
/// address; it ends with the test.
fn metadata_service(is_marked: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let is_marked = Arc::clone(is_marked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            let line = String::from_utf8_lossy(&request[..length]).into_owned();
            let is_action = line.contains("/spot/instance-action");
            let (status, body) = if line.starts_with("PUT") {
                ("200 OK", "token")
            } else if is_action && is_marked.load(Ordering::SeqCst) {
                ("200 OK", MARKED)
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

fn last_step(stdout: &str) -> u64 {
    let events = stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut steps = events.filter(|event: &serde_json::Value| event["event"] == "step");
    steps.next_back().and_then(|step| step["step"].as_u64()).expect("steps were reported")
}

/// The disk goes with the machine, and the mirror is what others go on from.
#[test]
fn a_cloud_that_takes_the_machine_finds_the_last_step_in_the_mirror() {
    let folder = TextFolder::new();
    let mirror = folder.path("mirror");
    let is_marked = Arc::new(AtomicBool::new(false));
    let service = metadata_service(&is_marked);
    let place = mirror.display();
    let more = format!(
        "--steps 5000 {STEADY} --workers 2 --out run --json --spot aws --set checkpoint.mirror={place}"
    );
    let mut command = folder.small_in_processes(&more);
    let mut running = RunningTraining::start(command.env("ZBELASTIC_METADATA_URL", service));
    let mut stdout = running.read_to("{\"event\":\"step\"");
    is_marked.store(true, Ordering::SeqCst);
    let (rest, stderr, code) = running.end();
    stdout += &rest;
    assert_eq!(code, Some(75), "{stderr}");
    assert!(stderr.contains("notice of aws: the machine is taken away"), "{stderr}");
    let last = last_step(&stdout);
    assert_eq!(mirrored(&mirror).last(), Some(&last), "{stderr}");
    assert!(stderr.contains(&format!("checkpoint {last} is in {place}")), "{stderr}");
}

#[test]
fn a_run_that_is_done_has_its_end_in_the_mirror_or_says_why_not() {
    let folder = TextFolder::new();
    let mirror = folder.path("mirror");
    // Nothing can be below a file.
    let nowhere = folder.path("text.txt/mirror");
    for (place, is_there) in [(&mirror, true), (&nowhere, false)] {
        let more = format!("--workers 1 --set checkpoint.mirror={}", place.display());
        let output = folder.small_in_processes(&more).output().expect("it runs");
        let stderr = crate::common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(mirrored(place), if is_there { vec![8] } else { Vec::new() }, "{stderr}");
        let note = if is_there { "note: checkpoint 8 is in " } else { "and not in " };
        assert!(stderr.contains(note), "{stderr}");
    }
}

/// Command lines can be read by every user of the machine, environments by all that a process
/// starts, and a token lets its reader in.
#[cfg(target_os = "linux")]
#[test]
fn no_command_line_or_environment_of_a_run_holds_a_token() {
    let folder = TextFolder::new();
    let mut running = RunningTraining::start(
        &mut folder.small_in_processes(&format!("--steps 5000 {STEADY} --workers 2 --json")),
    );
    running.read_to("{\"event\":\"step\"");
    let own = folder.path("");
    let processes = fs::read_dir("/proc").expect("Linux has one").flatten();
    let lines = processes.filter_map(|process| {
        let works_in = fs::read_link(process.path().join("cwd")).ok()?;
        let mut line = fs::read(process.path().join("cmdline")).ok()?;
        line.extend(fs::read(process.path().join("environ")).ok()?);
        works_in.starts_with(&own).then(|| String::from_utf8_lossy(&line).replace('\0', " "))
    });
    let lines: Vec<String> = lines.collect();
    let joins = lines.iter().filter(|line| line.contains(" join ")).count();
    assert_eq!(joins, 2, "{lines:#?}");
    // The word that every token begins with.
    assert!(lines.iter().all(|line| !line.contains("zbt1.")), "{lines:#?}");
    running.signal("-INT");
    running.end();
}
