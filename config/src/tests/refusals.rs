//! Problems of configurations, as they are printed.

use zbelastic_kernels::{DeviceSizes, Precision};
use zbelastic_wording::FailureCode;

use super::{TINY, check_tiny, check_wrong, load_text, load_with, set};
use crate::{ConfigSources, load};

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    check_tiny(
        "headz = 4\n[trian]\nsteps = 3\n[train]\nlr = 0.1\nbatch = 4\n[optimizer]\nlr_mim = 0.1\n",
        "
  run.toml:3: unknown key `model.headz`
  why: what is not known is refused, so that a misspelt key is not ignored
  try: model.heads
  run.toml:4: unknown section [trian]
  why: what is not known is refused, so that a misspelt key is not ignored
  try: [train]
  run.toml:7: unknown key `train.lr`
  why: what is not known is refused, so that a misspelt key is not ignored
  try: optimizer.lr
  run.toml:8: unknown key `train.batch`
  why: what is not known is refused, so that a misspelt key is not ignored
  try: one of steps, global_batch, microbatch, lanes, seq_len, seed, eval_every, z_loss, freeze, device, precision
  run.toml:10: unknown key `optimizer.lr_mim`
  why: what is not known is refused, so that a misspelt key is not ignored
  try: optimizer.lr_min",
    );
    check_wrong(
        "steps = 3\nmodel = \"tiny\"\n",
        &[set("model.preset=tiny"), set("stepz=3"), set("steps"), set("modl.heads=2")],
        "
  run.toml:1: `steps` stands in no section
  why: every key belongs to a section
  try: train.steps
  run.toml:2: expected a section [model], found a value
  --set: `stepz` stands in no section
  why: every key belongs to a section
  try: train.steps
  --set: expected section.key=value, found `steps`
  try: --set train.steps=100
  --set: unknown key `modl.heads`
  why: what is not known is refused, so that a misspelt key is not ignored
  try: model.heads",
    );
}

#[test]
fn patterns_that_freeze_nothing_are_refused_with_near_names() {
    let patterns = "\"embed\", \"layer.0-1.attn\", \"head.bias\", \"a..b\", \"layers.3-1\"";
    check_tiny(
        &format!("[train]\nfreeze = [{patterns}]\n"),
        "
  run.toml:4: train.freeze: no tensor of the model matches `layer.0-1.attn`
  why: the family, the number of layers and what is tied decide which tensors there are; a tied head \
         is frozen with embed
  try: layers.0.attn, layers.1.attn, layers.2.attn, layers.3.attn
  run.toml:4: train.freeze: no tensor of the model matches `head.bias`
  why: the family, the number of layers and what is tied decide which tensors there are; a tied head \
         is frozen with embed
  try: parts of embed, layers.0-7.attn.q, layers.*.mlp.up.bias, norm, head
  run.toml:4: train.freeze: `a..b` has an empty part; parts stand between dots, as in layers.0-7.attn
  try: parts of embed, layers.0-7.attn.q, layers.*.mlp.up.bias, norm, head
  run.toml:4: train.freeze: `layers.3-1` has a range that ends before it begins, 3 to 1
  try: 1-3",
    );
    check_tiny(
        "[train]\nfreeze = \"*\"\n",
        "
  run.toml:4: train.freeze: all 69 tensors of the model would be frozen
  why: nothing would be left to train
  try: leave a pattern out",
    );
    check_tiny(
        "tied = true\n[train]\nfreeze = [\"head\"]\n",
        "
  run.toml:5: train.freeze: no tensor of the model matches `head`
  why: the family, the number of layers and what is tied decide which tensors there are; a tied head \
         is frozen with embed
  try: embed",
    );
}

