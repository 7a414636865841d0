//! Models that lie in folders: those that runs left, and any in Hugging Face's form.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zbelastic_config::{BYTE_VALUES, load_document, load_recorded};
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments};
use zbelastic_kernels::AllocateError;
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_trainer::hf::{
    ADAPTER_WEIGHTS, MODEL_CONFIG, SpecialTokenIds, StoredWeights, import_adapters, parse_config,
};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::data_failure::of_folder;
use crate::run_files::{ADAPTER, CLUSTER, CONFIG, MODEL, RUN};
use crate::tokenizer_encoder::TokenizerEncoder;
use crate::weights::{stored_weights_of_folder, weights_of_folder};

/// File that a tokenizer has at least.
const TOKENIZER: &str = "tokenizer.json";

/// The run that left a model.
#[derive(Clone, Debug)]
pub struct LeftRun {
    /// Its folder.
    pub folder: PathBuf,
    /// `run.json`, or nothing where it is missing.
    pub record: Value,
    /// `config.toml`.
    pub document: String,
}

impl LeftRun {
    /// The run in a folder.
    fn read(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            record: read_json(&folder.join(RUN)),
            document: fs::read_to_string(folder.join(CONFIG)).unwrap_or_default(),
        }
    }

    /// The run in a folder, if it was one of processes, which keep checkpoints.
    pub fn of_processes(folder: &Path) -> Option<Self> {
        let is_there = folder.join(CLUSTER).is_dir() && folder.join(CONFIG).is_file();
        is_there.then(|| Self::read(folder))
    }

    /// What its tokens are, as far as it recorded that.
    pub fn tokens(&self) -> RunTokens {
        let Some(stores) = self.record["tokens"]["stores"].as_array() else {
            return match self.record.is_null() && self.names_stores() {
                true => RunTokens::OfTokenizer { hash: None },
                false => RunTokens::Bytes,
            };
        };
        // All stores of a run have the same tokenizer.
        let hash = stores.first().and_then(|store| store["tokenizer"].as_str());
        RunTokens::of_hash(hash.map(str::to_owned))
    }

    /// Whether its configuration names token stores.
    fn names_stores(&self) -> bool {
        load_document(CONFIG, &self.document)
            .is_ok_and(|loaded| !loaded.config.tokens.stores.is_empty())
    }

    /// The folder of the tokenizer that it was trained with; nothing for one of bytes.
    pub fn tokenizer_folder(&self) -> Option<PathBuf> {
        tokenizer_in(self.folder.join(MODEL))
    }
}

/// The tokens of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunTokens {
    /// Each byte of a text is one.
    Bytes,
    /// Those of token stores.
    OfTokenizer {
        /// The hash of the tokenizer that the stores were made with, in hexadecimal; nothing where
        /// it was not recorded.
        hash: Option<String>,
    },
}

impl RunTokens {
    /// Those of the tokenizer with this hash in hexadecimal, which may be that of bytes.
    pub fn of_hash(hash: Option<String>) -> Self {
        match hash {
            Some(hash) if hash == bytes_hash() => Self::Bytes,
            hash => Self::OfTokenizer { hash },
        }
    }

    /// The hash of their tokenizer, in hexadecimal, if it is known.
    pub fn hash(&self) -> Option<String> {
        match self {
            Self::Bytes => Some(bytes_hash()),
            Self::OfTokenizer { hash } => hash.clone(),
        }
    }
}

/// Whether each byte of a text is a token for a model without a tokenizer: as its run recorded it,
/// however many tokens the model has, or else by their number.
pub fn reads_bytes(of_run: Option<&RunTokens>, vocabulary: u32) -> bool {
    match of_run {
        Some(tokens) => *tokens == RunTokens::Bytes,
        None => vocabulary <= BYTE_VALUES,
    }
}

/// The hash of the tokenizer of bytes, in hexadecimal.
fn bytes_hash() -> String {
    BytesEncoder.tokenizer_hash().0.to_string()
}

/// A model in a folder, described; its weights are read by [`SavedModel::weights`].
#[derive(Clone, Debug)]
pub struct SavedModel {
    /// Folder of `config.json` and the weights.
    pub folder: PathBuf,
    /// Its shape.
    pub config: ModelConfig,
    /// The ids that its `config.json` names.
    pub special_ids: SpecialTokenIds,
    /// The run that left it, if one did.
    pub run: Option<LeftRun>,
    /// The tokenizer that a flag names in place of the one beside it.
    named_tokenizer: Option<PathBuf>,
}

