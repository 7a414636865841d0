//! Responses: their headers and bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

/// Only what this server sends runs, is shown or is connected to; no other site frames it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

/// The body of a response.
pub enum PageBody {
    /// Bytes that are there.
    Whole(Option<Bytes>),
    /// Messages as they come, until their sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(messages) => {
                messages.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// A response with a body of this type, that no cache keeps.
pub fn response(status: StatusCode, content: &'static str, body: PageBody) -> Response<PageBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let fixed: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, content),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A response of text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<PageBody> {
    response(status, "text/plain; charset=utf-8", PageBody::Whole(Some(text.into())))
}

/// A response that sends to another page of this server, with a cookie.
pub fn see_other(location: &'static str, cookie: Option<HeaderValue>) -> Response<PageBody> {
    let mut response = text(StatusCode::SEE_OTHER, "");
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(location));
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
