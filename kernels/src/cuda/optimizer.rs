//! AdamW in halves, a launch a layer, and fingerprints.

use std::ops::Range;

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::{Address, Device};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use crate::backend::{AdamWNumbers, AdamWRun, MatrixPart, UpdateState, View};
use crate::scratch::Slot;

/// FINGERPRINT_THREADS and CHUNK of `optimizer.cu`.
const FINGERPRINT_THREADS: usize = 256;
const FINGERPRINT_CHUNK: usize = 65_536;
/// STRETCHES_MAX of `optimizer.cu`, and the threads of a block.
const STRETCHES_MAX: usize = 16;
const STRETCH_THREADS: usize = 256;
/// Elements that a block of [`STRETCH_THREADS`] takes.
const STRETCH_BLOCK: usize = 4 * STRETCH_THREADS;

pub(super) fn fingerprint<D: Device>(
    device: &CudaBackend<D>,
    x: &View<'_, CudaBuffer<D>>,
) -> Result<u64, DeviceFault> {
    let len = x.range.len();
    let count = len.div_ceil(FINGERPRINT_CHUNK);
    let mut bytes = vec![0u8; count * 8];
    if count > 0 {
        let sums = device.scratch(Slot::Results, bytes.len())?;
        let arguments = Arguments::new().address(floats(x)).address(sums).count(len);
        let grid = [count, 1];
        let launch = Launch::blocks(Kernel::Fingerprint, grid, FINGERPRINT_THREADS, arguments);
        device.launch(&launch)?;
        device.device().read(sums, &mut bytes)?;
    }
    let (sums, _) = bytes.as_chunks::<8>();
    Ok(sums.iter().fold(0, |total: u64, sum| total.wrapping_add(u64::from_le_bytes(*sum))))
}

/// The structure `AdamW` of `optimizer.cu`.
fn words(numbers: AdamWNumbers) -> [u32; 9] {
    let AdamWNumbers {
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
struct Stretch {
    w: Option<Address>,
    m: Address,
    v: Address,
    g: Address,
    to: Option<Address>,
    form: Option<Address>,
    count: usize,
    numbers: AdamWNumbers,
}

impl Stretch {
    const WORDS: usize = 24;

    fn words(&self, first_block: u32) -> [u32; Self::WORDS] {
        let Self { w, m, v, g, to, form, count, numbers } = self;
        let addresses = [*w, Some(*m), Some(*v), Some(*g), *to, *form];
        let long = addresses.map(|address| address.map_or(0, |address| address.0));
        let mut all = [0; Self::WORDS];
        for (pair, long) in all.chunks_mut(2).zip(long.into_iter().chain([*count as u64])) {
            (pair[0], pair[1]) = (long as u32, (long >> 32) as u32);
        }
        all[14..23].copy_from_slice(&words(*numbers));
        all[23] = first_block;
        all
    }
}

/// One launch for as many stretches as it takes.
fn launch<D: Device>(
    device: &CudaBackend<D>,
    kernel: Kernel,
    stretches: &[Stretch],
) -> Result<(), DeviceFault> {
    for some in stretches.chunks(STRETCHES_MAX) {
        let mut blocks = 0;
        let mut table = Vec::with_capacity(STRETCHES_MAX * Stretch::WORDS);
        for stretch in some {
            table.extend(stretch.words(u32::try_from(blocks).expect("blocks fit in 32 bits")));
            blocks += stretch.count.div_ceil(STRETCH_BLOCK);
        }
        // No block is behind the last one.
        table.resize(STRETCHES_MAX * Stretch::WORDS, u32::MAX);
        let arguments = Arguments::new().structure(&table);
        device.launch(&Launch::blocks(kernel, [blocks, 1], STRETCH_THREADS, arguments))?;
    }
    Ok(())
}

/// Part of a layer: a matrix, with its form if somebody wants it, or what lies between.
struct Piece<'a> {
    range: Range<usize>,
    form: Option<Address>,
    numbers: &'a AdamWNumbers,
}

/// Runs in pieces, in order. None is empty.
fn pieces<'a, D: Device>(
    runs: &'a [AdamWRun],
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut matrices = matrices.iter().peekable();
    for AdamWRun { range, numbers } in runs {
        let mut push = |range: Range<usize>, form| {
            if !range.is_empty() {
                pieces.push(Piece { range, form, numbers });
            }
        };
        let mut done = range.start;
        while let Some(part) = matrices.next_if(|part| part.range.end <= range.end) {
            let shape = part.matrix.shape;
            assert!(done <= part.range.start, "matrices in order, each within a run");
            assert_eq!(part.range.len(), shape.outputs * shape.inputs);
            push(done..part.range.start, None);
            push(part.range.clone(), Some(part.matrix.form.rows()));
            done = part.range.end;
        }
        push(done..range.end, None);
    }
    assert!(matrices.peek().is_none(), "the runs cover every matrix");
    pieces
}

