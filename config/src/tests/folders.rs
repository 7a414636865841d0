//! Models whose shape is read from a folder.

use super::{check_round_trip, set, without_folder};
use crate::{ConfigNote, ConfigSources, WeightSource, load, load_document, load_recorded};

/// A folder with this `config.json`, and the sources that name it.
fn folder_model(config: &str, flags: &[&str]) -> (tempfile::TempDir, ConfigSources) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), config).expect("a file");
    let from = format!("model.from_hf={}", folder.path().display());
    let flags = std::iter::once(from.as_str()).chain(flags.iter().copied()).map(set).collect();
    (folder, ConfigSources { file: None, flags })
}

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 56,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "head_dim": 8,
    "max_position_embeddings": 64, "vocab_size": 101}"#;
const GPT2: &str = r#"{"model_type": "gpt2", "n_embd": 24, "n_head": 5, "n_layer": 3,
    "n_positions": 64, "vocab_size": 256}"#;

#[test]
fn a_folder_says_what_the_model_is() {
    let (folder, sources) = folder_model(LLAMA, &[]);
    let loaded = load(&sources).expect("legal");
    let model = &loaded.config.model;
    assert_eq!((model.blocks, model.width, model.positions), (3, 32, 64));
    let expected = WeightSource::HuggingFace { folder: folder.path().to_owned() };
    assert_eq!(loaded.config.weights, expected);
    assert_eq!(loaded.config.batch.microbatch.sequence_len, 128);
    assert_eq!(loaded.notes, [ConfigNote::FewTokens { vocabulary: 101 }]);
    check_round_trip(&loaded);
}

/// A cluster is sent no folder: what the model is has to be said by keys.
#[test]
fn what_a_folder_says_can_be_said_by_keys() {
    let sizes = r#""hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 3, "head_dim": 16, "max_position_embeddings": 64, "vocab_size": 301"#;
    let scaling = r#""rope_scaling": {"rope_type": "llama3", "factor": 4.5, "low_freq_factor": 2,
        "high_freq_factor": 8, "original_max_position_embeddings": 16}"#;
    let models = [
        format!(r#"{{"model_type": "llama", "mlp_bias": true, {scaling}, {sizes}}}"#),
        format!(r#"{{"model_type": "qwen2", {sizes}}}"#),
        format!(r#"{{"model_type": "mistral", "sliding_window": 20, {sizes}}}"#),
        format!(r#"{{"model_type": "qwen3", "attention_bias": true, {sizes}}}"#),
        r#"{"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 3, "n_positions": 64,
            "vocab_size": 256, "tie_word_embeddings": false}"#
            .to_owned(),
    ];
    for model in models {
        let (_folder, sources) = folder_model(&model, &["train.seq_len=32"]);
        let mut config = load(&sources).expect("legal").config;
        assert_eq!(config.model.positions, 64);
        config.weights = WeightSource::Drawn;
        let again = load_document("again", &config.effective()).expect("legal").config;
        assert_eq!(again.model, config.model, "{model}");
    }
}

/// A run is evaluated and exported wherever the folder is that its weights came from.
#[test]
fn a_run_that_began_needs_its_models_folder_no_more() {
    let mistral = LLAMA.replace("\"llama\"", "\"mistral\", \"sliding_window\": 20");
    for model in [LLAMA, &mistral] {
        let (folder, sources) = folder_model(model, &["train.seq_len=32"]);
        let config = load(&sources).expect("legal").config;
        folder.close().expect("removed");
        let recorded = config.effective();
        assert!(load_document("new", &recorded).is_err(), "a new run reads the folder");
        assert_eq!(load_recorded("run", &recorded).expect("it began").config, config);
    }
}

#[test]
fn a_folder_and_keys_do_not_both_say_what_the_model_is() {
    let (folder, sources) = folder_model(GPT2, &["model.preset=tiny", "model.layers=2"]);
    let failure = load(&sources).expect_err("two models");
    let details = without_folder(failure, folder.path()).details;
    let details: Vec<String> = details.iter().map(ToString::to_string).collect();
    let expected = "  --set: model.preset stands beside model.from_hf
  why: the folder's config.json says what the model is
  try: leave out model.preset or model.from_hf
  --set: model.layers stands beside model.from_hf
  why: the folder's config.json says what the model is
  try: leave out model.layers or model.from_hf
  config.json: config.json: `n_head` is 5; only a number that divides n_embd is supported";
    assert_eq!(details.join("\n"), expected);
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let (_folder, sources) = folder_model("{\"model_type\": \"bert\"}", &[]);
    let failure = load(&sources).expect_err("bert");
    assert!(failure.details[0].what.contains("`model_type` is \"bert\""), "{failure}");
    let missing = ConfigSources { file: None, flags: vec![set("model.from_hf=no/such")] };
    let failure = load(&missing).expect_err("missing");
    let what = "model.from_hf: no/such/config.json cannot be read: ";
    assert!(failure.details[0].what.starts_with(what), "{failure}");
    let untied = GPT2.replace("\"n_head\": 5", "\"n_head\": 4, \"tie_word_embeddings\": false");
    let (_folder, sources) = folder_model(&untied, &["train.seq_len=65"]);
    let failure = load(&sources).expect_err("too long");
    let what = "train.seq_len: 65 tokens, but the model has 64 positions";
    assert_eq!(failure.details[0].what, what);
    let (_folder, sources) = folder_model(&untied, &["train.seq_len=64"]);
    assert!(load(&sources).is_ok());
}

/// PEFT drops inputs of adapters in training alone, and training here drops none: a person who goes on
/// reads that by the name of the key.
#[test]
fn dropout_of_adapters_is_left_out_with_a_note() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = format!("lora.from={}", folder.path().display());
    let sources = ConfigSources { file: None, flags: vec![set("model.preset=tiny"), set(&from)] };
    let notes_with = |dropout: &str| {
        let text = format!(
            r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"],
                "bias": "none", "lora_dropout": {dropout}}}"#
        );
        std::fs::write(folder.path().join("adapter_config.json"), text).expect("a file");
        load(&sources).expect("legal").notes
    };
    assert_eq!(notes_with("0.0"), []);
    let [note] = &notes_with("0.05")[..] else { panic!("one note") };
    let expected =
        "adapter_config.json has lora_dropout = 0.05: training has no dropout and leaves it out";
    assert_eq!(note.to_string(), expected);
}

