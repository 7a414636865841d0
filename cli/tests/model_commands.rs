//! `export`, `generate` and `eval` as a person runs them, on a run of a small model.

mod common;
#[path = "common/site.rs"]
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::{refusal, text};
use rustix::process::{Pid, Signal, kill_process};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use site::Site;

/// A run of a model of bytes in `run`, and its text in `text.txt`.
const TRAIN: &str = "train --set model.preset=tiny --set model.width=32 --set train.seq_len=64 \
    --set train.global_batch=4 --set train.microbatch=1 --set train.steps=6 \
    --set optimizer.lr=3e-3 --set data.text=text.txt --threads-only --workers 2 --out run";

impl Site {
    fn with_text() -> Self {
        let site = Self::new();
        let line = |n: u32| format!("{n} times {} is {}\n", n % 7 + 2, n * (n % 7 + 2));
        fs::write(site.path("text.txt"), (1..=400).map(line).collect::<String>()).expect("room");
        site
    }

    fn with_run() -> Self {
        let site = Self::with_text();
        site.printed(TRAIN);
        site
    }

    /// The same with a tokenizer of 300 tokens and a model of as many in `model`.
    fn with_tokenizer() -> Self {
        let site = Self::with_text();
        site.printed("tokenizer train --vocab 300 --to tok --text text.txt --threads 1");
        site.printed(&format!("{TRAIN} --set model.vocab=300"));
        site.printed("export run --to model");
        fs::remove_file(site.path("model/generation_config.json")).expect("it was written");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(site.path("tok").join(name), site.path("model").join(name)).expect("room");
        }
        site
    }

    /// A run over a token store of 300 tokens in `store`, made with the tokenizer in `tok`, which
    /// the configuration does not name.
    fn with_stores() -> Self {
        let site = Self::with_text();
        site.printed("tokenizer train --vocab 300 --to tok --text text.txt --threads 1");
        site.printed("data prepare text.txt --tokenizer tok --to store --threads 1");
        let line = TRAIN.replace("data.text=text.txt", "data.tokens=store");
        site.printed(&format!("{line} --set model.vocab=300"));
        site
    }

    /// The files of a folder, by name.
    fn files(&self, folder: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path(folder)).expect("a folder").flatten();
        let entries = entries.filter(|entry| entry.path().is_file());
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, fs::read(entry.path()).expect("a file"))
        };
        entries.map(file).collect()
    }
}

/// Tensors of a file's bytes: type, shape and bytes by name.
fn tensors(file: &[u8]) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let read = SafeTensors::deserialize(file).expect("a safetensors file");
    let tensors = read.tensors().into_iter();
    tensors
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

#[test]
fn a_run_is_exported_whole_with_its_card() {
    let site = Site::with_run();
    let printed = site.printed("export run --to out/model");
    assert!(printed.starts_with("✔ checkpoint 6: "), "{printed}");
    let files = site.files("out/model");
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["README.md", "config.json", "generation_config.json", "model.safetensors"]);
    let left = fs::read(site.path("run/model/model.safetensors")).expect("the run left it");
    assert!(files["model.safetensors"] == left, "the weights are those that the run left");
    let config = parsed(&files["config.json"]);
    assert_eq!((&config["dtype"], &config["eos_token_id"]), (&"float32".into(), &Value::Null));

    let record = parsed(&fs::read(site.path("run/run.json")).expect("written"));
    let card = text(&files["README.md"]);
    let digest = record["digest"].as_str().expect("a digest");
    let hash = blake3_of_file(&card, "model.safetensors");
    assert!(card.contains(digest) && card.contains("for 6 steps"), "{card}");
    let layers = record["layer_digests"].as_array().expect("they are at hand");
    let rows = layers.iter().enumerate().map(|(layer, digest)| (layer, digest.as_str()));
    for (layer, digest) in rows {
        let row = format!("| {layer} | `{}` |\n", digest.expect("hexadecimal"));
        assert!(card.contains(&row), "no {row} in: {card}");
    }
    assert!(layers.len() > 2, "{record}");
    let trained_on = blake3::hash(&fs::read(site.path("text.txt")).expect("written"));
    let line = format!("The text has the BLAKE3 hash\n\n    {trained_on}\n");
    assert!(card.contains(&line), "{card}");
    assert!(card.contains("````toml") && card.contains("seq_len = 64"), "{card}");
    assert!(!card.contains(&site.0.path().display().to_string()), "no machine: {card}");

    let again = site.json("export run --to again --step 6");
    assert!(site.files("again") == files, "the same bytes again");
    assert_eq!((&again["step"], &again["digest"]), (&6.into(), &digest.into()));
    assert_eq!(again["files"][0]["blake3"], hash);
    site.printed("export out/model --to copy");
    assert!(site.files("copy")["model.safetensors"] == left);
    assert!(!site.path("copy.partial").exists());
}

