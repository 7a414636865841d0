//! The suite on the processor: every instruction set there is, with one to three threads.

use zbelastic_kernels::{CpuBackend, InstructionSet};

fn devices() -> Vec<CpuBackend> {
    let mut devices = Vec::new();
    for threads in 1..=3 {
        for set in InstructionSet::available() {
            devices.push(CpuBackend::with_instructions(threads, set).expect("three threads"));
        }
    }
    devices
}

zbelastic_kernels::conformance!(cpu, devices);
