//! A device made of this machine: memory is memory, kernels are fibers, products are loops.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use zbelastic_emulator::KernelEntry;
use zbelastic_kernels::cuda::device::{
    Device, DeviceAddress, DeviceCommand, GraphId, MatrixProduct, ProductKind, Stream,
};
use zbelastic_kernels::cuda::kernel::{Kernel, Launch};
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, DeviceFault};
use zbelastic_kernels::{AllocationPurpose, DeviceSizes};

use crate::compile::entries;

type KernelEntries = BTreeMap<Kernel, KernelEntry>;

/// Kernels keep what a block shares in plain statics, so they run one at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// The order in which blocks, warps and lanes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    Forwards,
    Backwards,
}

/// A device whose memory and kernels are this machine's.
pub struct EmulatedDevice {
    precision: Precision,
    order: LaneOrder,
    entries: &'static KernelEntries,
    /// The bytes of all allocations, by where they start.
    memory: Mutex<BTreeMap<u64, u64>>,
    /// Bytes that `allocate` has left.
    free_bytes: Mutex<u64>,
    /// Bytes that are allocated now, and the most that ever were, beside what it took to be opened.
    allocated_bytes: Mutex<[u64; 2]>,
    has_failed: AtomicBool,
    /// Copies of what graphs were made of.
    graphs: Mutex<BTreeMap<GraphId, Vec<DeviceCommand>>>,
    next_graph: AtomicU64,
    captures: GraphSupport,
}

/// Whether the device makes graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphSupport {
    Always,
    Never,
}

/// The kernels of a precision, compiled once a process.
fn compiled(precision: Precision) -> Option<&'static KernelEntries> {
    static COMPILED: [OnceLock<Option<KernelEntries>>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = || Some(entries(precision)?.into_iter().collect());
    COMPILED[precision as usize].get_or_init(make).as_ref()
}

impl EmulatedDevice {
    /// A device with so much memory; `None` without a C++ compiler.
    pub fn new(precision: Precision, order: LaneOrder, memory_bytes: u64) -> Option<Arc<Self>> {
        Self::with_captures(precision, order, memory_bytes, GraphSupport::Always)
    }

    /// The same, which may refuse to make graphs.
    pub fn with_captures(
        precision: Precision,
        order: LaneOrder,
        memory_bytes: u64,
        captures: GraphSupport,
    ) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            graphs: Mutex::default(),
            next_graph: AtomicU64::new(0),
            captures,
            precision,
            order,
            entries: compiled(precision)?,
            memory: Mutex::default(),
            free_bytes: Mutex::new(memory_bytes),
            allocated_bytes: Mutex::default(),
            has_failed: AtomicBool::new(false),
        }))
    }

    /// The number of graphs that were captured and not destroyed.
    pub fn graph_count(&self) -> usize {
        self.graphs.lock().expect("no panic while it is held").len()
    }

    /// The most bytes that were allocated at once, with what a device takes to be opened.
    pub fn peak_allocated_bytes(&self) -> u64 {
        let [_, most] = *self.allocated_bytes.lock().expect("no panic while it is held");
        most + DeviceSizes::WORKSPACE_BYTES
    }

    fn check(&self, call: &'static str) -> Result<(), DeviceFault> {
        if self.has_failed.load(Ordering::Relaxed) {
            let name = "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
            return Err(DeviceFault::of_code(call, 700, name));
        }
        Ok(())
    }

    /// From now on launches, and waits for what was launched, fail as after an illegal address.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Undoes `fail`, which no real device does.
    pub fn recover(&self) {
        self.has_failed.store(false, Ordering::Relaxed);
    }

    fn take(&self, bytes: u64) -> DeviceAddress {
        let layout = layout_of(bytes);
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) } as u64;
        // What is there is anything: all ones are NaNs.
        // SAFETY: just allocated.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0xff, layout.size()) };
        self.memory.lock().expect("no panic while it is held").insert(start, bytes);
        DeviceAddress(start)
    }

    fn deallocate(&self, address: DeviceAddress) -> u64 {
        let bytes = self.memory.lock().expect("no panic while it is held").remove(&address.0);
        let bytes = bytes.expect("memory is freed once");
        // SAFETY: from `take`.
        unsafe { dealloc(address.0 as *mut u8, layout_of(bytes)) };
        bytes
    }
}

