//! Tensors that training leaves as they are.

use serde::{Deserialize, Serialize};
use zbelastic_types::TensorIndex;

/// The tensors of a model that are not trained, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrozenTensors {
    /// Neighbours together: the first, and the one behind the last. In order, and apart.
    runs: Vec<[u32; 2]>,
}

impl FrozenTensors {
    /// None: all tensors are trained.
    pub const NONE: Self = Self { runs: Vec::new() };

    /// Whether all tensors are trained.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether each of these is one of `others`.
    #[must_use]
    pub fn are_among(&self, others: &Self) -> bool {
        self.tensors().all(|tensor| others.contains(tensor))
    }

    /// All of them, in order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorIndex> + '_ {
        self.runs.iter().flat_map(|[first, end]| *first..*end).map(TensorIndex)
    }

    /// Whether a tensor is left as it is.
    #[must_use]
    pub fn contains(&self, tensor: TensorIndex) -> bool {
        self.runs.iter().any(|[first, end]| (*first..*end).contains(&tensor.0))
    }
}

impl FromIterator<TensorIndex> for FrozenTensors {
    /// Tensors in canonical order.
    fn from_iter<I: IntoIterator<Item = TensorIndex>>(tensors: I) -> Self {
        let mut runs: Vec<[u32; 2]> = Vec::new();
        for TensorIndex(tensor) in tensors {
            match runs.last_mut() {
                Some([_, end]) if *end == tensor => *end += 1,
                Some(_) | None => runs.push([tensor, tensor + 1]),
            }
        }
        Self { runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_written_together() {
        let frozen: FrozenTensors = [0, 1, 2, 5, 7, 8].map(TensorIndex).into_iter().collect();
        assert_eq!(frozen.runs, [[0, 3], [5, 6], [7, 9]]);
        let found = (0..10).filter(|tensor| frozen.contains(TensorIndex(*tensor)));
        assert_eq!(found.collect::<Vec<_>>(), [0, 1, 2, 5, 7, 8]);
        let some: FrozenTensors = [1, 2, 8].map(TensorIndex).into_iter().collect();
        assert!(some.are_among(&frozen) && !frozen.are_among(&some));
        assert!(FrozenTensors::NONE.are_among(&some));
    }
}
