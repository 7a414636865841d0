//! Tensors from one device to another by NCCL, with two threads as the two processes.

use std::path::Path;
use std::thread;

use zbelastic_emulator::{EmulatedLibrary, EmulatedToolkit, EmulatorSettings, ExecutionOrder};
use zbelastic_kernels::cuda::cache::KernelCache;
use zbelastic_kernels::cuda::nccl::{
    CommunicatorId, DeviceLink, ExchangeState, LinkEnd, LinkError,
};
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, LibraryError};
use zbelastic_kernels::{
    BufferView, BufferViewMut, DeviceMemory, HostTensor, TensorHandle, TensorTransfer,
};

/// Backends of two devices; `None` and a printed line if there are not as many, or no NCCL.
fn two_devices(precision: Precision) -> Option<[CudaBackend; 2]> {
    let count = zbelastic_kernels::cuda::devices().map(|devices| devices.len()).unwrap_or(0);
    if count < 2 {
        println!("skipped: {count} devices, and two are needed");
        return None;
    }
    if let Err(LinkError::Library(missing @ LibraryError::NcclMissing)) = CommunicatorId::new() {
        println!("skipped: {missing}");
        return None;
    }
    let cache = KernelCache::of_environment();
    let open = |index| CudaDevice::open(index, precision, &cache).expect("a device").device;
    Some([open(0), open(1)].map(CudaBackend::new))
}

/// A link, once both ends have begun it.
fn link(of: &CudaBackend, end: LinkEnd, id: &CommunicatorId) -> Box<dyn DeviceLink> {
    let link = of.links().expect("a device of NVIDIA's").begin(end, id).expect("a link");
    while !link.is_ready().expect("the other end begins it, too") {
        thread::yield_now();
    }
    link
}

/// Numbers of which none is that of another tensor, exact in bfloat16.
fn numbers(tensor: u16, len: usize) -> Vec<f32> {
    (0..len).map(|i| f32::from(tensor) + (i % 2) as f32 / 2.0).collect()
}

fn exported(backend: &CudaBackend, numbers: &[f32]) -> TensorHandle {
    let mut rows = backend.allocate_rows(numbers.len()).expect("memory for a test");
    backend.upload(numbers, BufferViewMut::new(&mut rows, 0..numbers.len()));
    backend.export_tensor(BufferView::new(&rows, 0..numbers.len()))
}

/// The numbers of a tensor as a pass of this backend reads them.
fn imported(backend: &CudaBackend, tensor: TensorHandle) -> Vec<f32> {
    let len = tensor.len();
    let mut rows = backend.allocate_rows(len).expect("memory for a test");
    backend.import_tensor(tensor, BufferViewMut::new(&mut rows, 0..len)).expect("no fault");
    backend.download(BufferView::new(&rows, 0..len))
}

/// Waits until the exchange under way is done.
fn finish(link: &mut dyn DeviceLink) -> Result<ExchangeState, LinkError> {
    loop {
        match link.poll()? {
            ExchangeState::Pending => thread::yield_now(),
            done @ (ExchangeState::Sent | ExchangeState::Received(_)) => return Ok(done),
        }
    }
}

fn receive(link: &mut dyn DeviceLink, len: usize) -> TensorHandle {
    link.begin_receive(len).expect("memory");
    match finish(link).expect("it is sent") {
        ExchangeState::Received(tensor) => tensor,
        state @ (ExchangeState::Sent | ExchangeState::Pending) => panic!("{state:?}"),
    }
}

