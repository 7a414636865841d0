//! Formats, by the name of the file.

/// How documents lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// Plain text, perhaps compressed.
    Text(Compression),
    /// A JSON object a line, perhaps compressed.
    JsonLines(Compression),
    /// Apache Parquet.
    Parquet,
    /// Token ids of nanoGPT or llm.c.
    TokenFile,
}

/// How a stream of bytes is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, of one or more members.
    Gzip,
    /// Zstandard, of one or more frames.
    Zstd,
}

impl SourceFormat {
    /// The names that formats are known by, for messages.
    pub const EXTENSIONS: &str =
        ".txt, .md, .jsonl, .ndjson, .json (each also .gz or .zst), .gz, .zst, .parquet, .bin";

    /// The format of the file with this name or path, if it is known.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = name.rsplit(['/', '\\']).next().unwrap_or(&name);
        let suffixes = [(".gz", Compression::Gzip), (".zst", Compression::Zstd)];
        let compressed = suffixes.into_iter().find_map(|(suffix, compression)| {
            name.strip_suffix(suffix).map(|inner| (inner, compression))
        });
        let (inner, compression) = compressed.unwrap_or((name, Compression::None));
        match (inner.rsplit_once('.').map(|(_, extension)| extension), compression) {
            (Some("txt" | "md"), _) => Some(Self::Text(compression)),
            (Some("jsonl" | "ndjson" | "json"), _) => Some(Self::JsonLines(compression)),
            (Some("parquet"), Compression::None) => Some(Self::Parquet),
            (Some("bin"), Compression::None) => Some(Self::TokenFile),
            (Some("parquet" | "bin" | "tar" | "zip"), Compression::Gzip | Compression::Zstd) => {
                None
            }
            (_, Compression::None) => None,
            (_, Compression::Gzip | Compression::Zstd) => Some(Self::Text(compression)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Compression, SourceFormat};

    #[test]
    fn formats_are_known_by_the_end_of_a_name() {
        let check = |name, expected| assert_eq!(SourceFormat::of_name(name), expected, "{name}");
        check("a/b.txt", Some(SourceFormat::Text(Compression::None)));
        check("README.MD", Some(SourceFormat::Text(Compression::None)));
        check("a.b/c.jsonl.zst", Some(SourceFormat::JsonLines(Compression::Zstd)));
        check("c4-train.00000.json.gz", Some(SourceFormat::JsonLines(Compression::Gzip)));
        check("s3://bucket/dump.gz", Some(SourceFormat::Text(Compression::Gzip)));
        check("train.parquet", Some(SourceFormat::Parquet));
        check("train.bin", Some(SourceFormat::TokenFile));
        check("train.bin.gz", None);
        check("a.tar.gz", None);
        check("a.py", None);
        check("folder.txt/a", None);
    }
}
