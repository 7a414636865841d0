//! The thread that reads the files on a node's disk again, as [`zbelastic_policy::scrub`] plans it,
//! and the repair of those that rotted.
//!
//! A pass reads a chunk a second, and the next one begins where it ends: a tebibyte needs three
//! days.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use zbelastic_api::HexDigest;
use zbelastic_identity::UnixSeconds;
use zbelastic_machine::background_thread::raise_niceness;
use zbelastic_machine::data_file::keep_hashes;
use zbelastic_policy::data_chunks::ChunkHashes;
use zbelastic_policy::scrub::{CorruptItem, DataFileAccess, ScrubPass, ScrubReport, Scrubber};
use zbelastic_transport::Transport;
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::PieceRef;

use super::checkpoint_thread::{CheckpointThread, StoreEvent, StoreInUse};
use super::piece_fetch::refetch_piece_of_any;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::checked_json;
use zbelastic_policy::WorkCounter;

/// From one chunk to the next. A disk reads a hundred times as much, so other readers are not
/// slowed.
const PAUSE: Duration = Duration::from_secs(1);

/// The file of the last pass that ended, beside the folder of texts.
const PASS_FILE: &str = "scrub.json";
/// Bytes of it at most.
const PASS_BYTES_MAX: u64 = 4 << 10;

/// The last pass over everything that the node of a folder holds; none if that is not known.
#[must_use]
pub fn last_scrub_pass(folder: &NodeDataFolder) -> Option<ScrubPass> {
    read_last_pass(&folder.root().join(PASS_FILE))
}

fn read_last_pass(path: &Path) -> Option<ScrubPass> {
    checked_json::read(path, PASS_BYTES_MAX).ok()??.checked().ok()
}

/// Reads the pieces and texts that a node holds, until reports are not received any more. How far it
/// is it writes to `progress`.
pub fn scrub(
    in_use: &watch::Receiver<StoreInUse>,
    data: &Path,
    (reports, progress): (&mpsc::Sender<StoreEvent>, &watch::Sender<ScrubReport>),
    begin: u64,
) {
    raise_niceness();
    let path = data.with_file_name(PASS_FILE);
    let mut last = read_last_pass(&path);
    let mut scrubber = Scrubber::new(DataFiles(data.to_owned()), begin);
    while !reports.is_closed() {
        thread::sleep(PAUSE);
        let store = in_use.borrow().clone();
        let corrupt = scrubber.step(store.as_deref()).map(|corrupt| match corrupt {
            CorruptItem::Piece { piece, reason: why } => StoreEvent::Rotten { piece, why },
            CorruptItem::Data(name) => StoreEvent::RottenData(name),
        });
        let now = scrubber.progress();
        if scrubber.has_read_all() {
            let ended =
                ScrubPass { ended_s: UnixSeconds::now().0, total: now.total, corrupt: now.corrupt };
            // Without it the next start knows of no pass; the disk's own trouble is reported elsewhere.
            let _ = checked_json::write(&path, &ended);
            last = Some(ended);
        }
        progress.send_replace(ScrubReport { progress: now, last });
        if corrupt.is_some_and(|corrupt| reports.blocking_send(corrupt).is_err()) {
            return;
        }
    }
}

/// Texts and weights in their folder, each in a file that is named after the hash that it should
/// have.
struct DataFiles(PathBuf);

impl DataFileAccess for DataFiles {
    type File = File;

    fn list(&self) -> Vec<Digest> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let paths = paths.filter(|path| path.extension().is_some_and(|found| found == "data"));
        let hash = |path: PathBuf| HexDigest::parse(path.file_stem()?.to_str()?).map(|hash| hash.0);
        paths.filter_map(hash).collect()
    }

    fn open(&self, hash: Digest) -> Option<(File, u64)> {
        let file = File::open(self.0.join(format!("{hash}.data"))).ok()?;
        let length = file.metadata().ok()?.len();
        Some((file, length))
    }

    fn read_at(file: &File, offset: u64, into: &mut [u8]) -> bool {
        file.read_exact_at(into, offset).is_ok()
    }

    fn keep_hashes(&self, hashes: &ChunkHashes) {
        keep_hashes(&self.0.join(format!("{}.data", hashes.name().hash)), hashes);
    }
}

/// Fetches a piece again from the nodes that have it sound, and reports the outcome.
pub fn repair(
    piece: PieceRef,
    (transport, checkpoint_thread): (Transport, CheckpointThread),
    others: Vec<NodeId>,
    progress: WorkCounter,
) {
    tokio::spawn(async move {
        let parts = (&transport, &checkpoint_thread);
        let outcome = refetch_piece_of_any(parts, piece, &others, &progress).await;
        checkpoint_thread.report(StoreEvent::Mended { piece, found: None, outcome }).await;
    });
}

/// The warning about a damaged piece.
#[must_use]
pub fn damaged_piece_text(piece: PieceRef, why: &str) -> String {
    let PieceRef { run, version, layer, .. } = piece;
    format!(
        "layer {layer} of checkpoint {version} of run {run} is damaged on this node's disk, and is fetched again \
         from others: {why}; check the disk"
    )
}

