//! The memory of a device: buffers, matrices, and the copies between them, the host and other
//! devices.

use super::{
    AllocateError, BufferView, BufferViewMut, HostFloats, MatrixShape, PendingFloats, TensorHandle,
};
use crate::fault::DeviceFault;
use crate::sizes::{ByteCounts, MemoryClaim};

/// The memory of a device. Copies to and from the host are complete when they return.
pub trait DeviceMemory: ByteCounts {
    /// A run of 32-bit floats in the device's memory.
    type Buffer;

    /// A linear layer's matrix in the form in which products read it.
    type Matrix;

    /// Allocates memory at once for all that is allocated next through this handle, and for the
    /// operations that are run through it later: none of them fails then for lack of memory. A
    /// device that allocates memory as it is needed does nothing.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn claim(&self, claim: &MemoryClaim<'_>) -> Result<(), AllocateError> {
        let _unused = claim;
        Ok(())
    }

    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate(&self, len: usize) -> Result<Self::Buffer, AllocateError>;

    /// The same for what may be shared ([`Self::share`]) for longer than the buffers beside it are
    /// needed. A device that cuts buffers from larger pieces of memory, which is freed when nothing
    /// in it is held, cuts none here.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate_apart(&self, len: usize) -> Result<Self::Buffer, AllocateError> {
        self.allocate(len)
    }

    /// A buffer of `len` zeros for activations: rows of a residual stream, of queries, keys and
    /// values, of gates, logits and their gradients. A device may hold these in a smaller type;
    /// floats that are copied to it from the host are then rounded to that type.
    ///
    /// Parameters, their gradients and moments, statistics, logarithms of sums, rotary angles and
    /// the shares that later slices add to keys and values are sums of many terms or are read by
    /// many; they come from [`DeviceMemory::allocate`].
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate_rows(&self, len: usize) -> Result<Self::Buffer, AllocateError> {
        self.allocate(len)
    }

    /// The number of floats in a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Copies from the host; lengths are equal.
    fn upload(&self, from: &[f32], to: BufferViewMut<'_, Self::Buffer>);

    /// Copies a range of a buffer to the host.
    fn download(&self, from: BufferView<'_, Self::Buffer>) -> Vec<f32>;

    /// The same, behind the floats that `to` has.
    fn download_to(&self, from: BufferView<'_, Self::Buffer>, to: &mut Vec<f32>) {
        to.append(&mut self.download(from));
    }

    /// Has the host change a range of a buffer. Floats that lie there are not copied.
    fn change(&self, floats: BufferViewMut<'_, Self::Buffer>, change: impl FnOnce(&mut [f32])) {
        let BufferViewMut { buffer, range } = floats;
        let mut changed = self.download(BufferView::new(buffer, range.clone()));
        change(&mut changed);
        self.upload(&changed, BufferViewMut::new(buffer, range));
    }

    /// Copies within the device; lengths are equal.
    fn copy(&self, from: BufferView<'_, Self::Buffer>, to: BufferViewMut<'_, Self::Buffer>);

    /// `to` becomes `from + to`, element by element and each sum rounded once; lengths are equal.
    fn add(&self, from: BufferView<'_, Self::Buffer>, to: BufferViewMut<'_, Self::Buffer>);

    /// A buffer that begins with these floats. Floats that lie where the device reads them are not
    /// copied.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn adopt(&self, floats: &HostFloats) -> Result<Self::Buffer, AllocateError> {
        let mut buffer = self.allocate(floats.len())?;
        self.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
        Ok(buffer)
    }

    /// The floats of a buffer now, on the host. Floats that lie there already are not copied until
    /// they are written.
    fn share(&self, from: &Self::Buffer) -> HostFloats {
        self.download(BufferView::new(from, 0..self.len(from))).into()
    }

    /// Allocates a matrix of zeros.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    fn allocate_matrix(&self, shape: MatrixShape) -> Result<Self::Matrix, AllocateError>;

    /// Packs `from`, `outputs` by `inputs` in row-major order, into the form that products read.
    fn load_matrix(&self, from: BufferView<'_, Self::Buffer>, to: &mut Self::Matrix);
}

/// Copies from and to a device beside its work. Every default waits.
pub trait TensorTransfer: DeviceMemory {
    /// A copy for another backend, which may be on another thread. A device does not wait for
    /// anything to make it.
    fn export_tensor(&self, from: BufferView<'_, Self::Buffer>) -> TensorHandle {
        self.download(from).into()
    }

    /// Copies the numbers of a tensor into a buffer; lengths are equal. A device that can copy them
    /// from another does not wait for anything either.
    ///
    /// # Errors
    /// If the numbers are waited for, and the device that holds them fails.
    fn import_tensor(
        &self,
        tensor: TensorHandle,
        to: BufferViewMut<'_, Self::Buffer>,
    ) -> Result<(), DeviceFault> {
        self.upload(&tensor.into_floats()?, to);
        Ok(())
    }

    /// Begins to copy a tensor of activations that another process sent to the device, beside
    /// the work of the device.
    fn begin_upload(&self, tensor: TensorHandle) -> TensorHandle {
        tensor
    }

    /// The floats of a buffer on their way to the host, beside the next work of the device: the
    /// reader waits. The buffer may be read meanwhile; before it is written the caller calls
    /// [`TensorTransfer::order_after_copies`].
    fn begin_download(&self, from: &mut Self::Buffer) -> PendingFloats {
        self.download(BufferView::new(from, 0..self.len(from))).into()
    }

    /// Orders work enqueued on the device from now on after the copies that still use this
    /// buffer.
    fn order_after_copies(&self, _buffer: &mut Self::Buffer) {}
}

/// Memory of the host for buffers of passes that are far from their backward pass.
pub trait Offload: DeviceMemory {
    /// Memory outside the device for buffers that are offloaded for a while.
    type OffloadBuffer;

    /// Memory of the host for offloaded buffers, allocated once. `None` if the device's memory is
    /// the host's: then the caller that would offload a buffer keeps it.
    ///
    /// # Errors
    /// If the host has no such memory left.
    fn reserve_offload(&self, bytes: u64) -> Result<Option<Self::OffloadBuffer>, AllocateError>;

    /// Copies buffers, one behind the other, to `host` from its byte `start` on, beside all that
    /// the device does next. Until [`TensorTransfer::order_after_copies`] nothing else may use them.
    fn offload(&self, parts: &mut [&mut Self::Buffer], host: &mut Self::OffloadBuffer, start: u64);

    /// Copies back the floats offloaded from `start` on, into buffers of the same lengths, beside
    /// the next work of the device. Until [`TensorTransfer::order_after_copies`] nothing else may
    /// use them.
    fn reload(&self, host: &mut Self::OffloadBuffer, start: u64, parts: &mut [&mut Self::Buffer]);
}
