//! Spans that are sent to a collector of OpenTelemetry, where `OTEL_EXPORTER_OTLP_ENDPOINT` names one.
//!
//! Nothing waits for a collector: a queue of bounded length is between, and what does not fit or is not
//! taken is dropped, counted and printed.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbelastic_api::ClusterEvent;
use zbelastic_remote::JsonPoster;
use zbelastic_view::{Span, SpanBuilder, otlp_json};
use zbelastic_wording::{CommandFailure, FailureDetail, print_error_line};

use crate::named_thread::spawn_named;

/// Variables of OpenTelemetry: the collector, where traces go if that is elsewhere, what is spoken with it,
/// and headers that it wants, as `key=value` with commas.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
/// Protocols whose collectors take JSON over HTTP: those of HTTP listen at one port for both forms.
const PROTOCOLS: [&str; 2] = ["http/json", "http/protobuf"];
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE: &str = "OTEL_SERVICE_NAME";
/// Spans that wait while a request is answered or given up, which takes five seconds: those of 400
/// steps a second. As OpenTelemetry's own exporters have it (`OTEL_BSP_MAX_QUEUE_SIZE`).
const QUEUE_SPANS_MAX: usize = 2048;
/// Spans of one request, as theirs (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`), and how long the first of them
/// waits for others.
const BATCH_SPANS_MAX: usize = 512;
const BATCH_WITHIN: Duration = Duration::from_secs(1);

/// Where spans go, and what they are of.
pub struct SpanCollector {
    poster: JsonPoster,
    service: String,
}

impl SpanCollector {
    /// The collector of the environment, if it names one. `service` is what traces are of if the
    /// environment does not say so.
    ///
    /// # Errors
    /// If a variable has no address, no headers or a protocol that is not spoken here, by its name.
    pub fn of_environment(service: &str) -> Result<Option<Self>, CommandFailure> {
        Self::of(service, |name| env::var(name).ok())
    }

    fn of(
        service: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, CommandFailure> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let (name, value, address) = if let Some(address) = variable(TRACES_ENDPOINT) {
            (TRACES_ENDPOINT, address.clone(), address)
        } else if let Some(base) = variable(ENDPOINT) {
            let address = format!("{}/v1/traces", base.trim_end_matches('/'));
            (ENDPOINT, base, address)
        } else {
            return Ok(None);
        };
        check_protocol(variable)?;
        let headers = headers(&variable(HEADERS).unwrap_or_default())?;
        let poster = JsonPoster::new(&address, headers).map_err(|reason| {
            let hint = "such as http://localhost:4318; or unset it";
            wrong_variable(name, &format!("{value}: {reason}"), hint)
        })?;
        let service = variable(SERVICE).unwrap_or_else(|| service.to_owned());
        Ok(Some(Self { poster, service }))
    }
}

/// Refuses a protocol that is not HTTP: its port takes nothing that is sent here, and spans would be dropped.
fn check_protocol(variable: impl Fn(&'static str) -> Option<String>) -> Result<(), CommandFailure> {
    let found =
        [TRACES_PROTOCOL, PROTOCOL].into_iter().find_map(|name| Some((name, variable(name)?)));
    let Some((name, value)) = found.filter(|(_, value)| !PROTOCOLS.contains(&value.trim())) else {
        return Ok(());
    };
    let hint = "http/json, with the collector's address for HTTP, such as http://localhost:4318";
    Err(wrong_variable(name, &format!("{value}: traces are sent as JSON over HTTP alone"), hint))
}

fn wrong_variable(name: &str, what: &str, hint: &str) -> CommandFailure {
    CommandFailure::usage("the environment", vec![FailureDetail::new(what).at(name).hint(hint)])
}

/// Headers as OpenTelemetry has them. What they hold is a secret, and not printed.
fn headers(text: &str) -> Result<Vec<(String, String)>, CommandFailure> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    let read: Option<Vec<_>> = pairs.map(header).collect();
    read.ok_or_else(|| {
        wrong_variable(HEADERS, "no list of key=value", "such as api-key=SECRET,x-tenant=wiki")
    })
}