/// Bytes mean other things to a model that learnt tokens, and a model of bytes with rows to spare
/// brings no tokenizer.
#[test]
fn a_model_that_reads_tokens_is_refused() {
    let wide = GPT2
        .replace("\"n_head\": 5", "\"n_head\": 4, \"tie_word_embeddings\": false")
        .replace("\"vocab_size\": 256", "\"vocab_size\": 257");
    let (folder, sources) = folder_model(&wide, &["train.seq_len=64"]);
    assert_eq!(load(&sources).expect("legal").notes, [ConfigNote::ManyTokens { vocabulary: 257 }]);
    let note = ConfigNote::ManyTokens { vocabulary: 257 }.to_string();
    assert!(note.contains("data.tokenizer = \"FOLDER\""), "{note}");
    let dropout = wide.replacen('{', "{\"attn_pdrop\": 0.1, \"embd_pdrop\": 0.0, ", 1);
    std::fs::write(folder.path().join("config.json"), dropout).expect("a file");
    let note = ConfigNote::Dropout { file: "config.json", key: "attn_pdrop".to_owned(), rate: 0.1 };
    let notes = [ConfigNote::ManyTokens { vocabulary: 257 }, note];
    assert_eq!(load(&sources).expect("legal").notes, notes);
    std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("a file");
    let failure = load(&sources).expect_err("it reads tokens");
    let what = "model.from_hf: the model has 257 tokens of its own tokenizer";
    assert_eq!(failure.details[0].what, what);
    let hint = "--text with files, which are read by it; or data.tokenizer = \"bytes\"";
    assert!(failure.to_string().contains(hint), "{failure}");
    let bytes = [&sources.flags[..], &[set("data.tokenizer=bytes")]].concat();
    let bytes = load(&ConfigSources { file: None, flags: bytes }).expect("bytes are named");
    assert_eq!(bytes.notes.first(), Some(&ConfigNote::ManyTokens { vocabulary: 257 }));
    // One of a form that is not read here reads no text by itself.
    let named = |name: &str| folder.path().join(name);
    std::fs::rename(named("tokenizer.json"), named("tokenizer.model")).expect("a file");
    let text = [&sources.flags[..], &[set("data.text=a.txt")]].concat();
    let failure = load(&ConfigSources { file: None, flags: text }).expect_err("it reads tokens");
    assert!(failure.to_string().contains("save_pretrained(DIR)"), "{failure}");
}

#[test]
fn text_is_read_by_the_tokenizer_of_the_models_folder_unless_another_is_named() {
    let llama = LLAMA.replace("\"vocab_size\": 101", "\"vocab_size\": 301");
    let (folder, sources) = folder_model(&llama, &["train.seq_len=32"]);
    let loaded = |flags: &[&str]| {
        let flags = flags.iter().map(|flag| set(flag));
        let flags = sources.flags.iter().cloned().chain(flags).collect();
        load(&ConfigSources { file: None, flags }).expect("legal")
    };
    let many = [ConfigNote::ManyTokens { vocabulary: 301 }];
    let text = "data.text=a.txt";
    let without = loaded(&[text]);
    assert!(without.config.tokens.is_bytes() && without.notes == many);
    std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("a file");
    let own = loaded(&[text]);
    assert_eq!(own.config.tokens.tokenizer.as_deref(), Some(folder.path()));
    assert!(own.config.tokens.is_encoded_text() && own.notes.is_empty());
    check_round_trip(&own);
    let other = loaded(&[text, "data.tokenizer=tok"]);
    assert_eq!(other.config.tokens.tokenizer.as_deref(), Some(std::path::Path::new("tok")));
    let bytes = loaded(&[text, "data.tokenizer=bytes"]);
    assert!(bytes.config.tokens.is_bytes() && bytes.notes == many);
    // A run that goes on by its own configuration reads bytes again.
    check_round_trip(&bytes);
    let recorded = load_recorded("run", &bytes.config.effective()).expect("it began");
    assert_eq!(recorded.config, bytes.config);
}
