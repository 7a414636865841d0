//! A run as programs of others see it: TensorBoard reads its event files, and a collector's own definition of
//! spans reads what was sent to it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::common::text;
use crate::text_folder::{STEPS, TextFolder, TrainingOutput, succeed};
use crate::tools::content;

/// Prints each tag with its number of scalars, its last step and its last value.
const SCALARS: &str = "\
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    scalars = events.Scalars(tag)
    print(tag, len(scalars), scalars[-1].step, scalars[-1].value)
for tag in events.Tags()['tensors']:
    print(tag, events.Tensors(tag)[0].tensor_proto.string_val[0].decode().splitlines()[0])
";

/// Parses requests by the definition that collectors have, and prints the names of spans with their steps.
const SPANS: &str = "\
import sys
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
for path in sys.argv[1:]:
    request = json_format.Parse(open(path).read(), ExportTraceServiceRequest())
    for group in request.resource_spans:
        service = [a.value.string_value for a in group.resource.attributes if a.key == 'service.name']
        for span in (span for scope in group.scope_spans for span in scope.spans):
            assert span.trace_id and span.span_id and span.end_time_unix_nano >= span.start_time_unix_nano
            step = [a.value.int_value for a in span.attributes if a.key == 'zbelastic.step']
            print(service[0] + ':', span.name, *step)
";

/// A Python with these packages, which `ZBELASTIC_PYTHON` names.
///
/// # Panics
/// If there is none though `ZBELASTIC_TOOLS_REQUIRED` is set.
fn python_with(packages: &str) -> Option<Command> {
    let python = env::var_os("ZBELASTIC_PYTHON").unwrap_or_else(|| "python3".into());
    let imported = Command::new(&python).args(["-c", &format!("import {packages}")]).output();
    if imported.is_ok_and(|output| output.status.success()) {
        return Some(Command::new(python));
    }
    assert!(env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_none(), "no Python has {packages}");
    println!("skipped: no Python has {packages}");
    None
}

#[test]
fn tensorboard_reads_the_scalars_of_each_step() {
    let Some(mut python) = python_with("tensorboard") else { return };
    let text_folder = TextFolder::new();
    let run = text_folder.run("--workers 2");
    let printed = content(python.args(["-c", SCALARS]).arg(run.folder.join("tensorboard")));
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split(' ').collect()).collect();
    let row = |tag: &str| {
        let found = rows.iter().find(|row| row[0] == tag);
        found.unwrap_or_else(|| panic!("{tag} in {printed}")).clone()
    };
    let steps = STEPS.to_string();
    let metrics = fs::read_to_string(run.folder.join("metrics.jsonl")).expect("metrics");
    let mut lines = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = lines.rfind(|line| line["event"] == "step").expect("a step");
    for (tag, key) in [("loss/train", "loss"), ("gradient/norm", "gnorm")] {
        let [_, count, step, value] = row(tag)[..] else { panic!("{printed}") };
        assert_eq!((count, step), (&*steps, &*steps), "{printed}");
        let expected = last[key].as_f64().expect("a number") as f32;
        assert_eq!(value.parse::<f64>().expect("a number") as f32, expected, "{tag}");
    }
    assert_eq!(row("run/config")[1], "```toml", "{printed}");
}

/// Writes the body of each request to a file of its own.
fn collect(listener: &TcpListener, folder: &Path) {
    for (at, stream) in listener.incoming().enumerate() {
        let mut reader = BufReader::new(stream.expect("a connection"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            // The test connects once more to end it.
            if reader.read_line(&mut head).expect("a line") == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/traces "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.expect("a length").parse().expect("a number")];
        reader.read_exact(&mut body).expect("a body");
        fs::write(folder.join(format!("{at}.json")), body).expect("writable");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
        reader.get_mut().write_all(answer).expect("it reads");
    }
}

/// `2>&1 | head`, and a collector that does not answer: the notes about it are read by nobody, and the
/// run ends as it would without them.
#[test]
fn notes_that_nobody_reads_end_no_run() {
    let text_folder = TextFolder::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it");
    drop(free);
    let mut command = text_folder.small_in_processes("--workers 2 --json --out run");
    for name in ["TRACES_ENDPOINT", "HEADERS"] {
        command.env_remove(format!("OTEL_EXPORTER_OTLP_{name}"));
    }
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    drop(child.stderr.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let run = TrainingOutput::read(&text_folder, text(&output.stdout));
    assert_eq!(run.of("step").len(), STEPS);
    for name in ["report.html", "run.json"] {
        assert!(!run.file(name).is_empty(), "{name}");
    }
}

#[test]
fn a_collector_reads_a_span_of_each_step() {
    let Some(mut python) = python_with("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    else {
        return;
    };
    let text_folder = TextFolder::new();
    let requests = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it");
    let written = requests.path().to_owned();
    let collecting = thread::spawn(move || collect(&listener, &written));
    let mut command = text_folder.small_in_processes("--workers 2");
    for name in ["TRACES_ENDPOINT", "HEADERS"] {
        command.env_remove(format!("OTEL_EXPORTER_OTLP_{name}"));
    }
    command.env_remove("OTEL_SERVICE_NAME");
    succeed(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")));
    drop(TcpStream::connect(address).expect("it listens"));
    collecting.join().expect("it collects");
    let files = fs::read_dir(requests.path()).expect("a folder");
    let files = files.map(|entry| entry.expect("readable").path());
    let printed = content(python.args(["-c", SPANS]).args(files));
    for step in 1..=STEPS {
        let count =
            printed.lines().filter(|l| *l == format!("zbelastic train: step {step}")).count();
        assert_eq!(count, 1, "step {step}: {printed}");
    }
    assert!(printed.lines().any(|line| line.starts_with("zbelastic train: plan")), "{printed}");
}
