//! The keys there are: name, kind, default and meaning of each, in one table.
//!
//! Defaults, refusals, suggestions, `config schema` and the effective configuration all come from
//! here. A key's documentation is its meaning as `config schema` prints it.

use zbelastic_consensus::checkpoint::CHECKPOINTS_MAX;
use zbelastic_consensus::job::{CHECKPOINT_EVERY_MAX, COPIES_MAX, STAGES_MAX};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_data::window::Packing;
use zbelastic_policy::tick::{HEARTBEAT_MS, HEARTBEATS_LEAST};
use zbelastic_schedule::TEXT_COUNT_MAX;
use zbelastic_trainer::model::{AttentionBias, Family, LoraInit, LoraScaling};
use zbelastic_trainer::optimizer::{LrDecay, WeightDecayScope};
use zbelastic_trainer::outer::ISLANDS_MAX;
use zbelastic_trainer::plan::{LaneCount, ReplicaCount, SliceBalance};

use super::kind::{NumberRange, ValueKind};
use super::words::{OptimizerChoice, PresetName, RopeScalingKind, words};
use super::{
    DeviceChoice, NoticePolicy, OffloadMode, OffloadStore, PipeDreamSync, PrecisionChoice,
    RECOMPUTE_OPS, RecomputeMode, RecomputePasses, ReplanPolicy, ScheduleChoice, WindowChoice,
};

