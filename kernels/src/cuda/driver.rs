//! A real device: its context, its streams, the kernels' modules, memory and products.
//!
//! All work goes into one stream, so work enqueued first happens first and scratch may be reused
//! by the next operation; copies to and from the host have two more ([`super::streams`]). A
//! pipeline's stages on one device are devices that were opened once each, with streams of their
//! own.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::cache::KernelCache;
use super::compiler::Compiler;
use super::cublas::{AlgorithmPin, CublasProducts};
use super::device::{Device, DeviceAddress, DeviceCommand, GraphId, MatrixProduct, Stream};
use super::devices::{
    DeviceProperties, MemoryInfo, check, choose, devices, driver_version, memory_here,
};
use super::error::{CacheWarning, CompileError, DeviceFault, Library, OpenError};
use super::graphs::StreamGraphs;
use super::kernel::{Kernel, Launch};
use super::library::require;
use super::source::{CompilationUnit, KernelFile, Precision};
use super::streams::{
    self, CudaFence, CudaStreams, DeviceContext, EventPool, PeerAccess, PrimaryContext,
};
use crate::fault::AllocationPurpose;

/// Bytes of shared memory that a launch may request without an attribute of its function.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;

/// An open device of the real driver: context, streams, loaded kernels and products.
pub struct CudaDevice {
    info: DeviceProperties,
    precision: Precision,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    streams: CudaStreams,
    events: Option<Arc<EventPool>>,
    peers: PeerAccess,
    modules: Vec<sys::CUmodule>,
    functions: BTreeMap<&'static str, sys::CUfunction>,
    products: Option<CublasProducts>,
    /// The stream's graphs, held while anything is enqueued: commands of another thread must not
    /// be captured in a graph that is being made.
    graphs: Mutex<StreamGraphs>,
}

// SAFETY: the driver's handles may be used from any thread once the context is current there, which
// every call makes sure of; nothing else changes after `open`, save plans and graphs, behind locks.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

/// An open device, and why some of its kernels could not be kept on disk.
pub struct OpenedDevice {
    /// The open device, shared by its backends.
    pub device: Arc<CudaDevice>,
    /// At most one warning for each source.
    pub warnings: Vec<CacheWarning>,
}

impl CudaDevice {
    /// Opens device `index` for this type of activations: compiles the kernels that are not in the
    /// cache, loads the kernels, and allocates the workspace of products.
    ///
    /// # Errors
    /// If something is missing, too old, absent or refused; each error names the remedy.
    pub fn open(
        index: usize,
        precision: Precision,
        cache: &KernelCache,
    ) -> Result<OpenedDevice, OpenError> {
        let driver = driver_version()?;
        let devices = devices()?;
        let info = choose(&devices, index)?.clone();
        let compiler = Compiler::find()?;
        require(Library::CublasLt)?;
        let found = compiler.version();
        if found.major > driver.major {
            return Err(CompileError::DriverTooOld { driver, compiler: found }.into());
        }
        let mut codes = Vec::new();
        let mut warnings = Vec::new();
        for file in KernelFile::ALL.into_iter().filter(|file| file.is_for(precision)) {
            let unit = CompilationUnit { file, precision, architecture: info.architecture };
            let compiled = cache.get(&compiler, &unit)?;
            warnings.extend(compiled.warning);
            codes.push((file, compiled.code));
        }
        let mut device = Self::begin(info, precision)?;
        codes.iter().try_for_each(|(file, code)| device.load(*file, code))?;
        device.products = Some(CublasProducts::new(&device)?);
        Ok(OpenedDevice { device: Arc::new(device), warnings })
    }

