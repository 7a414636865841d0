//! Requests to a server of the page, each over a connection of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection that is silent for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(240);

/// An answer, or the beginning of one that does not end.
pub struct Answer {
    pub status: u16,
    /// Head and body.
    pub text: String,
}

impl Answer {
    fn of(text: String) -> Self {
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Self { status, text }
    }

    pub fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }
}

fn send(host: &str, request: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(SILENCE_MAX)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    Some(stream)
}

/// `None` if nobody listens, or the connection breaks.
pub fn get(host: &str, path: &str, headers: &str) -> Option<Answer> {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    let mut text = String::new();
    send(host, &request)?.read_to_string(&mut text).ok()?;
    Some(Answer::of(text))
}

/// Logs in with a token, in the form that a browser sends.
pub fn log_in(host: &str, token: &str) -> Option<Answer> {
    let form = format!("token={token}");
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let mut text = String::new();
    send(host, &request)?.read_to_string(&mut text).ok()?;
    Some(Answer::of(text))
}

/// Reads the stream of messages until one contains `end`, and yields all of it so far; `None` if it
/// ends before.
pub fn events_until(host: &str, headers: &str, end: &str) -> Option<String> {
    let request = format!("GET /events HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
    let mut stream = send(host, &request)?;
    let mut bytes = Vec::new();
    let mut piece = [0; 1 << 16];
    loop {
        let length = stream.read(&mut piece).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if body.contains(end) {
            return Some(text.into_owned());
        }
    }
}
