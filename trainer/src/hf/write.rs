//! Safetensors files of weights, under transformers' names.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::names::{TensorSource, source};
use crate::model::{ModelConfig, model_layers};

/// Elements of a tensor that are brought into form at once when a file is written: 4 MiB of them.
const WRITTEN_AT_ONCE: usize = 1 << 20;

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
