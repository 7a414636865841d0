//! The queries, keys and values of the tokens that a model has read, so that the next token is a
//! pass over that token alone.
//!
//! They lie in blocks of tokens, as a pass left them. A block is merged with the one before it
//! unless that is twice as long: n tokens lie in at most log2(n) + 1 blocks, and a token is copied
//! about as often. Queries are kept beside keys and values because that is how attention receives
//! earlier slices; with grouped keys they are the larger part.

use zbelastic_kernels::{AllocateError, Backend, BufferView, BufferViewMut};

use super::buffer_size::BufferSize;
use super::config::ModelConfig;
use super::layers::PassSizes;
use super::pass_stash::PassStash;
use crate::data::MicrobatchShape;
use zbelastic_types::LayerRange;

/// What a model has read of one sequence.
pub struct KeyValueCache<B: Backend> {
    /// In the order of the sequence.
    blocks: Vec<Block<B::Buffer>>,
}

/// Some tokens in a row.
struct Block<T> {
    /// With queries, keys and values of attention layers alone.
    stash: PassStash<T>,
    tokens: usize,
}

impl<B: Backend> Default for KeyValueCache<B> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<B: Backend> KeyValueCache<B> {
    /// Tokens that were read.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.blocks.iter().map(|block| block.tokens).sum()
    }

    /// Number of blocks, at most log2 of the tokens and one more.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// The blocks as earlier slices of a pass.
    pub fn slices(&mut self) -> Vec<&mut PassStash<B::Buffer>> {
        self.blocks.iter_mut().map(|block| &mut block.stash).collect()
    }

    /// Takes out of `stash` what a pass over the next `tokens` tokens left for later ones.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn take(
        &mut self,
        backend: &B,
        model: &ModelConfig,
        tokens: usize,
        stash: &mut PassStash<B::Buffer>,
    ) -> Result<(), AllocateError> {
        let mut block = Block::new(backend, model, tokens)?;
        for (own, made) in block.stash.qkv_mut().into_iter().zip(stash.qkv_mut()) {
            std::mem::swap(own, made);
        }
        while let Some(before) = self.blocks.pop_if(|before| before.tokens < 2 * block.tokens) {
            block = before.join(backend, model, block)?;
        }
        self.blocks.push(block);
        Ok(())
    }
}

impl<T> Block<T> {
    fn new<B: Backend<Buffer = T>>(
        backend: &B,
        model: &ModelConfig,
        tokens: usize,
    ) -> Result<Self, AllocateError> {
        let shape = MicrobatchShape { sequences: 1, sequence_len: tokens };
        let sizes = PassSizes::whole(model, shape);
        let layers = LayerRange::new(0, model.layer_count());
        let make = &mut |size: BufferSize| size.allocate(backend);
        Ok(Self { stash: PassStash::build_qkv(&sizes, layers, make)?, tokens })
    }

    /// Both as one block.
    fn join<B: Backend<Buffer = T>>(
        mut self,
        backend: &B,
        model: &ModelConfig,
        mut later: Self,
    ) -> Result<Self, AllocateError> {
        let mut joined = Self::new(backend, model, self.tokens + later.tokens)?;
        let parts = self.stash.qkv_mut().into_iter().zip(later.stash.qkv_mut());
        for (to, (first, second)) in joined.stash.qkv_mut().into_iter().zip(parts) {
            let middle = backend.len(first);
            let end = middle + backend.len(second);
            backend.copy(BufferView::new(first, 0..middle), BufferViewMut::new(to, 0..middle));
            let rest = BufferViewMut::new(to, middle..end);
            backend.copy(BufferView::new(second, 0..end - middle), rest);
        }
        Ok(joined)
    }
}
