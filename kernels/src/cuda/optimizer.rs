//! AdamW in halves, a launch a layer, and the fingerprint of its results.

use std::ops::Range;

use super::backend::{CudaBackend, CudaMatrix};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::state_sums::PartialSums;
use crate::backend::{
    AdamWCoefficients, AdamWRange, LayerCandidate, MatrixPart, StateRange, UpdateState,
};
use crate::pending::Pending;
use crate::scratch::{STEPPED_TENSOR_BYTES, SUMMED_PLACES};

/// STRETCHES_MAX of `optimizer.cu`, and the threads of a block, which are its STATE_THREADS.
const STRETCHES_MAX: usize = 16;
const STRETCH_THREADS: usize = 256;
/// Elements that a block of [`STRETCH_THREADS`] processes.
const STRETCH_BLOCK: usize = SUMMED_PLACES;

/// The structure `AdamW` of `optimizer.cu`.
fn words(numbers: AdamWCoefficients) -> [u32; 9] {
    let AdamWCoefficients {
        decay,
        beta1,
        beta1_rest,
        beta2,
        beta2_rest,
        correction2,
        epsilon,
        step,
        clip,
    } = numbers;
    let floats = [decay, beta1, beta1_rest, beta2, beta2_rest, correction2, epsilon, step, clip];
    floats.map(f32::to_bits)
}

/// The structure `Stretch` of `optimizer.cu`, but for the number of its first block.
pub(super) struct Stretch {
    w: Option<DeviceAddress>,
    m: DeviceAddress,
    v: DeviceAddress,
    pub(super) g: DeviceAddress,
    to: Option<DeviceAddress>,
    packed: Option<DeviceAddress>,
    /// Elements of the stretch, counted from the beginning of its layer.
    pub(super) range: Range<usize>,
    numbers: AdamWCoefficients,
}

impl Stretch {
    const WORDS: usize = STEPPED_TENSOR_BYTES / 4;

    fn words(&self, first_block: u32) -> [u32; Self::WORDS] {
        let Self { w, m, v, g, to, packed, range, numbers } = self;
        let addresses = [*w, Some(*m), Some(*v), Some(*g), *to, *packed];
        let long = addresses.map(|address| address.map_or(0, |address| address.0));
        let mut all = [0; Self::WORDS];
        let place = [range.len() as u64, range.start as u64];
        for (pair, long) in all.chunks_mut(2).zip(long.into_iter().chain(place)) {
            (pair[0], pair[1]) = (long as u32, (long >> 32) as u32);
        }
        all[16..25].copy_from_slice(&words(*numbers));
        all[25] = first_block;
        all
    }

    /// The structure `SteppedTensor`: a stretch whose third number is that of its first piece.
    pub(super) fn tensor_words(&self, first_piece: u64) -> [u32; Self::WORDS] {
        let mut words = self.words(0);
        (words[14], words[15]) = (first_piece as u32, (first_piece >> 32) as u32);
        words
    }

    fn blocks(&self) -> usize {
        self.range.len().div_ceil(STRETCH_BLOCK)
    }
}

/// The table of stretches that one launch is given, and how many blocks it has.
fn table(stretches: &[Stretch]) -> (Vec<u32>, usize) {
    let mut blocks = 0;
    let mut table = Vec::with_capacity(STRETCHES_MAX * Stretch::WORDS);
    for stretch in stretches {
        table.extend(stretch.words(u32::try_from(blocks).expect("blocks fit in 32 bits")));
        blocks += stretch.blocks();
    }
    // No block is behind the last one.
    table.resize(STRETCHES_MAX * Stretch::WORDS, u32::MAX);
    (table, blocks)
}

/// One launch for as many stretches as it accepts.
fn launch<D: Device>(
    device: &CudaBackend<D>,
    kernel: Kernel,
    stretches: &[Stretch],
) -> Result<(), DeviceFault> {
    for some in stretches.chunks(STRETCHES_MAX) {
        let (table, blocks) = table(some);
        let arguments = Arguments::new().structure(&table);
        device.launch(&Launch::blocks(kernel, [blocks, 1], STRETCH_THREADS, arguments))?;
    }
    Ok(())
}

