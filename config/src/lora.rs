//! `lora.*`: low-rank adapters for the model.

use std::fs;
use std::path::{Path, PathBuf};

use zbelastic_trainer::hf::{ADAPTER_CONFIG, PeftAdapters, parse_adapter_config};
use zbelastic_trainer::model::{Family, LoraInit, LoraScaling, LoraSettings, ModelConfig};

use super::key::Key;
use super::problem::ConfigProblem;
use super::reader::SettingsReader;
use super::settings::ConfigOrigin;
use super::wording::lora_key;
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
            let problem = |error| ConfigProblem::Lora { at: origin(at(lora_key(&error))), error };
            Err(errors.into_iter().map(problem).collect())
        }
    }
}