#[test]
fn groups_of_weight_decay_that_give_no_rate_are_refused() {
    let groups =
        "\"norm\", \"norm=-1\", \"layer.0=0\", \"a..b=0\", \"layers.3-1=inf\", \"layers.3-1=1\"";
    check_tiny(
        &format!("[optimizer]\ndecay_groups = [{groups}]\n"),
        "
  run.toml:4: optimizer.decay_groups: `norm` is not of the form PATTERN=RATE
  why: a group is a pattern over names of tensors and the rate of those that it matches
  try: layers.*.norm*=0, embed=0.01
  run.toml:4: optimizer.decay_groups: the rate of `norm=-1` is not a finite number from 0
  why: weights decay by the rate times the learning rate in each step
  try: 0 for no decay
  run.toml:4: optimizer.decay_groups: no tensor of the model matches `layer.0`
  why: the family, the number of layers and what is tied decide which tensors there are; a tied head \
         decays with embed
  try: layers.0, layers, layers.1, layers.2
  run.toml:4: optimizer.decay_groups: `a..b` has an empty part; parts stand between dots, as in layers.0-7.attn
  try: parts of embed, layers.0-7.attn.q, layers.*.mlp.up.bias, norm, head
  run.toml:4: optimizer.decay_groups: the rate of `layers.3-1=inf` is not a finite number from 0
  why: weights decay by the rate times the learning rate in each step
  try: 0 for no decay
  run.toml:4: optimizer.decay_groups: `layers.3-1` has a range that ends before it begins, 3 to 1
  try: 1-3",
    );
}

#[test]
fn adapters_that_cannot_be_are_refused_with_what_there_is() {
    check_tiny(
        "[lora]\nrank = 200\nalpha = 1e-80\ntargets = [\"c_attn\", \"q_proj\", \"h.3-1.c_fc\"]\n",
        "
  run.toml:5: lora.alpha: expected a finite number above 0, found 1e-80
  why: a run computes in single precision, which has no such number
  run.toml:6: lora.targets: no linear layer of a block matches `q_proj`
  why: embeddings, norms and the head have no adapters
  try: attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj, or all-linear
  run.toml:6: lora.targets: `h.3-1.c_fc` has a range that ends before it begins, 3 to 1
  try: 1-3
  run.toml:4: lora.rank: a rank of 200 is more than attn.c_attn has: it is 192 by 64
  why: an adapter of a higher rank than its matrix adapts nothing more
  try: at most 64",
    );
    check_tiny(
        "[lora]\ntargets = []\n",
        "
  run.toml:4: lora.targets is set, and lora.rank is not
  why: without a rank there are no adapters
  try: lora.rank=8",
    );
    check_tiny(
        "[lora]\nrank = 8\n[train]\nfreeze = [\"embed\"]\n",
        "
  run.toml:6: train.freeze stands beside lora.rank
  why: with adapters all else is frozen already
  try: no train.freeze; lora.targets says which layers have an adapter",
    );
}

#[test]
fn words_are_refused_with_the_nearest() {
    check_wrong(
        "[model]\npreset = \"tinny\"\n[schedule]\nkind = \"zb-h3\"\n[optimizer]\ndecay = \"cos\"\n",
        &[],
        "
  run.toml:2: model.preset: expected one of quickstart, tiny, bench-a, bench-b, bench-c, \
         gpt2-124m, found \"tinny\"
  why: A model with its usual batch, by name; keys beside it override single values.
  try: model.preset = \"tiny\"
  run.toml:4: schedule.kind: expected one of auto, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-auto, \
         zb-v, looped-bfs, gis, gis-h, po, v-half, v-min, 1f1b-v, dualpipe-v, gems, chimera, seq1f1b, \
         po-half, po-full, po-selective, pipedream, pipedream-2bw, pipemare, xpipe, spectrain, wpipe, avgpipe, ampnet, found \"zb-h3\"
  why: The pipeline schedule; auto takes the fastest that fits.
  try: schedule.kind = \"zb-h1\"
  run.toml:6: optimizer.decay: expected one of cosine, linear, constant, wsd, inverse_sqrt, found \"cos\"
  why: How the learning rate falls after the warm-up.
  try: optimizer.decay = \"cosine\"",
    );
}