/// The memory of an allocation, which has an address even if it is empty.
fn layout_of(bytes: u64) -> Layout {
    Layout::from_size_align(bytes.max(1) as usize, 256).expect("a size")
}

/// Two devices that run everything in opposite orders.
pub fn devices(precision: Precision) -> Vec<CudaBackend<EmulatedDevice>> {
    let device = |order| EmulatedDevice::new(precision, order, 8 << 30);
    let found: Option<Vec<_>> =
        [LaneOrder::Forwards, LaneOrder::Backwards].into_iter().map(device).collect();
    let Some(found) = found else {
        assert!(std::env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_none(), "there is no c++");
        println!("skipped: kernels run on processors where there is a c++");
        return Vec::new();
    };
    found.into_iter().map(CudaBackend::new).collect()
}

/// The address of activations and their type.
#[derive(Clone, Copy)]
struct RowsAt {
    precision: Precision,
    start: DeviceAddress,
}

impl RowsAt {
    fn get(self, index: usize) -> f32 {
        // SAFETY: the operations give products to the device with their lengths.
        unsafe {
            match self.precision {
                Precision::F32 => *(self.start.0 as *const f32).add(index),
                Precision::Bf16 => {
                    let bits = *(self.start.0 as *const u16).add(index);
                    f32::from_bits(u32::from(bits) << 16)
                }
            }
        }
    }

    fn set(self, index: usize, x: f32) {
        // SAFETY: as above.
        unsafe {
            match self.precision {
                Precision::F32 => *(self.start.0 as *mut f32).add(index) = x,
                Precision::Bf16 => {
                    let bits = x.to_bits();
                    let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
                    let half = if x.is_nan() { bits >> 16 | 0x40 } else { rounded };
                    *(self.start.0 as *mut u16).add(index) = half as u16;
                }
            }
        }
    }
}

fn dot(depth: usize, term: impl Fn(usize) -> (f32, f32)) -> f64 {
    let terms = (0..depth).map(term);
    terms.map(|(a, b)| f64::from(a) * f64::from(b)).sum()
}

impl Device for EmulatedDevice {
    type Fence = ();

    fn precision(&self) -> Precision {
        self.precision
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        let mut free_bytes = self.free_bytes.lock().expect("no panic while it is held");
        if bytes > *free_bytes {
            let asked_bytes = bytes;
            let free_bytes = *free_bytes;
            let purpose = AllocationPurpose::default();
            let total_bytes = 8 << 30;
            return Err(DeviceFault::OutOfMemory { asked_bytes, purpose, free_bytes, total_bytes });
        }
        *free_bytes -= bytes;
        let mut allocated = self.allocated_bytes.lock().expect("no panic while it is held");
        allocated[0] += bytes;
        allocated[1] = allocated[0].max(allocated[1]);
        Ok(self.take(bytes))
    }

