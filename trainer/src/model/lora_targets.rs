//! From what a person configures to the adapters of a model.
//!
//! A target is the end of a module's name in transformers, part by part between dots, as in PEFT's
//! `target_modules`: `q_proj`, `mlp.c_proj`, `layers.3.self_attn.v_proj`. It may be a pattern ([`NamePattern`]):
//! `layers.0-7.self_attn.*_proj`. `all-linear` is all of them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::config::ModelConfig;
use super::frozen::FrozenTensors;
use super::lora::{LoraConfig, LoraInit, LoraLinear, LoraScaling, LoraTarget};
use super::name_pattern::{NamePattern, NamePatternError};
use super::tensors::{LayerSpec, model_layers};

/// The target that means every linear layer but the head, as PEFT calls it.
const ALL_LINEAR: &str = "all-linear";

/// Adapters as they are configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraSettings {
    /// Rows of each adapter's first matrix.
    pub rank: u32,
    /// What the product is multiplied by, over the rank or its root.
    pub alpha: f64,
    /// Over which of them.
    #[serde(default, skip_serializing_if = "LoraScaling::is_standard")]
    pub scaling: LoraScaling,
    /// What first matrices begin as.
    pub init: LoraInit,
    /// Ends of modules' names.
    pub targets: Vec<String>,
}

/// Why a model gets no adapters.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoraError {
    /// An adapter of nothing.
    #[error("a rank of 0 adapts nothing")]
    RankZero,
    /// Such an adapter would be larger than what it adapts.
    #[error("a rank of {rank} is more than {module} has: it is {outputs} by {inputs}")]
    RankLarge {
        /// The configured rank.
        rank: u32,
        /// The first module that is too small.
        module: &'static str,
        /// Its outputs.
        outputs: usize,
        /// Its inputs.
        inputs: usize,
    },
    /// A factor that is no number.
    #[error("alpha must be a finite number above 0, found {found:?}")]
    Alpha {
        /// The configured number.
        found: f64,
    },
    /// Nothing is named.
    #[error("no target is named")]
    NoTarget,
    /// A target is no pattern.
    #[error(transparent)]
    Pattern(#[from] NamePatternError),
    /// No linear layer has such a name.
    #[error("no linear layer of a block matches `{target}`")]
    NoModule {
        /// The target as it was written.
        target: String,
        /// The modules of a block that there are.
        modules: Vec<&'static str>,
    },
}

impl LoraSettings {
    /// The model with adapters, and with all else frozen.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn adapt(&self, model: &ModelConfig) -> Result<ModelConfig, Vec<LoraError>> {
        let mut errors = self.number_errors();
        let mut adapted = BTreeSet::new();
        for target in &self.targets {
            match matches(model, target) {
                Ok(found) => adapted.extend(found),
                Err(error) => errors.push(error),
            }
        }
        if self.targets.is_empty() {
            errors.push(LoraError::NoTarget);
        }
        let linears: BTreeSet<LoraLinear> = adapted.iter().map(|(linear, _)| *linear).collect();
        errors.extend(linears.into_iter().find_map(|linear| self.rank_error(model, linear)));
        if !errors.is_empty() {
            return Err(errors);
        }
        let targets = targets(adapted);
        let Self { rank, alpha, scaling, init, .. } = *self;
        let lora = LoraConfig { rank, alpha, scaling, init, targets };
        Ok(ModelConfig { lora: Some(lora), ..model.clone() }.with_base_frozen())
    }

    fn number_errors(&self) -> Vec<LoraError> {
        let found = self.alpha;
        let zero = (self.rank == 0).then_some(LoraError::RankZero);
        let scale = self.scaling.factor(found, self.rank.max(1));
        let is_legal = found.is_finite() && found > 0.0 && (scale as f32).is_normal();
        let alpha = (!is_legal).then_some(LoraError::Alpha { found });
        zero.into_iter().chain(alpha).collect()
    }

    fn rank_error(&self, model: &ModelConfig, linear: LoraLinear) -> Option<LoraError> {
        let shape = linear.shape(model);
        let (outputs, inputs) = (shape.outputs, shape.inputs);
        let module = linear.module(model.family);
        let is_large = self.rank as usize > outputs.min(inputs);
        is_large.then_some(LoraError::RankLarge { rank: self.rank, module, outputs, inputs })
    }
}

impl ModelConfig {
    /// The same with everything frozen but its adapters.
    fn with_base_frozen(self) -> Self {
        let layers = model_layers(&self);
        let tensors = layers.iter().flat_map(LayerSpec::own_tensors);
        let base = tensors.filter(|tensor| !tensor.is_adapter());
        let frozen = base.map(|tensor| tensor.index).collect();
        self.freezing(frozen)
    }

    /// The same without adapters, all of it trained.
    #[must_use]
    pub fn without_lora(&self) -> Self {
        match &self.lora {
            Some(_) => Self { lora: None, ..self.clone() }.freezing(FrozenTensors::NONE),
            None => self.clone(),
        }
    }
}