/// The value of a key where no layer sets it.
#[derive(Clone, Copy, Debug)]
pub enum KeyDefault {
    /// A default value, written in TOML.
    Literal(&'static str),
    /// None, or a value that follows from other keys; described in words.
    Described(&'static str),
}

/// The description of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// Section and name, as in `train.steps`.
    pub name: &'static str,
    /// The kind of value that may stand there.
    pub kind: ValueKind,
    /// The value of the key where no layer sets it.
    pub fallback: KeyDefault,
    /// The key's meaning, in one sentence.
    pub doc: &'static str,
}

macro_rules! keys {
    ($(#[doc = $doc:literal] $key:ident: $name:literal, $kind:expr, $fallback:expr;)*) => {
        /// A key of the configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Key {
            $(#[doc = $doc] $key,)*
        }

        impl Key {
            /// Every key, section by section.
            pub const ALL: &[Self] = &[$(Self::$key,)*];

            /// The description of the key.
            #[must_use]
            pub fn spec(self) -> KeySpec {
                match self {
                    $(Self::$key => KeySpec {
                        name: $name,
                        kind: $kind,
                        fallback: $fallback,
                        doc: $doc.trim_ascii(),
                    },)*
                }
            }
        }
    };
}

use KeyDefault::{Described, Literal};
use NumberRange::{AboveZero, BelowOne, FromZero, UpTo};
use ValueKind::{Count, Flag, Number, Pair, Size, Text, Texts, Time, Word, Words};

// Limits that no model or run comes near; they keep products of two sizes within 64 bits.
const LAYERS_MAX: u64 = 10_000;
const WIDTH_MAX: u64 = 1 << 20;
const HEADS_MAX: u64 = 1 << 16;
const VOCAB_MAX: u64 = 1 << 24;
const SEQUENCE_MAX: u64 = 1 << 20;
/// As many as a folder's configuration may have.
const POSITIONS_MAX: u64 = 1 << 24;
const STEPS_MAX: u64 = 1_000_000_000_000;
const RETRIES_MAX: u64 = 1000;
/// A batch of single sequences must not have more microbatches than a program may.
const BATCH_MAX: u64 = TEXT_COUNT_MAX as u64;
/// No model has more parts to deal out.
const CHUNKS_MAX: u64 = 2 * LAYERS_MAX + 2;
/// Each is a whole model.
const PIPELINES_MAX: u64 = 64;
/// Other nodes that a piece of a checkpoint is sent to.
const CHECKPOINT_COPIES_MAX: u64 = 2;
/// Other nodes that hold an update before it is sealed: a plan names one.
const UPDATE_COPIES_MAX: u64 = COPIES_MAX as u64;
/// A minute: a run that needs longer to gather its nodes should be started later.
const SETTLE_MS_MAX: u64 = 60_000;
/// A day: beyond that, checkpoints are spaced by steps.
const CHECKPOINT_TIME_MS_MAX: u64 = 86_400_000;
/// Below this, a busy machine is mistaken for a dead one.
const DETECT_MS_MIN: u64 = HEARTBEATS_LEAST * HEARTBEAT_MS;
/// A connection that is silent for so long is closed by transport, and that is a loss: a longer time
/// would not be heeded.
const DETECT_MS_MAX: u64 = 10_000;
/// Most of the text that may be held out.
const HELD_OUT_MAX: f64 = 0.9;

keys! {
    /// A model with its usual batch, by name; keys beside it override single values.
    Preset: "model.preset", Word(words::<PresetName>), Described("\"quickstart\" without a CONFIG, else none");
    /// A folder of Hugging Face's format, config.json and safetensors, to take shape and weights from.
    FromHf: "model.from_hf", Text, Described("none");
    /// The family: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary, SwiGLU).
    Family: "model.family", Word(words::<Family>), Described("the preset's");
    /// Transformer blocks, each with attention and MLP.
    Layers: "model.layers", Count(1, LAYERS_MAX), Described("the preset's");
    /// Width of the residual stream.
    Width: "model.width", Count(1, WIDTH_MAX), Described("the preset's");
    /// Query heads.
    Heads: "model.heads", Count(1, HEADS_MAX), Described("the preset's");
    /// Key and value heads; fewer than heads means grouped queries (llama only).
    KvHeads: "model.kv_heads", Count(1, HEADS_MAX), Described("heads");
    /// Width of a head; without it heads must divide width.
    HeadDim: "model.head_dim", Count(1, WIDTH_MAX), Described("width / heads");
    /// Width of the MLP's hidden layer.
    MlpWidth: "model.mlp_width", Count(1, WIDTH_MAX * 4),
        Described("gpt2: 4 * width; llama: 8/3 * width, up to a multiple of 32");
    /// Tokens the model knows; text read as bytes needs 256, and data.tokens its stores' vocabulary.
    Vocab: "model.vocab", Count(1, VOCAB_MAX), Literal("256");
    /// Added inside normalisations.
    NormEps: "model.norm_eps", Number(AboveZero), Literal("1e-5");
    /// Base of the rotary frequencies (llama only).
    RopeTheta: "model.rope_theta", Number(AboveZero), Literal("10000.0");
    /// Which projections of attention have biases: queries, keys and values, or the output too (llama).
    AttentionBias: "model.attention_bias", Word(words::<AttentionBias>), Literal("\"none\"");
    /// Whether the projections of the MLP have biases (llama only; gpt2 has all biases).
    MlpBias: "model.mlp_bias", Flag, Literal("false");
    /// Whether each head of queries and keys is normalised before it is rotated (llama only).
    QkNorm: "model.qk_norm", Flag, Literal("false");
    /// How rotary frequencies are scaled for longer sequences than those of the first training.
    RopeScaling: "model.rope_scaling", Word(words::<RopeScalingKind>), Literal("\"none\"");
    /// What frequencies are divided by; llama3 divides low ones only.
    RopeFactor: "model.rope_factor", Number(AboveZero), Literal("8.0");
    /// Turns in rope_original positions up to which llama3 divides, and from which it leaves alone.
    RopeBands: "model.rope_bands", Pair(AboveZero), Literal("[1.0, 4.0]");
    /// Positions of the first training, for llama3.
    RopeOriginal: "model.rope_original", Count(1, POSITIONS_MAX), Literal("8192");
    /// Keys that a query sees at most, its own included, counted back from it (llama only).
    SlidingWindow: "model.sliding_window", Count(1, POSITIONS_MAX), Described("none: all before it");
    /// Positions that the model is made for; gpt2 learns a row for each.
    Positions: "model.positions", Count(1, POSITIONS_MAX), Described("train.seq_len");
    /// Whether the head shares the token embedding.
    Tied: "model.tied", Flag, Literal("false");

    /// Files, folders and globs to train on, seen from the working folder; none: the built-in text.
    Text: "data.text", Texts, Literal("[]");
    /// Token stores to train on in place of text, each with a weight if it is not 1, as in "stores/a=3".
    Tokens: "data.tokens", Texts, Literal("[]");
    /// Of stores, whether the documents of a window see each other: concat, or not: documents.
    Packing: "data.packing", Word(words::<Packing>), Literal("\"concat\"");
    /// What makes tokens of data.text and text of samples: bytes, or a tokenizer.json or its folder.
    Tokenizer: "data.tokenizer", Text, Described("that of model.from_hf if it has a tokenizer.json, or \"bytes\"");
    /// Share of the text, from its end, that is never trained on but evaluated on.
    HeldOut: "data.held_out", Number(UpTo(HELD_OUT_MAX)), Literal("0.05");

    /// Optimizer steps of the run.
    Steps: "train.steps", Count(1, STEPS_MAX), Literal("300");
    /// Sequences in a step, all microbatches together.
    GlobalBatch: "train.global_batch", Count(1, BATCH_MAX), Literal("32");
    /// Sequences that pass through the pipeline together; must divide global_batch.
    Microbatch: "train.microbatch", Count(1, BATCH_MAX), Literal("4");
    /// Partial sums that a step's gradient is a binary tree of: a power of two that divides the microbatches.
    Lanes: "train.lanes", Count(1, LaneCount::MAX as u64), Literal("1");
    /// Tokens in a sequence.
    SeqLen: "train.seq_len", Count(1, SEQUENCE_MAX), Literal("128");
    /// What weights and the order of the text are drawn from.
    Seed: "train.seed", Count(0, u64::MAX), Literal("1");
    /// Evaluate on held-out text after every so many steps; 0: only after the last.
    EvalEvery: "train.eval_every", Count(0, STEPS_MAX), Literal("0");
    /// Weight of z-loss, the mean squared log of the softmax normalizer; the reported loss is without it.
    ZLoss: "train.z_loss", Number(FromZero), Literal("0.0");
    /// Tensors that are left as they are, by patterns over their names, as in "layers.0-7.attn".
    Freeze: "train.freeze", Texts, Literal("[]");
    /// What it computes on: processors or NVIDIA devices. Their bits differ.
    Device: "train.device", Word(words::<DeviceChoice>), Literal("\"cpu\"");
    /// The type of products' factors, and on NVIDIA devices of activations; sums and weights are f32 in any case.
    Precision: "train.precision", Word(words::<PrecisionChoice>), Literal("\"f32\"");

    /// Folder of adapters in PEFT's format that training goes on with; its configuration takes the place of the keys below.
    LoraFrom: "lora.from", Text, Described("none: they are drawn");
    /// Rows of the first matrix of each low-rank adapter, and columns of its second; all else is frozen.
    LoraRank: "lora.rank", Count(1, WIDTH_MAX), Described("none: no adapters");
    /// The product of an adapter's matrices is multiplied by this over the rank, or over its root.
    LoraAlpha: "lora.alpha", Number(AboveZero), Described("for a factor of 1: lora.rank, or its root with rslora");
    /// Over which of them: over the rank, or over its root as rsLoRA has it.
    LoraScaling: "lora.scaling", Word(words::<LoraScaling>), Literal("\"standard\"");
    /// Linear layers of blocks with an adapter, by the ends of their names in transformers, or all-linear.
    LoraTargets: "lora.targets", Texts,
        Described("PEFT's: [\"q_proj\", \"v_proj\"] of llama, [\"c_attn\"] of gpt2");
    /// What first matrices begin as, PEFT's default or its gaussian; second ones begin as zeros.
    LoraInit: "lora.init", Word(words::<LoraInit>), Literal("\"kaiming\"");

    /// AdamW for all, or Muon for the matrices of blocks and AdamW for the rest.
    Optimizer: "optimizer.kind", Word(words::<OptimizerChoice>), Literal("\"adamw\"");
    /// Learning rate after the warm-up.
    Lr: "optimizer.lr", Number(FromZero), Literal("1e-3");
    /// Learning rate that the decay ends at.
    LrMin: "optimizer.lr_min", Number(FromZero), Literal("0.0");
    /// Decay rates of the two moments.
    Betas: "optimizer.betas", Pair(BelowOne), Literal("[0.9, 0.95]");
    /// Decay rate of Muon's momentum.
    MuonMomentum: "optimizer.muon_momentum", Number(BelowOne), Literal("0.95");
    /// Added to the denominator of an update.
    Eps: "optimizer.eps", Number(AboveZero), Literal("1e-8");
    /// Decay of the weights, as a share of the learning rate.
    WeightDecay: "optimizer.weight_decay", Number(FromZero), Literal("0.1");
    /// What weight decay acts on: matrices and embeddings, or all tensors.
    DecayOn: "optimizer.decay_on", Word(words::<WeightDecayScope>), Literal("\"matrices\"");
    /// Rates of decay of single tensors, by patterns over their names, as in "layers.*.norm*=0"; the last that matches.
    DecayGroups: "optimizer.decay_groups", Texts, Literal("[]");
    /// Largest norm of the whole gradient; a larger one is scaled down to it; 0: never.
    Clip: "optimizer.clip", Number(FromZero), Literal("1.0");
    /// Steps in which the learning rate rises.
    Warmup: "optimizer.warmup", Count(0, STEPS_MAX), Literal("20");
    /// How the learning rate falls after the warm-up.
    Decay: "optimizer.decay", Word(words::<LrDecay>), Literal("\"cosine\"");
    /// With decay = "wsd": the last steps, in which the learning rate falls; 0: a tenth of all steps.
    DecaySteps: "optimizer.decay_steps", Count(0, STEPS_MAX), Literal("0");

    /// The pipeline schedule; auto takes the fastest that fits.
    Schedule: "schedule.kind", Word(words::<ScheduleChoice>), Literal("\"auto\"");
    /// Chunks a stage holds; 0: as many as the schedule has by itself. Others only where that is free.
    Chunks: "schedule.chunks", Count(0, CHUNKS_MAX), Literal("0");
    /// Pipelines side by side, each on workers of its own: a power of two, at most one for each lane; 0: chosen.
    Replicas: "schedule.replicas", Count(0, ReplicaCount::MAX as u64), Literal("0");
    /// Slices that seq1f1b cuts sequences into, a part of the arithmetic; 0: two.
    Slices: "schedule.slices", Count(0, SEQUENCE_MAX), Literal("0");
    /// What slices have equally much of: tokens, or time. Of time later ones have fewer tokens.
    SliceCut: "schedule.slice_cut", Word(words::<SliceBalance>), Literal("\"tokens\"");
    /// Most memory of a stage, such as "10GiB" or "512MiB"; empty: no limit.
    MaxMem: "schedule.max_mem", Size, Literal("\"\"");
    /// Steps that may run ahead of their verdict: 0 waits for it, 1 is optimistic.
    Window: "schedule.window", Word(words::<WindowChoice>), Literal("\"auto\"");
    /// PipeMare: updates over which the learning rate of a late stage rises to its full height.
    PipeMareSteps: "schedule.pipemare_steps", Count(0, STEPS_MAX), Literal("100");
    /// PipeMare: steps that are run first, synchronously, with a flush after each.
    PipeMareWarmup: "schedule.pipemare_warmup", Count(0, STEPS_MAX), Literal("0");
    /// PipeDream: whether all stages read the version that the first one had; each its own: none.
    PipeDreamSync: "schedule.pipedream_sync", Word(words::<PipeDreamSync>), Literal("\"none\"");
    /// AvgPipe: whole pipelines side by side, which take steps in turn; must divide train.steps.
    AvgPipePipelines: "schedule.avgpipe_pipelines", Count(1, PIPELINES_MAX), Literal("2");
    /// AvgPipe: the share of what lies between them by which a model and the reference are pulled.
    AvgPipeAlpha: "schedule.avgpipe_alpha", Number(UpTo(1.0)), Literal("0.1");
    /// AMPNet: microbatches that may be under way.
    AmpNetCap: "schedule.ampnet_cap", Count(1, BATCH_MAX), Literal("4");
    /// AMPNet: gradients of microbatches that make an update.
    AmpNetUpdateEvery: "schedule.ampnet_update_every", Count(1, BATCH_MAX), Literal("4");
    /// AMPNet: the order.txt of such a run, to run its order again, to the same bits.
    AmpNetOrder: "schedule.ampnet_order", Text, Described("none: the order is found");

    /// Islands: steps from one exchange of a layer's weights with other runs to the next (DiLoCo); 0: it is one run alone.
    SyncEvery: "sync.every", Count(0, STEPS_MAX), Literal("0");
    /// A folder, s3://, gs:// or az:// for each island, in the same order everywhere: each writes its own and reads the others.
    SyncFolders: "sync.folders", Texts, Literal("[]");
    /// Which of them this run is, counted from 0.
    SyncIsland: "sync.island", Count(0, ISLANDS_MAX as u64 - 1), Literal("0");
    /// Groups of layers whose weights are exchanged at different steps.
    SyncFragments: "sync.fragments", Count(1, LAYERS_MAX), Literal("4");
    /// Steps from sending weights to mixing in what came of them: so long the others' may be on their way.
    SyncOverlap: "sync.overlap", Count(1, STEPS_MAX), Literal("5");
    /// Share of its own weights that an island keeps when it mixes.
    SyncLocalShare: "sync.local_share", Number(BelowOne), Literal("0.5");
    /// Learning rate of the outer step.
    SyncLr: "sync.lr", Number(FromZero), Literal("0.7");
    /// Nesterov momentum of the outer step.
    SyncMomentum: "sync.momentum", Number(BelowOne), Literal("0.9");

    /// What passes compute again: nothing, everything but what a chunk reads, or recompute_ops.
    Recompute: "memory.recompute", Word(words::<RecomputeMode>), Literal("\"none\"");
    /// With selective: what each layer computes again.
    RecomputeOps: "memory.recompute_ops", Words(|| RECOMPUTE_OPS.to_vec()),
        Literal("[\"norm\", \"activation\"]");
    /// Which passes compute it again: all, or as few as schedule.max_mem or a node's memory asks for.
    RecomputePasses: "memory.recompute_passes", Word(words::<RecomputePasses>), Literal("\"all\"");
    /// Which passes leave a stage's memory: those of the schedule, or under any as few as memory asks for.
    Offload: "memory.offload", Word(words::<OffloadMode>), Literal("\"schedule\"");
    /// Where what leaves a stage's memory lies.
    OffloadStore: "memory.offload_store", Word(words::<OffloadStore>), Literal("\"memory\"");
    /// Each replica has the moments of a part of its layers and updates it (ZeRO-1), but elastic.copies more have them.
    ShardOptimizer: "memory.shard_optimizer", Flag, Literal("false");

    /// What to do with a step whose gradient is not finite: leave it out, or run it again first.
    Nonfinite: "guard.nonfinite", Word(words::<NonfinitePolicy>), Literal("\"skip\"");
    /// Leave out steps with a norm this many deviations above the recent mean; 0: never.
    GnormZ: "guard.gnorm_z", Number(FromZero), Literal("0.0");
    /// How often such a step is run again, with nonfinite = "replay".
    Retries: "guard.retries", Count(0, RETRIES_MAX), Literal("1");

    /// On a cluster, a checkpoint after every so many steps; 0: never.
    CheckpointEvery: "checkpoint.every", Count(0, CHECKPOINT_EVERY_MAX), Literal("100");
    /// On a cluster, a checkpoint after so long as well, but never for more than 2 % of the time; 0ms: never.
    CheckpointTime: "checkpoint.every_time", Time(0, CHECKPOINT_TIME_MS_MAX), Literal("\"1m\"");
    /// The newest so many checkpoints are kept, older ones removed.
    KeepLast: "checkpoint.keep_last", Count(1, CHECKPOINTS_MAX as u64), Literal("3");
    /// A folder for checkpoints on every node, seen from its data folder; each makes its own in it.
    CheckpointDir: "checkpoint.dir", Text, Described("none: beside the node's other data");
    /// Other nodes that each piece of a checkpoint is sent to, so that a lost disk loses none.
    CheckpointCopies: "checkpoint.copies", Count(0, CHECKPOINT_COPIES_MAX), Literal("1");
    /// A folder, s3://, gs:// or az:// that finished checkpoints are copied to, beside training.
    CheckpointMirror: "checkpoint.mirror", Text, Described("none: they stay in the cluster");

    /// A run begins, and goes on after losses, with so many workers or more.
    MinNodes: "elastic.min_nodes", Count(1, STAGES_MAX as u64), Literal("1");
    /// How long more nodes are waited for when one joins.
    Settle: "elastic.settle", Time(0, SETTLE_MS_MAX), Literal("\"500ms\"");
    /// What a worker does when its machine is about to be taken away: hand over first, or nothing.
    OnNotice: "elastic.on_notice", Word(words::<NoticePolicy>), Literal("\"drain\"");
    /// How long a node may be silent before it is lost: four heartbeats of 60 ms at least.
    DetectTimeout: "elastic.detect_timeout", Time(DETECT_MS_MIN, DETECT_MS_MAX), Literal("\"700ms\"");
    /// Other nodes that hold each update before it is sealed: as many may be lost at once.
    UpdateCopies: "elastic.copies", Count(0, UPDATE_COPIES_MAX), Literal("1");
    /// When a plan is given up for what is measured: if times drift beyond its slack, or never.
    Replan: "elastic.replan", Word(words::<ReplanPolicy>), Literal("\"drift\"");
}

/// The sections in the order of the table, each with its subject.
pub const SECTIONS: [(&str, &str); 11] = [
    ("model", "what is trained"),
    ("data", "what it is trained on"),
    ("train", "how long, in which batches"),
    ("lora", "what is trained in place of the whole model"),
    ("optimizer", "how weights change"),
    ("schedule", "how the pipeline works"),
    ("sync", "with which other runs it exchanges weights"),
    ("memory", "what passes keep, and where"),
    ("guard", "which steps are not taken"),
    ("checkpoint", "what a cluster keeps on disk"),
    ("elastic", "how a cluster takes it when nodes come and go"),
];

impl Key {
    /// Section and name, as in `train.steps`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Section of the key, as `train` of `train.steps`.
    #[must_use]
    pub fn section(self) -> &'static str {
        self.split().0
    }

    /// The name within its section.
    #[must_use]
    pub fn short_name(self) -> &'static str {
        self.split().1
    }

