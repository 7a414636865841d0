//! What a run in processes measures, as it tells whoever asks for its status.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::Place;

/// Layers of every class on three stages, and steps enough for a review.
const RUN: &str = "--steps 60 --workers 3 --window 1 --set model.layers=6 --set model.width=128 \
    --set train.seq_len=64 --set train.microbatch=2 --set train.global_batch=16 --json";
/// What may take so long on the slowest machine there is.
const PATIENCE: Duration = Duration::from_secs(240);

/// A process that does not outlive the test.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
fn measured(place: &Place) -> Option<(Value, Value)> {
    let folder = controller(&place.path(""))?;
    let mut status = place.command("status --json");
    let output = status.env("ZBELASTIC_DATA_DIR", folder).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let has_been = status["pace"].is_object();
    has_been.then(|| (status["pace"].clone(), status["plan"]["stages"].clone()))
}

#[test]
fn what_layers_and_links_take_is_measured_and_told() {
    let place = Place::new();
    let mut command = place.small_in_processes(RUN);
    let _run = Owned(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"));
    let began = Instant::now();
    let (pace, stages) = loop {
        match measured(&place) {
            Some(found) => break found,
            None => assert!(began.elapsed() < PATIENCE, "nothing was measured"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("{pace:#}");
    let layers = pace["layers"].as_array().expect("a list");
    let names: Vec<&str> = layers.iter().filter_map(|layer| layer["layer"].as_str()).collect();
    assert_eq!(names, ["embed", "attention", "mlp", "head"]);
    for layer in layers {
        for time in ["f_us", "w_us", "update_us"] {
            assert!(layer[time].as_f64().is_some_and(|us| us > 0.0), "{time} of {layer}");
        }
    }
    let nodes: Vec<u64> =
        stages.as_array().expect("a list").iter().flat_map(Value::as_u64).collect();
    let mut pairs: Vec<[u64; 2]> =
        nodes.windows(2).map(|pair| [pair[0].min(pair[1]), pair[0].max(pair[1])]).collect();
    pairs.sort_unstable();
    let links = pace["links"].as_array().expect("a list");
    let found: Vec<Value> = links.iter().map(|link| link["nodes"].clone()).collect();
    assert_eq!(found, pairs.into_iter().map(Value::from).collect::<Vec<_>>());
    for link in links {
        let time = |name: &str| link[name].as_f64().expect("a number");
        assert!(time("latency_us") >= 0.0 && time("occupancy_us") >= 0.0, "{link}");
        assert!(time("latency_us") + time("occupancy_us") > 0.0, "{link}");
    }
}
