//! Tensors by their Hugging Face names, and how they are read from safetensors files.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};

use crate::model::{Family, LayerKind, LayerSpec, ModelConfig, TensorSpec, model_layers};

/// A tensor as transformers knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Name of the tensor in the file.
    pub name: String,
    /// Length of each dimension.
    pub shape: Vec<usize>,
    /// Its floats in row-major order.
    pub floats: Vec<f32>,
}

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file is no safetensors file.
    #[error("the weights are no safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// A tensor is missing.
    #[error("the weights lack the tensor {name}")]
    Missing {
        /// Name of the tensor in the file.
        name: String,
    },
    /// A tensor has another shape.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Name of the tensor in the file.
        name: String,
        /// Shape that the model needs.
        expected: Vec<usize>,
        /// Shape that the file has.
        found: Vec<usize>,
    },
    /// A tensor has another type.
    #[error("tensor {name} is of type {found:?}, only F32 is supported")]
    Type {
        /// Name of the tensor in the file.
        name: String,
        /// Type of the tensor in the file.
        found: Dtype,
    },
}

/// Where a piece of a layer's floats is found in a file's tensor.
pub(super) struct TensorSource {
    pub(super) name: String,
    /// The whole tensor in the file.
    pub(super) shape: Vec<usize>,
    pub(super) is_transposed: bool,
    /// The first of our rows within it, if it holds several of our tensors.
    pub(super) first_row: usize,
}

/// Where a tensor of ours is found in a file.
pub(super) fn source(model: &ModelConfig, layer: &LayerSpec, tensor: &TensorSpec) -> TensorSource {
    match model.family {
        Family::Gpt2 => gpt2_source(model, layer, tensor),
        Family::Llama => llama_source(layer, tensor),
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
        LayerKind::Head if part == "lm_head" => format!("{part}.{suffix}"),
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
    let part = match local_name(tensor) {
        "embed.tokens" => "embed_tokens",
        "norm1" => "input_layernorm",
        "norm2" => "post_attention_layernorm",
        "norm" => "norm",
        "attn.q" => "self_attn.q_proj",
        "attn.k" => "self_attn.k_proj",
        "attn.v" => "self_attn.v_proj",
        "attn.out" => "self_attn.o_proj",
        "mlp.gate" => "mlp.gate_proj",
        "mlp.up" => "mlp.up_proj",
        "mlp.down" => "mlp.down_proj",
        "head" => "lm_head",
        other => unreachable!("Llama has no tensor {other}"),
    };
    let name = match layer.kind {
        LayerKind::Attention { block } | LayerKind::Mlp { block } => {
            format!("model.layers.{block}.{part}.weight")
        }
        LayerKind::Head if part == "lm_head" => format!("{part}.weight"),
        LayerKind::Embed | LayerKind::Head => format!("model.{part}.weight"),
    };
    TensorSource { name, shape: tensor.shape.clone(), is_transposed: false, first_row: 0 }
}

/// Our index and the file's for each element of a tensor.
fn each_element(tensor: &TensorSpec, source: &TensorSource, mut visit: impl FnMut(usize, usize)) {
    let (rows, columns) = match tensor.shape[..] {
        [rows, columns] => (rows, columns),
        _ => (tensor.range.len(), 1),
    };
    let their_columns = source.shape.get(1).copied().unwrap_or(1);
    for row in 0..rows {
        for column in 0..columns {
            let (their_row, their_column) = if source.is_transposed {
                (column, source.first_row + row)
            } else {
                (source.first_row + row, column)
            };
            let ours = tensor.range.start + row * columns + column;
            visit(ours, their_row * their_columns + their_column);
        }
    }
}

/// Layers' floats (weights, gradients, anything of that shape) under transformers' names.
#[must_use]
pub fn to_named(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<NamedTensor> {
    let mut named: BTreeMap<String, NamedTensor> = BTreeMap::new();
    for (spec, floats) in model_layers(model).iter().zip(layers) {
        for tensor in &spec.tensors {
            let source = source(model, spec, tensor);
            let entry = named.entry(source.name.clone()).or_insert_with(|| NamedTensor {
                name: source.name.clone(),
                shape: source.shape.clone(),
                floats: vec![0.0; source.shape.iter().product()],
            });
            each_element(tensor, &source, |ours, theirs| entry.floats[theirs] = floats[ours]);
        }
    }
    named.into_values().collect()
}

/// The weights of `model` in a safetensors file, layer by layer.
///
/// # Errors
/// If the file is damaged, or lacks a tensor, or has one of another shape or type.
pub fn import_safetensors(model: &ModelConfig, file: &[u8]) -> Result<Vec<Vec<f32>>, ImportError> {
    let tensors = SafeTensors::deserialize(file)?;
    let mut layers = Vec::new();
    for spec in model_layers(model) {
        // A few bytes of `config.json` may announce any size: memory is allocated for what is there.
        let sources: Vec<TensorSource> =
            spec.tensors.iter().map(|tensor| source(model, &spec, tensor)).collect();
        sources.iter().try_for_each(|source| view(&tensors, source).map(drop))?;
        let mut floats = vec![0.0; spec.len()];
        for (tensor, source) in spec.tensors.iter().zip(&sources) {
            let theirs = read(&view(&tensors, source)?);
            each_element(tensor, source, |ours, index| floats[ours] = theirs[index]);
        }
        layers.push(floats);
    }
    Ok(layers)
}

/// The tensor of the file that is this source.
fn view<'a>(
    tensors: &SafeTensors<'a>,
    source: &TensorSource,
) -> Result<TensorView<'a>, ImportError> {
    let name = || source.name.clone();
    // Some checkpoints leave out the name of the model around the layers.
    let bare = source.name.trim_start_matches("transformer.");
    let view = tensors.tensor(&source.name).or_else(|_| tensors.tensor(bare));
    let view = view.map_err(|_| ImportError::Missing { name: name() })?;
    if view.shape() != source.shape {
        let expected = source.shape.clone();
        let found = view.shape().to_vec();
        return Err(ImportError::Shape { name: name(), expected, found });
    }
    if view.dtype() != Dtype::F32 {
        return Err(ImportError::Type { name: name(), found: view.dtype() });
    }
    Ok(view)
}

