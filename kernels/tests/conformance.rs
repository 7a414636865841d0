//! The suite on the processor: every instruction set there is, with one to three threads.

use zbelastic_kernels::conformance::{self, floats};
use zbelastic_kernels::{
    BufferView, BufferViewMut, CpuBackend, DeviceMemory, InstructionSet, Optimizer, Precision,
    SQUARE_SUM_CHUNK,
};

fn devices_of(precision: Precision) -> Vec<CpuBackend> {
    let mut devices = Vec::new();
    for threads in 1..=3 {
        for set in InstructionSet::available() {
            let device = CpuBackend::with_instructions(threads, set).expect("three threads");
            devices.push(device.with_precision(precision));
        }
    }
    devices
}

fn devices() -> Vec<CpuBackend> {
    devices_of(Precision::F32)
}

zbelastic_kernels::conformance!(cpu, devices);
zbelastic_kernels::conformance!(cpu_bf16, || devices_of(Precision::Bf16));

/// What is no product of a linear layer has the bits of floats.
#[test]
fn bfloat16_changes_products_alone() {
    let first = devices_of(Precision::F32).swap_remove(0);
    let devices = [first, devices_of(Precision::Bf16).swap_remove(0)];
    conformance::norms(&devices);
    conformance::qk_norms(&devices);
    conformance::gelu(&devices);
    conformance::swiglu(&devices);
    conformance::attention(&devices);
    conformance::attention_masks(&devices);
    conformance::rotation(&devices);
    conformance::embedding(&devices);
    conformance::adamw_meets_the_bits(&devices);
    conformance::muon_meets_the_bits(&devices);
}

/// A processor's definition, to the bit: index order within chunks, chunks in order.
#[test]
fn squares_are_chains_in_order() {
    for len in [0, 1, 17, SQUARE_SUM_CHUNK, SQUARE_SUM_CHUNK + 1, 9 * SQUARE_SUM_CHUNK + 5] {
        let x = floats(len + 2, 1);
        let chain =
            |chunk: &[f32]| chunk.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
        let chunks = x[1..=len].chunks(SQUARE_SUM_CHUNK).map(chain);
        let expected: f64 = chunks.fold(0.0, |sum, chunk| sum + chunk);
        for device in devices() {
            let mut buffer = device.allocate(len + 2).expect("memory for a test");
            device.upload(&x, BufferViewMut::new(&mut buffer, 0..len + 2));
            let found = device.sum_squares(BufferView::new(&buffer, 1..len + 1));
            assert_eq!(found.sum.to_bits(), expected.to_bits(), "{len} elements");
        }
    }
}
