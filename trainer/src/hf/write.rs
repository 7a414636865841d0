//! Safetensors files of weights, one or several with an index, as `save_pretrained` of transformers
//! lays them out.
//!
//! A file is written tensor by tensor, few megabytes at a time. Which tensor lies in which file
//! follows from the model, the type and the largest file alone, and so do all bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use zbelastic_types::LayerId;

use super::adapter::ADAPTER_WEIGHTS;
use super::layer_window::LayerWindow;
use super::names::{FileTensor, TensorPart, adapter_tensors, file_tensors};
use super::weight_type::WeightType;
use crate::model::ModelConfig;

/// Elements of a tensor that are brought into form at once: 4 MiB of them.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// The name of the file of a model's shape.
pub const MODEL_CONFIG: &str = "config.json";
/// The name of a model's weights where they are one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The name of the file that says which of several files has which weights.
pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// Why weights are not written; `E` is why a layer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum WriteWeightsError<E = Infallible> {
    /// The file does not accept them.
    #[error(transparent)]
    File(#[from] io::Error),
    /// A weight is too large for the type.
    #[error("a weight of {tensor} is {found:e}, more than {} holds", kind.torch_name())]
    Overflow {
        /// Its tensor, by transformers' name.
        tensor: String,
        /// The weight.
        found: f32,
        /// The type that weights are written in.
        kind: WeightType,
    },
    /// A layer cannot be had.
    #[error("{0}")]
    Layer(E),
}

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

