//! `recover`: a new cluster out of a mirror, when every disk of the old one is gone.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use zbelastic_api::{MemberRole, escape};
use zbelastic_checkpoint::{CheckpointId, CheckpointStore, CheckpointStoreError, PieceRecord};
use zbelastic_mirror::{Mirror, MirroredCheckpoint, MirroredData};
use zbelastic_node::cluster::FIRST_NODE;
use zbelastic_node::cluster::membership_failure::unreadable;
use zbelastic_node::cluster::recovery::{self, CheckpointDocument};
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::{NewNode, NodeRecord};
use zbelastic_node_folder::stores::{StoreLocations, StoreOpenError};
use zbelastic_timing::unix_ms;
use zbelastic_types::{Bytes, ClusterId};
use zbelastic_whole_file as whole_file;
use zbelastic_wire::document::JobDocument;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail, cannot_write};

use super::mirror::open_mirror;
use super::mirror_failure::cannot_mirror;
use crate::args::{RecoverFromArgs, default_bind};
use crate::membership::check_is_new_cluster;

/// Runs `recover`.
///
/// # Errors
/// If the folder is a node's, the mirror has no such checkpoint, or a part of it is damaged.
pub fn run(args: &RecoverFromArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let place = &args.from;
    let mirror = open_mirror(place)?;
    let found = mirror.checkpoints().map_err(|error| cannot_mirror(place, &error))?;
    if args.list {
        return list(place, &mirror, &found, out);
    }
    let id = chosen(place, &found, args.step)?;
    let checkpoint = mirror.checkpoint(id).map_err(|error| cannot_mirror(place, &error))?;
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let _hold = folder.hold()?;
    check_is_new_cluster(&folder)?;
    let source = MirrorSource { place, mirror: &mirror, checkpoint: &checkpoint };
    let missing = fetch(&source, &folder, out)?;
    let cluster = found_cluster(args, &checkpoint, &folder)?;
    let step = id.version;
    let run = escape(&checkpoint.run_name);
    writeln!(out, "a new cluster, which goes on behind step {step} of run {run}")?;
    if let Err(error) = mirror.take_over(cluster.0) {
        writeln!(out, "note: the mirror stays as it is: {error}")?;
    }
    if missing > 0 {
        writeln!(
            out,
            "note: {missing} files of the run are not in the mirror; `zbelastic run` with the run's"
        )?;
        writeln!(out, "configuration sends them, once the cluster is up")?;
    }
    let shown = folder.root().display();
    writeln!(out, "start it:        zbelastic init --data-dir {shown}")?;
    writeln!(out, "let workers in:  zbelastic token create --print-join --data-dir {shown}")?;
    Ok(())
}

fn list(
    place: &str,
    mirror: &Mirror,
    found: &[CheckpointId],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    for id in found {
        let checkpoint = mirror.checkpoint(*id).map_err(|error| cannot_mirror(place, &error))?;
        let run = escape(&checkpoint.run_name);
        let bytes = Bytes(checkpoint.bytes());
        writeln!(out, "run {run}, step {}: {bytes}", id.version)?;
    }
    if found.is_empty() {
        writeln!(out, "no checkpoint")?;
    }
    Ok(())
}

/// The newest checkpoint, or the newest run's of a step.
fn chosen(
    place: &str,
    found: &[CheckpointId],
    step: Option<u64>,
) -> Result<CheckpointId, CommandFailure> {
    let mut matching = found.iter().rev().filter(|id| step.is_none_or(|step| id.version.0 == step));
    matching.next().copied().ok_or_else(|| {
        let what = match step {
            Some(step) => format!("{place} has no checkpoint of step {step}"),
            None => format!("{place} has no checkpoint"),
        };
        let mut failure = CommandFailure::new(FailureCode::NotFound, what);
        let steps = found.iter().map(|id| id.version.to_string()).collect::<Vec<_>>().join(", ");
        failure.details = vec![FailureDetail::new(format!("steps that are there: {steps}"))];
        failure
    })
}

/// A checkpoint, and where its chunks are.
struct MirrorSource<'a> {
    place: &'a str,
    mirror: &'a Mirror,
    checkpoint: &'a MirroredCheckpoint,
}

