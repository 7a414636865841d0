//! The token stores of a job: all that names their bytes travels with the job's document, and the
//! shards are data of their own.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments};
use zbelastic_data::store::StoreManifest;
use zbelastic_data::window::Packing;
use zbelastic_policy::data::DataName;
use zbelastic_types::{Digest, NodeId, StageIndex};

/// A token store of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStore {
    /// Its sequences, compared with those of the others.
    pub weight: NonZeroU32,
    /// Its content: shards with their hashes, ids and documents.
    pub manifest: StoreManifest,
}

impl JobStore {
    /// The hash and length of each shard, in order.
    pub fn shards(&self) -> impl Iterator<Item = DataName> {
        let records = self.manifest.shards.iter().zip(self.manifest.shard_bytes());
        records.map(|(record, length)| DataName { hash: Digest(*record.hash.as_bytes()), length })
    }
}

/// The name of what is trained on: stores, their weights, and how windows are packed of them. Its
/// length is that of all shards.
#[must_use]
pub fn stores_name(stores: &[JobStore], packing: Packing) -> DataName {
    let mut bytes = format!("{packing:?}\n").into_bytes();
    for store in stores {
        bytes.extend(store.weight.get().to_le_bytes());
        bytes.extend(store.manifest.hash().as_bytes());
    }
    let length = stores.iter().flat_map(JobStore::shards).map(|shard| shard.length).sum();
    DataName { length, ..DataName::of(&bytes) }
}

/// The hash of the tokenizer that made stores, which is one for all of them; without stores that of bytes,
/// as which a text is read.
#[must_use]
pub fn tokenizer_of(stores: &[JobStore]) -> Digest {
    let of_stores = stores.first().map(|store| store.manifest.tokenizer);
    let hash = of_stores.unwrap_or_else(|| BytesEncoder.tokenizer_hash().0);
    Digest(*hash.as_bytes())
}

/// Whether a node's stage of a plan reads tokens: the first chunk embeds them, the last compares its
/// logits with them, and where documents do not see each other, all attention depends on where they
/// begin.
#[must_use]
pub fn reads_tokens(plan: &PlanRecord, me: NodeId, packing: Packing) -> bool {
    let stages = (0..).map(StageIndex).zip(&plan.stages);
    let mut own = stages.filter(|(_, holder)| holder.node == me);
    let placement = &plan.program.placement;
    own.any(|(stage, _)| match packing {
        Packing::Documents => true,
        Packing::Concat => placement
            .chunks_of(stage)
            .any(|chunk| placement.is_first(chunk) || placement.is_last(chunk)),
    })
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;
    use zbelastic_data::source::SourceCounts;
    use zbelastic_data::store::ShardRecord;

    use super::*;
    use crate::document::{DocumentError, JobDocument, STORES_DOCUMENT_VERSION};

    fn manifest(vocabulary: u32, shards: Vec<ShardRecord>) -> StoreManifest {
        let tokenizer = BytesEncoder.tokenizer_hash().0;
        let sources = SourceCounts::default();
        StoreManifest { version: 1, tokenizer, vocabulary, end_of_text: None, sources, shards }
    }

    /// A store of shards with these contents.
    fn store(vocabulary: u32, shards: &[u32]) -> JobStore {
        let record = |content: &u32| ShardRecord {
            tokens: 1000,
            documents: 10,
            has_loss_mask: false,
            // Any hash that is another one for each content.
            hash: manifest(content + 1, Vec::new()).hash(),
        };
        let manifest = manifest(vocabulary, shards.iter().map(record).collect());
        JobStore { weight: NonZeroU32::MIN, manifest }
    }

    fn job(stores: Vec<JobStore>) -> JobDocument {
        let toml = "[model]\npreset = \"tiny\"\n";
        let config = load_document("test", toml).expect("legal").config;
        JobDocument::over_stores("test".to_owned(), config, toml.to_owned(), stores)
    }

    #[test]
    fn a_document_names_every_shard_once_and_reads_back() {
        let two = job(vec![store(300, &[1, 2]), store(300, &[2])]);
        let again = JobDocument::decode(&two.encode().expect("short")).expect("whole");
        assert_eq!((&again, again.version), (&two, STORES_DOCUMENT_VERSION));
        let mut names: Vec<DataName> = store(300, &[1, 2]).shards().collect();
        names.sort_unstable();
        assert_eq!(two.data(), names);
        assert_eq!(two.text.length, 3 * 2040);
        let other = job(vec![store(300, &[2]), store(300, &[1, 2])]);
        assert_ne!(two.text, other.text, "their order is that of the mixture");
    }

    #[test]
    fn the_tokenizer_of_a_job_is_that_of_its_stores_or_bytes() {
        let mut other = store(300, &[1]);
        other.manifest.tokenizer = other.manifest.hash();
        let expected = Digest(*other.manifest.tokenizer.as_bytes());
        assert_eq!(tokenizer_of(&[other]), expected);
        assert_eq!(tokenizer_of(&[]), tokenizer_of(&[store(300, &[1])]), "of bytes");
    }

    /// What an older program wrote, and what it must not misread.
    #[test]
    fn a_document_over_text_has_the_form_that_it_had() {
        let text = job(Vec::new());
        let text = JobDocument { version: 1, text: DataName::of(b"text"), ..text };
        let bytes = text.encode().expect("short");
        let json = String::from_utf8(bytes.clone()).expect("JSON");
        assert!(!json.contains("stores") && !json.contains("packing"), "{json}");
        assert_eq!(JobDocument::decode(&bytes).expect("whole"), text);
        assert_eq!(text.data(), [DataName::of(b"text")]);
    }

    #[test]
    fn stores_that_contradict_themselves_and_too_many_shards_are_refused() {
        let bytes = job(vec![store(0, &[1])]).encode().expect("short");
        assert!(matches!(JobDocument::decode(&bytes), Err(DocumentError::Store(_))));
        let names: Vec<u32> = (0..1000).collect();
        let error = job(vec![store(300, &names)]).encode().expect_err("too many");
        assert!(error.to_string().contains("--shard-tokens"), "{error}");
        assert!(job(vec![store(300, &names[..350])]).encode().is_ok());
    }
}
