//! Weights under the names that Hugging Face transformers gives them.
//!
//! Llama's linear layers lie as ours do, `outputs` by `inputs`. GPT-2's are transposed, and its
//! queries, keys and values are one matrix.

mod config;
mod exported_config;
mod names;
mod weight_type;
mod write;

pub use config::{ConfigError, config_json, parse_config};
pub use exported_config::{SpecialTokenIds, exported_config_json, generation_config_json};
pub use names::{ImportError, NamedTensor, import_safetensors, to_named};
pub use weight_type::WeightType;
pub use write::{WeightsFile, WeightsFiles, WriteWeightsError, write_safetensors};
