//! The one place with a socket: requests of `object_store`, sent by `ureq`, again while a server is
//! busy.
//!
//! A response that is no success is an error with its status here, so that all three stores' errors
//! can be told apart by one rule ([`HttpFailure::find`]); `object_store` itself sends nothing twice.
//! Bodies are read whole, within [`BODY_BYTES_MAX`].

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use http_body::Body;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::crypto::ring::default_provider;
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::http::header::RANGE;
use ureq::http::{Method, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

use crate::address::is_loopback;
use crate::retry::{OnRetry, RetryEvent, RetryNotice, RetryPolicy};

/// Most bytes of a response: a page of Azure's list has up to 5,000 names of 1,024 characters, with
/// about 1 KiB of properties each. Ranges are smaller ([`crate::windows::RANGE_BYTES_MAX`]).
const BODY_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a response that is no success; more is not read of it.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// A connection is made in one round trip, two with TLS.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// The head of a response comes within this, or the attempt has failed.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(60);
/// A range or a chunk comes or goes within this: 35 KB/s of 4 MiB.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
/// A metadata service runs on the machine's own host. Where there is none, nothing answers.
const METADATA_TIME_MAX: Duration = Duration::from_secs(5);
/// A text of JSON is sent and answered within this: collectors are near.
const POST_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a wait asks whether it was stopped.
const WAIT_TICK: Duration = Duration::from_millis(200);
/// A file of a web server is often elsewhere; object stores redirect nobody but to another region.
const REDIRECTS_MAX: u32 = 10;

/// Why a request gave no success.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum HttpFailure {
    /// A status that another attempt would not change.
    #[error("{status}{}", code.as_ref().map(|code| format!(" {code}")).unwrap_or_default())]
    Status { status: u16, code: Option<String> },
    /// The last of all attempts failed.
    #[error("{host}: {reason}")]
    Unavailable { host: String, reason: String, attempts: u32, waited: Duration },
    /// There is no metadata service, or it gives nothing.
    #[error("the metadata service of a cloud's machines does not answer ({reason})")]
    Metadata { reason: String },
    /// Neither a status nor worth another attempt, such as a certificate that is not trusted.
    #[error("{reason}")]
    Transport { host: String, reason: String },
    /// The server sends whole files only.
    #[error("{host} reads no ranges of files")]
    NoRanges { host: String },
    /// The caller stopped the wait.
    #[error("stopped")]
    Stopped,
}

impl HttpFailure {
    /// The failure within an error of `object_store`, if that is its cause.
    pub(crate) fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// Makes clients that send requests as the policy says.
#[derive(Clone)]
pub(crate) struct RetryingConnector {
    pub(crate) policy: RetryPolicy,
    pub(crate) on_retry: OnRetry,
    /// The host and port that may be asked over plain HTTP: that of an endpoint a person named.
    /// Any other that is asked so is a metadata service.
    pub(crate) plain_host: Option<String>,
    /// Whether redirects are followed.
    pub(crate) is_redirected: bool,
}

impl fmt::Debug for RetryingConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryingConnector").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl HttpConnector for RetryingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let is_plain_allowed = allow_http.as_deref() == Some("true");
        let redirects = if self.is_redirected { REDIRECTS_MAX } else { 0 };
        let mut agent = agent_config(redirects)
            .https_only(!is_plain_allowed)
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_recv_response(Some(RESPONSE_TIME_MAX))
            .timeout_send_body(Some(BODY_TIME_MAX))
            .timeout_recv_body(Some(BODY_TIME_MAX));
        if self.plain_host.as_deref().is_some_and(is_loopback) {
            // A proxy would look for it on its own machine.
            agent = agent.proxy(None);
        }
        // A proxy would answer for its own machine, and would receive the token.
        let metadata = agent_config(0).proxy(None).timeout_global(Some(METADATA_TIME_MAX));
        Ok(HttpClient::new(RetryingClient {
            connector: self.clone(),
            agent: agent.build().new_agent(),
            metadata_agent: metadata.build().new_agent(),
        }))
    }
}

