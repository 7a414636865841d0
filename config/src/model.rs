//! The model: of the shape that keys describe, or of a folder.

use std::fs;
use std::path::{Path, PathBuf};

use zbelastic_trainer::hf::{MODEL_CONFIG, parse_config};
use zbelastic_trainer::model::{
    Family, FrozenTensors, LlamaFeatures, ModelConfig, ModelError, RopeScaling,
};

use super::WeightSource;
use super::build::{ConfigBuilder, tokens_config};
use super::key::Key;
use super::note::BYTE_VALUES;
use super::problem::ConfigProblem;
use super::settings::ConfigOrigin;
use super::tokens::TOKENIZER_JSON;
use super::words::RopeScalingKind;

/// Keys that give a model its shape, which a folder gives as well.
const SHAPE_KEYS: [Key; 21] = [
    Key::Preset,
    Key::Family,
    Key::Layers,
    Key::Width,
    Key::Heads,
    Key::KvHeads,
    Key::HeadDim,
    Key::MlpWidth,
    Key::Vocab,
    Key::NormEps,
    Key::RopeTheta,
    Key::AttentionBias,
    Key::MlpBias,
    Key::QkNorm,
    Key::RopeScaling,
    Key::RopeFactor,
    Key::RopeBands,
    Key::RopeOriginal,
    Key::SlidingWindow,
    Key::Positions,
    Key::Tied,
];

/// Files of a tokenizer, which models that read tokens bring beside their weights.
const TOKENIZERS: [&str; 4] = [TOKENIZER_JSON, "tokenizer.model", "vocab.json", "merges.txt"];

/// Without these there is no shape.
const NEEDED_KEYS: [Key; 4] = [Key::Family, Key::Layers, Key::Width, Key::Heads];

