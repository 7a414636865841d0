//! The messages for the problems of a configuration: one function a problem.

mod freeze;
mod lora;

pub use freeze::{decay_group_detail, freeze_detail};
pub use lora::{
    lora_detail, lora_key, two_adapters, unreadable_adapters, with_freeze, without_rank,
};

use std::io;
use std::path::Path;

use zbelastic_kernels::cuda::limits::LimitError;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::{GenerateError, ScheduleKind};
use zbelastic_trainer::model::ModelError;
use zbelastic_trainer::outer::OuterConfigError;
use zbelastic_trainer::plan::{
    LaneCount, LaneError, PlanError, ReplicaCount, SLICES_OF_EQUAL_TIME_MAX, SliceBalance,
};
use zbelastic_wording::FailureDetail;

use super::BOUNDARY_BYTES_MAX;
use super::assignment::{EffectiveSetting, SettingOrigin};
use super::key::{Key, KeyDefault, SECTIONS};
use super::kind::ValueKind;
use super::nearest::nearest;
use super::tokens::TOKENIZER_JSON;
use super::value::ConfigValue;
use super::words::{PresetName, words};

const UNKNOWN_WHY: &str = "what is not known is refused, so that a misspelt key is not ignored";

pub(super) fn unreadable(file: &Path, error: &io::Error) -> FailureDetail {
    FailureDetail::new(format!("cannot be read: {error}"))
        .at(file.display().to_string())
        .hint("`zbelastic config show` prints a configuration to begin with")
}

pub(super) fn unknown_section(
    at: &SettingOrigin,
    found: &str,
    nearest: Option<&str>,
) -> FailureDetail {
    let all = || SECTIONS.map(|(name, _)| format!("[{name}]")).join(", ");
    let hint = nearest.map_or_else(|| format!("one of {}", all()), |name| format!("[{name}]"));
    FailureDetail::new(format!("unknown section [{found}]"))
        .at(at.to_string())
        .why(UNKNOWN_WHY)
        .hint(hint)
}

pub(super) fn no_section(at: &SettingOrigin, found: &str, nearest: Option<Key>) -> FailureDetail {
    if SECTIONS.iter().any(|(name, _)| *name == found) {
        return FailureDetail::new(format!("expected a section [{found}], found a value"))
            .at(at.to_string());
    }
    let example = nearest.unwrap_or(Key::Steps);
    FailureDetail::new(format!("`{found}` stands in no section"))
        .at(at.to_string())
        .why("every key belongs to a section")
        .hint(example.name())
}

pub(super) fn unknown_key(
    at: &SettingOrigin,
    section: &str,
    found: &str,
    nearest: Option<Key>,
) -> FailureDetail {
    let names: Vec<&str> = Key::of_section(section).map(Key::short_name).collect();
    let hint = match nearest {
        Some(key) => key.name().to_owned(),
        None if names.is_empty() => "`zbelastic config schema` lists every key".to_owned(),
        None => format!("one of {}", names.join(", ")),
    };
    FailureDetail::new(format!("unknown key `{section}.{found}`"))
        .at(at.to_string())
        .why(UNKNOWN_WHY)
        .hint(hint)
}

pub(super) fn set_form(text: &str) -> FailureDetail {
    FailureDetail::new(format!("expected section.key=value, found `{text}`"))
        .at("--set")
        .hint("--set train.steps=100")
}

pub(super) fn value(at: &SettingOrigin, key: Key, found: &ConfigValue) -> FailureDetail {
    let spec = key.spec();
    let detail =
        FailureDetail::new(format!("{}: expected {}, found {found}", spec.name, spec.kind))
            .at(at.to_string());
    let detail = match found {
        ConfigValue::Number(number) if !number.is_finite() => {
            detail.why("TOML knows nan and inf, but no run gets anywhere with them")
        }
        ConfigValue::Number(number) if !(*number as f32).is_finite() || *number as f32 == 0.0 => {
            detail.why("a run computes in single precision, which has no such number")
        }
        ConfigValue::Number(_)
        | ConfigValue::Text(_)
        | ConfigValue::Whole(_)
        | ConfigValue::Flag(_)
        | ConfigValue::List(_)
        | ConfigValue::Other(_) => detail.why(spec.doc),
    };
    match value_hint(key, found) {
        Some(hint) => detail.hint(format!("{} = {hint}", spec.name)),
        None => detail,
    }
}

