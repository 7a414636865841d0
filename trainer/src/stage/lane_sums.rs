//! The sums of lanes that wait to be joined with others ([`crate::plan::LaneOrder`]).

use std::ops::Range;

use zbelastic_kernels::{Accumulate, AllocateError, Backend, BufferView, BufferViewMut};
use zbelastic_types::Bytes;

use crate::model::{Chunk, LayerParts, LayerState};
use crate::plan::{LaneAddition, LaneMemory};

/// What a W adds to: WE of the head may run far ahead of the rest, in another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GradientShare {
    /// The head's matrix.
    HeadMatrix,
    /// Everything else.
    Rest,
}

/// The sums of finished lanes of a chunk.
pub(super) struct LaneSums<B: Backend> {
    /// By level, and by layer of the chunk.
    levels: Vec<Vec<B::Buffer>>,
}

impl<B: Backend> LaneSums<B> {
    /// Memory for so many levels.
    ///
    /// # Errors
    /// If the device's memory does not hold them.
    pub(super) fn new(
        backend: &B,
        layers: &[LayerState<B>],
        levels: usize,
    ) -> Result<Self, AllocateError> {
        let level =
            |_| layers.iter().map(|layer| backend.allocate(layer.spec.gradient_len())).collect();
        Ok(Self { levels: (0..levels).map(level).collect::<Result<_, _>>()? })
    }

    /// Bytes that the sums have allocated.
    pub(super) fn allocated_bytes(&self, backend: &B) -> Bytes {
        let buffers = self.levels.iter().flatten();
        Bytes(buffers.map(|sum| backend.buffer_bytes(backend.len(sum))).sum())
    }

    /// Runs a W that adds to `share`, in the memory of its lane, and joins the lane with those that
    /// wait for it if it was the lane's last.
    pub(super) fn add(
        &mut self,
        (backend, chunk): (&B, &mut Chunk<B>),
        (share, addition): (GradientShare, LaneAddition),
        run: impl FnOnce(&mut Chunk<B>, Accumulate),
    ) {
        let accumulate = if addition.is_first { Accumulate::Start } else { Accumulate::Add };
        self.exchange(chunk, addition.memory);
        run(chunk, accumulate);
        self.exchange(chunk, addition.memory);
        for level in 0..addition.carries {
            self.carry(backend, chunk, share, (level, addition.memory));
        }
    }

    /// Puts the memory of a lane in the place of the chunk's gradient, or back.
    fn exchange(&mut self, chunk: &mut Chunk<B>, memory: LaneMemory) {
        match memory {
            LaneMemory::Gradient => {}
            LaneMemory::Level(level) => {
                for (layer, sum) in chunk.layers_mut().iter_mut().zip(&mut self.levels[level]) {
                    std::mem::swap(&mut layer.g, sum);
                }
            }
        }
    }

    /// The sum that waits at `from` plus the one in `to`, in place of the latter.
    fn carry(
        &mut self,
        backend: &B,
        chunk: &mut Chunk<B>,
        share: GradientShare,
        (from, to): (usize, LaneMemory),
    ) {
        let (below, above) = self.levels.split_at_mut(from + 1);
        for (index, layer) in chunk.layers_mut().iter_mut().enumerate() {
            let runs = trained_runs(layer, share);
            let right = match to {
                LaneMemory::Gradient => &mut layer.g,
                LaneMemory::Level(level) => &mut above[level - from - 1][index],
            };
            for range in runs {
                let left = BufferView::new(&below[from][index], range.clone());
                backend.add(left, BufferViewMut::new(right, range));
            }
        }
    }
}

/// Where the gradient lies of a layer's trained parameters in `share`: neighbours together.
fn trained_runs<B: Backend>(layer: &LayerState<B>, share: GradientShare) -> Vec<Range<usize>> {
    let head_matrix = match &layer.parts {
        LayerParts::Head { head, .. } => Some(&head.weight),
        LayerParts::Embed { .. } | LayerParts::Attention { .. } | LayerParts::Mlp { .. } => None,
    };
    let is_of_head = share == GradientShare::HeadMatrix;
    let mut runs: Vec<Range<usize>> = Vec::new();
    for tensor in layer.spec.trained_tensors() {
        if (Some(&tensor.range) == head_matrix) != is_of_head {
            continue;
        }
        let range = tensor.state_range().gradient();
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            Some(_) | None => runs.push(range),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::{CpuBackend, DeviceMemory};

    use super::*;
    use crate::model::{
        Family, FrozenTensors, LlamaFeatures, ModelConfig, frozen_tensors, initial_weights,
        model_layers,
    };

    fn model() -> ModelConfig {
        ModelConfig {
            family: Family::Gpt2,
            blocks: 1,
            width: 8,
            heads: 2,
            kv_heads: 2,
            head_width: 4,
            mlp_width: 12,
            features: LlamaFeatures::NONE,
            vocabulary: 10,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    /// A waiting sum of ones is added to a gradient of twos, where something is trained: the head's matrix
    /// and the rest each by itself, and each once.
    #[test]
    fn sums_are_added_of_what_is_trained_alone() {
        let backend = CpuBackend::new(1).expect("one thread");
        for patterns in [&[][..], &["embed", "layers.0.attn.k", "layers.*.norm2"], &["head"]] {
            let patterns: Vec<String> = patterns.iter().map(|it: &&str| (*it).to_owned()).collect();
            let frozen = frozen_tensors(&model(), &patterns).expect("there are such");
            let model = model().freezing(frozen);
            let layers = model_layers(&model).into_iter().map(|spec| {
                let weights = initial_weights(&spec, 7);
                LayerState::new(&backend, &model, spec, &weights).expect("memory")
            });
            let mut chunk = Chunk::new(layers.collect());
            let mut sums = LaneSums::new(&backend, chunk.layers(), 1).expect("memory");
            for (layer, sum) in chunk.layers_mut().iter_mut().zip(&mut sums.levels[0]) {
                let all = 0..layer.spec.gradient_len();
                let write = |x, to| {
                    backend.upload(&vec![x; all.len()], BufferViewMut::new(to, all.clone()))
                };
                write(1.0, sum);
                write(2.0, &mut layer.g);
            }
            let mut added = Vec::new();
            for share in [GradientShare::HeadMatrix, GradientShare::Rest] {
                let addition =
                    LaneAddition { memory: LaneMemory::Gradient, is_first: false, carries: 1 };
                sums.add((&backend, &mut chunk), (share, addition), |_, _| {});
                added.push(share);
                for layer in chunk.layers() {
                    let all = BufferView::new(&layer.g, 0..layer.spec.gradient_len());
                    let g = backend.download(all);
                    for tensor in &layer.spec.tensors {
                        let Some(place) = &tensor.gradient else { continue };
                        let of = match &tensor.name[..] {
                            "head" => GradientShare::HeadMatrix,
                            _ => GradientShare::Rest,
                        };
                        let is_added = !tensor.is_frozen && added.contains(&of);
                        let expected = if is_added { 3.0 } else { 2.0 };
                        let found = &g[place.clone()];
                        assert!(found.iter().all(|x| *x == expected), "{share:?}, {}", tensor.name);
                    }
                }
            }
        }
    }
}
