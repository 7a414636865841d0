//! Commands that are recorded, issued in order, and made graphs of where they come again.

use std::sync::Arc;

use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, GraphCounts, GraphLimits, GraphMode};
use zbelastic_kernels::{Backend, BufferView, BufferViewMut, DeviceClock, DeviceMemory};

use crate::device::{EmulatedDevice, GraphSupport, LaneOrder};
use crate::passes::{bits, run};

const LIMITS: GraphLimits = GraphLimits { graphs: 4, seen: 64, commands_min: 2, commands_max: 6 };
const PRECISION: Precision = Precision::Bf16;

fn emulated(captures: GraphSupport) -> Option<Arc<EmulatedDevice>> {
    EmulatedDevice::with_captures(PRECISION, LaneOrder::Forwards, 1 << 30, captures)
}

#[test]
fn graphs_change_no_bit_however_few_are_kept() {
    let Some(device) = emulated(GraphSupport::Always) else { return };
    let plain = CudaBackend::with_graphs(device.clone(), GraphMode::Off);
    for (slots, times) in [(1, 7), (2, 6), (5, 5)] {
        let expected = run(&plain, slots, times);
        assert_eq!(plain.graph_counts().captured, 0);
        for commands_max in [1, 2, 3, 6, 64] {
            let limits = GraphLimits { commands_max, ..LIMITS };
            let backend = CudaBackend::with_graphs(device.clone(), GraphMode::On(limits));
            assert_eq!(bits(&run(&backend, slots, times)), bits(&expected), "{slots} {limits:?}");
            let counts = backend.graph_counts();
            assert!(counts.held <= LIMITS.graphs, "{counts:?}");
            assert_eq!(counts.held, device.graph_count(), "an evicted graph is destroyed");
            let may_gain = commands_max > 1;
            assert_eq!(
                counts.captured > 0 && counts.replayed > counts.captured,
                may_gain,
                "{counts:?}"
            );
            drop(backend);
            assert_eq!(device.graph_count(), 0, "graphs are destroyed with their owner");
        }
    }
}

/// Every operation records when it began and ended; only a timestamp within it keeps it from being
/// a graph.
#[test]
fn timestamps_at_the_ends_of_an_operation_are_beside_its_graph() {
    let Some(device) = emulated(GraphSupport::Always) else { return };
    let backend = CudaBackend::with_graphs(device, GraphMode::On(LIMITS));
    let from = backend.allocate(4).expect("memory for a test");
    let mut to = backend.allocate(4).expect("memory for a test");
    let mut operation = |timestamps_after: &[usize]| {
        assert!(backend.record_timestamp());
        for index in 0..3 {
            backend.copy(
                BufferView::new(&from, 0..index + 1),
                BufferViewMut::new(&mut to, 0..index + 1),
            );
            if timestamps_after.contains(&index) {
                assert!(backend.record_timestamp());
            }
        }
        backend.flush();
        assert_eq!(backend.read_timestamps().len(), 1 + timestamps_after.len());
        let GraphCounts { captured, replayed, .. } = backend.graph_counts();
        (captured, replayed)
    };
    let middle = 1;
    let end = 2;
    assert_eq!([(); 3].map(|()| operation(&[end])), [(0, 0), (1, 1), (1, 2)]);
    assert_eq!([(); 3].map(|()| operation(&[middle, end])), [(1, 2); 3]);
}

#[test]
fn a_device_without_graphs_is_tried_once() {
    let Some(device) = emulated(GraphSupport::Never) else { return };
    let plain = CudaBackend::with_graphs(device.clone(), GraphMode::Off);
    let backend = CudaBackend::with_graphs(device, GraphMode::On(LIMITS));
    assert_eq!(bits(&run(&backend, 2, 6)), bits(&run(&plain, 2, 6)));
    let GraphCounts { captured, replayed, refused, held, issued } = backend.graph_counts();
    assert_eq!((captured, replayed, refused, held), (0, 0, 1, 0));
    assert_eq!(issued, plain.graph_counts().issued);
}

/// Nothing is issued before a border, and no border is needed for what the host reads.
#[test]
fn waiting_commands_are_issued_before_memory_is_freed_or_read() {
    let Some(device) = emulated(GraphSupport::Always) else { return };
    let backend = CudaBackend::with_graphs(device.clone(), GraphMode::On(GraphLimits::DEFAULT));
    let mut to = backend.allocate(4).expect("memory for a test");
    let issued = || backend.graph_counts().issued;
    {
        // A buffer so large that it has a region of its own, which is freed with it.
        let mut from = backend.allocate(16 << 20).expect("memory for a test");
        backend.upload(&[1.0, 2.0, 3.0, 4.0], BufferViewMut::new(&mut from, 0..4));
        backend.copy(BufferView::new(&from, 0..4), BufferViewMut::new(&mut to, 0..4));
        assert_eq!(issued(), 0, "it waits");
    }
    // The arena holds the region until it needs another one.
    let _other = backend.allocate(16 << 20).expect("memory for a test");
    assert_eq!(issued(), 1, "issued before its memory was freed");
    assert_eq!(backend.download(BufferView::new(&to, 0..4)), [1.0, 2.0, 3.0, 4.0]);
    let mut again = backend.allocate(4).expect("memory for a test");
    backend.copy(BufferView::new(&to, 0..4), BufferViewMut::new(&mut again, 0..4));
    assert_eq!(backend.download(BufferView::new(&again, 0..4)), [1.0, 2.0, 3.0, 4.0]);
    backend.copy(BufferView::new(&to, 0..4), BufferViewMut::new(&mut again, 0..4));
    assert_eq!(issued(), 2);
    backend.flush();
    assert_eq!(issued(), 3, "the end of an operation");
}

/// A fault of commands that waited, found when memory is freed, is kept for the next operation.
#[test]
fn a_fault_that_cannot_be_returned_is_returned_by_the_next_call() {
    let Some(device) = emulated(GraphSupport::Always) else { return };
    let backend = CudaBackend::with_graphs(device.clone(), GraphMode::On(GraphLimits::DEFAULT));
    let mut rows = backend.allocate_rows(8).expect("memory for a test");
    let large = backend.allocate(16 << 20).expect("memory for a test");
    backend.copy(BufferView::new(&large, 0..8), BufferViewMut::new(&mut rows, 0..8));
    device.fail();
    drop(large);
    let other = backend.allocate(16 << 20);
    device.recover();
    drop(other);
    assert!(backend.download(BufferView::new(&rows, 0..8)).iter().all(|x| x.is_nan()));
    assert!(backend.fault().is_some());
}