/// Sends the spans of events.
pub struct SpanExporter {
    builder: SpanBuilder,
    queue: Option<SyncSender<Span>>,
    thread: Option<JoinHandle<()>>,
    dropped: Arc<AtomicU64>,
}

impl SpanExporter {
    /// An exporter to `collector` of the spans of a cluster.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(collector: SpanCollector, cluster: &str) -> Result<Self, CommandFailure> {
        let SpanCollector { poster, service } = collector;
        let cluster = cluster.to_owned();
        let (queue, inbox) = sync_channel(QUEUE_SPANS_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        let send = move || {
            send_all(&inbox, &counter, |spans| poster.post(&otlp_json(&service, &cluster, spans)));
        };
        let thread = Some(spawn_named("spans", send)?);
        Ok(Self { builder: SpanBuilder::default(), queue: Some(queue), thread, dropped })
    }

    /// Spans that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Enqueues the spans that end with these events.
    pub fn observe(&mut self, events: &[ClusterEvent]) {
        for span in events.iter().flat_map(|event| self.builder.observe(event)).collect::<Vec<_>>()
        {
            let is_enqueued = self.queue.as_ref().is_some_and(|queue| queue.try_send(span).is_ok());
            if !is_enqueued {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends what is enqueued, prints how many spans were dropped in all, and returns their number.
    pub fn finish(mut self) -> u64 {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked ended the process.
            let _ = thread.join();
        }
        let dropped = self.dropped();
        if dropped > 0 {
            print_error_line(format_args!("note: {dropped} spans of traces were dropped"));
        }
        dropped
    }
}

/// Sends batches until nobody enqueues any more. After a batch that was not taken at the end, the rest is
/// dropped: a collector that is away must not keep a run from ending.
fn send_all(
    inbox: &Receiver<Span>,
    dropped: &AtomicU64,
    send: impl Fn(&[Span]) -> Result<(), String>,
) {
    let mut is_failing = false;
    loop {
        let (batch, is_last) = next_batch(inbox);
        if batch.is_empty() && is_last {
            return;
        }
        match send(&batch) {
            Ok(()) if is_failing => {
                print_error_line("note: traces are sent again");
                is_failing = false;
            }
            Ok(()) => {}
            Err(reason) => {
                dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                if !is_failing {
                    let note = format_args!("note: traces are not sent, and dropped: {reason}");
                    print_error_line(note);
                }
                is_failing = true;
                if is_last {
                    dropped.fetch_add(inbox.iter().count() as u64, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}

/// Spans that came within a second of the first, and whether nobody enqueues any more.
fn next_batch(inbox: &Receiver<Span>) -> (Vec<Span>, bool) {
    let Ok(first) = inbox.recv() else { return (Vec::new(), true) };
    let until = Instant::now() + BATCH_WITHIN;
    let mut batch = vec![first];
    while batch.len() < BATCH_SPANS_MAX {
        match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(span) => batch.push(span),
            Err(RecvTimeoutError::Timeout) => return (batch, false),
            Err(RecvTimeoutError::Disconnected) => return (batch, true),
        }
    }
    (batch, false)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use zbelastic_api::EventKind;
    use zbelastic_types::Bytes;
    use zbelastic_wording::FailureCode;

    use super::*;

    fn checkpoint(step: u64) -> ClusterEvent {
        let kind = EventKind::Checkpoint { step, bytes: Bytes(1), ms: None };
        ClusterEvent::new(0, 1000 + step, kind)
    }

    fn collector(variables: &[(&str, &str)]) -> Result<Option<SpanCollector>, CommandFailure> {
        let found = |name: &str| variables.iter().find(|(of, _)| *of == name);
        SpanCollector::of("test", |name| found(name).map(|(_, value)| (*value).to_owned()))
    }

    fn exporter(address: &str) -> SpanExporter {
        let variables = [(TRACES_ENDPOINT, address), (HEADERS, "x-key=secret, x-other=1")];
        let collector = collector(&variables).expect("an address").expect("it is set");
        SpanExporter::start(collector, "wiki").expect("a thread")
    }

    /// Answers a request with 200, and yields its head and body.
    fn collect(listener: &TcpListener) -> (String, String) {
        let (stream, _) = listener.accept().expect("a connection");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("a line") > 0, "{head}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length = length.lines().next().expect("a line").parse().expect("a number");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
        reader.get_mut().write_all(answer).expect("it reads");
        (head, String::from_utf8(body).expect("text"))
    }

    #[test]
    fn a_collector_receives_every_span_and_the_headers_that_it_wants() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}/v1/traces", listener.local_addr().expect("it"));
        let mut exporter = exporter(&address);
        let events: Vec<_> = (0..BATCH_SPANS_MAX as u64 + 1).map(checkpoint).collect();
        exporter.observe(&events);
        let count = events.len();
        let collecting = thread::spawn(move || {
            let mut spans = 0;
            while spans < count {
                let (head, body) = collect(&listener);
                assert!(head.starts_with("post /v1/traces ") && head.contains("x-key: secret"));
                spans += body.matches("\"spanId\"").count();
            }
            spans
        });
        assert_eq!(exporter.finish(), 0);
        assert_eq!(collecting.join().expect("it answered"), count);
    }

    #[test]
    fn a_collector_that_is_away_costs_spans_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}/v1/traces", listener.local_addr().expect("it"));
        drop(listener);
        let mut exporter = exporter(&address);
        let events: Vec<_> = (0..3 * QUEUE_SPANS_MAX as u64).map(checkpoint).collect();
        exporter.observe(&events);
        assert_eq!(exporter.finish(), events.len() as u64, "each is counted once");
    }

    #[test]
    fn what_is_wrong_in_the_environment_is_refused_by_the_name_of_the_variable() {
        let refused = |variables: &[(&str, &str)], named: &str, value: &str| {
            let failure = collector(variables).err().expect("it is wrong");
            assert_eq!(failure.code, FailureCode::Usage);
            let [detail] = &failure.details[..] else { panic!("{failure}") };
            assert_eq!(detail.place.as_deref(), Some(named), "{failure}");
            assert!(detail.what.starts_with(value), "{failure}");
        };
        let good = "http://localhost:4318";
        for wrong in
            ["localhost:4318", "collector", "http://", "grpc://localhost:4317", "http://a b"]
        {
            refused(&[(ENDPOINT, wrong)], ENDPOINT, &format!("{wrong}: "));
            refused(&[(TRACES_ENDPOINT, wrong)], TRACES_ENDPOINT, &format!("{wrong}: "));
            refused(&[(ENDPOINT, good), (TRACES_ENDPOINT, wrong)], TRACES_ENDPOINT, wrong);
        }
        refused(&[(ENDPOINT, good), (HEADERS, "secret")], HEADERS, "no list");
        for name in [PROTOCOL, TRACES_PROTOCOL] {
            refused(&[(ENDPOINT, good), (name, "grpc")], name, "grpc: ");
            refused(&[(TRACES_ENDPOINT, good), (name, "http")], name, "http: ");
            assert!(collector(&[(name, "grpc")]).expect("there is no collector").is_none());
            for spoken in PROTOCOLS {
                assert!(collector(&[(ENDPOINT, good), (name, spoken)]).expect("spoken").is_some());
            }
        }
        let traces_over_http =
            [(ENDPOINT, good), (PROTOCOL, "grpc"), (TRACES_PROTOCOL, "http/json")];
        assert!(collector(&traces_over_http).expect("that of traces counts").is_some());
        assert!(collector(&[(TRACES_ENDPOINT, ""), (ENDPOINT, "")]).expect("unset").is_none());
        assert!(collector(&[(ENDPOINT, good), (HEADERS, "a=b,")]).expect("legal").is_some());
    }
}
