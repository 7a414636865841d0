//! Muon's step: to the bits of processors, and its orthogonalisation in f64.

use crate::backend::{
    MatrixShape, MuonCoefficients, MuonMatrix, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON,
    NEWTON_SCHULZ_ITERATIONS, SQUARE_SUM_CHUNK,
};

/// Factors in a chain of a product on processors.
const CHAIN: usize = 384;

/// Newton-Schulz iterations on a matrix in f64, as [`MuonMatrix`] defines them without its roundings.
#[must_use]
pub fn newton_schulz(shape: MatrixShape, x: &[f64]) -> Vec<f64> {
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scaled: Vec<f64> = x.iter().map(|x| x / (norm + NEWTON_SCHULZ_EPSILON)).collect();
    let product = |rows: usize, left: &[f64], right: &[f64]| {
        let chain =
            |factors: &mut dyn Iterator<Item = (f64, f64)>| factors.map(|(l, r)| l * r).sum();
        transposed_product(rows, left, right, chain)
    };
    iterations(shape, scaled, NEWTON_SCHULZ.map(f64::from), product)
}

/// One step in place, in f32 and in exactly the order that [`MuonCoefficients`] and [`MuonMatrix`]
/// document, with the products of processors: a processor must meet its bits.
pub fn muon(
    w: &mut [f32],
    m: &mut [f32],
    g: &[f32],
    MuonMatrix { shape, step }: MuonMatrix,
    numbers: MuonCoefficients,
) {
    let MuonCoefficients { decay, momentum, momentum_rest, clip } = numbers;
    let mut u = Vec::with_capacity(g.len());
    for (m, g) in m.iter_mut().zip(g) {
        let g = clip * g;
        *m = *m * momentum + g * momentum_rest;
        u.push(*m * momentum + g * momentum_rest);
    }
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let sums =
        u.chunks(SQUARE_SUM_CHUNK).map(|chunk| chunk.iter().map(square).fold(0.0, |a, b| a + b));
    let norm = sums.fold(0.0, |total, sum| total + sum).sqrt();
    let scale = (1.0 / (norm + NEWTON_SCHULZ_EPSILON)) as f32;
    let scaled = u.iter().map(|x| x * scale).collect();
    let o = iterations(shape, scaled, NEWTON_SCHULZ, |rows, left, right| {
        transposed_product(rows, left, right, chains)
    });
    for (w, o) in w.iter_mut().zip(o) {
        *w = *w * decay + step * o;
    }
}

/// Chains of fused multiply-adds, added in order.
fn chains(factors: &mut dyn Iterator<Item = (f32, f32)>) -> f32 {
    let mut sum = None;
    let mut factors = factors.peekable();
    while factors.peek().is_some() {
        let chain =
            factors.by_ref().take(CHAIN).fold(0.0, |sum, (l, r): (f32, f32)| l.mul_add(r, sum));
        sum = Some(sum.map_or(chain, |sum: f32| sum + chain));
    }
    sum.unwrap_or(0.0)
}

/// The transpose of `left` by `right`, both of `rows` rows; `sum` adds the products of factors.
fn transposed_product<T: Copy>(
    rows: usize,
    left: &[T],
    right: &[T],
    sum: impl Fn(&mut dyn Iterator<Item = (T, T)>) -> T,
) -> Vec<T> {
    let [left_width, right_width] = [left, right].map(|factor| factor.len() / rows);
    let element = |index: usize| {
        let (i, j) = (index / right_width, index % right_width);
        sum(&mut (0..rows).map(|row| (left[row * left_width + i], right[row * right_width + j])))
    };
    (0..left_width * right_width).map(element).collect()
}

/// The iterations on a matrix that is divided by its norm. `product(rows, left, right)` multiplies the
/// transpose of the left matrix by the right one.
fn iterations<T: Copy + std::ops::Mul<Output = T> + std::ops::Add<Output = T>>(
    MatrixShape { outputs, inputs }: MatrixShape,
    x: Vec<T>,
    [a, b, c]: [T; 3],
    product: impl Fn(usize, &[T], &[T]) -> Vec<T>,
) -> Vec<T> {
    let is_tall = outputs > inputs;
    let [rows, columns] = if is_tall { [inputs, outputs] } else { [outputs, inputs] };
    let mut x = if is_tall { transpose(&x, inputs) } else { x };
    for _ in 0..NEWTON_SCHULZ_ITERATIONS {
        let tall = transpose(&x, columns);
        let gram = product(columns, &tall, &tall);
        let square = product(rows, &gram, &gram);
        let polynomial: Vec<T> =
            gram.iter().zip(&square).map(|(gram, square)| b * *gram + c * *square).collect();
        let change = product(rows, &polynomial, &x);
        x = x.iter().zip(&change).map(|(x, change)| a * *x + *change).collect();
    }
    if is_tall { transpose(&x, outputs) } else { x }
}