/// The word that may have been meant, else the default.
fn value_hint(key: Key, found: &ConfigValue) -> Option<String> {
    let words = key.spec().kind.words();
    let meant = match found {
        ConfigValue::Text(text) => match key.spec().kind {
            ValueKind::Size => return size_meant(text),
            ValueKind::Text
            | ValueKind::Texts
            | ValueKind::Words(_)
            | ValueKind::Word(_)
            | ValueKind::Flag
            | ValueKind::Count(..)
            | ValueKind::Number(_)
            | ValueKind::Pair(_)
            | ValueKind::Time(..) => nearest(text, words.iter().copied()),
        },
        ConfigValue::Whole(_)
        | ConfigValue::Number(_)
        | ConfigValue::Flag(_)
        | ConfigValue::List(_)
        | ConfigValue::Other(_) => None,
    };
    match (meant, key.spec().fallback) {
        (Some(word), _) if matches!(word, "true" | "false") => Some(word.to_owned()),
        (Some(word), _) => Some(format!("\"{word}\"")),
        (None, KeyDefault::Literal(literal)) => Some(format!("{literal}, the default")),
        (None, KeyDefault::Described(_)) => None,
    }
}

/// The size with the unit that is known here, as most write 1024 of them with the other's name.
fn size_meant(text: &str) -> Option<String> {
    let number = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.trim()[number.len()..].chars().next()?.to_ascii_uppercase();
    let is_size = "KMGT".contains(unit) && number.trim().parse::<f64>().is_ok();
    Some(if is_size { format!("\"{}{unit}iB\"", number.trim()) } else { "\"10GiB\"".to_owned() })
}

pub(super) fn missing(keys: &[Key]) -> FailureDetail {
    let names: Vec<&str> = keys.iter().map(|key| key.name()).collect();
    let is_are = if keys.len() == 1 { "is" } else { "are" };
    FailureDetail::new(format!("{} {is_are} missing", names.join(", ")))
        .at("[model]")
        .why("nothing says what is to be trained: no preset, no folder, no shape")
        .hint(format!("model.preset = one of {}, or set them", words::<PresetName>().join(", ")))
}

pub(super) fn two_models(at: &SettingOrigin, key: Key) -> FailureDetail {
    FailureDetail::new(format!("{} stands beside model.from_hf", key.name()))
        .at(at.to_string())
        .why("the folder's config.json says what the model is")
        .hint(format!("leave out {} or model.from_hf", key.name()))
}

pub(super) fn model(
    at: &SettingOrigin,
    key: Key,
    error: &ModelError,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let detail = FailureDetail::new(format!("{}: {error}", key.name()))
        .at(at.to_string())
        .why(with_given(model_why(error), beside));
    match model_hint(error) {
        Some(hint) => detail.hint(hint),
        None => detail,
    }
}

/// The reason, and the other settings that led to it.
fn with_given(why: &str, beside: &[EffectiveSetting]) -> String {
    beside.iter().fold(why.to_owned(), |why, given| format!("{why}; {given}"))
}

fn model_why(error: &ModelError) -> &'static str {
    match error {
        ModelError::Zero { .. } => "a model has some of everything",
        ModelError::Heads { .. } => "a head is width / heads wide unless model.head_dim says more",
        ModelError::KvHeads { .. } => "every key head serves the same number of query heads",
        ModelError::OddHeadWidth { .. } => "rotary positions turn pairs of columns",
        ModelError::WideHead { .. } => "the attention kernel holds a head's queries in one strip",
        ModelError::GroupedGpt2 { .. } => "only llama shares key heads among query heads",
        ModelError::Gpt2Features => {
            "they are features of later models, which are of the family llama"
        }
        ModelError::Features => "it could be exported for no other program",
        ModelError::LargeLayer { .. } => "a layer is one piece of a checkpoint",
        ModelError::NotPositive { .. } => "it is divided by or taken to a power",
    }
}

