//! The two ends of a model whose head is tied to the token embedding.

/// An end of such a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedEnd {
    /// The first layer, which owns the matrix.
    Embedding,
    /// The last layer, which has it once more.
    Head,
}

/// Why there is a layer at an end.
const HAS_LAYERS: &str = "a chunk has layers";

impl TiedEnd {
    /// The layer at this end of the model, of those of the chunk that is there.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub const fn layer<T>(self, layers: &[T]) -> &T {
        match self {
            Self::Embedding => layers.first(),
            Self::Head => layers.last(),
        }
        .expect(HAS_LAYERS)
    }

    /// The same layer, to be changed.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub const fn layer_mut<T>(self, layers: &mut [T]) -> &mut T {
        match self {
            Self::Embedding => layers.first_mut(),
            Self::Head => layers.last_mut(),
        }
        .expect(HAS_LAYERS)
    }
}

/// What the two ends have computed of their matrix's gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct TiedParts {
    /// The head's part.
    pub head: Vec<f32>,
    /// The embedding's.
    pub embedding: Vec<f32>,
}

impl TiedParts {
    /// The gradient, in the memory of the head's part: that plus the embedding's.
    ///
    /// # Panics
    /// If one is longer.
    #[must_use]
    pub fn into_sum(self) -> Vec<f32> {
        let Self { head: mut sum, embedding } = self;
        assert_eq!(sum.len(), embedding.len(), "both are of one matrix");
        sum.iter_mut().zip(&embedding).for_each(|(sum, part)| *sum += part);
        sum
    }
}
