//! Requests, and what each is answered with.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::REQUEST_BYTES_MAX;
use crate::access::{
    AccessPolicy, COOKIE, SESSION_DURATION, TokenCheck, TokenRefusal, is_own_host, session_of,
};
use crate::assets::{ASSETS, LOGIN, PageAsset, STYLE_SHEET};
use crate::hub::{HubRequest, HubSender};
use crate::response::{PageBody, response, see_other, text};
use crate::shared::{SessionRequest, SharedServer};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers one request.
pub async fn answer(server: Arc<SharedServer>, request: Request<Incoming>) -> Response<PageBody> {
    let path = request.uri().path().to_owned();
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match (&server.policy, path.as_str()) {
        // Whether this process lives is no secret: a load balancer has no token.
        (_, "/healthz") if is_read => return text(StatusCode::OK, "ok\n"),
        (AccessPolicy::Loopback, _) => {
            if !header_text(request.headers(), header::HOST).is_some_and(is_own_host) {
                let why = "only requests to localhost or a loopback address are answered\n";
                return text(StatusCode::MISDIRECTED_REQUEST, why);
            }
        }
        (AccessPolicy::Token(_), "/style.css") if is_read => return asset(&STYLE_SHEET),
        (AccessPolicy::Token(_), "/login") if is_read => return asset(&LOGIN),
        (AccessPolicy::Token(check), "/login") if request.method() == Method::POST => {
            return log_in(&server, check.clone(), request).await;
        }
        (AccessPolicy::Token(check), _) => {
            if let Err(refused) = admit(&server, check.clone(), request.headers(), &path).await {
                return refused;
            }
        }
    }
    if !is_read {
        return text(StatusCode::METHOD_NOT_ALLOWED, "this server is read only\n");
    }
    read(&server.hub, &path).await
}

async fn read(hub: &HubSender, path: &str) -> Response<PageBody> {
    match path {
        "/events" => events(hub).await,
        "/metrics" => match ask(&hub.requests, HubRequest::Metrics).await {
            Some(metrics) => {
                response(StatusCode::OK, OPEN_METRICS, PageBody::Whole(Some(metrics.into())))
            }
            None => ending(),
        },
        "/status.json" => match ask(&hub.requests, HubRequest::Status).await.flatten() {
            Some(status) => {
                response(StatusCode::OK, "application/json", PageBody::Whole(Some(status.into())))
            }
            None => text(StatusCode::SERVICE_UNAVAILABLE, "the cluster has not answered yet\n"),
        },
        path => match ASSETS.iter().chain([&STYLE_SHEET]).find(|asset| asset.path == path) {
            Some(found) => asset(found),
            None => text(StatusCode::NOT_FOUND, "there is no such page\n"),
        },
    }
}

fn asset(asset: &PageAsset) -> Response<PageBody> {
    let body = PageBody::Whole(Some(Bytes::from_static(asset.text.as_bytes())));
    response(StatusCode::OK, asset.content, body)
}

fn ending() -> Response<PageBody> {
    text(StatusCode::SERVICE_UNAVAILABLE, "this server is ending\n")
}

/// Sends a request to the task that answers it: the hub, or that of the sessions; `None` if it has
/// ended.
async fn ask<R, T>(
    task: &mpsc::Sender<R>,
    request: impl FnOnce(oneshot::Sender<T>) -> R,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    task.send(request(reply)).await.ok()?;
    answer.await.ok()
}

async fn events(hub: &HubSender) -> Response<PageBody> {
    match ask(&hub.requests, HubRequest::Subscribe).await {
        Some(Some(messages)) => {
            response(StatusCode::OK, "text/event-stream", PageBody::Stream(messages))
        }
        Some(None) => {
            let why = "too many pages are open here; close one, or look again later\n";
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, why);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
            response
        }
        None => ending(),
    }
}

