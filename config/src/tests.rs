//! Configurations: what they become, and what is reported about them.

mod folders;
mod injections;
mod refusals;

use std::path::Path;
use std::time::Duration;

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_data::window::Packing;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{
    AttentionBias, Family, LayerSpec, LlamaFeatures, RopeScaling, find_tensor, model_layers,
};
use zbelastic_trainer::optimizer::{LrDecay, WeightDecayScope};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode};

use super::{
    CheckpointConfig, ConfigFlag, ConfigNote, ConfigSources, ElasticConfig, Key, LoadedConfig,
    NoticePolicy, ReplanPolicy, ScheduleChoice, WeightSource, WindowChoice, check_injections,
    flag_value, load, load_document, load_recorded, parse_injections,
};

/// A configuration file of this text; its name in errors is `run.toml`.
pub fn load_text(text: &str) -> Result<LoadedConfig, CommandFailure> {
    load_with(text, &[])
}

fn load_with(text: &str, flags: &[ConfigFlag]) -> Result<LoadedConfig, CommandFailure> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.toml");
    std::fs::write(&file, text).expect("a file");
    let sources = ConfigSources { file: Some(file.clone()), flags: flags.to_vec() };
    load(&sources).map_err(|failure| without_folder(failure, folder.path()))
}

/// The failure with places relative to `folder`.
fn without_folder(mut failure: CommandFailure, folder: &std::path::Path) -> CommandFailure {
    let folder = format!("{}/", folder.display());
    for detail in &mut failure.details {
        detail.place = detail.place.take().map(|place| place.replace(&folder, ""));
        detail.what = detail.what.replace(&folder, "");
        detail.why = detail.why.take().map(|why| why.replace(&folder, ""));
    }
    failure
}

fn set(text: &str) -> ConfigFlag {
    ConfigFlag::Set(text.to_owned())
}

fn own(flag: &'static str, key: Key, text: &str) -> ConfigFlag {
    ConfigFlag::Own { flag, key, value: flag_value(key, text) }
}

/// The details of what is wrong with a file, as they are printed.
fn check_wrong(text: &str, flags: &[ConfigFlag], expected: &str) {
    let failure = load_with(text, flags).expect_err("the configuration is wrong");
    assert_eq!(failure.code, FailureCode::Usage);
    let details: Vec<String> = failure.details.iter().map(ToString::to_string).collect();
    assert_eq!(details.join("\n"), expected.trim_start_matches('\n'), "for {text}");
}

const TINY: &str = "[model]\npreset = \"tiny\"\n";

/// `text` behind the tiny preset, from line 3 on.
fn check_tiny(text: &str, expected: &str) {
    check_wrong(&format!("{TINY}{text}"), &[], expected);
}

#[test]
fn without_anything_the_quickstart_preset_holds() {
    let loaded = load(&ConfigSources::default()).expect("legal");
    let config = &loaded.config;
    assert_eq!(config.model.family, Family::Llama);
    assert_eq!((config.model.blocks, config.model.width, config.model.mlp_width), (8, 128, 352));
    assert_eq!((config.model.heads, config.model.kv_heads, config.model.head_width), (4, 2, 32));
    assert_eq!(config.model.positions, 128);
    assert_eq!(config.batch.microbatch_count, 8);
    assert_eq!(config.weights, WeightSource::Drawn);
    assert_eq!(config.text, [""; 0]);
    assert_eq!(config.guard.clip_norm, Some(1.0));
    assert_eq!(config.guard.spike_deviations, None);
    assert_eq!((config.schedule, config.window), (ScheduleChoice::Auto, WindowChoice::Auto));
    assert_eq!((config.stage_bytes_max, config.chunks_per_stage), (None, None));
    assert_eq!(config.slice_count, None);
    assert_eq!(loaded.notes, []);
}

