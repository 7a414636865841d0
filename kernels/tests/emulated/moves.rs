//! Tensors on their way from backend to backend, and what the host writes.

use std::sync::Arc;

use zbelastic_kernels::BoundaryRooms;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{Backend, CpuBackend, DeviceFault, Parcel, View, ViewMut};

use crate::device::{Emulated, Order};
use crate::races::{Log, Recorded, first_race, waits};

pub type Noted = CudaBackend<Recorded<Emulated>>;

/// Two devices of one process and the log of their calls; none without a C++ compiler.
pub fn two(precision: Precision) -> Option<([Noted; 2], Arc<Log>)> {
    let log = Arc::new(Log::default());
    let device = |number| {
        let inner = Emulated::new(precision, Order::Forwards, 8 << 30)?;
        Some(CudaBackend::new(Recorded::new(inner, &log, number)))
    };
    Some(([device(0)?, device(1)?], log))
}

fn rows<B: Backend>(backend: &B, floats: &[f32]) -> B::Buffer {
    let mut buffer = backend.allocate_rows(floats.len()).expect("memory for a test");
    backend.upload(floats, ViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

/// What arrives in a buffer of `to`.
fn taken<B: Backend>(to: &B, parcel: Parcel) -> Vec<f32> {
    let mut buffer = rows(to, &vec![-1.0; parcel.len()]);
    let len = parcel.len();
    to.unpack(parcel, ViewMut::new(&mut buffer, 0..len));
    to.download(View::new(&buffer, 0..len))
}

const FLOATS: [f32; 5] = [1.0, -0.0, 3.5, f32::INFINITY, 0.25];

#[test]
fn a_parcel_is_what_was_packed_wherever_it_is_opened() {
    for precision in Precision::ALL {
        let Some(([one, other], log)) = two(precision) else { return };
        let cpu = CpuBackend::new(1).expect("one thread");
        let x = rows(&one, &FLOATS);
        let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let parcel = one.pack(View::new(&x, 1..4));
        assert!(matches!(parcel, Parcel::Held(_)), "it stays on the device");
        let expected = FLOATS[1..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(taken(&other, parcel.clone())), expected);
        assert_eq!(bits(taken(&one, parcel.clone())), expected, "on the spot");
        assert_eq!(bits(taken(&cpu, parcel.clone())), expected);
        assert_eq!(bits(parcel.into_floats()), expected);
        let arrived = one.receive(Parcel::from(FLOATS[1..4].to_vec()));
        assert!(arrived.is_held(), "it is brought beside the work");
        assert_eq!(bits(taken(&one, arrived.clone())), expected);
        assert_eq!(bits(arrived.into_floats()), expected);
        let of_cpu = cpu.pack(View::new(&rows(&cpu, &FLOATS), 1..4));
        assert_eq!(bits(taken(&one, of_cpu)), expected);
        assert_eq!(first_race(&log.calls(), |_| false), None);
    }
}

/// A device of floats and one of halves do not exchange bytes.
#[test]
fn devices_of_two_precisions_exchange_numbers() {
    let Some(([floats, _], _)) = two(Precision::F32) else { return };
    let Some(([halves, _], _)) = two(Precision::Bf16) else { return };
    let packed = |from: &Noted| from.pack(View::new(&rows(from, &FLOATS), 0..5));
    assert_eq!(taken(&halves, packed(&floats)), FLOATS);
    assert_eq!(taken(&floats, packed(&halves)), FLOATS);
}

/// A room is used again behind its readers, and one too many goes by way of the host.
#[test]
fn rooms_are_few_and_used_again() {
    let Some(([one, other], log)) = two(Precision::Bf16) else { return };
    let mut arrived = rows(&other, &[-1.0; 4]);
    let rounds = BoundaryRooms::ROTATED as u8 + 2;
    for round in 0..rounds {
        let parcel = one.pack(View::new(&rows(&one, &[f32::from(round); 4]), 0..4));
        other.unpack(parcel, ViewMut::new(&mut arrived, 0..4));
    }
    assert_eq!(other.download(View::new(&arrived, 0..4)), [f32::from(rounds - 1); 4]);
    let calls = log.calls();
    assert_eq!(first_race(&calls, |_| false), None);
    let others = |kind: &(usize, _)| matches!(kind, (_, (_, _, true)));
    let between: Vec<usize> = waits(&calls).into_iter().filter(others).map(|(at, _)| at).collect();
    let expected = 2 * usize::from(rounds) - BoundaryRooms::ROTATED;
    assert_eq!(between.len(), expected, "each reader waits, and each writer of a room used again");
    for wait in between {
        assert!(first_race(&calls, |at| at == wait).is_some(), "call {wait} is needed");
    }
    let x = rows(&one, &FLOATS);
    let all: Vec<Parcel> =
        (0..=BoundaryRooms::COUNT_MAX).map(|_| one.pack(View::new(&x, 0..5))).collect();
    let held = all.iter().filter(|parcel| matches!(parcel, Parcel::Held(_))).count();
    assert_eq!(
        held,
        BoundaryRooms::COUNT_MAX - BoundaryRooms::ROTATED,
        "some rooms are of another length"
    );
    assert!(all.into_iter().all(|parcel| parcel.into_floats() == FLOATS));
    assert!(matches!(one.pack(View::new(&x, 0..5)), Parcel::Held(_)), "they have come back");
}

/// The backend that sent it may be gone.
#[test]
fn a_parcel_outlives_its_backend() {
    let Some(([one, other], log)) = two(Precision::F32) else { return };
    let parcel = one.pack(View::new(&rows(&one, &FLOATS), 0..5));
    drop(one);
    assert_eq!(taken(&other, parcel), FLOATS);
    assert_eq!(first_race(&log.calls(), |_| false), None);
}

/// The ring laps, and then only waits until what it overwrites has been read.
#[test]
fn what_the_host_writes_is_read_before_its_place_is_written_again() {
    let Some(([one, _], log)) = two(Precision::F32) else { return };
    let floats: Vec<f32> = (0..9 << 20).map(|i| i as f32).collect();
    let mut buffer = one.allocate(floats.len()).expect("memory for a test");
    one.upload(&floats, ViewMut::new(&mut buffer, 0..floats.len()));
    assert!(one.download(View::new(&buffer, 0..floats.len())) == floats);
    let calls = log.calls();
    assert_eq!(first_race(&calls, |_| false), None);
    let waits: Vec<usize> = waits(&calls).into_iter().map(|(at, _)| at).collect();
    assert_eq!(waits.len(), 36 - 16, "36 MiB through 16");
    assert!(first_race(&calls, |at| waits.contains(&at)).is_some(), "the waits are needed");
}

/// Numbers of a device that gave up are none, and the reader gets the fault from them: it may read on another
/// thread than that of the backend, which has the fault by then.
#[test]
fn numbers_that_could_not_be_had_are_told_from_results() {
    let Some(device) = Emulated::new(Precision::Bf16, Order::Forwards, 1 << 30) else { return };
    let backend = CudaBackend::new(device.clone());
    let parcel = backend.pack(View::new(&rows(&backend, &FLOATS), 0..5));
    let held = parcel.held().expect("it lies in a room");
    assert_eq!(held.fault(), None);
    device.give_up();
    assert_eq!(backend.fault(), None, "nobody has asked the device for anything");
    assert!(parcel.into_floats().iter().all(|x| x.is_nan()));
    assert!(matches!(held.fault(), Some(DeviceFault::Sticky { .. })), "{:?}", held.fault());
    assert_eq!(backend.fault(), held.fault(), "its backend knows before it says anything else");
}
