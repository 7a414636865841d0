//! Files: of a data folder, of a model, of people.

use std::sync::Arc;

use zbelastic_checkpoint::{Manifest, PieceName, PieceRecord};
use zbelastic_config::load_document;
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::codec::encode;
use zbelastic_consensus::validation::Ledger;
use zbelastic_mirror::{MirroredCheckpoint, MirroredData};
use zbelastic_node::cluster::recovery::CheckpointDocument;
use zbelastic_policy::data_chunks::ChunkHashes;
use zbelastic_trainer::elastic::LayerImage;
use zbelastic_trainer::hf::{
    WeightType, WeightsFiles, adapter_config_json, config_json, write_safetensors,
};
use zbelastic_trainer::model::{
    AttentionBias, Family, LlamaFeatures, ModelConfig, RopeScaling, initial_weights, model_layers,
};
use zbelastic_types::{Digest, Generation, LayerId, Step};
use zbelastic_wire::document::{DataName, JobDocument};

use super::texts;
use crate::targets::checkpoint::{LIST_CHUNK, island_head, version};
use crate::targets::trainer::{adapted, model};

/// Machines that a run is planned for.
pub const MACHINES: &str = r#"latency = "0.2ms"
gbit_per_s = 9.4
[[node]]
name = "a"
speed = 2.0
memory = "10GiB"
zone = "us-east-1a"
count = 3
"#;
/// One line of each event that is looked at, and a torn one.
pub const EVENT_LINES: &str = r#"{"event":"started","at_ms":5,"node":1,"term":0}
{"event":"joined","time_us":7,"node":2,"name":"worker-2"}
{"event":"lost","time_us":8,"node":2,"reason":"connection closed"}
{"event":"plan","time_us":9,"generation":2,"stages":[1,2],"schedule":"zb-v","bytes_moved":7}
{"event":"step","time_us":10,"generation":2,"step":3,"verdict":"keep","loss":2.5,"gnorm":1.0}
{"event":"done","time_us":11,"step":3,"digest":"ab"}
{"event":"st"#;
/// Traces with counts and with events.
pub const TRACES: [&str; 2] = [
    "time_s,nodes_alive\n0,80\n60,70\n120,60\n",
    "time_s,event,node,nodes_alive\n0,join,a,1\n5.5,join,b,2\n9,leave,a,1\n",
];
/// Indexes of one file of weights and of two.
pub const SHARD_INDEXES: [&str; 2] = [
    r#"{"metadata":{"total_size":8},"weight_map":{"a":"model.safetensors"}}"#,
    r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",
        "c":"model-00001-of-00002.safetensors"}}"#,
];
/// A life that failed once.
pub const CASE: &str = include_str!("../../../regressions/seed-3853-digest.json");
/// The byte in front of a value of the index.
const ROW_VERSION: u8 = 1;

/// A value as a row of the index has it: like a message of the protocol, but for its version.
fn row<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = encode(value);
    bytes[0] = ROW_VERSION;
    bytes
}

fn plain_manifest() -> Manifest {
    let layer =
        |layer| PieceName { version: version(), layer: LayerId(layer), digest: Digest([5; 32]) };
    Manifest {
        version: version(),
        layers: (0..3).map(layer).collect(),
        document: b"[model]".to_vec(),
        data: Digest([7; 32]),
        program: "0.1.0".to_owned(),
        seed: 9,
    }
}

pub fn manifest() -> Vec<u8> {
    row(&plain_manifest())
}

pub fn mirror_checkpoint() -> Vec<u8> {
    let record = PieceRecord::of(b"bytes");
    let checkpoint = MirroredCheckpoint {
        cluster: 7,
        cluster_name: "wiki".to_owned(),
        run_name: "first".to_owned(),
        manifest: plain_manifest(),
        pieces: vec![record.clone(); 3],
        data: vec![MirroredData { hash: Digest([7; 32]), record }],
    };
    checkpoint.encode().expect("it is small")
}

pub fn piece_records() -> Vec<Vec<u8>> {
    [&b""[..], b"bytes"].map(|bytes| row(&PieceRecord::of(bytes))).to_vec()
}

/// Of data without a byte, of one chunk and of several, of which the last is cut short.
pub fn chunk_lists() -> Vec<Vec<u8>> {
    let list = |length: usize| {
        let list = ChunkHashes::of(&vec![7; length], LIST_CHUNK).encode();
        [&(length as u64).to_le_bytes()[..], &list].concat()
    };
    [0, 9, 4096, 5 * 1024 + 1].map(list).to_vec()
}

