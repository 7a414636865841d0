//! Tensors by their Hugging Face names.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::model::{
    Family, LayerKind, LayerSpec, ModelConfig, TensorSpec, adapted_linears, model_layers,
};

/// A tensor of a file, and where its elements lie among our layers.
#[derive(Debug)]
pub(super) struct FileTensor {
    /// Its name, as transformers has it.
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) parts: Vec<TensorPart>,
}

impl FileTensor {
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows, and elements of each; a vector is one column.
    pub(super) fn rows_and_width(&self) -> (usize, usize) {
        (self.shape[0], self.shape.get(1).copied().unwrap_or(1))
    }
}

/// A part of a file's tensor that is a tensor of ours.
#[derive(Clone, Debug)]
pub(super) struct TensorPart {
    /// Index of our layer, and where in it the tensor lies.
    pub(super) layer: usize,
    pub(super) range: Range<usize>,
    /// Our rows and columns.
    pub(super) shape: [usize; 2],
    /// Whether the file has our rows as columns.
    pub(super) is_transposed: bool,
    /// The first of our rows within the file's tensor, if that holds several of ours.
    pub(super) first_row: usize,
    /// Whether another layer owns the tensor: then its elements are there already.
    pub(super) is_shared: bool,
}

/// The tensors of a model's files, in the order of the model, without those of adapters.
pub(super) fn file_tensors(model: &ModelConfig) -> Vec<FileTensor> {
    let mut tensors: Vec<FileTensor> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (layer, spec) in model_layers(model).iter().enumerate() {
        for tensor in spec.tensors.iter().filter(|tensor| !tensor.is_adapter()) {
            let TensorSource { name, shape, is_transposed, first_row } =
                source(model, spec, tensor);
            let place = *places.entry(name.clone()).or_insert(tensors.len());
            if place == tensors.len() {
                tensors.push(FileTensor { name, shape, parts: Vec::new() });
            }
            let shape = match tensor.shape[..] {
                [rows, columns] => [rows, columns],
                _ => [tensor.range.len(), 1],
            };
            let range = tensor.range.clone();
            let is_shared = tensor.is_shared;
            let part = TensorPart { layer, range, shape, is_transposed, first_row, is_shared };
            tensors[place].parts.push(part);
        }
    }
    tensors
}

/// The tensors of a model's adapters as PEFT names them, in the order of the model.
pub(super) fn adapter_tensors(model: &ModelConfig) -> Vec<FileTensor> {
    let mut tensors = Vec::new();
    for (layer, spec) in model_layers(model).iter().enumerate() {
        let (LayerKind::Attention { block } | LayerKind::Mlp { block }) = spec.kind else {
            continue;
        };
        let linears = adapted_linears(model, spec.kind).into_iter();
        let adapters = spec.tensors.iter().filter(|tensor| tensor.is_adapter());
        for (linear, tensor) in linears.flat_map(|linear| [linear; 2]).zip(adapters) {
            let module = linear.module_of(model.family, block);
            let (_, matrix) = tensor.name.rsplit_once('.').expect("lora_A or lora_B of a layer");
            let part = TensorPart {
                layer,
                range: tensor.range.clone(),
                shape: [tensor.shape[0], tensor.shape[1]],
                is_transposed: false,
                first_row: 0,
                is_shared: false,
            };
            let name = format!("base_model.model.{module}.{matrix}.weight");
            tensors.push(FileTensor { name, shape: tensor.shape.clone(), parts: vec![part] });
        }
    }
    tensors
}

/// Where a tensor of ours is found in a file.
struct TensorSource {
    name: String,
    /// The whole tensor in the file.
    shape: Vec<usize>,
    is_transposed: bool,
    first_row: usize,
}

/// The name of the head's own matrix.
const HEAD: &str = "lm_head.weight";

fn source(model: &ModelConfig, layer: &LayerSpec, tensor: &TensorSpec) -> TensorSource {
    match model.family {
        Family::Gpt2 => gpt2_source(model, layer, tensor),
        Family::Llama => llama_source(layer, tensor),
    }
}

/// The name without that of the model around the layers.
pub(super) fn without_prefix(name: &str) -> &str {
    let bare = name.strip_prefix("transformer.").or_else(|| name.strip_prefix("model."));
    bare.unwrap_or(name)
}

/// The name of the matrix that a file may have a second time, if its head is tied.
pub(super) fn tied_copy(model: &ModelConfig) -> Option<&'static str> {
    model.tied.then_some(HEAD)
}

