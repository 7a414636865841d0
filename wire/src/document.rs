//! What a cluster trains: everything a worker builds its part from, in one document that travels
//! through the log. Text and weights are too large for it and are named by their hash.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbelastic_config::{DeviceChoice, PrecisionChoice, RunConfig, WeightSource, WindowChoice};
use zbelastic_consensus::job::{JobSpec, RunOrigin, STAGES_MAX};
use zbelastic_consensus::run::run_name_of;
use zbelastic_data::cursor::CursorError;
use zbelastic_data::mixture::StoreMixture;
use zbelastic_data::store::ManifestFault;
use zbelastic_policy::tick::ticks_of;
use zbelastic_schedule::Window;
use zbelastic_trainer::data::{Corpus, CorpusConfig, CorpusError};
use zbelastic_trainer::model::{FrozenTensors, LayerSpec, model_layers};
use zbelastic_trainer::plan::{LaneError, ReplicaCount};
use zbelastic_trainer::stage::Injection;
use zbelastic_types::{Digest, RunId, Step};

pub use zbelastic_policy::data::DataName;

use crate::job_store::{JobStore, stores_name};
use crate::messages::layer_bytes;

/// The newest version of the document's form, which rates of decay of single tensors need, islands, and
/// bfloat16 on processors: a program that does not know them would train something else.
pub const DOCUMENT_VERSION: u32 = 5;
/// The version of the form that frozen tensors without moments need: layers are shorter than a program
/// expects that does not know them.
const MOMENTS_DOCUMENT_VERSION: u32 = 4;
/// The version of the form that lanes need: a program that does not know them must not train something
/// else.
const LANES_DOCUMENT_VERSION: u32 = 3;
/// The version of the form that token stores need, and keys of the model and the optimizer that came
/// with them.
pub(crate) const STORES_DOCUMENT_VERSION: u32 = 2;
/// The version of the form of documents that train on text, and use none of those keys.
const TEXT_DOCUMENT_VERSION: u32 = 1;
/// Bytes of a document at most.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// Owners and copies compare their states at every so many steps.
const ATTEST_EVERY: u64 = 16;

/// The name of a run that has no other: by its model's size.
#[must_use]
pub fn default_run_name(config: &RunConfig) -> String {
    let family = format!("{:?}", config.model.family).to_lowercase();
    run_name_of(&format!("{family}-{}x{}", config.model.blocks, config.model.width))
}

/// A job as submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDocument {
    /// The version of the form.
    pub version: u32,
    /// The program that wrote it.
    pub program: String,
    /// What the run is called.
    pub name: String,
    /// What it continues from, if not from weights at step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<RunOrigin>,
    /// The complete configuration of the run.
    pub config: RunConfig,
    /// The same as TOML, as it stands in a configuration file.
    pub toml: String,
    /// The hash and length of the text; with stores, the name of what is read of them.
    pub text: DataName,
    /// Token stores that are trained on in place of a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<JobStore>,
    /// The weights that training begins with, if they are not drawn.
    pub weights: Option<DataName>,
    /// Gradients corrupted on purpose.
    pub injections: Vec<Injection>,
}

/// A job with what names it in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedJob {
    /// Which run of the cluster it is.
    pub run: RunId,
    /// The hash of the document's bytes.
    pub name: Digest,
    /// The document that has this hash.
    pub job: JobDocument,
}

/// Why bytes are no document that this program can work from.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are no document.
    #[error("the job's document cannot be read: {0}")]
    Form(#[from] serde_json::Error),
    /// Another version of this program wrote it.
    #[error(
        "a job's document of version {found}, this program reads versions 1 to {DOCUMENT_VERSION}"
    )]
    Version {
        /// The version that the document names.
        found: u32,
    },
    /// It is too large for the log.
    #[error(
        "a job's document of {found} bytes, at most {DOCUMENT_BYTES_MAX}: with fewer shards (`zbelastic \
         data prepare --shard-tokens`) it is shorter"
    )]
    Size {
        /// The document's length in bytes.
        found: usize,
    },
    /// Lanes that its step or its schedule cannot have. Before there were lanes, schedules of two
    /// directions had an order of additions of their own, and no job goes on in another.
    #[error("the job's lanes: {0}; it goes on under the program that began it")]
    Lanes(#[from] LaneError),
    /// A tensor that is trained has no moments.
    #[error("the job trains a tensor that it gives no moments")]
    NoMoments,
    /// A store contradicts itself.
    #[error("the job's token store {0}")]
    Store(#[from] ManifestFault),
    /// Its name is another one's.
    #[error("the job's document is {found}, the job names {expected}")]
    Name {
        /// What the job names.
        expected: Digest,
        /// What the bytes give.
        found: Digest,
    },
}

/// Why a job cannot go on from a run's checkpoint: it trains a tensor that was frozen there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "train.freeze: {tensor} is frozen in run {run}, whose checkpoints have no moments of it: freeze it, or export \
     the model and begin another run with it (model.from_hf)"
)]
pub struct NoMoments {
    /// The run that it was to go on from.
    pub run: String,
    /// Name of the tensor.
    pub tensor: String,
}

