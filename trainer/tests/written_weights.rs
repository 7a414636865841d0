//! Files of weights as transformers writes them: the bytes of the crate `safetensors`, shards with
//! an index, and the weights that went in.

use std::collections::BTreeMap;
use std::rc::Rc;

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use zbelastic_trainer::hf::{
    LayerWindow, SpecialTokenIds, WeightType, WeightsFiles, WriteWeightsError,
    exported_config_json, generation_config_json, import_safetensors, layer_order, parse_config,
    to_named, write_safetensors,
};
use zbelastic_trainer::model::{
    Family, FrozenTensors, LlamaFeatures, ModelConfig, initial_weights, model_layers,
};
use zbelastic_types::LayerId;

const FAMILIES: [Family; 2] = [Family::Gpt2, Family::Llama];

fn model(family: Family) -> ModelConfig {
    ModelConfig {
        family,
        blocks: 2,
        width: 8,
        heads: 2,
        kv_heads: if family == Family::Llama { 1 } else { 2 },
        head_width: 4,
        mlp_width: 10,
        features: LlamaFeatures::NONE,
        vocabulary: 11,
        positions: 5,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
        sliding_window: None,
    }
}

fn weights(model: &ModelConfig) -> Vec<Vec<f32>> {
    model_layers(model).iter().map(|spec| initial_weights(spec, 1)).collect()
}

fn bytes_of(files: &WeightsFiles, layers: &[Vec<f32>]) -> BTreeMap<String, Vec<u8>> {
    let written = files.files().iter().map(|file| {
        let mut bytes = Vec::new();
        file.write(layers, &mut bytes).expect("it fits memory and the type");
        (file.name().to_owned(), bytes)
    });
    written.collect()
}

/// The same floats in two bytes, by truncation: of floats that were rounded so before, nothing is
/// lost.
fn upper_halves(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn floats_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The file that the crate makes of tensors by name.
fn by_the_crate(
    model: &ModelConfig,
    layers: &[Vec<f32>],
    dtype: Dtype,
    bytes: fn(&[f32]) -> Vec<u8>,
) -> Vec<u8> {
    let named = to_named(model, layers).into_iter();
    let named: Vec<_> =
        named.map(|tensor| (tensor.name, tensor.shape, bytes(&tensor.floats))).collect();
    let views = named.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(dtype, shape.clone(), bytes);
        (name.clone(), view.expect("a tensor is as long as its shape"))
    });
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    serialize(views, Some(metadata)).expect("views are complete")
}

#[test]
fn a_file_that_is_written_in_parts_is_the_one_that_the_crate_makes() {
    for family in FAMILIES {
        // Wide enough that a matrix is written in more than one part.
        let model = ModelConfig { width: 1500, mlp_width: 1501, ..model(family) };
        let model = ModelConfig { blocks: 1, head_width: 750, kv_heads: 2, ..model };
        let layers = weights(&model);
        let mut file = Vec::new();
        write_safetensors(&model, &layers, &mut file).expect("memory");
        assert!(file == by_the_crate(&model, &layers, Dtype::F32, floats_of), "{family:?}");
    }
}

#[test]
fn halves_are_written_as_the_crate_writes_them() {
    for family in FAMILIES {
        let model = model(family);
        let truncated = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
        let layers: Vec<Vec<f32>> = { weights(&model).into_iter() }
            .map(|layer| layer.into_iter().map(truncated).collect())
            .collect();
        let files = WeightsFiles::new(&model, WeightType::Bf16, u64::MAX);
        let found = &bytes_of(&files, &layers)["model.safetensors"];
        assert!(*found == by_the_crate(&model, &layers, Dtype::BF16, upper_halves), "{family:?}");
    }
}

#[test]
fn shards_hold_each_tensor_once_and_add_up() {
    for family in FAMILIES {
        let model = model(family);
        let layers = weights(&model);
        let whole = WeightsFiles::new(&model, WeightType::F32, u64::MAX);
        assert_eq!(whole.index_json(), None);
        for bytes_max in [1, 400, 1000, whole.weight_bytes() - 1] {
            let files = WeightsFiles::new(&model, WeightType::F32, bytes_max);
            check_shards(&model, &layers, &files, bytes_max);
        }
        let one = WeightsFiles::new(&model, WeightType::F32, whole.weight_bytes());
        assert_eq!(one.files().len(), 1);
    }
}

fn check_shards(model: &ModelConfig, layers: &[Vec<f32>], files: &WeightsFiles, bytes_max: u64) {
    let index: Value =
        serde_json::from_str(&files.index_json().expect("several files")).expect("JSON");
    assert_eq!(index["metadata"]["total_size"], files.weight_bytes());
    let mut found = BTreeMap::new();
    let written = bytes_of(files, layers);
    let count = written.len();
    for (number, (name, bytes)) in written.iter().enumerate() {
        assert_eq!(*name, format!("model-{:05}-of-{count:05}.safetensors", number + 1));
        let tensors = safetensors::SafeTensors::deserialize(bytes).expect("a safetensors file");
        let held: usize = tensors.tensors().iter().map(|(_, view)| view.data().len()).sum();
        assert!(held as u64 <= bytes_max || tensors.len() == 1, "{name} holds {held} bytes");
        for (tensor, view) in tensors.tensors() {
            assert_eq!(index["weight_map"][&tensor], name.as_str());
            found.insert(tensor, (view.shape().to_vec(), view.data().to_vec()));
        }
    }
    let expected = to_named(model, layers).into_iter();
    let expected: BTreeMap<_, _> =
        expected.map(|tensor| (tensor.name, (tensor.shape, floats_of(&tensor.floats)))).collect();
    assert!(found == expected);
    assert_eq!(index["weight_map"].as_object().expect("an object").len(), expected.len());
    let parameters: usize = layers.iter().map(Vec::len).sum();
    assert_eq!(index["metadata"]["total_parameters"], parameters);
}

