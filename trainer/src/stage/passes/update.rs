//! The optimizer's update on all layers of a stage, timed layer by layer.

use zbelastic_kernels::Backend;

use super::Bench;
use crate::model::{AfterCommit, LayerPart, LayerState};
use crate::optimizer::{OptimizerConfig, Update, commit};
use crate::stage::workbench::UpdateOrder;

impl<B: Backend> Bench<B> {
    pub(super) fn commit_then(&mut self, order: UpdateOrder, then: AfterCommit) {
        self.with_update(order, LayerPart::Commit, |backend, layer, update| {
            commit(backend, layer, update, order.step, then);
        });
    }

    pub(super) fn update<'c>(&self, config: &'c OptimizerConfig, order: UpdateOrder) -> Update<'c> {
        let UpdateOrder { step, number, clip } = order;
        Update { config, lr: config.lr_at(step, self.step_count), number, clip }
    }

    pub(super) fn with_update(
        &mut self,
        order: UpdateOrder,
        part: LayerPart,
        mut change: impl FnMut(&B, &mut LayerState<B>, &Update<'_>),
    ) {
        let config = self.optimizer.clone();
        let update = self.update(&config, order);
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