    fn free(&self, address: DeviceAddress) {
        let bytes = self.deallocate(address);
        *self.free_bytes.lock().expect("no panic while it is held") += bytes;
        self.allocated_bytes.lock().expect("no panic while it is held")[0] -= bytes;
    }

    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        self.check("cuMemHostAlloc")?;
        Ok(self.take(bytes))
    }

    fn free_host(&self, address: DeviceAddress) {
        self.deallocate(address);
    }

    fn write_host(&self, from: &[u8], to: DeviceAddress) {
        // SAFETY: the memory is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
    }

    fn read_host(&self, from: DeviceAddress, to: &mut [u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
    }

    fn zero(&self, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        // SAFETY: the memory is the caller's.
        unsafe { std::ptr::write_bytes(to.0 as *mut u8, 0, bytes as usize) };
        Ok(())
    }

    fn read(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), DeviceFault> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn copy(&self, from: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        // SAFETY: as above.
        unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    fn copy_from_peer(
        &self,
        _other: &Self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.copy(from, to, bytes)
    }

    fn copy_to_host(
        &self,
        _stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.copy(from, to, bytes)
    }

    fn copy_from_host(
        &self,
        _stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.copy(from, to, bytes)
    }

    /// Everything is done when it is enqueued.
    fn record_fence(&self, _stream: Stream) -> Result<(), DeviceFault> {
        Ok(())
    }

    fn stream_wait(&self, _stream: Stream, _fence: &()) -> Result<(), DeviceFault> {
        Ok(())
    }

    fn host_wait(&self, _fence: &()) -> Result<(), DeviceFault> {
        self.check("cuEventSynchronize")
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        self.check("cuLaunchKernel")?;
        let mut pointers = launch.arguments.pointers();
        let is_reversed = self.order == LaneOrder::Backwards;
        let entry = self.entries[&launch.kernel];
        let _guard = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: arguments as the kernel's source has them, which is what is being tested.
        let is_within = unsafe {
            let grid = launch.grid.as_ptr();
            let pointers = pointers.as_mut_ptr();
            entry(grid, launch.threads, launch.shared_bytes, is_reversed, pointers)
        };
        assert!(is_within, "{:?} writes behind its shared memory", launch.kernel);
        Ok(())
    }

    fn capture(&self, commands: &[DeviceCommand]) -> Result<Option<GraphId>, DeviceFault> {
        if self.captures == GraphSupport::Never {
            return Ok(None);
        }
        let graph = GraphId(self.next_graph.fetch_add(1, Ordering::Relaxed));
        self.graphs.lock().expect("no panic while it is held").insert(graph, commands.to_vec());
        Ok(Some(graph))
    }

    fn replay(&self, graph: GraphId) -> Result<(), DeviceFault> {
        let commands = self.graphs.lock().expect("no panic while it is held")[&graph].clone();
        commands.iter().try_for_each(|command| command.issue(self))
    }

    fn destroy_graph(&self, graph: GraphId) {
        let removed = self.graphs.lock().expect("no panic while it is held").remove(&graph);
        assert!(removed.is_some(), "a graph is destroyed once");
    }

    fn multiply(&self, product: &MatrixProduct) -> Result<(), DeviceFault> {
        let MatrixProduct { kind, rows, outputs, inputs, left, right, result, addend } = *product;
        let at = |start| RowsAt { precision: self.precision, start };
        let l = at(left);
        let r = at(right);
        let to = at(result);
        match kind {
            ProductKind::Forward => each(rows, outputs, |row, output| {
                let term = |k| (l.get(row * inputs + k), r.get(output * inputs + k));
                let index = row * outputs + output;
                let added = addend.map_or(0.0, |addend| f64::from(at(addend).get(index)));
                to.set(index, (dot(inputs, term) + added) as f32);
            }),
            ProductKind::Input => each(rows, inputs, |row, input| {
                let term = |k| (l.get(row * outputs + k), r.get(k * inputs + input));
                to.set(row * inputs + input, dot(outputs, term) as f32);
            }),
            ProductKind::Weights { is_added } => each(outputs, inputs, |output, input| {
                let to = RowsAt { precision: Precision::F32, start: result };
                let term = |k| (l.get(k * outputs + output), r.get(k * inputs + input));
                let index = output * inputs + input;
                let sum = dot(rows, term) as f32;
                to.set(index, if is_added { to.get(index) + sum } else { sum });
            }),
        }
        Ok(())
    }
}

fn each(rows: usize, columns: usize, mut visit: impl FnMut(usize, usize)) {
    for row in 0..rows {
        (0..columns).for_each(|column| visit(row, column));
    }
}
