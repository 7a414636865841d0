//! Scrubbing: what lies on a node's disk is read again now and then, so that what rotted is known and mended while
//! others have it sound. Pieces of checkpoints chunk by chunk, texts and weights as a whole.
//!
//! A pass reads a chunk a second, and the next one begins where it ends: a tebibyte takes three days.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use zbelastic_checkpoint::{CHUNK_BYTES, PieceName, PieceRecord, Store};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;

use super::document::DataName;
use super::keeper::{InUse, Keeper, Kept};
use super::piece_sink::keep_anew;
use super::threads::stand_back;
use super::wire::PieceRef;
use super::work::WorkCount;
use crate::api::HexDigest;

/// From one chunk to the next. A disk reads a hundred times as much, so nobody notices.
const PAUSE: Duration = Duration::from_secs(1);

/// Something that is to be read.
enum Unit {
    Piece(PieceName),
    Data(PathBuf),
}

/// What is being read.
enum Reading {
    Piece { name: PieceName, record: PieceRecord, next: usize },
    Data { name: DataName, file: File, at: u64, hasher: Box<blake3::Hasher> },
}

/// What a pass has yet to read.
struct Scrubber {
    units: VecDeque<Unit>,
    reading: Option<Reading>,
    /// How many units of the first pass come last: a machine that is there for an hour begins elsewhere each time.
    turned: u64,
}

/// Reads what a node holds, until nobody takes reports.
pub fn scrub(
    in_use: &watch::Receiver<InUse>,
    data: &Path,
    reports: &mpsc::Sender<Kept>,
    begin: u64,
) {
    stand_back();
    let mut scrubber = Scrubber { units: VecDeque::new(), reading: None, turned: begin };
    while !reports.is_closed() {
        thread::sleep(PAUSE);
        let Some(store) = in_use.borrow().clone() else { continue };
        if let Some(rotten) = scrubber.step(&*store, data)
            && reports.blocking_send(rotten).is_err()
        {
            return;
        }
    }
}

impl Scrubber {
    /// Reads the next chunk. Yields what is damaged.
    fn step(&mut self, store: &impl Store, data: &Path) -> Option<Kept> {
        if self.reading.is_none() {
            self.reading = self.next(store, data);
        }
        match self.reading.take()? {
            Reading::Piece { name, record, next } => self.read_piece(store, (name, record), next),
            Reading::Data { name, file, at, hasher } => self.read_data((name, file), at, hasher),
        }
    }

    fn next(&mut self, store: &impl Store, data: &Path) -> Option<Reading> {
        if self.units.is_empty() {
            let names = store.names().ok()?;
            self.units = names.into_iter().map(Unit::Piece).collect();
            self.units.extend(data_files(data).into_iter().map(Unit::Data));
            let count = self.units.len().max(1) as u64;
            self.units.rotate_left((std::mem::take(&mut self.turned) % count) as usize);
        }
        match self.units.pop_front()? {
            Unit::Piece(name) => {
                let record = store.record(name).ok()??;
                Some(Reading::Piece { name, record, next: 0 })
            }
            Unit::Data(path) => open_data(&path),
        }
    }

    fn read_piece(
        &mut self,
        store: &impl Store,
        (name, record): (PieceName, PieceRecord),
        next: usize,
    ) -> Option<Kept> {
        let hash = *record.chunks.get(next)?;
        match store.chunk(hash) {
            Ok(_) => {
                self.reading = Some(Reading::Piece { name, record, next: next + 1 });
                None
            }
            // What was removed meanwhile is missed by nobody.
            Err(_) if matches!(store.record(name), Ok(None)) => None,
            Err(error) => {
                let PieceName { version, layer, digest } = name;
                let (run, version, length) = (version.run, version.version, record.length);
                let piece = PieceRef { run, version, layer, digest, length };
                Some(Kept::Rotten { piece, why: error.to_string() })
            }
        }
    }

    fn read_data(
        &mut self,
        (name, file): (DataName, File),
        at: u64,
        mut hasher: Box<blake3::Hasher>,
    ) -> Option<Kept> {
        let mut bytes = vec![0; (name.length - at).min(CHUNK_BYTES as u64) as usize];
        let is_read = file.read_exact_at(&mut bytes, at).is_ok();
        hasher.update(&bytes);
        let at = at + bytes.len() as u64;
        if is_read && at < name.length {
            self.reading = Some(Reading::Data { name, file, at, hasher });
            return None;
        }
        let is_sound = is_read && hasher.finalize().as_bytes() == &name.hash.0;
        (!is_sound).then_some(Kept::RottenData(name))
    }
}

/// Texts and weights in their folder.
fn data_files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|found| found == "data")).collect()
}

/// A file that is named after what it should hash to.
fn open_data(path: &Path) -> Option<Reading> {
    let HexDigest(hash) = HexDigest::parse(path.file_stem()?.to_str()?)?;
    let open = || -> io::Result<(File, u64)> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    };
    let (file, length) = open().ok()?;
    let name = DataName { hash, length };
    Some(Reading::Data { name, file, at: 0, hasher: Box::default() })
}