/// Sends texts of JSON to one address, each once.
pub struct JsonPoster {
    agent: Agent,
    address: Uri,
    headers: Vec<(String, String)>,
}

impl JsonPoster {
    /// Sends to `address`, which a person named, with these headers. Nothing is sent yet.
    ///
    /// # Errors
    /// With the reason, if it is no address of HTTP.
    pub fn new(address: &str, headers: Vec<(String, String)>) -> Result<Self, String> {
        let address: Uri = address.parse().map_err(|error| format!("no address: {error}"))?;
        let has_host = address.host().is_some_and(|host| !host.is_empty());
        if !matches!(address.scheme_str(), Some("http" | "https")) || !has_host {
            return Err("no http:// or https:// address".to_owned());
        }
        let mut agent = agent_config(0).timeout_global(Some(POST_TIME_MAX));
        if is_loopback(&host_of(&address)) {
            // A proxy would look for it on its own machine.
            agent = agent.proxy(None);
        }
        Ok(Self { agent: agent.build().new_agent(), address, headers })
    }

    /// Sends a text.
    ///
    /// # Errors
    /// With the reason, if it was not taken.
    pub fn post(&self, text: &str) -> Result<(), String> {
        let mut request = self.agent.post(&self.address).header("Content-Type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let host = host_of(&self.address);
        let response = request.send(text).map_err(|error| format!("{host}: {error}"))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("{host}: {status}")),
        }
    }
}

fn agent_config(redirects_max: u32) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(default_provider()));
    Agent::config_builder()
        .tls_config(tls.build())
        .max_redirects(redirects_max)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(concat!("zbelastic/", env!("CARGO_PKG_VERSION")))
}

/// Sends the requests of a store, one at a time.
struct RetryingClient {
    connector: RetryingConnector,
    agent: Agent,
    metadata_agent: Agent,
}

impl fmt::Debug for RetryingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connector.fmt(f)
    }
}

impl HttpService for RetryingClient {
    /// Blocks: the runtime has nothing else to do meanwhile (`runtime.rs`).
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let response = self.send(&request);
        let response = response.map_err(|failure| HttpError::new(HttpErrorKind::Unknown, failure));
        Box::pin(std::future::ready(response))
    }
}

/// An attempt that failed.
struct FailedAttempt {
    failure: HttpFailure,
    /// Whether the next attempt may succeed.
    is_transient: bool,
}

impl RetryingClient {
    fn send(&self, request: &HttpRequest) -> Result<HttpResponse, HttpFailure> {
        if self.is_metadata(request.uri()) {
            return attempt(&self.metadata_agent, request)
                .map_err(|failed| HttpFailure::Metadata { reason: failed.failure.to_string() });
        }
        let host = host_of(request.uri());
        let mut waited = Duration::ZERO;
        for number in 1.. {
            let failed = match attempt(&self.agent, request) {
                Ok(response) => return Ok(response),
                Err(failed) if !failed.is_transient => return Err(failed.failure),
                Err(failed) => failed,
            };
            let reason = failed.failure.to_string();
            let Some(wait) = self.connector.policy.wait(number) else {
                return Err(HttpFailure::Unavailable { host, reason, attempts: number, waited });
            };
            let attempts_max = self.connector.policy.attempts_max;
            let host = host.clone();
            self.wait(&RetryNotice { host, reason, attempt: number, attempts_max, wait })?;
            waited += wait;
        }
        unreachable!("a policy has a last attempt")
    }

    fn is_metadata(&self, uri: &Uri) -> bool {
        uri.scheme_str() == Some("http")
            && uri.authority().map(|authority| authority.as_str())
                != self.connector.plain_host.as_deref()
    }

