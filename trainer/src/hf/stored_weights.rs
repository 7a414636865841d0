//! The weights that a run begins with, in the file that its job names: each layer is read when a stage needs it, so
//! that no process holds the model.

use std::collections::BTreeSet;
use std::fmt;
use std::slice;

use zbelastic_kernels::HostThreads;

use super::import::{
    PlacedTensor, WeightFile, check_extra, compare, find_tensors, place, read_all,
};
use super::import_error::ImportError;
use super::names::{adapter_tensors, file_tensors, tied_copy};
use super::weight_file::WeightBytes;
use crate::model::{LayerSpec, ModelConfig, draw_layer_adapters, model_layers};

/// A file of [`super::write_initial`], whose layers are read one by one.
pub struct StoredWeights {
    bytes: Box<dyn WeightBytes + Send>,
    seed: u64,
    /// Of each layer the tensors of the file that it is made of.
    layers: Vec<Vec<PlacedTensor>>,
}

impl fmt::Debug for StoredWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredWeights").field("bytes", &self.bytes.len()).finish_non_exhaustive()
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
        let mut found = find_tensors(slice::from_ref(&named(&*bytes)))?;
        let adapters = adapter_tensors(model);
        let has_adapters = adapters.iter().any(|tensor| found.contains_key(&tensor.name));
        let adapters = if has_adapters { adapters } else { Vec::new() };
        let mut placed = place(adapters, &mut found)?;
        placed.extend(place(file_tensors(model), &mut found)?);
        let copy = tied_copy(model).and_then(|name| found.remove(name));
        check_extra(model, &found)?;
        let specs = model_layers(model);
        let stored = Self { bytes, seed, layers: by_layer(&placed, specs.len()) };
        for spec in &specs {
            let mut floats = vec![0.0; spec.len()];
            stored.read_layer(&HostThreads::one(), spec, &mut floats)?;
            if let (0, Some((_, tensor))) = (spec.layer.index(), &copy) {
                let embedding = &floats[spec.tensors[0].range.clone()];
                compare(&named(&*stored.bytes), tensor, embedding, model)?;
            }
        }
        Ok(stored)
    }

    /// Reads a layer, tensor after tensor, on the threads of `host`.
    ///
    /// # Errors
    /// If the file cannot be read any more.
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
        read_all(placed, slice::from_ref(&named(&*self.bytes)), &mut [floats], host)
    }
}

fn named(bytes: &dyn WeightBytes) -> WeightFile<'_> {
    WeightFile { name: "the file of weights".to_owned(), bytes }
}

/// Of each layer the tensors with parts in it, as if it was the only one, in the order in which they lie in the file.
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
