//! An identity on disk: a folder that only its owner may open.
//!
//! ```text
//!   identity/        0700
//!     key.pem        0600   the node's key; first, for it names the joiner before it is a member
//!     ca.pem                the authorities it trusts
//!     cert.pem              its certificate and the authority's
//!     ca-key.pem     0600   controllers only: the authority's key
//!     ca-key-next.pem 0600  controllers only: the key of the one that follows, until it issues
//! ```
//!
//! Each file is replaced as a whole and is on the disk before the call returns. A renewed
//! certificate is for the same key, so one file changes and a crash leaves the old one or the new.
//! Each kind of fault in a folder is an error of its own, because each has another remedy; nothing
//! is ever made anew where something is.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pem::{EncodeConfig, LineEnding, Pem, encode_config};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use thiserror::Error;
use zbelastic_types::ClusterId;
use zbelastic_whole_file as whole_file;

use super::authority::{AuthorityFault, ClusterAuthority};
use super::certificate::{CHAIN_CERTIFICATES_MAX, read_authority};
use super::clock::{ClockFault, UnixSeconds};
use super::credentials::{Credentials, CredentialsFault};
use super::key::NodeKey;
use super::peer::cluster_text;
use super::verify::PeerIdentityRefusal;

const KEY_FILE: &str = "key.pem";
const CERTIFICATE_FILE: &str = "cert.pem";
const ROOTS_FILE: &str = "ca.pem";
const AUTHORITY_KEY_FILE: &str = "ca-key.pem";
const NEXT_KEY_FILE: &str = "ca-key-next.pem";
/// The longest file of an identity: four certificates of 8 KiB as text, and a margin.
const FILE_BYTES_MAX: u64 = 64 << 10;
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The permissions of anyone but the owner.
const OTHERS: u32 = 0o077;

/// A fault of an identity's folder.
#[derive(Debug, Error)]
pub enum IdentityFolderFault {
    /// It is not there.
    #[error("{} is missing", path.display())]
    Missing {
        /// Path of the folder or file.
        path: PathBuf,
    },
    /// It is there and cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// Path of the folder or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Unwritable {
        /// Path of the folder or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Others than its owner may open it.
    #[error("{} has permissions {found:04o}, at most {expected:04o} are safe", path.display())]
    TooOpen {
        /// Path of the folder or file.
        path: PathBuf,
        /// Permission bits of the folder or file.
        found: u32,
        /// The widest permissions that are accepted.
        expected: u32,
    },
    /// Its bytes are not those that belong there.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// Path of the folder or file.
        path: PathBuf,
        /// The kind of damage.
        why: IdentityFileDamage,
    },
    /// It is of another cluster.
    #[error(
        "{} is of cluster {}, cluster {} is expected",
        path.display(),
        cluster_text(*found),
        cluster_text(*expected)
    )]
    OtherCluster {
        /// Path of the folder or file.
        path: PathBuf,
        /// The cluster that is expected.
        expected: ClusterId,
        /// The one it is of.
        found: ClusterId,
    },
    /// Its time is over or has not come, or this machine's clock is wrong.
    #[error("{}: {fault}", path.display())]
    Clock {
        /// Path of the folder or file.
        path: PathBuf,
        /// The fault, with the times of both clocks.
        fault: ClockFault,
    },
    /// Another identity is there already.
    #[error("{} is of another identity, and is not replaced", path.display())]
    Occupied {
        /// Path of the folder or file.
        path: PathBuf,
    },
}

