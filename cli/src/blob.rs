//! Bytes that a cluster requests of a command by their hash.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiRequest, HexDigest, PIECE_BYTES_MAX, UploadProgress};
use zbelastic_types::Bytes;
use zbelastic_wire::document::DataName;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

/// Bytes with their hash and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// What it is, in a word.
    pub kind: &'static str,
    /// The hash and length of its bytes.
    pub name: DataName,
    body: BlobBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BlobBody {
    Memory(Vec<u8>),
    /// A file that is read as it is sent.
    File(PathBuf),
}

impl Blob {
    /// Bytes in memory.
    pub fn of_bytes(kind: &'static str, bytes: Vec<u8>) -> Self {
        Self { kind, name: DataName::of(&bytes), body: BlobBody::Memory(bytes) }
    }

    /// A file with bytes of this name.
    pub fn of_file(kind: &'static str, name: DataName, path: PathBuf) -> Self {
        Self { kind, name, body: BlobBody::File(path) }
    }

    /// Uploads what of it is not there yet.
    ///
    /// # Errors
    /// If its file cannot be read, the cluster refuses, or says that it has something else.
    pub fn upload(
        &self,
        held: UploadProgress,
        client: &mut ApiClient<'_>,
    ) -> Result<(), CommandFailure> {
        let hash = HexDigest(self.name.hash);
        let length = self.name.length;
        let mut begin = check_held(held, hash, 0, length)?;
        while begin < length {
            let piece = ApiRequest::PutData { hash, offset: begin, bytes: self.piece(begin)? };
            let held = client.put_data(piece)?;
            // Each piece must get further, so this ends.
            begin = check_held(held, hash, begin + 1, length)?;
        }
        Ok(())
    }

    /// The piece from `offset` on, as long as a request takes.
    fn piece(&self, offset: u64) -> Result<Vec<u8>, CommandFailure> {
        let left = self.name.length.saturating_sub(offset);
        let length = left.min(PIECE_BYTES_MAX as u64) as usize;
        match &self.body {
            BlobBody::Memory(bytes) => {
                let start = bytes.len() - left as usize;
                Ok(bytes[start..start + length].to_vec())
            }
            BlobBody::File(path) => {
                let mut piece = vec![0; length];
                let read = File::open(path).and_then(|file| file.read_exact_at(&mut piece, offset));
                read.map(|()| piece).map_err(|error: io::Error| {
                    let detail = FailureDetail::new(format!("cannot be read: {error}"));
                    let detail = detail.at(path.display().to_string());
                    CommandFailure::usage("the token store", vec![detail])
                })
            }
        }
    }
}

/// Where the next piece begins, if that makes sense.
fn check_held(
    held: UploadProgress,
    hash: HexDigest,
    min: u64,
    max: u64,
) -> Result<u64, CommandFailure> {
    let begin = Some(held.held).filter(|begin| (min..=max).contains(begin));
    begin.filter(|_| held.hash == hash).ok_or_else(|| {
        let found = Bytes(held.held);
        let length = Bytes(max);
        let what = format!("the cluster says it has {found} of {length}: out of order");
        CommandFailure::new(FailureCode::Internal, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_file_are_those_of_its_bytes() {
        let bytes: Vec<u8> = (0..2 * PIECE_BYTES_MAX + 9).map(|at| (at % 251) as u8).collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("writable");
        let memory = Blob::of_bytes("text", bytes.clone());
        let on_disk = Blob::of_file("shard", memory.name, file.path().to_owned());
        for offset in [0, 7, PIECE_BYTES_MAX, 2 * PIECE_BYTES_MAX, bytes.len()] {
            let expected = &bytes[offset..bytes.len().min(offset + PIECE_BYTES_MAX)];
            for blob in [&memory, &on_disk] {
                assert!(blob.piece(offset as u64).expect("readable") == expected, "{offset}");
            }
        }
    }
}