/// The step in place, and the sums of the state that it leaves.
fn launch_summed<D: Device>(
    device: &CudaBackend<D>,
    stretches: &[Stretch],
) -> Result<Pending<[u64; 2]>, DeviceFault> {
    let blocks = stretches.iter().map(Stretch::blocks).sum();
    let parts = PartialSums::new(device, blocks)?;
    let mut done = 0;
    for some in stretches.chunks(STRETCHES_MAX) {
        let (table, blocks) = table(some);
        let arguments = Arguments::new().structure(&table).address(parts.from(done));
        let grid = [blocks, 1];
        let kernel = Kernel::AdamwInPlaceSummed;
        device.launch(&Launch::blocks(kernel, grid, STRETCH_THREADS, arguments))?;
        done += blocks;
    }
    parts.add(device)
}

/// Part of a layer: a matrix, or the part of one that is updated, with the address of its packed
/// weights if these are written too, or a run without a matrix.
struct LayerExtent<'a> {
    range: StateRange,
    packed: Option<DeviceAddress>,
    numbers: &'a AdamWCoefficients,
}

/// Runs in pieces, in order. None is empty.
fn pieces<'a, D: Device>(
    runs: &'a [AdamWRange],
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
    element: usize,
) -> Vec<LayerExtent<'a>> {
    let mut pieces = Vec::new();
    for MatrixPart { range, matrix } in matrices {
        assert_eq!(range.len(), matrix.shape.outputs * matrix.shape.inputs);
    }
    for AdamWRange { range, numbers } in runs {
        let mut push = |weights: Range<usize>, packed| {
            if !weights.is_empty() {
                pieces.push(LayerExtent { range: range.part(weights), packed, numbers });
            }
        };
        let mut done = range.weights.start;
        for part in matrices {
            let within = part.range.start.max(done)..part.range.end.min(range.weights.end);
            if within.is_empty() {
                continue;
            }
            push(done..within.start, None);
            push(within.clone(), Some(packed_weights(part, within.start, element)));
            done = within.end;
        }
        push(done..range.weights.end, None);
    }
    pieces
}

/// Where the packed weights of a matrix's parameters from `start` on lie, of so many bytes each.
pub(super) fn packed_weights<D: Device>(
    part: &MatrixPart<'_, CudaMatrix<D>>,
    start: usize,
    element: usize,
) -> DeviceAddress {
    let before = (start - part.range.start) * element;
    DeviceAddress(part.matrix.weights.rows().0 + before as u64)
}

/// How many parameters of no matrix lie before `start`.
fn rest_before<D: Device>(matrices: &[MatrixPart<'_, CudaMatrix<D>>], start: usize) -> usize {
    let before = matrices.iter().map(|part| &part.range).filter(|range| range.end <= start);
    start - before.map(Range::len).sum::<usize>()
}

fn end(runs: &[AdamWRange]) -> usize {
    runs.last().map_or(0, |run| run.range.weights.end)
}

/// Asserts that buffers hold the state of all runs.
fn check_state<D: Device>(
    runs: &[AdamWRange],
    w: Option<&CudaBuffer<D>>,
    moments: [&CudaBuffer<D>; 2],
    g: &CudaBuffer<D>,
) {
    for AdamWRange { range, .. } in runs {
        assert!(w.is_none_or(|w| range.weights.end <= w.len()), "weights of {range:?}");
        assert!(moments.iter().all(|part| range.moments().end <= part.len()), "{range:?}");
        assert!(range.gradient().end <= g.len(), "a gradient of {range:?}");
    }
}

/// Where the weights of a candidate go.
pub(super) enum CandidateTarget<'a, D: Device> {
    /// To the same places of another buffer, those of matrices as well.
    Beside(&'a CudaBuffer<D>),
    /// Those of no matrix, without gaps.
    Rest(&'a CudaBuffer<D>),
}

pub(super) fn candidate<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRange],
    state: &UpdateState<'_, CudaBuffer<D>>,
    to: &CandidateTarget<'_, D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    let UpdateState { w, m, v, g } = state;
    check_state(runs, Some(w), [m, v], g);
    let element = device.precision().bytes();
    let stretch = |LayerExtent { range, packed, numbers }: LayerExtent<'_>| {
        let to = match (to, packed) {
            (CandidateTarget::Beside(buffer), _) => {
                assert!(range.weights.end <= buffer.len());
                Some(buffer.floats(range.weights.start))
            }
            (CandidateTarget::Rest(_), Some(_)) => None,
            (CandidateTarget::Rest(buffer), None) => {
                let start = rest_before(matrices, range.weights.start);
                assert!(start + range.len() <= buffer.len(), "it holds what lies in no matrix");
                Some(buffer.floats(start))
            }
        };
        let [m, v] = [m, v].map(|part| part.floats(range.moments_start));
        let g = g.floats(range.gradient_start);
        let w = Some(w.floats(range.weights.start));
        Stretch { w, m, v, g, to, packed, range: range.weights, numbers: *numbers }
    };
    let stretches: Vec<Stretch> =
        pieces(runs, matrices, element).into_iter().map(stretch).collect();
    launch(device, Kernel::AdamwCandidate, &stretches)
}

