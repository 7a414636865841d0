//! The weights in a folder of Hugging Face's format.

use std::fs;
use std::path::Path;

use zbelastic_trainer::hf::import_safetensors;
use zbelastic_trainer::model::ModelConfig;
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureDetail};

/// Most bytes of a file of weights; a larger one cannot be trained on one machine.
const WEIGHTS_BYTES_MAX: u64 = 64 << 30;

/// File that maps weights to one of several files.
const SHARDS: &str = "model.safetensors.index.json";

/// The bytes of a folder's `model.safetensors`, and the weights of each layer in them.
///
/// # Errors
/// If they cannot be read, or are not the model's.
pub fn weights_of_folder(
    model: &ModelConfig,
    folder: &Path,
) -> Result<(Vec<u8>, Vec<Vec<f32>>), CommandFailure> {
    let path = folder.join("model.safetensors");
    read_weights(model, &path).map_err(|why| {
        let is_sharded = !path.exists() && folder.join(SHARDS).exists();
        let detail = if is_sharded {
            let what = format!("{}: the weights are spread over several files", folder.display());
            FailureDetail::new(what).hint(
                "one file of all: in Python, model.save_pretrained(FOLDER, max_shard_size=\"64GB\")",
            )
        } else {
            FailureDetail::new(format!("{}: {why}", path.display()))
                .hint("a folder with config.json and all weights in one model.safetensors")
        };
        CommandFailure::usage("the model", vec![detail.at("model.from_hf")])
    })
}

fn read_weights(model: &ModelConfig, path: &Path) -> Result<(Vec<u8>, Vec<Vec<f32>>), String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > WEIGHTS_BYTES_MAX {
        return Err(format!("{} is more than {}", Bytes(size), Bytes(WEIGHTS_BYTES_MAX)));
    }
    let file = fs::read(path).map_err(|error| error.to_string())?;
    let layers = import_safetensors(model, &file).map_err(|error| error.to_string())?;
    Ok((file, layers))
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;

    use super::*;

    #[test]
    fn weights_in_several_files_are_reported_as_that() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = load_document("test", "[model]\npreset = \"tiny\"\n").expect("legal").config;
        let message =
            || weights_of_folder(&config.model, folder.path()).expect_err("no weights").to_string();
        assert!(message().contains("all weights in one model.safetensors"), "{}", message());
        std::fs::write(folder.path().join(SHARDS), "{}").expect("room");
        assert!(message().contains("the weights are spread over several files"), "{}", message());
    }
}