#[test]
fn what_was_probably_meant_is_suggested() {
    for (key, typed, meant) in [
        ("schedule.max_mem", "10GB", "schedule.max_mem = \"10GiB\""),
        ("schedule.max_mem", "1.5g", "schedule.max_mem = \"1.5GiB\""),
        ("schedule.max_mem", "lots", "schedule.max_mem = \"10GiB\""),
        ("model.preset", "gpt2", "model.preset = \"gpt2-124m\""),
    ] {
        let failure = load_with(TINY, &[set(&format!("{key}={typed}"))]).expect_err(key);
        assert_eq!(failure.details[0].hint.as_deref(), Some(meant), "{failure}");
    }
}

#[test]
fn numbers_that_cannot_be_used_are_refused() {
    check_tiny(
        "[optimizer]\nlr = nan\neps = 1e-60\nbetas = [0.9, 1.0]\nclip = -1\n[train]\nsteps = 0\n",
        "
  run.toml:4: optimizer.lr: expected a finite number from 0, found nan
  why: TOML knows nan and inf, but no run gets anywhere with them
  try: optimizer.lr = 1e-3, the default
  run.toml:5: optimizer.eps: expected a finite number above 0, found 1e-60
  why: a run computes in single precision, which has no such number
  try: optimizer.eps = 1e-8, the default
  run.toml:6: optimizer.betas: expected two finite numbers from 0 to below 1, found [0.9, 1.0]
  why: Decay rates of the two moments.
  try: optimizer.betas = [0.9, 0.95], the default
  run.toml:7: optimizer.clip: expected a finite number from 0, found -1
  why: Largest norm of the whole gradient; a larger one is scaled down to it; 0: never.
  try: optimizer.clip = 1.0, the default
  run.toml:9: train.steps: expected a whole number from 1 to 1000000000000, found 0
  why: Optimizer steps of the run.
  try: train.steps = 300, the default",
    );
    for (key, refused) in [
        ("optimizer.lr", "-1e-3"),
        ("optimizer.lr", "inf"),
        ("optimizer.weight_decay", "-inf"),
        ("model.rope_theta", "nan"),
        ("model.norm_eps", "0"),
        ("data.held_out", "0.91"),
        ("data.held_out", "-0.1"),
        ("guard.gnorm_z", "nan"),
        ("train.microbatch", "4.0"),
        ("train.seed", "-1"),
        ("schedule.max_mem", "10GB"),
        ("schedule.window", "2"),
    ] {
        let failure = load_with(TINY, &[set(&format!("{key}={refused}"))]).expect_err(key);
        assert_eq!(failure.details.len(), 1, "{failure}");
        let what = format!("{key}: expected ");
        assert!(failure.details[0].what.starts_with(&what), "{failure}");
    }
}

#[test]
fn chunks_that_a_schedule_does_not_have_are_refused() {
    check_tiny(
        "[schedule]\nkind = \"zb-v\"\nchunks = 3\n",
        "
  run.toml:5: schedule.chunks: a stage of zb-v holds 2 chunks, found 3
  why: where a schedule lays chunks follows from how it orders them; schedule.kind = \"zb-v\" (run.toml:4)
  try: schedule.chunks = 2, or leave it out",
    );
    let refused = |kind: &str, chunks: u32| {
        let flags = [format!("schedule.kind={kind}"), format!("schedule.chunks={chunks}")];
        load_with(TINY, &flags.map(|text| set(&text))).is_err()
    };
    assert!(refused("interleaved", 1) && !refused("interleaved", 2) && !refused("interleaved", 9));
    assert!(refused("zb-h1", 2) && !refused("zb-h1", 1) && !refused("zb-h1", 0));
    assert!(!refused("auto", 3));
}

