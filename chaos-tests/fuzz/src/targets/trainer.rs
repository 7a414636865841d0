//! Layers, and models of others.

use std::path::{Component, Path};

use zbelastic_trainer::elastic::{
    ChainingValue, LayerAssembler, LayerImage, LoadedLayer, StateLen, image_bytes, layer_digest,
    moment_subtrees, moment_value, weights_end,
};
use zbelastic_trainer::hf::{
    PeftAdapters, SHARDS_MAX, ShardIndex, adapter_config_json, config_json, import_adapters,
    import_safetensors, parse_adapter_config, parse_config,
};
use zbelastic_trainer::model::{
    Family, FrozenTensors, LlamaFeatures, LoraInit, LoraScaling, LoraSettings, ModelConfig,
    model_layers,
};
use zbelastic_trainer::stage::Injection;

use super::check_text;
use crate::DecodeOutcome;

/// A model of the most blocks there may be has 20,002 layers of up to 12 tensors, each with a name.
pub const MODEL_MEMORY: usize = 128 << 20;
/// Bytes that come at once where a layer comes in pieces.
const PIECE_BYTES: usize = 7;

/// The model of the weights that are read.
#[must_use]
pub fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Gpt2,
        blocks: 1,
        width: 2,
        heads: 1,
        kv_heads: 1,
        head_width: 2,
        mlp_width: 2,
        features: LlamaFeatures::NONE,
        vocabulary: 3,
        sliding_window: None,
        positions: 2,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

fn in_pieces(bytes: &[u8], mut assembler: LayerAssembler) -> Option<LayerAssembler> {
    bytes.chunks(PIECE_BYTES).try_for_each(|piece| assembler.push(piece)).ok()?;
    Some(assembler)
}

/// The lengths that the header announces, if they are those of so many bytes.
fn len_of(layer: &[u8]) -> Option<StateLen> {
    let len = StateLen::of_header(layer.first_chunk()?).ok()?;
    (image_bytes(len) == layer.len() as u64).then_some(len)
}

/// The chaining values that stand for a layer's moments.
fn values_behind(layer: &[u8]) -> Vec<ChainingValue> {
    let read = |at: u64, into: &mut [u8]| {
        into.copy_from_slice(&layer[at as usize..][..into.len()]);
        Ok(())
    };
    let Some(len) = len_of(layer) else { return Vec::new() };
    let subtrees = moment_subtrees(len).into_iter();
    subtrees.map(|subtree| moment_value(subtree, read).expect("they are here")).collect()
}

/// A layer is the bytes that it is written as, however they come; its weights are proved without
/// its moments.
pub fn layers(bytes: &[u8]) -> DecodeOutcome {
    let length = bytes.len() as u64;
    let whole = LayerImage::decode(bytes);
    let pieces = in_pieces(bytes, LayerAssembler::new(length)).map(LayerAssembler::finish);
    let weights = len_of(bytes).and_then(|len| {
        let front = &bytes[..weights_end(len) as usize];
        in_pieces(front, LayerAssembler::of_weights(len))
    });
    let weights = weights.map(|weights| weights.finish_weights(&values_behind(bytes)));
    let Ok(image) = whole else {
        assert!(LoadedLayer::decode(bytes).is_err());
        assert!(!matches!(pieces, Some(Ok(_))) && !matches!(weights, Some(Ok(_))));
        return DecodeOutcome::Refused;
    };
    assert_eq!(image.encode(), bytes);
    let digest = layer_digest(&image);
    let (_, of_pieces) = pieces.expect("all were taken").expect("it is whole");
    assert_eq!(of_pieces, digest);
    assert_eq!(weights.expect("all were taken").expect("it is whole").digest, digest);
    assert_eq!(LoadedLayer::decode(bytes).expect("it is a layer").digest, digest);
    DecodeOutcome::Accepted
}

