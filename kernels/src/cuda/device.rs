//! The parts of a device that operations use: memory, launches and products in one order, and
//! copies beside them.
//!
//! [`super::CudaDevice`] is a real one. The tests have another, which runs the same kernels on
//! processors, so that everything above this trait is tried without a device.

use std::sync::Arc;

use super::error::DeviceFault;
use super::kernel::Launch;
use super::source::Precision;
use super::streams::PrimaryContext;

/// An address in a device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `bytes` bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// One of a linear layer's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductKind {
    /// `x * matrix^T`: left is `rows` by `inputs`, right is the matrix, the result `rows` by
    /// `outputs`, all in the type of activations.
    Forward,
    /// `gradient * matrix`: left is `rows` by `outputs`, right is the matrix, the result `rows` by
    /// `inputs`, all in the type of activations.
    Input,
    /// `gradient^T * x`: left is `rows` by `outputs`, right is `rows` by `inputs`, both in the type
    /// of activations; the result is `outputs` by `inputs` in f32.
    Weights {
        /// Whether the result continues the sums that are there.
        is_added: bool,
    },
}

/// A product of matrices in row-major order, summed in f32, and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProduct {
    /// Which of the three products.
    pub kind: ProductKind,
    /// Rows of activations, one a token.
    pub rows: usize,
    /// The layer's output features.
    pub outputs: usize,
    /// The layer's input features.
    pub inputs: usize,
    /// Address of the left factor.
    pub left: DeviceAddress,
    /// Address of the right factor.
    pub right: DeviceAddress,
    /// Address that receives the product.
    pub result: DeviceAddress,
    /// The tensor added to a forward product before it is rounded, as long as the result and of its
    /// type.
    pub addend: Option<DeviceAddress>,
}

/// A command that may be a part of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceCommand {
    /// The launch of a kernel, as by [`Device::launch`].
    Launch(Launch),
    /// A product of matrices, as by [`Device::multiply`].
    Multiply(MatrixProduct),
    /// A copy within the device, as by [`Device::copy`].
    Copy {
        /// Address of the first byte that is read.
        from: DeviceAddress,
        /// Address of the first byte that is written.
        to: DeviceAddress,
        /// The number of bytes to copy.
        bytes: u64,
    },
}

impl DeviceCommand {
    /// Issues the command to a device.
    ///
    /// # Errors
    /// If the device reports a fault.
    pub fn issue<D: Device + ?Sized>(&self, device: &D) -> Result<(), DeviceFault> {
        match self {
            Self::Launch(launch) => device.launch(launch),
            Self::Multiply(product) => device.multiply(product),
            Self::Copy { from, to, bytes } => device.copy(*from, *to, *bytes),
        }
    }
}

/// A device's name for a graph of its own. No two of a device are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphId(pub u64);

/// A queue of a device. Commands enqueued in one run in that order, and beside the commands
/// in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Kernels, products, and commands that name no other stream.
    Compute,
    /// Copies to the host.
    Download,
    /// Copies from the host.
    Upload,
}

impl Stream {
    /// All streams of a device.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Download, Self::Upload];
}

/// A device. Commands enqueued on it run in the order of the calls, except in other streams than
/// [`Stream::Compute`]; `read` waits for all that was enqueued in that one.
///
/// Memory that two streams use needs a [`Device::record_fence`] in the one that is first and a
/// [`Device::stream_wait`] in the other. A fence of one device may be waited for by another.
pub trait Device: Send + Sync + 'static {
    /// A point in a stream: after everything that was enqueued in it before.
    type Fence: Clone + Send + Sync;

    /// The type of activations.
    fn precision(&self) -> Precision;

    /// The device's context, as other libraries of NVIDIA's need it; `None` if it is not NVIDIA's.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn primary_context(&self) -> Result<Option<Arc<PrimaryContext>>, DeviceFault> {
        Ok(None)
    }

    /// Uninitialized memory, at a multiple of 256.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault>;

    /// Frees memory that `allocate` returned, once no stream uses it any more.
    fn free(&self, address: DeviceAddress);

    /// Uninitialized memory of the host that the device copies by itself.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault>;

    /// Frees memory that `allocate_host` returned, once no stream of this device uses it any more.
    fn free_host(&self, address: DeviceAddress);

    /// Writes memory of `allocate_host`, at once: no stream may use it.
    fn write_host(&self, from: &[u8], to: DeviceAddress);

    /// Reads memory of `allocate_host`, at once: no stream may write it.
    fn read_host(&self, from: DeviceAddress, to: &mut [u8]);

    /// Fills `bytes` bytes from `to` on with zeros.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn zero(&self, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault>;

    /// Waits for everything before, then copies to the host.
    ///
    /// # Errors
    /// If the driver reports a fault of this or of anything before.
    fn read(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), DeviceFault>;

    /// Copies within the device.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn copy(&self, from: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault>;

    /// Copies from the memory of another device, which may be this one, opened once more.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn copy_from_peer(
        &self,
        other: &Self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// Copies to memory of `allocate_host`.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn copy_to_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// Copies from memory of `allocate_host`.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn copy_from_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// Records a fence after everything that was enqueued in `stream`.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn record_fence(&self, stream: Stream) -> Result<Self::Fence, DeviceFault>;

    /// Commands enqueued in `stream` from now on run after that fence. The caller does not wait.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn stream_wait(&self, stream: Stream, fence: &Self::Fence) -> Result<(), DeviceFault>;

    /// Waits on the host for that fence.
    ///
    /// # Errors
    /// If the driver reports a fault of anything before it.
    fn host_wait(&self, fence: &Self::Fence) -> Result<(), DeviceFault>;

    /// Enqueues the launch of a kernel.
    ///
    /// # Errors
    /// If the driver reports a fault.
    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault>;

    /// Enqueues a product of matrices.
    ///
    /// # Errors
    /// If the library reports an error.
    fn multiply(&self, product: &MatrixProduct) -> Result<(), DeviceFault>;

    /// Makes a graph of these commands, which does not run yet. `None` if the device has no graphs,
    /// or refuses these commands in one.
    ///
    /// # Errors
    /// If the device failed for good.
    fn capture(&self, commands: &[DeviceCommand]) -> Result<Option<GraphId>, DeviceFault> {
        let _unused = commands;
        Ok(None)
    }

    /// Runs the commands of a graph.
    ///
    /// # Errors
    /// If the driver reports a fault.
    ///
    /// # Panics
    /// If there is no such graph.
    fn replay(&self, graph: GraphId) -> Result<(), DeviceFault> {
        panic!("{graph:?} is not a graph of this device")
    }

    /// Destroys a graph of this device.
    fn destroy_graph(&self, graph: GraphId) {
        panic!("{graph:?} is not a graph of this device")
    }
}
