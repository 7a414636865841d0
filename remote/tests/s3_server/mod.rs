//! An S3 server over a folder, in the process of the test.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use s3s_fs::FileSystem;
use tokio::runtime::Builder;
use zbelastic_remote::Environment;

const KEY_ID: &str = "AKIDTEST";
pub const SECRET: &str = "a secret of this test";

/// A server, whose thread ends with the test's process.
pub struct S3Server {
    address: SocketAddr,
    busy: Arc<AtomicU32>,
}

impl S3Server {
    /// Serves the folders of `root` as buckets. Without `has_users` everybody may read them.
    pub fn start(root: &Path, has_users: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let busy = Arc::new(AtomicU32::new(0));
        let files = FileSystem::new(root).expect("a folder");
        let mut builder = S3ServiceBuilder::new(files);
        if has_users {
            builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        }
        let service = builder.build().into_shared();
        let shared = Arc::clone(&busy);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(listener, service, shared));
        });
        Self { address, busy }
    }

    /// Answers so many requests with 503.
    pub fn be_busy(&self, requests: u32) {
        self.busy.store(requests, Ordering::SeqCst);
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment of somebody with this secret.
    pub fn environment(&self, secret: &str) -> Environment {
        let variables = self.variables(secret).into_iter();
        variables.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The same as variables of a process.
    pub fn variables(&self, secret: &str) -> [(&'static str, String); 3] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
        ]
    }
}

async fn serve(listener: TcpListener, service: SharedS3Service, busy: Arc<AtomicU32>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    loop {
        let (socket, _) = listener.accept().await.expect("a connection");
        let service = service.clone();
        let busy = Arc::clone(&busy);
        let answer = service_fn(move |request| answer(service.clone(), Arc::clone(&busy), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
        // A client that was killed leaves a connection in the middle.
        tokio::spawn(async { drop(connection.await) });
    }
}

async fn answer(
    service: SharedS3Service,
    busy: Arc<AtomicU32>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let is_busy = busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    let status = |status, text: &str| {
        let mut response = Response::new(Body::from(text.to_owned()));
        *response.status_mut() = status;
        response
    };
    if is_busy.is_ok() {
        let text = "<Error><Code>SlowDown</Code></Error>";
        return Ok(status(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    let answered = service.call(request).await;
    Ok(answered
        .unwrap_or_else(|error| status(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())))
}
