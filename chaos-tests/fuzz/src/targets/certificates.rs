//! Certificates and keys. Their issuer follows from their signatures, which are not checked here.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use zbelastic_consensus::codec::{Format, decode};
use zbelastic_identity::{
    AuthoritySecret, CERTIFICATE_BYTES_MAX, ClusterAuthority, Credentials, REQUEST_BYTES_MAX,
    RequestedKey, peer_of, serial_of,
};

use super::folder;
use crate::DecodeOutcome;

/// The name in a certificate that is accepted is written in one way.
pub fn certificates(bytes: &[u8]) -> DecodeOutcome {
    let chain = [bytes.into()];
    let Ok(peer) = peer_of(&chain) else { return DecodeOutcome::Refused };
    assert!(bytes.len() <= CERTIFICATE_BYTES_MAX);
    assert_eq!(peer.to_string().parse(), Ok(peer));
    serial_of(&chain).expect("a certificate with a name has a number");
    DecodeOutcome::Accepted
}

/// A signing request is signed by its own key.
pub fn signing_requests(bytes: &[u8]) -> DecodeOutcome {
    let Ok(key) = RequestedKey::from_request(bytes) else { return DecodeOutcome::Refused };
    assert!(bytes.len() <= REQUEST_BYTES_MAX);
    let _ = key.digest();
    DecodeOutcome::Accepted
}

/// The authority that a grant carries: its certificate and its key belong together.
pub fn authorities(bytes: &[u8]) -> DecodeOutcome {
    let form = [&[Format::OLDEST.number()], bytes].concat();
    let Ok(secret) = decode::<AuthoritySecret>(&form, form.len()) else {
        return DecodeOutcome::Refused;
    };
    let Ok(authority) = ClusterAuthority::from_secret(&secret) else {
        return DecodeOutcome::Refused;
    };
    let again = ClusterAuthority::from_secret(&authority.secret()).expect("it reads what it wrote");
    assert_eq!((again.cluster(), again.pin()), (authority.cluster(), authority.pin()));
    DecodeOutcome::Accepted
}

/// Key, roots and certificates as files; bytes of zero stand between them.
pub fn identity_folders(bytes: &[u8]) -> DecodeOutcome {
    let folder = folder().join("identity");
    if !folder.exists() {
        DirBuilder::new().mode(0o700).create(&folder).expect("a folder can be made");
    }
    let mut parts = bytes.split(|byte| *byte == 0);
    for name in ["key.pem", "ca.pem", "cert.pem"] {
        let path = folder.join(name);
        super::write(&path, parts.next().unwrap_or_default());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    DecodeOutcome::of(Credentials::load_ended(&folder, None).is_ok())
}
