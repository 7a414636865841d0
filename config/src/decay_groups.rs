//! `optimizer.decay_groups`: from patterns over names to the rates of weight decay of single tensors.

use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::optimizer::{DecayGroupError, DecayRates};

use super::freeze::near_names;
use super::key::Key;
use super::problem::ConfigProblem;
use super::reader::SettingsReader;

/// The rates that groups give tensors of `model`, which has its adapters.
///
/// # Errors
/// With everything that is wrong with them.
pub fn decay_rates(
    model: &ModelConfig,
    reader: &SettingsReader<'_>,
) -> Result<DecayRates, Vec<ConfigProblem>> {
    let groups = reader.texts(Key::DecayGroups);
    let at = reader.settings.origin(Key::DecayGroups);
    let problem = |error| {
        let near = match &error {
            DecayGroupError::NoTensor { pattern } => near_names(model, pattern),
            DecayGroupError::Form { .. }
            | DecayGroupError::Rate { .. }
            | DecayGroupError::Pattern(_) => Vec::new(),
        };
        ConfigProblem::DecayGroup { at: at.clone(), error, near }
    };
    DecayRates::of_groups(model, &groups)
        .map_err(|errors| errors.into_iter().map(problem).collect())
}