/// A layer that is counted as long as it is in memory.
struct CountedLayer {
    weights: Vec<f32>,
    _held: Rc<()>,
}

impl AsRef<[f32]> for CountedLayer {
    fn as_ref(&self) -> &[f32] {
        &self.weights
    }
}

/// The layers of a block, one that goes on in the next file, and a head that is not tied.
const LAYERS_AT_ONCE: usize = 4;

#[test]
fn each_layer_is_requested_once_and_few_are_in_memory() {
    let sizes = [u64::MAX, 2_000, 7_000, 12_000];
    for (family, bytes_max) in FAMILIES.into_iter().flat_map(|f| sizes.map(|size| (f, size))) {
        let model = ModelConfig { blocks: 12, ..model(family) };
        let layers = weights(&model);
        let files = WeightsFiles::new(&model, WeightType::F32, bytes_max);
        let held = Rc::new(());
        let mut requested = Vec::new();
        let mut request = |layer: LayerId| -> Result<_, String> {
            requested.push(layer);
            assert!(Rc::strong_count(&held) <= LAYERS_AT_ONCE, "{family:?}: one more is too many");
            let weights = layers[layer.0 as usize].clone();
            Ok(CountedLayer { weights, _held: held.clone() })
        };
        let mut window = LayerWindow::new(files.files(), &mut request);
        let written = files.files().iter().map(|file| {
            let mut bytes = Vec::new();
            file.write_from(&mut window, &mut bytes).expect("memory");
            (file.name().to_owned(), bytes)
        });
        assert!(written.collect::<BTreeMap<_, _>>() == bytes_of(&files, &layers), "{family:?}");
        assert_eq!(requested, layer_order(files.files()));
        assert_eq!(requested.len(), layers.len(), "all, each once");
        assert_eq!(Rc::strong_count(&held), 1, "none stays");
    }
}

#[test]
fn a_layer_that_cannot_be_had_ends_the_file() {
    let model = model(Family::Llama);
    let layers = weights(&model);
    let files = WeightsFiles::new(&model, WeightType::F32, u64::MAX);
    let mut request = |layer: LayerId| match layer.0 {
        2 => Err("damaged"),
        of => Ok(&layers[of as usize]),
    };
    let mut window = LayerWindow::new(files.files(), &mut request);
    let error = files.files()[0].write_from(&mut window, &mut Vec::new()).expect_err("damaged");
    assert!(matches!(error, WriteWeightsError::Layer("damaged")), "{error}");
}

#[test]
fn weights_come_back_as_they_went_and_too_large_ones_are_named() {
    for family in FAMILIES {
        let model = model(family);
        let mut layers = weights(&model);
        let files = WeightsFiles::new(&model, WeightType::F32, u64::MAX);
        let file = &bytes_of(&files, &layers)["model.safetensors"];
        assert_eq!(import_safetensors(&model, file).expect("its own file"), layers);
        layers[3][7] = -7e4;
        let files = WeightsFiles::new(&model, WeightType::F16, u64::MAX);
        let error = files.files()[0].write(&layers, &mut Vec::new()).expect_err("beyond 65,504");
        let WriteWeightsError::Overflow { tensor, found, kind } = &error else { panic!("{error}") };
        assert_eq!((*found, *kind), (-7e4, WeightType::F16));
        assert!(tensor.contains(".1."), "the second block: {tensor}");
        assert!(error.to_string().contains("more than float16 holds"), "{error}");
    }
}

#[test]
fn the_configuration_names_type_and_special_tokens() {
    let ids = r#"{"bos_token_id": 1, "eos_token_id": [2, 7]}"#;
    let ids = SpecialTokenIds::of_config(ids);
    for family in FAMILIES {
        let model = model(family);
        let text = exported_config_json(&model, WeightType::Bf16, &ids);
        assert_eq!(parse_config(&text).expect("its own text"), model);
        let keys: Value = serde_json::from_str(&text).expect("JSON");
        for (key, expected) in [
            ("dtype", "\"bfloat16\""),
            ("torch_dtype", "\"bfloat16\""),
            ("bos_token_id", "1"),
            ("eos_token_id", "[2,7]"),
            ("pad_token_id", "null"),
        ] {
            assert_eq!(keys[key].to_string(), expected, "{key}");
        }
    }
    let generation: Value = serde_json::from_str(&generation_config_json(&ids)).expect("JSON");
    assert_eq!(generation["eos_token_id"].to_string(), "[2,7]");
    assert!(generation.get("pad_token_id").is_none());
}
