//! The configuration of a run: from TOML and flags to one validated value.
//!
//! ```text
//! default < preset < file < flags  ──layers──>  Settings  ──checks──>  RunConfig
//! ```
//!
//! [`load`] reports everything that is wrong at once. The list of keys is written once, in
//! `key.rs`. This module reads files and decides nothing about a run that is not in them: which
//! schedule `auto` becomes is decided by the planner.

mod arithmetic;
mod assignment;
mod asynchronous;
mod build;
mod changes;
mod decay_groups;
mod effective;
mod file;
mod find_key;
mod freeze;
mod injections;
mod key;
mod kind;
mod lora;
mod memory;
mod model;
mod nearest;
mod nodes;
mod note;
mod plan_failure;
mod planner_job;
mod presets;
mod problem;
mod reader;
mod same_bits;
mod settings;
mod steps;
mod sync;
#[cfg(test)]
mod tests;
pub mod text;
mod tokens;
mod value;
mod wording;
mod words;

pub use arithmetic::{ArithmeticConfig, DeviceChoice, PrecisionChoice};
pub use assignment::{Setting, SettingOrigin};
pub use asynchronous::{AsyncConfig, PipeDreamSync};
pub use changes::{changes, load_changed};
pub use injections::{check_injections, load_with_injections, parse_injections};
pub use key::{Key, KeyDefault, KeySpec, SECTIONS};
pub use kind::{NumberRange, ValueKind, parse_size, size_text};
pub use memory::{
    MemoryConfig, OffloadMode, OffloadStore, RECOMPUTE_OPS, RecomputeMode, RecomputePasses,
};
pub use nearest::nearest;
pub use nodes::{NODES_MAX, NetworkSpec, NodeSpec, read_nodes};
pub use note::{BYTE_VALUES, ConfigNote};
pub use plan_failure::plan_failure;
pub use presets::{PRESET_DEFAULT, PRESETS, Preset};
pub use settings::{ConfigFlag, ConfigSettings, ConfigSources, flag_value};
pub use steps::{check_cluster_can_run, check_needs_no_steps, check_no_island};
pub use sync::{SyncConfig, outer_schedule, rounds_kept};
pub use tokens::{BYTES_TOKENIZER, StoreShare, TokensConfig, TokensError};
pub use value::ConfigValue;
pub use words::ConfigWord;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_data::cursor::CursorConfig;
use zbelastic_data::prefetch::RunSteps;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{LoraSettings, ModelConfig};
use zbelastic_trainer::optimizer::OptimizerConfig;
use zbelastic_trainer::plan::{AUTO_KINDS, BatchShape, Plan, ReplicaCount, model_flop_per_token};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::Bytes;
use zbelastic_wording::CommandFailure;

use problem::ConfigProblem;
use settings::ConfigOrigin;

/// Bytes that a boundary tensor may have: those of a frame. It is not cut: the stage that waits for
/// it has nothing else to do, and a smaller microbatch makes it smaller.
pub const BOUNDARY_BYTES_MAX: u64 = zbelastic_transport::frame::FRAME_BYTES_MAX;

