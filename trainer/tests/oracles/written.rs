//! Models of transformers, read and written again: the same names, shapes, types and bytes.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use zbelastic_trainer::hf::{WeightType, WeightsFiles, import_safetensors, parse_config};
use zbelastic_trainer::model::ModelConfig;

/// Where the weights lie in one file.
const ONE_FILE: &str = "model.safetensors";
/// In front of transformers' name of a parameter in `expected.safetensors`.
const PARAMETER: &str = "grad_step0.";

/// The type, shape and bytes of each tensor in a file.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(file: &[u8]) -> Tensors {
    let read = SafeTensors::deserialize(file).expect("a safetensors file");
    let tensors = read.tensors().into_iter();
    tensors
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

fn read(folder: &Path) -> (ModelConfig, Vec<u8>, Vec<Vec<f32>>) {
    let config = std::fs::read_to_string(folder.join("config.json")).expect("readable");
    let model = parse_config(&config).expect("a configuration");
    let file = std::fs::read(folder.join(ONE_FILE)).expect("readable");
    let layers = import_safetensors(&model, &file).expect("its weights");
    (model, file, layers)
}

/// Weights of several files are not compared with one.
pub fn missing(folder: &Path) -> Option<&'static str> {
    (!folder.join(ONE_FILE).exists()).then_some("of_one_file")
}

/// Writes the model in its own type and compares the file. Files may hold buffers beside parameters,
/// and leave out the name of the model around them; what is written has transformers' names.
pub fn weights_are_written_as_transformers_writes_them(folder: &Path) {
    let (model, file, layers) = read(folder);
    let theirs = tensors(&file);
    let (dtype, ..) = theirs.values().next().expect("there are tensors");
    let halves = [(Dtype::BF16, WeightType::Bf16), (Dtype::F16, WeightType::F16)];
    let half = halves.into_iter().find_map(|(half, kind)| (half == *dtype).then_some(kind));
    let kind = half.unwrap_or(WeightType::F32);
    let files = WeightsFiles::new(&model, kind, u64::MAX);
    let mut written = Vec::new();
    files.files()[0].write(&layers, &mut written).expect("weights fit their own type");
    let ours = tensors(&written);
    let expected = std::fs::read(folder.join("expected.safetensors")).expect("readable");
    let expected = tensors(&expected);
    let names: Vec<&str> =
        expected.keys().filter_map(|name| name.strip_prefix(PARAMETER)).collect();
    assert_eq!(ours.keys().collect::<Vec<_>>(), names);
    for (name, tensor) in &ours {
        let bare = name.split_once('.').map_or(name.as_str(), |(_, bare)| bare);
        let found = theirs.get(name).or_else(|| theirs.get(bare));
        assert!(found == Some(tensor), "{name} differs from what was read");
    }
}
