//! Inputs that readers accept, from which a search begins: at least one for each target. They are
//! made by the program itself, so they are of its present forms, independently of the files in
//! `corpus/`. Keys and certificates are drawn; everything else is the same at every run.

mod consensus;
mod corpora;
mod files;
mod messages;
mod programs;

use crate::Target;

impl Target {
    /// Inputs that its reader accepts.
    ///
    /// # Panics
    /// If an input that the program makes is refused where it is made.
    #[must_use]
    pub fn seeds(self) -> Vec<Vec<u8>> {
        match self {
            Self::Frames => messages::frames(),
            Self::Control => messages::control(),
            Self::Hellos => messages::hellos(),
            Self::BulkQuestions => messages::bulk_questions(),
            Self::LocalOffers => vec![messages::local_offer()],
            Self::JoinRequests => vec![messages::join_request()],
            Self::JoinAnswers => messages::join_answers(),
            Self::Tokens => messages::tokens(),
            Self::Names => {
                texts(&["zbe://000000000000000000000000deadbeef/worker/2", "worker", "gpu-7"])
            }
            Self::Certificates => messages::certificates(),
            Self::SigningRequests => vec![messages::signing_request()],
            Self::Authorities => vec![messages::authority()],
            Self::IdentityFolders => vec![messages::identity_folder()],
            Self::Envelopes => consensus::envelopes(),
            Self::Entries => consensus::entries(),
            Self::Snapshots => consensus::snapshots(),
            Self::RaftMessages => vec![consensus::raft_messages()],
            Self::LogRecords => consensus::log_records(),
            Self::Logs => vec![consensus::log()],
            Self::Programs => programs::programs(),
            Self::PackedPrograms => programs::packed_programs(),
            Self::AsyncPrograms => programs::async_programs(),
            Self::PytorchSchedules => programs::pytorch_schedules(),
            Self::Layers => files::layers(),
            Self::ModelConfigs => files::model_configs(),
            Self::Safetensors => vec![files::safetensors()],
            Self::ShardIndexes => texts(&files::SHARD_INDEXES),
            Self::Imports => vec![files::import()],
            Self::AdapterConfigs => files::adapter_configs(),
            Self::Adapters => vec![files::adapters()],
            Self::Injections => texts(&[
                "step=7,tensor=layers.2.mlp.up,value=nan",
                "step=1,tensor=a,value=bit=30,attempts=2",
                "value=x1000,tensor=head.weight,step=3",
            ]),
            Self::Manifests => vec![files::manifest()],
            Self::MirrorCheckpoints => vec![files::mirror_checkpoint()],
            Self::CheckpointDocuments => files::checkpoint_documents(),
            Self::PieceRecords => files::piece_records(),
            Self::ChunkNames => vec!["0123456789abcdef".repeat(4).into_bytes()],
            Self::ChunkLists => files::chunk_lists(),
            Self::IslandHeads => files::island_heads(),
            Self::FolderVersions => texts(&[
                "zbelastic-data 1 0.1.0 0.1.0\n",
                "zbelastic-data 1 0.1.0 0.1.0 4ec5202a\n",
            ]),
            Self::PageRequests => messages::page_requests(),
            Self::LaneTraces => texts(&[messages::LANE_TRACE]),
            Self::ApiRequests => messages::api_requests(),
            Self::ApiAnswers => messages::api_answers(),
            Self::NodeMessages => messages::node_messages(),
            Self::WorkerFrames => vec![messages::worker_frames()],
            Self::JobDocuments => vec![files::job_document()],
            Self::Configurations => files::configurations(),
            Self::Machines => texts(&[files::MACHINES]),
            Self::Flags => texts(&[
                "10.0.0.4:7000,[::1]:7001,gpu-7.example:7002",
                "cuda:0,cuda:1",
                "1h30m",
                "http://169.254.169.254/",
                "[0.9, \"a\", true, 1_000]",
                "auto",
            ]),
            Self::NodeFiles => files::node_files(),
            Self::EventLines => vec![files::EVENT_LINES.as_bytes().to_vec()],
            Self::Traces => texts(&files::TRACES),
            Self::Cases => vec![files::CASE.as_bytes().to_vec()],
            Self::Texts => corpora::plain_texts(),
            Self::JsonLines => corpora::json_lines(),
            Self::GzipLines => corpora::gzip_lines(),
            Self::ZstdLines => corpora::zstd_lines(),
            Self::ParquetRows => corpora::parquet_rows(),
            Self::TokenFiles => corpora::token_files(),
            Self::StoreManifests => corpora::store_manifests(),
            Self::Shards => corpora::shards(),
            Self::Journals => corpora::journals(),
            Self::Tokenizers => corpora::tokenizers(),
            Self::ChatTemplates => corpora::templates(),
            Self::Chats => corpora::chats(),
        }
    }
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
