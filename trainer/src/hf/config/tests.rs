//! Files as transformers writes them, and what each key of them means.

use super::*;
use crate::hf::config_json;

/// A file of an object that ends with these keys; a later key replaces an earlier one.
fn file_of(text: &str) -> String {
    let file: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    file.to_string()
}

/// A file of this type, with these keys beside the sizes.
fn llama_file(model_type: &str, keys: &str) -> String {
    let text = r#"{"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "max_position_embeddings": 64, "vocab_size": 99, "rope_theta": 1e4,
        "model_type": "#;
    file_of(&format!("{text}\"{model_type}\"{keys}}}"))
}

fn parsed(model_type: &str, keys: &str) -> ModelConfig {
    let file = llama_file(model_type, keys);
    parse_config(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn check_refused(model_type: &str, keys: &str, part: &str) {
    let error = parse_config(&llama_file(model_type, keys)).expect_err(keys).to_string();
    assert!(error.contains(part), "{error}, expected {part}");
}

#[test]
fn model_types_have_their_biases_and_norms() {
    let check = |model_type: &str, keys: &str, attention_bias, mlp_bias, qk_norm| {
        let LlamaFeatures { rope_scaling: None, .. } = parsed(model_type, keys).features else {
            panic!("no scaling")
        };
        let expected = LlamaFeatures { attention_bias, mlp_bias, qk_norm, rope_scaling: None };
        assert_eq!(parsed(model_type, keys).features, expected, "{model_type} {keys}");
    };
    check("llama", "", AttentionBias::None, false, false);
    check("llama", r#", "attention_bias": true"#, AttentionBias::All, false, false);
    check("llama", r#", "mlp_bias": true"#, AttentionBias::None, true, false);
    check("mistral", r#", "sliding_window": null"#, AttentionBias::None, false, false);
    check("qwen2", "", AttentionBias::Qkv, false, false);
    check("qwen3", r#", "head_dim": 16"#, AttentionBias::None, false, true);
    check("qwen3", r#", "attention_bias": true"#, AttentionBias::All, false, true);
    assert_eq!(parsed("llama", "").head_width, 8);
    assert_eq!(parsed("qwen3", "").head_width, 128);
    assert_eq!(parsed("qwen3", r#", "head_dim": 16"#).head_width, 16);
    check_refused(
        "mistral",
        r#", "sliding_window": null, "attention_bias": true"#,
        "`attention_bias`",
    );
    check_refused("qwen2", r#", "mlp_bias": true"#, "`mlp_bias`");
    check_refused("phi3", "", "`model_type` is \"phi3\"");
}

#[test]
fn rotary_parameters_are_read_in_both_spellings() {
    let linear = Some(RopeScaling::Linear { factor: 4.0 });
    let check = |keys: &str, theta: f64, scaling: Option<RopeScaling>| {
        let found = parsed("llama", keys);
        assert_eq!((found.rope_theta, found.features.rope_scaling), (theta, scaling), "{keys}");
    };
    check(r#", "rope_scaling": null"#, 1e4, None);
    check(r#", "rope_scaling": {"type": "linear", "factor": 4}"#, 1e4, linear);
    check(r#", "rope_scaling": {"rope_type": "linear", "factor": 4.0}"#, 1e4, linear);
    check(r#", "rope_parameters": {"rope_type": "default", "rope_theta": 10000}"#, 1e4, None);
    let newer = r#", "rope_theta": null, "rope_parameters":
        {"rope_type": "linear", "rope_theta": 5e5, "factor": 4}"#;
    check(newer, 5e5, linear);
    check_refused(
        "llama",
        r#", "rope_scaling": {"rope_type": "linear", "type": "default", "factor": 4}"#,
        "`rope_scaling.rope_type` is \"linear\", and `rope_scaling.type` has \"default\"",
    );
    check_refused(
        "llama",
        r#", "rope_scaling": {"rope_type": "yarn"}"#,
        "`rope_scaling.rope_type`",
    );
    check_refused("llama", r#", "rope_scaling": {"type": "dynamic"}"#, "`rope_scaling.type`");
    let more = r#", "rope_scaling": {"type": "linear", "factor": 4, "beta": 1}"#;
    check_refused("llama", more, "`rope_scaling.beta`");
    check_refused(
        "llama",
        r#", "rope_parameters": {"rope_theta": 5}"#,
        "`rope_theta` is 10000.0, and",
    );
    check_refused(
        "llama",
        r#", "rope_scaling": {"rope_type": "llama3", "factor": 8}"#,
        "`rope_scaling",
    );
    check_refused("llama", r#", "rope_scaling": 4"#, "an object");
    let both = r#", "rope_theta": null, "rope_scaling": {"type": "linear", "factor": 4},
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4}"#;
    check(both, 5e5, linear);
    let other = r#", "rope_theta": null, "rope_scaling": {"type": "linear", "factor": 4},
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 3}"#;
    check_refused("llama", other, "`rope_scaling`");
}

/// The defaults of transformers' classes.
#[test]
fn key_heads_that_are_not_named_are_those_of_the_type() {
    let check = |model_type: &str, keys: &str, expected| {
        assert_eq!(parsed(model_type, keys).kv_heads, expected, "{model_type} {keys}");
    };
    check("llama", "", 4);
    check("mistral", "", 8);
    check("qwen2", "", 32);
    check("qwen3", "", 32);
    check("mistral", r#", "num_key_value_heads": null"#, 4);
    check("mistral", r#", "num_key_value_heads": 2"#, 2);
}

#[test]
fn a_window_is_that_of_all_layers_or_refused() {
    let check = |model_type: &str, keys: &str, window| {
        assert_eq!(parsed(model_type, keys).sliding_window, window, "{model_type} {keys}");
    };
    check("mistral", r#", "sliding_window": 63"#, Some(63));
    check("mistral", r#", "sliding_window": null"#, None);
    // That of transformers' class, if there is none in the file.
    check("mistral", "", Some(4096));
    check_refused("llama", r#", "sliding_window": 63"#, "`sliding_window`");
    let qwen = |used: bool, first: u32| {
        format!(
            r#", "sliding_window": 4, "use_sliding_window": {used}, "max_window_layers": {first}"#
        )
    };
    check("qwen2", &qwen(true, 0), Some(4));
    check("qwen2", &qwen(false, 2), None);
    check("qwen2", &qwen(true, 2), None);
    check_refused("qwen2", &qwen(true, 1), "`max_window_layers`");
    let types = |types: &str| {
        format!(r#", "sliding_window": 4, "use_sliding_window": true, "layer_types": {types}"#)
    };
    check("qwen3", &types(r#"["full_attention", "full_attention"]"#), None);
    check("qwen3", &types(r#"["sliding_attention", "sliding_attention"]"#), Some(4));
    let mixed = types(r#"["full_attention", "sliding_attention"]"#);
    check_refused("qwen3", &mixed, "`layer_types`");
    check_refused("qwen3", &types(r#"["full_attention"]"#), "`layer_types`");
    check_refused("qwen3", &types(r#"["linear_attention", "full_attention"]"#), "`layer_types`");
}

#[test]
fn keys_without_effect_may_stand_there_and_no_others() {
    parsed("llama", r#", "torch_dtype": "bfloat16", "use_cache": true, "attention_dropout": 0.0"#);
    parsed("llama", r#", "is_llama_config": true, "rope_interleaved": false"#);
    parsed("llama", r#", "attention_dropout": 0.1"#);
    let dumped = r#", "pruned_heads": {}, "tie_encoder_decoder": false, "tf_legacy_loss": false,
        "quantization_config": null, "use_mrope": false, "transformers.js_config": {"dtype": "q4"}"#;
    parsed("llama", dumped);
    check_refused("llama", r#", "pruned_heads": {"1": [0]}"#, "`pruned_heads`");
    check_refused("qwen2", r#", "use_mrope": true"#, "`use_mrope`");
    check_refused("llama", r#", "logit_scale": 2.0"#, "`logit_scale` = 2.0 is not understood");
    check_refused("llama", r#", "quantization_config": {"bits": 4}"#, "`quantization_config`");
    check_refused("llama", r#", "rope_interleaved": true"#, "`rope_interleaved`");
    check_refused("llama", r#", "hidden_act": "gelu""#, "`hidden_act`");
}

#[test]
fn what_is_written_is_read_as_the_same_model() {
    let scalings = [
        None,
        Some(RopeScaling::Linear { factor: 2.5 }),
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 64,
        }),
    ];
    let mut types = std::collections::BTreeSet::new();
    let biases = [AttentionBias::None, AttentionBias::Qkv, AttentionBias::All];
    let others = [(false, false), (false, true), (true, false), (true, true)];
    let windows = [None, Some(7)];
    let all = biases.iter().flat_map(|bias| others.iter().map(move |other| (*bias, *other)));
    for (attention_bias, (mlp_bias, qk_norm)) in all {
        for (rope_scaling, sliding_window) in scalings
            .iter()
            .flat_map(|scaling| windows.iter().map(move |window| (*scaling, *window)))
        {
            let features = LlamaFeatures { attention_bias, mlp_bias, qk_norm, rope_scaling };
            let plain = parsed("llama", r#", "head_dim": 6"#);
            let model = ModelConfig { features, sliding_window, ..plain };
            if !features.is_of_transformers(sliding_window) {
                assert_eq!(model.errors(), [crate::model::ModelError::Features]);
                continue;
            }
            assert_eq!(model.errors(), []);
            let text = config_json(&model);
            assert_eq!(parse_config(&text).expect(&text), model);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            types.insert(value["model_type"].to_string());
        }
    }
    let expected = ["\"llama\"", "\"mistral\"", "\"qwen2\"", "\"qwen3\""];
    assert_eq!(types.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn the_file_of_a_gpt2_may_be_of_an_older_release_but_not_in_doubt() {
    let file = |keys: &str| {
        file_of(&format!(
            r#"{{"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 16,
            "vocab_size": 99{keys}}}"#
        ))
    };
    let older = r#", "n_special": 0, "predict_special_tokens": true, "output_past": true, "_num_labels": 1"#;
    assert_eq!(parse_config(&file(older)).expect("an older file").head_width, 6);
    let check = |keys: &str, part: &str| {
        let error = parse_config(&file(keys)).expect_err(keys).to_string();
        assert!(error.contains(part), "{error}, expected {part}");
    };
    check(r#", "tie_word_embeddings": null"#, "`tie_word_embeddings` is null; only true or false");
    check(r#", "n_head": 5"#, "`n_head` is 5; only a number that divides n_embd");
    check(r#", "activation_function": "gelu""#, "\"gelu_new\" or \"gelu_pytorch_tanh\"");
}

#[test]
fn what_would_be_another_model_and_a_key_that_stands_there_twice_are_refused() {
    for key in ["add_cross_attention", "is_encoder_decoder"] {
        for model_type in ["llama", "mistral", "qwen2", "qwen3"] {
            let part = format!("`{key}` is true; only false is supported");
            check_refused(model_type, &format!(r#", "{key}": true"#), &part);
        }
        parsed("llama", &format!(r#", "{key}": false"#));
    }
    let gpt2 = r#"{"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 2,
        "n_positions": 16, "vocab_size": 99, "add_cross_attention": KEY}"#;
    parse_config(&gpt2.replace("KEY", "false")).expect("a decoder");
    let error = parse_config(&gpt2.replace("KEY", "true")).expect_err("refused").to_string();
    assert!(error.contains("`add_cross_attention` is true"), "{error}");
    let twice = gpt2.replace("KEY", r#"false, "n_head": 4"#);
    let error = parse_config(&twice).expect_err("refused").to_string();
    assert!(error.contains("the key `n_head` appears twice"), "{error}");
    let nested = r#"false, "task_specific_params": {"a": 1, "a": 1}"#;
    let error = parse_config(&gpt2.replace("KEY", nested)).expect_err("refused").to_string();
    assert!(error.contains("the key `a` appears twice"), "{error}");
}
