//! The model in a run folder: written from layers that are requested one by one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use zbelastic_kernels::HostThreads;
use zbelastic_trainer::hf::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, LayerWindow, MODEL_CONFIG, SpecialTokenIds, WEIGHTS_FILE,
    WeightType, WeightsFiles, WriteWeightsError, adapter_config_json, trained_config_json,
};
use zbelastic_trainer::model::{ModelConfig, merge_layer, model_layers};
use zbelastic_types::LayerId;
use zbelastic_whole_file as whole_file;
use zbelastic_wording::CommandFailure;

use super::folder::{no_place, write_file};
use crate::run_files::{ADAPTER, MODEL};

/// The file of the model that a run has trained, with its adapters merged if it has any.
#[must_use]
pub fn trained_files(model: &ModelConfig) -> WeightsFiles {
    WeightsFiles::new(&model.without_lora(), WeightType::F32, u64::MAX)
}

/// Writes the model that a run has trained, whose layers are requested in the order of
/// [`trained_files`], with these special tokens. With adapters it is the merged model, and they lie
/// beside its weights.
///
/// # Errors
/// If a file cannot be written, or a layer cannot be had.
pub fn write_trained<L: AsRef<[f32]>>(
    run: &Path,
    (model, special_ids): (&ModelConfig, &SpecialTokenIds),
    layers: &mut dyn FnMut(LayerId) -> Result<L, CommandFailure>,
) -> Result<(), CommandFailure> {
    let config = trained_config_json(&model.without_lora(), special_ids);
    let Some(adapter_config) = adapter_config_json(model, None) else {
        return write_model(run, &config, &trained_files(model), layers);
    };
    let specs = model_layers(model);
    let mut adapters = BTreeMap::new();
    let mut merged = |layer: LayerId| {
        let spec = &specs[layer.0 as usize];
        let weights = layers(layer)?;
        adapters.insert(layer, weights.as_ref()[spec.base_len()..].to_vec());
        Ok(merge_layer(&HostThreads::one(), model, spec, weights.as_ref()))
    };
    write_model(run, &config, &trained_files(model), &mut merged)?;
    let folder = run.join(MODEL).join(ADAPTER);
    fs::create_dir_all(&folder).map_err(|error| no_place(&folder, &error))?;
    write_file(&folder.join(ADAPTER_CONFIG), adapter_config.as_bytes())?;
    // They lie behind all else of their layer.
    let mut adapters = |layer: LayerId| {
        let mut weights = vec![0.0; specs[layer.0 as usize].base_len()];
        weights.extend(adapters.remove(&layer).expect("the model's file has each layer"));
        Ok(weights)
    };
    let files = WeightsFiles::of_adapters(model, WeightType::F32);
    write_weights(&folder.join(ADAPTER_WEIGHTS), &files, &mut adapters)
}

/// Writes the model in Hugging Face's form into a run folder.
///
/// # Errors
/// If it cannot be written, or a layer cannot be had.
fn write_model<L: AsRef<[f32]>>(
    run: &Path,
    config: &str,
    files: &WeightsFiles,
    layers: &mut dyn FnMut(LayerId) -> Result<L, CommandFailure>,
) -> Result<(), CommandFailure> {
    let folder = run.join(MODEL);
    fs::create_dir_all(&folder).map_err(|error| no_place(&folder, &error))?;
    write_file(&folder.join(MODEL_CONFIG), config.as_bytes())?;
    write_weights(&folder.join(WEIGHTS_FILE), files, layers)
}

/// Writes one file of weights, as they are.
fn write_weights<L: AsRef<[f32]>>(
    path: &Path,
    files: &WeightsFiles,
    layers: &mut dyn FnMut(LayerId) -> Result<L, CommandFailure>,
) -> Result<(), CommandFailure> {
    let [file] = files.files() else { unreachable!("it is one file") };
    let mut layers = LayerWindow::new(files.files(), layers);
    let write = |to: &mut dyn Write| file.write_from(&mut layers, to);
    whole_file::write_with(path, write).map_err(|error| match error {
        WriteWeightsError::File(error) => no_place(path, &error),
        WriteWeightsError::Overflow { .. } => unreachable!("weights are not rounded"),
        WriteWeightsError::Layer(failure) => failure,
    })
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;
    use zbelastic_trainer::model::initial_weights;
    use zbelastic_wording::FailureCode;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_layer_that_cannot_be_had_leaves_the_model_that_is_there() {
        let run = tempfile::tempdir().expect("a folder");
        let text = "[model]\npreset = \"tiny\"\n";
        let model = load_document("test", text).expect("legal").config.model;
        let specs = model_layers(&model);
        let drawn = |layer: LayerId| initial_weights(&specs[layer.0 as usize], 1);
        let described = (&model, &SpecialTokenIds::default());
        write_trained(run.path(), described, &mut |layer| Ok(drawn(layer))).expect("writable");
        let file = run.path().join("model/model.safetensors");
        let weights = fs::read(&file).expect("there");
        let mut read = |layer: LayerId| match layer.0 {
            1 => Err(CommandFailure::new(FailureCode::NotFound, "layer 1")),
            _ => Ok(drawn(layer)),
        };
        let failure = write_trained(run.path(), described, &mut read).expect_err("layer 1 is lost");
        assert_eq!(failure.what, "layer 1");
        assert!(fs::read(&file).expect("there") == weights);
        assert_eq!(names(&run.path().join(MODEL)), ["config.json", "model.safetensors"]);
    }
}
