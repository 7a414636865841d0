//! What the operations need of a device: memory, launches and products in one order, and copies
//! beside them.
//!
//! [`super::CudaDevice`] is a real one. The tests have another, which runs the same kernels on
//! processors, so that everything above this trait is tried without a device.

use super::error::DeviceFault;
use super::kernel::Launch;
use super::source::Precision;

/// A place in a device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// So many bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Which of a linear layer's three products.
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
        /// Whether the result continues what is there.
        is_added: bool,
    },
}

/// A product of matrices in row-major order, summed in f32, and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Which.
    pub kind: ProductKind,
    /// Rows of activations.
    pub rows: usize,
    /// Features out.
    pub outputs: usize,
    /// Features in.
    pub inputs: usize,
    /// The left factor.
    pub left: Address,
    /// The right factor.
    pub right: Address,
    /// Receives the product.
    pub result: Address,
    /// What is added to a forward product before it is rounded, as long as the result and of its type.
    pub addend: Option<Address>,
}

/// What may be a part of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// [`Device::launch`].
    Launch(Launch),
    /// [`Device::multiply`].
    Multiply(Product),
    /// [`Device::copy`].
    Copy {
        /// From here.
        from: Address,
        /// To there.
        to: Address,
        /// So many bytes.
        bytes: u64,
    },
}

impl Command {
    /// Tells a device.
    ///
    /// # Errors
    /// As the device says.
    pub fn tell<D: Device + ?Sized>(&self, device: &D) -> Result<(), DeviceFault> {
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

/// A queue of a device. What is told to one happens in the order it is told, and beside what is told
/// to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Kernels, products, and whatever does not name another.
    Compute,
    /// Copies to the host.
    Out,
    /// Copies from the host.
    In,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Out, Self::In];
}

/// A device. What it is told happens in the order it is told, except in other streams than
/// [`Stream::Compute`]; `read` waits for all that was told to that one.
///
/// Memory that two streams use needs a [`Device::fence`] in the one that is first and a
/// [`Device::follow`] in the other. A fence of one device may be followed by another.
pub trait Device: Send + Sync + 'static {
    /// A moment in a stream: after everything that was told to it before.
    type Fence: Clone + Send + Sync;

    /// The type of activations.
    fn precision(&self) -> Precision;

    /// Memory, whatever is in it, at a multiple of 256.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate(&self, bytes: u64) -> Result<Address, DeviceFault>;

    /// Gives back what `allocate` gave, once no stream uses it any more.
    fn free(&self, address: Address);

    /// Memory of the host that the device copies by itself, whatever is in it.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate_host(&self, bytes: u64) -> Result<Address, DeviceFault>;

    /// Gives back what `allocate_host` gave, once no stream of this device uses it any more.
    fn free_host(&self, address: Address);

    /// Writes memory of `allocate_host`, at once: no stream may use it.
    fn write_host(&self, from: &[u8], to: Address);

    /// Reads memory of `allocate_host`, at once: no stream may write it.
    fn read_host(&self, from: Address, to: &mut [u8]);

    /// Fills with zeros.
    ///
    /// # Errors
    /// As the driver says.
    fn zero(&self, to: Address, bytes: u64) -> Result<(), DeviceFault>;

    /// Waits for everything before, then copies to the host.
    ///
    /// # Errors
    /// As the driver says, about this or anything before.
    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceFault>;

    /// Copies within the device.
    ///
    /// # Errors
    /// As the driver says.
    fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), DeviceFault>;

    /// Copies from the memory of another device, which may be this one, opened once more.
    ///
    /// # Errors
    /// As the driver says.
    fn copy_from(
        &self,
        other: &Self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// Copies to memory of `allocate_host`.
    ///
    /// # Errors
    /// As the driver says.
    fn copy_out(
        &self,
        stream: Stream,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// Copies from memory of `allocate_host`.
    ///
    /// # Errors
    /// As the driver says.
    fn copy_in(
        &self,
        stream: Stream,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault>;

    /// The moment after everything that was told to `stream`.
    ///
    /// # Errors
    /// As the driver says.
    fn fence(&self, stream: Stream) -> Result<Self::Fence, DeviceFault>;

    /// What is told to `stream` from now on happens after that moment. The caller does not wait.
    ///
    /// # Errors
    /// As the driver says.
    fn follow(&self, stream: Stream, fence: &Self::Fence) -> Result<(), DeviceFault>;

    /// Waits until that moment.
    ///
    /// # Errors
    /// As the driver says, about anything before it.
    fn reach(&self, fence: &Self::Fence) -> Result<(), DeviceFault>;

    /// Runs a kernel.
    ///
    /// # Errors
    /// As the driver says.
    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault>;

    /// Multiplies.
    ///
    /// # Errors
    /// As the library says.
    fn multiply(&self, product: &Product) -> Result<(), DeviceFault>;

    /// Makes a graph of these commands, which does not run yet. `None` if the device has no graphs, or
    /// refuses these commands in one.
    ///
    /// # Errors
    /// If the device gave up.
    fn capture(&self, commands: &[Command]) -> Result<Option<GraphId>, DeviceFault> {
        let _nobody_asked = commands;
        Ok(None)
    }

    /// Runs what a graph was made of.
    ///
    /// # Errors
    /// As the driver says.
    ///
    /// # Panics
    /// If there is no such graph.
    fn replay(&self, graph: GraphId) -> Result<(), DeviceFault> {
        panic!("{graph:?} is not a graph of this device")
    }

    /// Gives a graph up.
    fn forget(&self, graph: GraphId) {
        panic!("{graph:?} is not a graph of this device")
    }
}