/// Writes the layers into the folder's store and the files beside it. What is there from a command
/// that was cut short is not fetched again. Yields how many files of the run the mirror does not have.
fn fetch(
    source: &MirrorSource<'_>,
    folder: &NodeDataFolder,
    out: &mut dyn Write,
) -> Result<usize, CommandError> {
    let MirrorSource { place, checkpoint, .. } = source;
    let manifest = &checkpoint.manifest;
    let unreadable = |what: String| CommandFailure::new(FailureCode::VerificationFailed, what);
    let document = CheckpointDocument::decode(&manifest.document);
    let document = document.ok_or_else(|| unreadable("its document cannot be read".to_owned()))?;
    let job = JobDocument::of_job(&document.spec).map_err(|error| unreadable(error.to_string()))?;
    let job = job.job;
    let locations = StoreLocations::new(folder.clone());
    let store_place = locations
        .of_job(job.config.checkpoint.folder.as_deref(), ClusterId(checkpoint.cluster), FIRST_NODE)
        .map_err(|error| cannot_open(&error))?;
    let store = locations.open(&store_place).map_err(|error| cannot_open(&error))?;
    writeln!(out, "fetching {} from {place}", Bytes(checkpoint.bytes()))?;
    for (name, record) in manifest.layers.iter().zip(&checkpoint.pieces) {
        for hash in store.missing(record).map_err(|error| cannot_store(&error))? {
            let bytes = source.mirror.chunk(hash).map_err(|error| cannot_mirror(place, &error))?;
            store.put_chunk(hash, &bytes).map_err(|error| cannot_store(&error))?;
        }
        store.put_record(*name, record).map_err(|error| cannot_store(&error))?;
    }
    let texts = folder.root().join("data");
    std::fs::create_dir_all(&texts).map_err(|error| cannot_write(&texts, &error))?;
    for data in &checkpoint.data {
        fetch_data(source, data, &texts.join(format!("{}.data", data.hash)))?;
    }
    // Last: a manifest is what a cluster begins with.
    store.put_manifest(manifest).map_err(|error| cannot_store(&error))?;
    let has = |hash| checkpoint.data.iter().any(|data| data.hash == hash);
    Ok(job.data().iter().filter(|name| !has(name.hash)).count())
}

fn fetch_data(
    source: &MirrorSource<'_>,
    data: &MirroredData,
    path: &Path,
) -> Result<(), CommandFailure> {
    let MirroredData { hash, record } = data;
    let PieceRecord { chunks, .. } = record;
    let mut hasher = blake3::Hasher::new();
    let mut failed = None;
    let written = whole_file::write_with(path, |file| {
        for chunk in chunks {
            let bytes = source.mirror.chunk(*chunk).map_err(|error| {
                failed = Some(cannot_mirror(source.place, &error));
                std::io::Error::other("the mirror")
            })?;
            hasher.update(&bytes);
            file.write_all(&bytes)?;
        }
        Ok(())
    });
    if let Some(failure) = failed {
        return Err(failure);
    }
    written.map_err(|error| cannot_write(path, &error))?;
    let found = hasher.finalize();
    if *found.as_bytes() == hash.0 {
        return Ok(());
    }
    let what = format!("a file of the run has the hash {found}, its name is {hash}");
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

/// Founds the cluster in the folder, and returns its id.
fn found_cluster(
    args: &RecoverFromArgs,
    checkpoint: &MirroredCheckpoint,
    folder: &NodeDataFolder,
) -> Result<ClusterId, CommandFailure> {
    let cluster_name = args.name.clone().unwrap_or_else(|| checkpoint.cluster_name.clone());
    let old = NodeRecord::new(NewNode {
        cluster: ClusterId(checkpoint.cluster),
        founded_ms: Some(unix_ms()),
        node: FIRST_NODE,
        name: format!("{cluster_name}-1"),
        cluster_name,
        role: MemberRole::Controller,
        bind: args.bind.unwrap_or_else(default_bind),
        advertised: args.advertise.iter().map(ToString::to_string).collect(),
        controllers: BTreeMap::new(),
    });
    let kept = recovery::recover(folder, &old)?;
    // There was nothing before, so nothing is kept.
    let _ = std::fs::remove_dir(kept);
    let record = NodeRecord::load(&folder.identity()).map_err(|error| unreadable(&error))?;
    record.map(|record| record.cluster).ok_or_else(|| {
        let what = format!("{} has no identity", folder.root().display());
        CommandFailure::new(FailureCode::Internal, what)
    })
}

fn cannot_open(error: &StoreOpenError) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, format!("the store: {error}"))
}

fn cannot_store(error: &CheckpointStoreError) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, format!("the store: {error}"))
}
