//! Writes a shard.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use zbelastic_whole_file as whole_file;

use super::layout::id_bytes;
use super::manifest::ShardRecord;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// A shard that is being written, under the name of a part file. Its ids go to the file as they
/// come; the ends of documents and the loss mask are kept in memory until it is finished.
pub(crate) struct ShardWriter {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    id_bytes: u64,
    tokens: u64,
    ends: Vec<u32>,
    /// A bit for each id, the first in the lowest.
    loss_mask: Vec<u8>,
    has_loss_mask: bool,
}

impl ShardWriter {
    pub(crate) fn create(path: PathBuf, vocabulary: u32) -> io::Result<Self> {
        let file = BufWriter::with_capacity(
            WRITE_BYTES,
            whole_file::create(&whole_file::part_path(&path))?,
        );
        Ok(Self {
            path,
            file,
            hasher: blake3::Hasher::new(),
            id_bytes: id_bytes(vocabulary),
            tokens: 0,
            ends: Vec::new(),
            loss_mask: Vec::new(),
            has_loss_mask: false,
        })
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn documents(&self) -> usize {
        self.ends.len()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    /// Appends ids; `loss_mask` has one element for each.
    pub(crate) fn append(&mut self, ids: &[u32], loss_mask: &[bool]) -> io::Result<()> {
        assert_eq!(ids.len(), loss_mask.len(), "each id counts in the loss or does not");
        let bytes: Vec<u8> = match self.id_bytes {
            2 => ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect(),
            _ => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        };
        self.write(&bytes)?;
        for is_in_loss in loss_mask {
            if self.tokens.is_multiple_of(8) {
                self.loss_mask.push(0);
            }
            let last = self.loss_mask.last_mut().expect("a byte was pushed for the first bit");
            *last |= u8::from(*is_in_loss) << (self.tokens % 8);
            self.has_loss_mask |= !is_in_loss;
            self.tokens += 1;
        }
        Ok(())
    }

    /// Ends the document that the last id was appended to. Whether one ended there already is the
    /// caller's to know.
    pub(crate) fn end_document(&mut self) {
        self.ends.push(u32::try_from(self.tokens).expect("shards have fewer than 2^32 ids"));
    }

    /// Writes the parts that were kept, and makes the shard durable under its name.
    pub(crate) fn finish(mut self) -> io::Result<ShardRecord> {
        let ends = std::mem::take(&mut self.ends);
        for some in ends.chunks(WRITE_BYTES) {
            self.write(&some.iter().flat_map(|end| end.to_le_bytes()).collect::<Vec<_>>())?;
        }
        if self.has_loss_mask {
            let loss_mask = std::mem::take(&mut self.loss_mask);
            self.write(&loss_mask)?;
        }
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        whole_file::publish(&file, &whole_file::part_path(&self.path), &self.path)?;
        Ok(ShardRecord {
            tokens: self.tokens,
            documents: ends.len() as u64,
            has_loss_mask: self.has_loss_mask,
            hash: self.hasher.finalize(),
        })
    }
}
