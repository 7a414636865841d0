//! `train.freeze`: from patterns over names to the tensors that training leaves as they are.

use std::collections::BTreeSet;

use zbelastic_trainer::model::{FreezeError, LayerSpec, ModelConfig, frozen_tensors, model_layers};

use super::assignment::SettingOrigin;
use super::nearest::nearest_few;
use super::problem::ConfigProblem;

/// Names that are suggested for a pattern that matches none.
const SUGGESTIONS_MAX: usize = 4;

/// Freezes the tensors of `model` that patterns, which were set at `at`, name. Returns what is wrong
/// with them.
pub fn freeze(
    model: &mut ModelConfig,
    patterns: &[String],
    at: &SettingOrigin,
) -> Vec<ConfigProblem> {
    if patterns.is_empty() {
        return Vec::new();
    }
    match frozen_tensors(model, patterns) {
        Ok(frozen) => {
            *model = model.clone().freezing(frozen);
            Vec::new()
        }
        Err(errors) => {
            let problem = |error| {
                let near = match &error {
                    FreezeError::NoTensor { pattern } => near_names(model, pattern),
                    FreezeError::Pattern(_) | FreezeError::Everything { .. } => Vec::new(),
                };
                ConfigProblem::Freeze { at: at.clone(), error, near }
            };
            errors.into_iter().map(problem).collect()
        }
    }
}

/// The names that a pattern without a tensor may have meant: of tensors, and of what they stand
/// below.
pub fn near_names(model: &ModelConfig, pattern: &str) -> Vec<String> {
    if model.tied && pattern.split('.').next() == Some("head") {
        // Its matrix is the token embedding.
        return vec!["embed".to_owned()];
    }
    let layers = model_layers(model);
    let mut names = BTreeSet::new();
    for tensor in layers.iter().flat_map(LayerSpec::own_tensors) {
        let dots = tensor.name.match_indices('.').map(|(at, _)| &tensor.name[..at]);
        names.extend(dots.chain([tensor.name.as_str()]));
    }
    let near = nearest_few(pattern, names, SUGGESTIONS_MAX);
    near.into_iter().map(str::to_owned).collect()
}