/// The transpose of a matrix of so many columns.
fn transpose<T: Copy>(x: &[T], columns: usize) -> Vec<T> {
    let rows = x.len() / columns;
    (0..x.len()).map(|index| x[index % rows * columns + index / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::newton_schulz;
    use crate::backend::MatrixShape;
    use crate::conformance::floats;

    /// The eigenvalues of a symmetric matrix, by Jacobi's rotations.
    fn eigenvalues(mut a: Vec<f64>, n: usize) -> Vec<f64> {
        for _ in 0..20 {
            for p in 0..n {
                for q in p + 1..n {
                    rotate(&mut a, n, p, q);
                }
            }
        }
        (0..n).map(|i| a[i * n + i]).collect()
    }

    fn rotate(a: &mut [f64], n: usize, p: usize, q: usize) {
        let angle = 0.5 * (2.0 * a[p * n + q]).atan2(a[p * n + p] - a[q * n + q]);
        let (sin, cos) = angle.sin_cos();
        for k in 0..n {
            let [x, y] = [a[k * n + p], a[k * n + q]];
            (a[k * n + p], a[k * n + q]) = (cos * x + sin * y, cos * y - sin * x);
        }
        for k in 0..n {
            let [x, y] = [a[p * n + k], a[q * n + k]];
            (a[p * n + k], a[q * n + k]) = (cos * x + sin * y, cos * y - sin * x);
        }
    }

    fn singular_values(shape: MatrixShape, x: &[f64]) -> Vec<f64> {
        let MatrixShape { outputs, inputs } = shape;
        let gram = |i: usize| {
            let rows = [i / outputs, i % outputs].map(|row| &x[row * inputs..][..inputs]);
            rows[0].iter().zip(rows[1]).map(|(a, b)| a * b).sum()
        };
        let squares = eigenvalues((0..outputs * outputs).map(gram).collect(), outputs);
        let mut values: Vec<f64> =
            squares.into_iter().map(|square| square.max(0.0).sqrt()).collect();
        values.sort_by(f64::total_cmp);
        values.split_off(outputs - outputs.min(inputs))
    }

    /// They bring every singular value near 1 and leave the singular vectors, so the product with the
    /// matrix's transpose stays symmetric.
    #[test]
    fn newton_schulz_brings_singular_values_near_one() {
        for (outputs, inputs) in [(1, 1), (8, 8), (8, 20), (20, 8), (1, 7), (7, 1)] {
            let shape = MatrixShape { outputs, inputs };
            let mut x: Vec<f64> =
                floats(outputs * inputs, 3).into_iter().map(|x| 1e-3 * f64::from(x)).collect();
            // A random square matrix may have a singular value near zero, which nothing brings near 1.
            (0..outputs.min(inputs)).for_each(|i| x[i * inputs + i] += 1e-3);
            let before = singular_values(shape, &x);
            assert!(before.iter().all(|value| *value < 0.01), "{before:?}");
            let o = newton_schulz(shape, &x);
            let found = singular_values(shape, &o);
            assert!(found.iter().all(|value| (0.65..1.25).contains(value)), "{shape:?}: {found:?}");
            let product = |i: usize, j: usize| -> f64 {
                (0..inputs).map(|k| o[i * inputs + k] * x[j * inputs + k]).sum()
            };
            for (i, j) in (0..outputs * outputs).map(|at| (at / outputs, at % outputs)) {
                assert!((product(i, j) - product(j, i)).abs() < 1e-12, "{shape:?}: {i} {j}");
            }
        }
    }

    #[test]
    fn a_matrix_of_zeros_stays() {
        let shape = MatrixShape { outputs: 3, inputs: 2 };
        assert_eq!(newton_schulz(shape, &[0.0; 6]), [0.0; 6]);
    }
}