#[test]
fn checkpoints_that_processes_keep_are_exported() {
    let site = Site::with_text();
    let line = TRAIN.replace("--threads-only ", "");
    // The last step of a run has a checkpoint. Another may be superseded before it is durable.
    site.printed(&format!("{line} --set checkpoint.keep_last=4 --steps 3"));
    site.printed(&format!("{line} --set checkpoint.keep_last=4 --branch"));
    fs::remove_dir_all(site.path("run/model-3")).expect("put aside, and not read here");
    let left = fs::read(site.path("run/model/model.safetensors")).expect("the run left it");
    let record = parsed(&fs::read(site.path("run/run.json")).expect("written"));
    let earlier = site.json("export run --step 3 --to three");
    assert_eq!(earlier["step"], 3);
    assert!(earlier["digest"].is_string() && earlier["digest"] != record["digest"]);
    assert!(site.files("three")["model.safetensors"] != left);
    let card = text(&site.files("three")["README.md"]);
    assert!(card.contains("for 3 steps") && card.contains("| 0 | `"), "{card}");
    site.refused("export run --step 4 --to four", 5, &["no checkpoint of step 4", "3, 6"]);

    // As a run that was killed before it wrote its model.
    fs::remove_dir_all(site.path("run/model")).expect("writable");
    fs::remove_file(site.path("run/run.json")).expect("writable");
    site.refused("generate run --prompt a", 6, &["left no model yet", "zbelastic export run"]);
    let last = site.json("export run --to last");
    assert_eq!((&last["step"], &last["digest"]), (&6.into(), &record["digest"]));
    assert!(site.files("last")["model.safetensors"] == left, "the weights that it would write");
}

/// The hash that a card gives for a file.
fn blake3_of_file(card: &str, name: &str) -> String {
    let line = card.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
    line.expect("the file's line").split('`').nth(3).expect("a hash").to_owned()
}

#[test]
fn halves_and_shards_hold_the_weights_of_the_run() {
    let site = Site::with_run();
    let whole = tensors(&fs::read(site.path("run/model/model.safetensors")).expect("left"));
    site.printed("export run --to half --dtype bf16 --shard 40KB");
    let files = site.files("half");
    let index = parsed(&files["model.safetensors.index.json"]);
    let map = index["weight_map"].as_object().expect("an object");
    assert_eq!(map.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
    assert_eq!(parsed(&files["config.json"])["dtype"], "bfloat16");
    let mut bytes = 0;
    for (name, file) in files.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        for (tensor, (dtype, shape, halves)) in tensors(file) {
            assert_eq!((map[&tensor].as_str(), dtype), (Some(name.as_str()), Dtype::BF16));
            let (_, expected_shape, floats) = &whole[&tensor];
            assert_eq!(&shape, expected_shape);
            bytes += halves.len();
            for (half, float) in halves.as_chunks::<2>().0.iter().zip(floats.as_chunks::<4>().0) {
                let float = f32::from_le_bytes(*float);
                let half = f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
                assert!((half - float).abs() <= float.abs() / 256.0, "{tensor}: {half} {float}");
            }
        }
    }
    assert_eq!(index["metadata"]["total_size"], bytes);
    assert!(map.values().any(|file| file == "model-00004-of-00004.safetensors"), "{index}");
}

