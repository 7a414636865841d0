//! A model that reads a sequence token after token, and yields the logits after the last one.
//!
//! What it has read lies in a [`KeyValueCache`]; a new token is a pass over one row. On processors
//! the logits have the bits of a pass over the whole sequence: attention adds the terms of a query
//! in the order of its keys, cut or not ([`crate::reference`] with slices rests on the same), and
//! everything else is row by row.

use zbelastic_kernels::{AllocateError, Backend, BufferView, DeviceFault};
use zbelastic_types::{LayerRange, SliceIndex};

use crate::data::TokenBatch;
use crate::model::{
    BufferSize, Chunk, KeyValueCache, Logits, MicrobatchShape, ModelConfig, PassContext, PassSizes,
    PassStash, SlicePosition, slice_angles,
};

/// Most tokens of one pass: a longer text takes several, so that the memory of activations and
/// logits does not grow with it. Long enough that products are bound by arithmetic.
const PASS_TOKENS_MAX: usize = 64;

/// A model with what it has read.
pub struct Decoder<'a, B: Backend> {
    backend: B,
    model: &'a ModelConfig,
    chunk: Chunk<B>,
    cache: KeyValueCache<B>,
    memory: Option<DecoderMemory<B::Buffer>>,
}

/// The memory that a pass over so many tokens works in.
struct DecoderMemory<T> {
    tokens: usize,
    stash: PassStash<T>,
    logits: Logits<T>,
}

impl<'a, B: Backend> Decoder<'a, B> {
    /// A model with these weights, layer by layer, that has read nothing.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn new<W: AsRef<[f32]>>(
        backend: B,
        model: &'a ModelConfig,
        weights: impl IntoIterator<Item = W>,
    ) -> Result<Self, AllocateError> {
        let chunk = Chunk::frozen(&backend, model, weights)?;
        Ok(Self { backend, model, chunk, cache: KeyValueCache::default(), memory: None })
    }

    /// Tokens that were read.
    #[must_use]
    pub fn tokens_read(&self) -> usize {
        self.cache.tokens()
    }

    /// Forgets what was read.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// The fault that ended the device, if any: then the logits are none.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.backend.fault()
    }

    /// Reads on, and yields the logits of the token behind `tokens`: one for each of the vocabulary.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    ///
    /// # Panics
    /// If there are no tokens, or with those that were read more than the model has positions.
    pub fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>, AllocateError> {
        let positions = self.cache.tokens() + tokens.len();
        assert!(positions <= self.model.positions as usize, "{positions} positions are read");
        let mut last = 0;
        for tokens in tokens.chunks(PASS_TOKENS_MAX) {
            self.pass(tokens)?;
            last = tokens.len();
        }
        let memory = self.memory.as_ref().filter(|_| last > 0);
        let memory = memory.expect("there is a token to read");
        let vocabulary = self.model.vocabulary as usize;
        let row = (last - 1) * vocabulary..last * vocabulary;
        Ok(self.backend.download(BufferView::new(memory.logits.values(), row)))
    }

    fn pass(&mut self, tokens: &[u32]) -> Result<(), AllocateError> {
        let shape = MicrobatchShape { sequences: 1, sequence_len: tokens.len() };
        let before = self.cache.block_count() as u32;
        let first_position = self.cache.tokens();
        let place = SlicePosition { slice: SliceIndex(before), count: before + 1, first_position };
        let angles = slice_angles(&self.backend, self.model, shape, place)?;
        let mut memory = match self.memory.take() {
            Some(memory) if memory.tokens == tokens.len() => memory,
            Some(_) | None => self.memory_for(shape)?,
        };
        let context = PassContext {
            backend: &self.backend,
            model: self.model,
            shape,
            place,
            angles: angles.as_ref(),
            timer: None,
        };
        // The loss of a pass is of no interest, and so are its targets.
        let batch = TokenBatch::new(tokens.to_vec(), vec![0; tokens.len()]);
        let earlier = self.cache.slices();
        let DecoderMemory { stash, logits, .. } = &mut memory;
        self.chunk.forward_slice(&context, &batch, &earlier, stash, Some(logits));
        self.cache.take(&self.backend, self.model, tokens.len(), stash)?;
        self.memory = Some(memory);
        Ok(())
    }

    fn memory_for(
        &self,
        shape: MicrobatchShape,
    ) -> Result<DecoderMemory<B::Buffer>, AllocateError> {
        // Nothing goes backward, so a slice needs no more than a whole sequence.
        let sizes = PassSizes::whole(self.model, shape);
        let mut make = |size: BufferSize| size.allocate(&self.backend);
        let layers = LayerRange::new(0, self.model.layer_count());
        Ok(DecoderMemory {
            tokens: shape.sequence_len,
            stash: PassStash::build(&sizes, layers, &mut make)?,
            logits: sizes.logits(&mut make)?,
        })
    }
}