impl ConfigBuilder<'_> {
    /// The model, unless too little is known about it.
    pub fn model(&mut self) -> Option<(ModelConfig, WeightSource)> {
        let manifests = self.store_manifests();
        let largest = manifests.iter().map(|(_, manifest)| manifest.vocabulary).max();
        let (model, weights) = self.model_for(largest)?;
        self.check_stores(manifests, model.vocabulary);
        Some((model, weights))
    }

    /// The model, which reads ids of stores with so large a vocabulary, if it reads any.
    fn model_for(&mut self, largest: Option<u32>) -> Option<(ModelConfig, WeightSource)> {
        let Some(folder) = self.reader.text(Key::FromHf).map(PathBuf::from) else {
            return self.shaped_model(largest).map(|model| (model, WeightSource::Drawn));
        };
        let settings = self.reader.settings;
        let is_set = |key: &Key| settings.origin(*key).is_explicit();
        match self.origin {
            ConfigOrigin::Recorded if SHAPE_KEYS.iter().any(is_set) => {
                let weights = WeightSource::HuggingFace { folder };
                return self.shaped_model(largest).map(|model| (model, weights));
            }
            // A text that this program did not write may have the folder alone.
            ConfigOrigin::Recorded | ConfigOrigin::New => {}
        }
        for key in SHAPE_KEYS.into_iter().filter(is_set) {
            self.problems.push(ConfigProblem::TwoModels { at: settings.origin(key), key });
        }
        let model = self.folder_model(&folder)?;
        Some((model, WeightSource::HuggingFace { folder }))
    }

    fn folder_model(&mut self, folder: &Path) -> Option<ModelConfig> {
        let path = folder.join(MODEL_CONFIG);
        let at = self.reader.settings.origin(Key::FromHf);
        let config = fs::read_to_string(&path)
            .map_err(|error| ConfigProblem::FolderUnreadable { at, path: path.clone(), error })
            .and_then(|text| {
                let wrong = |error| ConfigProblem::FolderConfig { path: path.clone(), error };
                parse_config(&text).map_err(wrong)
            });
        let model = match config {
            Ok(model) => model,
            Err(problem) => {
                self.problems.push(problem);
                return None;
            }
        };
        let wrong = |error| ConfigProblem::FolderModel { path: path.clone(), error };
        self.problems.extend(model.errors().into_iter().map(wrong));
        self.check_positions(&model);
        if self.reads_bytes() && !self.reader.settings.origin(Key::Tokenizer).is_explicit() {
            self.check_tokenizer(folder, model.vocabulary);
        }
        Some(model)
    }

    /// A model with more tokens than bytes may have learnt bytes all the same. One that brings what
    /// reads its tokens did not: trained on bytes, it would begin with the rows of other tokens. That
    /// is refused unless bytes are named.
    fn check_tokenizer(&mut self, folder: &Path, vocabulary: u32) {
        let tokenizer =
            TOKENIZERS.into_iter().map(|name| folder.join(name)).find(|path| path.exists());
        if let Some(path) = tokenizer.filter(|_| vocabulary > BYTE_VALUES) {
            self.problems.push(ConfigProblem::Tokenizer { path, vocabulary });
        }
    }

    fn check_positions(&mut self, model: &ModelConfig) {
        let sequence_len = self.reader.size(Key::SeqLen);
        let positions = model.positions;
        match model.family {
            Family::Gpt2 if sequence_len > positions => {
                let at = self.reader.settings.origin(Key::SeqLen);
                let problem = |_, _| ConfigProblem::Positions { at, sequence_len, positions };
                self.report(&[Key::SeqLen], problem);
            }
            Family::Gpt2 | Family::Llama => {}
        }
    }

    /// The model of the shape that keys describe.
    fn shaped_model(&mut self, largest: Option<u32>) -> Option<ModelConfig> {
        let reader = self.reader;
        let absent: Vec<Key> =
            NEEDED_KEYS.into_iter().filter(|key| reader.value(*key).is_none()).collect();
        let unsaid = absent.iter().copied().filter(|key| !self.unsound.contains(key));
        let missing: Vec<Key> = unsaid.collect();
        if !missing.is_empty() && !self.unsound.contains(&Key::Preset) {
            self.problems.push(ConfigProblem::Missing { keys: missing });
        }
        self.unsound.extend(&absent);
        let model = self.shape(largest);
        for error in self.shape_errors(&model) {
            let keys = blamed_keys(&error, reader.value(Key::HeadDim).is_some());
            let settings = reader.settings;
            self.report(keys, |key, beside| ConfigProblem::Model {
                at: settings.origin(key),
                key,
                error,
                beside,
            });
        }
        if self.reads_bytes() {
            self.check_vocabulary(model.vocabulary);
        }
        self.check_positions(&model);
        absent.is_empty().then_some(model)
    }

    /// Whether each byte of a text is a token.
    fn reads_bytes(&self) -> bool {
        match self.origin {
            ConfigOrigin::New => tokens_config(&self.reader).is_bytes(),
            // A job over stores does not name their folders.
            ConfigOrigin::Recorded => false,
        }
    }

    /// The shape, with a 1 for each size that is not known. The vocabulary, if it is not set, is
    /// that of the stores.
    fn shape(&self, largest: Option<u32>) -> ModelConfig {
        let reader = self.reader;
        let optional = |key: Key| reader.value(key).map(|_| reader.size(key));
        let size = |key: Key| optional(key).unwrap_or(1);
        let family = match reader.value(Key::Family) {
            Some(_) => reader.choice(Key::Family),
            None => Family::Gpt2,
        };
        let width = size(Key::Width);
        let heads = size(Key::Heads);
        let mlp_width = || match family {
            Family::Gpt2 => 4 * width,
            Family::Llama => (8 * width).div_ceil(3).next_multiple_of(32),
        };
        ModelConfig {
            family,
            blocks: size(Key::Layers),
            width,
            heads,
            kv_heads: optional(Key::KvHeads).unwrap_or(heads),
            head_width: optional(Key::HeadDim).unwrap_or(width / heads),
            mlp_width: optional(Key::MlpWidth).unwrap_or_else(mlp_width),
            features: self.features(),
            vocabulary: largest
                .filter(|_| !reader.settings.origin(Key::Vocab).is_explicit())
                .unwrap_or_else(|| reader.size(Key::Vocab)),
            sliding_window: optional(Key::SlidingWindow),
            positions: optional(Key::Positions).unwrap_or_else(|| reader.size(Key::SeqLen)),
            norm_epsilon: reader.number(Key::NormEps) as f32,
            rope_theta: reader.number(Key::RopeTheta),
            tied: reader.flag(Key::Tied),
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    fn features(&self) -> LlamaFeatures {
        let reader = self.reader;
        let factor = reader.number(Key::RopeFactor);
        let [low_freq_factor, high_freq_factor] = reader.pair(Key::RopeBands);
        LlamaFeatures {
            attention_bias: reader.choice(Key::AttentionBias),
            mlp_bias: reader.flag(Key::MlpBias),
            qk_norm: reader.flag(Key::QkNorm),
            rope_scaling: match reader.choice(Key::RopeScaling) {
                RopeScalingKind::None => None,
                RopeScalingKind::Linear => Some(RopeScaling::Linear { factor }),
                RopeScalingKind::Llama3 => Some(RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_positions: reader.size(Key::RopeOriginal),
                }),
            },
        }
    }

    fn check_vocabulary(&mut self, vocabulary: u32) {
        if vocabulary < BYTE_VALUES {
            let at = self.reader.settings.origin(Key::Vocab);
            self.report(&[Key::Vocab], |_, _| ConfigProblem::Vocabulary { at, vocabulary });
        }
    }

    /// Everything wrong with a shape, without what follows from something else that is.
    fn shape_errors(&self, model: &ModelConfig) -> Vec<ModelError> {
        let heads = model.heads;
        let width = model.width;
        let has_head_dim = self.reader.value(Key::HeadDim).is_some();
        if !has_head_dim && !width.is_multiple_of(heads) {
            let others = |error: &ModelError| !blamed_keys(error, false).contains(&Key::Width);
            let uneven = ModelError::Heads { heads, width };
            return std::iter::once(uneven)
                .chain(model.errors().into_iter().filter(others))
                .collect();
        }
        model.errors()
    }
}

