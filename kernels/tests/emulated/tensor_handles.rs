//! Tensors on their way from backend to backend, and what the host writes.

use std::sync::Arc;

use zbelastic_kernels::StagingReservation;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{
    Backend, BufferView, BufferViewMut, CpuBackend, DeviceFault, DeviceMemory, TensorHandle,
    TensorTransfer,
};

use crate::device::{EmulatedDevice, LaneOrder};
use crate::races::{CallLog, LoggedDevice, first_race, waits};

pub type LoggedBackend = CudaBackend<LoggedDevice<EmulatedDevice>>;

/// Two devices of one process and the log of their calls; `None` without a C++ compiler.
pub fn two(precision: Precision) -> Option<([LoggedBackend; 2], Arc<CallLog>)> {
    let log = Arc::new(CallLog::default());
    let device = |number| {
        let inner = EmulatedDevice::new(precision, LaneOrder::Forwards, 8 << 30)?;
        Some(CudaBackend::new(LoggedDevice::new(inner, &log, number)))
    };
    Some(([device(0)?, device(1)?], log))
}

fn rows<B: Backend>(backend: &B, floats: &[f32]) -> B::Buffer {
    let mut buffer = backend.allocate_rows(floats.len()).expect("memory for a test");
    backend.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

/// What arrives in a buffer of `to`.
fn imported<B: Backend>(to: &B, tensor: TensorHandle) -> Vec<f32> {
    let mut buffer = rows(to, &vec![-1.0; tensor.len()]);
    let len = tensor.len();
    to.import_tensor(tensor, BufferViewMut::new(&mut buffer, 0..len)).expect("no fault");
    to.download(BufferView::new(&buffer, 0..len))
}

const FLOATS: [f32; 5] = [1.0, -0.0, 3.5, f32::INFINITY, 0.25];

#[test]
fn a_tensor_is_imported_as_it_was_exported_on_any_backend() {
    for precision in Precision::ALL {
        let Some(([one, other], log)) = two(precision) else { return };
        let cpu = CpuBackend::new(1).expect("one thread");
        let x = rows(&one, &FLOATS);
        let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let tensor = one.export_tensor(BufferView::new(&x, 1..4));
        assert!(tensor.is_on_device(), "it stays on the device");
        let expected = FLOATS[1..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(imported(&other, tensor.clone())), expected);
        assert_eq!(bits(imported(&one, tensor.clone())), expected, "on the same backend");
        assert_eq!(bits(imported(&cpu, tensor.clone())), expected);
        assert_eq!(bits(tensor.into_floats().expect("no fault")), expected);
        let arrived = one.begin_upload(TensorHandle::from(FLOATS[1..4].to_vec()));
        assert!(arrived.is_on_device(), "it is uploaded beside the work");
        assert_eq!(bits(imported(&one, arrived.clone())), expected);
        assert_eq!(bits(arrived.into_floats().expect("no fault")), expected);
        let of_cpu = cpu.export_tensor(BufferView::new(&rows(&cpu, &FLOATS), 1..4));
        assert_eq!(bits(imported(&one, of_cpu)), expected);
        assert_eq!(first_race(&log.calls(), |_| false), None);
    }
}

/// A device of floats and one of halves do not exchange bytes.
#[test]
fn devices_of_two_precisions_exchange_numbers() {
    let Some(([floats, _], _)) = two(Precision::F32) else { return };
    let Some(([halves, _], _)) = two(Precision::Bf16) else { return };
    let exported =
        |from: &LoggedBackend| from.export_tensor(BufferView::new(&rows(from, &FLOATS), 0..5));
    assert_eq!(imported(&halves, exported(&floats)), FLOATS);
    assert_eq!(imported(&floats, exported(&halves)), FLOATS);
}

/// A staging buffer is reused behind its readers, and one tensor too many is copied through the
/// host.
#[test]
fn staging_buffers_are_few_and_reused() {
    let Some(([one, other], log)) = two(Precision::Bf16) else { return };
    let mut arrived = rows(&other, &[-1.0; 4]);
    let rounds = StagingReservation::ROTATED as u8 + 2;
    for round in 0..rounds {
        let tensor = one.export_tensor(BufferView::new(&rows(&one, &[f32::from(round); 4]), 0..4));
        let to = BufferViewMut::new(&mut arrived, 0..4);
        other.import_tensor(tensor, to).expect("no fault");
    }
    assert_eq!(other.download(BufferView::new(&arrived, 0..4)), [f32::from(rounds - 1); 4]);
    let calls = log.calls();
    assert_eq!(first_race(&calls, |_| false), None);
    let others = |kind: &(usize, _)| matches!(kind, (_, (_, _, true)));
    let between: Vec<usize> = waits(&calls).into_iter().filter(others).map(|(at, _)| at).collect();
    let expected = 2 * usize::from(rounds) - StagingReservation::ROTATED;
    assert_eq!(between.len(), expected, "each reader waits, and each writer of a reused buffer");
    for wait in between {
        assert!(first_race(&calls, |at| at == wait).is_some(), "call {wait} is needed");
    }
    let x = rows(&one, &FLOATS);
    let all: Vec<TensorHandle> = (0..=StagingReservation::COUNT_MAX)
        .map(|_| one.export_tensor(BufferView::new(&x, 0..5)))
        .collect();
    let staged = all.iter().filter(|tensor| tensor.is_on_device()).count();
    assert_eq!(
        staged,
        StagingReservation::COUNT_MAX - StagingReservation::ROTATED,
        "some buffers are of another length"
    );
    assert!(all.into_iter().all(|tensor| tensor.into_floats().expect("no fault") == FLOATS));
    assert!(one.export_tensor(BufferView::new(&x, 0..5)).is_on_device(), "they have been returned");
}

/// The backend that exported a tensor may be dropped before it is read.
#[test]
fn a_tensor_outlives_its_backend() {
    let Some(([one, other], log)) = two(Precision::F32) else { return };
    let tensor = one.export_tensor(BufferView::new(&rows(&one, &FLOATS), 0..5));
    drop(one);
    assert_eq!(imported(&other, tensor), FLOATS);
    assert_eq!(first_race(&log.calls(), |_| false), None);
}

/// The ring wraps around, and then only waits until what it overwrites has been read.
#[test]
fn an_upload_is_read_before_its_buffer_is_reused() {
    let Some(([one, _], log)) = two(Precision::F32) else { return };
    let floats: Vec<f32> = (0..9 << 20).map(|i| i as f32).collect();
    let mut buffer = one.allocate(floats.len()).expect("memory for a test");
    one.upload(&floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    assert!(one.download(BufferView::new(&buffer, 0..floats.len())) == floats);
    let calls = log.calls();
    assert_eq!(first_race(&calls, |_| false), None);
    let waits: Vec<usize> = waits(&calls).into_iter().map(|(at, _)| at).collect();
    assert_eq!(waits.len(), 36 - 16, "36 MiB through 16");
    assert!(first_race(&calls, |at| waits.contains(&at)).is_some(), "the waits are needed");
}

/// Numbers of a device that failed are no result, and the reader gets the fault from them: it may
/// read on another thread than that of the backend, which has the fault by then.
#[test]
fn numbers_of_a_failed_device_carry_a_fault() {
    let Some(device) = EmulatedDevice::new(Precision::Bf16, LaneOrder::Forwards, 1 << 30) else {
        return;
    };
    let backend = CudaBackend::new(device.clone());
    let tensor = backend.export_tensor(BufferView::new(&rows(&backend, &FLOATS), 0..5));
    assert!(tensor.is_on_device(), "it lies in a staging buffer");
    device.fail();
    assert_eq!(backend.fault(), None, "no call has failed yet");
    let fault = tensor.into_floats().expect_err("the device failed");
    assert!(matches!(fault, DeviceFault::Sticky { .. }), "{fault:?}");
    assert_eq!(backend.fault(), Some(fault), "its backend knows before it says anything else");
}