#[test]
fn what_cannot_be_exported_is_refused_and_leaves_nothing() {
    let site = Site::with_run();
    let path = |name: &str| site.path(name);
    fs::create_dir(path("taken")).expect("room");
    fs::write(path("taken/notes.txt"), "mine").expect("room");
    site.refused("export run --to taken", 6, &["is not empty", "notes.txt", "another folder"]);
    site.refused("export run --to out --step 4", 5, &["no model of step 4", "of steps 6"]);
    site.refused("export ./nowhere --to out", 5, &["is not there", "zbelastic train"]);
    site.refused("export taken --to out", 5, &["neither a run nor a model"]);
    site.refused("export run/model --to out --step 6", 2, &["not a run"]);
    let stderr = refusal(site.command("export modle --to out").env_remove("ZBELASTIC_CLUSTER"), 4);
    assert!(stderr.contains("there is no folder modle"), "{stderr}");
    fs::write(path("run/model/config.json"), "{\"model_type\": \"mamba\"}").expect("room");
    site.refused("export run --to out", 2, &["`model_type` is \"mamba\""]);
    fs::remove_dir_all(path("run/model")).expect("room");
    site.refused("export run --to out", 6, &["left no model yet", "--out run"]);
    let entries = fs::read_dir(site.0.path()).expect("a folder").flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    assert_eq!(names, ["run", "taken", "text.txt"]);
}

#[test]
fn a_weight_beyond_half_precision_is_named_and_nothing_is_left() {
    let site = Site::with_run();
    let path = site.path("run/model/model.safetensors");
    let mut file = fs::read(&path).expect("left");
    // The last tensor by name is the final normalisation or the embedding: any will do.
    let end = file.len();
    file[end - 4..].copy_from_slice(&1e5f32.to_le_bytes());
    fs::write(&path, file).expect("room");
    site.refused("export run --to half --dtype f16", 2, &["1e5", "float16", "--dtype bf16"]);
    assert!(!site.path("half").exists() && !site.path("half.partial").exists());
    site.printed("export run --to half --dtype bf16");
}

#[test]
fn a_tokenizer_is_exported_with_its_model() {
    let site = Site::with_tokenizer();
    let printed = site.printed("export model --to out");
    assert!(!printed.contains("note:"), "{printed}");
    let files = site.files("out");
    let tokenizer = fs::read(site.path("tok/tokenizer.json")).expect("written");
    assert!(files["tokenizer.json"] == tokenizer && files.contains_key("tokenizer_config.json"));
    // `<|endoftext|>` is id 0 of a tokenizer of ours.
    assert_eq!(parsed(&files["config.json"])["eos_token_id"], 0);
    assert_eq!(parsed(&files["generation_config.json"])["eos_token_id"], 0);
    assert!(text(&files["README.md"]).contains("AutoTokenizer"));

    site.printed("tokenizer train --vocab 320 --to tok2 --text text.txt --threads 1");
    fs::copy(site.path("tok2/tokenizer.json"), site.path("model/tokenizer.json")).expect("room");
    let parts = ["has 320 tokens, the model's vocabulary 300", "came with the model"];
    site.refused("export model --to out2", 2, &parts);
    site.refused("generate model --prompt a", 2, &parts);
    fs::remove_file(site.path("model/tokenizer.json")).expect("room");
    let parts = ["no tokenizer.json", "300 tokens", "copy tokenizer.json"];
    site.refused("generate model --prompt a", 2, &parts);
}

#[test]
fn a_run_over_stores_without_its_tokenizer_reads_no_text_as_bytes() {
    let site = Site::with_stores();
    let parts = ["no tokenizer.json", "not of bytes", "--tokenizer", "into run/model"];
    site.refused("generate run --prompt a", 2, &parts);
    site.refused("eval run --text text.txt", 2, &parts);
    // Tokens of the store that it was trained on need no text.
    assert!(site.json("eval run --tokens store")["loss"].is_number());
    site.printed("data prepare text.txt --to bytes --threads 1");
    site.refused("eval run --tokens bytes", 2, &["its tokenizer has hash", "the run's"]);
    let printed = site.printed("export run --to out");
    assert!(printed.contains("no tokenizer for its 300 tokens: --tokenizer DIR"), "{printed}");
    let card = text(&site.files("out")["README.md"]);
    assert!(!card.contains("Each byte") && card.contains("is not here"), "{card}");
    assert!(card.contains("The token stores have the BLAKE3 hash"), "{card}");
    site.refused("generate out --prompt a", 2, &["no tokenizer.json", "300 tokens"]);

    site.printed("export run --tokenizer tok --to whole");
    let files = site.files("whole");
    assert!(files["tokenizer.json"] == site.files("tok")["tokenizer.json"]);
    assert!(text(&files["README.md"]).contains("AutoTokenizer"));
    site.printed("generate whole --prompt a --max-tokens 2");
    site.printed("export out --tokenizer tok/tokenizer.json --to again");
    assert!(site.files("again").contains_key("tokenizer.json"));
    site.printed("tokenizer train --vocab 320 --to large --text text.txt --threads 1");
    let parts = ["has 320 tokens, the model's vocabulary 300"];
    site.refused("export run --tokenizer large --to none", 2, &parts);
    site.printed("tokenizer train --vocab 290 --to small --text text.txt --threads 1");
    site.refused("export run --tokenizer small --to none", 2, &["has hash", "the run's is"]);
    assert!(!site.path("none").exists());
    check_named_tokenizers(&site);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(site.path("tok").join(name), site.path("run/model").join(name)).expect("room");
    }
    site.printed("generate run --prompt a --max-tokens 2");
}

