//! The operations of [`DeviceMemory`], [`TensorTransfer`], [`Offload`] and [`DeviceClock`] on a device,
//! each called in the module that implements it.

use super::super::device::Device;
use super::super::error::DeviceFault;
use super::super::memory::{CudaBuffer, ElementType};
use super::super::offload::CudaOffloadBuffer;
use super::super::{download, offload, staging, timestamps, transfer};
use super::{CudaBackend, CudaMatrix};
use crate::backend::{
    AllocateError, BufferView, BufferViewMut, DeviceClock, DeviceMemory, MatrixShape, Offload,
    Pending, PendingFloats, TensorHandle, TensorTransfer,
};
use crate::sizes::{ByteCounts, MemoryClaim};

impl<D: Device> DeviceMemory for CudaBackend<D> {
    type Buffer = CudaBuffer<D>;

    type Matrix = CudaMatrix<D>;

    fn claim(&self, claim: &MemoryClaim<'_>) -> Result<(), AllocateError> {
        self.take_claim(claim).map_err(|fault| self.refusal(self.claim_bytes(claim), fault))
    }

    fn allocate(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(ElementType::Float, len)
    }

    fn allocate_rows(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(ElementType::Row, len)
    }

    fn len(&self, buffer: &CudaBuffer<D>) -> usize {
        buffer.len()
    }

    fn upload(&self, from: &[f32], to: BufferViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::upload(self, from, &to));
    }

    fn download(&self, from: BufferView<'_, CudaBuffer<D>>) -> Vec<f32> {
        let nothing = || vec![f32::NAN; from.range.len()];
        self.run_or(None, || transfer::download(self, &from).map(Some)).unwrap_or_else(nothing)
    }

    fn copy(&self, from: BufferView<'_, CudaBuffer<D>>, to: BufferViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::copy(self, &from, &to));
    }

    fn add(&self, from: BufferView<'_, CudaBuffer<D>>, to: BufferViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::add(self, &from, &to));
    }

    fn allocate_matrix(&self, shape: MatrixShape) -> Result<CudaMatrix<D>, AllocateError> {
        let weights = self.buffer(ElementType::Row, shape.outputs * shape.inputs)?;
        Ok(CudaMatrix { shape, weights })
    }

    fn load_matrix(&self, from: BufferView<'_, CudaBuffer<D>>, to: &mut CudaMatrix<D>) {
        self.run(|| transfer::load_matrix(self, &from, to));
    }
}

impl<D: Device> TensorTransfer for CudaBackend<D> {
    fn export_tensor(&self, from: BufferView<'_, CudaBuffer<D>>) -> TensorHandle {
        let exported = self.run_result(|| {
            Ok(match staging::export_tensor(self, &self.staging_pools[0], &from)? {
                Some(staged) => staged,
                None => transfer::download(self, &from)?.into(),
            })
        });
        let lost = |fault| TensorHandle::pending(from.range.len(), Pending::Failed(fault));
        exported.unwrap_or_else(lost)
    }

    fn import_tensor(
        &self,
        tensor: TensorHandle,
        to: BufferViewMut<'_, CudaBuffer<D>>,
    ) -> Result<(), DeviceFault> {
        if let Some(tensor) = self.run_or(None, || staging::import_tensor(self, tensor, &to)) {
            self.upload(&tensor.into_floats()?, to);
        }
        Ok(())
    }

    fn begin_upload(&self, tensor: TensorHandle) -> TensorHandle {
        if tensor.is_on_device() {
            return tensor;
        }
        let len = tensor.len();
        // What another device has lost is no fault of this one.
        let begun = tensor.into_host().and_then(|numbers| {
            self.run_result(|| staging::begin_upload(self, &self.staging_pools[1], numbers))
        });
        begun.unwrap_or_else(|fault| TensorHandle::pending(len, Pending::Failed(fault)))
    }

    fn begin_download(&self, from: &mut CudaBuffer<D>) -> PendingFloats {
        let len = from.len();
        let pending = self.run_result(|| {
            Ok(match download::begin_download(self, &self.downloads, from)? {
                Some(pending) => pending,
                None => transfer::download(self, &BufferView::new(from, 0..len))?.into(),
            })
        });
        pending.unwrap_or_else(|fault| PendingFloats::new(len, Pending::Failed(fault)))
    }

    fn order_after_copies(&self, buffer: &mut CudaBuffer<D>) {
        self.run(|| offload::order_after_copies(self, buffer));
    }
}

impl<D: Device> Offload for CudaBackend<D> {
    type OffloadBuffer = CudaOffloadBuffer<D>;

    fn reserve_offload(&self, bytes: u64) -> Result<Option<CudaOffloadBuffer<D>>, AllocateError> {
        offload::reserve(self, bytes).map(Some).map_err(|fault| self.refusal(bytes, fault))
    }

    fn offload(
        &self,
        parts: &mut [&mut CudaBuffer<D>],
        host: &mut CudaOffloadBuffer<D>,
        start: u64,
    ) {
        self.run(|| offload::offload(self, parts, host, start));
    }

    fn reload(
        &self,
        host: &mut CudaOffloadBuffer<D>,
        start: u64,
        parts: &mut [&mut CudaBuffer<D>],
    ) {
        self.run(|| offload::reload(self, parts, host, start));
    }
}

impl<D: Device> DeviceClock for CudaBackend<D> {
    fn is_asynchronous(&self) -> bool {
        true
    }

    fn record_timestamp(&self) -> bool {
        self.run_or(false, || timestamps::record_timestamp(self, &self.timestamps))
    }

    fn read_timestamps(&self) -> Vec<f64> {
        self.run_or(Vec::new(), || timestamps::read(self, &self.timestamps))
    }
}
