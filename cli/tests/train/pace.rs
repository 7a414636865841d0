//! The measured times of a run in processes, as its status reports them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::text_folder::{OwnedProcess, PATIENCE, TextFolder};

/// Layers of every class on three stages, and more steps than are waited for.
const RUN: &str = "--steps 4000 --workers 3 --window 1 --set model.layers=6 --set model.width=128 \
    --set train.seq_len=64 --set train.microbatch=2 --set train.global_batch=16 --json";

/// The folder of the controller of the run in this place, once it is there.
fn controller(folder: &Path) -> Option<PathBuf> {
    let found = folder.join("cluster/controller");
    if found.is_dir() {
        return Some(found);
    }
    let folders = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    folders.filter(|path| path.is_dir()).find_map(|path| controller(&path))
}

/// The pace in a run's status, once something was measured.
fn measured(text_folder: &TextFolder) -> Option<(Value, Value)> {
    let folder = controller(&text_folder.path(""))?;
    let mut status = text_folder.command("status --json");
    let output = status.env("ZBELASTIC_DATA_DIR", folder).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let has_been = status["pace"].is_object();
    has_been.then(|| (status["pace"].clone(), status["plan"]["stages"].clone()))
}

/// The missing measurements of a pace, on nodes that stand in this order.
fn missing(pace: &Value, stages: &Value) -> Option<String> {
    let list = |name: &str| pace[name].as_array().cloned().unwrap_or_default();
    let layers = list("layers");
    let names: Vec<&str> = layers.iter().filter_map(|layer| layer["layer"].as_str()).collect();
    if names != ["embed", "attention", "mlp", "head"] {
        return Some(format!("layers {names:?}"));
    }
    let takes_time = |value: &Value| value.as_f64().is_some_and(|us| us > 0.0);
    for (layer, time) in
        layers.iter().flat_map(|layer| ["f_us", "w_us", "update_us"].map(|time| (layer, time)))
    {
        if !takes_time(&layer[time]) {
            return Some(format!("{time} of {layer}"));
        }
    }
    let nodes: Vec<u64> = stages.as_array()?.iter().flat_map(Value::as_u64).collect();
    let mut pairs: Vec<[u64; 2]> =
        nodes.windows(2).map(|pair| [pair[0].min(pair[1]), pair[0].max(pair[1])]).collect();
    pairs.sort_unstable();
    let links = list("links");
    let found: Vec<Value> = links.iter().map(|link| link["nodes"].clone()).collect();
    if found != pairs.into_iter().map(Value::from).collect::<Vec<_>>() {
        return Some(format!("links {found:?}"));
    }
    let is_timed =
        |link: &Value| takes_time(&link["latency_us"]) || takes_time(&link["occupancy_us"]);
    links.iter().find(|link| !is_timed(link)).map(|link| format!("times of {link}"))
}

/// In some steps a link or a layer is not measured; some status has all of them.
#[test]
fn what_layers_and_links_take_is_measured_and_reported() {
    let text_folder = TextFolder::new();
    let mut command = text_folder.small_in_processes(RUN);
    let _run =
        OwnedProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"));
    let began = Instant::now();
    loop {
        let lacks = match measured(&text_folder) {
            Some((pace, stages)) => missing(&pace, &stages),
            None => Some("all of it".to_owned()),
        };
        let Some(lacks) = lacks else { return };
        assert!(began.elapsed() < PATIENCE, "not measured: {lacks}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
