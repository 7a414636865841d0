//! Weights under the names that Hugging Face transformers gives them.
//!
//! Llama's linear layers lie as ours do, `outputs` by `inputs`. GPT-2's are transposed, and its
//! queries, keys and values are one matrix.

mod adapter;
mod adapter_config;
mod config;
mod config_json;
mod config_keys;
mod distinct_keys;
mod exported_config;
mod import;
mod import_error;
mod layer_window;
mod names;
mod shards;
mod stored_weights;
mod weight_file;
mod weight_type;
mod write;

pub use adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_config_json};
pub use adapter_config::{AdapterConfigError, PeftAdapters, parse_adapter_config};
pub use config::parse_config;
pub use config_json::config_json;
pub use config_keys::{ConfigError, dropout};
pub use exported_config::{
    SpecialTokenIds, exported_config_json, generation_config_json, trained_config_json,
};
pub use import::{WeightFile, import_adapters, import_files, import_safetensors, read_adapters};
pub use import_error::{HeaderError, ImportError};
pub use layer_window::{LayerWindow, layer_order};
pub use shards::{SHARDS_MAX, ShardIndex, ShardIndexError};
pub use stored_weights::{StoredFile, StoredWeights};
pub use weight_file::WeightBytes;
pub use weight_type::WeightType;
pub use write::{
    MODEL_CONFIG, NamedTensor, WEIGHTS_FILE, WEIGHTS_INDEX, WeightsFile, WeightsFiles,
    WriteWeightsError, to_named, write_initial, write_safetensors,
};
