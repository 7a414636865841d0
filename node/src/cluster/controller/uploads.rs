//! Texts and weights that are uploaded: appended to a file piece by piece, hashed and synced beside
//! the event loop. Nothing of their length is held in memory.

use std::collections::BTreeMap;
use std::io;

use zbelastic_transport::RequestReply;
use zbelastic_wire::document::DataName;

use super::answers::not_found;
use super::ports::{ControllerCompletion, ControllerTasks};
use zbelastic_api::{ApiAnswer, ApiRefusal, HexDigest, ResourceKind, UploadProgress, WrongState};
use zbelastic_machine::data_fetch::DATA_BYTES_MAX;
use zbelastic_machine::upload_file::{AppendOutcome, UploadFault, UploadFile, append_piece};

/// Uploads under way at once; for another one the first that is not being written to is given up.
const UPLOADS_MAX: usize = 4;

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

/// The result of writing a piece.
pub(super) struct UploadWriteResult {
    pub(super) hash: HexDigest,
    /// Bytes that are there with it.
    pub(super) after: u64,
    pub(super) outcome: Result<AppendOutcome, UploadFault>,
    pub(super) reply: RequestReply,
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
            let write = move || append_piece(file, &path, (&bytes, left, name.hash));
            let written = tokio::task::spawn_blocking(write).await;
            let outcome = written.unwrap_or_else(|error| Err(io::Error::other(error).into()));
            let hash = HexDigest(name.hash);
            ControllerCompletion::Uploaded(UploadWriteResult { hash, after, outcome, reply })
        });
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::Digest;

    use super::*;

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