fn model_hint(error: &ModelError) -> Option<String> {
    match error {
        ModelError::Zero { .. } | ModelError::NotPositive { .. } => None,
        ModelError::Gpt2Features => Some("model.family = \"llama\", or leave the key out".to_owned()),
        ModelError::Features => Some(
            "one of model.qk_norm and model.mlp_bias, and model.attention_bias = \"qkv\" with neither"
                .to_owned(),
        ),
        ModelError::Heads { heads, width } => {
            let divisors = divisors_near((*width).into(), (*heads).into());
            Some(format!("model.heads = {divisors}, or set model.head_dim"))
        }
        ModelError::KvHeads { kv_heads, heads } => {
            let divisors = divisors_near((*heads).into(), (*kv_heads).into());
            Some(format!("model.kv_heads = {divisors}"))
        }
        ModelError::OddHeadWidth { head_width } => {
            Some(format!("model.head_dim = {}", head_width + 1))
        }
        ModelError::WideHead { max, .. } => {
            Some(format!("more heads, or model.head_dim = {max} or less"))
        }
        ModelError::GroupedGpt2 { heads, .. } => {
            Some(format!("model.kv_heads = {heads}, or model.family = \"llama\""))
        }
        ModelError::LargeLayer { .. } => {
            Some("a smaller model.vocab, model.width or model.mlp_width".to_owned())
        }
    }
}

/// The divisors of `of` next to `near`, on either side.
pub(super) fn divisors_near(of: u64, near: u64) -> String {
    let divides = |candidate: &u64| of.is_multiple_of(*candidate);
    let below = (1..near.min(of + 1)).rev().find(divides);
    let above = (near + 1..=of).find(divides);
    let both: Vec<String> = below.into_iter().chain(above).map(|d| d.to_string()).collect();
    both.join(" or ")
}

pub(super) fn microbatch(
    at: &SettingOrigin,
    microbatch: u64,
    global_batch: u64,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let what = format!(
        "train.microbatch: microbatches of {microbatch} do not make up a batch of {global_batch}"
    );
    let divisors = divisors_near(global_batch, microbatch);
    FailureDetail::new(what)
        .at(at.to_string())
        .why(with_given("a step is so many whole microbatches", beside))
        .hint(format!("train.microbatch = {divisors}, or another train.global_batch"))
}

pub(super) fn lanes(
    at: &SettingOrigin,
    error: &LaneError,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let (why, hint) = lanes_hint(error);
    FailureDetail::new(format!("{}: {error}", lanes_key(error)))
        .at(at.to_string())
        .why(with_given(why, beside))
        .hint(hint)
}

/// The key that such an error is about.
pub(super) fn lanes_key(error: &LaneError) -> &'static str {
    match error {
        LaneError::Count { .. } | LaneError::Microbatches { .. } | LaneError::Directions { .. } => {
            "train.lanes"
        }
        LaneError::ReplicaCount { .. } | LaneError::Replicas { .. } => "schedule.replicas",
    }
}

/// Why a step or a schedule cannot have so many lanes, and what would do.
pub(super) fn lanes_hint(error: &LaneError) -> (&'static str, String) {
    match *error {
        LaneError::Count { found } => {
            let above = found.next_power_of_two().min(LaneCount::MAX);
            let hint = format!("train.lanes = {} or {above}", above / 2);
            ("the gradient of a step is a binary tree over the lanes", hint)
        }
        LaneError::Microbatches { lanes, microbatch_count } => {
            let most = lanes.get().min(1 << microbatch_count.trailing_zeros());
            let hint = format!("train.lanes = {most}, or another train.microbatch");
            ("each lane adds up as many microbatches as any other", hint)
        }
        LaneError::ReplicaCount { found } => {
            let above = found.next_power_of_two().min(ReplicaCount::MAX);
            let hint = format!("schedule.replicas = {} or {above}", (above / 2).max(1));
            ("replicas share the lanes evenly, and these are a power of two", hint)
        }
        LaneError::Replicas { kind, needed, lanes, .. } => {
            let most = (lanes.get() / kind.replica_count()).max(1);
            let hint = format!("train.lanes = {needed} or more, or schedule.replicas = {most}");
            ("each replica adds up lanes of its own, and lanes are a part of the arithmetic", hint)
        }
        LaneError::Directions { .. } => (
            "each direction adds up half of the lanes, and lanes are a part of the arithmetic",
            "train.lanes = 2 or more, or another schedule.kind".to_owned(),
        ),
    }
}

