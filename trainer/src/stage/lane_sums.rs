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
        let level = |_| layers.iter().map(|layer| backend.allocate(layer.spec.len())).collect();
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
            let ranges = shared_ranges(layer, share);
            let right = match to {
                LaneMemory::Gradient => &mut layer.g,
                LaneMemory::Level(level) => &mut above[level - from - 1][index],
            };
            for range in ranges {
                let left = BufferView::new(&below[from][index], range.clone());
                backend.add(left, BufferViewMut::new(right, range));
            }
        }
    }
}

/// The parts of a layer's gradient that are in `share`; none of a layer that is frozen.
fn shared_ranges<B: Backend>(layer: &LayerState<B>, share: GradientShare) -> Vec<Range<usize>> {
    let whole = 0..layer.spec.len();
    let ranges = match (&layer.parts, share) {
        (LayerParts::Head { head, .. }, GradientShare::HeadMatrix) => [head.weight.clone(), 0..0],
        (LayerParts::Head { head, .. }, GradientShare::Rest) => {
            [0..head.weight.start, head.weight.end..whole.end]
        }
        (_, GradientShare::HeadMatrix) => [0..0, 0..0],
        (_, GradientShare::Rest) => [whole, 0..0],
    };
    let is_trained = |range: &Range<usize>| !range.is_empty() && layer.spec.trains(range);
    ranges.into_iter().filter(is_trained).collect()
}
