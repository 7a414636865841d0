//! AdamW in halves, a launch a layer, and the fingerprint of its results.

use std::ops::Range;

use super::backend::{CudaBackend, CudaMatrix};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::state_sums::PartialSums;
use crate::backend::{AdamWCoefficients, AdamWRange, LayerCandidate, MatrixPart, UpdateState};
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

/// Part of a layer: a matrix, with the address of its packed weights if these are written too, or
/// a run without a matrix.
struct LayerExtent<'a> {
    range: Range<usize>,
    packed: Option<DeviceAddress>,
    numbers: &'a AdamWCoefficients,
}

/// Runs in pieces, in order. None is empty.
fn pieces<'a, D: Device>(
    runs: &'a [AdamWRange],
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Vec<LayerExtent<'a>> {
    let mut pieces = Vec::new();
    let mut matrices = matrices.iter().peekable();
    for AdamWRange { range, numbers } in runs {
        let mut push = |range: Range<usize>, packed| {
            if !range.is_empty() {
                pieces.push(LayerExtent { range, packed, numbers });
            }
        };
        let mut done = range.start;
        while let Some(part) = matrices.next_if(|part| part.range.end <= range.end) {
            let shape = part.matrix.shape;
            assert!(done <= part.range.start, "matrices in order, each within a run");
            assert_eq!(part.range.len(), shape.outputs * shape.inputs);
            push(done..part.range.start, None);
            push(part.range.clone(), Some(part.matrix.weights.rows()));
            done = part.range.end;
        }
        push(done..range.end, None);
    }
    assert!(matrices.peek().is_none(), "the runs cover every matrix");
    pieces
}

fn end(runs: &[AdamWRange]) -> usize {
    runs.last().map_or(0, |run| run.range.end)
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
    assert!([w, m, v, g].into_iter().all(|part| end(runs) <= part.len()));
    let mut rest = 0;
    let stretch = |LayerExtent { range, packed, numbers }: LayerExtent<'_>| {
        let to = match (to, packed) {
            (CandidateTarget::Beside(buffer), _) => {
                assert!(range.end <= buffer.len());
                Some(buffer.floats(range.start))
            }
            (CandidateTarget::Rest(_), Some(_)) => None,
            (CandidateTarget::Rest(buffer), None) => {
                let start = rest;
                rest += range.len();
                assert!(rest <= buffer.len(), "the buffer holds what lies in no matrix");
                Some(buffer.floats(start))
            }
        };
        let [m, v, g] = [m, v, g].map(|part| part.floats(range.start));
        let w = Some(w.floats(range.start));
        Stretch { w, m, v, g, to, packed, range, numbers: *numbers }
    };
    let stretches: Vec<Stretch> = pieces(runs, matrices).into_iter().map(stretch).collect();
    launch(device, Kernel::AdamwCandidate, &stretches)
}

/// The tensors of a layer, each with its numbers and where its candidate goes.
pub(super) fn stepped<D: Device>(
    device: &CudaBackend<D>,
    layer: &LayerCandidate<'_, CudaBuffer<D>, CudaMatrix<D>>,
) -> Vec<Stretch> {
    let LayerCandidate { runs, state: UpdateState { w, m, v, g }, rest, matrices, tensors } = layer;
    assert!([w, m, v, g].into_iter().all(|part| end(runs) <= part.len()));
    assert_eq!(tensors.last().map_or(0, |range| range.end), end(runs), "tensors cover the layer");
    let mut runs = runs.iter().peekable();
    let mut matrices = matrices.iter().peekable();
    let mut done = 0;
    let mut rest_done = 0;
    let element = device.precision().bytes();
    let stretch = |range: &Range<usize>| {
        assert_eq!(range.start, done, "tensors lie one behind the other");
        done = range.end;
        while runs.next_if(|run| run.range.end <= range.start).is_some() {}
        while matrices.next_if(|part| part.range.end <= range.start).is_some() {}
        let run = runs.peek().expect("runs cover every tensor");
        assert!(range.end <= run.range.end, "a tensor lies in one run");
        let part = matrices.peek().filter(|part| part.range.start <= range.start);
        let packed = part.map(|part| {
            assert!(range.end <= part.range.end, "a tensor lies in one matrix");
            let before = (range.start - part.range.start) * element;
            DeviceAddress(part.matrix.weights.rows().0 + before as u64)
        });
        let to = packed.is_none().then(|| {
            let start = rest_done;
            rest_done += range.len();
            assert!(rest_done <= rest.len(), "the buffer holds what lies in no matrix");
            rest.floats(start)
        });
        let [w, m, v, g] = [w, m, v, g].map(|part| part.floats(range.start));
        let w = Some(w);
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
        matrices: &[MatrixPart<'_, CudaMatrix<D>>],
    ) -> Vec<Stretch> {
        let Self { w, m, v } = self;
        let all = [*m, *v, g].into_iter().chain(*w);
        assert!(all.into_iter().all(|part| end(runs) <= part.len()));
        let stretch = |LayerExtent { range, packed, numbers }: LayerExtent<'_>| {
            let [m, v, g] = [*m, *v, g].map(|part| part.floats(range.start));
            let w = w.map(|w| w.floats(range.start));
            Stretch { w, m, v, g, to: None, packed, range, numbers: *numbers }
        };
        pieces(runs, matrices).into_iter().map(stretch).collect()
    }
}

pub(super) fn in_place<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRange],
    g: &CudaBuffer<D>,
    state: &InPlaceState<'_, D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    launch(device, Kernel::AdamwInPlace, &state.stretches(runs, g, matrices))
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
    launch_summed(device, &state.stretches(runs, g, &[]))
}

/// `range` as one run.
pub(super) fn run(range: Range<usize>, numbers: AdamWCoefficients) -> [AdamWRange; 1] {
    [AdamWRange { range, numbers }]
}
