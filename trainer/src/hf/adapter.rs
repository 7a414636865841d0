//! Adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`, as `save_pretrained` of peft
//! 0.17 writes them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::model::{Family, LoraConfig, LoraInit, LoraLinear, LoraTarget, ModelConfig};

/// The name of the file that describes adapters.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The name of the file of their weights.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// `adapter_config.json` of the adapters of a model whose other weights are in `base`, a folder or a name of
/// Hugging Face's, if they are known to lie anywhere. Nothing for a model without adapters.
///
/// # Panics
/// Never: the parts are plain names and numbers.
#[must_use]
pub fn adapter_config_json(model: &ModelConfig, base: Option<&str>) -> Option<String> {
    let lora = model.lora.as_ref()?;
    let initial = match lora.init {
        LoraInit::Kaiming => json!(true),
        LoraInit::Gaussian => json!("gaussian"),
    };
    let fields = [
        ("base_model_name_or_path", json!(base)),
        ("bias", json!("none")),
        // GPT-2 of transformers has its matrices transposed.
        ("fan_in_fan_out", json!(model.family == Family::Gpt2)),
        ("inference_mode", json!(true)),
        ("init_lora_weights", initial),
        ("lora_alpha", number(lora.alpha)),
        ("lora_dropout", json!(0.0)),
        ("modules_to_save", Value::Null),
        ("peft_type", json!("LORA")),
        ("r", json!(lora.rank)),
        ("target_modules", json!(target_modules(model, lora))),
        ("task_type", json!("CAUSAL_LM")),
        ("use_rslora", json!(!lora.scaling.is_standard())),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    let object = Value::Object(Map::from_iter(fields));
    Some(serde_json::to_string_pretty(&object).expect("names and numbers") + "\n")
}

/// A whole number without a point: PEFT declares it as one.
fn number(alpha: f64) -> Value {
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    if alpha.fract() == 0.0 && alpha < EXACT_MAX { json!(alpha as u64) } else { json!(alpha) }
}

/// The last parts of names where they name all adapted modules and no others, or else whole names.
fn target_modules(model: &ModelConfig, lora: &LoraConfig) -> Vec<String> {
    let family = model.family;
    let is_whole = |target: &&LoraTarget| target.blocks[..] == [[0, model.blocks]];
    let whole: BTreeSet<LoraLinear> =
        lora.targets.iter().filter(is_whole).map(|target| target.linear).collect();
    let last = |linear: LoraLinear| {
        let module = linear.module(family);
        module.rsplit_once('.').map_or(module, |(_, last)| last)
    };
    let short = |linear: LoraLinear| {
        let mut alike =
            LoraLinear::of_family(family).iter().filter(|it| last(**it) == last(linear));
        if alike.all(|it| whole.contains(it)) { last(linear) } else { linear.module(family) }
    };
    let names = lora.targets.iter().flat_map(|LoraTarget { linear, blocks }| {
        let linear = *linear;
        let blocks = blocks.iter().flat_map(|[first, end]| *first..*end);
        match whole.contains(&linear) {
            true => vec![short(linear).to_owned()],
            false => blocks.map(|block| linear.module_of(family, block)).collect(),
        }
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf::names::adapter_tensors;
    use crate::hf::{WeightType, WeightsFiles, import_adapters, parse_adapter_config};
    use crate::model::{
        FrozenTensors, LlamaFeatures, LoraScaling, LoraSettings, initial_weights, merge_layer,
        model_layers,
    };
    use zbelastic_kernels::HostThreads;

    fn adapted(family: Family, rank: u32, alpha: f64, targets: &[&str]) -> ModelConfig {
        let model = ModelConfig {
            family,
            blocks: 2,
            width: 8,
            heads: 2,
            kv_heads: if family == Family::Llama { 1 } else { 2 },
            head_width: 4,
            mlp_width: 12,
            features: LlamaFeatures::NONE,
            vocabulary: 10,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        };
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        let init = LoraInit::Kaiming;
        let scaling = LoraScaling::Standard;
        LoraSettings { rank, alpha, scaling, init, targets }.adapt(&model).expect("legal")
    }

    #[test]
    fn names_and_shapes_are_those_of_peft() {
        let check = |family, targets: &[&str], expected: &[(&str, [usize; 2])]| {
            let tensors = adapter_tensors(&adapted(family, 3, 6.0, targets));
            let found = tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..]));
            let expected = expected.iter().map(|(name, shape)| (*name, &shape[..]));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        };
        check(
            Family::Llama,
            &["layers.1.self_attn.k_proj", "layers.0.mlp.down_proj"],
            &[
                ("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", [3, 12]),
                ("base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", [8, 3]),
                ("base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", [3, 8]),
                ("base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", [4, 3]),
            ],
        );
        check(
            Family::Gpt2,
            &["h.0.attn.c_attn"],
            &[
                ("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", [3, 8]),
                ("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight", [24, 3]),
            ],
        );
    }

    #[test]
    fn modules_are_named_as_briefly_as_can_be() {
        let check = |family, targets: &[&str], expected: &[&str]| {
            let model = adapted(family, 2, 3.5, targets);
            let config = adapter_config_json(&model, Some("base")).expect("it has adapters");
            let config: Value = serde_json::from_str(&config).expect("JSON");
            assert_eq!(config["target_modules"], json!(expected), "{targets:?}");
            let rest = [&config["r"], &config["lora_alpha"], &config["base_model_name_or_path"]];
            assert_eq!(rest, [&json!(2), &json!(3.5), &json!("base")]);
            assert_eq!(config["fan_in_fan_out"], json!(family == Family::Gpt2));
        };
        check(Family::Llama, &["v_proj", "q_proj"], &["q_proj", "v_proj"]);
        check(Family::Gpt2, &["c_proj"], &["c_proj"]);
        check(Family::Gpt2, &["mlp.c_proj"], &["mlp.c_proj"]);
        let one = "model.layers.1.self_attn.o_proj";
        check(Family::Llama, &[one, "up_proj"], &[one, "up_proj"]);
        assert_eq!(number(16.0).to_string(), "16");
        assert_eq!(
            adapter_config_json(&adapted(Family::Llama, 1, 1.0, &["q_proj"]).without_lora(), None),
            None
        );
    }

    /// What describes exported adapters describes those that training goes on with.
    #[test]
    fn the_configuration_that_is_written_is_read_again() {
        for (family, scaling) in
            [(Family::Gpt2, LoraScaling::RsLora), (Family::Llama, LoraScaling::Standard)]
        {
            let init = LoraInit::Gaussian;
            let targets = vec!["all-linear".to_owned()];
            let settings = LoraSettings { rank: 2, alpha: 3.5, scaling, init, targets };
            let plain = adapted(family, 2, 4.0, &["all-linear"]).without_lora();
            let model = settings.adapt(&plain).expect("legal");
            let config = adapter_config_json(&model, None).expect("it has adapters");
            let read = parse_adapter_config(&config).expect("its own").settings;
            assert_eq!((read.scaling, read.alpha, read.init), (scaling, 3.5, init));
            assert_eq!(read.adapt(&plain), Ok(model));
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_merged_into_the_base() {
        for family in [Family::Gpt2, Family::Llama] {
            let model = adapted(family, 2, 4.0, &["all-linear"]);
            let specs = model_layers(&model);
            let mut layers: Vec<Vec<f32>> =
                specs.iter().map(|spec| initial_weights(spec, 7)).collect();
            for (spec, layer) in specs.iter().zip(&mut layers) {
                let adapters = spec.tensors.iter().filter(|tensor| tensor.is_adapter());
                adapters.for_each(|tensor| layer[tensor.range.start] = 0.5);
            }
            let files = WeightsFiles::of_adapters(&model, WeightType::F32);
            let [file] = files.files() else { panic!("one file") };
            assert_eq!(file.name(), ADAPTER_WEIGHTS);
            let mut bytes = Vec::new();
            file.write(&layers, &mut bytes).expect("memory");
            let read = import_adapters(&model, &bytes).expect("its own");
            for (spec, (layer, read)) in specs.iter().zip(layers.iter().zip(&read)) {
                for tensor in &spec.tensors {
                    let range = tensor.range.clone();
                    let is_same = layer[range.clone()] == read[range.clone()];
                    let is_zero = read[range].iter().all(|x| *x == 0.0);
                    assert!(if tensor.is_adapter() { is_same } else { is_zero }, "{}", tensor.name);
                }
            }
            let merged: Vec<Vec<f32>> = { specs.iter().zip(&layers) }
                .map(|(spec, layer)| merge_layer(&HostThreads::one(), &model, spec, layer))
                .collect();
            assert_ne!(merged[1], layers[1][..merged[1].len()]);
            let plain = model.without_lora();
            let lens = model_layers(&plain).iter().map(|spec| spec.len()).collect::<Vec<_>>();
            assert_eq!(merged.iter().map(Vec::len).collect::<Vec<_>>(), lens);
        }
    }
}