/// Of the run in `run` and the model in `out`, which have no tokenizer beside them, and of `whole`,
/// which has.
fn check_named_tokenizers(site: &Site) {
    let generated = |line: &str| {
        let json = site.json(&format!("{line} --prompt a --max-tokens 4"));
        json["tokens"].to_string()
    };
    let expected = generated("generate whole");
    for line in ["generate run --tokenizer tok", "generate out --tokenizer tok/tokenizer.json"] {
        assert_eq!(generated(line), expected, "{line}");
    }
    for line in ["--text text.txt", "--tokens store"] {
        let json = site.json(&format!("eval run {line} --tokenizer tok"));
        assert!(json["bits_per_byte"].is_number(), "{line}: {json}");
    }
    let parts = ["has 320 tokens, the model's vocabulary 300"];
    for line in ["generate out --prompt a", "generate whole --prompt a", "eval out --text text.txt"]
    {
        site.refused(&format!("{line} --tokenizer large"), 2, &parts);
    }
    let parts = ["has hash", "the run's is"];
    site.refused("generate run --prompt a --tokenizer small", 2, &parts);
    site.refused("eval run --text text.txt --tokenizer small", 2, &parts);
    let parts = ["its tokenizer has hash", "the model's"];
    site.refused("eval out --tokens store --tokenizer small", 2, &parts);
    site.refused("generate out --prompt a --tokenizer nowhere", 5, &["nowhere"]);
}

#[test]
fn a_run_has_its_tokenizer_from_the_beginning() {
    let site = Site::with_text();
    site.printed("tokenizer train --vocab 300 --to tok --text text.txt --threads 1");
    let expected = site.files("tok");
    let line = format!("{TRAIN} --set data.tokenizer=tok --json");
    // More lines than a pipe holds, so that it is not done before they are read.
    let line = line.replace("train.steps=6", "train.steps=300");
    let mut run = site.command(&line).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines();
    lines.next().expect("an event").expect("readable");
    // As a run that is killed here leaves it: a tokenizer alone is no model.
    let kept = site.files("run/model");
    assert!(kept["tokenizer.json"] == expected["tokenizer.json"], "{:?}", kept.keys());
    assert!(!kept.contains_key("config.json"));
    site.refused("generate run --prompt a", 6, &["left no model yet"]);
    fs::remove_dir_all(site.path("tok")).expect("writable");
    assert!(lines.all(|line| line.is_ok()));
    assert!(run.wait().expect("it ends").success(), "it reads the tokenizer no second time");
    assert!(site.path("run/run.json").is_file());
    site.printed("generate run --prompt a --max-tokens 2");
}

