//! The activations that a pass keeps, part by part: as lengths, as memory, and as floats on their
//! way.

use zbelastic_kernels::{Backend, BufferView, BufferViewMut};
use zbelastic_types::{LayerId, LayerRange};

use super::buffer_size::BufferSize;
use super::config::LayerKind;
use super::layers::{AttentionStash, HeadStash, Logits, MlpStash, PassSizes, StashPartsMut};
use super::recompute::{Recompute, RecomputedParts, StashPart};

/// The activations that one layer's pass keeps.
pub(super) enum LayerStash<T> {
    Embed,
    Attention(AttentionStash<T>),
    Mlp(MlpStash<T>),
    Head(HeadStash<T>),
}

/// The activations that one microbatch's passes over a chunk keep, from F to W.
///
/// `residuals[i]` is the input of layer `i` and, once its B has run, the gradient of that; the
/// last one is the chunk's result and then the gradient that came back.
pub struct PassStash<T> {
    pub(super) residuals: Vec<T>,
    pub(super) layers: Vec<LayerStash<T>>,
}

impl<T> PassStash<T> {
    /// A stash for `layers`, its parts made by `make` from their sizes.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn build<E>(
        sizes: &PassSizes<'_>,
        layers: LayerRange,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<Self, E> {
        buffer_sizes(sizes, layers).try_map(&mut |_, size| make(size))
    }

    /// The same with the parts that `recompute` keeps, and none that it recomputes.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn build_kept<E>(
        sizes: &PassSizes<'_>,
        layers: LayerRange,
        recompute: Recompute,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<Self, E> {
        let recomputed = recompute.parts(sizes.is_cut);
        let kept =
            |part, size: BufferSize| if recomputed.contain(part) { size.emptied() } else { size };
        buffer_sizes(sizes, layers).try_map(&mut |part, size| make(kept(part, size)))
    }

    /// The same with the parts that `recompute` recomputes, and nothing else.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn build_recomputed<E>(
        sizes: &PassSizes<'_>,
        layers: LayerRange,
        recompute: Recompute,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<Self, E> {
        let recomputed = recompute.parts(sizes.is_cut);
        let again =
            |part, size: BufferSize| if recomputed.contain(part) { size } else { size.emptied() };
        buffer_sizes(sizes, layers).try_map(&mut |part, size| make(again(part, size)))
    }

    /// A stash of queries, keys and values, and of nothing else.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn build_qkv<E>(
        sizes: &PassSizes<'_>,
        layers: LayerRange,
        make: &mut impl FnMut(BufferSize) -> Result<T, E>,
    ) -> Result<Self, E> {
        let kept =
            |part, size: BufferSize| if part == StashPart::Qkv { size } else { size.emptied() };
        buffer_sizes(sizes, layers).try_map(&mut |part, size| make(kept(part, size)))
    }

    /// The queries, keys and values of each attention layer, in order.
    pub(super) fn qkv_mut(&mut self) -> Vec<&mut T> {
        let parts = self.parts_mut().into_iter();
        parts.filter(|(part, _)| *part == StashPart::Qkv).map(|(_, buffer)| buffer).collect()
    }

    /// The activations that the attention layer with this index, counted in the chunk, keeps.
    ///
    /// # Panics
    /// If that layer is another one.
    pub(super) fn attention(&self, layer: usize) -> &AttentionStash<T> {
        match &self.layers[layer] {
            LayerStash::Attention(stash) => stash,
            LayerStash::Embed | LayerStash::Mlp(_) | LayerStash::Head(_) => {
                unreachable!("slices have the layers of their chunk")
            }
        }
    }

    /// Swaps the buffers of the recomputed parts between two stashes, of which one has them.
    pub fn swap_recomputed(&mut self, other: &mut Self, recomputed: RecomputedParts) {
        for ((part, own), (_, other)) in self.parts_mut().into_iter().zip(other.parts_mut()) {
            if recomputed.contain(part) {
                std::mem::swap(own, other);
            }
        }
    }

    fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<PassStash<U>, E> {
        let last = self.residuals.len() - 1;
        let mut residuals = Vec::with_capacity(self.residuals.len());
        for (index, residual) in self.residuals.into_iter().enumerate() {
            residuals.push(make(residual_part(index, last), residual)?);
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in self.layers {
            layers.push(match layer {
                LayerStash::Embed => LayerStash::Embed,
                LayerStash::Attention(stash) => LayerStash::Attention(stash.try_map(make)?),
                LayerStash::Mlp(stash) => LayerStash::Mlp(stash.try_map(make)?),
                LayerStash::Head(stash) => LayerStash::Head(stash.try_map(make)?),
            });
        }
        Ok(PassStash { residuals, layers })
    }

    /// Every part, always in the same order.
    fn parts_mut(&mut self) -> StashPartsMut<'_, T> {
        let Self { residuals, layers } = self;
        let last = residuals.len() - 1;
        let residuals = residuals.iter_mut().enumerate();
        let mut parts: StashPartsMut<'_, T> =
            residuals.map(|(index, part)| (residual_part(index, last), part)).collect();
        for layer in layers {
            match layer {
                LayerStash::Embed => {}
                LayerStash::Attention(stash) => stash.list(&mut parts),
                LayerStash::Mlp(stash) => stash.list(&mut parts),
                LayerStash::Head(stash) => stash.list(&mut parts),
            }
        }
        parts
    }

    /// The buffers that F leaves for B, part by part.
    fn left_by_forward(&mut self) -> impl Iterator<Item = &mut T> {
        let parts = self.parts_mut().into_iter();
        parts.filter(|(part, _)| part.is_left_by_forward()).map(|(_, buffer)| buffer)
    }
}

