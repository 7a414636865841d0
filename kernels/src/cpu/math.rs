//! Elementary functions as fixed polynomials.
//!
//! No function of the system's mathematics library is called in a kernel: its last bit differs
//! between systems. Each function here is one fixed sequence of fused multiply-adds, so it gives
//! the same bits on every processor. Errors against f64 are measured by the tests below.

use super::lanes::Lanes;

/// Below this, `exp` is a flat zero: results there would be denormal.
const EXP_LOW: f32 = -87.336_54;
/// Above this, `exp` stays at its largest value; the input is clamped.
const EXP_HIGH: f32 = 88.376_26;

/// The natural logarithm of 2 in two parts: the first has so few digits that its multiples up to
/// 128 are exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`, relative error below 2e-7; zero below -87.34, about 2.4e38 above 88.37; NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its Taylor sum to the sixth power, with the
/// last coefficients adjusted for the interval (Cephes `expf`).
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    let clamped = L::splat(EXP_HIGH).min(L::splat(EXP_LOW).max(x));
    let n = clamped.mul(L::splat(std::f32::consts::LOG2_E)).round();
    let r = n.mul_add(L::splat(-LN_2_HIGH), clamped);
    let r = n.mul_add(L::splat(-LN_2_LOW), r);
    let p = L::splat(1.987_569_1e-4);
    let p = p.mul_add(r, L::splat(1.398_199_9e-3));
    let p = p.mul_add(r, L::splat(8.333_452e-3));
    let p = p.mul_add(r, L::splat(4.166_579_6e-2));
    let p = p.mul_add(r, L::splat(1.666_666_5e-1));
    let p = p.mul_add(r, L::splat(0.5));
    let p = p.mul_add(r.mul(r), r).add(L::splat(1.0));
    p.mul(n.exp2_whole()).zero_below(x, L::splat(EXP_LOW))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.div(one.add(exp(L::splat(0.0).sub(x))))
}

/// The square root of 2 over pi, doubled: GELU's tanh form is `x * sigmoid(2u)` with
/// `u = sqrt(2/pi) (x + 0.044715 x^3)`, because `(1 + tanh u) / 2 = sigmoid(2u)`.
const GELU_SCALE: f32 = 2.0 * 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415, section 2).
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(x: L) -> L {
    let cube = x.mul(x).mul_add(L::splat(GELU_CUBE), L::splat(1.0));
    x.mul(sigmoid(x.mul(cube).mul(L::splat(GELU_SCALE))))
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_slope<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let square = x.mul(x);
    let cube = square.mul_add(L::splat(GELU_CUBE), one);
    let s = sigmoid(x.mul(cube).mul(L::splat(GELU_SCALE)));
    let inner = square.mul_add(L::splat(3.0 * GELU_CUBE), one).mul(L::splat(GELU_SCALE));
    let tail = x.mul(s).mul(one.sub(s));
    tail.mul_add(inner, s)
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(x: L) -> L {
    x.mul(sigmoid(x))
}

/// The derivative of [`silu`].
#[inline(always)]
pub(crate) fn silu_slope<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let s = sigmoid(x);
    s.mul(x.mul_add(one.sub(s), one))
}

#[cfg(test)]
mod tests {
    use super::super::instruction_set::InstructionSet;
    use super::super::lanes::{LANES, Lanes, Portable, dispatch};

    macro_rules! over_lanes {
        ($name:ident, $generic:ident, $function:path) => {
            #[inline(always)]
            fn $generic<L: Lanes>(xs: &mut [f32]) {
                for chunk in xs.chunks_exact_mut(LANES) {
                    $function(L::from_slice(chunk)).write_to(chunk);
                }
            }
            dispatch!(fn $name(xs: &mut [f32]) = $generic);
        };
    }
    over_lanes!(exp_all, exp_lanes, super::exp);
    over_lanes!(gelu_all, gelu_lanes, super::gelu);
    over_lanes!(gelu_slope_all, gelu_slope_lanes, super::gelu_slope);
    over_lanes!(silu_all, silu_lanes, super::silu);
    over_lanes!(silu_slope_all, silu_slope_lanes, super::silu_slope);

    /// A function over a slice, as a processor computes it that lacks every instruction and in each
    /// instruction set, its f64 definition, and the error allowed: relative where the result is
    /// large, absolute below one.
    fn check(
        plain: fn(&mut [f32]),
        run: fn(InstructionSet, &mut [f32]),
        exact: fn(f64) -> f64,
        error_max: f64,
    ) {
        let inputs: Vec<f32> = (0..64_000).map(|i| (i as f32 - 32_000.0) / 400.0).collect();
        let portable = {
            let mut xs = inputs.clone();
            plain(&mut xs);
            xs
        };
        for (x, y) in inputs.iter().zip(&portable) {
            let expected = exact(f64::from(*x));
            let error = (f64::from(*y) - expected).abs() / expected.abs().max(1.0);
            assert!(error <= error_max, "at {x}: {y}, expected {expected}, error {error:e}");
        }
        for set in InstructionSet::available() {
            let mut xs = inputs.clone();
            run(set, &mut xs);
            for (i, (y, expected)) in xs.iter().zip(&portable).enumerate() {
                assert_eq!(y.to_bits(), expected.to_bits(), "{set:?} at {}", inputs[i]);
            }
        }
    }

    fn gelu_exact(x: f64) -> f64 {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
        0.5 * x * (1.0 + libm::tanh(u))
    }

    fn slope(f: fn(f64) -> f64, x: f64) -> f64 {
        let h = 1e-5;
        (f(x + h) - f(x - h)) / (2.0 * h)
    }

    #[test]
    fn functions_match_f64_and_give_the_same_bits_in_every_instruction_set() {
        check(exp_lanes::<Portable>, exp_all, libm::exp, 3e-7);
        check(gelu_lanes::<Portable>, gelu_all, gelu_exact, 1e-6);
        check(gelu_slope_lanes::<Portable>, gelu_slope_all, |x| slope(gelu_exact, x), 2e-6);
        check(silu_lanes::<Portable>, silu_all, |x| x / (1.0 + libm::exp(-x)), 5e-7);
        check(
            silu_slope_lanes::<Portable>,
            silu_slope_all,
            |x| slope(|x| x / (1.0 + libm::exp(-x)), x),
            2e-6,
        );
    }

    #[test]
    fn exp_keeps_nan_and_is_flat_outside_its_range() {
        for set in InstructionSet::available() {
            let mut xs = [0.0; LANES];
            xs[..5].copy_from_slice(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -88.0, 1e30]);
            exp_all(set, &mut xs);
            assert!(xs[0].is_nan());
            assert_eq!(xs[1], 0.0);
            assert!(xs[2].is_finite() && xs[2] > 2e38);
            assert_eq!(xs[3], 0.0);
            assert_eq!(xs[4], xs[2]);
            assert_eq!(xs[5], 1.0);
        }
    }
}
