//! Weights in files of which each layer is read when it is needed, so that no process holds the model: those that a run
//! begins with, in the file that its job names, and those of a folder.

use std::collections::BTreeSet;
use std::fmt;

use zbelastic_kernels::HostThreads;

use super::import::{
    PlacedTensor, WeightFile, check_extra, check_index, compare, find_tensors, place, read_all,
};
use super::import_error::ImportError;
use super::names::{adapter_tensors, file_tensors, tied_copy};
use super::shards::ShardIndex;
use super::weight_file::WeightBytes;
use crate::model::{LayerSpec, ModelConfig, draw_layer_adapters, model_layers};

/// The bytes of a file with weights, with the name that errors call it.
pub type StoredFile = (String, Box<dyn WeightBytes + Send>);

/// A file of [`super::write_initial`], or the files of a model, whose layers are read one by one.
pub struct StoredWeights {
    files: Vec<StoredFile>,
    seed: u64,
    /// Of each layer the tensors of the files that it is made of.
    layers: Vec<Vec<PlacedTensor>>,
}

impl fmt::Debug for StoredWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.files.iter().map(|(_, bytes)| bytes.len()).sum();
        f.debug_struct("StoredWeights").field("bytes", &bytes).finish_non_exhaustive()
    }
}

impl StoredWeights {
    /// The file in `bytes`, once each of its layers was read and found to be the model's. Adapters are those of the
    /// file if it has them, and else those that `seed` gives.
    ///
    /// # Errors
    /// If the file is damaged, or what is in it is not what the model has.
    pub fn open(
        model: &ModelConfig,
        seed: u64,
        bytes: Box<dyn WeightBytes + Send>,
    ) -> Result<Self, ImportError> {
        let file = ("the file of weights".to_owned(), bytes);
        let stored = Self::of_files(model, seed, vec![file], None)?;
        for spec in &model_layers(model) {
            stored.read_layer(&HostThreads::one(), spec, &mut vec![0.0; spec.len()])?;
        }
        Ok(stored)
    }

    /// The weights of `model` in these files, of which only headers are read; `index` says which tensor is in which.
    /// Adapters are those of the files if they have any, and else those that `seed` gives.
    ///
    /// # Errors
    /// If the header of a file is damaged, or the tensors of all of them are not those of the model.
    pub fn of_files(
        model: &ModelConfig,
        seed: u64,
        files: Vec<StoredFile>,
        index: Option<&ShardIndex>,
    ) -> Result<Self, ImportError> {
        let mut found = find_tensors(&named(&files))?;
        if let Some(index) = index {
            check_index(index, &named(&files), &found)?;
        }
        let adapters = adapter_tensors(model);
        let has_adapters = adapters.iter().any(|tensor| found.contains_key(&tensor.name));
        let adapters = if has_adapters { adapters } else { Vec::new() };
        let mut placed = place(adapters, &mut found)?;
        placed.extend(place(file_tensors(model), &mut found)?);
        let copy = tied_copy(model).and_then(|name| found.remove(name));
        check_extra(model, &found)?;
        let specs = model_layers(model);
        let stored = Self { seed, layers: by_layer(&placed, specs.len()), files };
        if let Some((file, tensor)) = &copy {
            let mut floats = vec![0.0; specs[0].len()];
            stored.read_layer(&HostThreads::one(), &specs[0], &mut floats)?;
            let embedding = &floats[specs[0].tensors[0].range.clone()];
            compare(&named(&stored.files)[*file], tensor, embedding, model)?;
        }
        Ok(stored)
    }

    /// Reads a layer, tensor after tensor, on the threads of `host`.
    ///
    /// # Errors
    /// If a file cannot be read, or has a number that is not finite.
    ///
    /// # Panics
    /// If `floats` are not as many as the layer has.
    pub fn read_layer(
        &self,
        host: &HostThreads,
        spec: &LayerSpec,
        floats: &mut [f32],
    ) -> Result<(), ImportError> {
        assert_eq!(floats.len(), spec.len(), "a layer is read whole");
        draw_layer_adapters(spec, self.seed, floats);
        let placed = &self.layers[spec.layer.index()];
        read_all(placed, &named(&self.files), &mut [floats], host)
    }
}

fn named(files: &[StoredFile]) -> Vec<WeightFile<'_>> {
    files.iter().map(|(name, bytes)| WeightFile { name: name.clone(), bytes: &**bytes }).collect()
}

/// Of each layer the tensors with parts in it, as if it was the only one, in the order in which they lie in the files.
fn by_layer(placed: &[PlacedTensor], count: usize) -> Vec<Vec<PlacedTensor>> {
    let mut layers: Vec<Vec<PlacedTensor>> = (0..count).map(|_| Vec::new()).collect();
    for tensor in placed {
        for layer in tensor.tensor.parts.iter().map(|part| part.layer).collect::<BTreeSet<_>>() {
            layers[layer].push(tensor.within(layer));
        }
    }
    layers.iter_mut().for_each(|tensors| tensors.sort_by_key(PlacedTensor::start));
    layers
}