/// A model's own tokenizer reads text and makes samples of ids, and the special tokens that its
/// `config.json` names are those of what is exported.
#[test]
fn a_run_from_a_folder_has_the_tokenizer_and_the_special_tokens_of_that() {
    let site = Site::with_tokenizer();
    let path = site.path("model/config.json");
    let mut config = parsed(&fs::read(&path).expect("exported"));
    config["bos_token_id"] = 11.into();
    config["pad_token_id"] = 12.into();
    fs::write(&path, config.to_string()).expect("room");
    let keys = "--set train.seq_len=64 --set train.global_batch=4 --set train.microbatch=1 \
        --set train.steps=2 --threads-only --workers 2";
    let from = format!("train --set model.from_hf=model {keys}");
    let printed = site.printed(&format!("{from} --text text.txt --out own"));
    let line = "vocab   300 tokens of the tokenizer in model (model.from_hf)\n";
    assert!(printed.contains(line) && !printed.contains("the sample is ids"), "{printed}");
    assert!(site.files("own/model")["tokenizer.json"] == site.files("tok")["tokenizer.json"]);
    let recorded = fs::read_to_string(site.path("own/config.toml")).expect("written");
    assert!(recorded.contains("\ntokenizer = \"model\"\n"), "{recorded}");

    site.printed("data prepare text.txt --tokenizer model --to store --threads 1");
    let printed = site.printed(&format!("{from} --tokens store --out stores"));
    assert!(printed.contains(line) && !printed.contains("the sample is ids"), "{printed}");
    let digest = |run: &str| parsed(&site.files(run)["run.json"])["digest"].clone();
    assert_eq!(digest("own"), digest("stores"), "the same tokens");
    for run in ["own", "stores"] {
        site.printed(&format!("generate {run} --prompt a --max-tokens 2"));
        site.printed(&format!("export {run} --to exported-{run}"));
        let files = site.files(&format!("exported-{run}"));
        assert!(files["tokenizer.json"] == site.files("tok")["tokenizer.json"]);
        let config = parsed(&files["config.json"]);
        // The tokenizer's own come first, and it names no padding.
        let ids = ["bos_token_id", "eos_token_id", "pad_token_id"].map(|key| config[key].as_u64());
        assert_eq!(ids, [Some(0), Some(0), Some(12)], "{config}");
    }

    let bytes = format!("{from} --text text.txt --set data.tokenizer=bytes --out bytes");
    let printed = site.printed(&bytes);
    assert!(printed.contains("text is read as bytes") && !printed.contains("vocab "), "{printed}");
    assert!(!site.path("bytes/model/tokenizer.json").exists());
    site.refused(&format!("{from} --out none"), 2, &["of its own tokenizer", "--text with files"]);
    site.printed("data prepare text.txt --to of-bytes --threads 1");
    site.printed(&format!("{from} --tokens of-bytes --out other"));
    assert!(!site.path("other/model/tokenizer.json").exists(), "the store was made by another");
}

#[test]
fn text_is_generated_by_the_flags_and_the_seed() {
    let site = Site::with_run();
    let generated = |more: &str| site.printed(&format!("generate run --prompt 7 {more}"));
    let greedy = generated("--temperature 0 --max-tokens 30");
    assert_eq!(greedy, generated("--temperature 0 --max-tokens 30 --threads 2 --seed 9"));
    assert_eq!(greedy, generated("--top-k 1 --max-tokens 30"), "the likeliest alone");
    assert_eq!(greedy, generated("--top-p 1e-9 --max-tokens 30"));
    let drawn = generated("--temperature 2 --seed 1 --max-tokens 30");
    assert_eq!(drawn, generated("--temperature 2 --seed 1 --max-tokens 30"));
    assert_ne!(drawn, generated("--temperature 2 --seed 2 --max-tokens 30"));

    site.printed("export run --to model");
    let of = |run: &str, count: u32| {
        site.json(&format!("generate {run} --prompt 7 --temperature 0 --max-tokens {count}"))
    };
    let found = of("model", 30);
    assert_eq!(found["tokens"], of("run", 30)["tokens"], "it is the same model");
    assert_eq!((&found["prompt_tokens"], &found["stopped"]), (&1.into(), &"count".into()));
    assert_eq!(found["text"].as_str().map(str::len), Some(greedy.len() - 1), "{greedy:?}");
    // The model sees 64 tokens: that of the prompt, and 63 more.
    let full = of("run", 200);
    assert_eq!(
        (full["tokens"].as_array().map(Vec::len), &full["stopped"]),
        (Some(63), &"context".into())
    );
    let mut command = site.command("generate run --max-tokens 200 --prompt 7");
    let output = command.output().expect("it runs");
    assert!(text(&output.stderr).contains("context of 64 tokens is full"), "{output:?}");
}

#[test]
fn wrong_flags_and_prompts_are_refused() {
    let site = Site::with_run();
    site.refused("generate run --prompt a --temperature -1", 2, &["--temperature"]);
    site.refused("generate run --prompt a --temperature nan", 2, &["0 or more, found NaN"]);
    site.refused("generate run --prompt a --top-p 0", 2, &["above 0 and up to 1"]);
    site.refused("generate run --prompt a --top-p 1.5", 2, &["--top-p"]);
    site.refused("generate nowhere --prompt a", 5, &["nowhere is not there"]);
    let long = "x".repeat(64);
    let parts = ["it has 64 tokens, and the model sees 64", "a shorter prompt"];
    site.refused(&format!("generate run --prompt {long}"), 2, &parts);
    let empty = refusal(site.command("generate run --prompt").arg(""), 2);
    assert!(empty.contains("it has no tokens"), "{empty}");
    let path = site.path("run/model/model.safetensors");
    let mut file = fs::read(&path).expect("left");
    let header = u64::from_le_bytes(file[..8].try_into().expect("eight")) as usize + 8;
    file[header..].as_chunks_mut::<4>().0.iter_mut().for_each(|x| *x = f32::MAX.to_le_bytes());
    fs::write(&path, file).expect("room");
    site.refused("generate run --prompt a", 8, &["no numbers", "weights are damaged"]);
    site.refused("eval run --text text.txt", 8, &["loss is no number"]);
}

