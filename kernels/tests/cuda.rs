//! The conformance suite through the driver, on this machine's device if there is one. Each test
//! opens the first device twice: two backends on one device must give the same bits.
//!
//! The same program is run again on a driver made of processors, which does its work as late as it
//! may, or in an order drawn by chance.

#![cfg(feature = "cuda")]

#[path = "cuda/links.rs"]
mod links;
#[path = "emulated/passes.rs"]
mod passes;

use std::path::Path;
use std::sync::Arc;

use zbelastic_emulator::{EmulatedLibrary, EmulatedToolkit, EmulatorSettings, ExecutionOrder};
use zbelastic_kernels::cuda::cache::KernelCache;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{
    CudaBackend, CudaDevice, GraphLimits, GraphMode, LibraryError, OpenError,
};

/// Two backends, or none and a printed line with the reason.
fn devices(precision: Precision) -> Vec<CudaBackend> {
    opened(precision).into_iter().map(CudaBackend::new).collect()
}

/// The first device twice. One that is there and does not open fails.
fn opened(precision: Precision) -> Vec<Arc<CudaDevice>> {
    let cache = KernelCache::of_environment();
    let open = || CudaDevice::open(0, precision, &cache);
    match open().and_then(|first| Ok([first, open()?])) {
        Ok(opened) => opened.into_iter().map(|opened| opened.device).collect(),
        Err(error @ (OpenError::Library(LibraryError::DriverMissing) | OpenError::NoDevice)) => {
            println!("skipped: {error}");
            Vec::new()
        }
        Err(error) => panic!("{error}"),
    }
}

fn floats() -> Vec<CudaBackend> {
    devices(Precision::F32)
}

fn halves() -> Vec<CudaBackend> {
    devices(Precision::Bf16)
}

zbelastic_kernels::conformance!(f32, floats);
zbelastic_kernels::conformance!(bf16, halves);

/// What is started as a graph does what its commands do, and the driver takes all of them.
#[test]
fn graphs_change_no_bit() {
    for precision in Precision::ALL {
        let Some(device) = opened(precision).pop() else { return };
        let plain = CudaBackend::with_graphs(device.clone(), GraphMode::Off);
        let limits = GraphLimits { commands_min: 2, ..GraphLimits::DEFAULT };
        let graphs = CudaBackend::with_graphs(device, GraphMode::On(limits));
        for (slots, times) in [(1, 7), (3, 6)] {
            let expected = passes::bits(&passes::run(&plain, slots, times));
            assert_eq!(passes::bits(&passes::run(&graphs, slots, times)), expected);
        }
        let counts = graphs.graph_counts();
        assert!(counts.replayed > counts.captured && counts.refused == 0, "{counts:?}");
    }
}

/// Runs of this program on a machine made of processors.
#[test]
fn the_suite_passes_on_an_emulated_driver() {
    if !EmulatedToolkit::is_possible() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    let toolkit = EmulatedToolkit::new(&folder, &EmulatedLibrary::ALL).expect("a folder");
    // Slices take minutes there, and call nothing of the driver that the rest does not.
    let all = ["emulated_driver", "without_a_driver", "slices", "links"];
    let all = all.map(|name| ["--skip", name]);
    let all = all.as_flattened();
    let runs = [
        (ExecutionOrder::Lazy, true, all),
        (ExecutionOrder::Random { seed: 7 }, false, &["graphs_change_no_bit"]),
    ];
    for (order, is_backwards, filter) in runs {
        let settings = EmulatorSettings { order, is_backwards, ..EmulatorSettings::DEFAULT };
        toolkit.run_again(filter, settings);
    }
}

/// The error on a machine without a driver.
#[test]
fn a_machine_without_a_driver_gets_a_typed_error() {
    match CudaDevice::open(0, Precision::F32, &KernelCache::of_environment()).map(|_| ()) {
        Err(OpenError::Library(LibraryError::DriverMissing)) => {
            let list = zbelastic_kernels::cuda::devices();
            assert_eq!(list, Ok(Vec::new()), "no driver, no devices, and no error about it");
        }
        found => println!("skipped: there is a driver ({found:?})"),
    }
}
