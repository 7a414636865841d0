//! Texts and weights that are uploaded: appended to a file piece by piece, hashed and synced beside
//! the event loop. Nothing of their length is held in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_transport::RequestReply;
use zbelastic_types::{Bytes, Digest};
use zbelastic_wire::document::DataName;

use super::answers::not_found;
use super::ports::{ControllerCompletion, ControllerTasks};
use crate::cluster::disk_space::DiskSpaceShortage;
use zbelastic_api::{ApiAnswer, ApiRefusal, HexDigest, ResourceKind, UploadProgress, WrongState};
use zbelastic_machine::data_fetch::DATA_BYTES_MAX;
use zbelastic_machine::data_file::keep_hashes;
use zbelastic_machine::disk_usage;
use zbelastic_policy::data_chunks::{ChunkHasher, ChunkSize};
use zbelastic_whole_file as whole_file;

/// Uploads under way at once; for another one the first that is not being written to is given up.
const UPLOADS_MAX: usize = 4;
/// Bytes that are written before they are synced: the last sync is as short as any other, and an
/// answer waits for no more than that.
const SYNC_BYTES: u64 = 64 << 20;

/// Uploads under way, by hash.
#[derive(Default)]
pub(super) struct Uploads {
    under_way: BTreeMap<HexDigest, Upload>,
}

struct Upload {
    name: DataName,
    held: u64,
    state: UploadState,
}

/// Where its file is.
enum UploadState {
    /// Here; none before the first piece.
    Waiting(Option<Box<UploadFile>>),
    /// With the thread that appends a piece.
    Writing,
}

/// A file that an upload is appended to.
pub(super) struct UploadFile {
    file: File,
    partial_path: PathBuf,
    path: PathBuf,
    hasher: ChunkHasher,
    /// Bytes that were not synced yet.
    unsynced: u64,
}

/// The result of writing a piece.
pub(super) struct UploadWriteResult {
    pub(super) hash: HexDigest,
    /// Bytes that are there with it.
    pub(super) after: u64,
    pub(super) outcome: Result<AppendOutcome, UploadFault>,
    pub(super) reply: RequestReply,
}

/// The state of an upload after a piece.
pub(super) enum AppendOutcome {
    /// The piece was appended, and more are expected.
    Part(Box<UploadFile>),
    /// All of it is there, durably, under its name.
    Whole,
}

/// Why an upload ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadFault {
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Room(#[from] DiskSpaceShortage),
    #[error("it hashes to {found:?}")]
    Other { found: Digest },
}