fn read(view: &TensorView<'_>) -> Vec<f32> {
    let words = view.data().as_chunks::<4>().0;
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::{ImportError, import_safetensors};
    use crate::hf::{config_json, parse_config, write_safetensors};
    use crate::model::{Family, ModelConfig, initial_weights, model_layers};

    fn model(family: Family) -> ModelConfig {
        let kv_heads = if family == Family::Llama { 1 } else { 2 };
        ModelConfig {
            family,
            blocks: 2,
            width: 6,
            heads: 2,
            kv_heads,
            head_width: if family == Family::Llama { 4 } else { 3 },
            mlp_width: 10,
            vocabulary: 11,
            sliding_window: None,
            positions: 5,
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
            tied: false,
        }
    }

    fn file(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<u8> {
        let mut file = Vec::new();
        write_safetensors(model, layers, &mut file).expect("memory");
        file
    }

    #[test]
    fn weights_and_configuration_come_back_as_they_went() {
        for family in [Family::Gpt2, Family::Llama] {
            let model = model(family);
            let layers: Vec<_> =
                model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
            let file = file(&model, &layers);
            assert_eq!(import_safetensors(&model, &file).expect("its own file"), layers);
            assert_eq!(parse_config(&config_json(&model)).expect("its own text"), model);
        }
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused_with_its_tensor() {
        let model = model(Family::Llama);
        let layers: Vec<_> =
            model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
        let file = file(&model, &layers);
        let wider = ModelConfig { vocabulary: 12, ..model.clone() };
        let error = import_safetensors(&wider, &file).expect_err("one row is missing");
        assert!(matches!(&error, ImportError::Shape { name, .. } if name.contains("embed")));
        let deeper = ModelConfig { blocks: 3, ..model.clone() };
        let error = import_safetensors(&deeper, &file).expect_err("a block is missing");
        assert!(matches!(&error, ImportError::Missing { name } if name.contains("layers.2")));
        // More than any memory holds, and refused before any is allocated.
        let huge = ModelConfig { width: 1 << 24, vocabulary: 1 << 24, ..model.clone() };
        let error = import_safetensors(&huge, &file).expect_err("no file is as large");
        assert!(matches!(&error, ImportError::Shape { name, .. } if name.contains("embed")));
        let error = import_safetensors(&model, &file[..40]).expect_err("cut short");
        assert!(matches!(error, ImportError::Format(_)));
    }
}
