//! What an asynchronous program keeps in memory while it runs: what passes keep, as in synchronous
//! programs, and versions of weights.
//!
//! A version is charged from the operation that makes it, STASH or PREDICT, to its FREE. The newest
//! of every pipeline is always resident, and so is the reference model where there is one. Other
//! state of an optimizer or a method is not a version, and is not counted.

use std::collections::BTreeMap;

use zbelastic_types::ChunkIndex;

use super::kind::AsyncKind;
use super::op::AsyncOp;
use super::program::AsyncProgram;
use crate::memory::{ChunkMemory, PassFootprint};
use crate::op::Pass;

/// The most that a stage keeps at once, of each and of both together; the three need not be at one
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AsyncPeakMemory {
    /// The memory that passes keep, in the unit of the chunks' memory.
    pub activations: f64,
    /// Versions, in weights of the whole stage: of a chunk that is half of a stage each counts a
    /// half.
    pub versions: f64,
    /// Activations and versions, in the unit of the chunks' memory.
    pub both: f64,
}

/// The peaks of every stage, for chunks that keep of a microbatch what `chunks` gives, and stages
/// of which one version of the weights takes what `weights` gives. The order of a region is not
/// known: its passes are as many as may be in flight.
///
/// # Panics
/// If `chunks` does not name every chunk, or `weights` every stage.
#[must_use]
pub fn peak_memory_async(
    program: &AsyncProgram,
    chunks: &[ChunkMemory],
    weights: &[f64],
) -> Vec<AsyncPeakMemory> {
    assert_eq!(chunks.len(), program.placement.chunk_count() as usize, "one entry a chunk");
    assert_eq!(weights.len(), program.stages.len(), "one entry a stage");
    let resident = resident_versions(program);
    let stages = program.stages.iter().zip(weights);
    stages.map(|(ops, weights)| peak_of_list(program, ops, (chunks, *weights, resident))).collect()
}

/// The newest version of each pipeline, and the reference model.
fn resident_versions(program: &AsyncProgram) -> f64 {
    let references = u32::from(program.kind == AsyncKind::AvgPipe);
    f64::from(program.replica_count + references)
}

fn peak_of_list(
    program: &AsyncProgram,
    ops: &[AsyncOp],
    (chunks, weights, resident): (&[ChunkMemory], f64, f64),
) -> AsyncPeakMemory {
    let share = program.placement.chunk_share();
    let mut passes: BTreeMap<Pass, PassFootprint> = BTreeMap::new();
    let mut activations = 0.0;
    let mut kept = 0i32;
    let mut peak = AsyncPeakMemory::default();
    for op in ops {
        match *op {
            AsyncOp::Compute(_, pass, _) => {
                let cell = passes.entry(pass).or_default();
                let before = cell.resident();
                cell.apply(op.plain().expect("a pass is plain"), chunks[pass.chunk.index()]);
                activations += cell.resident() - before;
            }
            AsyncOp::Predict(..) | AsyncOp::Stash(..) => kept += 1,
            AsyncOp::Free(..) => kept -= 1,
            AsyncOp::Dynamic(chunk, dynamic) => {
                activations += f64::from(dynamic.cap) * of_pass(chunks, chunk);
            }
            AsyncOp::Transfer(..) | AsyncOp::Step(..) | AsyncOp::Average(..) => {}
        }
        // Chunks of a stage are alike, so that versions of them can be counted together.
        let versions = resident + f64::from(kept) * share;
        peak = AsyncPeakMemory {
            activations: peak.activations.max(activations),
            versions: peak.versions.max(versions),
            both: peak.both.max(activations + versions * weights),
        };
    }
    peak
}

fn of_pass(chunks: &[ChunkMemory], chunk: ChunkIndex) -> f64 {
    chunks[chunk.index()].after_forward
}

#[cfg(test)]
mod tests {
    use super::{AsyncPeakMemory, peak_memory_async};
    use crate::asynchronous::generate::{AsyncRequest, generate_async};
    use crate::asynchronous::kind::AsyncKind;
    use crate::asynchronous::op::{DynamicOptions, DynamicRule};
    use crate::asynchronous::variant::AsyncVariant;
    use crate::memory::ChunkMemory;

    /// Four stages, four steps of eight microbatches; a microbatch keeps 100 on a stage, a version
    /// 7.
    fn check(kind: AsyncKind, activations: [f64; 4], versions: [f64; 4]) {
        let request = AsyncRequest {
            kind,
            stage_count: 4,
            minibatch_count: 4,
            microbatch_count: 8,
            replica_count: 2,
            dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 3, update_every: 2 },
            variant: AsyncVariant::Usual,
        };
        let program = generate_async(request).expect("the size is legal");
        let kept = 100.0 * program.placement.chunk_share();
        let chunk = ChunkMemory {
            after_forward: kept,
            after_drop: 0.0,
            after_input_gradient: kept,
            after_early_weights: kept,
        };
        let chunks = vec![chunk; program.placement.chunk_count() as usize];
        let found = peak_memory_async(&program, &chunks, &[7.0; 4]);
        for (stage, found) in found.iter().enumerate() {
            let AsyncPeakMemory { activations: a, versions: v, both } = *found;
            assert_eq!((a, v), (activations[stage], versions[stage]), "{kind}, stage {stage}");
            assert!(both <= a + 7.0 * v, "{kind}, stage {stage}: {both}");
            assert!(both >= a.max(7.0 * v), "{kind}, stage {stage}: {both}");
        }
    }

    const ONE_F_ONE_B: [f64; 4] = [400.0, 300.0, 200.0, 100.0];

    #[test]
    fn peaks_are_those_of_the_methods() {
        check(AsyncKind::PipeDream, ONE_F_ONE_B, [4.0, 3.0, 2.0, 1.0]);
        check(AsyncKind::PipeDream2Bw, ONE_F_ONE_B, [2.0; 4]);
        check(AsyncKind::PipeMare, ONE_F_ONE_B, [2.0, 2.0, 2.0, 1.0]);
        // On the last stage F and B read the same prediction.
        check(AsyncKind::XPipe, ONE_F_ONE_B, [3.0, 3.0, 3.0, 2.0]);
        check(AsyncKind::SpecTrain, ONE_F_ONE_B, [2.0; 4]);
        check(AsyncKind::WPipe, [600.0, 550.0, 500.0, 450.0], [1.5; 4]);
        // Behind the first stage a pipeline begins while another one ends.
        check(AsyncKind::AvgPipe, [1000.0, 700.0, 300.0, 200.0], [3.0; 4]);
        check(AsyncKind::AmpNet, [300.0; 4], [1.0; 4]);
    }
}
