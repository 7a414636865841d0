//! The model: decoder-only transformers of two families, layer by layer.
//!
//! A layer is half a block: attention or MLP, each with the normalisation before it. That is the
//! grain of the partition; a block's two halves may stand on different stages. Each kind of layer
//! has its three passes in `layers.rs`; a [`Chunk`] strings layers together.

mod buffer_size;
mod chunk;
mod config;
mod features;
mod freeze;
mod frozen;
mod initial;
mod key_value_cache;
mod layer_bytes;
mod layer_times;
mod layer_update;
mod layers;
mod lora;
mod lora_targets;
mod merge;
mod mixing;
mod name_pattern;
mod parts;
mod pass_stash;
mod recompute;
mod state;
mod state_places;
mod tensors;
mod tied;

pub use crate::data::MicrobatchShape;
pub use buffer_size::BufferSize;
pub use chunk::{Chunk, count_bytes, rotary_angles, slice_angles};
pub use config::{Family, LayerKind, ModelConfig, ModelError};
pub use features::{AttentionBias, LlamaFeatures, RopeScaling};
pub use freeze::{FreezeError, frozen_tensors};
pub use frozen::FrozenTensors;
pub(crate) use initial::draw_layer_adapters;
pub use initial::{draw_adapters, draw_weights, initial_weights};
pub use key_value_cache::KeyValueCache;
pub use layer_bytes::{frozen_bytes, layer_bytes, replayed_bytes, sharded_bytes};
pub use layer_times::{
    LayerClass, LayerClock, LayerOp, LayerTimer, LayerTimes, Span, StageTimings, TimeTotal,
};
pub(crate) use layer_update::LayerUpdate;
pub use layers::{Logits, PassContext, PassScratch, PassSizes, SlicePosition};
pub(crate) use lora::adapted_linears;
pub use lora::{LoraConfig, LoraInit, LoraLinear, LoraScaling, LoraTarget};
pub use lora_targets::{LoraError, LoraSettings};
pub use merge::merge_layer;
pub(crate) use name_pattern::NamePattern;
pub use name_pattern::NamePatternError;
pub use parts::{AdapterParts, LayerParts, LinearParts, NormParts};
pub use pass_stash::{
    PassStash, download_parts, offload_parts, offload_sizes, settle, upload_parts,
};
pub use recompute::{Recompute, RecomputedOps, RecomputedParts};
pub use state::{AfterCommit, LayerState, ShardPart};
pub use tensors::{
    LayerSpec, TensorDraw, TensorInit, TensorSpec, find_tensor, model_layers, model_size,
};
pub use tied::{TiedEnd, TiedParts};
pub use zbelastic_types::LayerRange;