/// Adapters that lie beside a model which they are merged into.
#[derive(Clone, Debug)]
pub struct SavedAdapters {
    /// The model that has them.
    pub model: ModelConfig,
    /// Their floats in its layers; all else is zero.
    pub layers: Vec<Vec<f32>>,
}

/// Whether a run lies or lay in a folder.
fn is_run(path: &Path) -> bool {
    path.join(MODEL).is_dir() || path.join(CONFIG).is_file()
}

impl SavedModel {
    /// The model in `path`, a run's folder or a model's; of a run that of `step`, or its last one.
    ///
    /// # Errors
    /// If there is none, or it is described in a way that is not understood.
    pub fn open(path: &Path, step: Option<u64>) -> Result<Self, CommandFailure> {
        if is_run(path) {
            let run = LeftRun::read(path);
            let (folder, record) = model_of_run(&run, step)?;
            return Self::describe(folder, Some(LeftRun { record, ..run }));
        }
        if !path.join(MODEL_CONFIG).is_file() {
            return Err(no_model(path));
        }
        if step.is_some() {
            let what = format!("{} is a model, not a run", path.display());
            let detail = FailureDetail::new(what).at("--step");
            let detail = detail.hint("no --step; or the folder of the run");
            return Err(CommandFailure::usage("the model", vec![detail]));
        }
        Self::describe(path.to_owned(), None)
    }

    fn describe(folder: PathBuf, run: Option<LeftRun>) -> Result<Self, CommandFailure> {
        let path = folder.join(MODEL_CONFIG);
        let wrong = |details: Vec<FailureDetail>| {
            let place = path.display().to_string();
            let details = details.into_iter().map(|detail| detail.at(place.clone())).collect();
            CommandFailure::usage("the model", details)
        };
        let text = fs::read_to_string(&path)
            .map_err(|error| wrong(vec![FailureDetail::new(format!("cannot be read: {error}"))]))?;
        let config = parse_config(&text)
            .map_err(|error| wrong(vec![FailureDetail::new(error.to_string())]))?;
        let errors = config.errors().into_iter();
        let errors: Vec<_> = errors.map(|error| FailureDetail::new(error.to_string())).collect();
        if !errors.is_empty() {
            return Err(wrong(errors));
        }
        let special_ids = SpecialTokenIds::of_config(&text);
        Ok(Self { folder, config, special_ids, run, named_tokenizer: None })
    }

    /// The same model with the tokenizer of this folder or file, if there is one.
    #[must_use]
    pub fn with_tokenizer(self, named: Option<&Path>) -> Self {
        Self { named_tokenizer: named.map(Path::to_owned), ..self }
    }

    /// The weights, layer by layer.
    ///
    /// # Errors
    /// If they cannot be read, or are not the model's.
    pub fn weights(&self) -> Result<Vec<Vec<f32>>, CommandFailure> {
        weights_of_folder(&self.config, &self.folder)
    }

    /// The weights, of which a layer is read when it is needed.
    ///
    /// # Errors
    /// If the files cannot be opened, or their tensors are not the model's.
    pub fn stored_weights(&self) -> Result<StoredWeights, CommandFailure> {
        stored_weights_of_folder(&self.config, &self.folder)
    }

    /// The adapters that its run trained, which are merged into it; nothing for a model without.
    ///
    /// # Errors
    /// If they cannot be read, or are not those of the run's configuration.
    pub fn adapters(&self) -> Result<Option<SavedAdapters>, CommandFailure> {
        let path = self.folder.join(ADAPTER).join(ADAPTER_WEIGHTS);
        let Some(run) = self.run.as_ref().filter(|_| path.is_file()) else { return Ok(None) };
        let model = load_recorded(CONFIG, &run.document)?.config.model;
        let wrong = |what: String| {
            let detail = FailureDetail::new(what).at(path.display().to_string());
            CommandFailure::usage("the adapters", vec![detail])
        };
        let file = fs::read(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let layers = import_adapters(&model, &file).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(SavedAdapters { model, layers }))
    }

    /// The folder of its tokenizer: the one that was named, or else the model's; nothing where there
    /// is none.
    pub fn tokenizer_folder(&self) -> Option<PathBuf> {
        self.named_tokenizer.clone().or_else(|| tokenizer_in(self.folder.clone()))
    }

