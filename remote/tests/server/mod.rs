//! A web server of a test: files in memory, ranges, conditions, and faults in the order in which
//! requests come.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered.
    None,
    /// It is answered with 503.
    Busy,
    /// It is answered with another status.
    Status(u16),
    /// The connection ends in the middle of the answer.
    Cut,
    /// The whole file comes, whatever range was asked for.
    Whole,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: VecDeque<Fault>,
    /// Requests until the files are replaced by these bytes.
    change: Option<(u32, Vec<u8>)>,
    ranges: Vec<u64>,
    /// Ranges that were asked for whatever the version.
    ranges_of_any: u32,
    has_no_etags: bool,
    has_no_conditions: bool,
}

/// A server, whose thread ends with the test's process.
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&stream.expect("a connection"), &state));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.state().files.insert(name.to_owned(), bytes.to_vec());
    }

    /// What happens to the next requests.
    pub fn fail(&self, faults: &[Fault]) {
        self.state().faults.extend(faults);
    }

    /// Replaces all files behind so many requests.
    pub fn change_behind(&self, requests: u32, bytes: &[u8]) {
        self.state().change = Some((requests, bytes.to_vec()));
    }

    pub fn set_etags(&self, has_etags: bool) {
        self.state().has_no_etags = !has_etags;
    }

    pub fn set_conditions(&self, has_conditions: bool) {
        self.state().has_no_conditions = !has_conditions;
    }

    /// Ranges that were asked for without a condition.
    pub fn ranges_of_any(&self) -> u32 {
        self.state().ranges_of_any
    }

    /// Bytes of the ranges that were sent.
    pub fn ranges(&self) -> Vec<u64> {
        self.state().ranges.clone()
    }
}

/// A request's method, name of the file, range and condition.
struct Request {
    is_head: bool,
    name: String,
    range: Option<(usize, usize)>,
    if_match: Option<String>,
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let is_head = words.next()? == "HEAD";
    let name = words.next()?.trim_start_matches('/').to_owned();
    let mut request = Request { is_head, name, range: None, if_match: None };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((key, value)) = line.trim().split_once(": ") else { return Some(request) };
        if key.eq_ignore_ascii_case("range") {
            let (begin, end) = value.strip_prefix("bytes=")?.split_once('-')?;
            request.range = Some((begin.parse().ok()?, end.parse().ok()?));
        } else if key.eq_ignore_ascii_case("if-match") {
            request.if_match = Some(value.to_owned());
        }
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let (answer, is_cut) = answer(&request, &mut state.lock().expect("not poisoned"));
        let mut stream = stream;
        let sent = stream.write_all(&answer);
        if is_cut || sent.is_err() {
            return;
        }
    }
}

fn head(status: u16, len: usize, more: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} x\r\nContent-Length: {len}\r\n{more}\r\n").into_bytes()
}

fn refusal(status: u16, is_head: bool) -> Vec<u8> {
    let body = b"<Error><Code>SlowDown</Code></Error>";
    let mut answer = head(status, body.len(), "");
    answer.extend(if is_head { &[] } else { &body[..] });
    answer
}

/// The bytes to send, and whether the connection ends with them.
fn answer(request: &Request, state: &mut State) -> (Vec<u8>, bool) {
    let Request { is_head, name, range, if_match } = request;
    if let Some((requests, bytes)) = &mut state.change {
        match requests {
            0 => state.files.values_mut().for_each(|file| file.clone_from(bytes)),
            requests => *requests -= 1,
        }
    }
    let fault = state.faults.pop_front().unwrap_or(Fault::None);
    let refused = |status| (refusal(status, *is_head), false);
    match fault {
        Fault::Busy => return refused(503),
        Fault::Status(status) => return refused(status),
        Fault::None | Fault::Cut | Fault::Whole => {}
    }
    let Some(file) = state.files.get(name) else { return refused(404) };
    // What a test replaces a file by differs in one of these.
    let etag = format!("\"{:x}-{}\"", file.first().unwrap_or(&0), file.len());
    if !state.has_no_conditions && if_match.as_ref().is_some_and(|tag| *tag != etag) {
        return refused(412);
    }
    let tag = if state.has_no_etags { String::new() } else { format!("ETag: {etag}\r\n") };
    if *is_head {
        return (head(200, file.len(), &tag), false);
    }
    let range = range.filter(|_| fault != Fault::Whole);
    let Some((begin, end)) = range else {
        return ([head(200, file.len(), &tag), file.clone()].concat(), false);
    };
    if begin >= file.len() {
        return refused(416);
    }
    let end = (end + 1).min(file.len());
    let more = format!("{tag}Content-Range: bytes {begin}-{}/{}\r\n", end - 1, file.len());
    state.ranges_of_any += u32::from(if_match.is_none());
    state.ranges.push((end - begin) as u64);
    let mut answer = head(206, end - begin, &more);
    let is_cut = fault == Fault::Cut;
    let sent = if is_cut { begin + (end - begin) / 2 } else { end };
    answer.extend(&file[begin..sent]);
    (answer, is_cut)
}
