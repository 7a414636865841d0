//! Sends requests to a metadata service: the only place with a socket.

use std::env::{self, VarError};
use std::io;
use std::time::Duration;

use thiserror::Error;
use ureq::http::{HeaderMap, Request, Response, Uri, request};
use ureq::{Agent, AsSendBody, Body, Error};

use super::metadata_request::{
    ANSWER_BYTES_MAX, HttpMethod, MetadataFault, MetadataRequest, MetadataResponse,
};

/// Environment variable that names the metadata service.
pub const METADATA_VARIABLE: &str = "ZBELASTIC_METADATA_URL";
/// Where all three clouds have it: an address that leads nowhere but to the machine's own host. It
/// needs no name to be resolved, so no other host sees the request or can answer it.
const METADATA_URL: &str = "http://169.254.169.254";
/// The longest place of another metadata service.
const URL_CHARS_MAX: usize = 512;
/// The longest head of an answer. Real ones have hundreds of bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where a metadata service is: `http`, a host, and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUrl(String);

/// Why something is no such place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataUrlFault {
    /// It is longer than any.
    #[error("the metadata URL has {found} bytes, at most {expected} are taken")]
    TooLong {
        /// How long it may be.
        expected: usize,
        /// How long it is.
        found: usize,
    },
    /// It is something else.
    #[error("expected a metadata URL such as http://127.0.0.1:1338, found `{found}`")]
    NoUrl {
        /// The URL as it was given.
        found: String,
    },
    /// It is not even text.
    #[error("{METADATA_VARIABLE} is no text")]
    NoText,
}

impl MetadataUrl {
    /// The place that `text` names.
    ///
    /// # Errors
    /// If it names none.
    pub fn parse(text: &str) -> Result<Self, MetadataUrlFault> {
        if text.len() > URL_CHARS_MAX {
            let expected = URL_CHARS_MAX;
            let found = text.len();
            return Err(MetadataUrlFault::TooLong { expected, found });
        }
        let plain = text.strip_suffix('/').unwrap_or(text);
        let is_place = |uri: &Uri| {
            let authority = uri.authority().map(|authority| authority.as_str());
            let rest = plain.strip_prefix("http://");
            // No path, no query, and no password that would be sent along.
            authority.is_some() && authority == rest && !plain.contains('@')
        };
        let uri: Option<Uri> = plain.parse().ok();
        match uri.filter(is_place) {
            Some(_) => Ok(Self(plain.to_owned())),
            None => Err(MetadataUrlFault::NoUrl { found: text.to_owned() }),
        }
    }

    /// The place that the environment names, if it names one.
    ///
    /// # Errors
    /// If it names no HTTP service.
    pub fn from_environment() -> Result<Option<Self>, MetadataUrlFault> {
        match env::var(METADATA_VARIABLE) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => Self::parse(&text).map(Some),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(MetadataUrlFault::NoText),
        }
    }
}

/// HTTP client of one metadata service.
#[derive(Clone, Debug)]
pub(super) struct MetadataClient {
    agent: Agent,
    base: String,
}

impl MetadataClient {
    pub(super) fn new(base: Option<&MetadataUrl>) -> Self {
        let config = Agent::config_builder()
            // A proxy would answer for its own machine, and would receive the token.
            .proxy(None)
            // The service answers at its own address or not at all.
            .max_redirects(0)
            .http_status_as_error(false)
            .max_response_header_size(HEAD_BYTES_MAX)
            // A connection that was closed meanwhile would look like a failure.
            .max_idle_connections(0)
            .user_agent(concat!("zbelastic/", env!("CARGO_PKG_VERSION")));
        let base = base.map_or(METADATA_URL, |url| &url.0).to_owned();
        Self { agent: config.build().new_agent(), base }
    }

    /// The answer to `metadata_request`. It lasts no longer than its `patience`, and needs no more
    /// memory than an answer may have.
    pub(super) fn send(
        &self,
        metadata_request: &MetadataRequest,
    ) -> Result<MetadataResponse, MetadataFault> {
        self.exchange(metadata_request)
            .unwrap_or_else(|error| Err(fault(&error, metadata_request.patience)))
    }

