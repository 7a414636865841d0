//! Memory of a process that makes a store of a parquet file. Alone in its file, since the system counts a process's.

#[path = "common/peak.rs"]
mod peak;

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use peak::peak_bytes;
use zbelastic_data::encode::BytesEncoder;
use zbelastic_data::prepare::{PREPARE_BYTES_MAX, PrepareRequest, SHARD_TOKENS, prepare};
use zbelastic_data::source::{LocalStorage, SourceOptions};
use zbelastic_types::Bytes;

/// Groups of rows: 8 MiB of text each.
const GROUPS: usize = 16;
const ROWS: usize = 8192;
/// Bytes of a row's text. All ids of the file with their loss mask would be 640 MiB.
const TEXT_BYTES: usize = 1024;

fn write_corpus(path: &Path) {
    let schema = "message corpus { REQUIRED BYTE_ARRAY text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = File::create(path).expect("room");
    let mut file = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("room");
    for group in 0..GROUPS {
        let text = |row| format!("{:0>TEXT_BYTES$}", group * ROWS + row);
        let texts: Vec<ByteArray> = (0..ROWS).map(|row| text(row).as_str().into()).collect();
        let mut rows = file.next_row_group().expect("room");
        let mut column = rows.next_column().expect("a schema").expect("one column");
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).expect("room");
        column.close().expect("room");
        rows.close().expect("room");
    }
    file.close().expect("room");
}

#[test]
fn memory_is_bounded_whatever_the_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let corpus = folder.path().join("corpus.parquet");
    write_corpus(&corpus);
    let request = PrepareRequest {
        entries: vec![corpus.display().to_string()],
        options: SourceOptions::default(),
        threads: NonZeroUsize::new(8).expect("eight"),
        shard_tokens: SHARD_TOKENS,
        folder: folder.path().join("store"),
    };
    let mut on_progress = |_: &_| ControlFlow::Continue(());
    let made = prepare(&request, &LocalStorage, &BytesEncoder, &mut on_progress);
    assert_eq!(made.expect("a store").tokens(), (GROUPS * ROWS * TEXT_BYTES) as u64);
    let peak = peak_bytes();
    println!("peak memory: {}", Bytes(peak));
    assert!(peak < PREPARE_BYTES_MAX.0, "{}", Bytes(peak));
}
