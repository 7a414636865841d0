//! `lora.*`: low-rank adapters for the model, and what is wrong with them.

use std::fs;
use std::path::{Path, PathBuf};

use zbelastic_trainer::hf::{ADAPTER_CONFIG, PeftAdapters, parse_adapter_config};
use zbelastic_trainer::model::{
    Family, LoraError, LoraInit, LoraScaling, LoraSettings, ModelConfig,
};
use zbelastic_wording::FailureDetail;

use super::build::ConfigOrigin;
use super::freeze::pattern_hint;
use super::key::Key;
use super::problem::ConfigProblem;
use super::reader::SettingsReader;
use super::settings::SettingOrigin;
use super::words::ConfigWord;

/// Keys that say something of adapters, which `lora.rank` asks for.
const BESIDE_RANK: [Key; 4] = [Key::LoraAlpha, Key::LoraScaling, Key::LoraTargets, Key::LoraInit];

impl ConfigWord for LoraInit {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("kaiming", Self::Kaiming), ("gaussian", Self::Gaussian)]
    }
}

impl ConfigWord for LoraScaling {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("standard", Self::Standard), ("rslora", Self::RsLora)]
    }
}

/// The folder of the adapters that training goes on with.
pub fn adapters_folder(reader: &SettingsReader<'_>) -> Option<PathBuf> {
    reader.text(Key::LoraFrom).map(PathBuf::from)
}

/// The adapters that keys describe for a model of this family, if they do: with the defaults of PEFT, a
/// factor of 1 and the targets of each family.
fn set_adapters(reader: &SettingsReader<'_>, family: Family) -> Option<LoraSettings> {
    reader.value(Key::LoraRank)?;
    let rank = reader.size(Key::LoraRank);
    let is_set = |key: Key| reader.value(key).is_some();
    let scaling: LoraScaling = reader.choice(Key::LoraScaling);
    let usual: &[&str] = match family {
        Family::Gpt2 => &["c_attn"],
        Family::Llama => &["q_proj", "v_proj"],
    };
    Some(LoraSettings {
        rank,
        alpha: match is_set(Key::LoraAlpha) {
            true => reader.number(Key::LoraAlpha),
            false if scaling.is_standard() => f64::from(rank),
            false => f64::from(rank).sqrt(),
        },
        scaling,
        init: reader.choice(Key::LoraInit),
        targets: match is_set(Key::LoraTargets) {
            true => reader.texts(Key::LoraTargets),
            false => usual.iter().map(|target| (*target).to_owned()).collect(),
        },
    })
}

/// The adapters of `folder`, which say what keys would.
fn read_adapters(
    folder: &Path,
    reader: &SettingsReader<'_>,
) -> Result<LoraSettings, Vec<ConfigProblem>> {
    let origin = |key: Key| reader.settings.origin(key);
    let of_keys = std::iter::once(Key::LoraRank).chain(BESIDE_RANK);
    let set: Vec<Key> = of_keys.filter(|key| origin(*key).is_explicit()).collect();
    if !set.is_empty() {
        let twice = |key| ConfigProblem::TwoAdapters { at: origin(key), key };
        return Err(set.into_iter().map(twice).collect());
    }
    let path = folder.join(ADAPTER_CONFIG);
    let at = origin(Key::LoraFrom);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Err(vec![ConfigProblem::AdaptersUnreadable { at, path, error }]),
    };
    let parsed = parse_adapter_config(&text).map(|PeftAdapters { settings, .. }| settings);
    parsed.map_err(|error| vec![ConfigProblem::AdaptersConfig { path, error }])
}

/// The adapters that a model of this family is to have, if any.
fn lora_settings(
    family: Family,
    reader: &SettingsReader<'_>,
    config_origin: ConfigOrigin,
) -> Result<Option<LoraSettings>, Vec<ConfigProblem>> {
    let origin = |key: Key| reader.settings.origin(key);
    if let Some(folder) = adapters_folder(reader) {
        // What was recorded has the folder, and all that it said.
        let is_known = match config_origin {
            ConfigOrigin::Recorded => origin(Key::LoraRank).is_explicit(),
            ConfigOrigin::New => false,
        };
        if !is_known {
            return read_adapters(&folder, reader).map(Some);
        }
    }
    let settings = set_adapters(reader, family);
    if settings.is_none() {
        let set = BESIDE_RANK.into_iter().filter(|key| origin(*key).is_explicit());
        let problem = |key| ConfigProblem::LoraWithoutRank { at: origin(key), key };
        let problems: Vec<ConfigProblem> = set.map(problem).collect();
        return if problems.is_empty() { Ok(None) } else { Err(problems) };
    }
    Ok(settings)
}