/// In which way a file is damaged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum IdentityFileDamage {
    /// It is longer than any of ours.
    #[error("more than {FILE_BYTES_MAX} bytes")]
    TooLong,
    /// It is not in PEM, or has too few or too many of the parts that it should hold.
    #[error("not the PEM text that belongs there")]
    NoPem,
    /// The key in it is none.
    #[error("no private key")]
    NoKey,
    /// The parts do not belong together.
    #[error(transparent)]
    Parts(#[from] CredentialsFault),
    /// The certificate does not lead to the authority beside it.
    #[error(transparent)]
    Untrusted(#[from] PeerIdentityRefusal),
    /// It is no authority.
    #[error(transparent)]
    Authority(#[from] AuthorityFault),
}

impl NodeKey {
    /// The key in `folder`, which is made if it is not there. A joiner calls this before it
    /// requests a certificate, so that a second attempt after a crash is the same joiner.
    ///
    /// # Errors
    /// If there is one that cannot be used, or none can be written.
    pub fn load_or_create(folder: &Path) -> Result<Self, IdentityFolderFault> {
        prepare(folder)?;
        match load_key(&folder.join(KEY_FILE)) {
            Ok(key) => Ok(key),
            Err(IdentityFolderFault::Missing { .. }) => {
                let key = Self::generate();
                replace(folder, KEY_FILE, &key_text(&key))?;
                Ok(key)
            }
            Err(fault) => Err(fault),
        }
    }
}

impl Credentials {
    /// Writes the credentials to `folder`. Replaces certificates of the same key, never a key.
    ///
    /// # Errors
    /// If another identity is there, or something cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityFolderFault> {
        prepare(folder)?;
        let path = folder.join(KEY_FILE);
        match load_key(&path) {
            Ok(key) if key.digest() == self.key().digest() => {}
            Ok(_) => return Err(IdentityFolderFault::Occupied { path }),
            Err(IdentityFolderFault::Missing { .. }) => {
                replace(folder, KEY_FILE, &key_text(self.key()))?
            }
            Err(fault) => return Err(fault),
        }
        replace(folder, ROOTS_FILE, &certificates_text(self.roots()))?;
        replace(folder, CERTIFICATE_FILE, &certificates_text(self.chain()))
    }

    /// The credentials in `folder`, if others would trust them at `now`. With `expected`, only of
    /// that cluster.
    ///
    /// # Errors
    /// With the fault, each kind apart.
    pub fn load(
        folder: &Path,
        expected: Option<ClusterId>,
        now: UnixSeconds,
    ) -> Result<Self, IdentityFolderFault> {
        let read = Self::load_ended(folder, expected)?;
        let path = folder.join(CERTIFICATE_FILE);
        let damaged = |why| IdentityFolderFault::Damaged { path: path.clone(), why };
        read.check_own(now).map_err(|refusal| match refusal {
            PeerIdentityRefusal::Clock(fault) => {
                IdentityFolderFault::Clock { path: path.clone(), fault }
            }
            PeerIdentityRefusal::Certificate(_)
            | PeerIdentityRefusal::OtherCluster { .. }
            | PeerIdentityRefusal::Untrusted(_)
            | PeerIdentityRefusal::ServesNobody { .. }
            | PeerIdentityRefusal::OtherPeer { .. } => damaged(refusal.into()),
        })?;
        Ok(read)
    }

    /// The same, whether their time is over or not: with
    /// [`JoinSetup::of_member`](super::JoinSetup::of_member) a member requests another certificate
    /// after its own ended.
    ///
    /// # Errors
    /// As [`Self::load`], but for the clock.
    pub fn load_ended(
        folder: &Path,
        expected: Option<ClusterId>,
    ) -> Result<Self, IdentityFolderFault> {
        check_mode(folder)?;
        let key = load_key(&folder.join(KEY_FILE))?;
        let roots = load_certificates(&folder.join(ROOTS_FILE))?;
        let path = folder.join(CERTIFICATE_FILE);
        let chain = load_certificates(&path)?;
        let damaged = |why| IdentityFolderFault::Damaged { path: path.clone(), why };
        let read = Self::new(chain, key, roots).map_err(|fault| damaged(fault.into()))?;
        check_cluster(&path, expected, read.identity().cluster)?;
        Ok(read)
    }
}

impl ClusterAuthority {
    /// Writes the authority to `folder`, key and all. Only on a controller.
    ///
    /// # Errors
    /// If another authority is there, or something cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityFolderFault> {
        prepare(folder)?;
        let path = folder.join(AUTHORITY_KEY_FILE);
        match load_key(&path) {
            Ok(key) if key.digest() == self.key().digest() => {}
            Ok(_) => return Err(IdentityFolderFault::Occupied { path }),
            Err(IdentityFolderFault::Missing { .. }) => {
                replace(folder, AUTHORITY_KEY_FILE, &key_text(self.key()))?;
            }
            Err(fault) => return Err(fault),
        }
        let path = folder.join(ROOTS_FILE);
        match load_certificates(&path) {
            Ok(roots) if !roots.contains(self.certificate()) => {
                Err(IdentityFolderFault::Occupied { path })
            }
            // The record of the one before, or of the one that follows, stays.
            Ok(_) if self.bridge().is_empty() => Ok(()),
            Ok(_) | Err(IdentityFolderFault::Missing { .. }) => self.save_path(folder),
            Err(fault) => Err(fault),
        }
    }

    /// Its certificate, and the path to the one before, which ends with that one's certificate.
    fn save_path(&self, folder: &Path) -> Result<(), IdentityFolderFault> {
        let path: Vec<_> = self.path().collect();
        replace(folder, ROOTS_FILE, &certificates_text(&path))
    }

    /// Writes the authority that follows the one in `folder`, which is the end of its bridge. It
    /// replaces another one that was to follow.
    ///
    /// # Errors
    /// If it does not follow that one, or something cannot be written.
    pub fn save_next(&self, folder: &Path) -> Result<(), IdentityFolderFault> {
        let now = Self::load(folder, Some(self.cluster()))?;
        if self.bridge().last() != Some(now.certificate()) {
            return Err(IdentityFolderFault::Occupied { path: folder.join(NEXT_KEY_FILE) });
        }
        // A key without its certificate is of no use, so the certificate comes first.
        self.save_path(folder)?;
        replace(folder, NEXT_KEY_FILE, &key_text(self.key()))
    }

    /// The authority that follows the one in `folder`.
    ///
    /// # Errors
    /// With the fault. `Missing` for the key means that none is to follow.
    pub fn load_next(
        folder: &Path,
        expected: Option<ClusterId>,
    ) -> Result<Self, IdentityFolderFault> {
        Self::load_with(folder, NEXT_KEY_FILE, expected)
    }

    /// The authority that follows replaces the one in `folder`, and that one's key is gone with it.
    ///
    /// # Errors
    /// If there is none, or the disk fails.
    pub fn succeed(folder: &Path) -> Result<(), IdentityFolderFault> {
        let path = folder.join(AUTHORITY_KEY_FILE);
        fs::rename(folder.join(NEXT_KEY_FILE), &path)
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(|source| IdentityFolderFault::Unwritable { path, source })
    }

    /// The authority in `folder`. With `expected`, only of that cluster.
    ///
    /// # Errors
    /// With the fault. `Missing` for the key means that the folder is not of a controller.
    pub fn load(folder: &Path, expected: Option<ClusterId>) -> Result<Self, IdentityFolderFault> {
        Self::load_with(folder, AUTHORITY_KEY_FILE, expected)
    }

    fn load_with(
        folder: &Path,
        key_file: &str,
        expected: Option<ClusterId>,
    ) -> Result<Self, IdentityFolderFault> {
        check_mode(folder)?;
        let key = load_key(&folder.join(key_file))?;
        let path = folder.join(ROOTS_FILE);
        let mut roots = load_certificates(&path)?;
        let is_own = |root: &CertificateDer<'_>| {
            read_authority(root).is_ok_and(|read| read.key.0 == key.digest().0)
        };
        let damaged = |why| IdentityFolderFault::Damaged { path: path.clone(), why };
        let index = roots.iter().position(is_own);
        let index = index.ok_or_else(|| damaged(AuthorityFault::OtherKey.into()))?;
        let bridge = roots.split_off(index + 1);
        let root = roots.pop().expect("found above");
        let read = Self::from_parts(root, key).map_err(|fault| damaged(fault.into()))?;
        check_cluster(&path, expected, read.cluster())?;
        Ok(read.with_bridge(bridge))
    }
}