/// A model without an error is written as a `config.json` that is read as it.
pub fn model_configs(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(model) = parse_config(text) else { return DecodeOutcome::Refused };
    if !model.errors().is_empty() {
        return DecodeOutcome::Refused;
    }
    let again = parse_config(&config_json(&model)).expect("it reads what it wrote");
    // A GPT-2 has no rotary angles, so its file holds none.
    assert_eq!(ModelConfig { rope_theta: model.rope_theta, ..again }, model);
    DecodeOutcome::Accepted
}

fn import(model: &ModelConfig, file: &[u8]) -> DecodeOutcome {
    let Ok(layers) = import_safetensors(model, file) else { return DecodeOutcome::Refused };
    let found = layers.iter().map(Vec::len);
    assert!(found.eq(model_layers(model).iter().map(|spec| spec.len())), "every layer is whole");
    DecodeOutcome::Accepted
}

/// Weights have the lengths of their model.
pub fn safetensors(bytes: &[u8]) -> DecodeOutcome {
    import(&model(), bytes)
}

/// The same of the model that a `config.json` describes; a byte of zero ends it. A size that it
/// announces costs no memory before the weights are found to be there.
pub fn imports(bytes: &[u8]) -> DecodeOutcome {
    let (config, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(0));
    let (Ok(text), Some((_, file))) = (std::str::from_utf8(config), rest.split_first()) else {
        return DecodeOutcome::Refused;
    };
    let Ok(model) = parse_config(text) else { return DecodeOutcome::Refused };
    if model.errors().is_empty() { import(&model, file) } else { DecodeOutcome::Refused }
}

/// An index names files that lie beside it, each once, and no more than there may be.
pub fn shard_indexes(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(index) = ShardIndex::parse(text) else { return DecodeOutcome::Refused };
    let files = index.files();
    assert!((1..=SHARDS_MAX).contains(&files.len()) && files.is_sorted_by(|a, b| a < b));
    for name in files {
        let parts: Vec<Component<'_>> = Path::new(name).components().collect();
        assert_eq!(parts, [Component::Normal(name.as_ref())], "it leads out of the folder");
    }
    DecodeOutcome::Accepted
}

/// Adapters that the model can have are described by a file that is read as they are.
pub fn adapter_configs(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(PeftAdapters { settings, dropout }) = parse_adapter_config(text) else {
        return DecodeOutcome::Refused;
    };
    assert!((0.0..1.0).contains(&dropout));
    if let Ok(adapted) = settings.adapt(&model()) {
        let written = adapter_config_json(&adapted, None).expect("it has adapters");
        let again = parse_adapter_config(&written).expect("it reads what it wrote").settings;
        assert_eq!(again.adapt(&model()), Ok(adapted));
    }
    DecodeOutcome::Accepted
}

/// The model with an adapter of each linear layer.
#[must_use]
pub fn adapted() -> ModelConfig {
    let settings = LoraSettings {
        rank: 1,
        alpha: 2.0,
        scaling: LoraScaling::Standard,
        init: LoraInit::Kaiming,
        targets: vec!["all-linear".to_owned()],
    };
    settings.adapt(&model()).expect("a rank of 1 fits")
}

/// Adapters are written where they are of the model, and nothing else is.
pub fn adapters(bytes: &[u8]) -> DecodeOutcome {
    let model = adapted();
    let Ok(layers) = import_adapters(&model, bytes) else { return DecodeOutcome::Refused };
    for (spec, layer) in model_layers(&model).iter().zip(&layers) {
        assert_eq!(layer.len(), spec.len(), "every layer is whole");
        let base = spec.tensors.iter().filter(|tensor| !tensor.is_adapter());
        let mut floats = base.flat_map(|tensor| &layer[tensor.range.clone()]);
        assert!(floats.all(|x| x.to_bits() == 0));
    }
    DecodeOutcome::Accepted
}

/// A corruption is written as it is read.
pub fn injections(bytes: &[u8]) -> DecodeOutcome {
    std::str::from_utf8(bytes).map_or(DecodeOutcome::Refused, check_text::<Injection>)
}
