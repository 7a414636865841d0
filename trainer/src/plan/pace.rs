//! Times of the layers of a model, of a message and of an update, on stages of unequal speed.
//!
//! A plan is made for a pace. Before anything is measured it is counted from arithmetic, and its
//! unit is a floating-point operation of a stage of speed 1; afterwards it is measured
//! ([`crate::profile`]), and its unit is a second.

use zbelastic_schedule::{ChunkTimes, CopyLanes, Costs, MemoryCosts, MemoryTimes, Placement};
use zbelastic_types::StageIndex;

use super::memory::offload_bytes;
use super::{LayerWork, Plan, TokenWork, layer_work};
use crate::model::{LayerRange, MicrobatchShape, ModelConfig, PassSizes, Recompute, model_layers};
use crate::optimizer::OptimizerKind;

/// Floating-point operations in the time in which a byte is offloaded or reloaded, before that is
/// measured: one core of a shared machine did 43 to 67 GFLOP/s in F of a layer's halves and copied
/// 1.9 to 5.7 GB/s, which makes 11 to 36.
const COPY_FLOP_PER_BYTE: u32 = 20;

/// Times of layers, messages and updates, in one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// By layer, on a stage of speed 1.
    pub layers: Vec<LayerWork>,
    /// By layer: the update, on a stage of speed 1.
    pub updates: Vec<f64>,
    /// By layer: the time to offload its part of a pass, and again to reload it, on a
    /// stage of speed 1.
    pub copies: Vec<f64>,
    /// By layer: the time of its R, on a stage of speed 1; nothing where it follows from F,
    /// because it was not timed.
    pub recomputes: Vec<Option<f64>>,
    /// By stage, how many times faster it is than one of speed 1; stages beyond have speed 1.
    pub speeds: Vec<f64>,
    /// From when a result has left its stage to its arrival on another one.
    pub link: f64,
    /// The time in which a result leaves: a microbatch's bytes over the bandwidth.
    pub occupancy: f64,
    /// By layer: the time of its gradient to another stage, beside a link; empty if no time.
    pub gradients: Vec<f64>,
    /// From the last report to the verdict.
    pub verdict: f64,
    /// How work grows along a sequence: it determines the share of it that each slice gets.
    pub token: TokenWork,
}

impl Pace {
    /// As arithmetic alone has it: everything but products needs no time, and stages are equal.
    #[must_use]
    pub fn estimated(model: &ModelConfig, shape: MicrobatchShape) -> Self {
        let layers = layer_work(model, shape);
        let updates = vec![0.0; layers.len()];
        let sizes = PassSizes::whole(model, shape);
        let copy =
            |layer: u32| f64::from(COPY_FLOP_PER_BYTE) * offload_bytes(&sizes, layer).0 as f64;
        let copies = (0..model.layer_count()).map(copy).collect();
        Self {
            layers,
            updates,
            copies,
            recomputes: Vec::new(),
            speeds: Vec::new(),
            link: 0.0,
            occupancy: 0.0,
            gradients: Vec::new(),
            verdict: 0.0,
            token: TokenWork::new(model),
        }
    }

    /// The same with the updates of an optimizer as arithmetic has them.
    #[must_use]
    pub fn with_updates(self, model: &ModelConfig, optimizer: &OptimizerKind) -> Self {
        let updates = model_layers(model).iter().map(|spec| optimizer.update_flop(spec)).collect();
        Self { updates, ..self }
    }