    fn wait(&self, notice: &RetryNotice) -> Result<(), HttpFailure> {
        let on_retry = &self.connector.on_retry;
        let mut event = RetryEvent::Begins(notice);
        let mut left = notice.wait;
        loop {
            if let ControlFlow::Break(()) = on_retry(event) {
                return Err(HttpFailure::Stopped);
            }
            if left.is_zero() {
                return Ok(());
            }
            let tick = left.min(WAIT_TICK);
            thread::sleep(tick);
            left -= tick;
            event = RetryEvent::Waiting;
        }
    }
}

fn host_of(uri: &Uri) -> String {
    uri.authority().map_or_else(String::new, |authority| authority.as_str().to_owned())
}

fn attempt(agent: &Agent, request: &HttpRequest) -> Result<HttpResponse, FailedAttempt> {
    let transport = |error: ureq::Error| {
        let is_transient = is_transient(&error);
        // Its own words say "io: " before those of the system.
        let reason =
            if let ureq::Error::Io(error) = error { error.to_string() } else { error.to_string() };
        let failure = HttpFailure::Transport { host: host_of(request.uri()), reason };
        FailedAttempt { failure, is_transient }
    };
    let head =
        ureq::http::Request::builder().method(request.method().clone()).uri(request.uri().clone());
    let mut head = head.body(()).expect("the parts of a request make one");
    *head.headers_mut() = request.headers().clone();
    let response = match has_body(request.method()) {
        true => agent.run(head.map(|()| bytes_of(request.body()))),
        false => agent.run(head),
    };
    let (parts, mut body) = response.map_err(transport)?.into_parts();
    let status = parts.status;
    // The whole may be larger than memory.
    if status == StatusCode::OK && request.headers().contains_key(RANGE) {
        let failure = HttpFailure::NoRanges { host: host_of(request.uri()) };
        return Err(FailedAttempt { failure, is_transient: false });
    }
    if status.is_success() {
        let bytes = body.with_config().limit(BODY_BYTES_MAX).read_to_vec().map_err(transport)?;
        return Ok(HttpResponse::from_parts(parts, bytes.into()));
    }
    // What a body of an error says is of use, and not needed.
    let text = body.with_config().limit(ERROR_BYTES_MAX).lossy_utf8(true).read_to_string();
    let failure = HttpFailure::Status {
        status: status.as_u16(),
        code: text.ok().and_then(|text| error_code(&text)),
    };
    Err(FailedAttempt { failure, is_transient: is_busy(status.as_u16()) })
}

/// The bytes of a body, all of which are in memory: it is never pending.
fn bytes_of(body: &HttpRequestBody) -> Vec<u8> {
    let mut body = body.clone();
    let mut bytes = Vec::with_capacity(body.content_length());
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        bytes.extend(frame.into_data().into_iter().flatten());
    }
    bytes
}

fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT)
}

/// Request timeout, too many requests, and the errors of servers that other requests do not have.
fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// A connection that was not made or broke. An untrusted certificate comes as invalid data.
fn is_transient(error: &ureq::Error) -> bool {
    if let ureq::Error::Io(error) = error {
        return error.kind() != io::ErrorKind::InvalidData;
    }
    matches!(
        error,
        ureq::Error::Timeout(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed
    )
}

/// The code in the XML of an error, which S3, Google and Azure send alike.
fn error_code(text: &str) -> Option<String> {
    const CODE_CHARS_MAX: usize = 64;
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let is_word = code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word && code.len() <= CODE_CHARS_MAX).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::error_code;

    #[test]
    fn codes_of_errors_are_read_of_their_xml() {
        let check =
            |text, expected: Option<&str>| assert_eq!(error_code(text).as_deref(), expected);
        check("<?xml?><Error><Code>SlowDown</Code></Error>", Some("SlowDown"));
        check("<html>busy</html>", None);
        check("<Code>\u{1b}[31m</Code>", None);
        check("<Code>unfinished", None);
    }
}