/// The linear layers, each with its block, that a target names.
fn matches(model: &ModelConfig, target: &str) -> Result<Vec<(LoraLinear, u32)>, LoraError> {
    let linears = LoraLinear::of_family(model.family);
    let pattern = NamePattern::parse(target)?;
    let blocks = 0..model.blocks;
    let all = blocks.flat_map(|block| linears.iter().map(move |linear| (*linear, block)));
    let is_named = |(linear, block): &(LoraLinear, u32)| {
        target == ALL_LINEAR || pattern.matches_end(&linear.module_of(model.family, *block))
    };
    let found: Vec<_> = all.filter(is_named).collect();
    if found.is_empty() {
        let modules = linears.iter().map(|linear| linear.module(model.family)).collect();
        return Err(LoraError::NoModule { target: target.to_owned(), modules });
    }
    Ok(found)
}

/// Neighbouring blocks of each linear layer together.
fn targets(adapted: BTreeSet<(LoraLinear, u32)>) -> Vec<LoraTarget> {
    let mut targets: Vec<LoraTarget> = Vec::new();
    for (linear, block) in adapted {
        if targets.last().is_none_or(|target| target.linear != linear) {
            targets.push(LoraTarget { linear, blocks: Vec::new() });
        }
        let runs = &mut targets.last_mut().expect("it was pushed").blocks;
        match runs.last_mut() {
            Some([_, end]) if *end == block => *end += 1,
            Some(_) | None => runs.push([block, block + 1]),
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, FrozenTensors, LlamaFeatures};

    fn model(family: Family) -> ModelConfig {
        ModelConfig {
            family,
            blocks: 4,
            width: 8,
            heads: 2,
            kv_heads: if family == Family::Llama { 1 } else { 2 },
            head_width: 4,
            mlp_width: 16,
            features: LlamaFeatures::NONE,
            vocabulary: 10,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    fn settings(rank: u32, targets: &[&str]) -> LoraSettings {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        let scaling = LoraScaling::Standard;
        LoraSettings { rank, alpha: 4.0, scaling, init: LoraInit::Kaiming, targets }
    }

    #[test]
    fn targets_are_ends_of_modules_names() {
        let check = |family, targets: &[&str], expected: &[(LoraLinear, &[[u32; 2]])]| {
            let adapted = settings(2, targets).adapt(&model(family)).expect("they are legal");
            let found = adapted.lora.expect("it has adapters").targets;
            let expected = expected
                .iter()
                .map(|(linear, blocks)| LoraTarget { linear: *linear, blocks: blocks.to_vec() });
            assert_eq!(found, expected.collect::<Vec<_>>(), "{targets:?}");
        };
        use LoraLinear::{Down, Gate, Key, Out, Qkv, Query, Up, Value};
        let all: &[[u32; 2]] = &[[0, 4]];
        check(Family::Llama, &["v_proj", "q_proj"], &[(Query, all), (Value, all)]);
        check(Family::Llama, &["mlp.*_proj"], &[(Gate, all), (Up, all), (Down, all)]);
        check(Family::Llama, &["layers.1.self_attn.k_proj"], &[(Key, &[[1, 2]])]);
        let some = ["layers.0-1.self_attn.o_proj", "layers.3.self_attn.o_proj"];
        check(Family::Llama, &some, &[(Out, &[[0, 2], [3, 4]])]);
        check(Family::Gpt2, &["c_attn", "mlp.c_proj"], &[(Qkv, all), (Down, all)]);
        check(Family::Gpt2, &["c_proj"], &[(Out, all), (Down, all)]);
        let every = [(Qkv, all), (Out, all), (Up, all), (Down, all)];
        check(Family::Gpt2, &["all-linear"], &every);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |settings: LoraSettings, family, expected: &[&str]| {
            let errors = settings.adapt(&model(family)).expect_err("it is wrong");
            let found: Vec<String> = errors.iter().map(LoraError::to_string).collect();
            assert_eq!(found, expected);
        };
        check(settings(0, &["q_proj"]), Family::Llama, &["a rank of 0 adapts nothing"]);
        assert!(settings(4, &["k_proj"]).adapt(&model(Family::Llama)).is_ok());
        let large = "a rank of 5 is more than self_attn.k_proj has: it is 4 by 8";
        check(settings(5, &["all-linear"]), Family::Llama, &[large]);
        let absent = "no linear layer of a block matches `q_proj`";
        check(settings(2, &["q_proj"]), Family::Gpt2, &[absent]);
        check(settings(2, &["roj"]), Family::Llama, &["no linear layer of a block matches `roj`"]);
        check(settings(2, &[]), Family::Gpt2, &["no target is named"]);
        for found in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60] {
            let alpha = LoraSettings { alpha: found, ..settings(2, &["c_fc"]) };
            let expected = format!("alpha must be a finite number above 0, found {found:?}");
            check(alpha, Family::Gpt2, &[&expected]);
        }
    }

    #[test]
    fn all_but_adapters_is_frozen_and_lies_as_without_them() {
        for family in [Family::Gpt2, Family::Llama] {
            let model = model(family);
            let adapted = settings(2, &["all-linear"]).adapt(&model).expect("legal");
            assert_eq!(adapted.without_lora(), model);
            let pairs = model_layers(&model).into_iter().zip(model_layers(&adapted));
            for (plain, with) in pairs {
                for (plain, with) in plain.tensors.iter().zip(&with.tensors) {
                    assert_eq!((&plain.name, &plain.range), (&with.name, &with.range));
                    assert_eq!((plain.draw, plain.initial), (with.draw, with.initial));
                    assert!(with.is_frozen);
                }
                let adapters = &with.tensors[plain.tensors.len()..];
                assert!(adapters.iter().all(|tensor| !tensor.is_frozen && tensor.is_adapter()));
            }
        }
    }
}