#[test]
fn slices_that_cannot_be_are_refused() {
    check_tiny(
        "[schedule]\nkind = \"1f1b\"\nslices = 2\n",
        "
  run.toml:5: schedule.slices: 2 slices for a schedule that cuts no sequences
  why: slices are a part of the arithmetic, so none are dropped silently; schedule.kind = \"1f1b\" (run.toml:4)
  try: schedule.kind = \"seq1f1b\", or leave out the slices",
    );
    check_tiny(
        "[schedule]\nkind = \"seq1f1b\"\nslices = 6\n",
        "
  run.toml:5: schedule.slices: 6 slices of equal length for sequences of 64 tokens
  why: all slices have the same length; train.seq_len = 64 (preset tiny); schedule.kind = \"seq1f1b\" (run.toml:4); schedule.slice_cut = \"tokens\" (default)
  try: schedule.slices = 4 or 8, another train.seq_len, or schedule.slice_cut = \"time\"",
    );
    check_tiny(
        "[schedule]\nkind = \"seq1f1b\"\nslice_cut = \"time\"\nslices = 65\n",
        "
  run.toml:6: schedule.slices: 65 slices of equal time for sequences of 64 tokens
  why: each slice has a token or more, and those of equal time are limited in number; train.seq_len = 64 (preset tiny); schedule.kind = \"seq1f1b\" (run.toml:4); schedule.slice_cut = \"time\" (run.toml:5)
  try: schedule.slices = 64 or less",
    );
    let refused = |kind: &str, slices: u32, sequence_len: u32| {
        let flags = [
            format!("schedule.kind={kind}"),
            format!("schedule.slices={slices}"),
            format!("train.seq_len={sequence_len}"),
        ];
        load_with(TINY, &flags.map(|text| set(&text))).is_err()
    };
    assert!(refused("auto", 2, 64) && !refused("auto", 1, 64) && !refused("auto", 0, 63));
    assert!(refused("pipedream", 2, 64));
    assert!(refused("seq1f1b", 0, 63) && !refused("seq1f1b", 1, 63) && !refused("seq1f1b", 7, 63));
}

#[test]
fn keys_that_do_not_go_together_are_refused_at_the_last_one() {
    check_tiny(
        "heads = 3\n[train]\nglobal_batch = 20\nmicrobatch = 3\n",
        "
  run.toml:3: model.heads: 3 heads do not divide a width of 64
  why: a head is width / heads wide unless model.head_dim says more; model.width = 64 (preset tiny)
  try: model.heads = 2 or 4, or set model.head_dim
  run.toml:6: train.microbatch: microbatches of 3 do not make up a batch of 20
  why: a step is so many whole microbatches; train.global_batch = 20 (run.toml:5)
  try: train.microbatch = 2 or 4, or another train.global_batch",
    );
    check_tiny(
        "width = 66\n",
        "
  run.toml:3: model.width: 4 heads do not divide a width of 66
  why: a head is width / heads wide unless model.head_dim says more; model.heads = 4 (preset tiny)
  try: model.heads = 3 or 6, or set model.head_dim",
    );
    check_tiny(
        "kv_heads = 3\nvocab = 100\n",
        "
  run.toml:3: model.kv_heads: 3 key and value heads do not divide 4 query heads
  why: every key head serves the same number of query heads; model.heads = 4 (preset tiny)
  try: model.kv_heads = 2 or 4
  run.toml:3: model.kv_heads: the gpt2 family has as many key heads as query heads: 4, found 3
  why: only llama shares key heads among query heads; model.family = \"gpt2\" (preset tiny)
  try: model.kv_heads = 4, or model.family = \"llama\"
  run.toml:4: model.vocab: 100 tokens are too few for text
  why: text is read as bytes, each byte is a token, and there are 256 of them
  try: model.vocab = 256",
    );
}

#[test]
fn a_refused_value_is_not_held_against_other_keys() {
    check_tiny(
        "heads = 0\nwidth = 65\n[train]\nmicrobatch = \"4\"\nglobal_batch = 31\n",
        "
  run.toml:3: model.heads: expected a whole number from 1 to 65536, found 0
  why: Query heads.
  run.toml:6: train.microbatch: expected a whole number from 1 to 65536, found \"4\"
  why: Sequences that pass through the pipeline together; must divide global_batch.
  try: train.microbatch = 4, the default",
    );
}