    fn split(self) -> (&'static str, &'static str) {
        self.name().split_once('.').expect("a key has a section")
    }

    /// The key that `section` has under `name`.
    #[must_use]
    pub fn find(section: &str, name: &str) -> Option<Self> {
        Self::of_section(section).find(|key| key.short_name() == name)
    }

    /// The keys of a section, in order.
    pub fn of_section(section: &str) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |key| key.section() == section)
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, KeyDefault, SECTIONS};
    use crate::value::ConfigValue;

    #[test]
    fn every_default_is_a_value_of_its_key() {
        for key in Key::ALL {
            let KeyDefault::Literal(literal) = key.spec().fallback else { continue };
            let value = ConfigValue::parse(literal).expect("a default is TOML");
            assert!(key.spec().kind.accept(&value).is_some(), "{}: {literal}", key.name());
        }
    }

    #[test]
    fn keys_are_found_under_their_names_and_documented_in_a_sentence() {
        for key in Key::ALL {
            assert_eq!(Key::find(key.section(), key.short_name()), Some(*key));
            let doc = key.spec().doc;
            assert!(doc.ends_with('.') && doc.starts_with(char::is_uppercase), "{doc}");
        }
        assert_eq!(Key::find("train", "lr"), None);
    }

    #[test]
    fn sections_are_those_of_the_keys_in_their_order() {
        let mut sections: Vec<&str> = Key::ALL.iter().map(|key| key.section()).collect();
        sections.dedup();
        assert_eq!(sections, SECTIONS.map(|(name, _)| name));
    }
}
