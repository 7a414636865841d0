//! The token stores of a run: opened, checked, and what is printed of them.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};
use zbelastic_config::{LoadedConfig, RunConfig, StoreShare};
use zbelastic_data::cursor::{CursorError, WindowCursor};
use zbelastic_data::mixture::StoreMixture;
use zbelastic_data::store::{StoreManifest, TokenStore, shard_name};
use zbelastic_data::window::Packing;
use zbelastic_wire::job_store::{JobStore, stores_name};
use zbelastic_wording::figures::{counted, grouped};
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::blob::Blob;
use crate::data_failure;
use crate::run_tokenizer::RunTokenizer;

/// Stores of a run, for the heading and the run folder.
#[derive(Clone, Debug, PartialEq)]
pub struct StoresSummary {
    /// The stores, in the order of the configuration.
    pub stores: Vec<StoreSummary>,
    /// Whether the documents of a window see each other.
    pub packing: Packing,
    /// Windows that are trained on in an epoch of each store.
    pub training_windows: u64,
    /// Windows that are held out.
    pub held_out_windows: u64,
}

/// A store of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSummary {
    /// Its folder and weight.
    pub share: StoreShare,
    /// Its content.
    pub manifest: StoreManifest,
    /// How often the run reads it.
    pub epochs: f64,
}

/// The stores of a run, ready to be read.
pub struct LoadedStores {
    /// What is read of them.
    pub mixture: StoreMixture,
    /// Summary for the heading and the run folder.
    pub about: StoresSummary,
    /// The tokenizer of their tokens.
    pub tokenizer: RunTokenizer,
}

/// Opens the stores that `loaded` names, and verifies every shard.
///
/// # Errors
/// If one is damaged, or they cannot be trained on.
pub fn load_stores(loaded: &LoadedConfig) -> Result<LoadedStores, CommandFailure> {
    let config = &loaded.config;
    let mut stores = Vec::new();
    for share in &config.tokens.stores {
        let store = TokenStore::open(&share.folder);
        let store = store.and_then(|store| store.verify().map(|()| store));
        stores.push(store.map_err(|error| data_failure::of_store(&error))?);
    }
    let shares = config.tokens.stores.iter().zip(&stores);
    let weighted = shares.clone().map(|(share, store)| (store.manifest(), share.weight));
    let mixture = StoreMixture::new(weighted, config.tokens.packing, &config.cursor());
    let mixture = mixture.map_err(|error| mixture_failure(&error, config))?;
    let about = summary(config, shares, mixture.cursor());
    let tokenizer = match stores.first() {
        Some(store) => RunTokenizer::of_store(store.manifest(), config)?,
        None => RunTokenizer::Bytes,
    };
    mixture.provide(stores);
    Ok(LoadedStores { mixture, about, tokenizer })
}

fn summary<'a>(
    config: &RunConfig,
    shares: impl Iterator<Item = (&'a StoreShare, &'a TokenStore)>,
    cursor: &WindowCursor,
) -> StoresSummary {
    let batch = &config.batch;
    let sequences = batch.microbatch.sequences as f64 * f64::from(batch.microbatch_count);
    let all = config.steps as f64 * sequences;
    let weights: u64 = config.tokens.stores.iter().map(|share| u64::from(share.weight.get())).sum();
    let store = |(index, (share, store)): (usize, (&StoreShare, &TokenStore))| StoreSummary {
        share: share.clone(),
        manifest: store.manifest().clone(),
        epochs: all * f64::from(share.weight.get())
            / weights as f64
            / cursor.training_windows(index) as f64,
    };
    let stores: Vec<_> = shares.enumerate().map(store).collect();
    StoresSummary {
        training_windows: (0..stores.len()).map(|index| cursor.training_windows(index)).sum(),
        held_out_windows: cursor.held_out_windows(),
        packing: config.tokens.packing,
        stores,
    }
}

fn mixture_failure(error: &CursorError, config: &RunConfig) -> CommandFailure {
    let detail = FailureDetail::new(format!("data.tokens: {error}"));
    let detail = match error {
        CursorError::Short { source_index, .. } => detail
            .at(config.tokens.stores[*source_index].folder.display().to_string())
            .hint("more text, a smaller train.seq_len or a smaller data.held_out"),
        CursorError::Weights { .. } => detail.hint("weights such as 3 and 1"),
        CursorError::Sources { .. } | CursorError::Shape => detail,
    };
    CommandFailure::usage("the mixture of token stores", vec![detail])
}

impl StoresSummary {
    /// The stores as the document of a job names them.
    pub fn job_stores(&self) -> Vec<JobStore> {
        let store = |store: &StoreSummary| JobStore {
            weight: store.share.weight,
            manifest: store.manifest.clone(),
        };
        self.stores.iter().map(store).collect()
    }

    /// Their shards, in files.
    pub fn blobs(&self) -> Vec<Blob> {
        let of_store = |(store, job): (&StoreSummary, JobStore)| {
            let path = |index| -> PathBuf { store.share.folder.join(shard_name(index)) };
            let shards = job.shards().enumerate();
            shards
                .map(|(index, name)| Blob::of_file("shard", name, path(index)))
                .collect::<Vec<_>>()
        };
        self.stores.iter().zip(self.job_stores()).flat_map(of_store).collect()
    }

    /// The stores as `run.json` has them.
    pub fn json(&self) -> Value {
        let store = |store: &StoreSummary| {
            let StoreSummary { share, manifest, epochs } = store;
            json!({
                "folder": share.folder, "weight": share.weight, "tokens": manifest.tokens(),
                "documents": manifest.documents(), "blake3": manifest.hash().to_string(),
                "tokenizer": manifest.tokenizer.to_string(), "epochs": epochs,
            })
        };
        let name = stores_name(&self.job_stores(), self.packing).hash.to_string();
        let packing = match self.packing {
            Packing::Concat => "concat",
            Packing::Documents => "documents",
        };
        json!({
            "blake3": name, "packing": packing,
            "stores": self.stores.iter().map(store).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for StoresSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manifests = || self.stores.iter().map(|store| &store.manifest);
        let tokens = grouped(manifests().map(StoreManifest::tokens).sum());
        let documents = counted(manifests().map(StoreManifest::documents).sum(), "document");
        write!(f, "{tokens} tokens in {documents} of ")?;
        let name =
            |store: &StoreSummary| format!("{} ({:.2} epochs)", store.share.entry(), store.epochs);
        let names: Vec<String> = self.stores.iter().map(name).collect();
        write!(f, "{}", names.join(", "))?;
        match self.packing {
            Packing::Concat => Ok(()),
            Packing::Documents => write!(f, ", documents apart"),
        }
    }
}
