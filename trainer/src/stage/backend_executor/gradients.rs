//! The gradients of a stage, frozen behind the last W of a step.

use std::ops::Range;

use zbelastic_consensus::validation::TensorSum;
use zbelastic_kernels::{Backend, BufferView, BufferViewMut, PendingFloats};
use zbelastic_schedule::TreeSide;
use zbelastic_types::{ChunkIndex, LayerId};

use super::BackendExecutor;
use crate::model::{TiedEnd, TiedParts};
use crate::optimizer::{square_sums, square_sums_ahead};
use crate::stage::executor::{GradientExecutor, StageExecutor, UpdateRequest};
use crate::stage::injection::Injection;

/// Why a layer has the matrix that a tied head shares with the embedding.
const HAS_MATRIX: &str = "an end of a tied model has the matrix";

impl<B: Backend> GradientExecutor for BackendExecutor<B> {
    fn freeze(&mut self) {
        let expected = self.lane_order.additions();
        for chunk in self.chunk_indices() {
            self.bring_layers(chunk);
            let workspace = self.workspace(chunk);
            assert_eq!(workspace.accumulated, expected, "every microbatch is in the gradient");
            if workspace.chunk.has_head() {
                assert_eq!(workspace.head_accumulated, expected, "in the head's as well");
            }
            (workspace.accumulated, workspace.head_accumulated) = (0, 0);
        }
    }

    fn inject(&mut self, injection: &Injection) {
        for chunk in self.chunk_indices() {
            self.bring_layers(chunk);
            let Self { backend, chunks, .. } = self;
            let layers = chunks.get_mut(&chunk).into_iter().flat_map(|it| it.chunk.layers_mut());
            layers.for_each(|layer| injection.apply(backend, layer));
        }
    }

    fn square_sums(&mut self) -> Vec<TensorSum> {
        square_sums(&self.backend, self.layers())
    }

    /// Not where updates are timed, where each part is timed alone, and not with Muon, whose candidates
    /// are more than a read of the gradient.
    fn square_sums_ahead(&mut self, request: UpdateRequest) -> Vec<TensorSum> {
        let has_whole_candidates = self.placement.shards().count() > 1;
        let is_packed = self.backend.packed_weights_optimizer().is_some() && !has_whole_candidates;
        if !is_packed || self.timer.is_timed() || !self.optimizer.kind.is_adamw() {
            return self.square_sums();
        }
        let config = self.optimizer.clone();
        let update = self.update(&config, request);
        let (backend, layers) = self.owned_layers();
        let optimizer = backend.packed_weights_optimizer().expect("checked above");
        square_sums_ahead::<B>(optimizer, layers, &update)
    }

    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)> {
        let (backend, layers) = self.owned_layers();
        layers.map(|layer| (layer.spec.layer, backend.begin_download(&mut layer.g))).collect()
    }

    fn gradient(&mut self, layer: LayerId) -> Option<PendingFloats> {
        let (backend, mut layers) = self.owned_layers();
        let found = layers.find(|found| found.spec.layer == layer);
        found.map(|layer| backend.begin_download(&mut layer.g))
    }

    fn layer_lens(&self, chunk: ChunkIndex) -> Vec<usize> {
        self.layers_at(chunk).iter().map(|layer| layer.spec.gradient_len()).collect()
    }

    fn partial(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        let mut partial = Vec::with_capacity(floats.len());
        let mut rest = FloatRun::new(floats);
        for (layer, g) in self.gradients_of(chunk) {
            if let Some(within) = rest.next_of(layer.spec.gradient_len()) {
                self.backend.download_to(BufferView::new(g, within), &mut partial);
            }
        }
        partial
    }

    fn tied_len(&self) -> usize {
        let matrix = self.model.head_matrix();
        matrix.outputs * matrix.inputs
    }

    fn tied_part(&self, chunk: ChunkIndex, end: TiedEnd) -> Vec<f32> {
        let of_end = end.layer(self.layers_at(chunk)).spec.layer;
        let found = self.gradients_of(chunk).find(|(layer, _)| layer.spec.layer == of_end);
        let (layer, g) = found.expect(HAS_MATRIX);
        let range = layer.spec.tied_range().expect(HAS_MATRIX);
        self.backend.download(BufferView::new(g, layer.spec.gradient_of(&range)))
    }

    fn tie(&mut self, ends: &[(ChunkIndex, TiedEnd)], parts: TiedParts) {
        let sum = parts.into_sum();
        for (chunk, end) in ends {
            self.bring_layers(*chunk);
            let workspace = self.chunks.get_mut(chunk).expect("a chunk of this stage");
            let layer = end.layer_mut(workspace.chunk.layers_mut());
            let range = layer.spec.tied_range().expect(HAS_MATRIX);
            let range = layer.spec.gradient_of(&range);
            layer.settle_gradient(&self.backend);
            self.backend.upload(&sum, BufferViewMut::new(&mut layer.g, range));
        }
    }

    fn reduce(&mut self, chunk: ChunkIndex, (first, other): (usize, &[f32]), own_side: TreeSide) {
        write_floats(self, chunk, (first, other), |backend, g, other| {
            backend.change(g, |own| add_other(own, other, own_side));
        });
    }

    fn gather(&mut self, chunk: ChunkIndex, sums: (usize, &[f32])) {
        write_floats(self, chunk, sums, |backend, g, sums| backend.upload(sums, g));
    }
}

/// Goes through the gradient of `chunk` layer by layer, from the index of the first float on: `write` writes a part
/// of it by the part of `others` that belongs there.
fn write_floats<B: Backend>(
    executor: &mut BackendExecutor<B>,
    chunk: ChunkIndex,
    (first, mut others): (usize, &[f32]),
    write: impl Fn(&B, BufferViewMut<'_, B::Buffer>, &[f32]),
) {
    let end = first + others.len();
    let len = executor.layer_lens(chunk).iter().sum();
    assert!(end <= len, "replicas have the same layers");
    executor.bring_layers(chunk);
    let BackendExecutor { backend, chunks, .. } = executor;
    let workspace = chunks.get_mut(&chunk).expect("a chunk of this stage");
    let mut rest = FloatRun::new(first..end);
    for layer in workspace.chunk.layers_mut() {
        let Some(within) = rest.next_of(layer.spec.gradient_len()) else { continue };
        let (other, behind) = others.split_at(within.len());
        layer.settle_gradient(backend);
        write(backend, BufferViewMut::new(&mut layer.g, within), other);
        others = behind;
    }
}

/// Floats of a chunk's gradient that follow each other, gone through layer by layer.
pub(super) struct FloatRun {
    floats: Range<usize>,
    /// Index of the next layer's first float.
    next: usize,
}

impl FloatRun {
    pub(super) fn new(floats: Range<usize>) -> Self {
        Self { floats, next: 0 }
    }

    /// Those of the next layer, which has `len` of them, counted from its first one.
    pub(super) fn next_of(&mut self, len: usize) -> Option<Range<usize>> {
        let before = self.next;
        self.next += len;
        let within = self.floats.start.max(before)..self.floats.end.min(self.next);
        (!within.is_empty()).then(|| within.start - before..within.end - before)
    }
}

/// Adds another replica's gradient to the own one: left plus right, also where one of them is no number.
fn add_other(own: &mut [f32], other: &[f32], own_side: TreeSide) {
    let sum = |left: f32, right: f32| left + right;
    let pairs = own.iter_mut().zip(other);
    match own_side {
        TreeSide::Left => pairs.for_each(|(own, other)| *own = sum(*own, *other)),
        TreeSide::Right => pairs.for_each(|(own, other)| *own = sum(*other, *own)),
    }
}
