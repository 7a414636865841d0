//! Low-rank adapters: matrices with them, and their gradients made of products.

use super::probe::{check, download, floats, matrix, poisoned_rows, upload, upload_rows, widen};
use crate::backend::{
    Accumulate, AdapterView, Backend, BackwardEpilogue, BufferView, ForwardEpilogue,
    LinearGradient, MatrixShape,
};
use crate::reference;

const SCALE: f32 = 0.75;
const ERROR_MAX: f64 = 2e-6;

/// An adapter's place: rows of the product that it adapts, from the first to behind the last, of so many,
/// and inputs and rank.
const SHAPES: [([usize; 2], usize, usize, usize); 5] = [
    ([0, 1], 1, 1, 1),
    ([2, 5], 7, 9, 3),
    ([16, 48], 48, 40, 8),
    ([33, 97], 130, 65, 5),
    ([0, 96], 288, 200, 16),
];

/// A matrix whose rows have adapters, or none, read by a product.
pub fn adapted_matrices<B: Backend>(devices: &[B]) {
    for ([start, end], outputs, inputs, rank) in SHAPES {
        let shape = MatrixShape { outputs, inputs };
        let of_rows = MatrixShape { outputs: end - start, inputs };
        let base = floats(outputs * inputs, 1);
        let a = floats(rank * inputs, 2);
        let b = floats((end - start) * rank, 3);
        let x = floats(6 * inputs, 4);
        let mut weights = widen(&base);
        let rows = &mut weights[start * inputs..end * inputs];
        let factors = [&widen(&a)[..], &widen(&b)];
        let adapted = reference::adapted_matrix(of_rows, rank, f64::from(SCALE), rows, factors);
        rows.copy_from_slice(&adapted);
        let expected = [("y", reference::linear_forward(shape, &widen(&x), &weights, None))];
        let case = format!("adapted {shape:?}, rows {start} to {end}, rank {rank}");
        check(&case, devices, &expected, ERROR_MAX, |device| {
            // One behind the other in a buffer, with a float before.
            let all = [&[f32::NAN], &base[..], &a, &b].concat();
            let buffer = upload(device, &all);
            let ends = [1, 1 + base.len(), 1 + base.len() + a.len(), all.len()];
            let view = |part: usize| BufferView::new(&buffer, ends[part]..ends[part + 1]);
            let mut loaded = matrix(device, shape, &vec![f32::NAN; base.len()]);
            let adapter =
                AdapterView { rows: start..end, rank, scale: SCALE, a: view(1), b: view(2) };
            device.load_adapted_matrix(view(0), &[adapter], &mut loaded);
            let mut y = poisoned_rows(device, 6 * outputs);
            let x = upload_rows(device, &x);
            device.linear_forward(6, &x, &loaded, None, ForwardEpilogue::Plain, &mut y);
            vec![download(device, &y)]
        });
    }
}

/// The gradients of an adapter of some columns of a product's result, over two microbatches.
pub fn adapter_gradients<B: Backend>(devices: &[B]) {
    const ROWS: usize = 19;
    for ([start, end], width, inputs, rank) in SHAPES {
        let outputs = end - start;
        let a = floats(rank * inputs, 2);
        let b = floats(outputs * rank, 3);
        let x = floats(2 * ROWS * inputs, 4);
        let dy = floats(2 * ROWS * width, 5);
        let columns = dy.chunks_exact(width).flat_map(|row| &row[start..end]);
        let columns: Vec<f64> = columns.map(|x| f64::from(*x)).collect();
        let factors = [&widen(&a)[..], &widen(&b)];
        let shape = MatrixShape { outputs, inputs };
        let [of_a, of_b] = reference::adapter_gradients(
            shape,
            rank,
            f64::from(SCALE),
            factors,
            &widen(&x),
            &columns,
        );
        let case = format!("adapter of {start} to {end} of {width}, {inputs} inputs, rank {rank}");
        check(&case, devices, &[("a", of_a), ("b", of_b)], ERROR_MAX, |device| {
            let thin = MatrixShape { outputs: rank, inputs };
            let wide = MatrixShape { outputs, inputs: rank };
            let (down, up) = (matrix(device, thin, &a), matrix(device, wide, &b));
            let mut of_a = upload(device, &vec![f32::NAN; rank * inputs]);
            let mut of_b = upload(device, &vec![f32::NAN; outputs * rank]);
            for (half, accumulate) in [Accumulate::Start, Accumulate::Add].into_iter().enumerate() {
                let x = upload_rows(device, &x[half * ROWS * inputs..][..ROWS * inputs]);
                let dy = upload_rows(device, &dy[half * ROWS * width..][..ROWS * width]);
                let mut scaled = poisoned_rows(device, ROWS * outputs);
                device.scale_columns(&dy, width, start..end, SCALE, &mut scaled);
                let mut through = poisoned_rows(device, ROWS * rank);
                let to = BackwardEpilogue::Plain { gradient: &mut through };
                device.linear_backward_input(ROWS, &scaled, &up, to);
                let to = gradient(&mut of_a, rank * inputs);
                device.linear_backward_weights(ROWS, thin, &x, &through, to, accumulate);
                let mut narrow = poisoned_rows(device, ROWS * rank);
                let plain = ForwardEpilogue::Plain;
                device.linear_forward(ROWS, &x, &down, None, plain, &mut narrow);
                let to = gradient(&mut of_b, outputs * rank);
                device.linear_backward_weights(ROWS, wide, &narrow, &scaled, to, accumulate);
            }
            vec![download(device, &of_a), download(device, &of_b)]
        });
    }
}

fn gradient<T>(buffer: &mut T, len: usize) -> LinearGradient<'_, T> {
    LinearGradient { buffer, weight: 0..len, bias: None }
}