#[test]
fn a_model_needs_a_preset_a_folder_or_a_shape() {
    check_wrong(
        "[model]\nwidth = 64\nheads = 3\n",
        &[],
        "
  [model]: model.family, model.layers are missing
  why: nothing says what is to be trained: no preset, no folder, no shape
  try: model.preset = one of quickstart, tiny, bench-a, bench-b, bench-c, gpt2-124m, or set them
  run.toml:3: model.heads: 3 heads do not divide a width of 64
  why: a head is width / heads wide unless model.head_dim says more; model.width = 64 (run.toml:2)
  try: model.heads = 2 or 4, or set model.head_dim",
    );
}

#[test]
fn a_file_that_is_not_toml_is_all_there_is_to_say() {
    let failure = load_with("[model]\npreset = tiny\n[x]\n", &[set("a=b")]).expect_err("not TOML");
    assert_eq!(failure.details.len(), 1, "{failure}");
    assert_eq!(failure.details[0].place.as_deref(), Some("run.toml:2"));
    assert!(failure.details[0].what.starts_with("not TOML: "), "{failure}");
    let twice = load_text("[train]\nsteps = 1\nsteps = 2\n").expect_err("twice");
    assert_eq!(twice.details[0].place.as_deref(), Some("run.toml:3"), "{twice}");
    let sources = ConfigSources { file: Some("no/such.toml".into()), flags: vec![] };
    let missing = load(&sources).expect_err("missing");
    assert_eq!(missing.code, FailureCode::Usage);
    assert_eq!(missing.details[0].place.as_deref(), Some("no/such.toml"));
}

/// The last microbatch that passes between stages, and the first that does not.
#[test]
fn what_passes_between_stages_is_bounded() {
    // 2^28 floats: 2^8 sequences of 2^10 tokens of 2^10 floats.
    let text = |microbatch: u32| {
        format!(
            "[model]\nfamily = \"llama\"\nlayers = 2\nwidth = 1024\nheads = 16\n[train]\n\
             seq_len = 1024\nglobal_batch = {microbatch}\nmicrobatch = {microbatch}\n"
        )
    };
    assert!(load_text(&text(256)).is_ok());
    let failure = load_text(&text(257)).expect_err("one sequence too many").to_string();
    let expected = "train.microbatch: 263168 tokens of 1024 floats are 269484032, at most \
                    268435456 pass between two stages at once";
    assert!(failure.contains(expected), "{failure}");
    assert!(failure.contains("a smaller train.microbatch or train.seq_len"), "{failure}");
}

/// Processors have limits of their own.
#[test]
fn what_kernels_of_a_device_cannot_hold_is_refused_there() {
    let text = |device: &str| {
        format!(
            "[model]\nfamily = \"llama\"\nlayers = 2\nwidth = 64\nheads = 4\n[train]\n\
             device = \"{device}\"\nseq_len = 128\nglobal_batch = 20000\nmicrobatch = 20000\n"
        )
    };
    assert!(load_text(&text("cpu")).is_ok());
    let failure = load_text(&text("cuda")).expect_err("80,000 heads").to_string();
    let expected = "train.device: a microbatch has 80000 heads in all its sequences, the device takes \
                    at most 65535; lower train.microbatch";
    assert!(failure.contains(expected), "{failure}");
}

#[test]
fn a_run_has_halves_on_both_kinds_of_devices() {
    let halves = Precision::Bf16;
    for (device, sizes) in
        [("cpu", DeviceSizes::Processors(halves)), ("cuda", DeviceSizes::Cuda(halves))]
    {
        let text = format!(
            "[model]\npreset = \"tiny\"\n[train]\nprecision = \"bf16\"\ndevice = \"{device}\"\n"
        );
        let config = load_text(&text).expect("legal").config;
        assert_eq!(config.arithmetic.sizes(), sizes);
    }
}

