//! `--inject`: from text to gradients that are corrupted on purpose.

use zbelastic_trainer::model::{LayerSpec, TensorSpec, find_tensor, model_layers};
use zbelastic_trainer::stage::{Injection, InjectionParseError};
use zbelastic_wording::{CommandFailure, FailureDetail};

use super::nearest::nearest;
use super::{ConfigSources, LoadedConfig, RunConfig, load};

const FLAG: &str = "--inject";

/// Reads a configuration and the injections into it.
///
/// # Errors
/// With everything that is wrong with either.
pub fn load_with_injections(
    sources: &ConfigSources,
    specs: &[String],
) -> Result<(LoadedConfig, Vec<Injection>), CommandFailure> {
    const WHAT: &str = "the configuration";
    match (load(sources), parse_injections(specs)) {
        (Ok(loaded), Ok(injections)) => {
            let details = check_injections(&loaded.config, &injections);
            if details.is_empty() {
                Ok((loaded, injections))
            } else {
                Err(CommandFailure::usage(FLAG, details))
            }
        }
        (Ok(_), Err(details)) => Err(CommandFailure::usage(FLAG, details)),
        (Err(failure), Ok(_)) => Err(failure),
        (Err(failure), Err(more)) => {
            Err(CommandFailure::usage(WHAT, failure.details.into_iter().chain(more).collect()))
        }
    }
}

/// Reads injections, each as `step=7,tensor=layers.2.mlp.up,value=nan,attempts=1`.
///
/// # Errors
/// With every text that is none.
pub fn parse_injections(specs: &[String]) -> Result<Vec<Injection>, Vec<FailureDetail>> {
    let mut injections = Vec::new();
    let mut details = Vec::new();
    for spec in specs {
        match spec.parse::<Injection>() {
            Ok(injection) => injections.push(injection),
            Err(error) => details.push(parse_detail(spec, &error)),
        }
    }
    if details.is_empty() { Ok(injections) } else { Err(details) }
}

fn parse_detail(spec: &str, error: &InjectionParseError) -> FailureDetail {
    let hint = match error {
        InjectionParseError::Form { .. } | InjectionParseError::Missing { .. } => None,
        InjectionParseError::Key { key } => nearest(key, ["step", "tensor", "value", "attempts"]),
        InjectionParseError::Value { value, .. } => nearest(value, ["nan", "inf", "x1000"]),
    };
    let example = "--inject step=7,tensor=layers.2.mlp.up,value=nan";
    FailureDetail::new(error.to_string())
        .at(format!("{FLAG} {spec}"))
        .hint(hint.map_or_else(|| example.to_owned(), str::to_owned))
}

/// Problems of `injections` into this run: steps it does not have, tensors it does not have.
#[must_use]
pub fn check_injections(config: &RunConfig, injections: &[Injection]) -> Vec<FailureDetail> {
    let layers = model_layers(&config.model);
    let details = injections.iter().flat_map(|injection| {
        let step = (injection.step > config.steps).then(|| step_detail(injection, config.steps));
        let tensor = match find_tensor(&layers, &injection.tensor) {
            None => Some(tensor_detail(injection, &layers)),
            Some((_, tensor)) => tensor.is_frozen.then(|| frozen_detail(injection)),
        };
        step.into_iter().chain(tensor)
    });
    details.collect()
}

fn step_detail(injection: &Injection, steps: u64) -> FailureDetail {
    FailureDetail::new(format!("step {} is beyond the {steps} steps of the run", injection.step))
        .at(FLAG)
        .why("what never runs cannot be corrupted")
        .hint(format!("step=1 to step={steps}, or --steps {}", injection.step))
}

fn frozen_detail(injection: &Injection) -> FailureDetail {
    FailureDetail::new(format!("`{}` is frozen and has no gradient", injection.tensor))
        .at(FLAG)
        .why("train.freeze leaves it as it is")
        .hint("a tensor that is trained")
}

fn tensor_detail(injection: &Injection, layers: &[LayerSpec]) -> FailureDetail {
    let tensors = || layers.iter().flat_map(LayerSpec::own_tensors);
    let meant = nearest(&injection.tensor, tensors().map(|tensor| tensor.name.as_str()));
    let hint = meant.map_or_else(|| names_by_example(tensors()), str::to_owned);
    FailureDetail::new(format!("the model has no tensor `{}`", injection.tensor))
        .at(FLAG)
        .why("the family and the number of layers decide which tensors there are")
        .hint(hint)
}

/// The names of the first block's tensors and of those outside of blocks.
fn names_by_example<'a>(tensors: impl Iterator<Item = &'a TensorSpec>) -> String {
    let names = tensors.map(|tensor| tensor.name.as_str());
    let is_example = |name: &&str| !name.starts_with("layers.") || name.starts_with("layers.0.");
    let is_bias = |name: &&str| name.ends_with(".bias");
    format!(
        "one of {}",
        names.filter(|n| is_example(n) && !is_bias(n)).collect::<Vec<_>>().join(", ")
    )
}
