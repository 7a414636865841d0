//! The messages for the problems of `lora.*`.

use std::path::Path;

use zbelastic_trainer::model::LoraError;
use zbelastic_wording::FailureDetail;

use super::freeze::pattern_hint;
use crate::assignment::SettingOrigin;
use crate::key::Key;

/// The key whose value an error is about.
pub const fn lora_key(error: &LoraError) -> Key {
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
    let name = lora_key(error).name();
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