/// The files of an identity's folder that others may open although they should not. For a check
/// that changes nothing; a missing file is no fault here.
#[must_use]
pub fn check_permissions(folder: &Path) -> Vec<IdentityFolderFault> {
    let paths =
        [folder.to_owned(), folder.join(KEY_FILE), folder.join(AUTHORITY_KEY_FILE)].into_iter();
    let paths = paths.chain([folder.join(NEXT_KEY_FILE)]);
    let faults = paths.filter_map(|path| check_mode(&path).err());
    faults.filter(|fault| !matches!(fault, IdentityFolderFault::Missing { .. })).collect()
}

fn check_cluster(
    path: &Path,
    expected: Option<ClusterId>,
    found: ClusterId,
) -> Result<(), IdentityFolderFault> {
    match expected {
        Some(expected) if expected != found => {
            Err(IdentityFolderFault::OtherCluster { path: path.to_owned(), expected, found })
        }
        Some(_) | None => Ok(()),
    }
}

fn check_mode(path: &Path) -> Result<(), IdentityFolderFault> {
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, source))?;
    let found = metadata.permissions().mode() & 0o7777;
    if found & OTHERS != 0 {
        let expected = if metadata.is_dir() { FOLDER_MODE } else { FILE_MODE };
        return Err(IdentityFolderFault::TooOpen { path: path.to_owned(), found, expected });
    }
    Ok(())
}