    /// What encodes text for it: the tokenizer that was named, the one beside it, or the built-in one
    /// of bytes.
    ///
    /// # Errors
    /// If there is none for a model of other tokens than bytes, it cannot be read or understood, it
    /// has more tokens than the model, or one that was named is not that of the run.
    pub fn encoder(&self) -> Result<TokenizerEncoder, CommandFailure> {
        let vocabulary = self.config.vocabulary;
        let tokens = self.run.as_ref().map(LeftRun::tokens);
        if let Some(folder) = self.tokenizer_folder() {
            let (encoder, _) = open_encoder(&folder, vocabulary)?;
            if let Some(tokens) = tokens.filter(|_| self.named_tokenizer.is_some()) {
                check_is_of_run(&encoder, &folder, &tokens)?;
            }
            return Ok(encoder);
        }
        if !reads_bytes(tokens.as_ref(), vocabulary) {
            return Err(no_tokenizer(self));
        }
        let encoder = TokenizerEncoder::bytes();
        check_encoder(&encoder, &self.folder, vocabulary)?;
        Ok(encoder)
    }
}

/// The folder, if there is a tokenizer in it.
fn tokenizer_in(folder: PathBuf) -> Option<PathBuf> {
    folder.join(TOKENIZER).is_file().then_some(folder)
}

/// The tokenizer in a folder, and its files; the built-in one has none.
///
/// # Errors
/// If it cannot be read or understood, or has more tokens than a model of `vocabulary`.
pub fn open_encoder(
    folder: &Path,
    vocabulary: u32,
) -> Result<(TokenizerEncoder, Option<TokenizerFiles>), CommandFailure> {
    let opened = TokenizerEncoder::open_with_files(folder);
    let (encoder, files) = opened.map_err(|error| of_folder(folder, &error))?;
    check_encoder(&encoder, folder, vocabulary)?;
    Ok((encoder, files))
}

/// Checks that an encoder has no id which a model of `vocabulary` tokens lacks.
fn check_encoder(
    encoder: &TokenizerEncoder,
    folder: &Path,
    vocabulary: u32,
) -> Result<(), CommandFailure> {
    encoder.tokenizer().check_vocabulary(vocabulary).map_err(|error| {
        let detail = FailureDetail::new(error.to_string()).at(folder.display().to_string());
        CommandFailure::usage("the tokenizer", vec![detail])
    })
}

/// Checks that an encoder is the one that a run was trained with, as far as it recorded that.
///
/// # Errors
/// If it is another one.
pub fn check_is_of_run(
    encoder: &TokenizerEncoder,
    folder: &Path,
    tokens: &RunTokens,
) -> Result<(), CommandFailure> {
    let found = encoder.tokenizer_hash().0.to_string();
    let Some(expected) = tokens.hash().filter(|expected| *expected != found) else {
        return Ok(());
    };
    let what = format!("{} has hash {found}, the run's is {expected}", folder.display());
    let detail = FailureDetail::new(what).at("--tokenizer");
    let detail = detail
        .why("an id is another token in each")
        .hint("the tokenizer that `zbelastic data prepare` was given, or leave it out");
    Err(CommandFailure::usage("the tokenizer", vec![detail]))
}

fn no_tokenizer(model: &SavedModel) -> CommandFailure {
    let vocabulary = model.config.vocabulary;
    let (what, why) = match &model.run {
        None => (
            format!("there is no tokenizer.json, and the model has {vocabulary} tokens"),
            "text is read as bytes without one, and a model of bytes has 256 tokens",
        ),
        Some(_) => (
            "there is no tokenizer.json, and the run's token stores are not of bytes".to_owned(),
            "without the tokenizer that made the stores, text is other tokens than the model knows",
        ),
    };
    let folder = model.folder.display().to_string();
    let hint = format!(
        "--tokenizer with the folder of the model's tokenizer; or copy tokenizer.json and \
         tokenizer_config.json into {folder}, which data.tokenizer does for the next run"
    );
    CommandFailure::usage(
        "the tokenizer",
        vec![FailureDetail::new(what).at(folder).why(why).hint(hint)],
    )
}

