//! A tokenizer's files on a disk. The only module of this package that reads files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zbelastic_whole_file as whole_file;

use crate::load_error::LoadError;

pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The bytes of a tokenizer's files, by their names in a model's folder. Only the first has to be
/// there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer_json: Vec<u8>,
    /// `tokenizer_config.json`: special tokens by name, and often the chat template.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `special_tokens_map.json`: special tokens by name, in older folders.
    pub special_tokens_map: Option<Vec<u8>>,
    /// `generation_config.json`: the ids after which generation ends.
    pub generation_config: Option<Vec<u8>>,
    /// `chat_template.jinja`: the chat template, before one in `tokenizer_config.json`.
    pub chat_template: Option<Vec<u8>>,
}

/// Why a folder or file is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no `tokenizer.json`.
    #[error(
        "no {TOKENIZER_JSON} in {folder}: transformers writes one with \
         AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )]
    Missing {
        /// Where it should be.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error that the system reports.
        cause: io::Error,
    },
    /// A file or its folder cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The error that the system reports.
        cause: io::Error,
    },
    /// A file was read and is not understood.
    #[error("{folder}: {cause}")]
    Load {
        /// The folder of the files.
        folder: PathBuf,
        /// The error, and the file that it is in.
        cause: LoadError,
    },
}

impl TokenizerFiles {
    /// The names of the files.
    pub const NAMES: [&str; 5] =
        [TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, GENERATION_CONFIG, CHAT_TEMPLATE];

    /// Reads them from a folder, or from the folder of a `tokenizer.json`.
    ///
    /// # Errors
    /// If there is no `tokenizer.json`, or a file that is there cannot be read.
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        let json = if path.is_dir() { path.join(TOKENIZER_JSON) } else { path.to_owned() };
        let folder = json.parent().unwrap_or(Path::new("")).to_owned();
        let read = |name: &str| read_if_there(&folder.join(name));
        Ok(Self {
            tokenizer_json: read_if_there(&json)?
                .ok_or_else(|| FolderError::Missing { folder: folder.clone() })?,
            tokenizer_config: read(TOKENIZER_CONFIG)?,
            special_tokens_map: read(SPECIAL_TOKENS_MAP)?,
            generation_config: read(GENERATION_CONFIG)?,
            chat_template: read(CHAT_TEMPLATE)?,
        })
    }

    /// Those that are there by their names, `tokenizer.json` last.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let others = [
            (TOKENIZER_CONFIG, &self.tokenizer_config),
            (SPECIAL_TOKENS_MAP, &self.special_tokens_map),
            (GENERATION_CONFIG, &self.generation_config),
            (CHAT_TEMPLATE, &self.chat_template),
        ];
        let others = others.into_iter().filter_map(|(name, bytes)| Some((name, bytes.as_deref()?)));
        others.chain([(TOKENIZER_JSON, &self.tokenizer_json[..])])
    }

    /// Writes those that are there into a folder, which is created if it is missing: each whole and
    /// durable, `tokenizer.json` last, so that a folder which has one has all.
    ///
    /// # Errors
    /// If the folder or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), FolderError> {
        let failed = |path: &Path, cause| FolderError::Write { path: path.to_owned(), cause };
        fs::create_dir_all(folder).map_err(|cause| failed(folder, cause))?;
        for (name, bytes) in self.named() {
            let path = folder.join(name);
            whole_file::write(&path, bytes).map_err(|cause| failed(&path, cause))?;
        }
        Ok(())
    }
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(FolderError::Read { path: path.to_owned(), cause }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{FolderError, TokenizerFiles};

    #[test]
    fn tokenizer_json_is_written_last_so_that_a_folder_with_it_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tok");
        let files = TokenizerFiles {
            tokenizer_json: b"{}".to_vec(),
            tokenizer_config: Some(b"{}".to_vec()),
            chat_template: Some(b"{{ messages }}".to_vec()),
            ..TokenizerFiles::default()
        };
        // What is in the way of the last of the others keeps the folder from being a tokenizer.
        let in_the_way = path.join("chat_template.jinja");
        fs::create_dir_all(in_the_way.join("full")).expect("writable");
        assert!(matches!(files.write(&path), Err(FolderError::Write { .. })));
        assert!(matches!(TokenizerFiles::read(&path), Err(FolderError::Missing { .. })));
        fs::remove_dir_all(in_the_way).expect("removable");
        files.write(&path).expect("writable");
        assert_eq!(TokenizerFiles::read(&path).expect("whole"), files);
    }
}