pub(super) fn sync(
    at: &SettingOrigin,
    error: OuterConfigError,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let (why, hint) = match error {
        OuterConfigError::Islands { .. } => (
            "each island writes its weights into a folder of its own and reads the others'",
            "sync.folders = [\"s3://one/run\", \"s3://two/run\"], or sync.every = 0 for a run alone"
                .to_owned(),
        ),
        OuterConfigError::SameFolder { .. } => (
            "each island writes its weights into a folder of its own and reads the others'",
            "a folder for each in sync.folders".to_owned(),
        ),
        OuterConfigError::Island { islands, .. } => {
            ("it is the place of its own folder", format!("sync.island = {} or less", islands - 1))
        }
        OuterConfigError::Overlap { every, .. } => {
            let most = every.saturating_sub(1).max(1);
            let hint = format!("sync.overlap = {most} or less, or a larger sync.every");
            ("of a layer one exchange is under way at a time", hint)
        }
        OuterConfigError::Fragments { every, .. } => (
            "each is sent at a step of its own",
            format!("sync.fragments = {every} or less, or a larger sync.every"),
        ),
        OuterConfigError::Steps { overlap, .. } => (
            "islands end with the same weights, which takes as many steps",
            format!("train.steps = {} or more, or a smaller sync.overlap", overlap + 1),
        ),
    };
    FailureDetail::new(format!("sync: {error}"))
        .at(at.to_string())
        .why(with_given(why, beside))
        .hint(hint)
}

pub(super) fn boundary(
    at: &SettingOrigin,
    tokens: u64,
    width: u32,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let max = BOUNDARY_BYTES_MAX / size_of::<f32>() as u64;
    let found = u128::from(tokens) * u128::from(width);
    let what = format!(
        "train.microbatch: {tokens} tokens of {width} floats are {found}, at most {max} pass \
         between two stages at once"
    );
    FailureDetail::new(what)
        .at(at.to_string())
        .why(with_given("what a stage hands to the next is one frame", beside))
        .hint("a smaller train.microbatch or train.seq_len")
}

pub(super) fn limit(
    at: &SettingOrigin,
    error: &LimitError,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    FailureDetail::new(format!("train.device: {error}"))
        .at(at.to_string())
        .why(with_given("kernels of NVIDIA devices count and hold no more", beside))
}

pub(super) fn muon_schedule(
    at: &SettingOrigin,
    kind: AsyncKind,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let why = "asynchronous schedules have AdamW only";
    FailureDetail::new(format!("optimizer.kind: muon under {kind}"))
        .at(at.to_string())
        .why(with_given(why, beside))
        .hint("schedule.kind = \"auto\", or optimizer.kind = \"adamw\"")
}

pub(super) fn chunks(
    at: &SettingOrigin,
    kind: ScheduleKind,
    chunks: u32,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let expected = kind.chunk_counts();
    let error = GenerateError::ChunkCount { kind, expected, found: chunks };
    let why = "where a schedule lays chunks follows from how it orders them";
    FailureDetail::new(format!("schedule.chunks: {error}"))
        .at(at.to_string())
        .why(with_given(why, beside))
        .hint(format!("schedule.chunks = {}, or leave it out", expected.least()))
}

pub(super) fn slices(
    at: &SettingOrigin,
    slices: u32,
    beside: &[EffectiveSetting],
) -> FailureDetail {
    FailureDetail::new(format!(
        "schedule.slices: {slices} slices for a schedule that cuts no sequences"
    ))
    .at(at.to_string())
    .why(with_given("slices are a part of the arithmetic, so none are dropped silently", beside))
    .hint(format!("schedule.kind = \"{}\", or leave out the slices", ScheduleKind::Seq1F1B))
}

