//! A new cluster out of one controller's folder, when a majority of the others is gone for good.
//!
//! What was agreed cannot be known any more, so it goes on from the newest checkpoint of which this
//! controller has the manifest. The new cluster has another id and another authority: whoever was a
//! member of the old one is a stranger to it, whatever it remembers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zbelastic_checkpoint::{Manifest, Store};
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::codec;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::state::State;
use zbelastic_transport::identity::{ClusterAuthority, PeerRole, UnixSeconds, random_number};
use zbelastic_types::ClusterId;

use super::home::{Beginning, Home};
use super::stores::Places;
use super::{ADMIN_NODE, FIRST_NODE, cannot_certify, cannot_keep, unreadable};
use crate::api::MemberRole;
use crate::data_folder::{AdminFile, DataFolder};
use crate::failure::{Detail, Failure, FailureCode, cannot_write};

/// The state that a recovered cluster begins with, beside the certificates.
const BEGINNING: &str = "beginning.bin";

/// Makes a new cluster of the controller in `folder`, which this process holds. Yields where what
/// was of the old one lies now.
///
/// # Errors
/// If it is no controller's, or has no checkpoint to go on from. Nothing is changed then.
pub fn recover(folder: &DataFolder, old: &Home) -> Result<PathBuf, Failure> {
    if old.role != MemberRole::Controller {
        let what = format!("{} is no controller's folder", folder.root().display());
        return Err(Failure::new(FailureCode::WrongState, what));
    }
    let (spec, record) = newest(folder)?;
    let kept = put_aside(folder, old)?;
    let cluster = ClusterId(random_number());
    let home = found(folder, old, cluster)?;
    let state = State::recovered(cluster, Arc::new(spec), record);
    let path = folder.identity().join(BEGINNING);
    let bytes = codec::encode(&state);
    fs::write(&path, bytes).map_err(|error| cannot_write(&path, &error))?;
    home.save(&folder.identity()).map_err(unreadable)?;
    Ok(kept)
}

/// The state that a cluster begins with in this folder, if it was recovered.
///
/// # Errors
/// If there is one that cannot be read.
pub fn beginning(identity: &Path) -> Result<Option<State>, Failure> {
    let path = identity.join(BEGINNING);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot_write(&path, &error)),
    };
    let state = codec::decode(&bytes, zbelastic_consensus::raft::SNAPSHOT_BYTES_MAX);
    let state = state.map_err(|error| {
        let what = format!("{}: {error}", path.display());
        Failure::new(FailureCode::VerificationFailed, what)
    })?;
    Ok(Some(state))
}

/// The newest checkpoint whose manifest tells how to go on.
fn newest(folder: &DataFolder) -> Result<(JobSpec, CheckpointRecord), Failure> {
    let places = Places::new(folder.clone());
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::new(FailureCode::VerificationFailed, format!("the store: {error}"))
    };
    let store = places.last().and_then(|place| places.open(&place));
    let manifests = store.map_err(|error| wrong(&error))?.manifests();
    let manifests = manifests.map_err(|error| wrong(&error))?;
    let read = |manifest: &Manifest| {
        codec::decode(&manifest.document, zbelastic_checkpoint::DOCUMENT_BYTES_MAX).ok()
    };
    manifests.iter().rev().find_map(read).ok_or_else(|| {
        let mut failure = Failure::new(FailureCode::NotFound, "there is no checkpoint here");
        failure.details = vec![
            Detail::new("a new cluster goes on from a checkpoint that this controller knows")
                .hint("another controller's folder, or `zbelastic init` and a run from the start"),
        ];
        failure
    })
}

/// Keeps what was of the old cluster under another name.
fn put_aside(folder: &DataFolder, old: &Home) -> Result<PathBuf, Failure> {
    let kept = folder.root().join(format!("before-{}", old.cluster));
    fs::create_dir_all(&kept).map_err(|error| cannot_write(&kept, &error))?;
    for (from, name) in
        [(folder.identity(), "identity"), (folder.admin(), "admin"), (folder.log(), "log")]
    {
        let to = kept.join(name);
        match fs::rename(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot_write(&to, &error)),
        }
    }
    Ok(kept)
}

fn found(folder: &DataFolder, old: &Home, cluster: ClusterId) -> Result<Home, Failure> {
    let now = UnixSeconds::now();
    let authority = ClusterAuthority::create(cluster, now).map_err(cannot_certify)?;
    let own =
        authority.credentials(PeerRole::Controller, FIRST_NODE, now).map_err(cannot_certify)?;
    let admin = authority.credentials(PeerRole::Admin, ADMIN_NODE, now).map_err(cannot_certify)?;
    own.save(&folder.identity()).map_err(cannot_keep)?;
    authority.save(&folder.identity().join("authority")).map_err(cannot_keep)?;
    admin.save(&folder.admin()).map_err(cannot_keep)?;
    let addresses = if old.advertised.is_empty() {
        vec![super::local_address(old.bind)]
    } else {
        old.advertised.clone()
    };
    let (name, id) = (old.cluster_name.clone(), cluster.to_string());
    folder.write_admin(&AdminFile { name, id, addresses })?;
    Ok(Home::new(Beginning {
        cluster,
        cluster_name: old.cluster_name.clone(),
        founded_ms: Some(super::now_ms()),
        node: FIRST_NODE,
        name: old.name.clone(),
        role: MemberRole::Controller,
        bind: old.bind,
        advertised: old.advertised.clone(),
        controllers: std::collections::BTreeMap::new(),
    }))
}
