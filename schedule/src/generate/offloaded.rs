//! PipeOffload with its copies, for callers that know no times (Wan et al., ICML 2025, arXiv
//! 2503.01328, section 3).
//!
//! F, B and W are taken to be equally long, and an offload with its reload to take as long as the
//! three together: the longest for which all that is kept can be offloaded while passes run. A
//! caller that knows times passes them to [`crate::offload`].

use crate::cost::Costs;
use crate::kind::OffloadChunks;
use crate::memory::ChunkMemory;
use crate::offload::{OffloadRequest, offload};
use crate::program::Program;

/// How long each pass of a stage takes, and an offload with its reload.
const PASS: f64 = 1.0;
const ROUND_TRIP: f64 = 3.0 * PASS;

pub(super) fn program(order: &Program, chunks: OffloadChunks) -> Program {
    let placement = &order.placement;
    let costs =
        Costs::even(placement, PASS, PASS, PASS, 0.0).with_round_trip(placement, ROUND_TRIP);
    // B leaves everything to W, as far as is known here.
    let kept = ChunkMemory {
        after_forward: 1.0,
        after_drop: 1.0,
        after_input_gradient: 1.0,
        after_early_weights: 1.0,
    };
    let memory = vec![kept; placement.chunk_count() as usize];
    let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits: None };
    offload(order, request).expect("a generated order reaches its end")
}
