//! The optimizer's update on all layers of a stage, timed layer by layer.

use std::ops::Range;

use zbelastic_kernels::Backend;
use zbelastic_types::{ChunkIndex, LayerId, Step};

use super::BackendExecutor;
use super::gradients::FloatRun;
use crate::model::{AfterCommit, LayerOp, LayerState};
use crate::optimizer::{
    OptimizerConfig, OptimizerUpdate, commit, compute_candidate, drop_candidate, skip,
};
use crate::outer::OuterWeights;
use crate::stage::executor::{OuterExecutor, UpdateExecutor, UpdateRequest};

impl<B: Backend> UpdateExecutor for BackendExecutor<B> {
    fn compute_candidate(&mut self, request: UpdateRequest) {
        // The report and the step may lie in two turns, of which the second is timed.
        let is_timed = self.timer.is_timed();
        self.with_update(request, LayerOp::Candidate, |backend, layer, update| {
            if is_timed {
                layer.forget_computed_ahead();
            }
            compute_candidate(backend, layer, update);
        });
    }

    fn drop_candidate(&mut self) {
        let (backend, layers) = self.update_layers();
        layers.for_each(|layer| drop_candidate(backend, layer));
    }

    fn commit(&mut self, request: UpdateRequest) {
        self.commit_then(request, AfterCommit::Nothing);
    }

    fn commit_to_attest(&mut self, request: UpdateRequest) {
        self.commit_then(request, AfterCommit::Attest);
    }

    fn candidates(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        let mut candidates = Vec::with_capacity(floats.len());
        let mut rest = FloatRun::new(floats);
        for layer in self.layers_at(chunk) {
            if rest.next_of(layer.spec.gradient_len()).is_some() {
                layer.weights_in_force_to(&self.backend, &mut candidates);
            }
        }
        candidates
    }

    fn gather_candidates(&mut self, chunk: ChunkIndex, (first, mut weights): (usize, &[f32])) {
        self.bring_layers(chunk);
        let Self { backend, chunks, .. } = self;
        let workspace = chunks.get_mut(&chunk).expect("a chunk of this stage");
        let mut rest = FloatRun::new(first..first + weights.len());
        for layer in workspace.chunk.layers_mut() {
            let Some(within) = rest.next_of(layer.spec.gradient_len()) else { continue };
            let (own, behind) = weights.split_at(within.len());
            layer.gather_candidate(backend, own);
            weights = behind;
        }
    }

    fn skip(&mut self, step: Step) {
        let (_, layers) = self.update_layers();
        layers.for_each(|layer| skip(layer, step));
    }
}

impl<B: Backend> OuterExecutor for BackendExecutor<B> {
    fn trained_weights(&self, layer: LayerId) -> Vec<f32> {
        let mut layers = self.chunks.keys().flat_map(|chunk| self.layers_at(*chunk));
        let layer = layers.find(|found| found.spec.layer == layer).expect("a layer of this stage");
        layer.trained_weights(&self.backend)
    }

    fn mix_outer(&mut self, outer: &OuterWeights) {
        let (backend, mut layers) = self.update_layers();
        let layer = layers.find(|found| found.spec.layer == outer.layer);
        let layer = layer.expect("a layer of this stage");
        layer.mix_weights(backend, &outer.weights, outer.local_share);
    }
}

impl<B: Backend> BackendExecutor<B> {
    pub(super) fn commit_then(&mut self, request: UpdateRequest, then: AfterCommit) {
        self.with_update(request, LayerOp::Commit, |backend, layer, update| {
            if !layer.lacks_candidate() {
                commit(backend, layer, update, request.step, then);
            }
        });
    }

    pub(super) fn update<'c>(
        &self,
        config: &'c OptimizerConfig,
        request: UpdateRequest,
    ) -> OptimizerUpdate<'c> {
        let UpdateRequest { step, number, clip } = request;
        OptimizerUpdate { config, lr: config.lr_at(step, self.step_count), number, clip }
    }

    pub(super) fn with_update(
        &mut self,
        request: UpdateRequest,
        part: LayerOp,
        mut change: impl FnMut(&B, &mut LayerState<B>, &OptimizerUpdate<'_>),
    ) {
        let config = self.optimizer.clone();
        let update = self.update(&config, request);
        let timer = std::mem::take(&mut self.timer);
        let (backend, layers) = self.update_layers();
        timer.begin(backend);
        for layer in layers {
            change(backend, layer, &update);
            timer.pass(backend, layer.spec.kind, part);
        }
        self.timer = timer;
    }
}