    /// Whether all its times are numbers: reports of machines may be so wrong that they are not.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        let of_layers = self.layers.iter().flat_map(|work| [work.f, work.b, work.w, work.w_early]);
        let single = [self.link, self.occupancy, self.verdict];
        of_layers
            .chain(self.updates.iter().chain(&self.copies).chain(&self.gradients).copied())
            .chain(self.recomputes.iter().flatten().copied())
            .chain(single)
            .all(f64::is_finite)
    }

    /// The speed of a stage.
    #[must_use]
    pub fn speed(&self, stage: StageIndex) -> f64 {
        self.speeds.get(stage.index()).copied().unwrap_or(1.0)
    }

    /// The times of a plan's operations.
    #[must_use]
    pub fn costs(&self, plan: &Plan) -> Costs {
        let placement = plan.placement();
        let update = |stage: StageIndex| {
            let layers = plan.states_at(stage).flat_map(|layers| layers.ids());
            let sum: f64 = layers.map(|layer| self.updates[layer as usize]).sum();
            sum / self.speed(stage)
        };
        Costs {
            chunks: self.chunk_times(placement, &plan.chunks),
            slice_shares: self.slice_shares(plan),
            link: self.link,
            occupancy: self.occupancy,
            verdict: self.verdict,
            step: (0..placement.stage_count()).map(StageIndex).map(update).fold(0.0, f64::max),
            memory: self.memory_costs(plan),
            gradients: self.gradient_times(plan),
            tied: self.tied_time(plan),
        }
    }

    /// The times of the gradients of chunks to their siblings in other replicas.
    fn gradient_times(&self, plan: &Plan) -> Vec<f64> {
        if plan.placement().replica_count() == 1 || self.gradients.is_empty() {
            return Vec::new();
        }
        let of_chunk = |layers: &LayerRange| -> f64 {
            layers.ids().map(|layer| self.gradients[layer as usize]).sum()
        };
        plan.chunks.iter().map(of_chunk).collect()
    }

    /// The time of a tied matrix's gradient to the other end of the model: that of the embedding's
    /// layer, which is little more than the matrix.
    fn tied_time(&self, plan: &Plan) -> f64 {
        let time = self.gradients.first().copied().unwrap_or(0.0);
        if plan.program.is_tied() { time } else { 0.0 }
    }

    /// The share of each slice in a microbatch's times; nothing where sequences are not cut.
    fn slice_shares(&self, plan: &Plan) -> Vec<f64> {
        if plan.program.slice_count == 1 {
            return Vec::new();
        }
        let cut = plan.cut_of(self.token);
        cut.slices().map(|slice| self.token.share(&cut, slice)).collect()
    }

    /// The time of R, as it was measured, or else F again, or attention alone, because the rest
    /// that is recomputed without a product needs next to no time. Activations are copied whole,
    /// whether or not parts of it were dropped, by the stage itself: a stage is a thread on a
    /// processor.
    pub(super) fn memory_costs(&self, plan: &Plan) -> MemoryCosts {
        let again = |layer: u32| {
            let LayerWork { f, w, .. } = self.layers[layer as usize];
            let found = self.recomputes.get(layer as usize).copied().flatten();
            let counted = match plan.recompute {
                Recompute::None => return 0.0,
                Recompute::Full => f,
                // The time of F beyond its products, of which W does each once as well.
                Recompute::Selective(ops) if ops.attention => (f - w).max(0.0),
                Recompute::Selective(_) => 0.0,
            };
            found.unwrap_or(counted)
        };
        let times = |(chunk, layers): (u32, &LayerRange)| {
            let stage = plan.placement().stage_of(zbelastic_types::ChunkIndex(chunk));
            let speed = self.speed(stage.expect("a plan's chunks are placed"));
            let recompute = layers.ids().map(again).sum::<f64>() / speed;
            let copy = layers.ids().map(|layer| self.copies[layer as usize]).sum::<f64>() / speed;
            MemoryTimes { recompute, offload: copy, reload: copy }
        };
        let chunks = (0..).zip(&plan.chunks).map(times).collect();
        MemoryCosts { lanes: CopyLanes::InTurn, chunks }
    }

    /// The times of the passes of chunks on the stages that hold them.
    #[must_use]
    pub fn chunk_times(&self, placement: &Placement, chunks: &[LayerRange]) -> Vec<ChunkTimes> {
        let times = |(chunk, layers): (u32, &LayerRange)| {
            let stage = placement.stage_of(zbelastic_types::ChunkIndex(chunk));
            let speed = self.speed(stage.expect("a plan's chunks are placed"));
            let mut sum = ChunkTimes { f: 0.0, b: 0.0, w: 0.0, w_early: 0.0 };
            for layer in layers.ids() {
                let LayerWork { f, b, w, w_early } = self.layers[layer as usize];
                sum.f += f / speed;
                sum.b += b / speed;
                sum.w += w / speed;
                sum.w_early += w_early / speed;
            }
            sum
        };
        (0..).zip(chunks).map(times).collect()
    }
}