fn end(runs: &[AdamWRun]) -> usize {
    runs.last().map_or(0, |run| run.range.end)
}

/// Where the weights of a candidate go.
pub(super) enum Candidate<'a, D: Device> {
    /// To the same places of another buffer, those of matrices as well.
    Beside(&'a CudaBuffer<D>),
    /// Those of no matrix, without gaps.
    Rest(&'a CudaBuffer<D>),
}

pub(super) fn candidate<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRun],
    state: &UpdateState<'_, CudaBuffer<D>>,
    to: &Candidate<'_, D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    let UpdateState { w, m, v, g } = state;
    assert!([w, m, v, g].into_iter().all(|part| end(runs) <= part.len()));
    let mut rest = 0;
    let stretch = |Piece { range, form, numbers }: Piece<'_>| {
        let to = match (to, form) {
            (Candidate::Beside(buffer), _) => {
                assert!(range.end <= buffer.len());
                Some(buffer.floats(range.start))
            }
            (Candidate::Rest(_), Some(_)) => None,
            (Candidate::Rest(buffer), None) => {
                let start = rest;
                rest += range.len();
                assert!(rest <= buffer.len(), "there is room for what lies in no matrix");
                Some(buffer.floats(start))
            }
        };
        let [m, v, g] = [m, v, g].map(|part| part.floats(range.start));
        let (w, count) = (Some(w.floats(range.start)), range.len());
        Stretch { w, m, v, g, to, form, count, numbers: *numbers }
    };
    let stretches: Vec<Stretch> = pieces(runs, matrices).into_iter().map(stretch).collect();
    launch(device, Kernel::AdamwCandidate, &stretches)
}

/// What is updated in place.
pub(super) struct InPlace<'a, D: Device> {
    /// Nothing where they are another's to change.
    pub(super) w: Option<&'a CudaBuffer<D>>,
    pub(super) m: &'a CudaBuffer<D>,
    pub(super) v: &'a CudaBuffer<D>,
}

pub(super) fn in_place<D: Device>(
    device: &CudaBackend<D>,
    runs: &[AdamWRun],
    g: &CudaBuffer<D>,
    state: &InPlace<'_, D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    let InPlace { w, m, v } = state;
    let all = [*m, *v, g].into_iter().chain(*w);
    assert!(all.into_iter().all(|part| end(runs) <= part.len()));
    let stretch = |Piece { range, form, numbers }: Piece<'_>| {
        let [m, v, g] = [*m, *v, g].map(|part| part.floats(range.start));
        let w = w.map(|w| w.floats(range.start));
        Stretch { w, m, v, g, to: None, form, count: range.len(), numbers: *numbers }
    };
    let stretches: Vec<Stretch> = pieces(runs, matrices).into_iter().map(stretch).collect();
    launch(device, Kernel::AdamwInPlace, &stretches)
}

/// `range` as one run.
pub(super) fn run(range: Range<usize>, numbers: AdamWNumbers) -> [AdamWRun; 1] {
    [AdamWRun { range, numbers }]
}