impl UploadFile {
    fn begin(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Not where a file lies that is fetched from another node meanwhile.
        let partial_path = path.with_extension("upload.part");
        let file = whole_file::create(&partial_path)?;
        let hasher = ChunkHasher::new(ChunkSize::BULK);
        Ok(Self { file, partial_path, path: path.to_owned(), hasher, unsynced: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)?;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn complete(self, expected: Digest) -> Result<(), UploadFault> {
        let hashes = self.hasher.finish();
        let found = hashes.name().hash;
        if found != expected {
            return Err(UploadFault::Other { found });
        }
        whole_file::publish(&self.file, &self.partial_path, &self.path)?;
        keep_hashes(&self.path, &hashes);
        Ok(())
    }
}

/// Appends a piece, if it and the `left` bytes behind it fit on the disk: a full disk would end
/// this controller.
fn append(
    file: Option<Box<UploadFile>>,
    path: &Path,
    (bytes, left, expected): (&[u8], u64, Digest),
) -> Result<AppendOutcome, UploadFault> {
    let mut file = match file {
        Some(file) => file,
        None => Box::new(UploadFile::begin(path)?),
    };
    let partial_path = file.partial_path.clone();
    let space = disk_usage(path.parent().unwrap_or(Path::new(".")));
    let space = space.map_or(Ok(()), |space| space.check(Bytes(left + bytes.len() as u64)));
    let written = space.map_err(UploadFault::from).and_then(|()| Ok(file.append(bytes)?));
    let written = written.and_then(|()| {
        if left == 0 {
            file.complete(expected).map(|()| AppendOutcome::Whole)
        } else {
            Ok(AppendOutcome::Part(file))
        }
    });
    if written.is_err() {
        // If it cannot be removed either, it is removed with files that no run refers to.
        let _ = fs::remove_file(partial_path);
    }
    written
}

impl Uploads {
    /// A text is not here, and is to be uploaded. Yields how much of it is.
    pub(super) fn begin(&mut self, name: DataName) -> UploadProgress {
        let hash = HexDigest(name.hash);
        let uploads = &mut self.under_way;
        if !uploads.contains_key(&hash) && uploads.len() >= UPLOADS_MAX {
            let idle = |upload: &Upload| matches!(upload.state, UploadState::Waiting(_));
            let given_up = uploads.iter().find(|(_, upload)| idle(upload)).map(|(hash, _)| *hash);
            // If none is idle, this one is refused when its first piece arrives.
            let Some(given_up) = given_up else { return UploadProgress { hash, held: 0 } };
            uploads.remove(&given_up);
        }
        let fresh = || Upload { name, held: 0, state: UploadState::Waiting(None) };
        let upload = uploads.entry(hash).or_insert_with(fresh);
        UploadProgress { hash, held: upload.held }
    }

    /// A piece of an upload, in order; the last one completes it.
    ///
    /// # Errors
    /// If it is not the next piece of an upload that is under way, or too long.
    pub(super) fn put(
        &mut self,
        (hash, offset): (HexDigest, u64),
        bytes: Vec<u8>,
    ) -> Result<UploadWrite, ApiRefusal> {
        let Some(upload) = self.under_way.get_mut(&hash) else {
            let name = hash.to_string();
            return Err(ApiRefusal::NotFound { thing: ResourceKind::Text, name });
        };
        let expected = upload.held;
        let found = offset;
        let max = upload.name.length.min(DATA_BYTES_MAX);
        let after = expected.saturating_add(bytes.len() as u64);
        if expected == found && after > max {
            let what = "the text".to_owned();
            return Err(ApiRefusal::TooLarge { what, found: after, max });
        }
        let state = std::mem::replace(&mut upload.state, UploadState::Writing);
        let file = match state {
            UploadState::Waiting(file) if expected == found => file,
            state @ (UploadState::Waiting(_) | UploadState::Writing) => {
                upload.state = state;
                return Err(ApiRefusal::WrongState(WrongState::OutOfOrder { expected, found }));
            }
        };
        Ok(UploadWrite { name: upload.name, file, bytes, after })
    }

    /// A piece was written, or not. Yields the text that is complete with it, if one is, and the
    /// answer.
    pub(super) fn note_written(
        &mut self,
        (hash, after): (HexDigest, u64),
        outcome: Result<AppendOutcome, UploadFault>,
    ) -> (Option<DataName>, ApiAnswer) {
        // It may have been given up for another one meanwhile.
        let upload = self.under_way.remove(&hash);
        match (outcome, upload) {
            (Ok(AppendOutcome::Part(file)), Some(upload)) => {
                let state = UploadState::Waiting(Some(file));
                let upload = Upload { held: after, state, ..upload };
                self.under_way.insert(hash, upload);
                (None, ApiAnswer::DataWanted(UploadProgress { hash, held: after }))
            }
            (Ok(AppendOutcome::Whole), Some(Upload { name, .. })) => {
                let held = name.length;
                (Some(name), ApiAnswer::DataWanted(UploadProgress { hash, held }))
            }
            (Ok(AppendOutcome::Part(_) | AppendOutcome::Whole), None) => {
                (None, not_found(ResourceKind::Text, hash.to_string()))
            }
            (Err(UploadFault::Other { found }), _) => {
                let what = "the text that was uploaded".to_owned();
                let found = HexDigest(found);
                let refusal = ApiRefusal::Damaged { what, expected: hash, found };
                (None, ApiAnswer::Refused(refusal))
            }
            (Err(fault @ (UploadFault::Disk(_) | UploadFault::Room(_))), _) => {
                let what = format!("the text cannot be kept: {fault}");
                (None, ApiAnswer::Refused(ApiRefusal::OutOfResource { what }))
            }
        }
    }
}

/// A piece that is to be appended to the file of its upload.
pub(super) struct UploadWrite {
    name: DataName,
    file: Option<Box<UploadFile>>,
    bytes: Vec<u8>,
    /// Bytes that are there with it.
    after: u64,
}

impl UploadWrite {
    /// Appends the piece beside the event loop.
    pub(super) fn begin(self, tasks: &ControllerTasks, reply: RequestReply) {
        let Self { name, file, bytes, after } = self;
        let left = name.length - after;
        let path = tasks.checkpoint_thread().data_path(name.hash);
        tasks.spawn(async move {
            let write = move || append(file, &path, (&bytes, left, name.hash));
            let written = tokio::task::spawn_blocking(write).await;
            let outcome = written.unwrap_or_else(|error| Err(io::Error::other(error).into()));
            let hash = HexDigest(name.hash);
            ControllerCompletion::Uploaded(UploadWriteResult { hash, after, outcome, reply })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_gets_its_name_when_it_is_whole_and_what_is_another_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data/one.data");
        let digest = DataName::of(b"all of it").hash;
        let part = append(None, &path, (b"all ", 5, digest)).expect("room");
        let AppendOutcome::Part(file) = part else { panic!("more is expected") };
        assert!(!path.exists());
        let whole = append(Some(file), &path, (b"of it", 0, digest)).expect("room");
        assert!(matches!(whole, AppendOutcome::Whole));
        assert_eq!(fs::read(&path).expect("readable"), b"all of it");

        let other = folder.path().join("data/two.data");
        let fault = append(None, &other, (b"something else", 0, digest)).err();
        assert!(matches!(fault, Some(UploadFault::Other { .. })), "{fault:?}");
        let fault = append(None, &other, (b"a part", 1 << 60, digest)).err();
        assert!(matches!(fault, Some(UploadFault::Room(_))), "{fault:?}");
        let left = fs::read_dir(folder.path().join("data")).expect("readable").count();
        assert_eq!(left, 1, "only what is whole");
    }

    #[test]
    fn pieces_come_in_order_one_at_a_time_and_a_fourth_upload_takes_the_place_of_an_idle_one() {
        let name = |byte: u8| DataName { hash: Digest([byte; 32]), length: 9 };
        let hash = |byte| HexDigest(name(byte).hash);
        let mut uploads = Uploads::default();
        assert!(uploads.put((hash(0), 0), vec![0; 4]).is_err(), "nobody announced it");
        assert_eq!(uploads.begin(name(0)), UploadProgress { hash: hash(0), held: 0 });
        assert!(uploads.put((hash(0), 4), vec![0; 4]).is_err(), "it is not the first piece");
        assert!(uploads.put((hash(0), 0), vec![0; 10]).is_err(), "it is longer than the text");
        let write = uploads.put((hash(0), 0), vec![0; 4]).expect("it is the first piece");
        assert_eq!(write.after, 4);
        assert!(uploads.put((hash(0), 0), vec![0; 4]).is_err(), "it is being written");
        for byte in 1..=UPLOADS_MAX as u8 {
            uploads.begin(name(byte));
        }
        assert_eq!(uploads.under_way.len(), UPLOADS_MAX);
        assert!(uploads.under_way.contains_key(&hash(0)), "it is being written");
        let (whole, answer) = uploads.note_written((hash(0), 9), Ok(AppendOutcome::Whole));
        assert_eq!(whole, Some(name(0)));
        let progress = UploadProgress { hash: hash(0), held: 9 };
        assert_eq!(answer, ApiAnswer::DataWanted(progress));
        let (whole, _) = uploads.note_written((hash(1), 9), Ok(AppendOutcome::Whole));
        assert_eq!(whole, None, "it was given up meanwhile");
    }
}
