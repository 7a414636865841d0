//! Which frames each sender of a plan may send to a worker, and how long each is.

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_schedule::TreeExchange;
use zbelastic_trainer::elastic::{GRADIENT_FRAME_LIMITS, split_into_frames};
use zbelastic_trainer::model::{ModelConfig, model_layers};
use zbelastic_trainer::plan::{BatchShape, TokenWork};
use zbelastic_trainer::stage::PartialExchange;
use zbelastic_transport::FrameRules;
use zbelastic_transport::frame::RuleError;
use zbelastic_types::{ChunkIndex, NodeId, SliceIndex, StageIndex};

use super::{
    BOUNDARIES_MAX, GRADIENT_FRAMES_MAX, LAYER_PIECES_MAX, PARTIAL_PIECES_MAX, TensorFrameKind,
    piece_limits,
};

/// What may be sent to a worker: by the others of its plan, and by those whose layers it follows.
/// Longer or shorter frames close the connection before a byte is allocated.
pub struct FrameExpectations<'a> {
    /// The node that receives.
    pub me: NodeId,
    /// The model that is trained.
    pub model: &'a ModelConfig,
    /// The shape of the job's batches.
    pub batch: BatchShape,
    /// The plan that was loaded last.
    pub plan: Option<&'a PlanRecord>,
    /// What is copied ahead.
    pub precopy: Option<&'a PreCopyPlan>,
}

