//! Command lines of what is done with a trained model: `export`, `generate` and `eval`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use zbelastic_trainer::hf::WeightType;

use super::client::ClientArgs;
use super::quantity::parse_shard_bytes;
use super::{THREADS_MAX, WINDOW_MAX};

/// Largest number of tokens that are generated at once: far more than any context.
const TOKENS_MAX: i64 = 1 << 24;

pub(super) const EXPORT_EXAMPLES: &str = "\
RUN is the folder of a run (`train` left it), the name of a run of the cluster, or a folder with
config.json and weights. DIR is there at the end, whole, or not at all.

Examples:
  zbelastic export runs/quickstart-1 --to model
  zbelastic export baseline --step 300 --to model-300 --dtype bf16
  zbelastic export big --to big --dtype bf16 --shard 2GB";

pub(super) const GENERATE_EXAMPLES: &str = "\
RUN is the folder of a run, or one with config.json, weights and, unless the model reads bytes, a
tokenizer. The same model, prompt, flags and seed give the same text.

Examples:
  zbelastic generate runs/quickstart-1 --prompt 'The pipeline'
  zbelastic generate SmolLM2-135M --prompt 'Once upon a time' --max-tokens 200 --temperature 0
  zbelastic generate model --prompt 'def ' --top-p 0.95 --top-k 50 --seed 7";

pub(super) const EVAL_EXAMPLES: &str = "\
Each text is cut into windows as training cuts it, one behind the other without overlap, and what
is too short for a last window is left out.

Examples:
  zbelastic eval runs/quickstart-1 --text book.txt
  zbelastic eval SmolLM2-135M --text 'wiki/*.jsonl.gz' --window 1024 --json
  zbelastic eval model --tokens store";

/// The type that weights are exported in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportType {
    /// 32 bits: the weights as they were trained.
    F32,
    /// bfloat16: half the bytes, rounded to the nearest.
    Bf16,
    /// Half precision: the same, and no weight beyond 65,504.
    F16,
}

impl ExportType {
    /// The type of the files.
    #[must_use]
    pub const fn weight_type(self) -> WeightType {
        match self {
            Self::F32 => WeightType::F32,
            Self::Bf16 => WeightType::Bf16,
            Self::F16 => WeightType::F16,
        }
    }
}

/// `export`.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// A run's folder, the name of a run of the cluster, or a model's folder.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Folder for the model, which is created.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Type of the weights.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ExportType::F32)]
    pub dtype: ExportType,
    /// Largest file of weights; larger models are several files with an index. KB, MB and GB are
    /// thousands, as transformers counts.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_shard_bytes)]
    pub shard: u64,
    /// Of a run with `lora.rank`: the whole model with its adapters merged, and not the adapters alone.
    #[arg(long)]
    pub merge: bool,
    /// The tokenizer's folder or tokenizer.json, if none lies beside the model, or in place of that.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Which checkpoint of the run [default: the newest].
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// A model in a folder, which a command computes with on this machine.
#[derive(Args, Clone, Debug)]
pub struct SavedModelArgs {
    /// A run's folder, or a model's.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Threads that compute [default: this machine's cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Which checkpoint of the run [default: the last].
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The tokenizer's folder or tokenizer.json, if none lies beside the model, or in place of that.
    #[arg(long, value_name = "DIR|FILE")]
    pub tokenizer: Option<PathBuf>,
}

/// `generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Tokens to generate, at most; fewer if the context ends before.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=TOKENS_MAX))]
    pub max_tokens: u32,
    /// Divisor of the logits: below 1 the likely gets likelier, and 0 takes the likeliest.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Draw from the likeliest tokens that have this probability together.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f64,
    /// Draw from so many of the likeliest tokens [default: all].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// What tokens are drawn from.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// End with the tokenizer's end-of-text token, instead of going on behind it.
    #[arg(long)]
    pub stop_at_end: bool,
    /// Print one JSON object at the end, instead of the text as it comes.
    #[arg(long)]
    pub json: bool,
    /// The model.
    #[command(flatten)]
    pub model: SavedModelArgs,
}

/// `eval`.
#[derive(Args, Clone, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["text", "tokens"])))]
pub struct EvalArgs {
    /// Files, folders and globs of texts, as `data prepare` reads them.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub text: Vec<String>,
    /// A token store, made with the model's tokenizer.
    #[arg(long, value_name = "STORE")]
    pub tokens: Option<PathBuf>,
    /// Inputs of a window [default: the run's train.seq_len; of other models their context, at most
    /// 1,024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub window: Option<u32>,
    /// Windows that are read, at most [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows_max: Option<u64>,
    /// The field or column with the text [default: text, or else messages].
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The model.
    #[command(flatten)]
    pub model: SavedModelArgs,
}