const fn residual_part(index: usize, last: usize) -> StashPart {
    match index {
        0 => StashPart::Input,
        index if index == last => StashPart::Result,
        _ => StashPart::Boundary,
    }
}

/// The size of each part's buffer.
fn buffer_sizes(sizes: &PassSizes<'_>, layers: LayerRange) -> PassStash<BufferSize> {
    let is_inner = |boundary: u32| boundary > 0 && boundary < sizes.model.layer_count();
    let residual =
        |boundary| BufferSize::Rows(if is_inner(boundary) { sizes.residual() } else { 0 });
    let ids = layers.ids();
    let of_layer = |layer| {
        let make = &mut |size| Ok::<BufferSize, std::convert::Infallible>(size);
        let stash = match sizes.model.layer_kind(LayerId(layer)) {
            LayerKind::Embed => Ok(LayerStash::Embed),
            LayerKind::Attention { .. } => sizes.attention(make).map(LayerStash::Attention),
            LayerKind::Mlp { .. } => sizes.mlp(make).map(LayerStash::Mlp),
            LayerKind::Head => sizes.head(make).map(LayerStash::Head),
        };
        let Ok(stash) = stash;
        stash
    };
    PassStash {
        residuals: (ids.start..=ids.end).map(residual).collect(),
        layers: ids.map(of_layer).collect(),
    }
}

/// The buffers that F left in a pass's stash, and in its logits if it has some, part by part: they
/// are offloaded with the pass.
pub fn offload_parts<'s, B: Backend>(
    backend: &B,
    stash: &'s mut PassStash<B::Buffer>,
    logits: Option<&'s mut Logits<B::Buffer>>,
) -> Vec<&'s mut B::Buffer> {
    let logits = logits.into_iter().flat_map(Logits::list);
    let parts = stash.left_by_forward().chain(logits);
    parts.filter(|buffer| backend.len(buffer) > 0).collect()
}

/// Has the device wait for copies that still use parts of a stash, or logits.
pub fn settle<B: Backend>(
    backend: &B,
    stash: &mut PassStash<B::Buffer>,
    logits: Option<&mut Logits<B::Buffer>>,
) {
    let parts = stash.parts_mut().into_iter().map(|(_, buffer)| buffer);
    let logits = logits.into_iter().flat_map(Logits::list);
    parts.chain(logits).for_each(|buffer| backend.order_after_copies(buffer));
}

/// The floats in these parts, one behind the other.
pub fn download_parts<B: Backend>(backend: &B, parts: &mut [&mut B::Buffer]) -> Vec<f32> {
    let mut floats = Vec::new();
    for buffer in parts {
        backend.order_after_copies(buffer);
        floats.extend(download(backend, buffer));
    }
    floats
}

/// Puts the floats of [`download_parts`] into other memory of the same sizes.
///
/// # Panics
/// If there are more floats or fewer.
pub fn upload_parts<B: Backend>(backend: &B, floats: &[f32], parts: &mut [&mut B::Buffer]) {
    let mut remaining = floats;
    for buffer in parts {
        let (part, behind) = remaining.split_at(backend.len(buffer));
        backend.order_after_copies(buffer);
        backend.upload(part, BufferViewMut::new(buffer, 0..part.len()));
        remaining = behind;
    }
    assert!(remaining.is_empty(), "what is uploaded is what was downloaded");
}

/// The sizes of [`offload_parts`], part by part.
#[must_use]
pub fn offload_sizes(
    sizes: &PassSizes<'_>,
    layers: LayerRange,
    recompute: Recompute,
    has_logits: bool,
) -> Vec<BufferSize> {
    let mut stash = buffer_sizes(sizes, layers);
    let recomputed = recompute.parts(sizes.is_cut);
    let parts = stash.parts_mut();
    let offloaded = parts.iter().filter(|(part, _)| part.is_left_by_forward());
    let offloaded = offloaded.filter(|(part, _)| !recomputed.contain(*part));
    let mut sizes_offloaded: Vec<BufferSize> = offloaded.map(|(_, size)| **size).collect();
    if has_logits {
        let make = &mut |size: BufferSize| Ok::<BufferSize, std::convert::Infallible>(size);
        let Ok(mut logits) = sizes.logits(make);
        sizes_offloaded.extend(logits.list().into_iter().map(|size| *size));
    }
    sizes_offloaded
}

pub(super) fn download<B: Backend>(backend: &B, buffer: &B::Buffer) -> Vec<f32> {
    backend.download(BufferView::new(buffer, 0..backend.len(buffer)))
}