/// The tensors of a layer that are updated, each with its numbers and where its candidate goes.
pub(super) fn stepped<D: Device>(
    device: &CudaBackend<D>,
    layer: &LayerCandidate<'_, CudaBuffer<D>, CudaMatrix<D>>,
) -> Vec<Stretch> {
    let LayerCandidate { runs, state: UpdateState { w, m, v, g }, rest, matrices, tensors } = layer;
    check_state(runs, Some(*w), [*m, *v], g);
    assert_eq!(tensors.last().map_or(0, |range| range.end), end(runs), "tensors cover the runs");
    let mut runs = runs.iter().peekable();
    let mut done = 0;
    let element = device.precision().bytes();
    let stretch = |range: &Range<usize>| {
        assert!(range.start >= done, "tensors are in order");
        done = range.end;
        while runs.next_if(|run| run.range.weights.end <= range.start).is_some() {}
        let run = runs.peek().expect("runs cover every tensor");
        let place = run.range.part(range.clone());
        let part = matrices.iter().find(|part| part.range.contains(&range.start));
        let packed = part.map(|part| {
            assert!(range.end <= part.range.end, "a tensor lies in one matrix");
            packed_weights(part, range.start, element)
        });
        let to = packed.is_none().then(|| {
            let start = rest_before(matrices, range.start);
            assert!(start + range.len() <= rest.len(), "it holds what lies in no matrix");
            rest.floats(start)
        });
        let [m, v] = [m, v].map(|part| part.floats(place.moments_start));
        let g = g.floats(place.gradient_start);
        let w = Some(w.floats(range.start));
        let range = range.clone();
        Stretch { w, m, v, g, to, packed, range, numbers: run.numbers }
    };
    tensors.iter().map(stretch).collect()
}

/// The parts of the state that are updated in place.
pub(super) struct InPlaceState<'a, D: Device> {
    /// The weights, if they are updated too.
    pub(super) w: Option<&'a CudaBuffer<D>>,
    pub(super) m: &'a CudaBuffer<D>,
    pub(super) v: &'a CudaBuffer<D>,
}

impl<D: Device> InPlaceState<'_, D> {
    fn stretches(
        &self,
        runs: &[AdamWRange],
        g: &CudaBuffer<D>,
        (matrices, element): (&[MatrixPart<'_, CudaMatrix<D>>], usize),
    ) -> Vec<Stretch> {
        let Self { w, m, v } = self;
        check_state(runs, *w, [*m, *v], g);
        let stretch = |LayerExtent { range, packed, numbers }: LayerExtent<'_>| {
            let [m, v] = [*m, *v].map(|part| part.floats(range.moments_start));
            let g = g.floats(range.gradient_start);
            let w = w.map(|w| w.floats(range.weights.start));
            Stretch { w, m, v, g, to: None, packed, range: range.weights, numbers: *numbers }
        };
        pieces(runs, matrices, element).into_iter().map(stretch).collect()
    }
}

pub(super) fn in_place<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRange],
    g: &CudaBuffer<D>,
    state: &InPlaceState<'_, D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    let packed = (matrices, device.precision().bytes());
    launch(device, Kernel::AdamwInPlace, &state.stretches(runs, g, packed))
}

/// The same without matrices, and the sums of the state that it leaves.
pub(super) fn in_place_summed<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRange],
    g: &CudaBuffer<D>,
    state: &InPlaceState<'_, D>,
) -> Result<Pending<[u64; 2]>, DeviceFault> {
    let parts = [state.m, state.v].into_iter().chain(state.w);
    assert!(parts.into_iter().all(|part| end(runs) == part.len()), "runs cover the state");
    launch_summed(device, &state.stretches(runs, g, (&[], device.precision().bytes())))
}

/// `range` as one run.
pub(super) fn run(range: &StateRange, numbers: AdamWCoefficients) -> [AdamWRange; 1] {
    [AdamWRange { range: range.clone(), numbers }]
}
