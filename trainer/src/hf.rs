//! Weights under the names that Hugging Face transformers gives them.
//!
//! Llama's linear layers lie as ours do, `outputs` by `inputs`. GPT-2's are transposed, and its
//! queries, keys and values are one matrix.

mod config;
mod names;

pub use config::{ConfigError, config_json, parse_config};
pub use names::{ImportError, NamedTensor, import_safetensors, to_named, write_safetensors};
