//! The problems that a configuration can have.

use std::io;
use std::path::PathBuf;

use zbelastic_kernels::cuda::limits::LimitError;
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_trainer::hf::{AdapterConfigError, ConfigError};
use zbelastic_trainer::model::{FreezeError, LoraError, ModelError};
use zbelastic_trainer::optimizer::DecayGroupError;
use zbelastic_trainer::outer::OuterConfigError;
use zbelastic_trainer::plan::{LaneError, SliceBalance};
use zbelastic_wording::FailureDetail;

use super::assignment::{EffectiveSetting, SettingOrigin};
use super::key::Key;
use super::tokens::TokensError;
use super::value::ConfigValue;
use super::wording;

/// Something wrong with a configuration.
#[derive(Debug)]
pub enum ConfigProblem {
    /// The file cannot be read.
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file is not TOML.
    Syntax {
        /// Origin of the text.
        at: SettingOrigin,
        /// Message of the TOML parser.
        message: String,
    },
    /// There is no such section.
    UnknownSection {
        /// Origin of the section.
        at: SettingOrigin,
        /// Name of the section.
        found: String,
        /// The nearest known name, which may have been meant.
        nearest: Option<&'static str>,
    },
    /// A key without a section.
    NoSection {
        /// Origin of the key.
        at: SettingOrigin,
        /// Name of the key.
        found: String,
        /// The nearest known name, which may have been meant.
        nearest: Option<Key>,
    },
    /// The section has no such key.
    UnknownKey {
        /// Origin of the key.
        at: SettingOrigin,
        /// Section that the key stands in.
        section: String,
        /// Name of the key.
        found: String,
        /// The nearest known name, which may have been meant.
        nearest: Option<Key>,
    },
    /// `--set` without a value.
    SetForm {
        /// The value behind the key.
        text: String,
    },
    /// A key does not accept its value.
    Value {
        /// Origin of the value.
        at: SettingOrigin,
        /// The key that does not accept it.
        key: Key,
        /// The value that was refused.
        found: ConfigValue,
    },
    /// Keys that no layer sets.
    Missing {
        /// The keys without a value.
        keys: Vec<Key>,
    },
    /// The model comes from a folder, and from a key as well.
    TwoModels {
        /// Where the key stands.
        at: SettingOrigin,
        /// The key beside the folder.
        key: Key,
    },
    /// No model has this shape.
    Model {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The key to change.
        key: Key,
        /// Why no model has this shape.
        error: ModelError,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Microbatches do not make up the batch.
    Microbatch {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Sequences in a microbatch.
        microbatch: u64,
        /// Sequences in the batch.
        global_batch: u64,
        /// The other of the two, if its origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Lanes that the step or the schedule cannot have.
    Lanes {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Why it cannot.
        error: LaneError,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Islands that cannot train together so.
    Sync {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Why they cannot.
        error: OuterConfigError,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// What passes between two stages for a microbatch does not fit into a frame.
    Boundary {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Tokens in a microbatch.
        tokens: u64,
        /// Width of the model.
        width: u32,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Kernels of a device cannot count or hold it.
    Limit {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The size that is beyond a limit, and that limit.
        error: LimitError,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Muon under a schedule without steps.
    MuonSchedule {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The schedule.
        kind: AsyncKind,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// The schedule does not have so many chunks a stage.
    Chunks {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Schedule that lacks them.
        kind: ScheduleKind,
        /// Chunks a stage that are configured.
        chunks: u32,
        /// The other of the two, if its origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// The schedule cuts no sequences.
    Slices {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Slices of a sequence that are configured.
        slices: u32,
        /// The other of the two, if its origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Slices that sequences cannot be cut into.
    SliceLength {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The quantity in which they should be alike.
        by: SliceBalance,
        /// Slices of a sequence.
        slices: u32,
        /// Tokens of a sequence.
        sequence_len: u64,
        /// The other values that matter, if their origin is another.
        beside: Vec<EffectiveSetting>,
    },
    /// Patterns choose no tensors that can be frozen.
    Freeze {
        /// Origin of the patterns.
        at: SettingOrigin,
        /// What is wrong with one, or with all of them.
        error: FreezeError,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// A group of weight decay gives no tensor a rate.
    DecayGroup {
        /// Origin of the groups.
        at: SettingOrigin,
        /// What is wrong with one.
        error: DecayGroupError,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// Adapters that the model cannot have.
    Lora {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// What is wrong with it.
        error: LoraError,
    },
    /// Something of adapters is set, and they are not asked for.
    LoraWithoutRank {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The key.
        key: Key,
    },
    /// Adapters are described by a folder, and by keys.
    TwoAdapters {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// The key.
        key: Key,
    },
    /// The folder of adapters cannot be read.
    AdaptersUnreadable {
        /// Where the folder is named.
        at: SettingOrigin,
        /// The file that cannot be read.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The folder's adapters are none that are trained.
    AdaptersConfig {
        /// Path of the `adapter_config.json`.
        path: PathBuf,
        /// Why it describes no such adapters.
        error: AdapterConfigError,
    },
    /// What adapters freeze is to be frozen again.
    LoraFreeze {
        /// Origin of the patterns.
        at: SettingOrigin,
    },
    /// Bytes are not tokens of the model.
    Vocabulary {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Tokens of the model.
        vocabulary: u32,
    },
    /// Stores cannot be trained on.
    Tokens {
        /// Where they are named.
        at: SettingOrigin,
        /// Why they cannot be.
        error: Box<TokensError>,
    },
    /// The folder's model reads tokens that are no bytes.
    Tokenizer {
        /// Path of the tokenizer in the folder.
        path: PathBuf,
        /// Tokens of the model.
        vocabulary: u32,
    },
    /// The folder has no `config.json` that can be read.
    FolderUnreadable {
        /// Where the folder is named.
        at: SettingOrigin,
        /// The file that cannot be read.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The folder's `config.json` describes no model of ours.
    FolderConfig {
        /// Path of the `config.json`.
        path: PathBuf,
        /// Why it describes no such model.
        error: ConfigError,
    },
    /// The folder's model has a shape that we do not have.
    FolderModel {
        /// Path of the `config.json`.
        path: PathBuf,
        /// Why there is no such shape.
        error: ModelError,
    },
    /// Sequences are longer than the positions the folder's model has learnt.
    Positions {
        /// Origin of the key's value.
        at: SettingOrigin,
        /// Tokens in a sequence.
        sequence_len: u32,
        /// Positions that the folder's model has learnt.
        positions: u32,
    },
}

impl ConfigProblem {
    /// The problem as it is printed.
    #[must_use]
    pub fn detail(&self) -> FailureDetail {
        match self {
            Self::Unreadable { file, error } => wording::unreadable(file, error),
            Self::Syntax { at, message } => FailureDetail::new(format!("not TOML: {message}"))
                .at(at.to_string())
                .hint("`zbelastic config show` prints a file to begin with"),
            Self::UnknownSection { at, found, nearest } => {
                wording::unknown_section(at, found, *nearest)
            }
            Self::NoSection { at, found, nearest } => wording::no_section(at, found, *nearest),
            Self::UnknownKey { at, section, found, nearest } => {
                wording::unknown_key(at, section, found, *nearest)
            }
            Self::SetForm { text } => wording::set_form(text),
            Self::Value { at, key, found } => wording::value(at, *key, found),
            Self::Missing { keys } => wording::missing(keys),
            Self::TwoModels { at, key } => wording::two_models(at, *key),
            Self::Model { at, key, error, beside } => wording::model(at, *key, error, beside),
            Self::Microbatch { at, microbatch, global_batch, beside } => {
                wording::microbatch(at, *microbatch, *global_batch, beside)
            }
            Self::Lanes { at, error, beside } => wording::lanes(at, error, beside),
            Self::Sync { at, error, beside } => wording::sync(at, *error, beside),
            Self::Boundary { at, tokens, width, beside } => {
                wording::boundary(at, *tokens, *width, beside)
            }
            Self::Limit { at, error, beside } => wording::limit(at, error, beside),
            Self::MuonSchedule { at, kind, beside } => wording::muon_schedule(at, *kind, beside),
            Self::Chunks { at, kind, chunks, beside } => {
                wording::chunks(at, *kind, *chunks, beside)
            }
            Self::Slices { at, slices, beside } => wording::slices(at, *slices, beside),
            Self::SliceLength { at, by, slices, sequence_len, beside } => {
                wording::slice_length(at, (*by, *slices, *sequence_len), beside)
            }
            Self::Freeze { at, error, near } => wording::freeze_detail(at, error, near),
            Self::DecayGroup { at, error, near } => wording::decay_group_detail(at, error, near),
            Self::Lora { at, error } => wording::lora_detail(at, error),
            Self::LoraWithoutRank { at, key } => wording::without_rank(at, *key),
            Self::TwoAdapters { at, key } => wording::two_adapters(at, *key),
            Self::AdaptersUnreadable { at, path, error } => {
                wording::unreadable_adapters(at, path, error)
            }
            Self::AdaptersConfig { path, error } => {
                FailureDetail::new(error.to_string()).at(path.display().to_string())
            }
            Self::LoraFreeze { at } => wording::with_freeze(at),
            Self::Vocabulary { at, vocabulary } => wording::vocabulary(at, *vocabulary),
            Self::Tokens { at, error } => error.detail(at),
            Self::Tokenizer { path, vocabulary } => wording::tokenizer(path, *vocabulary),
            Self::FolderUnreadable { at, path, error } => {
                wording::folder_unreadable(at, path, error)
            }
            Self::FolderConfig { path, error } => {
                FailureDetail::new(error.to_string()).at(path.display().to_string())
            }
            Self::FolderModel { path, error } => wording::folder_model(path, error),
            Self::Positions { at, sequence_len, positions } => {
                wording::positions(at, *sequence_len, *positions)
            }
        }
    }
}
