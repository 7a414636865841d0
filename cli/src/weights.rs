//! The weights in a folder of Hugging Face's format: in one file or in several with an index.

use std::fs;
use std::io;
use std::path::Path;

use zbelastic_config::{RunConfig, WeightSource};
use zbelastic_kernels::HostThreads;
use zbelastic_machine::{DiskWeights, core_count};
use zbelastic_trainer::hf::{
    ADAPTER_WEIGHTS, ImportError, ShardIndex, ShardIndexError, StoredFile, StoredWeights,
    WEIGHTS_FILE, WEIGHTS_INDEX, WeightBytes, WeightFile, import_files, read_adapters,
    write_initial, write_safetensors,
};
use zbelastic_trainer::model::{
    LayerSpec, ModelConfig, draw_adapters, initial_weights, model_layers,
};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureDetail};

/// Most bytes of a model's weights; a larger one cannot be trained on one machine.
pub const WEIGHTS_BYTES_MAX: u64 = 64 << 30;
/// Most bytes of an index: a hundred for each of half a million tensors.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Why the weights of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
enum WeightFolderError {
    #[error("{name}: {error}")]
    Open { name: String, error: io::Error },
    #[error("{WEIGHTS_INDEX}: {0}")]
    Index(#[from] ShardIndexError),
    #[error("{name} has {found}, at most {}", Bytes(*max))]
    Large { name: &'static str, found: Bytes, max: u64 },
    #[error("{0}")]
    Import(#[from] ImportError),
}

fn open_weights(folder: &Path, name: &str) -> Result<DiskWeights, WeightFolderError> {
    DiskWeights::open(&folder.join(name))
        .map_err(|error| WeightFolderError::Open { name: name.to_owned(), error })
}

/// The weights of a folder, layer by layer.
///
/// # Errors
/// If they cannot be read, or are not the model's.
pub fn weights_of_folder(
    model: &ModelConfig,
    folder: &Path,
) -> Result<Vec<Vec<f32>>, CommandFailure> {
    read_weights(model, folder).map_err(|error| failure(detail(folder, &error)))
}

/// The weights of a folder, of which a layer is read when it is needed.
///
/// # Errors
/// If the files cannot be opened, or their tensors are not the model's.
pub fn stored_weights_of_folder(
    model: &ModelConfig,
    folder: &Path,
) -> Result<StoredWeights, CommandFailure> {
    let stored = open_folder(folder).and_then(|FolderFiles { files, index }| {
        let boxed =
            |(name, bytes): (String, DiskWeights)| -> StoredFile { (name, Box::new(bytes)) };
        let files = files.into_iter().map(boxed).collect();
        // Models in Hugging Face's form have no adapters that a seed would give.
        Ok(StoredWeights::of_files(model, 0, files, index.as_ref())?)
    });
    stored.map_err(|error| failure(detail(folder, &error)))
}

/// The floats of a layer of [`stored_weights_of_folder`].
///
/// # Errors
/// If they cannot be read, or one of them is not finite.
pub fn read_stored_layer(
    (stored, folder): (&StoredWeights, &Path),
    spec: &LayerSpec,
    host: &HostThreads,
) -> Result<Vec<f32>, CommandFailure> {
    let mut floats = vec![0.0; spec.len()];
    let read = stored.read_layer(host, spec, &mut floats);
    read.map_err(|error| failure(detail(folder, &error.into())))?;
    Ok(floats)
}

/// The weights of the folder that `model.from_hf` names.
fn weights_from_hf(model: &ModelConfig, folder: &Path) -> Result<Vec<Vec<f32>>, CommandFailure> {
    let place = "model.from_hf";
    read_weights(model, folder).map_err(|error| failure(detail(folder, &error).at(place)))
}

fn failure(detail: FailureDetail) -> CommandFailure {
    CommandFailure::usage("the model", vec![detail])
}

fn detail(folder: &Path, error: &WeightFolderError) -> FailureDetail {
    let hint = match error {
        WeightFolderError::Import(ImportError::NotFinite { .. }) => {
            "weights of an earlier step of that run, before it diverged"
        }
        WeightFolderError::Import(
            ImportError::Missing { .. } | ImportError::Extra { .. } | ImportError::Shape { .. },
        ) => "the config.json that these weights came with, or the weights that it came with",
        WeightFolderError::Import(
            ImportError::Format { .. }
            | ImportError::Read { .. }
            | ImportError::Misplaced { .. }
            | ImportError::Twice { .. }
            | ImportError::Type { .. }
            | ImportError::Untied { .. },
        )
        | WeightFolderError::Open { .. }
        | WeightFolderError::Index(_)
        | WeightFolderError::Large { .. } => {
            "a folder with config.json and the weights in model.safetensors, or in several files \
             with model.safetensors.index.json"
        }
    };
    FailureDetail::new(format!("{}: {error}", folder.display())).hint(hint)
}

/// The weights that a run begins with, layer by layer; nothing if all of them are drawn.
///
/// # Errors
/// If a folder that has some cannot be read, or they are not the model's.
pub fn given_weights(config: &RunConfig) -> Result<Option<Vec<Vec<f32>>>, CommandFailure> {
    let model = &config.model;
    let mut layers = match (&config.weights, &config.adapters) {
        (WeightSource::Drawn, None) => return Ok(None),
        (WeightSource::Drawn, Some(_)) => {
            model_layers(model).iter().map(|spec| initial_weights(spec, config.seed)).collect()
        }
        (WeightSource::HuggingFace { folder }, _) => {
            let mut layers = weights_from_hf(model, folder)?;
            draw_adapters(model, config.seed, &mut layers);
            layers
        }
    };
    if let Some(folder) = &config.adapters {
        read_adapters_of(folder, model, &mut layers).map_err(|error| {
            let hint =
                "the adapters of a model of this shape, as peft and `zbelastic export` write them";
            let detail = FailureDetail::new(format!("{}: {error}", folder.display()));
            CommandFailure::usage("the adapters", vec![detail.at("lora.from").hint(hint)])
        })?;
    }
    Ok(Some(layers))
}

fn read_adapters_of(
    folder: &Path,
    model: &ModelConfig,
    layers: &mut [Vec<f32>],
) -> Result<(), WeightFolderError> {
    let file = open_weights(folder, ADAPTER_WEIGHTS)?;
    check_size(ADAPTER_WEIGHTS, file.len(), WEIGHTS_BYTES_MAX)?;
    let mut bytes = vec![0; file.len() as usize];
    let read = file.read(0, &mut bytes);
    read.map_err(|error| WeightFolderError::Open { name: ADAPTER_WEIGHTS.to_owned(), error })?;
    Ok(read_adapters(model, &bytes, layers)?)
}

/// The weights that a run begins with as one file, as they are sent to a cluster: F32 under transformers'
/// names, whatever types and files the folder has. The same weights are the same bytes. Adapters are in it
/// if they are not drawn.
///
/// # Panics
/// Never: memory takes what is written to it.
#[must_use]
pub fn weights_file(config: &RunConfig, layers: &[Vec<f32>]) -> Vec<u8> {
    let mut file = Vec::with_capacity(layers.iter().map(|layer| 4 * layer.len()).sum());
    let written = match config.adapters {
        None => write_safetensors(&config.model, layers, &mut file),
        Some(_) => write_initial(&config.model, layers, &mut file),
    };
    written.expect("memory can be written");
    file
}

fn read_weights(model: &ModelConfig, folder: &Path) -> Result<Vec<Vec<f32>>, WeightFolderError> {
    let FolderFiles { files, index } = open_folder(folder)?;
    let named = files.iter().map(|(name, bytes)| WeightFile { name: name.clone(), bytes });
    Ok(import_files(model, &named.collect::<Vec<_>>(), index.as_ref(), &reading_threads())?)
}

/// Threads that read weights. Where there are none for it, it takes longer.
pub fn reading_threads() -> HostThreads {
    HostThreads::new(core_count()).unwrap_or_else(|_| HostThreads::one())
}

/// The files of weights in a folder, by their names, and the index if there are several.
struct FolderFiles {
    files: Vec<(String, DiskWeights)>,
    index: Option<ShardIndex>,
}

/// transformers reads the one file where there are both.
fn open_folder(folder: &Path) -> Result<FolderFiles, WeightFolderError> {
    let is_sharded = !folder.join(WEIGHTS_FILE).exists() && folder.join(WEIGHTS_INDEX).exists();
    let index = if is_sharded { Some(read_index(folder)?) } else { None };
    let names = index.as_ref().map_or_else(|| vec![WEIGHTS_FILE], ShardIndex::files);
    let open = |name: &&str| open_weights(folder, name).map(|file| ((*name).to_owned(), file));
    let files = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes.len()).sum();
    check_size("the model", bytes, WEIGHTS_BYTES_MAX)?;
    Ok(FolderFiles { files, index })
}

fn read_index(folder: &Path) -> Result<ShardIndex, WeightFolderError> {
    let file = open_weights(folder, WEIGHTS_INDEX)?;
    check_size(WEIGHTS_INDEX, file.len(), INDEX_BYTES_MAX)?;
    let read = fs::read_to_string(folder.join(WEIGHTS_INDEX));
    let text =
        read.map_err(|error| WeightFolderError::Open { name: WEIGHTS_INDEX.to_owned(), error })?;
    Ok(ShardIndex::parse(&text)?)
}

fn check_size(name: &'static str, found: u64, max: u64) -> Result<(), WeightFolderError> {
    if found > max {
        return Err(WeightFolderError::Large { name, found: Bytes(found), max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;
    use zbelastic_trainer::hf::{WeightType, WeightsFiles, import_safetensors};

    use super::*;

    fn config() -> RunConfig {
        let text = "[model]\npreset = \"tiny\"\nlayers = 2\nwidth = 16\n";
        load_document("test", text).expect("legal").config
    }

    fn model() -> ModelConfig {
        config().model
    }

    #[test]
    fn a_folder_without_weights_is_refused_with_what_it_should_have() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = || {
            let failure = weights_of_folder(&model(), folder.path());
            failure.expect_err("no weights").to_string()
        };
        assert!(message().contains("model.safetensors: No such file"), "{}", message());
        assert!(message().contains("model.safetensors.index.json"), "{}", message());
        std::fs::write(folder.path().join(WEIGHTS_INDEX), "{}").expect("room");
        assert!(message().contains("no index of weights"), "{}", message());
        let index = r#"{"weight_map": {"wte.weight": "model-1.safetensors"}}"#;
        std::fs::write(folder.path().join(WEIGHTS_INDEX), index).expect("room");
        assert!(message().contains("model-1.safetensors: No such file"), "{}", message());
    }

    /// What is read layer by layer is what is read at once, from one file or from several.
    #[test]
    fn layers_of_a_folder_are_read_one_by_one() {
        let model = model();
        let specs = model_layers(&model);
        let layers: Vec<Vec<f32>> = specs.iter().map(|spec| initial_weights(spec, 1)).collect();
        for bytes_max in [u64::MAX, 1 << 12] {
            let folder = tempfile::tempdir().expect("a folder");
            let files = WeightsFiles::new(&model, WeightType::F32, bytes_max);
            for file in files.files() {
                let mut bytes = Vec::new();
                file.write(&layers, &mut bytes).expect("memory");
                std::fs::write(folder.path().join(file.name()), bytes).expect("room");
            }
            if let Some(index) = files.index_json() {
                std::fs::write(folder.path().join(WEIGHTS_INDEX), index).expect("room");
            }
            assert_eq!(files.files().len() > 1, bytes_max < u64::MAX);
            let stored = stored_weights_of_folder(&model, folder.path()).expect("it is whole");
            let host = HostThreads::one();
            let read = |spec| read_stored_layer((&stored, folder.path()), spec, &host);
            let read: Result<Vec<_>, _> = specs.iter().map(read).collect();
            assert_eq!(read.expect("it is whole"), layers);
            assert_eq!(weights_of_folder(&model, folder.path()).expect("it is whole"), layers);
        }
    }

    /// What a cluster is sent does not depend on how the folder holds it.
    #[test]
    fn weights_are_the_same_file_whatever_files_they_come_from() {
        let model = model();
        let layers: Vec<Vec<f32>> =
            model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = Vec::new();
        write_safetensors(&model, &layers, &mut file).expect("memory");
        std::fs::write(folder.path().join(WEIGHTS_FILE), &file).expect("room");
        assert!(weights_of_folder(&model, folder.path()).expect("its weights") == layers);
        let sent = || {
            weights_file(&config(), &weights_of_folder(&model, folder.path()).expect("its weights"))
        };
        assert!(sent() == file && import_safetensors(&model, &file).expect("its own") == layers);
        let names = zbelastic_trainer::hf::to_named(&model, &layers);
        let names = names.iter().map(|tensor| format!("{:?}: \"part.safetensors\"", tensor.name));
        let names = names.collect::<Vec<_>>().join(", ");
        let move_to = |name: &str| folder.path().join(name);
        std::fs::rename(move_to(WEIGHTS_FILE), move_to("part.safetensors")).expect("a file");
        std::fs::write(move_to(WEIGHTS_INDEX), format!("{{\"weight_map\": {{{names}}}}}"))
            .expect("room");
        assert!(sent() == file);
    }
}
