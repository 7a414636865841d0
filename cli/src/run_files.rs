//! The names of the files in a run folder, for the run that writes them and for the commands that
//! read them.

/// File of the effective configuration.
pub const CONFIG: &str = "config.toml";
/// File of the run's events, one JSON object a line.
pub const METRICS: &str = "metrics.jsonl";
/// Bytes of it at most, as many as a node's file of events has. Lines before those are in one file beside
/// it, which is as long: together some 400,000 steps.
pub const METRICS_BYTES_MAX: u64 = 64 << 20;
/// Bytes of TensorBoard's event files at most: the oldest files go first.
pub const SCALARS_BYTES_MAX: u64 = 2 * METRICS_BYTES_MAX;
/// The description of the run, and how it ended.
pub const RUN: &str = "run.json";
/// File of the last steps as a trace for Perfetto.
pub const TRACE: &str = "trace.json";
/// The page of the run, in one file.
pub const REPORT: &str = "report.html";
/// The folder of TensorBoard's event files.
pub const TENSORBOARD: &str = "tensorboard";
/// The order that was found.
pub const ORDER: &str = "order.txt";
/// File of generated text.
pub const SAMPLE: &str = "sample.txt";
/// Folder of the trained model.
pub const MODEL: &str = "model";
/// Folder within it of the adapters that were trained, in PEFT's format.
pub const ADAPTER: &str = "adapter";
/// The folders of the processes that train.
pub const CLUSTER: &str = "cluster";
/// Where run folders lie if no folder is named.
pub const RUNS: &str = "runs";