/// The message about the outcome of a repair; a warning if no node has the piece.
///
/// # Errors
/// The warning, if the piece is still damaged.
pub fn repair_text(piece: PieceRef, outcome: Result<(), String>) -> Result<String, String> {
    let PieceRef { run, version, layer, .. } = piece;
    let subject = format!("layer {layer} of checkpoint {version} of run {run}");
    match outcome {
        Ok(()) => Ok(format!("{subject} is sound again")),
        Err(why) => Err(format!("{subject} is damaged here, and no node has a sound copy: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use zbelastic_checkpoint::files::RealFileSystem;
    use zbelastic_checkpoint::{
        CHUNK_BYTES, CheckpointId, CheckpointStore, PieceName, Removal, RemovalReason,
        RemovalTarget, SledStore,
    };
    use zbelastic_policy::scrub::ScrubProgress;
    use zbelastic_types::{Bytes, LayerId, RunId, Step};
    use zbelastic_wire::document::DataName;

    use super::*;

    fn name(layer: u32) -> PieceName {
        let version = CheckpointId { run: RunId(1), version: Step(4) };
        PieceName { version, layer: LayerId(layer), digest: Digest([layer as u8; 32]) }
    }

    /// Steps through a complete pass, whatever it begins with.
    fn pass(scrubber: &mut Scrubber<DataFiles>, store: &SledStore) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            found.extend(scrubber.step(Some(store)).map(|corrupt| match corrupt {
                CorruptItem::Piece { piece, .. } => format!("layer {}", piece.layer),
                CorruptItem::Data(name) => format!("data of {} bytes", name.length),
            }));
            if scrubber.is_idle() {
                return found;
            }
        }
    }

    fn flip(path: &Path) {
        let mut bytes = fs::read(path).expect("readable");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        File::create(path).and_then(|mut file| file.write_all(&bytes)).expect("writable");
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is_and_what_is_sound_is_not_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(Arc::new(RealFileSystem), &folder.path().join("store"));
        let store = store.expect("made");
        for layer in 0..3_u32 {
            let bytes: Vec<u8> = (0..CHUNK_BYTES + 100).map(|i| (i as u32 * layer) as u8).collect();
            store.put(name(layer), &bytes).expect("room");
        }
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("writable");
        let text: Vec<u8> = (0..2 * CHUNK_BYTES).map(|i| (i % 251) as u8).collect();
        let path = data.join(format!("{}.data", HexDigest(DataName::of(&text).hash)));
        fs::write(&path, &text).expect("writable");
        for turned in 0..5 {
            let mut scrubber = Scrubber::new(DataFiles(data.clone()), turned);
            assert!(scrubber.step(Some(&store)).is_none());
            let total = Bytes(3 * (CHUNK_BYTES as u64 + 100) + text.len() as u64);
            let begun = scrubber.progress();
            assert!(begun.done > Bytes(0) && begun.done < total, "{begun:?}");
            assert_eq!(pass(&mut scrubber, &store), Vec::<String>::new());
            let ended = ScrubProgress { done: total, total, corrupt: 0 };
            assert_eq!(scrubber.progress(), ended);
        }
        let record = store.record(name(1)).expect("readable").expect("it is there");
        let chunk = record.chunks[1].to_string();
        flip(&folder.path().join("store/chunks").join(&chunk[..2]).join(&chunk));
        flip(&path);
        for turned in 0..5 {
            let mut scrubber = Scrubber::new(DataFiles(data.clone()), turned);
            let mut found = pass(&mut scrubber, &store);
            assert_eq!(scrubber.progress().corrupt, 2);
            found.sort();
            let text = format!("data of {} bytes", text.len());
            assert_eq!(found, [text, "layer 1".to_owned()]);
        }
    }

    /// Steps of the thread are seconds, so only what it leaves is looked at.
    #[test]
    fn the_last_pass_is_known_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(PASS_FILE);
        assert_eq!(read_last_pass(&path), None);
        let pass = ScrubPass { ended_s: 7, total: Bytes(40), corrupt: 1 };
        checked_json::write(&path, &pass).expect("room");
        assert_eq!(read_last_pass(&path), Some(pass));
        fs::write(&path, "{").expect("room");
        assert_eq!(read_last_pass(&path), None, "what is damaged is not believed");
    }

    #[test]
    fn what_is_removed_while_it_is_read_is_not_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(Arc::new(RealFileSystem), &folder.path().join("store"));
        let store = store.expect("made");
        let bytes: Vec<u8> = (0..CHUNK_BYTES + 7).map(|i| (i % 7) as u8).collect();
        let record = store.put(name(0), &bytes).expect("room");
        let mut scrubber = Scrubber::new(DataFiles(folder.path().to_owned()), 0);
        assert!(scrubber.step(Some(&store)).is_none());
        let removal = |subject| Removal { target: subject, reason: RemovalReason::NoPiece };
        let chunks = record.chunks.iter().map(|hash| RemovalTarget::Chunk(*hash));
        let all = chunks.chain([RemovalTarget::Piece(name(0))]);
        store.remove(&all.map(removal).collect::<Vec<_>>()).expect("removed");
        assert!(scrubber.step(Some(&store)).is_none());
    }
}
