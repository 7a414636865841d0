//! `lora.*`: low-rank adapters for the model, and what is wrong with them.

use zbelastic_trainer::model::{Family, LoraError, LoraInit, LoraSettings, ModelConfig};
use zbelastic_wording::FailureDetail;

use super::freeze::pattern_hint;
use super::key::Key;
use super::problem::ConfigProblem;
use super::reader::SettingsReader;
use super::settings::SettingOrigin;
use super::words::ConfigWord;

/// Keys that say something of adapters, which `lora.rank` asks for.
const BESIDE_RANK: [Key; 3] = [Key::LoraAlpha, Key::LoraTargets, Key::LoraInit];

impl ConfigWord for LoraInit {
    fn table() -> Vec<(&'static str, Self)> {
        vec![("kaiming", Self::Kaiming), ("gaussian", Self::Gaussian)]
    }
}

/// The adapters that are configured for a model of this family, if there are any: with the defaults of
/// PEFT, a factor of 1 and the targets of each family.
pub fn lora_settings(reader: &SettingsReader<'_>, family: Family) -> Option<LoraSettings> {
    reader.value(Key::LoraRank)?;
    let rank = reader.size(Key::LoraRank);
    let is_set = |key: Key| reader.value(key).is_some();
    let usual: &[&str] = match family {
        Family::Gpt2 => &["c_attn"],
        Family::Llama => &["q_proj", "v_proj"],
    };
    Some(LoraSettings {
        rank,
        alpha: match is_set(Key::LoraAlpha) {
            true => reader.number(Key::LoraAlpha),
            false => f64::from(rank),
        },
        init: reader.choice(Key::LoraInit),
        targets: match is_set(Key::LoraTargets) {
            true => reader.texts(Key::LoraTargets),
            false => usual.iter().map(|target| (*target).to_owned()).collect(),
        },
    })
}

/// Gives the model its adapters, if it is to have any. Returns what is wrong with them.
pub fn adapt(model: &mut ModelConfig, reader: &SettingsReader<'_>) -> Vec<ConfigProblem> {
    let origin = |key: Key| reader.settings.origin(key);
    let Some(settings) = lora_settings(reader, model.family) else {
        let set = BESIDE_RANK.into_iter().filter(|key| origin(*key).is_explicit());
        return set.map(|key| ConfigProblem::LoraWithoutRank { at: origin(key), key }).collect();
    };
    if !reader.texts(Key::Freeze).is_empty() {
        return vec![ConfigProblem::LoraFreeze { at: origin(Key::Freeze) }];
    }
    match settings.adapt(model) {
        Ok(adapted) => {
            *model = adapted;
            Vec::new()
        }
        Err(errors) => {
            let problem = |error| ConfigProblem::Lora { at: origin(key_of(&error)), error };
            errors.into_iter().map(problem).collect()
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