#[test]
fn later_layers_cover_earlier_ones() {
    let text = format!("{TINY}width = 96\n[train]\nsteps = 10\nseed = 5\n");
    let flags = [
        set("train.steps=20"),
        set("optimizer.lr=3e-4"),
        set("optimizer.lr=2e-4"),
        set("schedule.kind=zb-h1"),
        set("data.text=[\"a\", \"b\"]"),
        own("--steps", Key::Steps, "30"),
    ];
    let loaded = load_with(&text, &flags).expect("legal");
    let config = &loaded.config;
    assert_eq!((config.model.blocks, config.model.width, config.model.mlp_width), (4, 96, 384));
    assert_eq!((config.steps, config.seed), (30, 5));
    assert_eq!(config.optimizer.lr, 2e-4);
    assert_eq!(config.schedule, ScheduleChoice::Kind(ScheduleKind::ZbH1));
    assert_eq!(config.text, ["a", "b"]);
    let origin = |key: Key| loaded.settings.origin(key).to_string();
    assert_eq!(origin(Key::Layers), "preset tiny");
    assert!(origin(Key::Width).ends_with("run.toml:3"));
    assert_eq!(origin(Key::Lr), "--set");
    assert_eq!(origin(Key::Steps), "--steps");
    assert_eq!(origin(Key::Clip), "default");
}

/// Targets are kept as they were written, and the model has the adapters; what is not set is what PEFT has.
#[test]
fn adapters_are_those_of_the_model() {
    let check = |text: &str, names: &[&str], scale| {
        let config = load_text(&format!("{TINY}{text}")).expect("legal").config;
        let layers = model_layers(&config.model);
        let trained = layers[1].trained_tensors().map(|tensor| tensor.name.as_str());
        assert_eq!(trained.collect::<Vec<_>>(), names);
        assert_eq!(config.model.lora.as_ref().map(|lora| lora.scale()), Some(scale));
        let again = load_document("again", &config.effective()).expect("legal").config;
        assert_eq!(again, config);
    };
    let attention = ["layers.0.attn.qkv.lora_A", "layers.0.attn.qkv.lora_B"];
    check("[lora]\nrank = 4\n", &attention, 1.0);
    check("[lora]\nrank = 4\nalpha = 6\ntargets = \"c_fc\"\n", &[], 1.5);
    let out = ["layers.0.attn.out.lora_A", "layers.0.attn.out.lora_B"];
    let text = "[lora]\nrank = 4\ntargets = [\"h.0-1.attn.c_proj\"]\ninit = \"gaussian\"\n";
    check(text, &out, 1.0);
    check("[lora]\nrank = 4\nscaling = \"rslora\"\n", &attention, 1.0);
    check("[lora]\nrank = 4\nalpha = 6\nscaling = \"rslora\"\n", &attention, 3.0);
    let all = load_text(TINY).expect("legal").config;
    assert!(!all.effective().contains("lora") && all.lora.is_none());
}

/// Patterns are kept as they were written, and the model has the tensors; what is written back is read
/// as the same.
#[test]
fn patterns_freeze_tensors_of_the_model() {
    let text = format!("{TINY}[train]\nfreeze = [\"embed\", \"layers.0-1.attn.*.weight\"]\n");
    let config = load_text(&text).expect("legal").config;
    let layers = model_layers(&config.model);
    let frozen = layers.iter().flat_map(LayerSpec::own_tensors).filter(|tensor| tensor.is_frozen);
    let names: Vec<&str> = frozen.map(|tensor| tensor.name.as_str()).collect();
    let attention =
        |block: u32| ["q", "k", "v", "out"].map(|of| format!("layers.{block}.attn.{of}"));
    let expected = [["embed.tokens", "embed.positions"].map(str::to_owned).to_vec()];
    let expected = [expected.concat(), attention(0).to_vec(), attention(1).to_vec()].concat();
    assert_eq!(names, expected);
    let again = load_document("again", &config.effective()).expect("legal").config;
    assert_eq!(again, config);
    let all = load_text(TINY).expect("legal").config;
    assert!(!all.effective().contains("freeze") && all.model.has_shape_of(&config.model));
    let injection = "step=1,tensor=layers.1.attn.k,value=nan".to_owned();
    let injections = parse_injections(&[injection]).expect("legal");
    let found = check_injections(&config, &injections);
    assert_eq!(found[0].what, "`layers.1.attn.k` is frozen and has no gradient");
}

