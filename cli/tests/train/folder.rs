//! The folder of a run: its files, and continuing from them.

use std::fs;
use std::process::Command;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::common::refusal;
use crate::text_folder::{STEPS, TextFolder, TrainingOutput, succeed};

pub const FILES: [&str; 8] = [
    "config.toml",
    "metrics.jsonl",
    "model",
    "report.html",
    "run.json",
    "sample.txt",
    "tensorboard",
    "trace.json",
];

/// The names in a run's folder, sorted.
pub fn names(run: &TrainingOutput) -> Vec<String> {
    let entries = fs::read_dir(&run.folder).expect("a folder");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("readable"))).collect();
    names.sort();
    names
}

#[test]
fn a_run_says_how_it_ended() {
    let text_folder = TextFolder::new();
    let run = text_folder.run("--workers 3 --schedule zb-h1 --window 1");
    assert_eq!(names(&run), FILES);
    let kept = run.json("run.json");
    for key in ["digest", "steps", "params", "held_out_loss", "interrupted"] {
        assert_eq!(kept[key], run.done()[key], "{key}");
    }
    assert_eq!(kept["interrupted"], false);
    assert_eq!((&kept["seed"], &kept["text"]["files"]), (&1.into(), &1.into()));
    assert_eq!(kept["plan"]["stage_bytes"].as_array().expect("a list").len(), 3);
    let loss = |step: &Value| step["loss"].as_f64().expect("a number");
    let mean = run.of("step").into_iter().map(loss).sum::<f64>() / STEPS as f64;
    assert!((kept["final_loss"].as_f64().expect("a number") - mean).abs() < 1e-9);
    assert!(run.text("sample.txt").trim_end().chars().count() > 50);
}

/// `command` and then `train` with the configuration it left.
fn check_configuration(text_folder: &TextFolder, command: &mut Command) {
    let first = text_folder.finish(command);
    let config = first.folder.join("config.toml");
    let again = |what: &str| {
        let mut command = text_folder.command(what);
        command.arg(&config);
        command
    };
    assert!(succeed(&mut again("config check")).starts_with("ok\n"));
    let second = text_folder.finish(&mut again("train --threads-only"));
    assert_eq!(second.digest(), first.digest());
    assert_eq!(second.text("config.toml"), first.text("config.toml"));
    assert_ne!(second.folder, first.folder);
}

#[test]
fn the_configuration_gives_the_same_run_again() {
    let text_folder = TextFolder::new();
    fs::create_dir(text_folder.path("a folder")).expect("a folder");
    text_folder.write("a folder/it's \"odd\" \\ ü.txt", "a text in an odd place\n".repeat(90));
    let text = ["--text", "a folder/it's \"odd\" \\ ü.txt", "text.txt"];
    let odd = "--seed 18446744073709551615 --set model.family=llama --set model.kv_heads=1 \
        --set model.head_dim=6 --set model.mlp_width=50 --set model.rope_theta=777.7 \
        --set optimizer.lr=0.1e-2 --set optimizer.eps=1e-20 --set optimizer.betas=[0,0.123456789] \
        --set optimizer.decay=linear --set optimizer.lr_min=1e-300 --set optimizer.decay_on=all \
        --set guard.nonfinite=replay --set guard.retries=7 --set guard.gnorm_z=3.5 \
        --set data.held_out=0.1 --set train.eval_every=3 --set train.microbatch=2 \
        --set schedule.max_mem=1.5MiB --schedule zb-h1 --window 0 --out odd";
    check_configuration(&text_folder, text_folder.small(odd).args(text));
    let from = "train --threads-only --set model.from_hf=odd/model --text text.txt --steps 3 \
        --set train.seq_len=12 --set train.global_batch=4 --set optimizer.warmup=0";
    check_configuration(&text_folder, &mut text_folder.command(from));
}

const GPT2_SHAPES: [(&str, &[usize]); 12] = [
    ("transformer.wte.weight", &[256, 32]),
    ("transformer.wpe.weight", &[16, 32]),
    ("transformer.h.0.ln_1.weight", &[32]),
    ("transformer.h.0.attn.c_attn.weight", &[32, 96]),
    ("transformer.h.1.attn.c_attn.bias", &[96]),
    ("transformer.h.1.attn.c_proj.weight", &[32, 32]),
    ("transformer.h.2.ln_2.bias", &[32]),
    ("transformer.h.2.mlp.c_fc.weight", &[32, 128]),
    ("transformer.h.3.mlp.c_proj.weight", &[128, 32]),
    ("transformer.h.3.mlp.c_proj.bias", &[32]),
    ("transformer.ln_f.bias", &[32]),
    ("lm_head.weight", &[256, 32]),
];
const LLAMA_SHAPES: [(&str, &[usize]); 12] = [
    ("model.embed_tokens.weight", &[256, 32]),
    ("model.layers.0.input_layernorm.weight", &[32]),
    ("model.layers.0.self_attn.q_proj.weight", &[32, 32]),
    ("model.layers.1.self_attn.k_proj.weight", &[16, 32]),
    ("model.layers.1.self_attn.v_proj.weight", &[16, 32]),
    ("model.layers.2.self_attn.o_proj.weight", &[32, 32]),
    ("model.layers.2.post_attention_layernorm.weight", &[32]),
    ("model.layers.3.mlp.gate_proj.weight", &[96, 32]),
    ("model.layers.3.mlp.up_proj.weight", &[96, 32]),
    ("model.layers.3.mlp.down_proj.weight", &[32, 96]),
    ("model.norm.weight", &[32]),
    ("lm_head.weight", &[256, 32]),
];

