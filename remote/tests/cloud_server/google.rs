//! Google Cloud Storage: bearer tokens that a service account signs itself, and lists of the XML API.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use zbelastic_remote::Environment;

use super::{CloudServer, ErrorCode, Received, decode_base64, etag};

/// A key that was made for this test, without its lines of begin and end.
const KEY: &str = include_str!("account_key.base64");
const EMAIL: &str = "reader@books.iam.gserviceaccount.com";
const KEY_ID: &str = "0123";

/// The account that may read and write.
pub struct Google {
    public_key: Vec<u8>,
}

impl Google {
    pub fn new() -> Self {
        let pair = RsaKeyPair::from_der(&decode_base64(KEY)).expect("a key");
        Self { public_key: pair.public_key().as_ref().to_vec() }
    }

    /// Whether the request's token is signed by the account's key
    /// (<https://google.aip.dev/auth/4111>).
    pub(super) fn check(&self, request: &Received) -> Result<(), ErrorCode> {
        let Some(token) = request.header("authorization").strip_prefix("Bearer ") else {
            return Err((401, "AuthenticationRequired"));
        };
        let (message, signature) = token.rsplit_once('.').expect("three parts");
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public_key);
        let signature = decode_base64(signature);
        key.verify(message.as_bytes(), &signature).map_err(|_| (401, "AuthenticationRequired"))?;
        let (head, claims) = message.split_once('.').expect("three parts");
        let text = |part| String::from_utf8(decode_base64(part)).expect("UTF-8");
        let head = text(head);
        let claims = text(claims);
        let has =
            |text: &str, name: &str, value: &str| text.contains(&format!("\"{name}\":\"{value}\""));
        let is_right = has(&head, "alg", "RS256")
            && has(&head, "kid", KEY_ID)
            && has(&claims, "iss", EMAIL)
            && has(&claims, "scope", "https://www.googleapis.com/auth/cloud-platform");
        if is_right { Ok(()) } else { Err((403, "AccessDenied")) }
    }
}

/// The environment of somebody who has the account's key, or one with another identity, in a file of `folder`.
pub fn environment(server: &CloudServer, folder: &Path, key_id: &str) -> Environment {
    let label = ["RSA", "PRIVATE", "KEY"].join(" ");
    let key = format!("-----BEGIN {label}-----\n{KEY}-----END {label}-----\n");
    let file = folder.join("account.json");
    let json = format!(
        "{{\"type\": \"service_account\", \"private_key\": {key:?}, \"private_key_id\": \"{key_id}\", \
         \"client_email\": \"{EMAIL}\"}}"
    );
    fs::write(&file, json).expect("writable");
    let variables = [
        ("GOOGLE_APPLICATION_CREDENTIALS", file.display().to_string()),
        ("GOOGLE_BASE_URL", server.endpoint()),
    ];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl CloudServer {
    /// The environment of somebody who may read a server of Google's.
    pub fn google_environment(&self, folder: &Path) -> Environment {
        environment(self, folder, KEY_ID)
    }

    /// That of somebody with a key that was taken back.
    pub fn google_environment_without_rights(&self, folder: &Path) -> Environment {
        environment(self, folder, "4567")
    }
}

/// <https://cloud.google.com/storage/docs/xml-api/get-bucket-list>, version 2.
pub(super) fn page(objects: &[(&str, &[u8])], next: Option<&str>) -> String {
    let mut text =
        "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
            .to_owned();
    for (key, object) in objects {
        let (etag, size) = (etag(object), object.len());
        write!(
            text,
            "<Contents><Key>{key}</Key><Generation>1</Generation>\
             <LastModified>2026-03-02T10:00:00.000Z</LastModified>\
             <ETag>{etag}</ETag><Size>{size}</Size></Contents>"
        )
        .expect("room");
    }
    if let Some(next) = next {
        write!(text, "<NextContinuationToken>{next}</NextContinuationToken>").expect("room");
    }
    text + "</ListBucketResult>"
}
