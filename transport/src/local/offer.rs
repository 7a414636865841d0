//! The offer of a process's socket to a peer, and the proof that the peer shows there.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::folder::SOCKET_PATH_BYTES_MAX;

/// The most bytes of a boot id. Linux gives 36.
pub const BOOT_ID_BYTES_MAX: usize = 64;
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
pub(super) const SECRET_BYTES: usize = 32;
const PROOF_CONTEXT: &[u8] = b"zbelastic same-host road, listener's proof, version 1";

/// Which boot of which machine a process runs on. Containers of one machine share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity(String);

/// The purpose of a connection of the same-host path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalLane {
    /// Messages of the control lane.
    Control,
    /// Frames of the Tensor lane.
    Tensor,
    /// Requests for chunks, and the answers to them.
    Bulk,
    /// Requests of a command line, and the answers to them.
    Request,
}

/// A secret that only the peer that it was sent to knows.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct LocalSecret([u8; SECRET_BYTES]);

/// Where a process listens, and the secret to show there. To be sent over an authenticated and
/// encrypted connection alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalOffer {
    /// The machine of the socket.
    pub host: HostIdentity,
    /// Absolute path of the socket.
    pub path: PathBuf,
    pub(super) secret: LocalSecret,
}

#[derive(Serialize, Deserialize)]
struct EncodedOffer {
    host: HostIdentity,
    path: Vec<u8>,
    secret: LocalSecret,
}

/// Why bytes are no offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OfferFault {
    /// They are not the bytes of an offer, or of more than one.
    #[error("the bytes are not one offer")]
    NoOffer,
    /// The boot id is too long.
    #[error("a boot id of {found} bytes, at most {BOOT_ID_BYTES_MAX} are read")]
    BootIdTooLong {
        /// Length of the boot id in bytes.
        found: usize,
    },
    /// No socket has such a path.
    #[error("a path of {found} bytes, a socket's has 1 to {SOCKET_PATH_BYTES_MAX}")]
    PathLength {
        /// Length of the path in bytes.
        found: usize,
    },
    /// The path depends on where the reader is.
    #[error("the path is not absolute")]
    PathRelative,
}

impl HostIdentity {
    /// The identity of this machine: the boot id of its system.
    ///
    /// # Errors
    /// If the system's boot id cannot be read.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string(BOOT_ID_PATH)?;
        let text = text.trim();
        if text.is_empty() || text.len() > BOOT_ID_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(text.to_owned()))
    }
}

impl LocalLane {
    pub(super) const fn to_byte(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Tensor => 2,
            Self::Bulk => 3,
            Self::Request => 4,
        }
    }

    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Control),
            2 => Some(Self::Tensor),
            3 => Some(Self::Bulk),
            4 => Some(Self::Request),
            _ => None,
        }
    }
}

impl LocalSecret {
    pub(super) fn generate() -> io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| io::Error::other("the system gives no random bytes"))?;
        Ok(Self(bytes))
    }

    pub(super) const fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// The answer of the listener, which shows that it knew the secret beforehand.
    pub(super) fn proof(&self) -> blake3::Hash {
        blake3::keyed_hash(&self.0, PROOF_CONTEXT)
    }
}

impl PartialEq for LocalSecret {
    /// The time is the same for any two secrets: hashes are compared in constant time.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for LocalSecret {}

impl fmt::Debug for LocalSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalSecret(..)")
    }
}

impl LocalOffer {
    /// The offer as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let path = self.path.as_os_str().as_bytes().to_vec();
        let encoded = EncodedOffer { host: self.host.clone(), path, secret: self.secret };
        postcard::to_allocvec(&encoded).expect("a vector takes all bytes")
    }

    /// The offer that `bytes` are.
    ///
    /// # Errors
    /// If they are not exactly one offer that a process can make.
    pub fn decode(bytes: &[u8]) -> Result<Self, OfferFault> {
        let Ok((encoded, [])) = postcard::take_from_bytes::<EncodedOffer>(bytes) else {
            return Err(OfferFault::NoOffer);
        };
        let boot_id = encoded.host.0.len();
        let path = encoded.path.len();
        if boot_id > BOOT_ID_BYTES_MAX {
            return Err(OfferFault::BootIdTooLong { found: boot_id });
        }
        if path == 0 || path > SOCKET_PATH_BYTES_MAX {
            return Err(OfferFault::PathLength { found: path });
        }
        let path = PathBuf::from(OsString::from_vec(encoded.path));
        if !path.is_absolute() {
            return Err(OfferFault::PathRelative);
        }
        Ok(Self { host: encoded.host, path, secret: encoded.secret })
    }

    /// Whether the socket may be one of this machine: `here` is its host, and there is such a file.
    /// That it is the right one is known when it is dialled.
    #[must_use]
    pub fn is_reachable_from(&self, here: &HostIdentity) -> bool {
        self.host == *here && Path::exists(&self.path)
    }
}
