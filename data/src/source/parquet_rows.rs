//! Rows of a Parquet file.

use std::io::{BufReader, Read};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};

use super::json_line::{TOOLS, choose_field, read_line, text_document};
use super::parquet_json::record;
use super::ranged::{CountedFile, RangedReader};
use super::{BadDocument, LINE_BYTES_MAX, SourceError, SourceItem};
use crate::document::Document;

/// Rows that are decoded at once. Their texts are slices of pages that are in memory anyway.
const ROWS: usize = 64;

/// A file, as the crate reads it.
struct ParquetFile(Arc<CountedFile>);

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<RangedReader>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(RangedReader::new(Arc::clone(&self.0), start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.0.len());
        if end.is_none() {
            let expected = format!("{length} bytes at {start}, the file has {}", self.0.len());
            return Err(ParquetError::EOF(expected));
        }
        let mut bytes = vec![0; length];
        self.get_read(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// Reads a column of a file, and of chats the column `tools` too.
pub(super) struct ParquetReader {
    file: String,
    column: String,
    rows: RowIter<'static>,
    rows_read: u64,
    is_done: bool,
}

impl ParquetReader {
    pub(super) fn new(
        file: String,
        opened: Arc<CountedFile>,
        field: Option<&str>,
    ) -> Result<Self, SourceError> {
        let parquet = |source| SourceError::Parquet { file: file.clone(), source };
        let reader = SerializedFileReader::new(ParquetFile(opened)).map_err(parquet)?;
        let root = reader.metadata().file_metadata().schema().clone();
        let columns = root.get_fields();
        let names: Vec<_> = columns.iter().map(|column| column.name().to_owned()).collect();
        let column = choose_field(field, &names).map_err(|problem| match problem {
            BadDocument::NoField { expected, found } => {
                SourceError::NoColumn { file: file.clone(), expected, found }
            }
            problem @ (BadDocument::Json { .. }
            | BadDocument::FieldType { .. }
            | BadDocument::TooLong { .. }) => {
                SourceError::Bad { file: file.clone(), line: 0, problem }
            }
        })?;
        let projection = Type::group_type_builder(root.name());
        let projection = projection.with_fields(columns_to_read(columns, &column));
        let projection = projection.build().map_err(parquet)?;
        let rows = RowIter::from_file_into(Box::new(reader)).project(Some(projection));
        let rows = rows.map_err(parquet)?.with_batch_size(ROWS);
        Ok(Self { file, column, rows, rows_read: 0, is_done: false })
    }

    fn document(&self, row: &Row) -> Result<Document, BadDocument> {
        let other = |found| Err(BadDocument::FieldType { field: self.column.clone(), found });
        let mut values = row.get_column_iter();
        match values.find(|(name, _)| **name == self.column).map(|(_, value)| value) {
            Some(Field::Str(text)) => text_document(text.clone()),
            Some(Field::Bytes(bytes)) => match str::from_utf8(bytes.data()) {
                Ok(text) => text_document(text.to_owned()),
                Err(_) => other("bytes that are not UTF-8"),
            },
            Some(_) => {
                let record = record(row);
                if record.len() > LINE_BYTES_MAX {
                    return Err(BadDocument::TooLong { max: LINE_BYTES_MAX });
                }
                read_line(record.as_bytes(), Some(&self.column))
            }
            None => other("nothing"),
        }
    }
}

/// The column with this name, and behind or before it the tools if it is no text.
fn columns_to_read(columns: &[TypePtr], chosen: &str) -> Vec<TypePtr> {
    let is_text = |column: &&TypePtr| column.name() == chosen && column.is_primitive();
    let has_tools = !columns.iter().any(|column| is_text(&column));
    let is_read = |name: &str| name == chosen || has_tools && name == TOOLS;
    let mut read: Vec<_> = columns.iter().filter(|column| is_read(column.name())).collect();
    read.dedup_by_key(|column| column.name());
    read.into_iter().cloned().collect()
}

impl Iterator for ParquetReader {
    type Item = Result<SourceItem, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let row = self.rows.next()?;
        self.rows_read += 1;
        self.is_done = row.is_err();
        let item =
            |row: Row| SourceItem::Row { number: self.rows_read, document: self.document(&row) };
        let file = &self.file;
        Some(row.map(item).map_err(|source| SourceError::Parquet { file: file.clone(), source }))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::ParquetReader;
    use crate::document::{Document, TextPart};
    use crate::source::ranged::{CountedFile, RangedFile};
    use crate::source::{BadDocument, SourceError, SourceItem};

    const SCHEMA: &str = "message schema {
        optional binary body (UTF8);
        optional binary tools (UTF8);
        required group messages (LIST) { repeated group list { required group element {
            required binary role (UTF8);
            required binary content (UTF8);
        } } }
    }";

    struct MemoryFile(Vec<u8>);

    impl RangedFile for MemoryFile {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    /// Two rows: a body and two messages, and neither body nor messages.
    fn file(compression: Compression) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).expect("a schema"));
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut writer =
            SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).expect("a writer");
        let mut rows = writer.next_row_group().expect("a row group");
        /// Values of a column, their definition levels, and repetition levels if it is a list.
        type Column<'a> = (&'a [&'a str], &'a [i16], Option<&'a [i16]>);
        let columns: [Column<'_>; 4] = [
            (&["a"], &[1, 0], None),
            (&["[{}]"], &[1, 0], None),
            (&["user", "assistant"], &[1, 1, 0], Some(&[0, 1, 0])),
            (&["b", ""], &[1, 1, 0], Some(&[0, 1, 0])),
        ];
        for (values, definitions, repetitions) in columns {
            let values: Vec<_> = values.iter().map(|value| ByteArray::from(*value)).collect();
            let mut column = rows.next_column().expect("writable").expect("a column");
            let typed = column.typed::<ByteArrayType>();
            typed.write_batch(&values, Some(definitions), repetitions).expect("writable");
            column.close().expect("writable");
        }
        rows.close().expect("writable");
        writer.into_inner().expect("writable")
    }

    fn read(bytes: &[u8], field: Option<&str>) -> Result<Vec<SourceItem>, SourceError> {
        let len = bytes.len() as u64;
        let opened = CountedFile::new(Box::new(MemoryFile(bytes.to_vec())), len);
        ParquetReader::new("a.parquet".to_owned(), Arc::new(opened), field)?.collect()
    }

    fn documents(bytes: &[u8], field: Option<&str>) -> Vec<Result<Document, BadDocument>> {
        let items = read(bytes, field).expect("a whole file").into_iter();
        let document = |(index, item): (usize, SourceItem)| {
            let SourceItem::Row { number, document } = item else { panic!("rows are read") };
            assert_eq!(number, index as u64 + 1);
            document
        };
        items.enumerate().map(document).collect()
    }

    #[test]
    fn a_column_is_read_in_every_compression() {
        let all = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::LZ4_RAW,
            Compression::ZSTD(Default::default()),
        ];
        for compression in all {
            let text = Document::Text(TextPart::whole("a".to_owned()));
            let null = BadDocument::FieldType { field: "body".to_owned(), found: "null" };
            assert_eq!(documents(&file(compression), Some("body")), [Ok(text), Err(null)]);
        }
    }

    #[test]
    fn a_list_of_messages_is_a_chat_with_its_tools_and_the_order_of_its_keys() {
        let found = documents(&file(Compression::SNAPPY), None).into_iter().map(|document| {
            let Ok(Document::Chat(chat)) = document else { panic!("a chat") };
            assert_eq!(chat.messages_field, "messages");
            (chat.message_count, chat.record)
        });
        let messages = r#"[{"role":"user","content":"b"},{"role":"assistant","content":""}]"#;
        let expected = [
            (2, format!(r#"{{"tools":"[{{}}]","messages":{messages}}}"#)),
            (0, r#"{"tools":null,"messages":[]}"#.to_owned()),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_no_whole_file_is_an_error() {
        let whole = file(Compression::SNAPPY);
        for len in 0..whole.len() {
            let error = read(&whole[..len], None).expect_err("cut");
            assert!(matches!(error, SourceError::Parquet { .. }), "{error}");
        }
        let error = read(&whole, Some("text")).expect_err("no such column").to_string();
        assert_eq!(error, "a.parquet: has no column text, only body, tools, messages");
    }
}
