//! Memory of a process that makes a store. Alone in its file, since the system counts a process's.

#[path = "common/peak.rs"]
mod peak;

use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use peak::peak_bytes;
use zbelastic_data::encode::BytesEncoder;
use zbelastic_data::prepare::{PREPARE_BYTES_MAX, PrepareRequest, SHARD_TOKENS, prepare};
use zbelastic_data::source::{
    RangedFile, SourceFile, SourceListError, SourceOptions, SourceStorage,
};
use zbelastic_types::Bytes;

/// A line of 128 bytes, of which 115 are text.
const LINE: [u8; 128] = {
    let mut line = [b'x'; 128];
    let mut at = 0;
    while at < 10 {
        line[at] = b"{\"text\": \""[at];
        at += 1;
    }
    line[125] = b'"';
    line[126] = b'}';
    line[127] = b'\n';
    line
};
const TEXT_BYTES: u64 = 115;
/// Lines of the corpus: 128 MiB. All of its ids with their loss mask would be 560 MiB.
const LINES: u64 = 1 << 20;

/// A place with one file, which is made as it is read.
struct GeneratedStorage;

struct GeneratedFile;

impl SourceStorage for GeneratedStorage {
    fn list(&self, entry: &str) -> Result<Vec<SourceFile>, SourceListError> {
        Ok(vec![SourceFile {
            path: entry.to_owned(),
            canonical: entry.to_owned(),
            bytes: Bytes(LINES * LINE.len() as u64),
            version: String::new(),
        }])
    }

    fn open(&self, _: &SourceFile) -> io::Result<Box<dyn RangedFile>> {
        Ok(Box::new(GeneratedFile))
    }
}

impl RangedFile for GeneratedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = LINES * LINE.len() as u64 - offset;
        let count = into.len().min(left as usize);
        for (byte, at) in into[..count].iter_mut().zip(offset..) {
            *byte = LINE[at as usize % LINE.len()];
        }
        Ok(count)
    }
}

#[test]
fn memory_is_bounded_whatever_the_corpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let request = PrepareRequest {
        entries: vec!["generated.jsonl".to_owned()],
        options: SourceOptions::default(),
        threads: NonZeroUsize::new(8).expect("eight"),
        shard_tokens: SHARD_TOKENS,
        folder: folder.path().join("store"),
    };
    let mut on_progress = |_: &_| ControlFlow::Continue(());
    let made = prepare(&request, &GeneratedStorage, &BytesEncoder, &mut on_progress);
    assert_eq!(made.expect("a store").tokens(), LINES * TEXT_BYTES);
    let peak = peak_bytes();
    println!("peak memory: {}", Bytes(peak));
    assert!(peak < PREPARE_BYTES_MAX.0, "{}", Bytes(peak));
}
