//! Patterns over tensors' names, which choose the tensors that training leaves as they are.
//!
//! A pattern ([`NamePattern`]) is a name, or the beginning of one: `embed` and `layers.3.attn` name all
//! that stands below them. The matrix of a linear layer, which has no last part of its own beside its
//! `.bias`, may be written with `.weight` behind it.

use super::config::ModelConfig;
use super::frozen::FrozenTensors;
use super::name_pattern::{NamePattern, NamePatternError};
use super::tensors::{LayerSpec, TensorSpec, model_layers};

/// Why patterns choose no tensors that can be frozen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeError {
    /// It is no pattern.
    #[error(transparent)]
    Pattern(#[from] NamePatternError),
    /// No tensor has such a name.
    #[error("no tensor of the model matches `{pattern}`")]
    NoTensor {
        /// The pattern as it was written.
        pattern: String,
    },
    /// Nothing would be trained.
    #[error("all {tensor_count} tensors of the model would be frozen")]
    Everything {
        /// Tensors of the model.
        tensor_count: usize,
    },
}

/// The tensors of `model` that one pattern or another matches.
///
/// # Errors
/// With everything that is wrong with a pattern: it is none, or matches no tensor. Or if none is
/// left to be trained.
pub fn frozen_tensors(
    model: &ModelConfig,
    patterns: &[String],
) -> Result<FrozenTensors, Vec<FreezeError>> {
    let layers = model_layers(model);
    let tensors: Vec<&TensorSpec> = layers.iter().flat_map(LayerSpec::own_tensors).collect();
    let mut is_frozen = vec![false; tensors.len()];
    let mut errors = Vec::new();
    for pattern in patterns {
        match NamePattern::parse(pattern) {
            Ok(parsed) => {
                let mut has_match = false;
                for (tensor, is_frozen) in tensors.iter().zip(&mut is_frozen) {
                    let is_match = parsed.matches(&tensor.name);
                    *is_frozen |= is_match;
                    has_match |= is_match;
                }
                if !has_match {
                    errors.push(FreezeError::NoTensor { pattern: pattern.clone() });
                }
            }
            Err(error) => errors.push(error.into()),
        }
    }
    if is_frozen.iter().all(|is_frozen| *is_frozen) {
        errors.push(FreezeError::Everything { tensor_count: tensors.len() });
    }
    let frozen = tensors.iter().zip(is_frozen).filter(|(_, is_frozen)| *is_frozen);
    let frozen = frozen.map(|(tensor, _)| tensor.index);
    if errors.is_empty() { Ok(frozen.collect()) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, LlamaFeatures, model_size};

    fn model(family: Family) -> ModelConfig {
        ModelConfig {
            family,
            blocks: 12,
            width: 8,
            heads: 2,
            kv_heads: 2,
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

    fn frozen(model: &ModelConfig, patterns: &[&str]) -> Result<FrozenTensors, Vec<FreezeError>> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        frozen_tensors(model, &patterns)
    }

    #[test]
    fn a_pattern_names_a_tensor_or_what_stands_below() {
        let check = |family, pattern: &str, expected: &[&str]| {
            let model = model(family);
            let frozen = frozen(&model, &[pattern]).expect("it matches");
            let layers = model_layers(&model.freezing(frozen));
            let tensors = layers.iter().flat_map(LayerSpec::own_tensors);
            let names = tensors.filter(|tensor| tensor.is_frozen).map(|t| t.name.as_str());
            assert_eq!(names.collect::<Vec<_>>(), expected, "{pattern}");
        };
        let gpt2 = Family::Gpt2;
        check(gpt2, "embed", &["embed.tokens", "embed.positions"]);
        check(gpt2, "embed.pos*", &["embed.positions"]);
        check(gpt2, "norm", &["norm", "norm.bias"]);
        check(gpt2, "norm.weight", &["norm"]);
        check(gpt2, "layers.1.attn.q", &["layers.1.attn.q", "layers.1.attn.q.bias"]);
        check(
            gpt2,
            "layers.10-11.mlp.down.bias",
            &["layers.10.mlp.down.bias", "layers.11.mlp.down.bias"],
        );
        check(
            Family::Llama,
            "layers.2-3.norm*",
            &["layers.2.norm1", "layers.2.norm2", "layers.3.norm1", "layers.3.norm2"],
        );
        check(
            Family::Llama,
            "layers.11.attn.*.weight",
            &["layers.11.attn.q", "layers.11.attn.k", "layers.11.attn.v", "layers.11.attn.out"],
        );
    }

    #[test]
    fn patterns_that_choose_nothing_are_named() {
        let llama = model(Family::Llama);
        let no_tensor = |pattern: &str| FreezeError::NoTensor { pattern: pattern.to_owned() };
        let empty_part = |pattern: &str| {
            FreezeError::from(NamePatternError::EmptyPart { pattern: pattern.to_owned() })
        };
        let check = |patterns: &[&str], expected: &[FreezeError]| {
            assert_eq!(frozen(&llama, patterns), Err(expected.to_vec()), "{patterns:?}");
        };
        check(&["layers.12"], &[no_tensor("layers.12")]);
        check(&["layer.0", "norm.bias"], &[no_tensor("layer.0"), no_tensor("norm.bias")]);
        check(&["head.weight.more"], &[no_tensor("head.weight.more")]);
        check(&["layers..q"], &[empty_part("layers..q")]);
        check(&[""], &[empty_part("")]);
        let range = NamePatternError::Range { pattern: "layers.7-0".to_owned(), first: 7, last: 0 };
        check(&["layers.7-0"], &[range.into()]);
        let tensor_count = model_size(&llama).0 as usize;
        check(&["*"], &[FreezeError::Everything { tensor_count }]);
        check(&["layers", "embed", "norm", "head"], &[FreezeError::Everything { tensor_count }]);
        assert!(frozen(&llama, &["layers", "embed", "norm"]).is_ok(), "the head is left");
        assert!(frozen(&llama, &["layers.8-40"]).is_ok(), "blocks that are not there are none");
    }

    /// The head's matrix is the token embedding: it has that name alone.
    #[test]
    fn a_tied_head_is_frozen_with_the_embedding() {
        let tied = ModelConfig { tied: true, ..model(Family::Llama) };
        let expected = FreezeError::NoTensor { pattern: "head".to_owned() };
        assert_eq!(frozen(&tied, &["head"]), Err(vec![expected]));
        let frozen = frozen(&tied, &["embed"]).expect("it matches");
        let layers = model_layers(&tied.freezing(frozen));
        let head = layers.last().and_then(|head| head.tensors.last()).expect("the head's matrix");
        assert!(head.is_shared && head.is_frozen);
    }
}
