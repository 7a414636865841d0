//! Buffers on their way to the host beside the work.

use zbelastic_kernels::cuda::DOWNLOADS_MAX;
use zbelastic_kernels::cuda::device::Stream;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{
    Backend, BufferView, BufferViewMut, DeviceFault, DeviceMemory, Optimizer, TensorTransfer,
};

use crate::device::{EmulatedDevice, LaneOrder};
use crate::races::{DeviceCall, first_race, waits};
use crate::tensor_handles::{LoggedBackend, two};

fn floats<B: Backend>(backend: &B, floats: &[f32]) -> B::Buffer {
    let mut buffer = backend.allocate(floats.len()).expect("memory for a test");
    backend.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

fn write(
    backend: &LoggedBackend,
    buffer: &mut <LoggedBackend as DeviceMemory>::Buffer,
    value: f32,
) {
    let len = backend.len(buffer);
    let other = floats(backend, &vec![value; len]);
    backend.order_after_copies(buffer);
    backend.copy(BufferView::new(&other, 0..len), BufferViewMut::new(buffer, 0..len));
}

/// The copy comes after what was computed, what overwrites it after the copy, and the host waits
/// when it reads and no sooner.
#[test]
fn a_download_holds_the_floats_of_its_time_and_waits_only_when_read() {
    for precision in Precision::ALL {
        let Some(([one, _], log)) = two(precision) else { return };
        let mut buffer = floats(&one, &[1.0; 300]);
        let mut pending = Vec::new();
        for round in 0..4 {
            write(&one, &mut buffer, round as f32);
            let begin = log.calls().len();
            pending.push(one.begin_download(&mut buffer));
            // Reading it meanwhile does no harm.
            let _sum = one.sum_squares(BufferView::new(&buffer, 0..300));
            let is_wait = |call: &&DeviceCall| matches!(call, DeviceCall::HostWait { .. });
            assert_eq!(log.calls()[begin..].iter().filter(is_wait).count(), 0, "nothing waits");
        }
        for (round, floats) in pending.iter().enumerate() {
            assert!(floats.is_on_device() && floats.len() == 300);
            let floats = floats.wait().expect("no fault");
            assert!(floats.iter().all(|x| *x == round as f32), "round {round}");
        }
        let calls = log.calls();
        if let Some(race) = first_race(&calls, |_| false) {
            panic!("{race}");
        }
        let needed = [
            (Some(Stream::Download), Stream::Compute, false),
            (Some(Stream::Compute), Stream::Download, false),
            (None, Stream::Download, false),
        ];
        for kind in needed {
            let found: Vec<usize> =
                waits(&calls).into_iter().filter(|(_, it)| *it == kind).map(|(at, _)| at).collect();
            assert!(found.len() >= 3, "{} waits of {kind:?}", found.len());
            let race = first_race(&calls, |at| found.contains(&at));
            assert!(race.is_some(), "waits of {kind:?} may be left out");
        }
    }
}

/// A reader that has read returns the buffer, and so does one that never reads: the next download
/// finds it.
#[test]
fn memory_of_downloads_is_reused() {
    let Some(([one, _], log)) = two(Precision::Bf16) else { return };
    let mut buffer = floats(&one, &[1.0; 300]);
    let mut first = None;
    for round in 0..8 {
        write(&one, &mut buffer, round as f32);
        let pending = one.begin_download(&mut buffer);
        let is_read = round % 2 == 0;
        assert!(!is_read || pending.wait().expect("no fault")[7] == round as f32);
        let _first = first.get_or_insert(pending);
    }
    let first = first.expect("there was a first");
    assert!(
        first.wait().expect("no fault").iter().all(|x| *x == 0.0),
        "what was read is not overwritten"
    );
    let mut places = Vec::new();
    for call in log.calls() {
        if let DeviceCall::Work { what: "copy_out", writes, .. } = call {
            places.extend(writes.iter().map(|bytes| bytes.start));
        }
    }
    assert_eq!(places.len(), 8);
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 1, "one buffer serves all of them");
    assert_eq!(first_race(&log.calls(), |_| false), None);
}

/// A stage whose gradients are not read does not fill the host: what is too much is waited for.
#[test]
fn a_download_without_a_buffer_is_read_at_once() {
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 8 << 30) else {
        return;
    };
    let backend = zbelastic_kernels::cuda::CudaBackend::new(device);
    let mut empty = floats(&backend, &[]);
    assert!(backend.begin_download(&mut empty).is_empty());
    let mut buffer = floats(&backend, &[2.0; 5]);
    let all: Vec<_> = (0..=DOWNLOADS_MAX).map(|_| backend.begin_download(&mut buffer)).collect();
    let unread = all.iter().filter(|floats| floats.is_on_device()).count();
    assert_eq!(unread, DOWNLOADS_MAX, "as many as there may be");
    assert!(all.iter().all(|floats| floats.wait().expect("no fault")[4] == 2.0));
    assert!(backend.begin_download(&mut buffer).is_on_device(), "it has been returned");
}

/// Floats of a device that failed are no result, and the reader gets the fault from them.
#[test]
fn floats_of_a_failed_download_carry_a_fault() {
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 1 << 30) else {
        return;
    };
    let backend = zbelastic_kernels::cuda::CudaBackend::new(device.clone());
    let mut buffer = floats(&backend, &[1.0; 5]);
    let pending = backend.begin_download(&mut buffer);
    device.fail();
    assert_eq!(backend.fault(), None, "no call has failed yet");
    let fault = pending.wait().expect_err("the device failed");
    assert!(matches!(fault, DeviceFault::Sticky { .. }), "{fault:?}");
    assert_eq!(pending.wait(), Err(fault.clone()), "read again");
    assert_eq!(backend.fault(), Some(fault), "its backend knows before it says anything else");
}