impl NamedJob {
    /// The run whose checkpoint a version is.
    #[must_use]
    pub fn run_of(&self, version: Step) -> RunId {
        RunOrigin::run_of(self.run, self.job.from, version)
    }
}

impl JobDocument {
    /// Its text or the shards of its stores, and its weights if it has some.
    #[must_use]
    pub fn data(&self) -> Vec<DataName> {
        if self.stores.is_empty() {
            return std::iter::once(self.text).chain(self.weights).collect();
        }
        let shards: BTreeSet<DataName> = self.stores.iter().flat_map(JobStore::shards).collect();
        shards.into_iter().chain(self.weights).collect()
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// If they are too many.
    pub fn encode(&self) -> Result<Vec<u8>, DocumentError> {
        let bytes = serde_json::to_vec(self)?;
        let found = bytes.len();
        if found > DOCUMENT_BYTES_MAX { Err(DocumentError::Size { found }) } else { Ok(bytes) }
    }

    /// Whether it trains the same, whatever the two are called, and whether or not frozen tensors have
    /// moments.
    #[must_use]
    pub fn is_same_run(&self, other: &Self) -> bool {
        let of = |job: &Self| {
            let mut config = job.config.clone();
            config.model.without_moments = FrozenTensors::NONE;
            // It follows from the rest.
            let version = TEXT_DOCUMENT_VERSION;
            Self { name: String::new(), version, config, ..job.clone() }
        };
        of(self) == of(other)
    }

    /// The same job on layers whose moments lie as those of `parent`, whose checkpoint it goes on from.
    ///
    /// # Errors
    /// If a tensor is trained of which the parent has no moments.
    pub fn with_moments_of(mut self, parent: &Self) -> Result<Self, NoMoments> {
        let layout = &parent.config.model.without_moments;
        let model = &mut self.config.model;
        let trained = layout.tensors().find(|tensor| !model.frozen.contains(*tensor));
        if let Some(index) = trained {
            let layers = model_layers(model);
            let mut tensors = layers.iter().flat_map(LayerSpec::own_tensors);
            let named = tensors.find(|tensor| tensor.index == index);
            let tensor = named.map_or_else(|| index.to_string(), |tensor| tensor.name.clone());
            return Err(NoMoments { run: parent.name.clone(), tensor });
        }
        model.without_moments = layout.clone();
        self.version = version_for(&self.config).max(self.stores_version());
        Ok(self)
    }

    /// A job of another configuration over the same data. Its weights are those of the checkpoint that it
    /// goes on from.
    #[must_use]
    pub fn over_same_data(self, config: RunConfig) -> Self {
        let config = RunConfig { weights: WeightSource::Drawn, adapters: None, ..config };
        let toml = config.effective();
        let job = match self.stores {
            stores if stores.is_empty() => Self::new(self.name, config, toml, self.text),
            stores => Self::over_stores(self.name, config, toml, stores),
        };
        Self { injections: self.injections, ..job }
    }

    /// The oldest version of the form that has its stores.
    fn stores_version(&self) -> u32 {
        if self.stores.is_empty() { TEXT_DOCUMENT_VERSION } else { STORES_DOCUMENT_VERSION }
    }

    /// The document of a job.
    ///
    /// # Errors
    /// If it is not the one that the job names, or not of this version.
    pub fn of_job(spec: &JobSpec) -> Result<NamedJob, DocumentError> {
        let expected = spec.config;
        let found = DataName::of(&spec.document).hash;
        if expected != found {
            return Err(DocumentError::Name { expected, found });
        }
        Ok(NamedJob { run: spec.run, name: expected, job: Self::decode(&spec.document)? })
    }

    /// The document in `bytes`.
    ///
    /// # Errors
    /// If they are none of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct DocumentVersionHeader {
            version: u32,
        }
        let found = bytes.len();
        if found > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::Size { found });
        }
        let DocumentVersionHeader { version: found } = serde_json::from_slice(bytes)?;
        if !(TEXT_DOCUMENT_VERSION..=DOCUMENT_VERSION).contains(&found) {
            return Err(DocumentError::Version { found });
        }
        let document: Self = serde_json::from_slice(bytes)?;
        document.stores.iter().try_for_each(|store| store.manifest.check())?;
        let kinds = document.config.schedule.kinds().unwrap_or_default();
        kinds.iter().try_for_each(|kind| document.config.batch.check_lanes(*kind))?;
        let model = &document.config.model;
        if !model.without_moments.are_among(&model.frozen) {
            return Err(DocumentError::NoMoments);
        }
        Ok(document)
    }

    /// The job that a configuration and the hash of its text make.
    #[must_use]
    pub fn new(name: String, config: RunConfig, toml: String, text: DataName) -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let version = version_for(&config);
        let from = None;
        let weights = None;
        let stores = Vec::new();
        let injections = Vec::new();
        Self { version, program, name, from, config, toml, text, stores, weights, injections }
    }

    /// The job that a configuration and token stores make.
    #[must_use]
    pub fn over_stores(
        name: String,
        config: RunConfig,
        toml: String,
        stores: Vec<JobStore>,
    ) -> Self {
        let text = stores_name(&stores, config.tokens.packing);
        let document = Self::new(name, config, toml, text);
        let document = Self { stores, ..document };
        Self { version: document.version.max(document.stores_version()), ..document }
    }

    /// What the cluster must agree on, of this document's `bytes`.
    #[must_use]
    pub fn spec(&self, bytes: Vec<u8>) -> JobSpec {
        let config = &self.config;
        let layers = model_layers(&config.model);
        JobSpec {
            // The log gives it.
            run: RunId(0),
            name: self.name.clone(),
            from: self.from,
            config: DataName::of(&bytes).hash,
            document: bytes,
            layer_tensors: layers.iter().map(|layer| layer.own_tensors().count() as u32).collect(),
            layer_bytes: layers.iter().map(layer_bytes).collect(),
            microbatch_count: config.batch.microbatch_count,
            step_count: config.steps,
            policy: config.guard,
            window: match config.window {
                WindowChoice::Auto => zbelastic_consensus::job::WindowPolicy::Auto,
                WindowChoice::Fixed(Window::Zero) => fixed(Window::Zero),
                WindowChoice::Fixed(Window::One) => fixed(Window::One),
            },
            copies: config.elastic.copies,
            checkpoint_every: config.checkpoint.every,
            checkpoint_ticks: match config.checkpoint.every_time {
                Duration::ZERO => 0,
                time => ticks_of(time),
            },
            checkpoints_kept: config.checkpoint.keep_last,
            attest_every: ATTEST_EVERY,
            device: match config.arithmetic.device {
                DeviceChoice::Cpu => zbelastic_consensus::class::DeviceKind::Processors,
                DeviceChoice::Cuda => zbelastic_consensus::class::DeviceKind::Cuda,
            },
            workers_min: config.elastic.min_nodes,
            stages_max: stages_max(config),
            lost_after_ticks: ticks_of(config.elastic.detect_timeout),
            settle_ticks: ticks_of(config.elastic.settle),
        }
    }

    /// The mixture of its stores, which are not provided yet.
    ///
    /// # Errors
    /// If they cannot be trained on.
    pub fn mixture(&self) -> Result<StoreMixture, CursorError> {
        let config = &self.config;
        let stores = self.stores.iter().map(|store| (&store.manifest, store.weight));
        StoreMixture::new(stores, config.tokens.packing, &config.cursor())
    }

    /// The windows of its text.
    ///
    /// # Errors
    /// If the text cannot be trained on.
    pub fn corpus(&self, text: Vec<u8>) -> Result<Corpus, CorpusError> {
        let config = &self.config;
        let cut = CorpusConfig {
            shape: config.batch.microbatch,
            microbatch_count: config.batch.microbatch_count,
            held_out_share: config.held_out_share,
            seed: config.seed,
            vocabulary: config.model.vocabulary,
        };
        Corpus::new(text, &cut)
    }
}

