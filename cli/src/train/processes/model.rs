//! The model that a run ends with: read out of its last checkpoint and written in a thread of its
//! own, as soon as that checkpoint is durable. Workers may evaluate held-out text for longer than
//! that lasts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use zbelastic_api::CheckpointDetail;
use zbelastic_api::client::ApiClient;
use zbelastic_kernels::HostFloats;
use zbelastic_machine::memory_available;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_trainer::hf::{SpecialTokenIds, layer_order};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_wording::{CommandFailure, FailureCode};

use super::connect;
use crate::commands::export::checkpoint::with_weights;
use crate::train::summary::sample_bytes;
use crate::train::trained_model::{trained_files, write_trained};

/// The last checkpoint, whose model the run folder holds.
#[derive(Debug)]
pub struct WrittenModel {
    /// The checkpoint, as the cluster describes it.
    pub detail: CheckpointDetail,
    /// Its weights, layer by layer, if there is memory for a sample of them.
    pub layers: Option<Vec<HostFloats>>,
}

/// Where a model is read from and written to.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// Address of a controller.
    pub address: String,
    /// The data folder with an administrator's certificate.
    pub controller: NodeDataFolder,
    /// Shape of the model that is written.
    pub model: ModelConfig,
    /// The special tokens that its `config.json` names.
    pub special_ids: SpecialTokenIds,
    /// Run folder that the model is written into.
    pub folder: PathBuf,
}

impl ModelSource {
    /// Writes the model of a step while its checkpoint is read.
    ///
    /// # Errors
    /// If there is no such checkpoint, it cannot be read whole, or the model cannot be written.
    pub fn write(
        &self,
        step: u64,
        client: &mut ApiClient<'_>,
    ) -> Result<WrittenModel, CommandFailure> {
        let detail = client.checkpoint(step)?;
        let connect = || connect(&self.controller, self.address.clone());
        let order = layer_order(trained_files(&self.model).files());
        let needed = sample_bytes(&self.model);
        let has_room = memory_available().is_none_or(|available| needed <= available);
        let mut kept = has_room.then(BTreeMap::new);
        with_weights(&detail, &self.model, &order, connect, |layers| {
            let described = (&self.model, &self.special_ids);
            write_trained(&self.folder, described, &mut |layer| {
                let weights = layers(layer)?;
                if let Some(kept) = &mut kept {
                    kept.insert(layer, weights.clone());
                }
                Ok(weights)
            })
        })?;
        Ok(WrittenModel { detail, layers: kept.map(|kept| kept.into_values().collect()) })
    }
}

/// Writes the model while the run still waits for other results.
#[derive(Debug)]
pub struct ModelWriter {
    source: ModelSource,
    begun: Option<(u64, JoinHandle<Result<WrittenModel, CommandFailure>>)>,
}

impl ModelWriter {
    /// Nothing is written before [`Self::begin`].
    #[must_use]
    pub const fn new(source: ModelSource) -> Self {
        Self { source, begun: None }
    }

    /// Begins to write the model: the checkpoint of the last step is durable. A second call changes
    /// nothing.
    pub fn begin(&mut self, step: u64) {
        if self.begun.as_ref().is_some_and(|(begun, _)| *begun == step) {
            return;
        }
        let source = self.source.clone();
        let write = move || {
            let mut client = connect(&source.controller, source.address.clone())?;
            source.write(step, &mut client)
        };
        // Without a thread it is written at the end.
        let spawned = thread::Builder::new().name("model".to_owned()).spawn(write);
        self.begun = spawned.ok().map(|thread| (step, thread));
    }

    /// The model written of a step. If that failed, as it does when a controller ends meanwhile, it
    /// is tried once more here.
    ///
    /// # Errors
    /// As [`ModelSource::write`].
    pub fn finish(
        self,
        step: u64,
        client: &mut ApiClient<'_>,
    ) -> Result<WrittenModel, CommandFailure> {
        let Self { source, begun } = self;
        match begun.filter(|(begun, _)| *begun == step).map(|(_, thread)| thread.join()) {
            Some(Ok(Ok(written))) => Ok(written),
            Some(Err(_)) => Err(CommandFailure::new(
                FailureCode::Internal,
                "the thread that writes the model panicked",
            )),
            Some(Ok(Err(_))) | None => source.write(step, client),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::scripted;
    use zbelastic_api::{ApiAnswer, ApiRefusal, ResourceKind};
    use zbelastic_config::load_document;

    #[test]
    fn what_could_not_be_written_beside_is_tried_once_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let model =
            load_document("test", "[model]\npreset = \"tiny\"\n").expect("legal").config.model;
        let source = ModelSource {
            address: "127.0.0.1:1".to_owned(),
            controller: NodeDataFolder::new(folder.path().join("nobody")),
            model,
            special_ids: SpecialTokenIds::default(),
            folder: folder.path().to_owned(),
        };
        let mut writer = ModelWriter::new(source);
        writer.begin(3);
        writer.begin(3);
        let refusal =
            ApiRefusal::NotFound { thing: ResourceKind::Checkpoint, name: "3".to_owned() };
        let (mut client, requests) = scripted(vec![Ok(ApiAnswer::Refused(refusal))]);
        let failure = writer.finish(3, &mut client).expect_err("there is none");
        assert_eq!(failure.code, FailureCode::NotFound, "{failure}");
        assert_eq!(requests.borrow().len(), 1, "what the thread asked went nowhere");
    }
}
