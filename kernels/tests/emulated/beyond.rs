//! What the conformance suite does not test of a device.

use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::{
    Accumulate, Backend, BufferView, BufferViewMut, ByteCounts, CpuBackend, DeviceClock,
    DeviceMemory, DeviceSizes, LinearGradient, LossScale, MatrixShape, MemoryClaim, Optimizer,
    ScratchOperation,
};

use crate::device::{EmulatedDevice, LaneOrder, devices};

fn upload(
    device: &CudaBackend<EmulatedDevice>,
    floats: &[f32],
) -> <CudaBackend<EmulatedDevice> as DeviceMemory>::Buffer {
    let mut buffer = device.allocate(floats.len()).expect("memory for a test");
    device.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

/// Enough rows for three levels of sums of sums; small integers, so that every order is exact.
#[test]
fn columns_of_many_rows_are_summed_level_by_level() {
    let rows = 33_000;
    let outputs = 3;
    let shape = MatrixShape { outputs, inputs: 1 };
    for device in devices(Precision::F32) {
        let floats: Vec<f32> = (0..rows * outputs).map(|i| (i * i % 7) as f32).collect();
        let gradient = upload(&device, &floats);
        let x = upload(&device, &vec![0.0; rows]);
        let mut sums = upload(&device, &[100.0; 6]);
        let to = LinearGradient { buffer: &mut sums, weight: 0..3, bias: Some(3..6) };
        device.linear_backward_weights(rows, shape, &x, &gradient, to, Accumulate::Add);
        let found = device.download(BufferView::new(&sums, 3..6));
        for (column, found) in found.iter().enumerate() {
            let exact: f32 = floats.iter().skip(column).step_by(outputs).sum();
            assert_eq!(*found, 100.0 + exact, "column {column}");
        }
    }
}

/// More rows than go together: loss, gradient and all are those of a processor.
#[test]
fn a_head_in_chunks_is_a_head() {
    let rows = 8200;
    let outputs = 300;
    let inputs = 2;
    let cpu = CpuBackend::new(1).expect("one thread");
    let expected = head(&cpu, rows, MatrixShape { outputs, inputs });
    for device in devices(Precision::F32) {
        let found = head(&device, rows, MatrixShape { outputs, inputs });
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found - expected).abs() / expected.abs().max(1e-2);
            assert!(error < 1e-4, "number {index}: {found}, expected {expected}");
        }
    }
}

/// The loss, the logarithms of sums, and the gradient of what comes into the head.
fn head<B: Backend>(device: &B, rows: usize, shape: MatrixShape) -> Vec<f64> {
    let filled = |len: usize, seed| {
        let floats = zbelastic_kernels::conformance::floats(len, seed);
        let mut buffer = device.allocate(len).expect("memory for a test");
        device.upload(&floats, BufferViewMut::new(&mut buffer, 0..len));
        buffer
    };
    let all = |buffer: &B::Buffer| device.download(BufferView::new(buffer, 0..device.len(buffer)));
    let x = filled(rows * shape.inputs, 1);
    let weights = filled(shape.outputs * shape.inputs, 2);
    let mut matrix = device.allocate_matrix(shape).expect("memory for a test");
    device.load_matrix(BufferView::new(&weights, 0..shape.outputs * shape.inputs), &mut matrix);
    let targets: Vec<u32> = (0..rows as u32).map(|row| row * 151 % 300).collect();
    let mut logits = filled(rows * shape.outputs, 3);
    let mut log_sums = filled(rows, 4);
    let mut dx = filled(rows * shape.inputs, 5);
    let loss = device.head_forward(&x, &matrix, &targets, &mut logits, &mut log_sums);
    let loss = loss.wait().expect("no fault");
    let scale = LossScale { cross_entropy: 0.5, z_loss: 0.125 };
    device.head_backward_input(&targets, scale, &log_sums, &matrix, &mut logits, &mut dx);
    let rest = [all(&log_sums), all(&dx)].concat();
    [loss].into_iter().chain(rest.into_iter().map(f64::from)).collect()
}

/// 1,024 chains a piece of 16,384, added in pairs, halves to halves and warps in order; then
/// pieces.
fn square_tree(x: &[f32]) -> f64 {
    let of_threads = |chains: [f64; 256]| {
        let warps = chains.chunks(32).map(|lanes| {
            let mut lanes = lanes.to_vec();
            while lanes.len() > 1 {
                let half = lanes.split_off(lanes.len() / 2);
                lanes.iter_mut().zip(half).for_each(|(lane, other)| *lane += other);
            }
            lanes[0]
        });
        warps.reduce(|sum, warp| sum + warp).expect("eight warps")
    };
    let pieces = x.chunks(16_384).map(|piece| {
        let mut chains = [0.0f64; 1024];
        piece.iter().enumerate().for_each(|(i, x)| chains[i % 1024] += f64::from(*x).powi(2));
        let thread = |t: usize| {
            (chains[4 * t] + chains[4 * t + 1]) + (chains[4 * t + 2] + chains[4 * t + 3])
        };
        of_threads(std::array::from_fn(thread))
    });
    let mut threads = [0.0; 256];
    pieces.enumerate().for_each(|(i, piece)| threads[i % 256] += piece);
    of_threads(threads)
}

