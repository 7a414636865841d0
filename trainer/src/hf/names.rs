//! Tensors by their Hugging Face names, and safetensors files of them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo, TensorView};

use crate::model::{Family, LayerKind, LayerSpec, ModelConfig, TensorSpec, model_layers};

/// Elements of a tensor that are brought into form at once when a file is written: 4 MiB of them.
const WRITTEN_AT_ONCE: usize = 1 << 20;

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
struct TensorSource {
    name: String,
    /// The whole tensor in the file.
    shape: Vec<usize>,
    is_transposed: bool,
    /// The first of our rows within it, if it holds several of our tensors.
    first_row: usize,
}

fn source(model: &ModelConfig, layer: &LayerSpec, tensor: &TensorSpec) -> TensorSource {
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

/// A tensor of a file, and where its elements lie among our layers.
struct FileTensor<'a> {
    shape: Vec<usize>,
    parts: Vec<FileTensorPart<'a>>,
}

/// A part of a file's tensor that is a tensor of ours.
struct FileTensorPart<'a> {
    /// Our rows and columns.
    shape: [usize; 2],
    floats: &'a [f32],
    source: TensorSource,
}

impl FileTensorPart<'_> {
    /// Writes what lies in these rows of the file's tensor, `width` elements each.
    fn fill(&self, rows: &Range<usize>, width: usize, into: &mut [[u8; 4]]) {
        let ([own_rows, columns], first) = (self.shape, self.source.first_row);
        for (row, into) in rows.clone().zip(into.chunks_exact_mut(width)) {
            if self.source.is_transposed {
                let column = self.floats[row..].iter().step_by(columns);
                for (to, x) in into[first..first + own_rows].iter_mut().zip(column) {
                    *to = x.to_le_bytes();
                }
            } else if let Some(own) = row.checked_sub(first).filter(|own| *own < own_rows) {
                for (to, x) in into.iter_mut().zip(&self.floats[own * columns..][..columns]) {
                    *to = x.to_le_bytes();
                }
            }
        }
    }
}

impl FileTensor<'_> {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Writes its elements, [`WRITTEN_AT_ONCE`] at a time or a row of more.
    fn write(&self, to: &mut dyn io::Write) -> io::Result<()> {
        let rows = self.shape[0];
        let width = self.shape.get(1).copied().unwrap_or(1);
        let step = (WRITTEN_AT_ONCE / width.max(1)).clamp(1, rows.max(1));
        let mut elements = vec![[0; 4]; step * width];
        for start in (0..rows).step_by(step) {
            let taken = start..rows.min(start + step);
            let elements = &mut elements[..taken.len() * width];
            self.parts.iter().for_each(|part| part.fill(&taken, width, elements));
            to.write_all(elements.as_flattened())?;
        }
        Ok(())
    }
}

/// The tensors of a file of these weights, by their names.
fn file_tensors<'a>(
    model: &ModelConfig,
    layers: &'a [impl AsRef<[f32]>],
) -> BTreeMap<String, FileTensor<'a>> {
    let mut tensors: BTreeMap<String, FileTensor<'a>> = BTreeMap::new();
    for (spec, floats) in model_layers(model).iter().zip(layers) {
        for tensor in &spec.tensors {
            let source = source(model, spec, tensor);
            let shape = match tensor.shape[..] {
                [rows, columns] => [rows, columns],
                _ => [tensor.range.len(), 1],
            };
            let floats = &floats.as_ref()[tensor.range.clone()];
            let empty = || FileTensor { shape: source.shape.clone(), parts: Vec::new() };
            let entry = tensors.entry(source.name.clone()).or_insert_with(empty);
            entry.parts.push(FileTensorPart { shape, floats, source });
        }
    }
    tensors
}

/// Writes a safetensors file of these weights. Few megabytes of it are in memory at once.
///
/// # Errors
/// If `to` cannot be written.
///
/// # Panics
/// Never: shapes and lengths agree by construction.
pub fn write_safetensors(
    model: &ModelConfig,
    layers: &[impl AsRef<[f32]>],
    to: &mut dyn io::Write,
) -> io::Result<()> {
    let tensors = file_tensors(model, layers);
    let mut offset = 0;
    let info = |(name, tensor): (&String, &FileTensor<'_>)| {
        let start = offset;
        offset += 4 * tensor.len();
        let shape = tensor.shape.clone();
        let data_offsets = (start, offset);
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets })
    };
    let infos = tensors.iter().map(info).collect();
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let metadata = Metadata::new(Some(format), infos).expect("tensors lie one behind the other");
    let mut header = serde_json::to_vec(&metadata).expect("names and numbers");
    // Elements begin on a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    tensors.values().try_for_each(|tensor| tensor.write(to))
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
    use safetensors::tensor::{TensorView, serialize};

    use super::{Dtype, ImportError, import_safetensors, to_named, write_safetensors};
    use crate::hf::{config_json, parse_config};
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
    fn a_file_that_is_written_in_parts_is_the_one_that_the_crate_makes() {
        for family in [Family::Gpt2, Family::Llama] {
            // Wide enough that a matrix is written in more than one part.
            let model = ModelConfig { width: 1500, mlp_width: 1501, ..model(family) };
            let model = ModelConfig { blocks: 1, head_width: 750, kv_heads: 2, ..model };
            let layers: Vec<Vec<f32>> =
                model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
            let named: Vec<_> = { to_named(&model, &layers).into_iter() }
                .map(|tensor| {
                    let bytes: Vec<u8> =
                        tensor.floats.iter().flat_map(|x| x.to_le_bytes()).collect();
                    (tensor.name, tensor.shape, bytes)
                })
                .collect();
            let views = named.iter().map(|(name, shape, bytes)| {
                let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
                (name.clone(), view.expect("a tensor is as long as its shape"))
            });
            let metadata = [("format".to_owned(), "pt".to_owned())].into();
            let expected = serialize(views, Some(metadata)).expect("views are complete");
            assert!(file(&model, &layers) == expected, "{family:?}");
        }
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