fn read_json(path: &Path) -> Value {
    fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// The folder of the model that a run left after `step` steps, or at its end, and what it recorded
/// then.
fn model_of_run(run: &LeftRun, step: Option<u64>) -> Result<(PathBuf, Value), CommandFailure> {
    let LeftRun { folder, record, .. } = run;
    let last = folder.join(MODEL);
    let is_there = |path: &Path| path.join(MODEL_CONFIG).is_file();
    let steps = record["steps"].as_u64();
    match step {
        None if is_there(&last) => Ok((last, record.clone())),
        None => Err(unfinished(folder)),
        Some(step) if steps == Some(step) && is_there(&last) => Ok((last, record.clone())),
        Some(step) => {
            // A branch puts aside what the run before it left.
            let aside = folder.join(format!("{MODEL}-{step}"));
            if !is_there(&aside) {
                return Err(no_step(folder, step, steps.filter(|_| is_there(&last))));
            }
            Ok((aside, read_json(&folder.join(format!("run-{step}.json")))))
        }
    }
}

fn no_model(path: &Path) -> CommandFailure {
    let (what, found) = match path.exists() {
        true => ("holds neither a run nor a model", "it has no config.toml and no config.json"),
        false => ("is not there", "no such folder"),
    };
    let what = format!("{} {what}", path.display());
    let detail = FailureDetail::new(found);
    let hint = "the folder that `zbelastic train` named at its end, or one with config.json and \
                model.safetensors";
    CommandFailure { code: FailureCode::NotFound, what, details: vec![detail.hint(hint)] }
}

fn unfinished(folder: &Path) -> CommandFailure {
    let shown = folder.display();
    let what = format!("the run in {shown} has left no model yet");
    let detail = FailureDetail::new("it is under way, or was killed before its end");
    let hint = format!(
        "wait for its end; or `zbelastic train {shown}/{CONFIG} --out {shown}`, which goes on; or \
         `zbelastic export {shown} --to DIR`, which takes its last checkpoint"
    );
    CommandFailure { code: FailureCode::WrongState, what, details: vec![detail.hint(hint)] }
}

fn no_step(folder: &Path, step: u64, last: Option<u64>) -> CommandFailure {
    let what = format!("{} holds no model of step {step}", folder.display());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let aside = names.filter_map(|name| name.strip_prefix("model-")?.parse::<u64>().ok());
    let mut steps: Vec<u64> = aside.chain(last).collect();
    steps.sort_unstable();
    let detail = FailureDetail::new(steps_there(&steps)).at("--step");
    CommandFailure {
        code: FailureCode::NotFound,
        what,
        details: vec![detail.hint(
            "one of these, or none for the last; `zbelastic export --step` finds what the run's \
             processes keep, too",
        )],
    }
}

/// Which steps can be named in place of one that there is nothing of.
pub fn steps_there(steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    match steps.is_empty() {
        true => "there is none at all".to_owned(),
        false => format!("there are those of steps {}", steps.join(", ")),
    }
}

/// That a model computes no numbers.
pub fn damaged(what: &str) -> CommandFailure {
    let mut failure = CommandFailure::new(FailureCode::VerificationFailed, what);
    let detail = FailureDetail::new("its weights are damaged, or of another type than they say");
    failure.details = vec![detail.hint("export or download the model again")];
    failure
}

/// That memory does not suffice for a model.
pub fn does_not_fit(error: &AllocateError) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, format!("the model does not fit: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path, step: Option<u64>) -> (FailureCode, String) {
        let failure = SavedModel::open(path, step).expect_err("no model");
        (failure.code, failure.to_string())
    }

    #[test]
    fn a_folder_without_a_model_is_named_with_what_it_lacks() {
        let parent = tempfile::tempdir().expect("a folder");
        let (code, text) = refused(&parent.path().join("nowhere"), None);
        assert!(code == FailureCode::NotFound && text.contains("is not there"), "{text}");
        let (code, text) = refused(parent.path(), None);
        assert!(code == FailureCode::NotFound && text.contains("no config.json"), "{text}");
        fs::write(parent.path().join(CONFIG), "").expect("writable");
        let (code, text) = refused(parent.path(), None);
        assert!(code == FailureCode::WrongState && text.contains("left no model yet"), "{text}");
    }

    #[test]
    fn the_model_of_a_step_is_the_last_or_one_that_was_put_aside() {
        let parent = tempfile::tempdir().expect("a folder");
        let run = parent.path();
        let model = zbelastic_config::load_document("test", "[model]\npreset = \"tiny\"\n");
        let text = zbelastic_trainer::hf::config_json(&model.expect("legal").config.model);
        for name in [MODEL, "model-10"] {
            fs::create_dir(run.join(name)).expect("writable");
            fs::write(run.join(name).join(MODEL_CONFIG), &text).expect("writable");
        }
        fs::write(run.join(RUN), r#"{"steps":20}"#).expect("writable");
        let found = |step| SavedModel::open(run, step).expect("there").folder;
        assert_eq!(found(None), run.join(MODEL));
        assert_eq!(found(Some(20)), run.join(MODEL));
        assert_eq!(found(Some(10)), run.join("model-10"));
        let (code, text) = refused(run, Some(15));
        assert!(code == FailureCode::NotFound && text.contains("of steps 10, 20"), "{text}");
        let (code, text) = refused(&run.join(MODEL), Some(20));
        assert!(code == FailureCode::Usage && text.contains("not a run"), "{text}");
        fs::write(run.join(MODEL).join(MODEL_CONFIG), "{").expect("writable");
        assert_eq!(refused(run, None).0, FailureCode::Usage);
    }
}