fn unreadable(path: &Path, source: io::Error) -> IdentityFolderFault {
    let path = path.to_owned();
    if source.kind() == io::ErrorKind::NotFound {
        IdentityFolderFault::Missing { path }
    } else {
        IdentityFolderFault::Unreadable { path, source }
    }
}

fn load_key(path: &Path) -> Result<NodeKey, IdentityFolderFault> {
    let text = read(path)?;
    check_mode(path)?;
    let damaged = |why| IdentityFolderFault::Damaged { path: path.to_owned(), why };
    let der = PrivatePkcs8KeyDer::from_pem_slice(&text)
        .map_err(|_| damaged(IdentityFileDamage::NoPem))?;
    NodeKey::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| damaged(IdentityFileDamage::NoKey))
}

fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityFolderFault> {
    let text = read(path)?;
    let no_pem =
        || IdentityFolderFault::Damaged { path: path.to_owned(), why: IdentityFileDamage::NoPem };
    let parts: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&text).take(CHAIN_CERTIFICATES_MAX + 1).collect();
    match parts {
        Ok(parts) if (1..=CHAIN_CERTIFICATES_MAX).contains(&parts.len()) => Ok(parts),
        Ok(_) | Err(_) => Err(no_pem()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityFolderFault> {
    let fault = |source| unreadable(path, source);
    // A pipe would be waited for; only files are opened.
    if !fs::metadata(path).map_err(fault)?.is_file() {
        return Err(fault(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")));
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(fault)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(fault)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(IdentityFolderFault::Damaged {
            path: path.to_owned(),
            why: IdentityFileDamage::TooLong,
        });
    }
    Ok(text)
}

/// Makes the folder, or finds it there and closed to others.
fn prepare(folder: &Path) -> Result<(), IdentityFolderFault> {
    let unwritable = |source| IdentityFolderFault::Unwritable { path: folder.to_owned(), source };
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(unwritable)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_mode(folder),
        Err(error) => Err(unwritable(error)),
    }
}

/// Puts a file in the place of another in one step, and both onto the disk.
fn replace(folder: &Path, name: &str, text: &str) -> Result<(), IdentityFolderFault> {
    let path = folder.join(name);
    whole_file::write_private(&path, text.as_bytes())
        .map_err(|source| IdentityFolderFault::Unwritable { path, source })
}

fn key_text(key: &NodeKey) -> String {
    pem_text("PRIVATE KEY", &key.pair().serialize_der())
}

fn certificates_text(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|part| pem_text("CERTIFICATE", part)).collect()
}

fn pem_text(label: &str, bytes: &[u8]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    encode_config(&Pem::new(label, bytes), config)
}

#[cfg(test)]
mod tests;
