//! Sums of two buffers.

use super::backend::CpuBackend;

/// Floats added as one task: 256 KiB of each buffer.
const ADD_CHUNK: usize = 1 << 16;

/// `to` becomes `from + to`. Threads share the elements, of which each is one sum.
pub(super) fn add(cpu: &CpuBackend, from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    let chunks = from.chunks(ADD_CHUNK).zip(to.chunks_mut(ADD_CHUNK));
    cpu.threads().for_each(chunks.collect(), |(from, to)| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    });
}