/// Gives the model its adapters, if it is to have any, and returns them as they are configured.
///
/// # Errors
/// With everything that is wrong with them.
pub fn adapt(
    model: &mut ModelConfig,
    reader: &SettingsReader<'_>,
    config_origin: ConfigOrigin,
) -> Result<Option<LoraSettings>, Vec<ConfigProblem>> {
    let origin = |key: Key| reader.settings.origin(key);
    let Some(settings) = lora_settings(model.family, reader, config_origin)? else {
        return Ok(None);
    };
    if !reader.texts(Key::Freeze).is_empty() {
        return Err(vec![ConfigProblem::LoraFreeze { at: origin(Key::Freeze) }]);
    }
    match settings.adapt(model) {
        Ok(adapted) => {
            *model = adapted;
            Ok(Some(settings))
        }
        Err(errors) => {
            let is_of_folder = adapters_folder(reader).is_some();
            let at = |key| if is_of_folder { Key::LoraFrom } else { key };
            let problem = |error| ConfigProblem::Lora { at: origin(at(key_of(&error))), error };
            Err(errors.into_iter().map(problem).collect())
        }
    }
}

/// The key whose value an error is about.
const fn key_of(error: &LoraError) -> Key {
    match error {
        LoraError::RankZero | LoraError::RankLarge { .. } => Key::LoraRank,
        LoraError::Alpha { .. } => Key::LoraAlpha,
        LoraError::NoTarget | LoraError::Pattern(_) | LoraError::NoModule { .. } => {
            Key::LoraTargets
        }
    }
}

/// What is wrong with adapters.
pub fn lora_detail(at: &SettingOrigin, error: &LoraError) -> FailureDetail {
    const SOME: &str = "ends of modules' names, as q_proj, mlp.c_proj, layers.0-7.self_attn.v_proj; or \
                        all-linear";
    let name = key_of(error).name();
    let detail = FailureDetail::new(format!("{name}: {error}")).at(at.to_string());
    match error {
        LoraError::RankZero => detail.hint("8, or no lora.rank for no adapters"),
        LoraError::RankLarge { outputs, inputs, .. } => detail
            .why("an adapter of a higher rank than its matrix adapts nothing more")
            .hint(format!("at most {}", outputs.min(inputs))),
        LoraError::Alpha { .. } => detail.hint("lora.rank, for a factor of 1, or twice that"),
        LoraError::NoTarget => detail.hint(SOME),
        LoraError::Pattern(error) => detail.hint(pattern_hint(error, SOME)),
        LoraError::NoModule { modules, .. } => detail
            .why("embeddings, norms and the head have no adapters")
            .hint(format!("{}, or all-linear", modules.join(", "))),
    }
}

/// That adapters cannot be read.
pub fn unreadable_adapters(
    at: &SettingOrigin,
    path: &Path,
    error: &std::io::Error,
) -> FailureDetail {
    FailureDetail::new(format!("lora.from: {}: {error}", path.display()))
        .at(at.to_string())
        .hint("a folder as peft and `zbelastic export` write it; of a run, its model/adapter")
}

/// That adapters are described by a folder and by keys.
pub fn two_adapters(at: &SettingOrigin, key: Key) -> FailureDetail {
    FailureDetail::new(format!("{} stands beside lora.from", key.name()))
        .at(at.to_string())
        .why("the folder's adapter_config.json says what the adapters are")
        .hint(format!("no {}", key.name()))
}

/// That a key of adapters is set, and there are none.
pub fn without_rank(at: &SettingOrigin, key: Key) -> FailureDetail {
    let what = format!("{} is set, and lora.rank is not", key.name());
    FailureDetail::new(what)
        .at(at.to_string())
        .why("without a rank there are no adapters")
        .hint("lora.rank=8")
}

/// That adapters leave nothing to freeze.
pub fn with_freeze(at: &SettingOrigin) -> FailureDetail {
    FailureDetail::new("train.freeze stands beside lora.rank")
        .at(at.to_string())
        .why("with adapters all else is frozen already")
        .hint("no train.freeze; lora.targets says which layers have an adapter")
}
