//! What every backend must do, as tests that a backend instantiates in one line.
//!
//! ```text
//! zbelastic_kernels::conformance!(cpu, || vec![CpuBackend::new(1)?, CpuBackend::new(2)?]);
//! ```
//!
//! Each behaviour is compared with [`crate::reference`] on the first device, at shapes on both
//! sides of every block size, and then all devices named must give the same bits as the first.
//! The reference's own gradients are checked against finite differences beside it.

mod activation;
mod adapter;
mod attention;
mod elementwise;
mod embed;
mod fingerprint;
mod head;
mod linear;
mod masks;
mod muon;
mod norm;
mod optimizer;
mod probe;
mod slices;
mod stepped;
mod versions;

pub use activation::{gelu, swiglu};
pub use adapter::{adapted_matrices, adapter_gradients};
pub use attention::{attention, attention_sees_no_future, rotation};
pub use elementwise::sums_of_buffers;
pub use embed::embedding;
pub use fingerprint::{commits_sum_what_they_leave, state_sums};
pub use head::{head, head_ignores_rows_of_nan, head_is_stable_for_large_logits};
pub use linear::{linear_backward, linear_forward, linear_nonfinite_stays, linear_weights};
pub use masks::{attention_masks, attention_sees_no_other_document, masked_slices_are_the_whole};
pub use muon::{
    muon_is_near_newton_schulz, muon_loads_matrices, muon_meets_the_bits,
    muon_packs_parts_of_matrices,
};
pub use norm::{norms, qk_norms};
pub use optimizer::{
    adamw_loads_matrices, adamw_meets_the_bits, candidates_that_are_packed_weights, square_sums,
};
pub use probe::floats;
pub use slices::{attention_slices, slices_are_the_whole};
pub use stepped::{candidates_with_squares, frozen_tensors_are_left_alone};
pub use versions::versions_meet_the_bits;

use crate::backend::Backend;

/// Instantiates the suite: a module of tests over the devices that `$make` yields, which must all
/// give the same bits. Prints one line and passes if `$make` yields none.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;

            $crate::conformance! { @each tests ($make) }
        }
    };
    (@each $what:ident $context:tt) => {
        $crate::conformance! { @$what $context;
            linear_forward, linear_backward, linear_weights, linear_nonfinite_stays, norms, qk_norms,
            gelu, swiglu, attention, attention_sees_no_future, rotation, embedding, head,
            head_ignores_rows_of_nan, head_is_stable_for_large_logits, square_sums, adamw_meets_the_bits,
            adamw_loads_matrices, attention_slices, slices_are_the_whole, attention_masks,
            masked_slices_are_the_whole, attention_sees_no_other_document,
            candidates_that_are_packed_weights, state_sums, commits_sum_what_they_leave,
            candidates_with_squares, frozen_tensors_are_left_alone, versions_meet_the_bits,
            muon_meets_the_bits, muon_is_near_newton_schulz, muon_loads_matrices,
            muon_packs_parts_of_matrices,
            adapted_matrices, adapter_gradients, sums_of_buffers
        }
    };
    (@list (); $($test:ident),*) => {
        vec![$((stringify!($test), $test::<B> as fn(&[B]))),*]
    };
    (@tests ($make:expr); $($test:ident),*) => {
        $(
            #[test]
            fn $test() {
                let devices = ($make)();
                if devices.is_empty() {
                    println!("skipped: no device");
                    return;
                }
                $crate::conformance::$test(&devices);
            }
        )*
    };
}

/// A behaviour's name and its test, which panics if a device does not have it.
pub type Behaviour<B> = (&'static str, fn(&[B]));

/// All behaviours by name, for callers that check them outside of a test.
#[must_use]
pub fn behaviours<B: Backend>() -> Vec<Behaviour<B>> {
    crate::conformance!(@each list ())
}