/// The oldest version of the form whose programs know everything that `config` says of a run over
/// text. They ignore keys that they do not know, and would train other bits.
fn version_for(config: &RunConfig) -> u32 {
    let model = &config.model;
    let has_later_keys = !model.features.is_none()
        || model.sliding_window.is_some()
        || config.optimizer.decay_steps > 0
        || config.z_loss > 0.0
        || !config.optimizer.kind.is_adamw()
        || !model.frozen.is_none();
    let has_later_factor = model.lora.as_ref().is_some_and(|lora| !lora.scaling.is_standard());
    let is_bf16_on_processors = config.arithmetic.device == DeviceChoice::Cpu
        && config.arithmetic.precision == PrecisionChoice::Bf16;
    let has_latest = !config.optimizer.decay_rates.is_none()
        || config.sync.is_some()
        || is_bf16_on_processors
        || config.memory.shard_optimizer;
    if has_latest {
        return DOCUMENT_VERSION;
    }
    if has_later_factor || !model.without_moments.is_none() {
        return MOMENTS_DOCUMENT_VERSION;
    }
    match (config.batch.lanes.is_one(), has_later_keys) {
        (false, _) => LANES_DOCUMENT_VERSION,
        (true, true) => STORES_DOCUMENT_VERSION,
        (true, false) => TEXT_DOCUMENT_VERSION,
    }
}