/// More tensors than there are staging buffers, of two lengths, all held until the last has come.
#[test]
fn links_carry_tensors_from_device_to_device_in_order() {
    const TENSORS: u16 = 70;
    let len_of = |tensor: u16| if tensor.is_multiple_of(2) { 1000 } else { 33 };
    for precision in Precision::ALL {
        let Some([sender, receiver]) = two_devices(precision) else { return };
        let id = CommunicatorId::new().expect("NCCL");
        thread::scope(|scope| {
            let shared = &id;
            scope.spawn(move || {
                let mut link = link(&sender, LinkEnd::Sender, shared);
                for tensor in 0..TENSORS {
                    let handle = exported(&sender, &numbers(tensor, len_of(tensor)));
                    assert_eq!(link.begin_send(&handle), Ok(true));
                    assert!(matches!(finish(&mut *link), Ok(ExchangeState::Sent)));
                }
                let of_host = TensorHandle::from(HostTensor::Floats(vec![1.0]));
                assert_eq!(link.begin_send(&of_host), Ok(false), "no device holds it");
            });
            let mut link = link(&receiver, LinkEnd::Receiver, &id);
            let arrived: Vec<TensorHandle> =
                (0..TENSORS).map(|tensor| receive(&mut *link, len_of(tensor))).collect();
            assert!(arrived[0].is_on_device());
            assert!(arrived.iter().any(|tensor| !tensor.is_on_device()), "there are too many");
            for (tensor, handle) in (0..).zip(arrived) {
                let is_it = imported(&receiver, handle) == numbers(tensor, len_of(tensor));
                assert!(is_it, "tensor {tensor}");
            }
        });
    }
}

/// An end that is dropped leaves its tensor as it was, and the other, which may not notice, can be
/// dropped too.
#[test]
fn links_are_given_up_by_either_end() {
    let Some([sender, receiver]) = two_devices(Precision::F32) else { return };
    let id = CommunicatorId::new().expect("NCCL");
    thread::scope(|scope| {
        let shared = &id;
        let sends = scope.spawn(move || {
            let mut link = link(&sender, LinkEnd::Sender, shared);
            let handle = exported(&sender, &numbers(1, 5000));
            assert_eq!(link.begin_send(&handle), Ok(true));
            drop(link);
            handle.into_floats()
        });
        let mut link = link(&receiver, LinkEnd::Receiver, &id);
        let floats = sends.join().expect("it ends");
        assert!(floats == Ok(numbers(1, 5000)), "it goes by way of the host");
        link.begin_receive(5000).expect("memory");
        for _ in 0..1000 {
            match link.poll() {
                // An eager send was sent before its end was dropped.
                Ok(ExchangeState::Received(tensor)) => {
                    assert_eq!(imported(&receiver, tensor), numbers(1, 5000));
                    break;
                }
                Ok(ExchangeState::Pending) => {}
                Ok(ExchangeState::Sent) => panic!("it receives"),
                // Where memory is not shared the abort may be noticed.
                Err(LinkError::Refused { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(link);
        // One that was never begun at the other end.
        let alone = CommunicatorId::new().expect("NCCL");
        let links = receiver.links().expect("a device of NVIDIA's");
        let begun = links.begin(LinkEnd::Receiver, &alone).expect("it does not wait");
        assert_eq!(begun.is_ready(), Ok(false));
    });
}

/// What NCCL refuses, several stages on one device: they go on by way of the host.
#[test]
fn links_within_a_device_are_refused() {
    let Some([_, receiver]) = two_devices(Precision::F32) else { return };
    let id = CommunicatorId::new().expect("NCCL");
    let links = receiver.links().expect("a device of NVIDIA's");
    let ends = [LinkEnd::Receiver, LinkEnd::Sender].map(|end| links.begin(end, &id));
    let ends = ends.map(|begun| begun.expect("it does not wait"));
    let refused = loop {
        let states = [ends[0].is_ready(), ends[1].is_ready()];
        assert!(!states.contains(&Ok(true)), "both are on one device");
        if let Some(error) = states.into_iter().find_map(Result::err) {
            break error;
        }
    };
    assert!(matches!(refused, LinkError::Refused { .. }), "{refused}");
}

#[test]
fn emulated_driver_has_links() {
    if !EmulatedToolkit::is_possible() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    let toolkit = EmulatedToolkit::new(&folder, &EmulatedLibrary::ALL).expect("a folder");
    for order in [ExecutionOrder::Lazy, ExecutionOrder::Eager, ExecutionOrder::Random { seed: 3 }] {
        let settings = EmulatorSettings { devices: 2, order, ..EmulatorSettings::DEFAULT };
        toolkit.run_again(&["links_"], settings);
    }
}
