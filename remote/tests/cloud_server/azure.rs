//! Azure Blob Storage: shared keys and shared access signatures, and lists of containers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hyper::header::CONTENT_TYPE;
use hyper::{Method, Response};
use ring::hmac;
use s3s::Body;
use zbelastic_remote::Environment;

use super::{
    BUCKET, CloudServer, ErrorCode, MODIFIED, Received, decode, decode_base64, etag, response,
};

const ACCOUNT: &str = "library";
const KEY: &str = "YSBzZWNyZXQgb2YgdGhpcyB0ZXN0";
/// A shared access signature, as the portal shows it.
const SIGNATURE: &str = "sv=2024-11-04&ss=b&srt=co&sp=rl&sig=c2VjcmV0%2Fwith%2Bsigns%3D";
/// Its last parameter, decoded.
const SIGNATURE_DECODED: &str = "c2VjcmV0/with+signs=";

/// The kind of credentials that are asked for.
#[derive(Clone, Copy)]
pub enum Azure {
    SharedKey,
    SharedAccessSignature,
}

impl Azure {
    /// Whether a request is signed.
    pub(super) fn check(self, request: &Received) -> Result<(), ErrorCode> {
        let is_signed = match self {
            Self::SharedKey => is_signed(request),
            Self::SharedAccessSignature => {
                request.parameter("sv").is_some()
                    && request.parameter("sig") == Some(SIGNATURE_DECODED)
                    && !request.headers.contains_key("authorization")
            }
        };
        if !is_signed || request.header("x-ms-version").is_empty() {
            return Err((403, "AuthenticationFailed"));
        }
        let is_list = request.parameter("comp") == Some("list");
        if is_list && request.parameter("restype") != Some("container") {
            return Err((400, "InvalidQueryParameterValue"));
        }
        if request.method == Method::PUT && request.header("x-ms-blob-type") != "BlockBlob" {
            return Err((400, "MissingRequiredHeader"));
        }
        Ok(())
    }
}

/// Whether the shared key signed it
/// (<https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key>).
fn is_signed(request: &Received) -> bool {
    let prefix = format!("SharedKey {ACCOUNT}:");
    let Some(signature) = request.header("authorization").strip_prefix(&*prefix) else {
        return false;
    };
    let length = match request.body.len() {
        0 => String::new(),
        length => length.to_string(),
    };
    let headers = ["content-encoding", "content-language"].map(|name| request.header(name));
    let more = [
        "content-md5",
        "content-type",
        "date",
        "if-modified-since",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "range",
    ]
    .map(|name| request.header(name));
    let mut text =
        [&[request.method.as_str()], &headers[..], &[&length], &more[..]].concat().join("\n");
    let names = request.headers.keys().map(|name| name.as_str());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("x-ms-")).collect();
    names.sort_unstable();
    for name in names {
        write!(text, "\n{name}:{}", request.header(name)).expect("room");
    }
    write!(text, "\n/{ACCOUNT}{}", request.path).expect("room");
    let mut query = request.query.clone();
    query.sort();
    for (name, value) in query {
        write!(text, "\n{}:{value}", name.to_lowercase()).expect("room");
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, &decode_base64(KEY));
    hmac::verify(&key, text.as_bytes(), &decode_base64(signature)).is_ok()
}

impl CloudServer {
    /// The environment of somebody with a shared key, which is the right one or another.
    pub fn azure_environment(&self, is_right: bool) -> Environment {
        let key = if is_right { KEY } else { "YW5vdGhlciBzZWNyZXQ=" };
        self.azure([("AZURE_STORAGE_KEY", key)])
    }

    /// That of somebody with a shared access signature.
    pub fn azure_environment_of_signature(&self, is_right: bool) -> Environment {
        let signature = if is_right { SIGNATURE } else { "sv=2024-11-04&sig=b3RoZXI%3D" };
        self.azure([("AZURE_STORAGE_SAS_TOKEN", signature)])
    }

    fn azure(&self, secret: [(&str, &str); 1]) -> Environment {
        let endpoint = self.endpoint();
        let others = [("AZURE_STORAGE_ACCOUNT", ACCOUNT), ("AZURE_STORAGE_ENDPOINT", &*endpoint)];
        let variables = others.into_iter().chain(secret);
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// <https://learn.microsoft.com/en-us/rest/api/storageservices/list-blobs>
pub(super) fn page(objects: &[(&str, &[u8])], next: Option<&str>) -> String {
    let mut text =
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>".to_owned();
    for (key, object) in objects {
        let (etag, size) = (etag(object), object.len());
        write!(
            text,
            "<Blob><Name>{key}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>\
             <Etag>{etag}</Etag><Content-Length>{size}</Content-Length>\
             <Content-Type>text/plain</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
        )
        .expect("room");
    }
    write!(text, "</Blobs><NextMarker>{}</NextMarker>", next.unwrap_or_default()).expect("room");
    text + "</EnumerationResults>"
}

/// Removes the objects of a batch, each of whose parts is a request that is signed by itself
/// (<https://learn.microsoft.com/en-us/rest/api/storageservices/blob-batch>).
pub(super) fn batch(request: &Received, objects: &mut BTreeMap<String, Vec<u8>>) -> Response<Body> {
    let boundary = request.header("content-type").strip_prefix("multipart/mixed; boundary=");
    let separator = format!("--{}", boundary.expect("a batch"));
    let parts = std::str::from_utf8(&request.body).expect("texts").split(&separator);
    let mut text = String::new();
    for part in parts.filter(|part| part.contains("DELETE ")) {
        let line = |start: &str| {
            let after = |line: &'_ str| {
                let name = line.get(..start.len())?;
                name.eq_ignore_ascii_case(start).then(|| line[start.len()..].to_owned())
            };
            part.lines().find_map(after)
        };
        let address = line("DELETE ").expect("a request");
        let address = address.strip_suffix(" HTTP/1.1").expect("a request");
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let is_signed = line("authorization: SharedKey ").is_some() || query.contains("sig=");
        assert!(is_signed, "{part}");
        let key = decode(path.strip_prefix(&format!("/{BUCKET}/")).expect("the container"));
        let status = match objects.remove(&key) {
            Some(_) => "202 Accepted",
            None => "404 The specified blob does not exist.",
        };
        let id = line("content-id: ").expect("a number");
        write!(
            text,
            "--batchresponse_1\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\n\
             HTTP/1.1 {status}\r\nx-ms-version: 2024-11-04\r\n\r\n"
        )
        .expect("room");
    }
    let mut response = response(202, Body::from(text + "--batchresponse_1--\r\n"));
    let content_type = "multipart/mixed; boundary=batchresponse_1".parse().expect("ASCII");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