/// Fetches a piece again from whoever has it sound, and reports what came of it.
pub fn mend(
    piece: PieceRef,
    (transport, keeper): (Transport, Keeper),
    others: Vec<NodeId>,
    progress: WorkCount,
) {
    tokio::spawn(async move {
        let mut outcome = Err("no other node is there".to_owned());
        for node in others {
            let kept = keep_anew(&transport, &keeper, piece, node, progress.clone()).await;
            outcome = kept.map_err(|error| error.to_string());
            if outcome.is_ok() {
                break;
            }
        }
        keeper.report(Kept::Mended { piece, outcome }).await;
    });
}

/// What people read of a piece that rotted.
#[must_use]
pub fn rotten_words(piece: PieceRef, why: &str) -> String {
    let PieceRef { run, version, layer, .. } = piece;
    format!(
        "layer {layer} of checkpoint {version} of run {run} is damaged on this node's disk, and is fetched again \
         from others: {why}; check the disk"
    )
}

/// What people read of what came of it; a warning if nobody has the piece.
///
/// # Errors
/// The warning.
pub fn mended_words(piece: PieceRef, outcome: Result<(), String>) -> Result<String, String> {
    let PieceRef { run, version, layer, .. } = piece;
    let what = format!("layer {layer} of checkpoint {version} of run {run}");
    match outcome {
        Ok(()) => Ok(format!("{what} is sound again")),
        Err(why) => Err(format!("{what} is damaged here, and nobody gives a sound copy: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use zbelastic_checkpoint::files::RealFiles;
    use zbelastic_checkpoint::{CheckpointId, Removal, RemovalReason, Removed, SledStore};
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    fn name(layer: u32) -> PieceName {
        let version = CheckpointId { run: RunId(1), version: Step(4) };
        PieceName { version, layer: LayerId(layer), digest: Digest([layer as u8; 32]) }
    }

    /// Steps through a whole pass, whatever it begins with.
    fn pass(scrubber: &mut Scrubber, store: &SledStore, data: &Path) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            found.extend(scrubber.step(store, data).map(|rotten| {
                if let Kept::Rotten { piece, .. } = rotten {
                    return format!("layer {}", piece.layer);
                }
                let Kept::RottenData(name) = rotten else { panic!("{rotten:?}") };
                format!("data of {} bytes", name.length)
            }));
            if scrubber.units.is_empty() && scrubber.reading.is_none() {
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
        let home = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(Arc::new(RealFiles), &home.path().join("store"));
        let store = store.expect("made");
        for layer in 0..3_u32 {
            let bytes: Vec<u8> = (0..CHUNK_BYTES + 100).map(|i| (i as u32 * layer) as u8).collect();
            store.put(name(layer), &bytes).expect("room");
        }
        let data = home.path().join("data");
        fs::create_dir(&data).expect("writable");
        let text: Vec<u8> = (0..2 * CHUNK_BYTES).map(|i| (i % 251) as u8).collect();
        let path = data.join(format!("{}.data", HexDigest(DataName::of(&text).hash)));
        fs::write(&path, &text).expect("writable");
        for turned in 0..5 {
            let mut scrubber = Scrubber { units: VecDeque::new(), reading: None, turned };
            assert_eq!(pass(&mut scrubber, &store, &data), Vec::<String>::new());
        }
        let record = store.record(name(1)).expect("readable").expect("it is there");
        let chunk = record.chunks[1].to_string();
        flip(&home.path().join("store/chunks").join(&chunk[..2]).join(&chunk));
        flip(&path);
        for turned in 0..5 {
            let mut scrubber = Scrubber { units: VecDeque::new(), reading: None, turned };
            let mut found = pass(&mut scrubber, &store, &data);
            found.sort();
            let text = format!("data of {} bytes", text.len());
            assert_eq!(found, [text, "layer 1".to_owned()]);
        }
    }

    #[test]
    fn what_is_removed_while_it_is_read_is_not_damaged() {
        let home = tempfile::tempdir().expect("a folder");
        let store = SledStore::open(Arc::new(RealFiles), &home.path().join("store"));
        let store = store.expect("made");
        let bytes: Vec<u8> = (0..CHUNK_BYTES + 7).map(|i| (i % 7) as u8).collect();
        let record = store.put(name(0), &bytes).expect("room");
        let mut scrubber = Scrubber { units: VecDeque::new(), reading: None, turned: 0 };
        assert!(scrubber.step(&store, home.path()).is_none());
        let removal = |what| Removal { what, reason: RemovalReason::NoPiece };
        let chunks = record.chunks.iter().map(|hash| Removed::Chunk(*hash));
        let all = chunks.chain([Removed::Piece(name(0))]);
        store.remove(&all.map(removal).collect::<Vec<_>>()).expect("removed");
        assert!(scrubber.step(&store, home.path()).is_none());
    }
}