/// Layers' floats (weights, gradients, anything of that shape) under transformers' names, in the
/// order of the names.
#[must_use]
pub fn to_named(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<NamedTensor> {
    let named = file_tensors(model).into_iter().map(|tensor| {
        let (rows, _) = tensor.rows_and_width();
        let mut floats = vec![0.0; tensor.len()];
        tensor.fill(&|layer: LayerId| &layers[layer.0 as usize][..], &(0..rows), &mut floats);
        NamedTensor { name: tensor.name, shape: tensor.shape, floats }
    });
    let mut named: Vec<_> = named.collect();
    named.sort_by(|a, b| a.name.cmp(&b.name));
    named
}

impl TensorPart {
    /// Writes what lies in these rows of the file's tensor, `width` elements each.
    fn fill(&self, floats: &[f32], rows: &Range<usize>, width: usize, into: &mut [f32]) {
        let floats = &floats[self.range.clone()];
        let ([own_rows, columns], first) = (self.shape, self.first_row);
        for (row, into) in rows.clone().zip(into.chunks_exact_mut(width)) {
            if self.is_transposed {
                let column = floats[row..].iter().step_by(columns);
                for (to, x) in into[first..first + own_rows].iter_mut().zip(column) {
                    *to = *x;
                }
            } else if let Some(own) = row.checked_sub(first).filter(|own| *own < own_rows) {
                into.copy_from_slice(&floats[own * columns..][..columns]);
            }
        }
    }
}

impl FileTensor {
    /// The parts that its elements are collected from.
    fn own_parts(&self) -> impl Iterator<Item = &TensorPart> {
        self.parts.iter().filter(|part| !part.is_shared)
    }

    /// The layers that its elements are collected from.
    pub(super) fn layers(&self) -> BTreeSet<LayerId> {
        self.own_parts().map(|part| LayerId(part.layer as u32)).collect()
    }

    /// Collects these rows from the layers.
    fn fill<'l>(
        &self,
        layers: &dyn Fn(LayerId) -> &'l [f32],
        rows: &Range<usize>,
        into: &mut [f32],
    ) {
        let (_, width) = self.rows_and_width();
        for part in self.own_parts() {
            part.fill(layers(LayerId(part.layer as u32)), rows, width, into);
        }
    }

    /// Writes its elements, [`WRITTEN_AT_ONCE`] at a time or a row of more.
    fn write<'l, E>(
        &self,
        kind: WeightType,
        layers: &dyn Fn(LayerId) -> &'l [f32],
        to: &mut dyn io::Write,
    ) -> Result<(), WriteWeightsError<E>> {
        let (rows, width) = self.rows_and_width();
        let step = (WRITTEN_AT_ONCE / width.max(1)).clamp(1, rows.max(1));
        let mut elements = vec![0.0; step * width];
        let mut bytes = Vec::with_capacity(step * width * kind.bytes());
        for start in (0..rows).step_by(step) {
            let taken = start..rows.min(start + step);
            let elements = &mut elements[..taken.len() * width];
            self.fill(layers, &taken, elements);
            bytes.clear();
            kind.encode(elements, &mut bytes).map_err(|found| WriteWeightsError::Overflow {
                tensor: self.name.clone(),
                found,
                kind,
            })?;
            to.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// One file of weights that is to be written.
pub struct WeightsFile {
    name: String,
    kind: WeightType,
    /// By name, as they lie in the file.
    tensors: BTreeMap<String, FileTensor>,
}

impl WeightsFile {
    /// Its name in the model's folder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its weights, without the header.
    fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor_bytes(tensor, self.kind)).sum()
    }

    fn header(&self) -> Vec<u8> {
        let mut offset = 0;
        let info = |(name, tensor): (&String, &FileTensor)| {
            let start = offset;
            offset += self.kind.bytes() * tensor.len();
            let shape = tensor.shape.clone();
            let dtype = self.kind.dtype();
            (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, offset) })
        };
        let infos = self.tensors.iter().map(info).collect();
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let metadata = Metadata::new(Some(format), infos);
        let metadata = metadata.expect("tensors lie one behind the other");
        let mut header = serde_json::to_vec(&metadata).expect("names and numbers");
        // Elements begin on a multiple of eight bytes.
        header.resize(header.len().next_multiple_of(8), b' ');
        header
    }

    /// The tensors in the order in which they are written.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &FileTensor> {
        self.tensors.values()
    }

    /// Writes the file with the weights of `layers`, all of the model in its order.
    ///
    /// # Errors
    /// If `to` does not accept it, or a weight is too large for the type.
    ///
    /// # Panics
    /// Never: shapes and lengths agree by construction.
    pub fn write(
        &self,
        layers: &[impl AsRef<[f32]>],
        to: &mut dyn io::Write,
    ) -> Result<(), WriteWeightsError> {
        let mut request = |layer: LayerId| Ok(&layers[layer.0 as usize]);
        self.write_from(&mut LayerWindow::new(std::slice::from_ref(self), &mut request), to)
    }

    /// The same with layers that are requested as they are needed.
    ///
    /// # Errors
    /// As of [`Self::write`], and if a layer cannot be had.
    ///
    /// # Panics
    /// If `layers` is for other files.
    pub fn write_from<L: AsRef<[f32]>, E>(
        &self,
        layers: &mut LayerWindow<'_, L, E>,
        to: &mut dyn io::Write,
    ) -> Result<(), WriteWeightsError<E>> {
        let header = self.header();
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(&header)?;
        let mut tensors = self.tensors();
        tensors.try_for_each(|tensor| {
            layers.write(tensor, |layers| tensor.write(self.kind, layers, to))
        })
    }
}

fn tensor_bytes(tensor: &FileTensor, kind: WeightType) -> u64 {
    tensor.len() as u64 * kind.bytes() as u64
}

/// The files that a model's weights are written to.
pub struct WeightsFiles {
    files: Vec<WeightsFile>,
}

