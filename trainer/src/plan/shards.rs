//! The shards of a sharded optimizer: which replica updates which layers of a plan.

use std::ops::Range;

use zbelastic_schedule::{ScheduleViolation, check, deal_shards};
use zbelastic_types::{ChunkIndex, StageIndex};

use super::{Plan, lowered};
use crate::model::{LayerRange, LayerSpec, ModelConfig, ShardPart, model_layers};

impl Plan {
    /// The same with the optimizer sharded over its replicas, so that at least so many have the moments of each
    /// layer: into as many shards as that leaves, and as every chunk has layers. As it was where that is one
    /// shard, where columns run in two directions, and where the head is tied to the embedding: the gradients of both
    /// ends are added where both are whole.
    ///
    /// A shard is a run of whole layers, so that one layer has one state wherever it is.
    #[must_use]
    pub fn with_shards(self, model: &ModelConfig, holders_min: u32) -> Self {
        let placement = self.placement();
        let specs = model_layers(model);
        let once = &self.chunks[..placement.chunks_per_replica() as usize];
        let fewest = once.iter().map(|layers| layers.ids().len() as u32).min().unwrap_or(1);
        let most = (placement.column_count() / holders_min.max(1)).min(fewest).max(1);
        // A power of two, which divides the replicas.
        let shards = 1 << most.ilog2();
        if shards == 1 || placement.direction_count() > 1 || self.program.is_tied() {
            return self;
        }
        let lengths = |layers: &LayerRange| {
            layers.ids().map(|layer| specs[layer as usize].gradient_len()).collect::<Vec<_>>()
        };
        let dealt = once.iter().map(|layers| deal_shards(&lengths(layers), shards)).collect();
        let sharded = placement.clone().sharded(dealt).expect("counted above");
        let window = self.program.window.expect("a plan is lowered");
        let order = zbelastic_schedule::Program { placement: sharded, ..self.program };
        let program = lowered(&order, window, false);
        let violations: Result<(), Vec<ScheduleViolation>> = check(&program);
        assert_eq!(violations, Ok(()), "shards go with every legal program");
        Self { program, ..self }
    }

    /// Whether replicas share the optimizer's updates.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.placement().shards().count() > 1
    }

    /// The layers of `chunk` that its replica updates: all of them if the optimizer is not sharded.
    #[must_use]
    pub fn updated_layers(&self, chunk: ChunkIndex) -> Range<u32> {
        self.placement().shards().updated(chunk, self.layers_of(chunk).ids())
    }

    /// The layers of `chunk` that its replica speaks for: of the replicas that update a layer the first one.
    #[must_use]
    pub fn owned_layers(&self, chunk: ChunkIndex) -> Range<u32> {
        self.placement().shards().owned(chunk, self.layers_of(chunk).ids())
    }

    /// What `stage` does of the updates of a layer of `chunk`; none if the optimizer is not sharded.
    #[must_use]
    pub fn shard_part(
        &self,
        stage: StageIndex,
        chunk: ChunkIndex,
        layer: u32,
    ) -> Option<ShardPart> {
        if !self.is_sharded() {
            return None;
        }
        let placement = self.placement();
        let here = placement.group_of(chunk).filter(|of| placement.stage_of(*of) == Some(stage));
        let mut updated = here.map(|of| self.updated_layers(of));
        let is_updated = updated.any(|layers| layers.contains(&layer));
        Some(if is_updated { ShardPart::Updated } else { ShardPart::Gathered })
    }

    /// Floats of the gradient of a chunk by shard, of the layers of a model.
    pub(super) fn shard_lens_of(&self, chunk: ChunkIndex, specs: &[LayerSpec]) -> Vec<usize> {
        let layers = self.layers_of(chunk).ids();
        let lengths: Vec<usize> =
            layers.map(|layer| specs[layer as usize].gradient_len()).collect();
        self.placement().shards().lens(chunk, &lengths)
    }
}