    fn exchange(
        &self,
        metadata_request: &MetadataRequest,
    ) -> Result<Result<MetadataResponse, MetadataFault>, Error> {
        let url = format!("{}{}", self.base, metadata_request.path);
        let request = |method: &str| {
            let builder = Request::builder().method(method).uri(&url);
            let headers = metadata_request.headers.iter();
            headers.fold(builder, |builder, (name, value)| builder.header(*name, value))
        };
        let response = match &metadata_request.method {
            HttpMethod::Get => self.run(request("GET"), (), metadata_request.patience),
            HttpMethod::Put => self.run(request("PUT"), "", metadata_request.patience),
            HttpMethod::Post(json) => {
                let request = request("POST").header("Content-Type", "application/json");
                self.run(request, json.as_str(), metadata_request.patience)
            }
        }?;
        let (head, body) = response.into_parts();
        // The reader refuses an answer as long as its limit.
        let limit = ANSWER_BYTES_MAX as u64 + 1;
        let body = body.into_with_config().limit(limit).read_to_vec()?;
        let Ok(body) = String::from_utf8(body) else {
            return Ok(Err(MetadataFault::Senseless { expected: "text" }));
        };
        let tag = text(&head.headers, "ETag");
        let flavor = text(&head.headers, "Metadata-Flavor");
        Ok(Ok(MetadataResponse { status: head.status.as_u16(), body, tag, flavor }))
    }

    fn run(
        &self,
        request: request::Builder,
        body: impl AsSendBody,
        patience: Duration,
    ) -> Result<Response<Body>, Error> {
        let request = self.agent.configure_request(request.body(body)?);
        self.agent.run(request.timeout_global(Some(patience)).build())
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn fault(error: &Error, within: Duration) -> MetadataFault {
    if matches!(error, Error::Timeout(_)) {
        MetadataFault::TooSlow { within }
    } else if matches!(error, Error::BodyExceedsLimit(_) | Error::LargeResponseHeader(..)) {
        MetadataFault::TooLong
    } else if matches!(error, Error::HostNotFound) {
        MetadataFault::Unreachable { kind: io::ErrorKind::NotFound }
    } else if let Error::Io(error) = error {
        MetadataFault::Unreachable { kind: error.kind() }
    } else {
        MetadataFault::NoHttp
    }
}

#[cfg(test)]
mod tests {
    use super::{MetadataClient, MetadataUrl, MetadataUrlFault, URL_CHARS_MAX};

    #[test]
    fn a_place_is_a_host_and_perhaps_a_port() {
        for (text, expected) in [
            ("http://127.0.0.1:1338", "http://127.0.0.1:1338"),
            ("http://localhost/", "http://localhost"),
            ("http://[fd00:ec2::254]", "http://[fd00:ec2::254]"),
        ] {
            assert_eq!(MetadataUrl::parse(text), Ok(MetadataUrl(expected.to_owned())));
        }
        let wrong = [
            "",
            "127.0.0.1:1338",
            "http://",
            "https://127.0.0.1",
            "file:///etc/passwd",
            "http://a@127.0.0.1",
            "http://127.0.0.1/path",
            "http://127.0.0.1?q",
            "http://127.0.0.1//",
            "http://a b",
        ];
        for text in wrong {
            let expected = Err(MetadataUrlFault::NoUrl { found: text.to_owned() });
            assert_eq!(MetadataUrl::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_place_has_a_longest_name() {
        let host = |chars: usize| format!("http://{}", "a".repeat(chars - "http://".len()));
        assert!(MetadataUrl::parse(&host(URL_CHARS_MAX)).is_ok());
        let expected = URL_CHARS_MAX;
        let found = URL_CHARS_MAX + 1;
        let fault = MetadataUrlFault::TooLong { expected, found };
        assert_eq!(MetadataUrl::parse(&host(URL_CHARS_MAX + 1)), Err(fault));
    }

    #[test]
    fn without_a_url_requests_go_to_the_link_local_address() {
        assert_eq!(MetadataClient::new(None).base, "http://169.254.169.254");
    }
}