const fn fixed(window: Window) -> zbelastic_consensus::job::WindowPolicy {
    zbelastic_consensus::job::WindowPolicy::Fixed(window)
}

/// Workers that a plan of a job has use for: one for each block of each replica.
fn stages_max(config: &RunConfig) -> u32 {
    let lanes = config.batch.lanes.get();
    let replicas_max = config.replicas.map_or(lanes, ReplicaCount::get);
    config.model.blocks.saturating_mul(replicas_max).min(STAGES_MAX as u32)
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::LaneCount;

    use super::*;

    #[test]
    fn what_the_configuration_says_about_time_is_agreed_on_with_the_job() {
        let check = |text: &str, lost_after_ticks, settle_ticks| {
            let toml = format!("[model]\npreset = \"tiny\"\n{text}");
            let config = load_document("test", &toml).expect("legal").config;
            let job = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
            let spec = job.spec(job.encode().expect("short"));
            assert_eq!(
                (spec.lost_after_ticks, spec.settle_ticks),
                (lost_after_ticks, settle_ticks)
            );
            assert_eq!(spec.check(), Ok(()));
        };
        check("", 70, 50);
        check("[elastic]\nsettle = \"80ms\"\ndetect_timeout = \"240ms\"\n", 24, 8);
        check("[elastic]\nsettle = \"1m\"\ndetect_timeout = \"10s\"\n", 1000, 6000);
    }

    /// Keys that came later stand only in documents of runs that use them, so that a document of
    /// before is read, and has the name that it had.
    #[test]
    fn what_a_run_does_not_use_is_not_in_its_document() {
        let keys = [
            "lanes",
            "stores",
            "tokens",
            "features",
            "sliding_window",
            "decay_steps",
            "z_loss",
            "decay_groups",
            "decay_rates",
            "muon",
            "frozen",
            "without_moments",
            "freeze",
            "sync",
        ];
        let check_model = |window: Option<u32>, text: &str, expected: &[&str]| {
            let toml = format!("[model]\npreset = \"tiny\"\n{text}");
            let mut config = load_document("test", &toml).expect("legal").config;
            config.model.sliding_window = window;
            let job = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
            let bytes = job.encode().expect("short");
            let text = String::from_utf8(bytes.clone()).expect("JSON");
            let found = keys.into_iter().filter(|key| text.contains(&format!("\"{key}\":")));
            assert_eq!(found.collect::<Vec<_>>(), expected);
            // A program of before reads version 1, and ignores keys that it does not know.
            let version = match expected {
                [] => 1,
                ["lanes"] => 3,
                ["frozen", ..] => 4,
                ["decay_groups", ..] | ["sync"] => 5,
                _ => 2,
            };
            assert_eq!(job.version, version, "{expected:?}");
            assert_eq!(JobDocument::decode(&bytes).expect("its own bytes"), job);
        };
        let check = |text: &str, expected: &[&str]| check_model(None, text, expected);
        check("", &[]);
        check("[optimizer]\ndecay = \"wsd\"\ndecay_steps = 5\n", &["decay_steps"]);
        check("[train]\nz_loss = 0.0001\n", &["z_loss"]);
        let of_groups = ["decay_groups", "decay_rates"];
        check("[optimizer]\ndecay_groups = [\"norm=0\"]\n", &of_groups);
        check("[train]\nlanes = 4\n", &["lanes"]);
        check("[sync]\nevery = 20\nfolders = [\"a\", \"b\"]\n", &["sync"]);
        check("[optimizer]\nkind = \"muon\"\n", &["muon"]);
        check("family = \"llama\"\nqk_norm = true\n", &["features"]);
        check_model(Some(16), "", &["sliding_window"]);
        check("[train]\nfreeze = [\"embed\"]\n", &["frozen", "without_moments", "freeze"]);
    }

    /// The names of types are older than what processors compute in them.
    #[test]
    fn bfloat16_on_processors_is_not_read_by_programs_without() {
        let version = |text: &str| {
            let toml = format!("[model]\npreset = \"tiny\"\n[train]\n{text}");
            let config = load_document("test", &toml).expect("legal").config;
            JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text")).version
        };
        let bf16 = "precision = \"bf16\"\n";
        assert_eq!((version(bf16), version("")), (5, 1));
        assert_eq!(version(&format!("device = \"cuda\"\n{bf16}")), 1);
    }

    /// Before there were lanes, schedules of two directions had bits of their own.
    #[test]
    fn a_job_of_two_directions_without_lanes_is_refused() {
        let toml = "[model]\npreset = \"tiny\"\n[train]\nlanes = 2\n[schedule]\nkind = \"gems\"\n";
        let config = load_document("test", toml).expect("legal").config;
        let text = DataName::of(b"text");
        let mut job = JobDocument::new("test".to_owned(), config, toml.to_owned(), text);
        assert!(JobDocument::decode(&job.encode().expect("short")).is_ok());
        (job.version, job.config.batch.lanes) = (1, LaneCount::ONE);
        let found = JobDocument::decode(&job.encode().expect("short")).expect_err("refused");
        let expected = LaneError::Directions { kind: ScheduleKind::Gems, lanes: LaneCount::ONE };
        assert!(matches!(found, DocumentError::Lanes(error) if error == expected), "{found}");
    }

    /// Its workers would look for moments that there are not.
    #[test]
    fn what_is_trained_has_moments() {
        let mut job = freezing("[\"embed\"]");
        job.config.model.frozen = FrozenTensors::NONE;
        let found = JobDocument::decode(&job.encode().expect("short")).expect_err("refused");
        assert!(matches!(found, DocumentError::NoMoments), "{found}");
    }

    fn freezing(patterns: &str) -> JobDocument {
        let toml = format!("[model]\npreset = \"tiny\"\n[train]\nfreeze = {patterns}\n");
        let config = load_document("test", &toml).expect("legal").config;
        JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"))
    }

    /// The same as a program wrote it that gave frozen tensors moments.
    fn with_all_moments(mut job: JobDocument) -> JobDocument {
        (job.version, job.config.model.without_moments) = (2, FrozenTensors::NONE);
        JobDocument::decode(&job.encode().expect("short")).expect("it is read as it was")
    }

    #[test]
    fn a_run_of_before_goes_on_with_the_moments_that_it_has() {
        let job = freezing("[\"embed\"]");
        let earlier = with_all_moments(job.clone());
        assert!(job != earlier && job.is_same_run(&earlier));
        assert!(!job.is_same_run(&freezing("[\"norm\"]")));
        let bytes = |job: &JobDocument| job.spec(Vec::new()).layer_bytes;
        assert!(bytes(&job)[0] < bytes(&earlier)[0], "the embedding alone is without");
        assert_eq!(bytes(&job)[1..], bytes(&earlier)[1..]);
    }

    #[test]
    fn a_branch_has_moments_where_its_parent_has_them() {
        let embed = freezing("[\"embed\"]");
        let more = freezing("[\"embed\", \"norm\"]");
        let branch = more.clone().with_moments_of(&embed).expect("the norm has moments");
        assert_eq!(branch.config.model.frozen, more.config.model.frozen);
        assert_eq!(branch.spec(Vec::new()).layer_bytes, embed.spec(Vec::new()).layer_bytes);
        assert_eq!((embed.version, branch.version), (4, 4));
        let branch = more.with_moments_of(&with_all_moments(embed.clone())).expect("all have");
        assert_eq!(branch.version, 2, "a program of before can read it");
        let refused = freezing("[\"norm\"]").with_moments_of(&embed);
        let tensor = "embed.tokens".to_owned();
        assert_eq!(refused, Err(NoMoments { run: "test".to_owned(), tensor }));
    }

    /// The words of `elastic.detect_timeout` name both numbers.
    #[test]
    fn the_heartbeat_is_what_the_configuration_says_it_is() {
        use zbelastic_policy::tick::{HEARTBEAT_MS, HEARTBEATS_LEAST};
        assert_eq!((HEARTBEATS_LEAST, HEARTBEAT_MS), (4, 60));
    }
}