fn check_model(run: &TrainingOutput, tensor_count: usize, shapes: &[(&str, &[usize])]) {
    let file = run.file("model/model.safetensors");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    assert_eq!(tensors.len(), tensor_count, "{:?}", tensors.names());
    for (name, shape) in shapes {
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tensor.shape(), *shape, "{name}");
    }
    let mut parameters = 0;
    for (name, tensor) in tensors.tensors() {
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        let (floats, rest) = tensor.data().as_chunks::<4>();
        assert!(rest.is_empty() && floats.iter().all(|x| f32::from_le_bytes(*x).is_finite()));
        assert!(floats.iter().any(|x| *x != floats[0]), "{name} has been trained");
        parameters += floats.len();
    }
    assert_eq!(run.done()["params"], parameters);
}

#[test]
fn the_model_has_the_names_and_shapes_of_hugging_face() {
    let text_folder = TextFolder::new();
    let check = |run: &TrainingOutput, expected: &[(&str, Value)]| {
        let config = run.json("model/config.json");
        for (key, value) in expected {
            assert_eq!(config[key], *value, "{key}");
        }
    };
    let gpt2 = text_folder.run("");
    check_model(&gpt2, 2 + 4 * 12 + 3, &GPT2_SHAPES);
    check(&gpt2, &[("model_type", "gpt2".into()), ("n_layer", 4.into()), ("n_embd", 32.into())]);
    let llama = text_folder.run("--set model.family=llama --set model.kv_heads=2");
    check_model(&llama, 1 + 4 * 9 + 2, &LLAMA_SHAPES);
    let expected = [
        ("model_type", "llama".into()),
        ("num_key_value_heads", 2.into()),
        ("intermediate_size", 96.into()),
    ];
    check(&llama, &expected);
}

#[test]
fn a_run_begins_with_the_weights_of_a_folder() {
    let text_folder = TextFolder::new();
    let keys = "--set train.seq_len=16 --set train.global_batch=8 --set train.microbatch=1 \
        --text text.txt --steps 1 --set optimizer.warmup=0";
    for (out, family) in [("gpt2", ""), ("llama", "--set model.family=llama")] {
        let trained = "--steps 20 --set optimizer.lr=1e-2";
        let before = text_folder.run(&format!("{family} {trained} --out {out}"));
        let from = format!("train --threads-only --set model.from_hf={out}/model {keys}");
        let after =
            text_folder.finish(&mut text_folder.command(&format!("{from} --set optimizer.lr=0")));
        let loss = after.step(1)["loss"].as_f64().expect("a number");
        assert!(loss < 256f64.ln() - 1.5, "{out}: {loss}");
        // A learning rate of 0 changes nothing.
        for file in ["model/config.json", "model/model.safetensors"] {
            assert!(after.file(file) == before.file(file), "{out}: {file}");
        }
        assert_eq!(after.done()["held_out_loss"], before.done()["held_out_loss"], "{out}");
    }
}

#[test]
fn runs_are_numbered_under_the_name_of_their_preset_or_file() {
    let text_folder = TextFolder::new();
    text_folder.write("my.run.toml", "[model]\npreset = \"tiny\"\n[data]\ntext = [\"text.txt\"]\n");
    let small = "--set model.width=32 --set train.seq_len=16 --steps 2";
    let check = |run: &TrainingOutput, expected: &str| {
        assert_eq!(run.folder, text_folder.path(expected));
        assert_eq!(names(run), FILES);
    };
    check(&text_folder.run("--steps 2"), "runs/tiny-1");
    check(&text_folder.run("--steps 2"), "runs/tiny-2");
    let from_file = format!("train my.run.toml --threads-only {small} --set optimizer.warmup=0");
    check(&text_folder.finish(&mut text_folder.command(&from_file)), "runs/my.run-1");
}

#[test]
fn a_preset_with_another_family_is_still_that_preset() {
    let text_folder = TextFolder::new();
    let run = text_folder.run("--steps 2 --set model.family=llama");
    assert_eq!(run.folder, text_folder.path("runs/tiny-1"));
}

#[test]
fn a_folder_that_holds_a_run_is_left_alone() {
    let text_folder = TextFolder::new();
    text_folder.run("--out mine --steps 2");
    let check = || {
        let before = text_folder.contents();
        let error = refusal(&mut text_folder.small("--out mine --steps 2"), 6);
        assert!(
            error.starts_with("error: mine holds a run already\n  --out: there is "),
            "{error}"
        );
        assert!(error.contains("\n  try: another folder"), "{error}");
        assert_eq!(text_folder.contents(), before);
    };
    check();
    // One thing of a run is enough.
    for name in FILES.iter().filter(|name| **name != "model") {
        let path = text_folder.path("mine").join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.expect("it was there");
    }
    check();
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_training() {
    let text_folder = TextFolder::new();
    text_folder.write("file", "mine");
    text_folder.write("runs", "mine as well");
    let before = text_folder.contents();
    for (more, path) in [("--out file/run", "file/run"), ("--out file", "file"), ("", "runs")] {
        let error = refusal(&mut text_folder.small(more), 2);
        assert!(error.starts_with(&format!("error: cannot write {path}")), "{error}");
    }
    assert_eq!(text_folder.contents(), before);
}

#[test]
#[cfg(unix)]
fn a_folder_without_permission_is_found_before_training() {
    use std::os::unix::fs::PermissionsExt;

    let text_folder = TextFolder::new();
    let locked = text_folder.path("locked");
    fs::create_dir(&locked).expect("a folder");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).expect("it is mine");
    if fs::write(locked.join("probe"), "").is_ok() {
        // Nothing is locked for root.
        return;
    }
    for out in ["locked", "locked/run"] {
        let error = refusal(&mut text_folder.small(&format!("--out {out}")), 2);
        assert!(error.starts_with("error: cannot write locked/"), "{error}");
    }
}
