//! Adapters of models in `hf/`, trained by peft and by the serial reference from the same weights.
//! `lora_vectors.py` makes the figures.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use zbelastic_oracles::OracleTest;
use zbelastic_trainer::hf::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, NamedTensor, WeightType, WeightsFiles, adapter_config_json,
    import_adapters,
};
use zbelastic_trainer::model::{LoraInit, LoraScaling, LoraSettings, ModelConfig};

use crate::models::{OracleRun, check_case, parse, weights_of};

/// A test a case of the package's own; there are no others.
pub fn tests(vectors: &Path) -> Vec<OracleTest> {
    let cases = std::fs::read_dir(vectors).expect("there are cases");
    let mut paths: Vec<_> = cases.map(|case| case.expect("readable").path()).collect();
    paths.sort();
    let test = |path: PathBuf| {
        let case = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        OracleTest::new(format!("oracle_vectors_lora_{case}"), move || {
            adapters_train_as_in_peft(&path)
        })
    };
    paths.into_iter().map(test).collect()
}

/// Logits, losses, norms, gradients and weights of the adapters in the folder `path`.
fn adapters_train_as_in_peft(path: &Path) {
    let config = std::fs::read_to_string(path.join(ADAPTER_CONFIG)).expect("readable");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let base_name = config["base_model_name_or_path"].as_str().expect("a name");
    let base = path.join("../../hf").join(base_name);
    let model = adapted(&parse(&base, "config.json"), &config);
    let file = std::fs::read(path.join(ADAPTER_WEIGHTS)).expect("readable");
    let adapters = import_adapters(&model, &file).expect("its adapters");
    let mut weights = weights_of(&model, &base);
    for (weights, adapters) in weights.iter_mut().zip(&adapters) {
        weights.iter_mut().zip(adapters).for_each(|(weight, adapter)| *weight += adapter);
    }
    check_format(&model, &weights, &config, &file);
    let named = |layers: &[Vec<f32>]| named(&model, layers);
    check_case(&path.display().to_string(), &model, weights, &OracleRun::read(path), named);
}

fn adapted(base: &ModelConfig, config: &Value) -> ModelConfig {
    let targets = config["target_modules"].as_array().expect("a list").iter();
    let targets = targets.map(|target| target.as_str().expect("a name").to_owned()).collect();
    let rank = u32::try_from(config["r"].as_u64().expect("a rank")).expect("a small one");
    let alpha = config["lora_alpha"].as_f64().expect("a number");
    let settings = LoraSettings {
        rank,
        alpha,
        scaling: LoraScaling::Standard,
        init: LoraInit::Kaiming,
        targets,
    };
    settings.adapt(base).expect("peft has adapted it")
}

/// What we write is what peft has written: tensors by name with their bits, and what describes them.
fn check_format(model: &ModelConfig, weights: &[Vec<f32>], config: &Value, file: &[u8]) {
    let expected = tensors_of(file);
    let found = named(model, weights);
    assert_eq!(found.len(), expected.len());
    for tensor in found {
        let expected = expected.iter().find(|it| it.name == tensor.name).expect("peft has it");
        assert_eq!(tensor, *expected);
    }
    let ours = adapter_config_json(model, Some("base")).expect("it has adapters");
    let ours: Value = serde_json::from_str(&ours).expect("JSON");
    let modules = |config: &Value| -> BTreeSet<String> {
        let list = config["target_modules"].as_array().expect("a list").iter();
        list.map(|module| module.as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(modules(&ours), modules(config));
    for (name, value) in ours.as_object().expect("an object") {
        match &name[..] {
            "target_modules" => {}
            "base_model_name_or_path" => assert_eq!(value, &json!("base")),
            _ => assert_eq!(value, &config[name], "{name}"),
        }
    }
}

/// Adapters under PEFT's names.
fn named(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<NamedTensor> {
    let mut file = Vec::new();
    let files = WeightsFiles::of_adapters(model, WeightType::F32);
    files.files()[0].write(layers, &mut file).expect("memory");
    tensors_of(&file)
}

fn tensors_of(file: &[u8]) -> Vec<NamedTensor> {
    let tensors = SafeTensors::deserialize(file).expect("a safetensors file").tensors();
    let tensors = tensors.into_iter().map(|(name, view)| {
        let floats = view.data().as_chunks::<4>().0.iter();
        let floats = floats.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        NamedTensor { name, shape: view.shape().to_vec(), floats }
    });
    tensors.collect()
}
