//! Attention: on tensor cores where operands are bfloat16 and heads are 64 or 128 wide, on plain
//! multiply-adds otherwise.

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress};
use super::embed::bytes;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::source::Precision;
use crate::backend::{AttentionMask, AttentionShape, EarlierSlice};
use crate::scratch::{ScratchSlot, key_values};

/// Slices that a sequence may have: SLICES_MAX of `prelude.cuh`.
pub const SLICES_MAX: usize = 64;
/// The widest head: 32 times PARTS of `attention.cu`.
pub const HEAD_WIDTH_MAX: usize = 256;

const WARP: usize = 32;
/// WARPS and TILE of `attention.cu`.
const PLAIN_ROWS: usize = 8;
const PLAIN_TILE: usize = WARP;
/// BLOCK_ROWS, FLASH_THREADS and PAD of `flash.cu`.
const FLASH_ROWS: usize = 64;
const FLASH_THREADS: usize = 128;
const FLASH_PAD: usize = 8;

/// A kernel and the shared memory that its launch requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttentionKernel {
    kernel: Kernel,
    shared_bytes: usize,
}

/// Which kernels a shape goes to, and how they are launched.
struct AttentionPlan {
    forward: AttentionKernel,
    backward_queries: AttentionKernel,
    backward_keys: AttentionKernel,
    /// Rows a block takes.
    rows: usize,
    threads: usize,
}

impl AttentionPlan {
    fn of(precision: Precision, head_width: usize) -> Self {
        match (precision, head_width) {
            (Precision::Bf16, 64) => Self::flash(
                head_width,
                [
                    Kernel::FlashForward64,
                    Kernel::FlashBackwardQueries64,
                    Kernel::FlashBackwardKeys64,
                ],
            ),
            (Precision::Bf16, 128) => Self::flash(
                head_width,
                [
                    Kernel::FlashForward128,
                    Kernel::FlashBackwardQueries128,
                    Kernel::FlashBackwardKeys128,
                ],
            ),
            (Precision::Bf16 | Precision::F32, _) => Self::plain(head_width),
        }
    }

    fn flash(head_width: usize, [forward, queries, keys]: [Kernel; 3]) -> Self {
        // BackwardTile of `flash.cu`.
        let tile = if head_width == 64 { 64 } else { 32 };
        let rows = |count: usize| count * (head_width + FLASH_PAD) * 2;
        let pass = |kernel, shared_bytes| AttentionKernel { kernel, shared_bytes };
        Self {
            // Two tiles of keys and values in turn.
            forward: pass(forward, rows(4 * FLASH_ROWS)),
            backward_queries: pass(queries, rows(4 * tile)),
            // Keys and values, and in turn two tiles of queries and gradients with two floats a
            // row.
            backward_keys: pass(keys, rows(2 * FLASH_ROWS + 4 * tile) + 4 * tile * 4),
            rows: FLASH_ROWS,
            threads: FLASH_THREADS,
        }
    }

    fn plain(head_width: usize) -> Self {
        let tiles = 2 * PLAIN_TILE * (head_width + 1);
        // Each warp has some floats of its own behind the tiles.
        let pass = |kernel, floats: usize| AttentionKernel {
            kernel,
            shared_bytes: (tiles + PLAIN_ROWS * floats) * 4,
        };
        Self {
            forward: pass(Kernel::AttentionForward, head_width + PLAIN_TILE),
            backward_queries: pass(Kernel::AttentionBackwardQueries, 2 * head_width + PLAIN_TILE),
            backward_keys: pass(Kernel::AttentionBackwardKeys, 2 * (head_width + PLAIN_TILE)),
            rows: PLAIN_ROWS,
            threads: PLAIN_ROWS * WARP,
        }
    }

    fn launch(&self, pass: AttentionKernel, grid: [usize; 2], arguments: Arguments) -> Launch {
        let AttentionKernel { kernel, shared_bytes } = pass;
        Launch::blocks(kernel, grid, self.threads, arguments).with_shared_bytes(shared_bytes)
    }
}

/// The slices of a sequence up to that of the queries: where they lie and where they begin.
struct AttentionSlices {
    earlier: usize,
    rows: [DeviceAddress; SLICES_MAX],
    /// The positions at which slices begin, and behind the last one the number of keys.
    first: [u32; SLICES_MAX + 1],
}