#[test]
fn generation_ends_with_the_token_that_ends_texts() {
    let site = Site::with_tokenizer();
    let stops = |more: &str| {
        let line = format!("generate model --prompt 7 --temperature 50 --max-tokens 60 {more}");
        let found = site.json(&line);
        let ids = found["tokens"].as_array().expect("a list").clone();
        (ids, found["stopped"].as_str().expect("a word").to_owned())
    };
    let is_end = |id: &Value| *id == 0;
    // So hot that every token is as likely as another: some seed draws id 0 early.
    let seeded = |seed: &u32| stops(&format!("--seed {seed}")).0.iter().any(is_end);
    let seed = (0..100).find(seeded).expect("one of 6,000 draws is id 0");
    let (going_on, _) = stops(&format!("--seed {seed}"));
    let (ended, stopped) = stops(&format!("--seed {seed} --stop-at-end"));
    let end = going_on.iter().position(is_end).expect("it was drawn");
    assert_eq!((ended, stopped.as_str()), (going_on[..end].to_vec(), "end"));
}

#[test]
fn the_loss_of_held_out_text_is_that_of_training() {
    let site = Site::with_run();
    let whole = fs::read(site.path("text.txt")).expect("written");
    let held_out = (whole.len() as f64 * 0.05).round() as usize;
    fs::write(site.path("tail.txt"), &whole[whole.len() - held_out..]).expect("room");
    let record = parsed(&fs::read(site.path("run/run.json")).expect("written"));
    let expected = record["held_out_loss"].as_f64().expect("a loss");
    let found = site.json("eval run --text tail.txt");
    let number = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key}: {found}"));
    assert!((number("loss") - expected).abs() < 1e-6, "{found}, expected {expected}");
    assert!((number("perplexity") - expected.exp()).abs() < 1e-3);
    // Each byte is a token, so a byte takes the bits of one.
    let bits = expected / std::f64::consts::LN_2;
    assert!((number("bits_per_byte") - bits).abs() < 1e-6);
    let windows = (held_out - 1) / 64;
    assert_eq!((&found["windows"], &found["window"]), (&windows.into(), &64.into()));
    assert_eq!(
        (&found["tokens"], &found["bytes"]),
        (&(windows * 64).into(), &(windows * 64).into())
    );
    let threads = site.json("eval run --text tail.txt --threads 2");
    assert_eq!(threads, found, "whatever the threads");
    site.printed("data prepare tail.txt --to store --threads 1");
    assert_eq!(site.json("eval run --tokens store"), found);
    let printed = site.printed("eval run --text tail.txt --windows-max 2");
    assert!(printed.starts_with("loss   ") && printed.contains("2 of 64 inputs"), "{printed}");
}

#[test]
fn texts_that_cannot_be_evaluated_are_refused() {
    let site = Site::with_run();
    fs::write(site.path("short.txt"), "twelve bytes").expect("room");
    let parts = ["it has 12 tokens, and a window takes 65", "--window 11"];
    site.refused("eval run --text short.txt", 2, &parts);
    site.printed("eval run --text short.txt --window 11");
    site.refused("eval run --text text.txt --window 65", 2, &["the model sees 64"]);
    site.refused("eval run --text missing.txt", 5, &["missing.txt"]);
    site.refused("eval run --tokens nowhere", 5, &["nowhere"]);
    site.refused("eval nowhere --text text.txt", 5, &["nowhere is not there"]);
    fs::write(site.path("bad.jsonl"), "{\"text\": \"a\"}\n{\"text\":").expect("room");
    let message = refusal(&mut site.command("eval run --text bad.jsonl"), 2);
    assert!(message.contains("bad.jsonl:2") && !message.contains("--skip-bad"), "{message}");
    site.printed("tokenizer train --vocab 300 --to tok --text text.txt --threads 1");
    site.printed("data prepare text.txt --tokenizer tok --to store --threads 1");
    let parts = ["it is of 300 tokens, the model of 256", "data prepare --tokenizer"];
    site.refused("eval run --tokens store", 2, &parts);
}

