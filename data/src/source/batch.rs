//! The items of all files, in batches.

use std::io::{self, BufRead, BufReader};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use super::files::{SourceFile, SourceListing};
use super::format::{Compression, SourceFormat};
use super::lines::LineReader;
use super::parquet_rows::ParquetReader;
use super::ranged::{CountedFile, RangedReader, SourceStorage};
use super::text::TextReader;
use super::token_file::TokenFileReader;
use super::{SourceCursor, SourceError, SourceItem, SourceOptions};

/// A batch ends with the item that reaches so many bytes. Shards end with a batch, so this is part
/// of the rules that determine a store's bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Items of a batch at most, as many of them may be empty.
const BATCH_ITEMS_MAX: usize = 4096;
/// Bytes that are read of a file at once.
const READ_BYTES: usize = 1 << 20;
/// Largest window that zstd may require, as a power of two: 128 MiB, the window of `zstd --long`.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Consecutive items of the sources.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The items, each with the number of its file.
    pub(crate) items: Vec<(u64, SourceItem)>,
    /// Where the next batch begins.
    pub(crate) after: SourceCursor,
    /// Bytes of the items.
    pub(crate) bytes: usize,
    /// Bytes read so far of all files, compressed as they are.
    pub(crate) bytes_read: u64,
}

type Items = Box<dyn Iterator<Item = Result<SourceItem, SourceError>>>;

/// Reads batches from a position on.
pub(crate) struct BatchReader<'a> {
    listing: &'a SourceListing,
    storage: &'a dyn SourceStorage,
    options: &'a SourceOptions,
    vocabulary: u32,
    end_of_text: Option<u32>,
    cursor: SourceCursor,
    /// Length of the files before the cursor's.
    bytes_before: u64,
    open: Option<(Arc<CountedFile>, Items)>,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(
        listing: &'a SourceListing,
        storage: &'a dyn SourceStorage,
        options: &'a SourceOptions,
        vocabulary: u32,
        end_of_text: Option<u32>,
        cursor: SourceCursor,
    ) -> Self {
        let before = listing.files.iter().take(cursor.file as usize);
        let bytes_before = before.map(|(file, _)| file.bytes.0).sum();
        let open = None;
        Self { listing, storage, options, vocabulary, end_of_text, cursor, bytes_before, open }
    }

    fn open(
        &self,
        file: &SourceFile,
        format: SourceFormat,
    ) -> Result<(Arc<CountedFile>, Items), SourceError> {
        let path = file.path.clone();
        let io = |source| SourceError::Io { file: file.path.clone(), source };
        let opened = self.storage.open(file).map_err(io)?;
        let opened = Arc::new(CountedFile::new(opened, file.bytes.0));
        let reader = RangedReader::new(Arc::clone(&opened), 0);
        let field = self.options.field.as_deref();
        let items: Items = match format {
            SourceFormat::Text(compression) => {
                let reader = decompress(reader, compression).map_err(io)?;
                let separator = self.options.separator.as_deref();
                Box::new(TextReader::new(path, reader, separator)?)
            }
            SourceFormat::JsonLines(compression) => {
                Box::new(LineReader::new(path, decompress(reader, compression).map_err(io)?))
            }
            SourceFormat::Parquet => {
                Box::new(ParquetReader::new(path, Arc::clone(&opened), field)?)
            }
            SourceFormat::TokenFile => {
                let reader = BufReader::with_capacity(READ_BYTES, reader);
                let len = file.bytes.0;
                let end = self.end_of_text;
                Box::new(TokenFileReader::new(path, reader, len, self.vocabulary, end)?)
            }
        };
        Ok((opened, items))
    }

    /// Opens the cursor's file, and reads again the part that was read of it before.
    fn open_at_cursor(&mut self) -> Result<(), SourceError> {
        let Some((file, format)) = self.listing.files.get(self.cursor.file as usize) else {
            return Ok(());
        };
        let (opened, mut items) = self.open(file, *format)?;
        for _ in 0..self.cursor.items {
            items.next().transpose()?;
        }
        self.open = Some((opened, items));
        Ok(())
    }

    fn next_item(&mut self) -> Result<Option<(u64, SourceItem)>, SourceError> {
        while (self.cursor.file as usize) < self.listing.files.len() {
            if self.open.is_none() {
                self.open_at_cursor()?;
            }
            let next = self.open.as_mut().and_then(|(_, items)| items.next());
            if let Some(item) = next {
                self.cursor.items += 1;
                return Ok(Some((self.cursor.file, item?)));
            }
            self.open = None;
            self.bytes_before += self.listing.files[self.cursor.file as usize].0.bytes.0;
            self.cursor = SourceCursor { file: self.cursor.file + 1, items: 0 };
        }
        Ok(None)
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        let mut items = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && items.len() < BATCH_ITEMS_MAX {
            let Some((file, item)) = self.next_item()? else { break };
            bytes += item.bytes();
            items.push((file, item));
        }
        if items.is_empty() {
            return Ok(None);
        }
        let open = self.open.as_ref().map_or(0, |(file, _)| file.bytes_read());
        let bytes_read = self.bytes_before + open;
        Ok(Some(Batch { items, after: self.cursor, bytes, bytes_read }))
    }
}

/// After an error there are no more batches that make sense; the caller stops.
impl Iterator for BatchReader<'_> {
    type Item = Result<Batch, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

fn decompress(reader: RangedReader, compression: Compression) -> io::Result<Box<dyn BufRead>> {
    let reader = BufReader::with_capacity(READ_BYTES, reader);
    Ok(match compression {
        Compression::None => Box::new(reader),
        Compression::Gzip => {
            Box::new(BufReader::with_capacity(READ_BYTES, MultiGzDecoder::new(reader)))
        }
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(reader)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(BufReader::with_capacity(READ_BYTES, decoder))
        }
    })
}
