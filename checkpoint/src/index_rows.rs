//! The rows of a store's index.
//!
//! ```text
//!   P | run (8) | version (8) | layer (4) | digest (32)  ->  1 | PieceRecord
//!   M | run (8) | version (8)                            ->  1 | Manifest
//! ```
//!
//! Rows `p` and `m`, without a run, are of program versions that had one run, and are not read.
//! Numbers in keys are big endian, so that rows are in the order of versions and layers. The byte 1
//! is the version of the value; the rest is in postcard's format.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use zbelastic_types::{Digest, LayerId, RunId, Step};

use crate::error::DatabaseFault;
use crate::index::{Index, IndexChange};
use crate::manifest::Manifest;
use crate::names::{CheckpointId, PieceName, PieceRecord};
use crate::sled_rows::bad_row;

const PIECE: u8 = b'P';
const MANIFEST: u8 = b'M';
const ROW_VERSION: u8 = 1;

/// The key of a piece's record.
pub(crate) fn piece_key(name: PieceName) -> Vec<u8> {
    let mut key = vec![PIECE];
    key.extend(version_bytes(name.version));
    key.extend(name.layer.0.to_be_bytes());
    key.extend(name.digest.0);
    key
}

/// The key of a manifest.
pub(crate) fn manifest_key(version: CheckpointId) -> Vec<u8> {
    let mut key = vec![MANIFEST];
    key.extend(version_bytes(version));
    key
}

fn version_bytes(CheckpointId { run, version }: CheckpointId) -> Vec<u8> {
    [run.0.to_be_bytes(), version.0.to_be_bytes()].concat()
}

/// The change that writes a piece's record.
pub(crate) fn put_piece(name: PieceName, record: &PieceRecord) -> IndexChange {
    IndexChange::Put { key: piece_key(name), value: encode(record) }
}

/// The change that writes a manifest.
pub(crate) fn put_manifest(manifest: &Manifest) -> IndexChange {
    IndexChange::Put { key: manifest_key(manifest.version), value: encode(manifest) }
}

/// The record of a piece.
pub(crate) fn piece(
    index: &impl Index,
    name: PieceName,
) -> Result<Option<PieceRecord>, DatabaseFault> {
    let key = piece_key(name);
    index.value(&key)?.map(|value| checked_record(&key, &value)).transpose()
}

/// Reads every row.
///
/// # Errors
/// If one is damaged or cannot be read.
pub(crate) fn check(index: &impl Index) -> Result<(), DatabaseFault> {
    pieces(index)?;
    manifests(index)?;
    Ok(())
}

/// The records of all pieces.
pub(crate) fn pieces(
    index: &impl Index,
) -> Result<BTreeMap<PieceName, PieceRecord>, DatabaseFault> {
    let rows = index.rows(&[PIECE])?;
    let pieces = rows.iter().map(|(key, value)| Ok((name(key)?, checked_record(key, value)?)));
    pieces.collect()
}

/// The manifest of a version.
pub(crate) fn manifest(
    index: &impl Index,
    version: CheckpointId,
) -> Result<Option<Manifest>, DatabaseFault> {
    let key = manifest_key(version);
    index.value(&key)?.map(|value| checked_manifest(&key, &value)).transpose()
}

/// The manifests of all versions.
pub(crate) fn manifests(
    index: &impl Index,
) -> Result<BTreeMap<CheckpointId, Manifest>, DatabaseFault> {
    let rows = index.rows(&[MANIFEST])?;
    let manifests = rows.iter().map(|(key, value)| checked_manifest(key, value));
    manifests.map(|manifest| manifest.map(|manifest| (manifest.version, manifest))).collect()
}

fn name(key: &[u8]) -> Result<PieceName, DatabaseFault> {
    let parts = || {
        let (run, rest) = key.get(1..)?.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (layer, digest) = rest.split_first_chunk()?;
        let digest = digest.try_into().ok()?;
        let run = u64::from_be_bytes(*run);
        let version = u64::from_be_bytes(*version);
        let version = CheckpointId { run: RunId(run), version: Step(version) };
        let layer = LayerId(u32::from_be_bytes(*layer));
        Some(PieceName { version, layer, digest: Digest(digest) })
    };
    parts().ok_or_else(|| bad_row(key, "its key is no piece's name"))
}

fn checked_record(key: &[u8], value: &[u8]) -> Result<PieceRecord, DatabaseFault> {
    let record: PieceRecord = decode(key, value)?;
    record.check().map_err(|_| bad_row(key, "its chunks do not make up its length"))?;
    Ok(record)
}

fn checked_manifest(key: &[u8], value: &[u8]) -> Result<Manifest, DatabaseFault> {
    let manifest: Manifest = decode(key, value)?;
    manifest.check().map_err(|_| bad_row(key, "it breaks a rule of manifests"))?;
    if manifest_key(manifest.version) != key {
        return Err(bad_row(key, "its key is of another version"));
    }
    Ok(manifest)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![ROW_VERSION]).expect("a vector takes all bytes")
}

fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, DatabaseFault> {
    match value.split_first() {
        Some((&ROW_VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok((_, _)) | Err(_) => Err(bad_row(key, "its value is not of the format")),
        },
        Some(_) => Err(bad_row(key, "its value is of another version")),
        None => Err(bad_row(key, "it has no value")),
    }
}
