//! Adapters as a person trains, exports and reads them: `train` with `lora.rank`, then `export`, `generate` and `eval`.

mod common;
#[path = "common/site.rs"]
mod site;

use std::collections::BTreeMap;
use std::fs;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use site::Site;

const TRAIN: &str = "train --set train.seq_len=64 --set train.global_batch=4 --set train.microbatch=1 \
    --set train.steps=6 --set data.text=text.txt --threads-only --workers 2";
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
const RANK: usize = 3;
const ALPHA: f32 = 6.0;

/// A run in `base`, and in `tuned` one that began with its model and trained adapters.
fn tuned() -> Site {
    let site = Site::new();
    let line = |n: u32| format!("{n} times {} is {}\n", n % 7 + 2, n * (n % 7 + 2));
    fs::write(site.path("text.txt"), (1..=400).map(line).collect::<String>()).expect("room");
    site.printed(&format!("{TRAIN} --set model.preset=tiny --set model.width=32 --out base"));
    let lora = format!(
        "--set model.from_hf=base/model --set lora.rank={RANK} --set lora.alpha={ALPHA} \
         --set lora.targets=c_attn --set optimizer.lr=0.05 --out tuned"
    );
    site.printed(&format!("{TRAIN} {lora}"));
    site
}

/// Shape and floats of each tensor of a file.
fn tensors(site: &Site, file: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = fs::read(site.path(file)).expect("it was written");
    let all = SafeTensors::deserialize(&bytes).expect("a safetensors file").tensors();
    let floats = |data: &[u8]| {
        data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    all.into_iter().map(|(name, it)| (name, (it.shape().to_vec(), floats(it.data())))).collect()
}

/// The base with `alpha / rank * B * A` added: GPT-2's matrices are transposed in files.
fn check_merged(
    base: &(Vec<usize>, Vec<f32>),
    [a, b]: [&(Vec<usize>, Vec<f32>); 2],
    merged: &[f32],
) {
    let [inputs, outputs] = base.0[..] else { panic!("a matrix") };
    assert_eq!((&a.0[..], &b.0[..]), (&[RANK, inputs][..], &[outputs, RANK][..]));
    let mut change = 0.0_f32;
    for (at, (base, merged)) in base.1.iter().zip(merged).enumerate() {
        let (input, output) = (at / outputs, at % outputs);
        let product: f32 =
            (0..RANK).map(|k| b.1[output * RANK + k] * a.1[k * inputs + input]).sum();
        let expected = base + ALPHA / RANK as f32 * product;
        assert!((merged - expected).abs() < 1e-6, "{merged}, expected {expected}");
        change = change.max((merged - base).abs());
    }
    assert!(change > 1e-3, "adapters have learnt something: {change}");
}

#[test]
fn adapters_are_exported_for_peft_and_merged() {
    let site = tuned();
    let printed = site.printed("export tuned --to adapter");
    assert!(printed.contains("adapters for peft"), "{printed}");
    site.printed("export tuned --to merged --merge");
    let config = fs::read(site.path("adapter/adapter_config.json")).expect("it was written");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let found = ["r", "lora_alpha", "target_modules", "base_model_name_or_path"];
    let found = found.map(|name| config[name].clone());
    assert_eq!(found, [json!(3), json!(6), json!(["c_attn"]), json!("base/model")]);
    assert!(!site.path("adapter/config.json").exists() && site.path("merged/config.json").exists());
    let base = tensors(&site, "base/model/model.safetensors");
    let merged = tensors(&site, "merged/model.safetensors");
    let adapters = tensors(&site, "adapter/adapter_model.safetensors");
    assert_eq!(adapters.len(), 8);
    assert_eq!(base.keys().collect::<Vec<_>>(), merged.keys().collect::<Vec<_>>());
    for (name, tensor) in &base {
        let module = name.strip_suffix(".weight").unwrap_or_default();
        let matrix = |of| adapters.get(&format!("base_model.model.{module}.{of}.weight"));
        match (matrix("lora_A"), matrix("lora_B")) {
            (Some(a), Some(b)) => check_merged(tensor, [a, b], &merged[name].1),
            (_, None) | (None, _) => assert!(*tensor == merged[name], "{name} is as it was"),
        }
    }
}

#[test]
fn what_reads_a_run_reads_it_with_its_adapters() {
    let site = tuned();
    site.printed("export tuned --to merged --merge");
    let read = |model: &str| {
        let generated = site.printed(&format!("generate {model} --prompt 7 --temperature 0"));
        (generated, site.json(&format!("eval {model} --text text.txt --window 64")))
    };
    assert_eq!(read("tuned"), read("merged"));
    assert_ne!(read("tuned"), read("base"));
}

/// The digest that the last line of a run names.
fn digest(printed: &str) -> &str {
    let line = printed.lines().find(|line| line.starts_with("digest"));
    line.unwrap_or_else(|| panic!("no digest in {printed}"))
}

/// Adapters begin where they were exported, in one process and in several, and are trained from there on.
#[test]
fn a_run_goes_on_from_exported_adapters() {
    let site = tuned();
    site.printed("export tuned --to adapter");
    let more = "--set model.from_hf=base/model --set lora.from=adapter";
    // A step of a rate that changes no weight.
    let still = TRAIN.replace("train.steps=6", "train.steps=1");
    site.printed(&format!("{still} {more} --set optimizer.lr=1e-30 --out same"));
    let adapters = |run: &str| tensors(&site, &format!("{run}/model/adapter/{ADAPTER_WEIGHTS}"));
    assert!(adapters("same") == adapters("tuned"));
    let threads = site.printed(&format!("{TRAIN} {more} --set optimizer.lr=0.01 --out threads"));
    assert!(adapters("threads") != adapters("tuned"));
    let apart = TRAIN.replace("--threads-only ", "");
    let processes =
        site.printed(&format!("{apart} {more} --set optimizer.lr=0.01 --out processes"));
    assert_eq!(digest(&threads), digest(&processes));
    let written = fs::read_to_string(site.path("threads/config.toml")).expect("it is there");
    assert!(written.contains("from = \"adapter\"") && written.contains("# rank = 3"), "{written}");
    let read = |run: &str| site.json(&format!("eval {run} --text text.txt --window 64"));
    fs::remove_dir_all(site.path("adapter")).expect("it is there");
    assert_eq!(read("threads"), read("processes"), "the folder is not read again");
}

#[test]
fn adapters_to_go_on_from_are_checked() {
    let site = tuned();
    site.printed("export tuned --to adapter");
    let check = |more: &str, parts: &[&str]| {
        let line = format!("{TRAIN} --set model.from_hf=base/model {more} --out refused");
        site.refused(&line, 2, parts);
        assert!(!site.path("refused").exists());
    };
    check(
        "--set lora.from=nowhere",
        &["lora.from", "nowhere/adapter_config.json", "model/adapter"],
    );
    let from = "--set lora.from=adapter";
    check(&format!("{from} --set lora.rank=3"), &["lora.rank stands beside lora.from"]);
    check(&format!("{from} --set train.freeze=norm"), &["train.freeze"]);
    let file = site.path("adapter/adapter_config.json");
    let config = fs::read_to_string(&file).expect("it was written");
    let with = |key: &str, value: Value| {
        let mut config: Value = serde_json::from_str(&config).expect("JSON");
        config[key] = value;
        fs::write(&file, config.to_string()).expect("writable");
    };
    with("use_dora", json!(true));
    check(from, &["adapter_config.json", "use_dora = true is not supported"]);
    with("target_modules", json!(["lm_head"]));
    check(from, &["lora.targets", "lm_head"]);
    with("r", json!(2));
    check(from, &["the adapters", "lora_A", "expected [2, 32]"]);
    with("target_modules", json!(["c_attn", "c_fc"]));
    check(from, &["the adapters", "lack", "c_fc"]);
    fs::remove_file(site.path("adapter/adapter_model.safetensors")).expect("it is there");
    with("r", json!(3));
    check(from, &["the adapters", "adapter_model.safetensors: No such file"]);
}

#[test]
fn adapters_that_are_damaged_are_refused_and_leave_nothing() {
    let site = tuned();
    let file = site.path("tuned/model/adapter/adapter_model.safetensors");
    fs::write(&file, b"nothing").expect("writable");
    site.refused("export tuned --to adapter", 2, &["the adapters", "adapter_model.safetensors"]);
    assert!(!site.path("adapter").exists() && !site.path("adapter.partial").exists());
}
