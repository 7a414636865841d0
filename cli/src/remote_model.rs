//! Models in object stores and on web servers: their files are copied into a folder of this machine, and the
//! configuration names that in place of the address.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use zbelastic_config::{ConfigFlag, ConfigSettings, ConfigSources, ConfigValue, Key};
use zbelastic_data::source::{CopyError, SourceFile, SourceListError, SourceStorage, copy_file};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_remote::{RemoteError, is_address};
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_trainer::hf::{MODEL_CONFIG, ShardIndex, WEIGHTS_FILE, WEIGHTS_INDEX};
use zbelastic_types::Bytes;
use zbelastic_wire::document::DataName;
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::progress::CommandProgress;
use crate::remote_sources::{self, source_storage};
use crate::weights::WEIGHTS_BYTES_MAX;

/// The folder of such models, in that of all runs.
const MODELS: &str = "models";
/// Digits of the address's hash behind a model's name.
const NAME_DIGITS: usize = 8;
/// What a configuration says that this module sets.
const FLAG: &str = "model.from_hf";

/// The sources of a configuration for training. Where `model.from_hf` is an address, the files of the model are copied
/// into a folder below `parent`, which stands in its place. What was copied before is not copied again unless it has
/// changed, and a copy that was interrupted goes on.
///
/// # Errors
/// If it cannot be listened for signals, or the model cannot be copied. What is wrong with the configuration itself
/// is left to the caller to find.
pub fn with_local_model(
    mut sources: ConfigSources,
    parent: &Path,
) -> Result<ConfigSources, CommandFailure> {
    let Ok((settings, _)) = ConfigSettings::gather(&sources) else { return Ok(sources) };
    let Some(setting) = settings.get(Key::FromHf) else { return Ok(sources) };
    let ConfigValue::Text(address) = &setting.value else { return Ok(sources) };
    if !is_address(address) {
        return Ok(sources);
    }
    let folder = parent.join(MODELS).join(folder_name(address));
    let interrupt = Interrupt::listen(None, "file")?;
    let mut progress = CommandProgress::new();
    let storage = source_storage(&progress, &interrupt);
    let copied =
        ModelCopy { storage: &storage, address, folder: &folder }.run(&mut |name, done, total| {
            let text = || format!("{name}: {} of {}", Bytes(done), Bytes(total));
            progress.report(done, total, text);
            match interrupt.is_requested() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    progress.finish();
    interrupt.release();
    copied.map_err(|error| match error.is_stopped() {
        true => CommandFailure::new(interrupt.code(), "interrupted"),
        false => error.failure(address),
    })?;
    let value = ConfigValue::Text(folder.display().to_string());
    sources.flags.push(ConfigFlag::Own { flag: FLAG, key: Key::FromHf, value });
    Ok(sources)
}

/// The last name of an address, and what tells it from others.
fn folder_name(address: &str) -> String {
    let path = address.split('?').next().unwrap_or_default().trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.chars().filter(is_plain).collect();
    let hash = DataName::of(address.as_bytes()).hash.to_string();
    format!("{}-{}", name.trim_start_matches('.'), &hash[..NAME_DIGITS])
}

/// What a failure begins with.
const NOT_COPIED: &str = "the model cannot be copied";

/// Why a model was not copied.
#[derive(Debug, thiserror::Error)]
enum ModelCopyError {
    #[error("{0}")]
    List(#[from] SourceListError),
    #[error("{0}")]
    Copy(#[from] CopyError),
    #[error("{0}")]
    Index(String),
    #[error("the model has {found}, at most {}", Bytes(WEIGHTS_BYTES_MAX))]
    Large { found: Bytes },
    #[error("{path}: {error}")]
    Folder { path: String, error: std::io::Error },
}

impl ModelCopyError {
    fn is_stopped(&self) -> bool {
        matches!(self, Self::Copy(CopyError::Stopped)) || remote_sources::is_stopped(self)
    }

    fn failure(&self, address: &str) -> CommandFailure {
        let failure = match self {
            Self::List(error) => remote_sources::failure_of_list(error),
            Self::Copy(error) => remote_sources::failure_of(address, error),
            Self::Index(_) | Self::Large { .. } | Self::Folder { .. } => None,
        };
        let failure =
            failure.map(|failure| CommandFailure { what: NOT_COPIED.to_owned(), ..failure });
        failure.unwrap_or_else(|| {
            let hint = "the address of a folder with config.json and model.safetensors, or its index and the \
                        files that it names";
            let detail = FailureDetail::new(self.to_string()).at(FLAG).hint(hint);
            CommandFailure::usage("the model", vec![detail])
        })
    }
}

/// A model that is copied file by file.
struct ModelCopy<'a> {
    storage: &'a dyn SourceStorage,
    address: &'a str,
    folder: &'a Path,
}

/// Is told of a file's name, of the bytes of it that are there and of those that it has.
type OnBytes<'a> = dyn FnMut(&str, u64, u64) -> ControlFlow<()> + 'a;

impl ModelCopy<'_> {
    /// Small files first, so that what is no model is found before its weights are read.
    fn run(&self, on_bytes: &mut OnBytes<'_>) -> Result<(), ModelCopyError> {
        let folder =
            |error| ModelCopyError::Folder { path: self.folder.display().to_string(), error };
        let config = self.list(MODEL_CONFIG)?;
        fs::create_dir_all(self.folder).map_err(folder)?;
        self.copy(MODEL_CONFIG, &config, on_bytes)?;
        for name in TokenizerFiles::NAMES {
            self.copy_if_there(name, on_bytes)?;
        }
        // transformers reads the one file where there are both.
        let files = match self.find(WEIGHTS_FILE)? {
            Some(file) => vec![(WEIGHTS_FILE.to_owned(), file)],
            None => self.shards(on_bytes)?,
        };
        let found: u64 = files.iter().map(|(_, file)| file.bytes.0).sum();
        if found > WEIGHTS_BYTES_MAX {
            return Err(ModelCopyError::Large { found: Bytes(found) });
        }
        files.iter().try_for_each(|(name, file)| self.copy(name, file, on_bytes))
    }

    /// The files that the index names.
    fn shards(
        &self,
        on_bytes: &mut OnBytes<'_>,
    ) -> Result<Vec<(String, SourceFile)>, ModelCopyError> {
        let index = self.list(WEIGHTS_INDEX)?;
        self.copy(WEIGHTS_INDEX, &index, on_bytes)?;
        let path = self.folder.join(WEIGHTS_INDEX);
        let text = fs::read_to_string(&path)
            .map_err(|error| ModelCopyError::Folder { path: path.display().to_string(), error })?;
        let wrong = |error| ModelCopyError::Index(format!("{WEIGHTS_INDEX}: {error}"));
        let index = ShardIndex::parse(&text).map_err(wrong)?;
        let names = index.files().into_iter();
        names.map(|name| Ok((name.to_owned(), self.list(name)?))).collect()
    }

    fn copy_if_there(&self, name: &str, on_bytes: &mut OnBytes<'_>) -> Result<(), ModelCopyError> {
        match self.find(name)? {
            Some(file) => self.copy(name, &file, on_bytes),
            None => Ok(()),
        }
    }

    fn copy(
        &self,
        name: &str,
        file: &SourceFile,
        on_bytes: &mut OnBytes<'_>,
    ) -> Result<(), ModelCopyError> {
        let to = self.folder.join(name);
        Ok(copy_file(self.storage, file, &to, |done| on_bytes(name, done, file.bytes.0))?)
    }

    fn list(&self, name: &str) -> Result<SourceFile, SourceListError> {
        let entry = format!("{}/{name}", self.address.trim_end_matches('/'));
        let mut files = self.storage.list(&entry)?;
        let found = files.pop().filter(|_| files.is_empty());
        found.ok_or(SourceListError::NotFound { entry })
    }

    /// The same, or nothing if the place has no such file.
    fn find(&self, name: &str) -> Result<Option<SourceFile>, SourceListError> {
        match self.list(name) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_missing(error: &SourceListError) -> bool {
    let is_of_place = match RemoteError::find(error) {
        Some(RemoteError::NotFound { missing, .. }) => missing.is_of_file(),
        Some(_) | None => false,
    };
    is_of_place || matches!(error, SourceListError::NotFound { .. })
}

#[cfg(test)]
mod tests {
    use zbelastic_data::source::LocalStorage;

    use super::*;

    /// Copies of a folder, which stands for a bucket: the names of files that were read, each once.
    fn copied(from: &Path, to: &Path) -> Result<Vec<String>, ModelCopyError> {
        let address = from.display().to_string();
        let mut read: Vec<String> = Vec::new();
        let copy = ModelCopy { storage: &LocalStorage, address: &address, folder: to };
        copy.run(&mut |name, _, _| {
            if read.last().is_none_or(|last| last != name) {
                read.push(name.to_owned());
            }
            ControlFlow::Continue(())
        })?;
        Ok(read)
    }

    #[test]
    fn a_model_is_copied_whole_and_what_is_there_is_not_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        fs::create_dir(&from).expect("room");
        let write = |name: &str, text: &str| fs::write(from.join(name), text).expect("room");
        write("config.json", "{}");
        write("tokenizer.json", "{\"model\": 1}");
        write("other.json", "not of the model");
        let missing = copied(&from, &to).expect_err("no weights");
        assert!(missing.to_string().contains("model.safetensors.index.json"), "{missing}");
        let map = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        write(WEIGHTS_INDEX, map);
        write("model-1.safetensors", "one");
        let missing = copied(&from, &to).expect_err("half of the weights");
        assert!(missing.to_string().contains("model-2.safetensors"), "{missing}");
        write("model-2.safetensors", "two");
        // The small files are there since.
        let expected = ["model-1.safetensors", "model-2.safetensors"];
        assert_eq!(copied(&from, &to).expect("whole"), expected);
        assert_eq!(copied(&from, &to).expect("whole"), [""; 0]);
        assert!(!to.join("other.json").exists());
        for name in ["config.json", "tokenizer.json", WEIGHTS_INDEX, expected[0], expected[1]] {
            assert_eq!(fs::read(to.join(name)).ok(), fs::read(from.join(name)).ok(), "{name}");
        }
        write("model-2.safetensors", "other");
        assert_eq!(copied(&from, &to).expect("whole"), ["model-2.safetensors"]);
        assert_eq!(fs::read(to.join("model-2.safetensors")).expect("there"), b"other");
    }

    #[test]
    fn folders_are_named_after_the_model() {
        let name = folder_name("s3://bucket/models/gpt2-124M/");
        assert!(name.starts_with("gpt2-124M-") && name.len() == "gpt2-124M-".len() + NAME_DIGITS);
        assert_ne!(name, folder_name("s3://other/models/gpt2-124M/"));
        let web = folder_name("https://host/..?token=secret");
        assert!(!web.contains("secret") && !web.contains('/') && !web.starts_with('.'), "{web}");
    }
}