    /// Opens a context and its streams.
    pub(super) fn begin(info: DeviceProperties, precision: Precision) -> Result<Self, DeviceFault> {
        let mut device = Self {
            precision,
            handle: 0,
            context: ptr::null_mut(),
            streams: CudaStreams::none(),
            events: None,
            peers: PeerAccess::default(),
            modules: Vec::new(),
            functions: BTreeMap::new(),
            products: None,
            graphs: Mutex::default(),
            info,
        };
        let index = i32::try_from(device.info.index).expect("the driver counts in integers");
        // SAFETY: the driver has begun; it writes one handle each, which `drop` releases.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut device.handle, index))?;
            let retained = sys::cuDevicePrimaryCtxRetain(&mut device.context, device.handle);
            check("cuDevicePrimaryCtxRetain", retained)?;
        }
        device.make_current()?;
        device.streams.create()?;
        device.events = Some(EventPool::new(device.handle)?);
        Ok(device)
    }

    fn load(&mut self, file: KernelFile, code: &[u8]) -> Result<(), DeviceFault> {
        let mut module = ptr::null_mut();
        // An image has words of eight bytes, and may be looked at where it lies.
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        };
        let image: Vec<u64> = code.chunks(8).map(word).collect();
        // SAFETY: an ELF image holds its own length; the driver copies it.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        check("cuModuleLoadData", result)?;
        self.modules.push(module);
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.file() == file) {
            let name = CString::new(kernel.name()).expect("names have no zero bytes");
            let mut function = ptr::null_mut();
            let text: *const c_char = name.as_ptr();
            // SAFETY: a loaded module and a C string.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, text) };
            check("cuModuleGetFunction", result)?;
            self.functions.insert(kernel.name(), function);
        }
        Ok(())
    }

    pub(super) fn make_current(&self) -> Result<(), DeviceFault> {
        // SAFETY: the context lives as long as this.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Makes the context current; no other thread enqueues anything in the stream until the guard
    /// is dropped.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, StreamGraphs>, DeviceFault> {
        let guard = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_current()?;
        Ok(guard)
    }

    /// The stream of kernels and products.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.streams.get(Stream::Compute)
    }

    fn device_context(&self) -> DeviceContext {
        DeviceContext { handle: self.handle, context: self.context }
    }

    fn products(&self) -> &CublasProducts {
        self.products.as_ref().expect("an open device has them")
    }

    /// The properties that the driver reported of the device when it was opened.
    #[must_use]
    pub fn info(&self) -> &DeviceProperties {
        &self.info
    }

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// If the driver reports a fault of anything before.
    pub fn wait(&self) -> Result<(), DeviceFault> {
        // Other threads may go on enqueuing meanwhile, above all the one that waits for finished
        // work.
        let fence = self.record_fence(Stream::Compute)?;
        self.host_wait(&fence)
    }

    /// The algorithms of products so far, to be kept with a run.
    #[must_use]
    pub fn pins(&self) -> Vec<AlgorithmPin> {
        self.products().pins()
    }

    /// Uses these algorithms for their products from now on.
    ///
    /// # Errors
    /// If they are of another version of the library.
    ///
    /// # Panics
    /// If there are graphs already: they have the algorithms they were made with.
    pub fn pin(&self, pins: &[AlgorithmPin]) -> Result<(), DeviceFault> {
        assert!(self.enter()?.is_empty(), "algorithms are pinned before work begins");
        self.products().pin(pins)
    }

    /// The seconds of the fastest algorithm that the library knows for a product, with any bits
    /// that it gives.
    ///
    /// # Errors
    /// If the library reports an error.
    pub(super) fn fastest_product_s(
        &self,
        product: &MatrixProduct,
        runs: u32,
    ) -> Result<f64, DeviceFault> {
        self.make_current()?;
        self.products().fastest_s(self, product, runs)
    }

    /// The free bytes of the device, and all it has.
    ///
    /// # Errors
    /// If the driver reports a fault.
    pub fn memory(&self) -> Result<MemoryInfo, DeviceFault> {
        self.make_current()?;
        memory_here()
    }

    fn out_of_memory(&self, asked_bytes: u64) -> DeviceFault {
        match self.memory() {
            Ok(MemoryInfo { free_bytes, total_bytes }) => {
                let purpose = AllocationPurpose::default();
                DeviceFault::OutOfMemory { asked_bytes, purpose, free_bytes, total_bytes }
            }
            Err(fault) => fault,
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and a device that failed fails every call.
        let _current = self.make_current();
        let stream = self.stream();
        let _done = self.streams.wait();
        self.graphs.get_mut().unwrap_or_else(PoisonError::into_inner).clear(stream);
        if let Some(products) = self.products.take() {
            self.free(products.workspace());
        }
        self.streams.destroy();
        // SAFETY: each handle is released once, and nothing uses it afterwards.
        unsafe {
            for module in self.modules.drain(..) {
                let _unloaded = sys::cuModuleUnload(module);
            }
            if !self.context.is_null() {
                let _released = sys::cuDevicePrimaryCtxRelease_v2(self.handle);
            }
        }
    }
}

impl Device for CudaDevice {
    type Fence = CudaFence;

    fn precision(&self) -> Precision {
        self.precision
    }

