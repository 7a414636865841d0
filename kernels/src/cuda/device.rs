//! What the operations need of a device: memory, launches and products, all in one order.
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

/// A device. What it is told happens in the order it is told; `read` waits for all of it.
pub trait Device {
    /// The type of activations.
    fn precision(&self) -> Precision;

    /// Memory, whatever is in it, at a multiple of 256.
    ///
    /// # Errors
    /// If there is none left.
    fn allocate(&self, bytes: u64) -> Result<Address, DeviceFault>;

    /// Gives back what `allocate` gave.
    fn free(&self, address: Address);

    /// Fills with zeros.
    ///
    /// # Errors
    /// As the driver says.
    fn zero(&self, to: Address, bytes: u64) -> Result<(), DeviceFault>;

    /// Copies from the host, which may reuse its memory at once.
    ///
    /// # Errors
    /// As the driver says.
    fn write(&self, from: &[u8], to: Address) -> Result<(), DeviceFault>;

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