impl FrameExpectations<'_> {
    /// The rules of it: from every stage of the plan boundary tensors and sums, its gradient if
    /// this node keeps a copy of it, and its part of one if this node trains the same layers, or the
    /// other end of a tied model; from every owner that is followed the gradients of its layers.
    ///
    /// # Errors
    /// If a plan has longer frames than the lane takes.
    pub fn rules(&self) -> Result<FrameRules, RuleError> {
        let specs = model_layers(self.model);
        let mut rules = FrameRules::new();
        if let Some(plan) = self.plan {
            let now = plan.generation;
            let boundaries = self.boundaries(plan);
            let is_tied = plan.program.is_tied();
            let own = plan.stages.iter().position(|holder| holder.node == self.me);
            let own = own.map(|stage| StageIndex(stage as u32));
            let stages = plan.stages.iter().zip(plan.stage_indices());
            for (holder, of) in stages.filter(|(holder, _)| holder.node != self.me) {
                let lengths = plan.layers_of(of).map(|layer| specs[layer.index()].gradient_len());
                let lengths: Vec<usize> = lengths.collect();
                for (slice, floats) in &boundaries {
                    rules.allow(
                        holder.node,
                        TensorFrameKind::Boundary(*slice).of(now),
                        vec![*floats],
                    )?;
                    let pairs = floats.div_ceil(2);
                    rules.allow(
                        holder.node,
                        TensorFrameKind::Halves(*slice).of(now),
                        vec![pairs],
                    )?;
                }
                rules.allow(holder.node, TensorFrameKind::Prefix.of(now), Vec::new())?;
                rules.allow(holder.node, TensorFrameKind::Receipt.of(now), Vec::new())?;
                rules.allow(holder.node, TensorFrameKind::Link.of(now), Vec::new())?;
                if let Some(own) = own {
                    self.allow_partials(&mut rules, plan, [own, of], holder.node)?;
                }
                if let Some(own) = own.filter(|_| is_tied) {
                    self.allow_tied_part(&mut rules, plan, [own, of], holder.node)?;
                }
                if !plan.copy_holders(of).any(|holder| holder.node == self.me) {
                    continue;
                }
                for (piece, parts) in (0..).zip(split_into_frames(&lengths, GRADIENT_FRAME_LIMITS))
                {
                    let class = TensorFrameKind::Gradients(piece).of(now);
                    if piece >= GRADIENT_FRAMES_MAX {
                        return Err(RuleError::TooLong { class });
                    }
                    let parts = parts.iter().map(|part| part.floats.len()).collect();
                    rules.allow(holder.node, class, parts)?;
                }
            }
        }
        if let Some(pre_copy) = self.precopy {
            let own = pre_copy.layers.iter().filter(|follow| follow.follower.node == self.me);
            for follow in own {
                let length = specs[follow.layer.index()].gradient_len();
                for (piece, parts) in
                    (0..).zip(split_into_frames(&[length], piece_limits(length, LAYER_PIECES_MAX)))
                {
                    let class =
                        TensorFrameKind::Update(follow.layer, piece).of(pre_copy.generation);
                    let parts = parts.iter().map(|part| part.floats.len()).collect();
                    rules.allow(follow.owner.node, class, parts)?;
                }
            }
        }
        Ok(rules)
    }

    /// What a stage gets from one with siblings of its chunks: floats of the sum of a subtree of replicas,
    /// with the losses of all its microbatches if the chunk ends the model, and of the sum of all.
    fn allow_partials(
        &self,
        rules: &mut FrameRules,
        plan: &PlanRecord,
        [stage, other]: [StageIndex; 2],
        from: NodeId,
    ) -> Result<(), RuleError> {
        let specs = model_layers(self.model);
        let placement = &plan.program.placement;
        let parts = placement.microbatches_per_replica(plan.program.microbatch_count)
            * plan.program.slice_count;
        for (chunk, exchange) in placement.chunks_of(stage).flat_map(|chunk| {
            TreeExchange::all_of(placement).map(move |exchange| (chunk, exchange))
        }) {
            let sibling = placement.sibling_at(chunk, exchange.level());
            if sibling.and_then(|sibling| placement.stage_of(sibling)) != Some(other) {
                continue;
            }
            let losses = match exchange {
                TreeExchange::Reduce(level) if placement.is_last(chunk) => parts << level.0,
                TreeExchange::Reduce(_)
                | TreeExchange::Gather(_)
                | TreeExchange::GatherCandidates(_) => 0,
            };
            let layers = plan.chunks[chunk.index()].layers();
            let lengths: Vec<usize> =
                layers.map(|layer| specs[layer.index()].gradient_len()).collect();
            let shards = placement.shards().lens(chunk, &lengths);
            let floats = exchange.merged_floats(placement, chunk, &shards).len();
            let len = floats + 2 * losses as usize;
            let number = PartialExchange::of(placement, exchange);
            allow_partial(rules, (plan, chunk, number), len, from)?;
        }
        Ok(())
    }

    /// What a stage gets from the one with the other end of a model whose head is tied.
    fn allow_tied_part(
        &self,
        rules: &mut FrameRules,
        plan: &PlanRecord,
        [stage, other]: [StageIndex; 2],
        from: NodeId,
    ) -> Result<(), RuleError> {
        let placement = &plan.program.placement;
        let stage_of_end = |chunk| placement.stage_of(placement.other_end_of(chunk)?);
        let mut ends =
            placement.chunks_of(stage).filter(|chunk| stage_of_end(*chunk) == Some(other));
        let matrix = self.model.head_matrix();
        ends.try_for_each(|chunk| {
            let of = (plan, chunk, PartialExchange::of_tied(placement));
            allow_partial(rules, of, matrix.outputs * matrix.inputs, from)
        })
    }

    /// Floats of the boundary tensors of each slice that has a kind of its own. A plan whose slices
    /// the job's sequences cannot be cut into has none: its stage refuses to load it.
    fn boundaries(&self, plan: &PlanRecord) -> Vec<(SliceIndex, usize)> {
        let work = TokenWork::new(self.model);
        let Ok(cut) = self.batch.cut(work, plan.program.slice_count) else { return Vec::new() };
        let floats =
            |slice| cut.shape_of(self.batch.microbatch, slice).rows() * self.model.width as usize;
        let slices = cut.slices().take(BOUNDARIES_MAX as usize);
        slices.map(|slice| (slice, floats(slice))).collect()
    }
}

/// The frames of `len` floats that `chunk` gets in an exchange.
fn allow_partial(
    rules: &mut FrameRules,
    (plan, chunk, exchange): (&PlanRecord, ChunkIndex, PartialExchange),
    len: usize,
    from: NodeId,
) -> Result<(), RuleError> {
    let frames = split_into_frames(&[len], piece_limits(len, PARTIAL_PIECES_MAX));
    for (piece, parts) in (0..).zip(frames) {
        let class = TensorFrameKind::Partial(chunk, exchange, piece).of(plan.generation);
        rules.allow(from, class, parts.iter().map(|part| part.floats.len()).collect())?;
    }
    Ok(())
}