impl AttentionSlices {
    fn of<D: Device>(
        shape: AttentionShape,
        earlier: &[&CudaBuffer<D>],
        qkv: &CudaBuffer<D>,
    ) -> Self {
        assert!(shape.heads.is_multiple_of(shape.kv_heads));
        assert!(
            shape.head_width <= HEAD_WIDTH_MAX,
            "heads are at most {HEAD_WIDTH_MAX} wide on this device"
        );
        assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
        let mut first = [0; SLICES_MAX + 1];
        let slices = || earlier.iter().copied().chain([qkv]);
        let rows = table(slices().map(CudaBuffer::rows));
        for (index, slice) in slices().enumerate() {
            let of_rows = shape.sequences * shape.qkv_width();
            assert!(slice.len().is_multiple_of(of_rows), "as many rows of each sequence");
            let len = u32::try_from(slice.len() / of_rows).expect("rows fit in 32 bits");
            first[index + 1] = first[index] + len;
        }
        Self { earlier: earlier.len(), rows, first }
    }

    /// Keys before the queries' own slice.
    fn before(&self) -> u32 {
        self.first[self.earlier]
    }

    /// The number of keys of all slices.
    fn keys(&self) -> usize {
        self.first[self.earlier + 1] as usize
    }

    /// The structures `AttentionShape` and `Slices` of `prelude.cuh`, and where first keys lie.
    fn arguments(&self, shape: AttentionShape, first_keys: Option<DeviceAddress>) -> Arguments {
        Arguments::new()
            .structure(&structure(shape, self))
            .table_with(&self.rows, &self.first)
            .address_if(first_keys)
    }
}

/// The structure `AttentionShape` of `prelude.cuh`.
fn structure(shape: AttentionShape, slices: &AttentionSlices) -> [u32; 8] {
    let AttentionShape { sequences, sequence_len, heads, kv_heads, head_width } = shape;
    let scale = 1.0 / (head_width as f64).sqrt();
    let sizes = [sequences, sequence_len, heads, kv_heads, head_width, slices.earlier];
    let mut words = [0; 8];
    for (word, size) in words.iter_mut().zip(sizes) {
        *word = u32::try_from(size).expect("sizes of one operation fit in 32 bits");
    }
    words[6] = slices.before();
    words[7] = (scale as f32).to_bits();
    words
}

/// A table of addresses as kernels take it.
fn table(addresses: impl IntoIterator<Item = DeviceAddress>) -> [DeviceAddress; SLICES_MAX] {
    let mut table = [DeviceAddress(0); SLICES_MAX];
    for (index, address) in addresses.into_iter().enumerate() {
        assert!(index < SLICES_MAX, "a sequence has at most {SLICES_MAX} slices on this device");
        table[index] = address;
    }
    table
}

/// The first keys of a mask on the device, until the next mask. The layers of a pass have the same
/// one, which is copied once.
fn mask_list<D: Device>(
    device: &CudaBackend<D>,
    mask: AttentionMask<'_>,
) -> Result<Option<DeviceAddress>, DeviceFault> {
    match mask {
        AttentionMask::Causal => Ok(None),
        AttentionMask::From(first_keys) => {
            let to = device.scratch(ScratchSlot::FirstKeys, first_keys.len() * 4)?;
            if !device.replace_first_keys(to, first_keys) {
                device.write(&bytes(first_keys), to)?;
            }
            Ok(Some(to))
        }
    }
}

pub(super) fn forward<D: Device>(
    device: &CudaBackend<D>,
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    earlier: &[&CudaBuffer<D>],
    qkv: &CudaBuffer<D>,
    out: &mut CudaBuffer<D>,
    log_sums: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let slices = AttentionSlices::of(shape, earlier, qkv);
    mask.check(shape, slices.before() as usize);
    assert_eq!(out.len(), shape.rows() * shape.query_width());
    assert_eq!(log_sums.len(), shape.rows() * shape.heads);
    let plan = AttentionPlan::of(device.precision(), shape.head_width);
    let arguments = slices
        .arguments(shape, mask_list(device, mask)?)
        .address(out.rows())
        .address(log_sums.floats(0));
    let grid = [shape.sequence_len.div_ceil(plan.rows), shape.sequences * shape.heads];
    device.launch(&plan.launch(plan.forward, grid, arguments))
}

/// What the backward pass reads beside queries, keys and values.
pub(super) struct CudaSavedAttention<'a, D: Device> {
    pub(super) out: &'a CudaBuffer<D>,
    pub(super) log_sums: &'a CudaBuffer<D>,
    pub(super) gradient: &'a CudaBuffer<D>,
}