/// Groups are kept as they were written, and the optimizer has the rates; what is written back is read as
/// the same. Adapters are tensors as others are.
#[test]
fn groups_of_weight_decay_reach_the_optimizer() {
    let groups = "decay_groups = [\"layers.*.attn.q=0.5\", \"*=0.25\", \"norm = 0\"]\n";
    for (adapters, adapted) in [("", None), ("[lora]\nrank = 4\n", Some(0.25))] {
        let text = format!("{TINY}{adapters}[optimizer]\n{groups}");
        let config = load_text(&text).expect("legal").config;
        assert_eq!(config.decay_groups[2], "norm = 0");
        let layers = model_layers(&config.model);
        let rate = |name: &str| {
            let (_, tensor) = find_tensor(&layers, name)?;
            Some(config.optimizer.decay_of(tensor))
        };
        let rates = ["embed.tokens", "layers.1.norm2", "norm.bias"].map(rate);
        assert_eq!(rates, [Some(0.25), Some(0.25), Some(0.0)]);
        assert_eq!(rate("layers.0.attn.qkv.lora_A"), adapted);
        let again = load_document("again", &config.effective()).expect("legal").config;
        assert_eq!(again, config);
    }
    let usual = load_text(TINY).expect("legal").config;
    assert!(!usual.effective().contains("decay_groups"));
}

#[test]
fn a_flag_can_choose_the_preset_and_its_values_need_no_quotes() {
    let flags = ["model.preset=bench-a", "schedule.window=1", "schedule.max_mem=64KiB"].map(set);
    let config = load_with(TINY, &flags).expect("legal").config;
    assert_eq!(config.model.width, 256);
    assert_eq!(config.window, WindowChoice::Fixed(Window::One));
    assert_eq!(config.stage_bytes_max, Some(Bytes(65536)));
}

#[test]
fn every_key_reaches_the_run() {
    let text = r#"
        [model]
        family = "llama"
        layers = 3
        width = 48
        heads = 5
        kv_heads = 1
        head_dim = 10
        mlp_width = 40
        vocab = 300
        norm_eps = 1e-6
        rope_theta = 5e5
        attention_bias = "all"
        qk_norm = true
        rope_scaling = "llama3"
        rope_factor = 4
        rope_bands = [2, 8]
        rope_original = 100
        sliding_window = 9
        positions = 99
        [data]
        text = "one.txt"
        packing = "documents"
        tokenizer = "tok"
        held_out = 0.2
        [train]
        steps = 7
        global_batch = 12
        microbatch = 3
        seq_len = 16
        seed = 18446744073709551615
        eval_every = 2
        [optimizer]
        lr = 1
        lr_min = 0.5
        betas = [0.8, 0.9]
        eps = 1e-6
        weight_decay = 0
        decay_on = "all"
        clip = 0
        warmup = 3
        decay = "linear"
        [schedule]
        kind = "zb-v"
        chunks = 2
        max_mem = "1.5GiB"
        window = "0"
        [guard]
        nonfinite = "replay"
        gnorm_z = 4
        retries = 2
    "#;
    let loaded = load_text(text).expect("legal");
    let config = &loaded.config;
    let model = &loaded.config.model;
    assert_eq!((model.blocks, model.width, model.mlp_width, model.vocabulary), (3, 48, 40, 300));
    assert_eq!((model.heads, model.kv_heads, model.head_width), (5, 1, 10));
    assert_eq!((model.norm_epsilon, model.rope_theta, model.positions), (1e-6, 5e5, 99));
    assert_eq!(model.sliding_window, Some(9));
    let features = LlamaFeatures {
        attention_bias: AttentionBias::All,
        mlp_bias: false,
        qk_norm: true,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 4.0,
            low_freq_factor: 2.0,
            high_freq_factor: 8.0,
            original_positions: 100,
        }),
    };
    assert_eq!(model.features, features);
    assert_eq!((&config.text[..], config.held_out_share), (&["one.txt".to_owned()][..], 0.2));
    assert_eq!(config.tokens.packing, Packing::Documents);
    assert_eq!(config.tokens.tokenizer.as_deref(), Some(Path::new("tok")));
    assert_eq!((config.steps, config.seed, config.evaluate_every), (7, u64::MAX, 2));
    assert_eq!((config.batch.microbatch.sequences, config.batch.microbatch_count), (3, 4));
    let optimizer = &config.optimizer;
    assert_eq!((optimizer.lr, optimizer.lr_min, optimizer.betas), (1.0, 0.5, [0.8, 0.9]));
    assert_eq!((optimizer.epsilon, optimizer.weight_decay, optimizer.warmup), (1e-6, 0.0, 3));
    assert_eq!((optimizer.decay_on, optimizer.decay), (WeightDecayScope::All, LrDecay::Linear));
    assert_eq!(config.guard.clip_norm, None);
    assert_eq!(config.guard.nonfinite, NonfinitePolicy::Replay);
    assert_eq!((config.guard.spike_deviations, config.guard.replays_max), (Some(4.0), 2));
    assert_eq!(config.schedule, ScheduleChoice::Kind(ScheduleKind::ZbV));
    assert_eq!(config.chunks_per_stage, Some(2));
    assert_eq!(config.stage_bytes_max, Some(Bytes(3 << 29)));
    assert_eq!(config.window, WindowChoice::Fixed(Window::Zero));
    check_round_trip(&loaded);
}