#[test]
fn bytes_of_a_text_are_counted_whatever_the_tokens() {
    let site = Site::with_tokenizer();
    let found = site.json("eval model --text text.txt --window 32");
    let number = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key}: {found}"));
    let length = fs::metadata(site.path("text.txt")).expect("written").len() as f64;
    assert!(number("tokens") < number("bytes") && number("bytes") <= length, "{found}");
    assert!(number("bytes") > 0.95 * length, "all but the first token and the end: {found}");
    let bits = number("loss") * number("tokens") / std::f64::consts::LN_2 / number("bytes");
    assert!((number("bits_per_byte") - bits).abs() < 1e-9);
    site.printed("data prepare text.txt --tokenizer model --to store --threads 1");
    assert_eq!(site.json("eval model --tokens store --window 32"), found);
    assert!(Path::new(&site.path("store")).exists());
    site.printed("data prepare text.txt --to bytes --threads 1");
    site.refused("eval model --tokens bytes", 2, &["its tokenizer has hash"]);
}

/// A run whose documents do not see each other is evaluated so, wherever its store lies by then.
#[test]
fn a_run_of_documents_is_evaluated_as_it_was_trained() {
    let site = Site::with_text();
    site.printed("tokenizer train --vocab 300 --to tok --text text.txt --threads 1");
    let line = |n: u32| format!("{{\"text\": \"{n} and {n} are {}\"}}\n", n + n);
    fs::write(site.path("lines.jsonl"), (1..=900).map(line).collect::<String>()).expect("room");
    site.printed("data prepare lines.jsonl --tokenizer tok --to store --threads 1");
    let over = "--set data.text=[] --set data.tokens=[\"store\"] --set data.packing=documents \
        --set data.tokenizer=tok --set data.held_out=0.9 --set train.steps=1";
    let train = TRAIN.replace("--threads-only ", "");
    site.printed(&format!("{train} {over}"));
    let record = parsed(&fs::read(site.path("run/run.json")).expect("written"));
    let expected = record["held_out_loss"].as_f64().expect("a loss");
    fs::rename(site.path("store"), site.path("moved")).expect("writable");
    let number = |found: &Value| found["loss"].as_f64().expect("a loss");
    let found = site.json("eval run --tokens moved");
    assert_eq!(found["window"], 64, "the run's");
    // A model that no run is known of is evaluated on one stream. The tenth of the windows that was
    // trained on hardly changes the mean.
    site.printed("export run --to model");
    let stream = site.json("eval model --tokens moved --window 64");
    assert!(found["tokens"].as_u64() < stream["tokens"].as_u64(), "{found} {stream}");
    assert!((number(&found) - expected).abs() < 0.02, "{found}, expected {expected}");
    assert!((number(&found) - number(&stream)).abs() > 1e-6);
    let config = fs::read(site.path("run/config.toml")).expect("written");
    fs::write(site.path("run/config.toml"), "[model]\nlayers = 0\n").expect("room");
    site.refused("eval run --tokens moved", 2, &["run/config.toml:2", "model.layers"]);
    fs::write(site.path("run/config.toml"), config).expect("room");

    // As a run that was killed before it wrote its model.
    fs::remove_dir_all(site.path("run/model")).expect("writable");
    fs::remove_file(site.path("run/run.json")).expect("writable");
    site.printed("export run --to last");
    assert!(site.files("last")["model.safetensors"] == site.files("model")["model.safetensors"]);
}

#[test]
fn an_interrupted_evaluation_leaves_nothing_behind() {
    let site = Site::with_run();
    fs::create_dir(site.path("scratch")).expect("room");
    fs::write(site.path("long.txt"), "a line of the text\n".repeat(2_000_000)).expect("room");
    let mut command = site.command("eval run --text long.txt --threads 1");
    let child = command.env("TMPDIR", site.path("scratch")).stderr(Stdio::piped()).spawn();
    let child = child.expect("it runs");
    let is_empty = || fs::read_dir(site.path("scratch")).expect("readable").next().is_none();
    while is_empty() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it is alive");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    assert!(is_empty(), "its folder is gone");
}