/// A run, as configured. Every value is legal; parts are passed on by reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Shape of the model: family, layers, width, vocabulary.
    pub model: ModelConfig,
    /// Where its weights begin.
    pub weights: WeightSource,
    /// Files, folders and globs of text; none for the built-in one.
    pub text: Vec<String>,
    /// Token stores in place of text, and how they are read.
    #[serde(default, skip_serializing_if = "TokensConfig::is_default")]
    pub tokens: TokensConfig,
    /// The share of the text that is held out.
    pub held_out_share: f64,
    /// Optimizer steps to train.
    pub steps: u64,
    /// Sequences of a step, and how they are divided.
    pub batch: BatchShape,
    /// The seed that weights and the order of the text are drawn from.
    pub seed: u64,
    /// Evaluate after every so many steps; 0 only after the last.
    pub evaluate_every: u64,
    /// Weight of the mean squared log sum of the head's softmax in the gradient (Chowdhery et al.,
    /// arXiv 2204.02311, section 5); 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub z_loss: f64,
    /// The device that it computes on, and in which type.
    #[serde(default)]
    pub arithmetic: ArithmeticConfig,
    /// Patterns over the names of the tensors that training leaves as they are; the model has these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Low-rank adapters as they are written; the model has these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
    /// The folder of the adapters that training goes on with, if they are not drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<PathBuf>,
    /// Rates of weight decay by patterns over the names of tensors; the optimizer has these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decay_groups: Vec<String>,
    /// Optimizer, its learning rate and its constants.
    pub optimizer: OptimizerConfig,
    /// Which steps are accepted: the guard's policy.
    pub guard: GuardPolicy,
    /// The requested schedule: auto, or a kind.
    pub schedule: ScheduleChoice,
    /// Chunks a stage holds; none for as many as the schedule has by itself.
    pub chunks_per_stage: Option<u32>,
    /// Pipelines side by side; none for a number that is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    /// Slices that sequences are cut into; none for as many as the schedule has by itself.
    #[serde(default)]
    pub slice_count: Option<u32>,
    /// Hyperparameters of single asynchronous schedules.
    #[serde(default)]
    pub asynchronous: AsyncConfig,
    /// Most memory of a stage.
    pub stage_bytes_max: Option<Bytes>,
    /// The other islands of the run, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncConfig>,
    /// How far steps run ahead of their verdict.
    pub window: WindowChoice,
    /// The activations that passes keep, and where.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// Checkpoints that a cluster stores.
    pub checkpoint: CheckpointConfig,
    /// How a cluster reacts when nodes come and go.
    pub elastic: ElasticConfig,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// Checkpoints that a cluster stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointConfig {
    /// Steps from one checkpoint to the next; 0 never.
    pub every: u64,
    /// Time from one checkpoint to the next; 0 for none by time.
    #[serde(default)]
    pub every_time: Duration,
    /// Checkpoints that are kept.
    pub keep_last: u32,
    /// A folder on every node; none for one beside the node's other data.
    pub folder: Option<PathBuf>,
    /// Other nodes that each piece is sent to.
    pub copies: u32,
    /// A folder or bucket that they are copied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
}

/// How a cluster reacts when nodes come and go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticConfig {
    /// The fewest workers with which training goes on.
    pub min_nodes: u32,
    /// How long more nodes are waited for.
    pub settle: Duration,
    /// Reaction of a worker to a preemption notice.
    pub on_notice: NoticePolicy,
    /// How long a node may be silent.
    pub detect_timeout: Duration,
    /// Other nodes that hold each update before it is sealed.
    pub copies: u32,
    /// Whether a plan that does not fit the measured times is given up for another.
    #[serde(default)]
    pub replan: ReplanPolicy,
}

/// Whether a plan follows the measured times of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplanPolicy {
    /// It is given up when times drift beyond its slack and another one pays.
    #[default]
    Drift,
    /// It stays until nodes come or go.
    Never,
}

/// Reaction of a worker to a preemption notice of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticePolicy {
    /// Hands over its layers, then leaves.
    Drain,
    /// Nothing: its loss is found like any other.
    Ignore,
}

/// Where the initial weights come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightSource {
    /// Drawn from the run's seed.
    Drawn,
    /// Read from a folder in Hugging Face's form.
    HuggingFace {
        /// Folder with `config.json` and `model.safetensors`.
        folder: PathBuf,
    },
}

/// A schedule, or leave to find one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleChoice {
    /// The fastest that fits.
    Auto,
    /// A synchronous schedule that is set.
    Kind(ScheduleKind),
    /// An asynchronous schedule that is set, which has no steps; in one process only.
    Asynchronous(AsyncKind),
}

impl ScheduleChoice {
    /// Slices of a microbatch where the configuration sets no number.
    #[must_use]
    pub const fn slice_count(&self) -> u32 {
        match self {
            Self::Kind(kind) => kind.slice_count(),
            Self::Auto | Self::Asynchronous(_) => 1,
        }
    }

    /// The synchronous schedules to choose from, for auto those that are worth trying
    /// ([`AUTO_KINDS`]); an asynchronous one is no choice between any.
    ///
    /// # Errors
    /// With the asynchronous schedule that was requested.
    pub const fn kinds(&self) -> Result<&[ScheduleKind], AsyncKind> {
        match self {
            Self::Auto => Ok(&AUTO_KINDS),
            Self::Kind(kind) => Ok(std::slice::from_ref(kind)),
            Self::Asynchronous(kind) => Err(*kind),
        }
    }
}

/// A window, or leave to choose one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowChoice {
    /// The window that suits the schedule.
    Auto,
    /// A window that is set.
    Fixed(Window),
}

impl WindowChoice {
    /// The window that a plan is made for.
    #[must_use]
    pub const fn planned(self) -> Window {
        match self {
            Self::Auto => Window::One,
            Self::Fixed(window) => window,
        }
    }
}

/// A configuration with its settings and notes.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    /// The configuration, after all checks.
    pub config: RunConfig,
    /// Notes on values that are legal and yet may not be meant.
    pub notes: Vec<ConfigNote>,
    /// Every value that was set, with its origin.
    pub settings: ConfigSettings,
}