/// Whether a tensor of a file is a buffer, which is computed and not trained: causal masks of GPT-2,
/// rotary frequencies of Llama.
pub(super) fn is_buffer(model: &ModelConfig, name: &str) -> bool {
    let name = without_prefix(name);
    let of_block = |blocks: &str| {
        let (block, part) = name.strip_prefix(blocks)?.split_once('.')?;
        let block: u32 = block.parse().ok()?;
        (block < model.blocks).then_some(part)
    };
    match model.family {
        Family::Gpt2 => matches!(of_block("h."), Some("attn.bias" | "attn.masked_bias")),
        Family::Llama => {
            name == "rotary_emb.inv_freq"
                || of_block("layers.") == Some("self_attn.rotary_emb.inv_freq")
        }
    }
}

/// The part of our name behind the block's number.
fn local_name(tensor: &TensorSpec) -> &str {
    match tensor.name.strip_prefix("layers.") {
        Some(rest) => rest.split_once('.').map_or(rest, |(_, local)| local),
        None => &tensor.name,
    }
}

fn gpt2_source(model: &ModelConfig, layer: &LayerSpec, tensor: &TensorSpec) -> TensorSource {
    let (local, suffix) = match local_name(tensor).strip_suffix(".bias") {
        Some(local) => (local, "bias"),
        None => (local_name(tensor), "weight"),
    };
    let width = model.width as usize;
    let (part, first_row, rows) = match local {
        "embed.tokens" => ("wte", 0, None),
        "embed.positions" => ("wpe", 0, None),
        "norm1" => ("ln_1", 0, None),
        "norm2" => ("ln_2", 0, None),
        "norm" => ("ln_f", 0, None),
        "attn.q" => ("attn.c_attn", 0, Some(3 * width)),
        "attn.k" => ("attn.c_attn", width, Some(3 * width)),
        "attn.v" => ("attn.c_attn", 2 * width, Some(3 * width)),
        "attn.out" => ("attn.c_proj", 0, Some(width)),
        "mlp.up" => ("mlp.c_fc", 0, Some(model.mlp_width as usize)),
        "mlp.down" => ("mlp.c_proj", 0, Some(width)),
        "head" => ("lm_head", 0, None),
        other => unreachable!("GPT-2 has no tensor {other}"),
    };
    let name = match layer.kind {
        LayerKind::Attention { block } | LayerKind::Mlp { block } => {
            format!("transformer.h.{block}.{part}.{suffix}")
        }
        LayerKind::Head if part == "lm_head" => HEAD.to_owned(),
        LayerKind::Embed | LayerKind::Head => format!("transformer.{part}.{suffix}"),
    };
    let is_transposed = rows.is_some() && suffix == "weight";
    let rows = rows.unwrap_or(tensor.shape[0]);
    let shape = match tensor.shape[..] {
        [_, columns] if is_transposed => vec![columns, rows],
        [_, columns] => vec![rows, columns],
        _ => vec![rows],
    };
    TensorSource { name, shape, is_transposed, first_row }
}

fn llama_source(layer: &LayerSpec, tensor: &TensorSpec) -> TensorSource {
    let (local, suffix) = match local_name(tensor).strip_suffix(".bias") {
        Some(local) => (local, "bias"),
        None => (local_name(tensor), "weight"),
    };
    let part = match local {
        "embed.tokens" => "embed_tokens",
        "norm1" => "input_layernorm",
        "norm2" => "post_attention_layernorm",
        "norm" => "norm",
        "attn.q" => "self_attn.q_proj",
        "attn.k" => "self_attn.k_proj",
        "attn.v" => "self_attn.v_proj",
        "attn.q_norm" => "self_attn.q_norm",
        "attn.k_norm" => "self_attn.k_norm",
        "attn.out" => "self_attn.o_proj",
        "mlp.gate" => "mlp.gate_proj",
        "mlp.up" => "mlp.up_proj",
        "mlp.down" => "mlp.down_proj",
        "head" => "lm_head",
        other => unreachable!("Llama has no tensor {other}"),
    };
    let name = match layer.kind {
        LayerKind::Attention { block } | LayerKind::Mlp { block } => {
            format!("model.layers.{block}.{part}.{suffix}")
        }
        LayerKind::Head if part == "lm_head" => HEAD.to_owned(),
        LayerKind::Embed | LayerKind::Head => format!("model.{part}.{suffix}"),
    };
    TensorSource { name, shape: tensor.shape.clone(), is_transposed: false, first_row: 0 }
}