/// The effective configuration, in both forms, reads back as the same run.
fn check_round_trip(loaded: &LoadedConfig) {
    for text in [loaded.config.effective(), loaded.effective_with_origins()] {
        let again = load_text(&text).unwrap_or_else(|failure| panic!("{failure}\nof\n{text}"));
        assert_eq!(again.config, loaded.config, "{text}");
        assert_eq!(again.config.effective(), loaded.config.effective());
    }
}

#[test]
fn the_effective_configuration_reads_back_as_the_same_run() {
    let check = |flags: &[&str]| {
        let flags = flags.iter().map(|text| set(text)).collect();
        check_round_trip(&load(&ConfigSources { file: None, flags }).expect("legal"));
    };
    check(&[]);
    for preset in super::PRESETS {
        check(&[&format!("model.preset={}", preset.name)]);
    }
    check(&["model.norm_eps=1e-6", "model.head_dim=24", "model.heads=6", "model.kv_heads=3"]);
    let llama = "model.family=llama";
    check(&[llama, "model.mlp_bias=true", "model.rope_scaling=linear", "model.rope_factor=2.5"]);
    check(&[llama, "model.attention_bias=qkv", "model.positions=4096"]);
    check(&[llama, "model.sliding_window=4096"]);
    check(&["optimizer.clip=0", "guard.gnorm_z=2.5", "guard.nonfinite=replay", "train.seed=0"]);
    check(&["optimizer.kind=muon", "optimizer.muon_momentum=0.9"]);
    check(&["schedule.kind=1f1b", "schedule.window=0", "schedule.max_mem=1000"]);
    check(&["schedule.kind=gis", "schedule.chunks=3"]);
    check(&["schedule.kind=seq1f1b", "schedule.slices=4"]);
    check(&["data.text=[\"a \\\"b\\\"\", \"c\\\\d\\u0007\"]", "optimizer.lr=1e-30"]);
}

#[test]
fn what_may_not_be_meant_is_noted() {
    let flags = ["train.steps=5", "optimizer.lr_min=1"].map(set);
    let loaded = load_with(TINY, &flags).expect("legal");
    let rising = ConfigNote::RisingRate { lr: 1e-3, lr_min: 1.0 };
    assert_eq!(loaded.notes, [ConfigNote::LongWarmup { warmup: 20, steps: 5 }, rising]);
    let even = load_with(TINY, &[set("train.steps=20")]).expect("legal");
    assert_eq!(even.notes, []);
}

#[test]
fn documents_are_kept_apart_only_where_they_are_known() {
    check_tiny(
        "[data]\ntext = \"a.txt\"\npacking = \"documents\"\n",
        "
  run.toml:5: data.packing: text that is read as bytes is one stream, in which no documents are known
  why: attention would cross documents all the same
  try: data.tokens, or data.tokenizer with data.text; or leave out data.packing",
    );
    let tokenized = "[data]\ntext = \"a.txt\"\ntokenizer = \"tok\"\npacking = \"documents\"\n";
    let config = load_text(&format!("{TINY}{tokenized}")).expect("legal").config;
    assert!(!config.tokens.is_bytes());
    let bytes = load_text(TINY).expect("legal").config;
    assert!(bytes.tokens.is_bytes() && bytes.tokens.is_default());
}

