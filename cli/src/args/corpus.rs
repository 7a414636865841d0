//! Command lines of `tokenizer` and `data`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use zbelastic_config::ConfigWord;
use zbelastic_data::prepare::{SHARD_TOKENS, SHARD_TOKENS_MAX};
use zbelastic_data::show::SAMPLES_MAX;
use zbelastic_data::window::Packing;
use zbelastic_tokenizer::TemplateDate;

use super::{THREADS_MAX, WINDOW_MAX};

/// Largest vocabulary that may be requested: far more tokens than any model has.
const VOCABULARY_MAX: i64 = 1 << 24;

const TOKENIZER_TRAIN_EXAMPLES: &str = "\
The tokenizer is a byte-level BPE like GPT-2's, which any text has ids by. <|endoftext|> is id 0 and
ends documents. The same texts give the same files for any number of threads.

Examples:
  zbelastic tokenizer train --vocab 8192 --text book.txt 'notes/**/*.md' --to tok
  zbelastic tokenizer train --vocab 32768 --text corpus.jsonl.zst --to tok --special '<|im_start|>' '<|im_end|>'
  zbelastic data prepare corpus.jsonl.zst --tokenizer tok --to store";

const DATA_PREPARE_EXAMPLES: &str = "\
Sources are files, folders and globs, here or in a bucket (s3://, gs://, az://), and https://
addresses of files: .txt and .md (a file is a document), .jsonl, .ndjson and .json
(a line is), all also .gz or .zst, .parquet (a row is), and .bin with ids of nanoGPT or llm.c. A
field or column that is a list of messages is a chat: the tokenizer's chat template renders it, and
what the assistant writes counts in the loss. Interrupted or killed, the same command goes on. The
bytes of the store do not depend on the number of threads.

Examples:
  zbelastic data prepare book.txt --to store
  zbelastic data prepare 'wiki/*.jsonl.gz' --tokenizer tok --to store
  zbelastic data prepare 's3://bucket/wiki/*.jsonl.zst' --tokenizer tok --to store
  zbelastic data prepare web.parquet --field content --skip-bad --tokenizer ../SmolLM2 --to store";

const DATA_SHOW_EXAMPLES: &str = "\
Of a window with targets that count in the loss and others, those that count are green on a
terminal, and in brackets elsewhere or with NO_COLOR=1.

Examples:
  zbelastic data show store
  zbelastic data show store --tokenizer tok --samples 10 --window 256
  zbelastic data show store --tokenizer tok --packing documents
  zbelastic data show store --verify
  zbelastic data show store --json | jq .tokens";

fn packing_parser() -> impl TypedValueParser<Value = Packing> {
    let words = Packing::table().into_iter().map(|(word, _)| word);
    PossibleValuesParser::new(words)
        .map(|word| Packing::of_word(&word).expect("one of the words of the table"))
}

/// `tokenizer`.
#[derive(Debug, Subcommand)]
pub enum TokenizerCommand {
    /// Make a tokenizer of texts: tokenizer.json and tokenizer_config.json.
    #[command(after_help = TOKENIZER_TRAIN_EXAMPLES)]
    Train(TokenizerTrainArgs),
}

/// `tokenizer train`.
#[derive(Args, Debug)]
pub struct TokenizerTrainArgs {
    /// Tokens of the vocabulary, 256 single bytes and the special tokens included.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=VOCABULARY_MAX))]
    pub vocab: u32,
    /// Files, folders and globs of texts, as `data prepare` reads them.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub text: Vec<String>,
    /// Folder for the tokenizer, which is created.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// How often a pair of tokens has to be in the texts to become a token.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub min_frequency: u64,
    /// Special tokens beside <|endoftext|>, in the order of their ids.
    #[arg(long, value_name = "TOKEN", num_args = 1..)]
    pub special: Vec<String>,
    /// The field or column with the text [default: text, or else messages].
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// Threads that count words [default: this machine's cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make a token store of a corpus, which may be larger than memory.
    #[command(after_help = DATA_PREPARE_EXAMPLES)]
    Prepare(DataPrepareArgs),
    /// Show what a token store holds, and samples of its windows.
    #[command(after_help = DATA_SHOW_EXAMPLES)]
    Show(DataShowArgs),
}

/// `data prepare`.
#[derive(Args, Debug)]
pub struct DataPrepareArgs {
    /// Files, folders and globs of documents, or addresses: s3://, gs://, az://, https://.
    #[arg(value_name = "SOURCE", required = true)]
    pub sources: Vec<String>,
    /// A model's folder, a tokenizer.json, or bytes: each byte is a token.
    #[arg(long, value_name = "DIR|FILE|bytes", default_value = "bytes")]
    pub tokenizer: PathBuf,
    /// Folder for the store, which is created.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The field or column with the text or the messages [default: text, or else messages].
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// The text that ends a document in files of text, such as '<|endoftext|>' [default: each file is
    /// a document].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub separator: Option<String>,
    /// Count and leave out lines and rows that are no document, and chats that cannot be rendered;
    /// without it the first ends the command.
    #[arg(long)]
    pub skip_bad: bool,
    /// The day, or the time with it (2026-11-29T08:30:00), that chat templates write which ask for it.
    #[arg(long, value_name = "DAY")]
    pub date: Option<TemplateDate>,
    /// Threads that encode [default: this machine's cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Tokens of a shard, about: it ends with the batch that reaches them.
    #[arg(long, value_name = "N", default_value_t = SHARD_TOKENS, value_parser = clap::value_parser!(u64).range(1..=SHARD_TOKENS_MAX))]
    pub shard_tokens: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `data show`.
#[derive(Args, Debug)]
pub struct DataShowArgs {
    /// The store.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The tokenizer that the store was made with, for the text of its tokens; a store of bytes
    /// needs none.
    #[arg(long, value_name = "DIR|FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Windows to show, evenly spaced over the store.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=SAMPLES_MAX as i64))]
    pub samples: u32,
    /// Tokens of a window.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub window: u32,
    /// How documents share a window, as data.packing of a run: with documents, the first token of each
    /// is no target.
    #[arg(long, value_name = "PACKING", default_value = "concat", value_parser = packing_parser())]
    pub packing: Packing,
    /// Read every shard first, and compare its hash with the manifest's.
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}
