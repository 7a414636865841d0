//! The three products of a linear layer on one thread, so many times each: what an emulator that
//! counts instructions runs, since it says nothing of time.
//!
//! ```text
//! products ROWS INPUTS OUTPUTS f32|bf16 Y DX DW
//! ```

use zbelastic_kernels::{
    Accumulate, Backend, BackwardEpilogue, BufferView, BufferViewMut, CpuBackend, DeviceMemory,
    ForwardEpilogue, LinearGradient, MatrixShape, Precision, conformance,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rows, inputs, outputs, factors, y_count, dx_count, dw_count] = &arguments[..] else {
        panic!("expected are ROWS INPUTS OUTPUTS f32|bf16 Y DX DW, found {arguments:?}");
    };
    let number = |text: &String| text.parse::<usize>().expect("a whole number");
    let [rows, inputs, outputs] = [rows, inputs, outputs].map(number);
    let [y_count, dx_count, dw_count] = [y_count, dx_count, dw_count].map(number);
    let precision = Precision::ALL.into_iter().find(|precision| precision.name() == factors);
    let precision = precision.expect("f32 or bf16");
    let cpu = CpuBackend::new(1).expect("one thread").with_precision(precision);
    let filled = |len: usize, seed| {
        let mut buffer = cpu.allocate(len).expect("memory");
        cpu.upload(&conformance::floats(len, seed), BufferViewMut::new(&mut buffer, 0..len));
        buffer
    };
    let shape = MatrixShape { outputs, inputs };
    let mut weights = filled(outputs * inputs, 1);
    let mut matrix = cpu.allocate_matrix(shape).expect("memory");
    cpu.load_matrix(BufferView::new(&weights, 0..outputs * inputs), &mut matrix);
    let x = filled(rows * inputs, 2);
    let mut y = filled(rows * outputs, 3);
    let mut dx = filled(rows * inputs, 4);
    for _ in 0..y_count {
        cpu.linear_forward(rows, &x, &matrix, None, ForwardEpilogue::Plain, &mut y);
    }
    for _ in 0..dx_count {
        let epilogue = BackwardEpilogue::Plain { gradient: &mut dx };
        cpu.linear_backward_input(rows, &y, &matrix, epilogue);
    }
    for _ in 0..dw_count {
        let weight = 0..outputs * inputs;
        let to = LinearGradient { buffer: &mut weights, weight, bias: None };
        cpu.linear_backward_weights(rows, shape, &x, &y, to, Accumulate::Start);
    }
}