/// Whether a request comes with a session or a token; otherwise what it is answered with.
async fn admit(
    server: &SharedServer,
    check: TokenCheck,
    headers: &HeaderMap,
    path: &str,
) -> Result<(), Response<PageBody>> {
    let bearer = header_text(headers, header::AUTHORIZATION)
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(str::trim);
    let cookie = header_text(headers, header::COOKIE).and_then(session_of);
    if let Some(key) = bearer.or(cookie) {
        let key = key.to_owned();
        let is_open =
            |reply| SessionRequest::IsOpen { key: key.clone(), now: Instant::now(), reply };
        if ask(&server.sessions, is_open).await == Some(true) {
            return Ok(());
        }
    }
    if let Some(token) = bearer {
        return match check_token(server, check, token.to_owned()).await {
            Ok(()) => {
                let open = SessionRequest::OpenAs { key: token.to_owned(), now: Instant::now() };
                drop(server.sessions.send(open).await);
                Ok(())
            }
            Err(refused) => Err(*refused),
        };
    }
    if path == "/" {
        return Err(see_other("/login", None));
    }
    let mut refused =
        text(StatusCode::UNAUTHORIZED, "log in at /login, or send a viewer's token\n");
    refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Err(refused)
}

/// Checks a token with the cluster, one at a time: guesses come no faster than it answers.
async fn check_token(
    server: &SharedServer,
    check: TokenCheck,
    token: String,
) -> Result<(), Box<Response<PageBody>>> {
    let Ok(permit) = server.token_checks.try_acquire() else {
        let mut busy = text(StatusCode::TOO_MANY_REQUESTS, "another token is being checked\n");
        busy.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        return Err(Box::new(busy));
    };
    let checked = tokio::task::spawn_blocking(move || check(&token)).await;
    drop(permit);
    match checked {
        Ok(Ok(())) => Ok(()),
        Ok(Err(refusal)) => Err(Box::new(refused(&refusal))),
        Err(_) => Err(Box::new(ending())),
    }
}

fn refused(refusal: &TokenRefusal) -> Response<PageBody> {
    let status = match refusal {
        TokenRefusal::NotAToken { .. } | TokenRefusal::Refused { .. } => StatusCode::FORBIDDEN,
        TokenRefusal::Unanswered { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    text(status, format!("{refusal}\n"))
}

/// Opens a session for the token in a form.
async fn log_in(
    server: &SharedServer,
    check: TokenCheck,
    request: Request<Incoming>,
) -> Response<PageBody> {
    // A form of another site does not log a browser in here.
    let site = header_text(request.headers(), HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return text(StatusCode::FORBIDDEN, "the form is of another site\n");
    }
    let within = server.deadlines.body;
    let body = match timeout(within, whole_body(request.into_body())).await {
        Ok(Some(body)) => body,
        Ok(None) => return text(StatusCode::PAYLOAD_TOO_LARGE, "a token is shorter\n"),
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the form did not come in time\n"),
    };
    let token = String::from_utf8(body).ok().and_then(|form| token_of(&form));
    let Some(token) = token else {
        return text(StatusCode::BAD_REQUEST, "the form has no token\n");
    };
    if let Err(refused) = check_token(server, check, token).await {
        return *refused;
    }
    let open = |reply| SessionRequest::Open { now: Instant::now(), reply };
    let Some(key) = ask(&server.sessions, open).await else { return ending() };
    let seconds = SESSION_DURATION.as_secs();
    let cookie = format!("{COOKIE}={key}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    see_other("/", HeaderValue::try_from(cookie).ok())
}

/// The body of a request, if it is not longer than a form with a token.
async fn whole_body(mut body: Incoming) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut body = std::pin::Pin::new(&mut body);
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
    {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if bytes.len() + data.len() > REQUEST_BYTES_MAX {
            return None;
        }
        bytes.extend_from_slice(&data);
    }
    Some(bytes)
}

/// The token in a form: its characters are written as they are in one.
fn token_of(form: &str) -> Option<String> {
    let mut pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    let token = pairs.find_map(|(name, value)| (name == "token").then_some(value))?;
    let token: String = token.trim_matches('+').to_owned();
    (!token.is_empty()).then_some(token)
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
