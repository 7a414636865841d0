//! Passes that come again, with the same addresses and other numbers.

use zbelastic_kernels::conformance::floats;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::{CudaBackend, CudaBuffer};
use zbelastic_kernels::{
    Accumulate, Backend, BackwardEpilogue, BufferView, BufferViewMut, DeviceMemory,
    ForwardEpilogue, LinearGradient, MatrixShape,
};

const ROWS: usize = 9;
const SHAPE: MatrixShape = MatrixShape { outputs: 5, inputs: 8 };

/// Activations of a pass, and what it reads.
struct PassBuffers<D: Device> {
    x: CudaBuffer<D>,
    before: CudaBuffer<D>,
    y: CudaBuffer<D>,
    skip: CudaBuffer<D>,
}

fn rows<D: Device>(backend: &CudaBackend<D>, width: usize, seed: u64) -> CudaBuffer<D> {
    let mut buffer = backend.allocate_rows(ROWS * width).expect("memory for a test");
    backend.upload(&floats(ROWS * width, seed), BufferViewMut::new(&mut buffer, 0..ROWS * width));
    buffer
}

/// Some passes in turn over one matrix, whose gradients add up; what can be read at the end.
pub fn run<D: Device>(backend: &CudaBackend<D>, slots: u64, times: u64) -> Vec<f32> {
    let MatrixShape { outputs, inputs } = SHAPE;
    let len = outputs * inputs;
    let mut weights = backend.allocate(len).expect("memory for a test");
    let mut matrix = backend.allocate_matrix(SHAPE).expect("memory for a test");
    let mut gradient = backend.allocate(len + outputs).expect("memory for a test");
    let mut passes: Vec<PassBuffers<D>> = (0..slots)
        .map(|slot| PassBuffers {
            x: rows(backend, inputs, slot),
            before: rows(backend, outputs, 10 + slot),
            y: rows(backend, outputs, 20 + slot),
            skip: rows(backend, inputs, 30 + slot),
        })
        .collect();
    let mut found = Vec::new();
    for time in 0..times {
        // Weights that change while addresses stay: a graph reads what is there when it runs.
        backend.upload(&floats(len, 40 + time), BufferViewMut::new(&mut weights, 0..len));
        backend.load_matrix(BufferView::new(&weights, 0..len), &mut matrix);
        backend.flush();
        for (slot, PassBuffers { x, before, y, skip }) in passes.iter_mut().enumerate() {
            let epilogue = ForwardEpilogue::Gelu { before };
            backend.linear_forward(ROWS, x, &matrix, None, epilogue, y);
            let to = BackwardEpilogue::Plain { gradient: skip };
            backend.linear_backward_input(ROWS, y, &matrix, to);
            let range = len..len + outputs;
            let to = LinearGradient { buffer: &mut gradient, weight: 0..len, bias: Some(range) };
            let is_first = time == 0 && slot == 0;
            let accumulate = if is_first { Accumulate::Start } else { Accumulate::Add };
            backend.linear_backward_weights(ROWS, SHAPE, x, y, to, accumulate);
            backend.copy(
                BufferView::new(&*skip, 0..inputs),
                BufferViewMut::new(x, inputs..2 * inputs),
            );
            backend.flush();
        }
        let last = passes.last().expect("there are slots");
        found.extend(backend.download(BufferView::new(&last.skip, 0..ROWS * inputs)));
    }
    found.extend(backend.download(BufferView::new(&gradient, 0..len + outputs)));
    for PassBuffers { x, before, y, skip } in &passes {
        for buffer in [x, before, y, skip] {
            found.extend(backend.download(BufferView::new(buffer, 0..backend.len(buffer))));
        }
    }
    found
}

pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}
