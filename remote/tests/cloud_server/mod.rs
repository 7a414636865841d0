//! A server that speaks the APIs of Google Cloud Storage or of Azure Blob Storage over objects in memory, as far
//! as sources and mirrors use them: it checks how each request is signed, lists in pages, and reads ranges.

mod azure;
mod google;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, LAST_MODIFIED, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::Body;
use tokio::runtime::Builder;

pub use azure::Azure;
pub use google::Google;

/// The one bucket or container.
pub const BUCKET: &str = "books";
/// Objects of a page of a list.
const PAGE_OBJECTS: usize = 2;
const MODIFIED: &str = "Mon, 02 Mar 2026 10:00:00 GMT";

/// Whose API is spoken, and who may use it.
pub enum Api {
    Google(Google),
    Azure(Azure),
}

struct State {
    api: Api,
    objects: BTreeMap<String, Vec<u8>>,
    busy: u32,
    pages: u32,
    ranges: Vec<usize>,
}

/// Status and code of an error.
pub type ErrorCode = (u16, &'static str);

/// A server, whose thread ends with the test's process.
pub struct CloudServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl CloudServer {
    pub fn start(api: Api) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let state = State { api, objects: BTreeMap::new(), busy: 0, pages: 0, ranges: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(listener, shared));
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn put(&self, key: &str, bytes: &[u8]) {
        self.state().objects.insert(key.to_owned(), bytes.to_vec());
    }

    /// Answers so many requests with 503.
    pub fn be_busy(&self, requests: u32) {
        self.state().busy = requests;
    }

    /// Pages of lists, and lengths of ranges, since the last call.
    pub fn take_counts(&self) -> (u32, Vec<usize>) {
        let mut state = self.state();
        (std::mem::take(&mut state.pages), std::mem::take(&mut state.ranges))
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    loop {
        let (socket, _) = listener.accept().await.expect("a connection");
        let state = Arc::clone(&state);
        let answer = service_fn(move |request| answer(Arc::clone(&state), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
        tokio::spawn(async { drop(connection.await) });
    }
}

/// A request, whole.
pub struct Received {
    method: Method,
    /// As it was sent: encoded.
    path: String,
    /// Names and values, decoded.
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Received {
    async fn of(request: Request<Incoming>) -> Self {
        let (parts, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            bytes.extend(frame.expect("a body").into_data().into_iter().flatten());
        }
        let query = parts.uri.query().unwrap_or_default();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let decoded = |text: &str| decode(&text.replace('+', " "));
        let query = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
        let path = parts.uri.path().to_owned();
        Self { method: parts.method, path, query, headers: parts.headers, body: bytes }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// The text that percent signs encode.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let encoded = (*first == b'%').then(|| std::str::from_utf8(&behind[..2]).expect("ASCII"));
        bytes.push(encoded.map_or(*first, |hex| u8::from_str_radix(hex, 16).expect("a byte")));
        rest = &behind[if encoded.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8(bytes).expect("UTF-8")
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let request = Received::of(request).await;
    let mut state = state.lock().expect("not poisoned");
    Ok(respond(&mut state, &request).unwrap_or_else(|(status, code)| {
        let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        response(status, Body::from(text))
    }))
}

fn response(status: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// A response, or the status and code of an error.
fn respond(state: &mut State, request: &Received) -> Result<Response<Body>, ErrorCode> {
    if let Some(left) = state.busy.checked_sub(1) {
        state.busy = left;
        return Err((503, "ServerBusy"));
    }
    let [no_bucket, no_object] = match &state.api {
        Api::Google(google) => google.check(request).map(|()| ["NoSuchBucket", "NoSuchKey"])?,
        Api::Azure(azure) => {
            azure.check(request).map(|()| ["ContainerNotFound", "BlobNotFound"])?
        }
    };
    let path = decode(request.path.strip_prefix('/').expect("a path"));
    let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
    if bucket != BUCKET {
        return Err((404, no_bucket));
    }
    match request.method {
        Method::GET if key.is_empty() => Ok(list(state, request)),
        Method::GET | Method::HEAD => {
            let object = state.objects.get(key).ok_or((404, no_object))?;
            let (read, range) = read(object, request)?;
            state.ranges.extend(range);
            Ok(read)
        }
        Method::PUT => {
            state.objects.insert(key.to_owned(), request.body.clone());
            let mut response = response(201, Body::from(String::new()));
            response.headers_mut().insert(ETAG, etag(&request.body).parse().expect("ASCII"));
            response.headers_mut().insert(LAST_MODIFIED, MODIFIED.parse().expect("ASCII"));
            Ok(response)
        }
        Method::DELETE => {
            state.objects.remove(key).ok_or((404, no_object))?;
            Ok(response(204, Body::from(String::new())))
        }
        Method::POST if request.parameter("comp") == Some("batch") => {
            Ok(azure::batch(request, &mut state.objects))
        }
        _ => Err((405, "UnsupportedHttpVerb")),
    }
}

fn etag(object: &[u8]) -> String {
    format!("\"{:x}-{}\"", object.first().unwrap_or(&0), object.len())
}

/// An object or a range of it, and the range's length.
fn read(object: &[u8], request: &Received) -> Result<(Response<Body>, Option<usize>), ErrorCode> {
    let etag = etag(object);
    if request.headers.contains_key(IF_MATCH) && request.header(IF_MATCH.as_str()) != etag {
        return Err((412, "ConditionNotMet"));
    }
    let range = request.header(RANGE.as_str()).strip_prefix("bytes=");
    let range = range.and_then(|range| range.split_once('-')).map(|(begin, end)| {
        let number = |text: &str| text.parse::<usize>().expect("a number");
        number(begin)..object.len().min(number(end) + 1)
    });
    let part = match &range {
        Some(range) => object.get(range.clone()).ok_or((416, "InvalidRange"))?,
        None => object,
    };
    let is_head = request.method == Method::HEAD;
    let body = if is_head { Vec::new() } else { part.to_vec() };
    let status = if range.is_some() { 206 } else { 200 };
    let mut response = response(status, Body::from(bytes::Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(ETAG, etag.parse().expect("ASCII"));
    headers.insert(LAST_MODIFIED, MODIFIED.parse().expect("ASCII"));
    headers.insert(CONTENT_LENGTH, part.len().into());
    if let Some(range) = &range {
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, object.len());
        headers.insert(CONTENT_RANGE, text.parse().expect("ASCII"));
    }
    Ok((response, range.map(|range| range.len())))
}

/// A page of the objects whose keys begin with a prefix, in the order of keys.
fn list(state: &mut State, request: &Received) -> Response<Body> {
    let marker = match state.api {
        Api::Google(_) => request.parameter("continuation-token"),
        Api::Azure(_) => request.parameter("marker"),
    };
    let prefix = request.parameter("prefix").unwrap_or_default();
    let behind = state.objects.iter().filter(|(key, _)| {
        key.starts_with(prefix) && marker.is_none_or(|marker| key.as_str() >= marker)
    });
    let mut behind: Vec<_> = behind.map(|(key, object)| (&**key, &**object)).collect();
    let next = behind.get(PAGE_OBJECTS).map(|(key, _)| *key);
    behind.truncate(PAGE_OBJECTS);
    let text = match state.api {
        Api::Google(_) => google::page(&behind, next),
        Api::Azure(_) => azure::page(&behind, next),
    };
    state.pages += 1;
    response(200, Body::from(text))
}

/// The bytes that base64 of either alphabet encodes.
fn decode_base64(text: &str) -> Vec<u8> {
    let mut bits = 0_u32;
    let mut count = 0;
    let mut bytes = Vec::new();
    for sign in text.bytes().filter(|sign| !sign.is_ascii_whitespace() && *sign != b'=') {
        let value = match sign {
            b'A'..=b'Z' => sign - b'A',
            b'a'..=b'z' => sign - b'a' + 26,
            b'0'..=b'9' => sign - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => panic!("{text} is no base64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
