//! JSON files that carry the checksum of their content.
//!
//! A file is `{"checksum": C, "content": {...}}`, pretty-printed for people. C is BLAKE3 over the
//! content in serde_json's compact form with the keys in the order of the type, so white space does
//! not matter, and anything else does.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zbelastic_whole_file as whole_file;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckedContent<T> {
    checksum: String,
    content: T,
}

/// Why a checked file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckedJsonError {
    /// The operating system's error.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Larger than any file that was written.
    #[error("has more than {max} bytes")]
    TooLarge {
        /// Most bytes that are read.
        max: u64,
    },
    /// No JSON of the expected form.
    #[error("is not of the expected form: {0}")]
    Form(serde_json::Error),
    /// The content was altered.
    #[error("has checksum {found}, expected {expected}")]
    Checksum {
        /// The checksum of the content.
        found: String,
        /// The checksum in the file.
        expected: String,
    },
}

/// The checksum of a content, as text.
pub(crate) fn checksum(content: &impl Serialize) -> blake3::Hash {
    let compact = serde_json::to_vec(content).expect("derived types with text keys serialize");
    blake3::hash(&compact)
}

/// Writes `content` durably under `path`, replacing the file that was there at once.
pub(crate) fn write<T: Serialize>(path: &Path, content: &T) -> io::Result<()> {
    whole_file::write(path, &text(content)?)
}

/// The bytes of the file.
pub(crate) fn text<T: Serialize>(content: &T) -> io::Result<Vec<u8>> {
    let file = CheckedContent { checksum: checksum(content).to_hex().to_string(), content };
    let mut text = serde_json::to_vec_pretty(&file)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads a file of at most `bytes_max` that [`write`] wrote.
pub(crate) fn read<T>(path: &Path, bytes_max: u64) -> Result<T, CheckedJsonError>
where
    T: Serialize + DeserializeOwned,
{
    let mut text = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(CheckedJsonError::TooLarge { max: bytes_max });
    }
    let file: CheckedContent<T> = serde_json::from_slice(&text).map_err(CheckedJsonError::Form)?;
    let found = checksum(&file.content).to_hex().to_string();
    if found != file.checksum {
        return Err(CheckedJsonError::Checksum { found, expected: file.checksum });
    }
    Ok(file.content)
}

/// A hash as 64 hexadecimal digits, for serde.
pub(crate) mod hex_hash {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(hash: &blake3::Hash, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hash.to_hex())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<blake3::Hash, D::Error> {
        let text = String::deserialize(from)?;
        blake3::Hash::from_hex(&text).map_err(de::Error::custom)
    }
}