/// Reads, layers and checks a configuration.
///
/// # Errors
/// With every problem found; a file that is not TOML is the only one then.
pub fn load(sources: &ConfigSources) -> Result<LoadedConfig, CommandFailure> {
    let gathered = ConfigSettings::gather(sources);
    let gathered = gathered.map_err(|problem| vec![problem]);
    gathered.and_then(|gathered| check(gathered, ConfigOrigin::New)).map_err(failure)
}

/// Reads and checks a configuration that is here as text; places in errors call it `name`.
///
/// # Errors
/// As [`load`].
pub fn load_document(name: &str, document: &str) -> Result<LoadedConfig, CommandFailure> {
    let gathered = ConfigSettings::gather_document(name, document);
    let gathered = gathered.map_err(|problem| vec![problem]);
    gathered.and_then(|gathered| check(gathered, ConfigOrigin::New)).map_err(failure)
}

/// Reads the effective configuration of a run that began, or the TOML of its job. The token stores
/// and the folder of `model.from_hf` that it names need not be where they were: what they say is
/// among the keys.
///
/// # Errors
/// As [`load`].
pub fn load_recorded(name: &str, document: &str) -> Result<LoadedConfig, CommandFailure> {
    load_changed(name, document, "")
}

fn failure(problems: Vec<ConfigProblem>) -> CommandFailure {
    let details = problems.iter().map(ConfigProblem::detail).collect();
    CommandFailure::usage("the configuration", details)
}

fn check(
    (settings, mut problems): (ConfigSettings, Vec<ConfigProblem>),
    origin: ConfigOrigin,
) -> Result<LoadedConfig, Vec<ConfigProblem>> {
    match build::build(&settings, origin) {
        Ok(config) if problems.is_empty() => {
            Ok(LoadedConfig { notes: note::notes(&config), config, settings })
        }
        Ok(_) => Err(problems),
        Err(between) => {
            problems.extend(between);
            Err(problems)
        }
    }
}

impl RunConfig {
    /// The whole configuration as TOML, every key with its meaning: the text that [`load`] reads
    /// back as the same configuration.
    #[must_use]
    pub fn effective(&self) -> String {
        effective::write_documented(self)
    }

    /// The same without the paths of text, stores and tokenizer: they are those of a machine, and a
    /// job goes on wherever the same data lies.
    #[must_use]
    pub fn without_data_paths(mut self) -> Self {
        self.text.clear();
        self.tokens.stores.clear();
        self.tokens.tokenizer = None;
        self
    }

    /// Floating-point operations of a token, forward and backward.
    #[must_use]
    pub fn flop_per_token(&self) -> f64 {
        model_flop_per_token(&self.model, self.batch.microbatch)
    }

    /// The setup of the stages of a plan: weights are drawn, no gradient is corrupted, none is sent
    /// to copies, and nothing is attested.
    #[must_use]
    pub fn stage_setup(&self, plan: Plan) -> StageSetup {
        StageSetup {
            model: self.model.clone(),
            plan,
            optimizer: self.optimizer.clone(),
            z_loss: self.z_loss,
            clip_norm: self.guard.clip_norm,
            step_count: self.steps,
            evaluate_every: self.evaluate_every,
            weights: InitialWeights::Drawn { seed: self.seed },
            injections: Vec::new(),
            copies_wanted: false,
            attest_every: 0,
            outer: outer_schedule(self),
        }
    }

    /// The steps of the run, as they read batches.
    #[must_use]
    pub fn run_steps(&self) -> RunSteps {
        let outer = self.sync.as_ref().map(|sync| &sync.outer);
        RunSteps {
            count: self.steps,
            evaluate_every: self.evaluate_every,
            islands: outer.map_or((1, 0), |outer| (outer.islands.into(), outer.island.into())),
        }
    }

    /// How windows of stores are read.
    #[must_use]
    pub fn cursor(&self) -> CursorConfig {
        CursorConfig {
            shape: self.batch.microbatch,
            microbatch_count: self.batch.microbatch_count,
            held_out_share: self.held_out_share,
            seed: self.seed,
        }
    }
}

impl LoadedConfig {
    /// The whole configuration as TOML, every key with the origin of its value.
    #[must_use]
    pub fn effective_with_origins(&self) -> String {
        effective::write_with_origins(&self.config, &self.settings)
    }

    /// Every key that holds, with its value and origin, in the order of the table.
    #[must_use]
    pub fn settings_in_force(&self) -> Vec<(Key, Setting)> {
        effective::settings_in_force(&self.config, &self.settings)
    }
}
