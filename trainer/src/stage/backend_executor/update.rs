//! The optimizer's update on all layers of a stage, timed layer by layer.

use zbelastic_kernels::Backend;

use super::BackendExecutor;
use crate::model::{AfterCommit, LayerOp, LayerState};
use crate::optimizer::{OptimizerConfig, OptimizerUpdate, commit};
use crate::stage::executor::UpdateRequest;

impl<B: Backend> BackendExecutor<B> {
    pub(super) fn commit_then(&mut self, request: UpdateRequest, then: AfterCommit) {
        self.with_update(request, LayerOp::Commit, |backend, layer, update| {
            commit(backend, layer, update, request.step, then);
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
