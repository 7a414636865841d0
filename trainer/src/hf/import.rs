//! Weights of others: which tensor of which file goes where, each read once.
//!
//! Files are read piece by piece, tensors and runs of large ones side by side on several threads in the
//! order in which they lie, into the layers' floats. Beside these a few megabytes a thread are in memory. Nothing of a
//! file is passed over: a tensor that is no parameter of the model has to be a buffer that is known
//! as one.

use std::collections::BTreeMap;
use std::ops::Range;

use zbelastic_kernels::HostThreads;

use super::adapter::ADAPTER_WEIGHTS;
use super::import_error::ImportError;
use super::names::{
    FileTensor, TensorPart, adapter_tensors, file_tensors, is_buffer, tied_copy, without_prefix,
};
use super::shards::ShardIndex;
use super::weight_file::{READ_AT_ONCE, StoredTensor, TensorReader, WeightBytes, read_header};
use crate::model::{ModelConfig, model_layers};

/// Rows and columns of ours that are filled together from a transposed matrix, by way of a tile of a
/// page: a line of a cache holds as many floats of the file, and rows of ours lie so far apart that
/// caches would hold few of them at once.
const TILE_ROWS: usize = 16;
const TILE_COLUMNS: usize = 64;
/// Elements of a tensor that are put into their place at once: rows of ours get so many neighbours
/// then that few pages of memory are visited twice.
const PLACED_AT_ONCE: usize = 1 << 18;
/// Elements of a tensor that lies as ours does which are one thread's task: an embedding may be a third of
/// a model, and the last tensor of its file.
const RUN_ELEMENTS: usize = 1 << 18;

/// A file of weights, with the name that errors call it.
pub struct WeightFile<'a> {
    /// Name of the file.
    pub name: String,
    /// Its bytes.
    pub bytes: &'a dyn WeightBytes,
}

/// A tensor of the model's files, and the one that was found for it.
pub(super) struct PlacedTensor {
    file: usize,
    stored: StoredTensor,
    pub(super) tensor: FileTensor,
}

/// The tensors of all files by name, each with the index of its file.
pub(super) type TensorsByName = BTreeMap<String, (usize, StoredTensor)>;

/// The weights of `model` in one file, layer by layer.
///
/// # Errors
/// If the file is damaged, or what is in it is not what the model has.
pub fn import_safetensors(model: &ModelConfig, file: &[u8]) -> Result<Vec<Vec<f32>>, ImportError> {
    let file = WeightFile { name: "the file of weights".to_owned(), bytes: &file };
    import_files(model, &[file], None, &HostThreads::one())
}