/// The stores of a run that began may be elsewhere, and its job does not name them.
#[test]
fn the_configuration_of_a_run_that_began_is_read_without_its_stores() {
    let text = "[data]\ntokens = [\"no/where=2\"]\npacking = \"documents\"\n";
    let text = format!("{TINY}vocab = 99\n{text}");
    load_document("new", &text).expect_err("there is no store");
    let mut config = load_recorded("run", &text).expect("it began").config;
    assert_eq!((config.model.vocabulary, config.tokens.packing), (99, Packing::Documents));
    assert_eq!(config.tokens.stores[0].folder, Path::new("no/where"));
    assert_eq!(load_recorded("run", &config.effective()).expect("it began").config, config);
    config.tokens.stores.clear();
    assert_eq!(load_recorded("job", &config.effective()).expect("it began").config, config);
}

#[test]
fn what_a_cluster_does_has_defaults_and_limits() {
    let config = load(&ConfigSources::default()).expect("legal").config;
    let CheckpointConfig { every, every_time, keep_last, folder, copies, mirror } =
        config.checkpoint;
    assert_eq!((every, keep_last, folder, copies, mirror), (100, 3, None, 1, None));
    assert_eq!(every_time, Duration::from_secs(60));
    let ElasticConfig { min_nodes, settle, on_notice, .. } = config.elastic;
    let ElasticConfig { detect_timeout, copies, replan, .. } = config.elastic;
    assert_eq!((min_nodes, settle), (1, Duration::from_millis(500)));
    assert_eq!((on_notice, detect_timeout), (NoticePolicy::Drain, Duration::from_millis(700)));
    assert_eq!((copies, replan), (1, ReplanPolicy::Drift));
    let text = "[checkpoint]\nevery = 2048\nevery_time = \"0ms\"\nkeep_last = 16\ndir = \"/c\"\ncopies = 2\n\
                mirror = \"s3://b/wiki\"\n[elastic]\n\
                min_nodes = 256\nsettle = \"1m\"\non_notice = \"ignore\"\n\
                detect_timeout = \"240ms\"\ncopies = 2\nreplan = \"never\"\n";
    let config = load_text(&format!("{TINY}{text}")).expect("legal").config;
    assert_eq!((config.checkpoint.every, config.checkpoint.keep_last), (2048, 16));
    assert_eq!(config.checkpoint.every_time, Duration::ZERO);
    assert_eq!(config.checkpoint.folder, Some("/c".into()));
    assert_eq!(config.checkpoint.mirror.as_deref(), Some("s3://b/wiki"));
    assert_eq!((config.elastic.min_nodes, config.elastic.on_notice), (256, NoticePolicy::Ignore));
    assert_eq!((config.elastic.copies, config.elastic.replan), (2, ReplanPolicy::Never));
    let again = load_document("again", &config.effective()).expect("legal").config;
    assert_eq!(again, config);
}

#[test]
fn what_a_cluster_cannot_do_is_refused() {
    check_tiny(
        "[checkpoint]\nevery = 2049\nkeep_last = 17\ncopies = 3\n[elastic]\nmin_nodes = 257\n\
         settle = 500\ndetect_timeout = \"239ms\"\ncopies = 3\n",
        "
  run.toml:4: checkpoint.every: expected a whole number from 0 to 2048, found 2049
  why: On a cluster, a checkpoint after every so many steps; 0: never.
  try: checkpoint.every = 100, the default
  run.toml:5: checkpoint.keep_last: expected a whole number from 1 to 16, found 17
  why: The newest so many checkpoints are kept, older ones removed.
  try: checkpoint.keep_last = 3, the default
  run.toml:6: checkpoint.copies: expected a whole number from 0 to 2, found 3
  why: Other nodes that each piece of a checkpoint is sent to, so that a lost disk loses none.
  try: checkpoint.copies = 1, the default
  run.toml:8: elastic.min_nodes: expected a whole number from 1 to 256, found 257
  why: A run begins, and goes on after losses, with so many workers or more.
  try: elastic.min_nodes = 1, the default
  run.toml:9: elastic.settle: expected a duration from \"0ms\" to \"1m\", found 500
  why: How long more nodes are waited for when one joins.
  try: elastic.settle = \"500ms\", the default
  run.toml:10: elastic.detect_timeout: expected a duration from \"240ms\" to \"10s\", found \"239ms\"
  why: How long a node may be silent before it is lost: four heartbeats of 60 ms at least.
  try: elastic.detect_timeout = \"700ms\", the default
  run.toml:11: elastic.copies: expected a whole number from 0 to 2, found 3
  why: Other nodes that hold each update before it is sealed: as many may be lost at once.
  try: elastic.copies = 1, the default",
    );
}