/// The keys that an error is about, the likeliest to be wrong first.
fn blamed_keys(error: &ModelError, has_head_dim: bool) -> &'static [Key] {
    match error {
        ModelError::Zero { .. } | ModelError::Heads { .. } => &[Key::Heads, Key::Width],
        ModelError::KvHeads { .. } => &[Key::KvHeads, Key::Heads],
        ModelError::OddHeadWidth { .. } if has_head_dim => &[Key::HeadDim, Key::Family],
        ModelError::OddHeadWidth { .. } => &[Key::Heads, Key::Width, Key::Family],
        ModelError::WideHead { .. } if has_head_dim => &[Key::HeadDim],
        ModelError::WideHead { .. } => &[Key::Heads, Key::Width],
        ModelError::GroupedGpt2 { .. } => &[Key::KvHeads, Key::Family],
        ModelError::LargeLayer { .. } => &[Key::Width, Key::Vocab, Key::MlpWidth],
        ModelError::NotPositive { name, .. } if *name == "rope_theta" => &[Key::RopeTheta],
        ModelError::NotPositive { name, .. } if name.contains("rope_scaling") => &[Key::RopeBands],
        ModelError::NotPositive { .. } => &[Key::NormEps],
        ModelError::Gpt2Features => &[
            Key::AttentionBias,
            Key::MlpBias,
            Key::QkNorm,
            Key::RopeScaling,
            Key::SlidingWindow,
            Key::Family,
        ],
        ModelError::Features => {
            &[Key::QkNorm, Key::MlpBias, Key::AttentionBias, Key::SlidingWindow]
        }
    }
}
