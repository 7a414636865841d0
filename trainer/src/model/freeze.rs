//! Patterns over tensors' names, which choose the tensors that training leaves as they are.
//!
//! A pattern is a name, or the beginning of one, part
//! by part between dots: `embed` and `layers.3.attn` name all that stands below them. In a part `*`
//! is any letters, and `0-7` are the blocks from 0 to 7. The matrix of a linear layer, which has no
//! last part of its own beside its `.bias`, may be written with `.weight` behind it.

use super::config::ModelConfig;
use super::frozen::FrozenTensors;
use super::tensors::{LayerSpec, TensorSpec, model_layers};

/// The last part of a tensor's name that names no bias, as [`super::find_tensor`] reads it too.
const WEIGHT: &str = "weight";
const BIAS: &str = "bias";

/// Why patterns choose no tensors that can be frozen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeError {
    /// A pattern has a part without a letter.
    #[error("`{pattern}` has an empty part; parts stand between dots, as in layers.0-7.attn")]
    EmptyPart {
        /// The pattern as it was written.
        pattern: String,
    },
    /// A range ends before it begins.
    #[error("`{pattern}` has a range that ends before it begins, {first} to {last}")]
    Range {
        /// The pattern as it was written.
        pattern: String,
        /// The first block.
        first: u64,
        /// The last block.
        last: u64,
    },
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
            Err(error) => errors.push(error),
        }
    }
    if is_frozen.iter().all(|is_frozen| *is_frozen) {
        errors.push(FreezeError::Everything { tensor_count: tensors.len() });
    }
    let frozen = tensors.iter().zip(is_frozen).filter(|(_, is_frozen)| *is_frozen);
    let frozen = frozen.map(|(tensor, _)| tensor.index);
    if errors.is_empty() { Ok(frozen.collect()) } else { Err(errors) }
}

/// A pattern over names.
pub(super) struct NamePattern<'a> {
    parts: Vec<PartPattern<'a>>,
}

/// A pattern over one part of a name.
enum PartPattern<'a> {
    /// Letters, of which `*` is any number of any.
    Letters(&'a str),
    /// The blocks from the first to the last.
    Blocks { first: u64, last: u64 },
}

impl<'a> NamePattern<'a> {
    pub(super) fn parse(pattern: &'a str) -> Result<Self, FreezeError> {
        let part = |part: &'a str| {
            let written = || pattern.to_owned();
            match blocks(part) {
                _ if part.is_empty() => Err(FreezeError::EmptyPart { pattern: written() }),
                Some((first, last)) if first > last => {
                    Err(FreezeError::Range { pattern: written(), first, last })
                }
                Some((first, last)) => Ok(PartPattern::Blocks { first, last }),
                None => Ok(PartPattern::Letters(part)),
            }
        };
        Ok(Self { parts: pattern.split('.').map(part).collect::<Result<_, _>>()? })
    }

    /// Whether it is the name, or the beginning of it.
    fn matches(&self, name: &str) -> bool {
        let is_bias = name.rsplit('.').next() == Some(BIAS);
        let mut parts = name.split('.').chain((!is_bias).then_some(WEIGHT));
        self.parts.iter().all(|pattern| parts.next().is_some_and(|part| pattern.matches(part)))
    }

    /// Whether it is the name, or the end of it.
    pub(super) fn matches_end(&self, name: &str) -> bool {
        let mut parts = name.rsplit('.');
        let mut patterns = self.parts.iter().rev();
        patterns.all(|pattern| parts.next().is_some_and(|part| pattern.matches(part)))
    }
}

/// The first and the last block of `0-7`.
fn blocks(part: &str) -> Option<(u64, u64)> {
    let (first, last) = part.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

impl PartPattern<'_> {
    fn matches(&self, part: &str) -> bool {
        match self {
            Self::Letters(pattern) => matches_letters(pattern, part),
            Self::Blocks { first, last } => {
                part.parse().is_ok_and(|block: u64| (*first..=*last).contains(&block))
            }
        }
    }
}

/// Whether `text` is `pattern`, in which `*` is any number of any letters: what stands before the
/// first star, then what stands between two of them as early as it comes, then what is behind the
/// last.
fn matches_letters(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let (between, end) = rest.rsplit_once('*').map_or((None, rest), |(b, end)| (Some(b), end));
    for piece in between.into_iter().flat_map(|between| between.split('*')) {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.ends_with(end)
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
            lora: None,
        }
    }

    fn frozen(model: &ModelConfig, patterns: &[&str]) -> Result<FrozenTensors, Vec<FreezeError>> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        frozen_tensors(model, &patterns)
    }

    #[test]
    fn letters_and_stars_match_parts() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(matches_letters(pattern, text), expected, "{pattern} {text}");
        };
        check("attn", "attn", true);
        check("attn", "attn2", false);
        check("*", "", true);
        check("*", "anything", true);
        check("norm*", "norm1", true);
        check("*1", "norm1", true);
        check("n*m*", "norm1", true);
        check("n*r*1", "norm1", true);
        check("n*r*2", "norm1", false);
        check("q_*", "q", false);
        check("ab*ba", "aba", false);
        check("**", "x", true);
    }

    #[test]
    fn a_pattern_names_a_tensor_or_what_stands_below() {
        let check = |family, pattern: &str, expected: &[&str]| {
            let model = model(family);
            let frozen = frozen(&model, &[pattern]).expect("it matches");
            let layers = model_layers(&ModelConfig { frozen, ..model });
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
        let check = |patterns: &[&str], expected: &[FreezeError]| {
            assert_eq!(frozen(&llama, patterns), Err(expected.to_vec()), "{patterns:?}");
        };
        check(&["layers.12"], &[no_tensor("layers.12")]);
        check(&["layer.0", "norm.bias"], &[no_tensor("layer.0"), no_tensor("norm.bias")]);
        check(&["head.weight.more"], &[no_tensor("head.weight.more")]);
        check(&["layers..q"], &[FreezeError::EmptyPart { pattern: "layers..q".to_owned() }]);
        check(&[""], &[FreezeError::EmptyPart { pattern: String::new() }]);
        let range = FreezeError::Range { pattern: "layers.7-0".to_owned(), first: 7, last: 0 };
        check(&["layers.7-0"], &[range]);
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
        let layers = model_layers(&ModelConfig { frozen, ..tied });
        let head = layers.last().and_then(|head| head.tensors.last()).expect("the head's matrix");
        assert!(head.is_shared && head.is_frozen);
    }
}