pub(super) fn slice_length(
    at: &SettingOrigin,
    cut: (SliceBalance, u32, u64),
    beside: &[EffectiveSetting],
) -> FailureDetail {
    let (by, slice_count, sequence_len) = cut;
    let error = PlanError::Slices { by, slice_count, sequence_len: sequence_len as usize };
    let (why, hint) = slice_hint(by, slice_count, sequence_len);
    FailureDetail::new(format!("schedule.slices: {error}"))
        .at(at.to_string())
        .why(with_given(why, beside))
        .hint(format!("schedule.slices = {hint}"))
}

/// Why sequences cannot be cut so, and which numbers would do.
pub(super) fn slice_hint(
    by: SliceBalance,
    slice_count: u32,
    sequence_len: u64,
) -> (&'static str, String) {
    match by {
        SliceBalance::Tokens => {
            let divisors = divisors_near(sequence_len, slice_count.into());
            let other = "another train.seq_len, or schedule.slice_cut = \"time\"";
            ("all slices have the same length", format!("{divisors}, {other}"))
        }
        SliceBalance::Time => {
            let most = sequence_len.min(SLICES_OF_EQUAL_TIME_MAX.into());
            let why =
                "each slice has a token or more, and those of equal time are limited in number";
            (why, format!("{most} or less"))
        }
    }
}

pub(super) fn vocabulary(at: &SettingOrigin, vocabulary: u32) -> FailureDetail {
    FailureDetail::new(format!("model.vocab: {vocabulary} tokens are too few for text"))
        .at(at.to_string())
        .why("text is read as bytes, each byte is a token, and there are 256 of them")
        .hint("model.vocab = 256")
}

pub(super) fn tokenizer(path: &Path, vocabulary: u32) -> FailureDetail {
    // Where it has a tokenizer.json, any text that is named is read by that.
    let own = match path.ends_with(TOKENIZER_JSON) {
        true => "--text with files, which are read by it",
        false => {
            "a tokenizer.json in this folder, which AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) \
             of transformers writes"
        }
    };
    let hint =
        format!("{own}; or data.tokenizer = \"bytes\", which trains it on bytes all the same");
    FailureDetail::new(format!(
        "model.from_hf: the model has {vocabulary} tokens of its own tokenizer"
    ))
    .at(path.display().to_string())
    .why("text is read as bytes, and bytes mean other things to this model")
    .hint(hint)
}

pub(super) fn folder_unreadable(
    at: &SettingOrigin,
    path: &Path,
    error: &io::Error,
) -> FailureDetail {
    let path = path.display().to_string();
    let hint = match path.contains("://") {
        true => {
            "a folder on this machine, which `aws s3 sync`, `gcloud storage rsync` or `hf download` \
             fills with config.json, the tokenizer and the weights"
        }
        false => "a folder with config.json and model.safetensors",
    };
    FailureDetail::new(format!("model.from_hf: {path} cannot be read: {error}"))
        .at(at.to_string())
        .why("the folder's config.json says what the model is")
        .hint(hint)
}

pub(super) fn folder_model(path: &Path, error: &ModelError) -> FailureDetail {
    FailureDetail::new(error.to_string()).at(path.display().to_string()).why(model_why(error))
}

pub(super) fn positions(at: &SettingOrigin, sequence_len: u32, positions: u32) -> FailureDetail {
    let what =
        format!("train.seq_len: {sequence_len} tokens, but the model has {positions} positions");
    FailureDetail::new(what)
        .at(at.to_string())
        .why("gpt2 learns a row for each position; there are none beyond")
        .hint(format!("train.seq_len = {positions} or less"))
}

#[cfg(test)]
mod tests {
    use super::divisors_near;

    #[test]
    fn divisors_are_named_on_either_side() {
        let check = |of, near, expected: &str| assert_eq!(divisors_near(of, near), expected);
        check(128, 3, "2 or 4");
        check(32, 5, "4 or 8");
        check(32, 33, "32");
        check(7, 2, "1 or 7");
        check(12, 100, "12");
    }
}