impl WeightsFiles {
    /// Files of at most `bytes_max` bytes of weights each, filled in the order of the model. A
    /// tensor of more has a file to itself.
    #[must_use]
    pub fn new(model: &ModelConfig, kind: WeightType, bytes_max: u64) -> Self {
        let mut shards: Vec<BTreeMap<String, FileTensor>> = vec![BTreeMap::new()];
        let mut filled = 0;
        for tensor in file_tensors(model) {
            let bytes = tensor_bytes(&tensor, kind);
            if filled > 0 && filled + bytes > bytes_max {
                shards.push(BTreeMap::new());
                filled = 0;
            }
            filled += bytes;
            shards.last_mut().expect("there is one").insert(tensor.name.clone(), tensor);
        }
        let count = shards.len();
        let shards = shards.into_iter().enumerate();
        let files = shards.map(|(index, tensors)| {
            let name = match count {
                1 => WEIGHTS_FILE.to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            WeightsFile { name, kind, tensors }
        });
        Self { files: files.collect() }
    }

    /// The one file of a model's adapters, in PEFT's format.
    #[must_use]
    pub fn of_adapters(model: &ModelConfig, kind: WeightType) -> Self {
        let tensors = adapter_tensors(model).into_iter();
        let tensors = tensors.map(|tensor| (tensor.name.clone(), tensor)).collect();
        Self { files: vec![WeightsFile { name: ADAPTER_WEIGHTS.to_owned(), kind, tensors }] }
    }

    /// The files, in order.
    #[must_use]
    pub fn files(&self) -> &[WeightsFile] {
        &self.files
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.files.iter().map(WeightsFile::weight_bytes).sum()
    }

    /// `model.safetensors.index.json`: which file holds which tensor; nothing for one file.
    ///
    /// # Panics
    /// Never: the parts are plain names and numbers.
    #[must_use]
    pub fn index_json(&self) -> Option<String> {
        if self.files.len() == 1 {
            return None;
        }
        let tensors = self.files.iter().flat_map(|file| file.tensors.values());
        let parameters: usize = tensors.map(FileTensor::len).sum();
        let names = |file: &WeightsFile| {
            let name = file.name.clone();
            file.tensors.keys().map(|tensor| (tensor.clone(), name.clone())).collect::<Vec<_>>()
        };
        let weight_map: BTreeMap<_, _> = self.files.iter().flat_map(names).collect();
        let metadata = json!({ "total_parameters": parameters, "total_size": self.weight_bytes() });
        let index = json!({ "metadata": metadata, "weight_map": weight_map });
        Some(serde_json::to_string_pretty(&index).expect("names and numbers") + "\n")
    }
}

/// Writes one safetensors file of these weights, as they are.
///
/// # Errors
/// If `to` cannot be written.
///
/// # Panics
/// Never: floats fit floats.
pub fn write_safetensors(
    model: &ModelConfig,
    layers: &[impl AsRef<[f32]>],
    to: &mut dyn io::Write,
) -> io::Result<()> {
    write_plain(&WeightsFiles::new(model, WeightType::F32, u64::MAX), layers, to)
}

/// Writes one safetensors file of the weights that a run begins with, adapters included, as they are:
/// [`super::StoredWeights`] reads it.
///
/// # Errors
/// If `to` cannot be written.
///
/// # Panics
/// Never: floats fit floats.
pub fn write_initial(
    model: &ModelConfig,
    layers: &[impl AsRef<[f32]>],
    to: &mut dyn io::Write,
) -> io::Result<()> {
    let mut all = WeightsFiles::new(model, WeightType::F32, u64::MAX);
    let adapters = adapter_tensors(model).into_iter();
    all.files[0].tensors.extend(adapters.map(|tensor| (tensor.name.clone(), tensor)));
    write_plain(&all, layers, to)
}

/// Writes one file of floats.
fn write_plain(
    all: &WeightsFiles,
    layers: &[impl AsRef<[f32]>],
    to: &mut dyn io::Write,
) -> io::Result<()> {
    all.files[0].write(layers, to).map_err(|error| match error {
        WriteWeightsError::File(error) => error,
        WriteWeightsError::Overflow { .. } => unreachable!("weights are not rounded"),
        WriteWeightsError::Layer(never) => match never {},
    })
}
