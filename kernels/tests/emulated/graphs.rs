//! Commands that are written down, issued in order, and made graphs of where they come again.

use std::sync::Arc;

use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, GraphCounts, GraphLimits, Graphs};
use zbelastic_kernels::{Backend, View, ViewMut};

use crate::device::{Captures, Emulated, Order};
use crate::passes::{bits, run};

const LIMITS: GraphLimits = GraphLimits { graphs: 4, seen: 64, commands_min: 2, commands_max: 6 };
const PRECISION: Precision = Precision::Bf16;

fn emulated(captures: Captures) -> Option<Arc<Emulated>> {
    Emulated::with_captures(PRECISION, Order::Forwards, 1 << 30, captures)
}

#[test]
fn graphs_change_no_bit_however_few_are_kept() {
    let Some(device) = emulated(Captures::Always) else { return };
    let plain = CudaBackend::with_graphs(device.clone(), Graphs::Off);
    for (slots, times) in [(1, 7), (2, 6), (5, 5)] {
        let expected = run(&plain, slots, times);
        assert_eq!(plain.graph_counts().captured, 0);
        for commands_max in [1, 2, 3, 6, 64] {
            let limits = GraphLimits { commands_max, ..LIMITS };
            let backend = CudaBackend::with_graphs(device.clone(), Graphs::On(limits));
            assert_eq!(bits(&run(&backend, slots, times)), bits(&expected), "{slots} {limits:?}");
            let counts = backend.graph_counts();
            assert!(counts.held <= LIMITS.graphs, "{counts:?}");
            assert_eq!(counts.held, device.graph_count(), "what goes is given up");
            let may_gain = commands_max > 1;
            assert_eq!(
                counts.captured > 0 && counts.replayed > counts.captured,
                may_gain,
                "{counts:?}"
            );
            drop(backend);
            assert_eq!(device.graph_count(), 0, "graphs go with their owner");
        }
    }
}

/// Every operation notes when it began and ended; only a moment within it keeps it from being a graph.
#[test]
fn moments_at_the_ends_of_an_operation_are_beside_its_graph() {
    let Some(device) = emulated(Captures::Always) else { return };
    let backend = CudaBackend::with_graphs(device, Graphs::On(LIMITS));
    let from = backend.allocate(4).expect("memory for a test");
    let mut to = backend.allocate(4).expect("memory for a test");
    let mut operation = |moments_after: &[usize]| {
        assert!(backend.stamp());
        for index in 0..3 {
            backend.copy(View::new(&from, 0..index + 1), ViewMut::new(&mut to, 0..index + 1));
            if moments_after.contains(&index) {
                assert!(backend.stamp());
            }
        }
        backend.flush();
        assert_eq!(backend.stamps().len(), 1 + moments_after.len());
        let GraphCounts { captured, replayed, .. } = backend.graph_counts();
        (captured, replayed)
    };
    let (middle, end) = (1, 2);
    assert_eq!([(); 3].map(|()| operation(&[end])), [(0, 0), (1, 1), (1, 2)]);
    assert_eq!([(); 3].map(|()| operation(&[middle, end])), [(1, 2); 3]);
}

#[test]
fn a_device_that_makes_no_graphs_is_asked_once() {
    let Some(device) = emulated(Captures::Never) else { return };
    let plain = CudaBackend::with_graphs(device.clone(), Graphs::Off);
    let backend = CudaBackend::with_graphs(device, Graphs::On(LIMITS));
    assert_eq!(bits(&run(&backend, 2, 6)), bits(&run(&plain, 2, 6)));
    let GraphCounts { captured, replayed, refused, held, issued } = backend.graph_counts();
    assert_eq!((captured, replayed, refused, held), (0, 0, 1, 0));
    assert_eq!(issued, plain.graph_counts().issued);
}

/// Nothing is issued before a border, and no border is needed for what the host reads.
#[test]
fn what_waits_is_told_before_memory_goes_or_is_read() {
    let Some(device) = emulated(Captures::Always) else { return };
    let backend = CudaBackend::with_graphs(device.clone(), Graphs::On(GraphLimits::PLAIN));
    let mut to = backend.allocate(4).expect("memory for a test");
    let told = || backend.graph_counts().issued;
    {
        // A buffer so large that it has a region of its own, which goes with it.
        let mut from = backend.allocate(16 << 20).expect("memory for a test");
        backend.upload(&[1.0, 2.0, 3.0, 4.0], ViewMut::new(&mut from, 0..4));
        backend.copy(View::new(&from, 0..4), ViewMut::new(&mut to, 0..4));
        assert_eq!(told(), 0, "it waits");
    }
    // The arena holds the region until it needs another one.
    let _other = backend.allocate(16 << 20).expect("memory for a test");
    assert_eq!(told(), 1, "told before its memory went");
    assert_eq!(backend.download(View::new(&to, 0..4)), [1.0, 2.0, 3.0, 4.0]);
    let mut again = backend.allocate(4).expect("memory for a test");
    backend.copy(View::new(&to, 0..4), ViewMut::new(&mut again, 0..4));
    assert_eq!(backend.download(View::new(&again, 0..4)), [1.0, 2.0, 3.0, 4.0]);
    backend.copy(View::new(&to, 0..4), ViewMut::new(&mut again, 0..4));
    assert_eq!(told(), 2);
    backend.flush();
    assert_eq!(told(), 3, "the end of an operation");
}

/// A fault of commands that waited, found when memory is given back, is kept for the next operation.
#[test]
fn a_fault_where_nobody_can_be_told_is_told_next() {
    let Some(device) = emulated(Captures::Always) else { return };
    let backend = CudaBackend::with_graphs(device.clone(), Graphs::On(GraphLimits::PLAIN));
    let mut rows = backend.allocate_rows(8).expect("memory for a test");
    let large = backend.allocate(16 << 20).expect("memory for a test");
    backend.copy(View::new(&large, 0..8), ViewMut::new(&mut rows, 0..8));
    device.give_up();
    drop(large);
    let other = backend.allocate(16 << 20);
    device.recover();
    drop(other);
    assert!(backend.download(View::new(&rows, 0..8)).iter().all(|x| x.is_nan()));
    assert!(backend.fault().is_some());
}
