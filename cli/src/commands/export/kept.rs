//! A checkpoint in the folders of a run's processes, which do not run: an earlier one than the
//! model that the run left, or the last of a run that was killed before it left one.

use zbelastic_checkpoint::Manifest;
use zbelastic_config::load_recorded;
use zbelastic_kernels::HostFloats;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_trainer::model::{LayerSpec, ModelConfig, model_layers};
use zbelastic_types::LayerId;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::card::{RunRecord, TrainedData};
use super::kept_checkpoints::{KeptCheckpointError, KeptCheckpoints, node_folders};
use crate::commands::saved_model::{LeftRun, steps_there};
use crate::run_files::CLUSTER;

/// A checkpoint of a run folder, and the stores that it lies in.
pub struct KeptModel {
    kept: KeptCheckpoints,
    manifest: Manifest,
    layers: Vec<LayerSpec>,
    /// The model that it is of.
    pub config: ModelConfig,
    /// The run, as the checkpoint records it.
    pub run: RunRecord,
}

impl KeptModel {
    /// The checkpoint of `step` of a run's processes, or the last one.
    ///
    /// # Errors
    /// If they run, there is no such checkpoint, or it cannot be read.
    pub fn find(run: &LeftRun, step: Option<u64>) -> Result<Self, CommandFailure> {
        let cluster = run.folder.join(CLUSTER);
        let folders = node_folders(&cluster).map_err(|error| failure(&error))?;
        let locks = folders.iter().map(NodeDataFolder::hold).collect::<Result<Vec<_>, _>>();
        let locks = locks.map_err(|error| under_way(run, error))?;
        let kept = KeptCheckpoints::open(&folders, locks).map_err(|error| failure(&error))?;
        let manifest = kept.find(step).cloned().ok_or_else(|| no_step(run, step, &kept.steps()))?;
        let config = load_recorded(&run.folder.display().to_string(), &run.document)?.config;
        let data = match config.tokens.stores.is_empty() {
            true => TrainedData::Text(manifest.data.to_string()),
            false => TrainedData::Stores(manifest.data.to_string()),
        };
        let config = config.model;
        check_layers(&config, &manifest)?;
        let record = RunRecord {
            name: super::name_of(&run.folder),
            steps: Some(manifest.version.version.0),
            state_digest: KeptCheckpoints::digest(&manifest).map(|digest| digest.to_string()),
            layer_digests: manifest.layers.iter().map(|name| name.digest.to_string()).collect(),
            data: Some(data),
            document: run.document.clone(),
        };
        Ok(Self { kept, manifest, layers: model_layers(&config), config, run: record })
    }

    /// The weights of a layer.
    ///
    /// # Errors
    /// If it is in no store, or damaged in all.
    pub fn weights(&self, layer: LayerId) -> Result<HostFloats, CommandFailure> {
        let index = layer.0 as usize;
        let len = self.layers[index].len();
        let read = self.kept.weights(self.manifest.layers[index], len);
        read.map_err(|error| failure(&error))
    }
}

fn check_layers(config: &ModelConfig, manifest: &Manifest) -> Result<(), CommandFailure> {
    let expected = config.layer_count();
    let found = manifest.layers.len();
    if found == expected as usize {
        return Ok(());
    }
    let what = format!(
        "checkpoint {} has {found} layers, the model of config.toml {expected}",
        manifest.version
    );
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

fn failure(error: &KeptCheckpointError) -> CommandFailure {
    let code = match error {
        KeptCheckpointError::Folder { .. } | KeptCheckpointError::Open(_) => {
            FailureCode::WrongState
        }
        KeptCheckpointError::Store(_)
        | KeptCheckpointError::Absent { .. }
        | KeptCheckpointError::Image { .. }
        | KeptCheckpointError::Digest { .. } => FailureCode::VerificationFailed,
    };
    let mut failure = CommandFailure::new(code, "the checkpoint cannot be read");
    failure.details = vec![FailureDetail::new(error.to_string())];
    failure
}

fn under_way(run: &LeftRun, held: CommandFailure) -> CommandFailure {
    let what = format!("the run in {} is under way", run.folder.display());
    let detail = FailureDetail::new(held.what);
    let detail =
        detail.hint("wait for its end; or end it with Ctrl-C, and the same command goes on");
    CommandFailure { code: FailureCode::WrongState, what, details: vec![detail] }
}

fn no_step(run: &LeftRun, step: Option<u64>, steps: &[u64]) -> CommandFailure {
    let folder = run.folder.display();
    let what = match step {
        Some(step) => format!("{folder} keeps no checkpoint of step {step}"),
        None => format!("the run in {folder} was ended before its first checkpoint"),
    };
    let detail = FailureDetail::new(steps_there(steps)).at("--step");
    let hint =
        "checkpoint.keep_last says how many are kept, and checkpoint.every how often there is one";
    CommandFailure { code: FailureCode::NotFound, what, details: vec![detail.hint(hint)] }
}
