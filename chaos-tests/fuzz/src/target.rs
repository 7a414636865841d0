//! The readers that are tried, by name.

use std::path::{Path, PathBuf};

use crate::memory::peak_bytes;
use crate::outcome::DecodeOutcome;
use crate::targets::{
    certificates, chaos, checkpoint, consensus, data, node, page, schedule, tokenizer, trainer,
    transport,
};

/// Bytes that any reader may allocate for its own purposes: buffers, tables, a runtime.
const MEMORY: usize = 4 << 20;
/// Bytes of memory that a byte of input may become: a letter of TOML or JSON becomes a node of a
/// tree, and a complaint with the place where it stands.
const GROWTH: usize = 1 << 10;

/// A target as it is tried.
struct TargetSpec {
    name: &'static str,
    run: fn(&[u8]) -> DecodeOutcome,
    /// Bytes of memory for an input without a byte.
    memory: usize,
}

const fn spec(name: &'static str, run: fn(&[u8]) -> DecodeOutcome) -> TargetSpec {
    TargetSpec { name, run, memory: MEMORY }
}

/// The same for a form that lets a few bytes name much.
const fn large(memory: usize, spec: TargetSpec) -> TargetSpec {
    TargetSpec { memory, ..spec }
}

macro_rules! targets {
    ($($(#[$doc:meta])* $target:ident => $spec:expr,)+) => {
        /// A decoder, parser or importer of the product, and the properties that must hold of it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Target {
            $($(#[$doc])* $target,)+
        }

        impl Target {
            /// All targets, in the order of this list.
            pub const ALL: [Self; [$(Self::$target),+].len()] = [$(Self::$target),+];

            const fn spec(self) -> TargetSpec {
                match self {
                    $(Self::$target => $spec,)+
                }
            }
        }
    };
}

targets! {
    /// Frames of the tensor lane, from a stream.
    Frames => spec("frames", transport::frames),
    /// Messages of the control lane, from a stream.
    Control => spec("control", transport::control),
    /// The first words of two members.
    Hellos => spec("hellos", transport::hellos),
    /// Questions for bodies, as a holder reads them.
    BulkQuestions => spec("bulk-questions", transport::bulk_questions),
    /// Offers of a same-host socket.
    LocalOffers => spec("local-offers", transport::local_offers),
    /// Requests of nodes that join.
    JoinRequests => spec("join-requests", transport::join_requests),
    /// Answers to nodes that join.
    JoinAnswers => spec("join-answers", transport::join_answers),
    /// Tokens as people type them.
    Tokens => spec("tokens", transport::tokens),
    /// Names of members, roles and nodes as texts.
    Names => spec("names", transport::names),
    /// Certificates and keys in DER.
    Certificates => spec("certificates", certificates::certificates),
    /// Signing requests in DER.
    SigningRequests => spec("signing-requests", certificates::signing_requests),
    /// The authority that a controller is sent.
    Authorities => spec("authorities", certificates::authorities),
    /// Keys and certificates in PEM, as a folder holds them.
    IdentityFolders => spec("identity-folders", certificates::identity_folders),
    /// Messages of the protocol.
    Envelopes => spec("envelopes", consensus::envelopes),
    /// Entries of the log, applied one after another.
    Entries => spec("entries", consensus::entries),
    /// Snapshots of the replicated state.
    Snapshots => spec("snapshots", consensus::snapshots),
    /// Messages of Raft, handled one after another.
    RaftMessages => spec("raft-messages", consensus::raft_messages),
    /// Records of a controller's log.
    LogRecords => spec("log-records", consensus::log_records),
    /// The state that a start derives from such records.
    Logs => spec("logs", consensus::logs),
    /// Schedule programs in their text form.
    Programs => large(schedule::PROGRAM_MEMORY, spec("programs", schedule::programs)),
    /// Programs as they travel.
    PackedPrograms =>
        large(schedule::PROGRAM_MEMORY, spec("packed-programs", schedule::packed_programs)),
    /// Asynchronous programs as text.
    AsyncPrograms =>
        large(schedule::PROGRAM_MEMORY, spec("async-programs", schedule::async_programs)),
    /// Schedules in PyTorch's form.
    PytorchSchedules => spec("pytorch-schedules", schedule::pytorch_schedules),
    /// Layers as they travel and as pieces of checkpoints.
    Layers => spec("layers", trainer::layers),
    /// Model configurations in the form of `config.json`.
    ModelConfigs => large(trainer::MODEL_MEMORY, spec("model-configs", trainer::model_configs)),
    /// Weights of a given model in safetensors' form.
    Safetensors => spec("safetensors", trainer::safetensors),
    /// Indexes of weights in several files.
    ShardIndexes => spec("shard-indexes", trainer::shard_indexes),
    /// Weights with the `config.json` beside them.
    Imports => large(trainer::MODEL_MEMORY, spec("imports", trainer::imports)),
    /// Adapters' configurations in PEFT's form.
    AdapterConfigs => spec("adapter-configs", trainer::adapter_configs),
    /// Adapters of a given model in PEFT's form.
    Adapters => spec("adapters", trainer::adapters),
    /// The corruptions on purpose.
    Injections => spec("injections", trainer::injections),
    /// Manifests in a store's index.
    Manifests => spec("manifests", checkpoint::manifests),
    /// Checkpoints of a mirror, as a bucket has them.
    MirrorCheckpoints => spec("mirror-checkpoints", checkpoint::mirror_checkpoints),
    /// Documents in the manifests that a cluster is recovered from.
    CheckpointDocuments => spec("checkpoint-documents", node::checkpoint_documents),
    /// Records of pieces in a store's index.
    PieceRecords => spec("piece-records", checkpoint::piece_records),
    /// Names of a chunk in the store.
    ChunkNames => spec("chunk-names", checkpoint::chunk_names),
    /// Lists of the hashes of a text's chunks, as a peer sends them.
    ChunkLists => spec("chunk-lists", checkpoint::chunk_lists),
    /// Heads of the objects that islands exchange.
    IslandHeads => spec("island-heads", checkpoint::island_heads),
    /// `VERSION` of a data folder.
    FolderVersions => spec("folder-versions", checkpoint::folder_versions),
    /// Requests that browsers send to the server of the page, over one connection.
    PageRequests => spec("page-requests", page::page_requests),
    /// Traces of steps, as the page reads them from a node.
    LaneTraces => spec("lane-traces", page::lane_traces),
    /// Requests that people send to the API of a node.
    ApiRequests => spec("api-requests", node::api_requests),
    /// Answers that people get from it.
    ApiAnswers => spec("api-answers", node::api_answers),
    /// Messages of nodes beside the protocol: requests and events.
    NodeMessages => spec("node-messages", node::node_messages),
    /// Heads of workers' frames, and pieces that are joined.
    WorkerFrames => spec("worker-frames", node::worker_frames),
    /// JSON documents that describe a job.
    JobDocuments => spec("job-documents", node::job_documents),
    /// Training configurations in TOML.
    Configurations => large(trainer::MODEL_MEMORY, spec("configurations", node::configurations)),
    /// Machine descriptions in TOML.
    Machines => spec("machines", node::machines),
    /// Values of command-line flags.
    Flags => spec("flags", node::flags),
    /// `node.json` and `cluster.json`.
    NodeFiles => spec("node-files", node::node_files),
    /// Lines of a node's `events.jsonl`.
    EventLines => spec("event-lines", chaos::event_lines),
    /// Traces of machines that come and go.
    Traces => spec("traces", chaos::traces),
    /// JSON files of a simulated life.
    Cases => spec("cases", chaos::cases),
    /// Text files of a corpus.
    Texts => large(data::SOURCE_MEMORY, spec("texts", data::texts)),
    /// Lines of JSON.
    JsonLines => large(data::SOURCE_MEMORY, spec("json-lines", data::json_lines)),
    /// Lines that gzip compressed.
    GzipLines => large(data::SOURCE_MEMORY, spec("gzip-lines", data::gzip_lines)),
    /// Lines that zstd compressed.
    ZstdLines => large(data::SOURCE_MEMORY, spec("zstd-lines", data::zstd_lines)),
    /// Rows of Parquet files.
    ParquetRows => large(data::SOURCE_MEMORY, spec("parquet-rows", data::parquet_rows)),
    /// Ids as nanoGPT and llm.c store them.
    TokenFiles => spec("token-files", data::token_files),
    /// Manifests of token stores.
    StoreManifests => spec("store-manifests", data::store_manifests),
    /// Shards of token stores.
    Shards => spec("shards", data::shards),
    /// Journals of token stores that are not finished.
    Journals => spec("journals", data::journals),
    /// `tokenizer.json` with its `tokenizer_config.json`.
    Tokenizers => large(tokenizer::TOKENIZER_MEMORY, spec("tokenizers", tokenizer::tokenizers)),
    /// Chat templates.
    ChatTemplates =>
        large(tokenizer::TEMPLATE_MEMORY, spec("chat-templates", tokenizer::templates)),
    /// Lines of chat data.
    Chats => spec("chats", tokenizer::chats),
}

impl Target {
    /// Its name, and its folder in `corpus/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Folder of the target's inputs.
    #[must_use]
    pub fn corpus(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name())
    }

    /// Gives `bytes` to the reader.
    ///
    /// # Panics
    /// If something does not hold that must.
    pub fn check(self, bytes: &[u8]) -> DecodeOutcome {
        let TargetSpec { name, run, memory } = self.spec();
        let (outcome, found) = peak_bytes(|| run(bytes));
        let most = memory + GROWTH * bytes.len();
        assert!(
            found <= most,
            "{name}: {found} bytes of memory for {}, at most {most}",
            bytes.len()
        );
        outcome
    }
}