/// A head, and its bytes without the line before them.
pub fn island_heads() -> Vec<Vec<u8>> {
    let whole = island_head().encode().expect("numbers have a form");
    let line = whole.iter().position(|byte| *byte == b'\n').expect("a line");
    let body = whole[line + 1..].to_vec();
    vec![whole, body]
}

/// The document of a checkpoint, and that of a version before there were classes of devices.
pub fn checkpoint_documents() -> Vec<Vec<u8>> {
    let job = job();
    let spec = Arc::new(job.spec(job.encode().expect("it is short")));
    let ledger = Ledger::new(Generation(3), Step(8), 7);
    let record = CheckpointRecord { version: Step(8), layers: vec![Digest([5; 32]); 3], ledger };
    let before = encode(&(Arc::clone(&spec), record.clone()));
    vec![encode(&CheckpointDocument::of(&spec, &record, None)), before]
}

/// A layer with as many moments as weights, with fewer, and with none.
pub fn layers() -> Vec<Vec<u8>> {
    let floats = |start: u32, count| (start..start + count).map(|i| i as f32 * 0.25).collect();
    let layer = |moments| {
        let w = floats(1, 3);
        let m = floats(40, moments);
        let v = floats(900, moments);
        LayerImage { layer: LayerId(3), version: Step(9), w, m, v }.encode()
    };
    [3, 2, 0].map(layer).to_vec()
}

pub fn model_configs() -> Vec<Vec<u8>> {
    let llama = ModelConfig { family: Family::Llama, ..model() };
    let features = |attention_bias, qk_norm, rope_scaling| {
        let features = LlamaFeatures { attention_bias, mlp_bias: false, qk_norm, rope_scaling };
        ModelConfig { features, ..llama.clone() }
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192,
    };
    let qwen2 = features(AttentionBias::Qkv, false, None);
    let qwen3 = features(AttentionBias::All, true, Some(llama3));
    [model(), llama, qwen2, qwen3].iter().map(|model| config_json(model).into_bytes()).collect()
}

pub fn safetensors() -> Vec<u8> {
    let model = model();
    let layers: Vec<_> = model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
    let mut file = Vec::new();
    write_safetensors(&model, &layers, &mut file).expect("a vector takes all bytes");
    file
}

pub fn adapter_configs() -> Vec<Vec<u8>> {
    let peft = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2.5, "target_modules": "all-linear",
        "bias": "none", "lora_dropout": 0.1, "use_rslora": true, "init_lora_weights": "gaussian",
        "modules_to_save": null, "rank_pattern": {}, "task_type": "CAUSAL_LM"}"#;
    let ours = adapter_config_json(&adapted(), Some("base")).expect("it has adapters");
    vec![peft.as_bytes().to_vec(), ours.into_bytes()]
}

pub fn adapters() -> Vec<u8> {
    let model = adapted();
    let layers: Vec<_> = model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
    let mut file = Vec::new();
    let files = WeightsFiles::of_adapters(&model, WeightType::F32);
    files.files()[0].write(&layers, &mut file).expect("a vector takes all bytes");
    file
}

pub fn import() -> Vec<u8> {
    [config_json(&model()).into_bytes(), vec![0], safetensors()].concat()
}

const TINY: &str = "[model]\npreset = \"tiny\"\n";

fn job() -> JobDocument {
    let config = load_document("seed", TINY).expect("it is legal").config;
    JobDocument::new("tiny".to_owned(), config, TINY.to_owned(), DataName::of(b"text"))
}

pub fn job_document() -> Vec<u8> {
    job().encode().expect("it is short")
}

pub fn configurations() -> Vec<Vec<u8>> {
    let effective = load_document("seed", TINY).expect("it is legal").config.effective();
    texts(&[
        TINY,
        &effective,
        "[model]\npreset = \"tiny\"\n[schedule]\nkind = \"zb-v\"\n[guard]\nnonfinite = \"replay\"\n",
    ])
}

pub fn node_files() -> Vec<Vec<u8>> {
    let record = r#"{"version":1,"cluster":1,"cluster_name":"c","founded_ms":5,"node":2,
        "name":"gpu-7","role":"worker","boot":3,"bind":"0.0.0.0:7000",
        "advertised":["10.0.0.4:7000"],"controllers":{"1":["10.0.0.1:7000"]}}"#;
    texts(&[record, r#"{"name":"c","id":"0000000000000001","addresses":["10.0.0.1:7000"]}"#])
}
