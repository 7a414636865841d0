//! Layers of a model while files of weights are written.
//!
//! Each is in memory from the first of its tensors to the last. Tensors lie in the order of their names, so that these
//! are the layers of a block, and a head that is not tied, whose matrix comes first and whose norm last.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use zbelastic_types::LayerId;

use super::names::FileTensor;
use super::write::{WeightsFile, WriteWeightsError};

/// Requests each layer once, when the first of its tensors is written, and drops it behind the last.
pub struct LayerWindow<'a, L, E> {
    request: &'a mut dyn FnMut(LayerId) -> Result<L, E>,
    held: BTreeMap<LayerId, L>,
    /// Tensors of each layer that are not written yet.
    left: BTreeMap<LayerId, usize>,
}

impl<'a, L: AsRef<[f32]>, E> LayerWindow<'a, L, E> {
    /// For these files, which are written in their order. Layers are requested in that of
    /// [`layer_order`].
    pub fn new(files: &[WeightsFile], request: &'a mut dyn FnMut(LayerId) -> Result<L, E>) -> Self {
        let mut left = BTreeMap::new();
        for layer in files.iter().flat_map(WeightsFile::tensors).flat_map(FileTensor::layers) {
            *left.entry(layer).or_insert(0) += 1;
        }
        Self { request, held: BTreeMap::new(), left }
    }

    /// Calls `write` with the floats of the layers that a tensor lies in, by their ids.
    pub(super) fn write(
        &mut self,
        tensor: &FileTensor,
        write: impl for<'l> FnOnce(&dyn Fn(LayerId) -> &'l [f32]) -> Result<(), WriteWeightsError<E>>,
    ) -> Result<(), WriteWeightsError<E>> {
        let layers = tensor.layers();
        for layer in &layers {
            if let Entry::Vacant(place) = self.held.entry(*layer) {
                place.insert((self.request)(*layer).map_err(WriteWeightsError::Layer)?);
            }
        }
        write(&|layer| self.held[&layer].as_ref())?;
        for layer in layers {
            let left = self.left.get_mut(&layer).expect("a layer of the files");
            *left -= 1;
            if *left == 0 {
                self.held.remove(&layer);
            }
        }
        Ok(())
    }
}

/// The order in which a [`LayerWindow`] requests the layers of these files.
#[must_use]
pub fn layer_order(files: &[WeightsFile]) -> Vec<LayerId> {
    let mut known = BTreeSet::new();
    let layers = files.iter().flat_map(WeightsFile::tensors).flat_map(FileTensor::layers);
    layers.filter(|layer| known.insert(*layer)).collect()
}