#[test]
fn squares_are_added_up_in_a_tree_of_the_length_alone() {
    // The last one has more pieces than a block has threads.
    for len in [1, 5, 1025, 16_384, 16_385, 100_003, 258 * 16_384 - 3] {
        // All bits of a float, in many sizes: their squares do not add up without rounding.
        let floats = zbelastic_kernels::conformance::floats(len, len as u64);
        let x: Vec<f32> = floats.into_iter().map(|x| 1.0 / (1e-6 + x.powi(4))).collect();
        for device in devices(Precision::F32) {
            let buffer = upload(&device, &x);
            let found = device.sum_squares(BufferView::new(&buffer, 0..len)).sum;
            assert_eq!(found.to_bits(), square_tree(&x).to_bits(), "{len} elements");
        }
    }
}

#[test]
fn squares_of_many_tensors_are_those_of_each() {
    for device in devices(Precision::F32) {
        let floats: Vec<f32> = (0..200_000).map(|i| (i % 1000) as f32 / 7.0).collect();
        let buffer = upload(&device, &floats);
        let ranges = [0..70_000, 70_000..70_000, 70_001..70_002, 80_000..200_000];
        let views = || ranges.clone().map(|range| BufferView::new(&buffer, range));
        let together = device.sum_squares_of_each(&views());
        assert_eq!(together.len(), ranges.len());
        for (sum, view) in together.into_iter().zip(views()) {
            assert_eq!(sum, device.sum_squares(view));
        }
    }
}

#[test]
fn memory_that_is_not_there_is_refused_with_what_is_free() {
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 100 << 20) else {
        return;
    };
    let backend = CudaBackend::new(device);
    let first = backend.allocate(20 << 20).expect("80 of 100 mebibytes");
    let error = backend.allocate(20 << 20).err().expect("80 more");
    assert_eq!(error.bytes, 80 << 20);
    assert!(error.to_string().contains(", 20971520 of 8589934592 are free"), "{error}");
    assert_eq!(backend.fault(), None, "the device is none the worse for it");
    drop(first);
    let error = backend.allocate(30 << 20).err().expect("more than there is");
    assert_eq!(error.bytes, 120 << 20);
}

#[test]
fn claimed_memory_is_there_and_more_is_allocated_beside_it() {
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 100 << 20) else {
        return;
    };
    let backend = CudaBackend::new(device.clone());
    let allocated = || device.peak_allocated_bytes() - DeviceSizes::WORKSPACE_BYTES;
    let claim =
        MemoryClaim { buffers: 512, operations: &[ScratchOperation::Timestamps], staging: &[] };
    backend.claim(&claim).expect("a page");
    let two = [64, 64].map(|len| backend.allocate(len).expect("claimed"));
    assert!(backend.record_timestamp());
    assert_eq!(allocated(), backend.claim_bytes(&claim), "they take 256 bytes each");
    let _third = backend.allocate(1).expect("there is more");
    assert_eq!(allocated(), (2 << 20) + (32 << 20), "a region for what was not claimed");
    drop(two);
}

#[test]
fn a_failed_device_poisons_what_is_read() {
    let Some(device) = EmulatedDevice::new(Precision::F32, LaneOrder::Forwards, 8 << 30) else {
        return;
    };
    let backend = CudaBackend::new(device.clone());
    let mut buffer = upload(&backend, &[1.0, 2.0, 3.0]);
    assert_eq!(backend.download(BufferView::new(&buffer, 0..3)), [1.0, 2.0, 3.0]);
    device.fail();
    let before = backend.sum_squares(BufferView::new(&buffer, 0..3));
    assert!(before.sum.is_nan());
    assert_eq!(before.nonfinite, 3, "validation refuses a step with these");
    let fault = backend.fault().expect("kept");
    assert!(fault.to_string().contains("restart this process"), "{fault}");
    device.recover();
    backend.upload(&[4.0], BufferViewMut::new(&mut buffer, 0..1));
    assert!(
        backend.download(BufferView::new(&buffer, 0..3)).iter().all(|x| x.is_nan()),
        "for good"
    );
    assert!(backend.allocate(1).is_err());
}
