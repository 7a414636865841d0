//! A metadata service that answers as a test wants, and hands on the requests it received.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc::error::TryRecvError;
use zbelastic_preemption::{
    MetadataUrl, Notice, NoticeReport, NoticeSettings, NoticeSource, NoticeWatch, PollTimings,
};

/// After that long a test has failed; nothing takes as long.
const GUARD: Duration = Duration::from_secs(60);

/// An HTTP request that the service received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl ReceivedRequest {
    /// The value of a header; its name counts in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let is_it = |(found, _): &&(String, String)| found.eq_ignore_ascii_case(name);
        self.headers.iter().find(is_it).map(|(_, value)| value.as_str())
    }

    /// Whether it has this method and a path that begins with `path`.
    pub fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path.starts_with(path)
    }
}

/// The reply of the service.
pub enum MockReply {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// These bytes, HTTP or not.
    Raw(Vec<u8>),
    /// The beginning of an answer, and never its end.
    Half,
    /// Nothing, and the connection stays.
    Silence,
    /// Nothing, and the connection is closed.
    Close,
}

impl MockReply {
    pub fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::Answer { status, headers: Vec::new(), body: body.into() }
    }

    pub fn header(self, name: &'static str, value: &str) -> Self {
        let Self::Answer { status, mut headers, body } = self else { panic!("an answer") };
        headers.push((name, value.to_owned()));
        Self::Answer { status, headers, body }
    }
}

pub struct MockService {
    pub url: String,
    received: Receiver<ReceivedRequest>,
}

impl MockService {
    /// A service on a port of its own. `answer` is called on a thread for each connection, and may
    /// wait for whatever it likes.
    pub fn start(answer: impl Fn(&ReceivedRequest) -> MockReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (sender, received) = channel();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let answer = Arc::clone(&answer);
                let sender = sender.clone();
                // Some tests are about clients that give up while they are answered.
                thread::spawn(move || connection.map(|stream| serve(stream, &*answer, &sender)));
            }
        });
        Self { url, received }
    }

    /// The next request for which `is_wanted` holds.
    pub fn next(&self, is_wanted: impl Fn(&ReceivedRequest) -> bool) -> ReceivedRequest {
        loop {
            let request = self.received.recv_timeout(GUARD).expect("it is asked");
            if is_wanted(&request) {
                return request;
            }
        }
    }

    /// Waits for `count` more requests for which `is_wanted` holds.
    pub fn wait_for(&self, count: usize, is_wanted: impl Fn(&ReceivedRequest) -> bool) {
        for _ in 0..count {
            self.next(&is_wanted);
        }
    }

    /// The requests that were received and not returned yet.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.received.try_iter().collect()
    }

    pub fn watch(&self, source: NoticeSource) -> MockedWatch {
        self.watch_at(source, quick())
    }

    pub fn watch_at(&self, source: NoticeSource, pace: PollTimings) -> MockedWatch {
        let base = Some(MetadataUrl::parse(&self.url).expect("a place"));
        MockedWatch(NoticeWatch::start(NoticeSettings { source, base, pace }).expect("a thread"))
    }
}

/// A pace for a service that answers at once, of which no test has to wait for anything.
pub fn quick() -> PollTimings {
    let millisecond = Duration::from_millis(1);
    PollTimings {
        aws_poll: millisecond,
        azure_poll: millisecond,
        gcp_pause: millisecond,
        fault_wait_min: millisecond,
        fault_wait_max: millisecond,
        patience: GUARD,
        azure_first_patience: GUARD,
        probe_patience: GUARD,
        probes_max: 3,
        gcp_hang: GUARD,
    }
}

pub struct MockedWatch(pub NoticeWatch);

impl MockedWatch {
    /// The next report, or `None` if there will be none.
    pub fn report(&mut self) -> Option<NoticeReport> {
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        let report = async { tokio::time::timeout(GUARD, self.0.reports.recv()).await };
        runtime.expect("a runtime").block_on(report).expect("a report in time")
    }

    /// The next report, which is a notice.
    pub fn notice(&mut self) -> Notice {
        match self.report() {
            Some(NoticeReport::Notice(notice)) => notice,
            other => panic!("expected a notice, found {other:?}"),
        }
    }

    pub fn assert_silent(&mut self) {
        assert_eq!(self.0.reports.try_recv(), Err(TryRecvError::Empty));
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &dyn Fn(&ReceivedRequest) -> MockReply,
    sender: &Sender<ReceivedRequest>,
) -> Option<()> {
    let request = read_request(&stream)?;
    // The test may have ended.
    let _ = sender.send(request.clone());
    match answer(&request) {
        MockReply::Answer { status, headers, body } => {
            let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
            let head = format!(
                "HTTP/1.1 {status} Said\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
                body.len(),
                headers.collect::<String>()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).ok()
        }
        MockReply::Raw(bytes) => stream.write_all(&bytes).ok(),
        MockReply::Half => {
            stream.write_all(b"HTTP/1.1 200 Said\r\nContent-Length: 100\r\n\r\nhalf").ok()?;
            wait_for_end(&mut stream)
        }
        MockReply::Silence => wait_for_end(&mut stream),
        MockReply::Close => Some(()),
    }
}

/// Until the other side has given up.
fn wait_for_end(stream: &mut TcpStream) -> Option<()> {
    stream.read_to_end(&mut Vec::new()).ok().map(drop)
}

fn read_request(stream: &TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        let count = reader.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let method = words.next()?.to_owned();
    let path = words.next()?.to_owned();
    let mut headers = Vec::new();
    while let Some(line) = line().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut request = ReceivedRequest { method, path, headers, body: String::new() };
    let length = request.header("Content-Length").and_then(|length| length.parse().ok());
    reader.take(length.unwrap_or(0)).read_to_string(&mut request.body).ok()?;
    Some(request)
}