/// Keys and values first, into scratch, because queries are still read; then queries in place; then
/// keys and values from scratch.
pub(super) fn backward<D: Device>(
    device: &CudaBackend<D>,
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    earlier: &mut [EarlierSlice<'_, CudaBuffer<D>>],
    later: Option<&CudaBuffer<D>>,
    saved: CudaSavedAttention<'_, D>,
    qkv: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let before: Vec<&CudaBuffer<D>> = earlier.iter().map(|slice| slice.qkv).collect();
    let slices = AttentionSlices::of(shape, &before, qkv);
    mask.check(shape, slices.before() as usize);
    let CudaSavedAttention { out, log_sums, gradient } = saved;
    assert_eq!(gradient.len(), shape.rows() * shape.query_width());
    assert_eq!(out.len(), gradient.len());
    let plan = AttentionPlan::of(device.precision(), shape.head_width);
    let products = row_products(device, shape, out, gradient)?;
    let first_keys = mask_list(device, mask)?;
    let key_values = key_values(shape);
    let own = device.scratch(ScratchSlot::Product, key_values * 4)?;
    let earlier_gradients = earlier.iter().map(|slice| {
        let rows = slice.qkv.len() / shape.qkv_width();
        assert_eq!(slice.key_value_gradient.len(), rows * 2 * shape.key_width());
        slice.key_value_gradient.floats(0)
    });
    let gradients = table(earlier_gradients.chain([own]));
    let arguments = slices
        .arguments(shape, first_keys)
        .table(&gradients)
        .address(gradient.rows())
        .address(log_sums.floats(0))
        .address(products)
        .flag(later.is_some());
    let grid = [slices.keys().div_ceil(plan.rows), shape.sequences * shape.kv_heads];
    device.launch(&plan.launch(plan.backward_keys, grid, arguments))?;
    let arguments = slices
        .arguments(shape, first_keys)
        .address(gradient.rows())
        .address(log_sums.floats(0))
        .address(products)
        .address(qkv.rows());
    let grid = [shape.sequence_len.div_ceil(plan.rows), shape.sequences * shape.heads];
    device.launch(&plan.launch(plan.backward_queries, grid, arguments))?;
    let arguments = Arguments::new()
        .structure(&structure(shape, &slices))
        .address_if(later.map(|later| later.floats(0)))
        .address(own)
        .address(qkv.rows());
    device.launch(&Launch::over(Kernel::AttentionStoreKeys, key_values, arguments))
}

/// For each row and head, the product of its output with the gradient of that.
fn row_products<D: Device>(
    device: &CudaBackend<D>,
    shape: AttentionShape,
    out: &CudaBuffer<D>,
    gradient: &CudaBuffer<D>,
) -> Result<DeviceAddress, DeviceFault> {
    let count = shape.rows() * shape.heads;
    let products = device.scratch(ScratchSlot::RowProducts, count * 4)?;
    let arguments = Arguments::new()
        .address(out.rows())
        .address(gradient.rows())
        .address(products)
        .size(count)
        .size(shape.head_width);
    let grid = [count.div_ceil(PLAIN_ROWS), 1];
    let threads = PLAIN_ROWS * WARP;
    device.launch(&Launch::blocks(Kernel::AttentionProducts, grid, threads, arguments))?;
    Ok(products)
}

#[cfg(test)]
mod tests {
    use super::{AttentionPlan, HEAD_WIDTH_MAX, Kernel, Precision};

    /// What a block may have on the smallest device the kernels run on, sm_86.
    const SHARED_BYTES_MAX: usize = 99 << 10;

    #[test]
    fn tensor_cores_take_the_widths_they_have_kernels_for() {
        let forward = |precision, width| AttentionPlan::of(precision, width).forward.kernel;
        assert_eq!(forward(Precision::Bf16, 64), Kernel::FlashForward64);
        assert_eq!(forward(Precision::Bf16, 128), Kernel::FlashForward128);
        for (precision, width) in
            [(Precision::F32, 64), (Precision::F32, 128), (Precision::Bf16, 96)]
        {
            assert_eq!(forward(precision, width), Kernel::AttentionForward);
        }
    }

    #[test]
    fn shared_memory_fits_on_every_device_for_every_width() {
        for precision in Precision::ALL {
            for width in 1..=HEAD_WIDTH_MAX {
                let plan = AttentionPlan::of(precision, width);
                for pass in [plan.forward, plan.backward_queries, plan.backward_keys] {
                    assert!(pass.shared_bytes <= SHARED_BYTES_MAX, "{pass:?} at {width}");
                }
            }
        }
    }
}