    fn primary_context(&self) -> Result<Option<Arc<PrimaryContext>>, DeviceFault> {
        Ok(self.events.as_ref().map(|events| events.context().clone()))
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        self.make_current()?;
        let mut address = 0;
        let size = usize::try_from(bytes).expect("a 64-bit system");
        // SAFETY: the driver writes an address, which `free` frees.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, size.max(1)) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(self.out_of_memory(bytes));
        }
        check("cuMemAlloc", result)?;
        Ok(DeviceAddress(address))
    }

    fn free(&self, address: DeviceAddress) {
        // A device that failed has lost its memory anyway.
        let _guard = self.enter();
        let _done = self.streams.wait();
        // SAFETY: the address is from `allocate` and freed once; no stream of this device uses it
        // any more.
        let _freed = unsafe { sys::cuMemFree_v2(address.0) };
    }

    fn zero(&self, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        // SAFETY: the memory is the caller's.
        let result = unsafe { sys::cuMemsetD8Async(to.0, 0, bytes as usize, self.stream()) };
        check("cuMemsetD8Async", result)
    }

    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        self.make_current()?;
        streams::allocate_host(bytes)
    }

    fn free_host(&self, address: DeviceAddress) {
        // A device that failed uses nothing any more. A stream that is captured cannot be waited
        // for.
        let _guard = self.enter();
        let _done = self.streams.wait();
        streams::free_host(address);
    }

    fn write_host(&self, from: &[u8], to: DeviceAddress) {
        // SAFETY: the memory is the caller's, and no stream uses it now.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
    }

    fn read_host(&self, from: DeviceAddress, to: &mut [u8]) {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
    }

    fn read(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), DeviceFault> {
        self.wait()?;
        if to.is_empty() {
            return Ok(());
        }
        let _guard = self.enter()?;
        // SAFETY: the memory is the caller's, and is waited for below.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.0, to.len(), self.stream())
        };
        check("cuMemcpyDtoHAsync", result)?;
        // SAFETY: the stream lives as long as this, and no thread captures it now.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream()) })
    }

    fn copy(&self, from: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        let _guard = self.enter()?;
        self.enqueue(&DeviceCommand::Copy { from, to, bytes })
    }

    fn copy_from_peer(
        &self,
        other: &Self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        let own = (self.device_context(), to);
        let other = (other.device_context(), from);
        self.peers.copy(own, other, bytes as usize, self.stream())
    }

    fn copy_to_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        let to = to.0 as *mut c_void;
        let stream = self.streams.get(stream);
        // SAFETY: the memory is the caller's, which lets nothing else use it meanwhile.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from.0, bytes as usize, stream) };
        check("cuMemcpyDtoHAsync", result)
    }

    fn copy_from_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.enter()?;
        let from = from.0 as *const c_void;
        let stream = self.streams.get(stream);
        // SAFETY: as above.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from, bytes as usize, stream) };
        check("cuMemcpyHtoDAsync", result)
    }

    fn record_fence(&self, stream: Stream) -> Result<CudaFence, DeviceFault> {
        let _guard = self.enter()?;
        let events = self.events.as_ref().expect("an open device has them");
        CudaFence::record(events, self.streams.get(stream))
    }

    fn stream_wait(&self, stream: Stream, fence: &CudaFence) -> Result<(), DeviceFault> {
        let _guard = self.enter()?;
        fence.stream_wait(self.streams.get(stream))
    }

    fn host_wait(&self, fence: &CudaFence) -> Result<(), DeviceFault> {
        fence.host_wait()
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        let _guard = self.enter()?;
        self.enqueue_launch(launch)
    }

    fn multiply(&self, product: &MatrixProduct) -> Result<(), DeviceFault> {
        let _guard = self.enter()?;
        self.products().multiply(self.precision, product)
    }

    fn capture(&self, commands: &[DeviceCommand]) -> Result<Option<GraphId>, DeviceFault> {
        let mut graphs = self.enter()?;
        graphs.capture(self.stream(), || {
            commands.iter().try_for_each(|command| self.enqueue(command))
        })
    }

    fn replay(&self, graph: GraphId) -> Result<(), DeviceFault> {
        self.enter()?.replay(graph, self.stream())
    }

    fn destroy_graph(&self, graph: GraphId) {
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that failed has lost its graphs anyway.
        let _current = self.make_current();
        graphs.destroy(graph, self.stream());
    }
}

impl CudaDevice {
    /// Enqueues the command in the stream. The caller holds the lock, so that no other thread does
    /// meanwhile.
    fn enqueue(&self, command: &DeviceCommand) -> Result<(), DeviceFault> {
        match command {
            DeviceCommand::Launch(launch) => self.enqueue_launch(launch),
            DeviceCommand::Multiply(product) => self.products().multiply(self.precision, product),
            DeviceCommand::Copy { bytes: 0, .. } => Ok(()),
            DeviceCommand::Copy { from, to, bytes } => {
                let bytes = usize::try_from(*bytes).expect("a 64-bit system");
                // SAFETY: the memory is the caller's.
                let result =
                    unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, self.stream()) };
                check("cuMemcpyDtoDAsync", result)
            }
        }
    }

    fn enqueue_launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        let function = self.functions[launch.kernel.name()];
        if launch.shared_bytes > SHARED_BYTES_PLAIN {
            use sys::CUfunction_attribute_enum as Attribute;
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = launch.shared_bytes as i32;
            // SAFETY: a loaded function.
            let result = unsafe { sys::cuFuncSetAttribute(function, attribute, bytes) };
            check("cuFuncSetAttribute", result)?;
        }
        let [x, y] = launch.grid;
        let mut pointers: Vec<*mut c_void> = launch.arguments.pointers();
        // SAFETY: a loaded function with as many arguments as its source has, which the driver
        // copies before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                1,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                self.stream(),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}