#[test]
fn muon_needs_steps() {
    let of_devices =
        "[model]\npreset = \"tiny\"\n[train]\ndevice = \"cuda\"\n[optimizer]\nkind = \"muon\"\n";
    let config = load_text(of_devices).expect("legal").config;
    assert!(!config.optimizer.kind.is_adamw());
    check_tiny(
        "[schedule]\nkind = \"pipedream\"\n[optimizer]\nkind = \"muon\"\n",
        "
  run.toml:6: optimizer.kind: muon under pipedream
  why: asynchronous schedules have AdamW only; schedule.kind = \"pipedream\" (run.toml:4)
  try: schedule.kind = \"auto\", or optimizer.kind = \"adamw\"",
    );
}

#[test]
fn features_of_later_models_go_with_llama_and_only_some_together() {
    let name = |text: &str| {
        let failure = super::load_with(&format!("{}{text}", super::TINY), &[]);
        failure.expect_err(text).details[0].to_string()
    };
    let found = name("qk_norm = true\n");
    assert!(found.contains("run.toml:3: model.qk_norm: the gpt2 family has no"), "{found}");
    let found = name("sliding_window = 8\n");
    assert!(found.contains("run.toml:3: model.sliding_window: the gpt2 family has no"), "{found}");
    let llama = "family = \"llama\"\n";
    let found = name(&format!("{llama}sliding_window = 0\n"));
    assert!(found.contains("model.sliding_window"), "{found}");
    let found = name(&format!("{llama}sliding_window = 8\nmlp_bias = true\n"));
    assert!(found.contains("no model of transformers"), "{found}");
    let found = name(&format!("{llama}qk_norm = true\nmlp_bias = true\n"));
    assert!(found.contains("model.qk_norm: no model of transformers"), "{found}");
    let found = name(&format!("{llama}rope_scaling = \"llama3\"\nrope_bands = [4, 1]\n"));
    assert!(found.contains("model.rope_bands: high_freq_factor over low_freq_factor"), "{found}");
    let found = name("positions = 8\n[train]\nseq_len = 9\n");
    assert!(found.contains("train.seq_len"), "{found}");
}

#[test]
fn lanes_that_a_step_or_a_schedule_cannot_have_are_refused() {
    let check = |text: &str, expected: [&str; 2]| {
        let failure = load_text(&format!("{TINY}{text}")).expect_err("refused").to_string();
        for part in expected {
            assert!(failure.contains(part), "{failure}\nexpected {part}");
        }
    };
    let found = ["a power of two from 1 to 64, found 3", "train.lanes = 2 or 4"];
    check("[train]\nlanes = 3\n", found);
    let range = ["train.lanes", "expected a whole number from 1 to 64, found 128"];
    check("[train]\nlanes = 128\n", range);
    let uneven = ["4 microbatches cannot be dealt evenly to 8 lanes", "train.lanes = 4"];
    check("[train]\nglobal_batch = 12\nmicrobatch = 3\nlanes = 8\n", uneven);
    let directions = ["chimera runs lanes in two directions", "train.lanes = 2 or more"];
    check("[schedule]\nkind = \"chimera\"\n", directions);
    let three = ["schedule.replicas: the number of replicas", "schedule.replicas = 2 or 4"];
    check("[schedule]\nreplicas = 3\n", three);
    let few = ["4 replicas of gpipe need 4 lanes or more, found 2", "train.lanes = 4 or more"];
    check("[train]\nlanes = 2\n[schedule]\nreplicas = 4\n", few);
    let both = ["2 replicas of gems need 4 lanes or more", "or schedule.replicas = 1"];
    check("[train]\nlanes = 2\n[schedule]\nkind = \"gems\"\nreplicas = 2\n", both);
    let text = format!("{TINY}[train]\nlanes = 4\n[schedule]\nreplicas = 2\n");
    let replicas = load_text(&text).expect("each has two lanes").config.replicas;
    assert_eq!(replicas.map(|replicas| replicas.get()), Some(2));
    let loaded = load_text(&format!("{TINY}[train]\nlanes = 8\n")).expect("eight microbatches");
    assert_eq!(loaded.config.batch.lanes.get(), 8);
}