/// The weights of `model` in these files, layer by layer; `index` says which tensor is in which. They
/// are the same for any number of threads of `host`, and so is the error.
///
/// # Errors
/// If a file is damaged, or what is in all of them is not what the model has.
pub fn import_files(
    model: &ModelConfig,
    files: &[WeightFile<'_>],
    index: Option<&ShardIndex>,
    host: &HostThreads,
) -> Result<Vec<Vec<f32>>, ImportError> {
    let mut found = find_tensors(files)?;
    if let Some(index) = index {
        check_index(index, files, &found)?;
    }
    import_found(model, files, &mut found, host)
}

/// The weights of `model` but for its adapters, of which all that is found is used.
fn import_found(
    model: &ModelConfig,
    files: &[WeightFile<'_>],
    found: &mut TensorsByName,
    host: &HostThreads,
) -> Result<Vec<Vec<f32>>, ImportError> {
    // A few bytes of `config.json` may announce any size: memory is allocated for what is there.
    let mut placed = place(file_tensors(model), found)?;
    let copy = tied_copy(model).and_then(|name| found.remove(name));
    check_extra(model, found)?;
    placed.sort_by_key(PlacedTensor::start);
    let mut layers: Vec<Vec<f32>> =
        model_layers(model).iter().map(|spec| vec![0.0; spec.len()]).collect();
    read_all(&placed, files, &mut layers, host)?;
    if let Some((file, tensor)) = copy {
        let embedding = model_layers(model)[0].tensors[0].range.clone();
        compare(&files[file], &tensor, &layers[0][embedding], model)?;
    }
    Ok(layers)
}

/// The adapters of `model` in a file of PEFT's format, each in its place among the layers' floats; all else is zero.
///
/// # Errors
/// As of [`import_files`].
pub fn import_adapters(model: &ModelConfig, file: &[u8]) -> Result<Vec<Vec<f32>>, ImportError> {
    let mut layers: Vec<Vec<f32>> =
        model_layers(model).iter().map(|spec| vec![0.0; spec.len()]).collect();
    read_adapters(model, file, &mut layers)?;
    Ok(layers)
}

/// The same, in the place of the adapters that `layers` have.
///
/// # Errors
/// As of [`import_files`]. The layers may have some of them then.
pub fn read_adapters(
    model: &ModelConfig,
    file: &[u8],
    layers: &mut [Vec<f32>],
) -> Result<(), ImportError> {
    let file = WeightFile { name: ADAPTER_WEIGHTS.to_owned(), bytes: &file };
    let files = std::slice::from_ref(&file);
    let mut found = find_tensors(files)?;
    let placed = place(adapter_tensors(model), &mut found)?;
    if let Some(name) = found.into_keys().next() {
        return Err(ImportError::Extra { name });
    }
    read_all(&placed, files, layers, &HostThreads::one())
}

/// Reads tensors into the layers, side by side. Of several that are damaged the first is reported.
pub(super) fn read_all<L: AsMut<[f32]>>(
    placed: &[PlacedTensor],
    files: &[WeightFile<'_>],
    layers: &mut [L],
    host: &HostThreads,
) -> Result<(), ImportError> {
    let parts = parts_of(placed, layers);
    let reads: Vec<TensorRead<'_, '_>> =
        placed.iter().zip(parts).flat_map(|(placed, parts)| placed.reads(parts)).collect();
    let mut outcomes: Vec<Result<(), ImportError>> = reads.iter().map(|_| Ok(())).collect();
    let reads = reads.into_iter().zip(&mut outcomes).collect();
    host.for_each(reads, |(read, outcome): (TensorRead<'_, '_>, &mut _)| {
        *outcome = read.run(files);
    });
    outcomes.into_iter().collect()
}

/// What one thread reads of a tensor.
struct TensorRead<'p, 'l> {
    placed: &'p PlacedTensor,
    to: ReadTarget<'l>,
}

/// Where elements of a tensor go.
enum ReadTarget<'l> {
    /// Those from number `first` on, which lie as in the file in each part: in one, or in those of a tied head too.
    Run { first: usize, parts: Vec<&'l mut [f32]> },
    /// All of them, into the floats of each part.
    Parts(Vec<&'l mut [f32]>),
}

/// The floats of the parts of each tensor, which share none.
fn parts_of<'l, L: AsMut<[f32]>>(
    placed: &[PlacedTensor],
    layers: &'l mut [L],
) -> Vec<Vec<&'l mut [f32]>> {
    let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
    let mut ranges = Vec::new();
    for (tensor, PlacedTensor { tensor: found, .. }) in placed.iter().enumerate() {
        parts.push(found.parts.iter().map(|_| Default::default()).collect());
        let of_tensor = found.parts.iter().enumerate();
        ranges.extend(of_tensor.map(|(at, part)| (part.layer, part.range.clone(), (tensor, at))));
    }
    ranges.sort_unstable_by_key(|(layer, range, _)| (*layer, range.start));
    // What is left of each layer, and where it begins there.
    let mut rests: Vec<(usize, &mut [f32])> =
        layers.iter_mut().map(|layer| (0, layer.as_mut())).collect();
    for (layer, range, (tensor, at)) in ranges {
        let (begin, rest) = std::mem::take(&mut rests[layer]);
        let (_, rest) = rest.split_at_mut(range.start - begin);
        let (part, rest) = rest.split_at_mut(range.len());
        rests[layer] = (range.end, rest);
        parts[tensor][at] = part;
    }
    parts
}

pub(super) fn find_tensors(files: &[WeightFile<'_>]) -> Result<TensorsByName, ImportError> {
    let mut found = TensorsByName::new();
    for (index, file) in files.iter().enumerate() {
        let name = || file.name.clone();
        let tensors =
            read_header(file.bytes).map_err(|error| ImportError::Format { file: name(), error })?;
        for tensor in tensors {
            let key = tensor.name.clone();
            if let Some((first, tensor)) = found.insert(key, (index, tensor)) {
                let first = files[first].name.clone();
                return Err(ImportError::Twice { name: tensor.name, first, second: name() });
            }
        }
    }
    Ok(found)
}

pub(super) fn check_index(
    index: &ShardIndex,
    files: &[WeightFile<'_>],
    found: &TensorsByName,
) -> Result<(), ImportError> {
    for (name, file) in index.tensors() {
        let is_there = found.get(name).is_some_and(|(at, _)| files[*at].name == *file);
        if !is_there {
            return Err(ImportError::Misplaced { name: name.clone(), file: file.clone() });
        }
    }
    Ok(())
}

/// Finds what there is for each of these tensors, and takes it out of `found`.
pub(super) fn place(
    tensors: Vec<FileTensor>,
    found: &mut TensorsByName,
) -> Result<Vec<PlacedTensor>, ImportError> {
    let placed = tensors.into_iter().map(|tensor| {
        let (file, stored) = take(found, &tensor)?;
        Ok(PlacedTensor { file, stored, tensor })
    });
    placed.collect()
}

/// Takes out what is found for a tensor. Some checkpoints leave out the name of the model around the
/// layers.
fn take(
    found: &mut TensorsByName,
    tensor: &FileTensor,
) -> Result<(usize, StoredTensor), ImportError> {
    let taken = found.remove(&tensor.name);
    let taken = taken.or_else(|| found.remove(without_prefix(&tensor.name)));
    let (file, stored) = taken.ok_or_else(|| ImportError::Missing { name: tensor.name.clone() })?;
    if stored.shape != tensor.shape {
        let expected = tensor.shape.clone();
        return Err(ImportError::Shape { name: stored.name, expected, found: stored.shape });
    }
    stored.element_type()?;
    Ok((file, stored))
}

pub(super) fn check_extra(model: &ModelConfig, found: &TensorsByName) -> Result<(), ImportError> {
    match found.keys().find(|name| !is_buffer(model, name)) {
        Some(name) => Err(ImportError::Extra { name: name.clone() }),
        None => Ok(()),
    }
}

impl PlacedTensor {
    /// The tensor with its parts in one layer, as if that was the only one.
    pub(super) fn within(&self, layer: usize) -> Self {
        let parts = self.tensor.parts.iter().filter(|part| part.layer == layer);
        let parts = parts.map(|part| TensorPart { layer: 0, ..part.clone() }).collect();
        let (name, shape) = (self.tensor.name.clone(), self.tensor.shape.clone());
        let tensor = FileTensor { name, shape, parts };
        Self { file: self.file, stored: self.stored.clone(), tensor }
    }

    /// Its file, and where its elements begin there.
    pub(super) fn start(&self) -> (usize, u64) {
        (self.file, self.stored.start)
    }

    /// The tasks of reading it into the floats of its parts, in the order of its elements.
    fn reads<'l>(&self, parts: Vec<&'l mut [f32]>) -> Vec<TensorRead<'_, 'l>> {
        let read = |to| TensorRead { placed: self, to };
        let len = self.tensor.len();
        let is_whole = |part: &TensorPart| !part.is_transposed && part.range.len() == len;
        if !self.tensor.parts.iter().all(is_whole) {
            return vec![read(ReadTarget::Parts(parts))];
        }
        let starts = (0..len).step_by(RUN_ELEMENTS);
        let mut parts: Vec<_> =
            parts.into_iter().map(|part| part.chunks_mut(RUN_ELEMENTS)).collect();
        let runs = starts.map(|first| {
            let parts = parts.iter_mut().map(|part| part.next().expect("each has all elements"));
            read(ReadTarget::Run { first, parts: parts.collect() })
        });
        runs.collect()
    }

    /// Reads rows one after the other, each of which may have elements of several parts.
    fn read_parts(
        &self,
        reader: &mut TensorReader<'_>,
        parts: &mut [&mut [f32]],
    ) -> Result<(), ImportError> {
        let (rows, width) = self.tensor.rows_and_width();
        let step = (PLACED_AT_ONCE / width.max(1)).clamp(1, rows.max(1));
        let mut elements = vec![0.0; step * width];
        for start in (0..rows).step_by(step) {
            let taken = start..rows.min(start + step);
            reader.read_rows(&taken, width, &mut elements)?;
            for (part, to) in self.tensor.parts.iter().zip(&mut *parts) {
                part.put(&taken, width, &elements, to);
            }
        }
        Ok(())
    }
}

impl TensorRead<'_, '_> {
    fn run(self, files: &[WeightFile<'_>]) -> Result<(), ImportError> {
        let file = &files[self.placed.file];
        let mut reader = TensorReader::new(file.bytes, &file.name, &self.placed.stored)?;
        match self.to {
            ReadTarget::Run { first, mut parts } => {
                let Some((floats, copies)) = parts.split_first_mut() else { return Ok(()) };
                reader.read(first, floats)?;
                copies.iter_mut().for_each(|copy| copy.copy_from_slice(floats));
                Ok(())
            }
            ReadTarget::Parts(mut parts) => self.placed.read_parts(&mut reader, &mut parts),
        }
    }
}

impl TensorPart {
    /// Puts `rows` of the file's tensor, `width` elements each, where they belong.
    fn put(&self, rows: &Range<usize>, width: usize, from: &[f32], to: &mut [f32]) {
        let ([own_rows, columns], first) = (self.shape, self.first_row);
        if !self.is_transposed {
            for (row, from) in rows.clone().zip(from.chunks_exact(width)) {
                if let Some(own) = row.checked_sub(first).filter(|own| *own < own_rows) {
                    to[own * columns..][..columns].copy_from_slice(from);
                }
            }
            return;
        }
        let mut tile = [[0.0; TILE_COLUMNS]; TILE_ROWS];
        for start in (0..own_rows).step_by(TILE_ROWS) {
            let tile = &mut tile[..TILE_ROWS.min(own_rows - start)];
            for column in rows.clone().step_by(TILE_COLUMNS) {
                let count = TILE_COLUMNS.min(rows.end - column);
                let block = from[(column - rows.start) * width..].chunks_exact(width).take(count);
                for (at, from) in block.enumerate() {
                    for (own, x) in tile.iter_mut().zip(&from[first + start..]) {
                        own[at] = *x;
                    }
                }
                for (own, row) in tile.iter().enumerate() {
                    let to = &mut to[(start + own) * columns + column..][..count];
                    to.copy_from_slice(&row[..count]);
                }
            }
        }
    }
}

/// The matrix of a tied head that is in the files as well is the embedding.
pub(super) fn compare(
    file: &WeightFile<'_>,
    tensor: &StoredTensor,
    embedding: &[f32],
    model: &ModelConfig,
) -> Result<(), ImportError> {
    let name = || tensor.name.clone();
    let expected = [model.vocabulary as usize, model.width as usize];
    if tensor.shape != expected {
        let found = tensor.shape.clone();
        return Err(ImportError::Shape { name: name(), expected: expected.to_vec(), found });
    }
    let mut reader = TensorReader::new(file.bytes, &file.name, tensor)?;
    let mut piece = vec![0.0; READ_AT_ONCE.min(embedding.len())];
    for (at, expected) in embedding.chunks(READ_AT_ONCE).enumerate() {
        let found = &mut piece[..expected.len()];
        reader.read(at * READ_AT_ONCE, found)?;
        if found != expected {
            let other = "the embedding".to_owned();
            return Err(ImportError::Untied { name: name(), other });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
