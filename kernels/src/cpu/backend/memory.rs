//! Buffers of processors lie in the host's memory: nothing is away, and nothing is waited for.

use std::convert::Infallible;

use super::super::buffer::CpuBuffer;
use super::super::elementwise;
use super::super::matmul::MatrixPair;
use super::super::optimizer;
use super::{CpuBackend, CpuMatrix, read};
use crate::backend::{
    AllocateError, BufferView, BufferViewMut, DeviceClock, DeviceMemory, HostFloats, MatrixShape,
    Offload, PendingFloats, TensorTransfer,
};

impl DeviceMemory for CpuBackend {
    type Buffer = CpuBuffer;

    type Matrix = CpuMatrix;

    fn allocate(&self, len: usize) -> Result<CpuBuffer, AllocateError> {
        self.arena.allocate(len)
    }

    fn allocate_apart(&self, len: usize) -> Result<CpuBuffer, AllocateError> {
        CpuBuffer::zeroed(len)
    }

    fn len(&self, buffer: &CpuBuffer) -> usize {
        buffer.as_slice().len()
    }

    fn upload(&self, from: &[f32], to: BufferViewMut<'_, CpuBuffer>) {
        to.buffer.as_mut_slice()[to.range].copy_from_slice(from);
    }

    fn download(&self, from: BufferView<'_, CpuBuffer>) -> Vec<f32> {
        read(&from).to_vec()
    }

    fn download_to(&self, from: BufferView<'_, CpuBuffer>, to: &mut Vec<f32>) {
        to.extend_from_slice(read(&from));
    }

    fn change(&self, floats: BufferViewMut<'_, CpuBuffer>, change: impl FnOnce(&mut [f32])) {
        change(&mut floats.buffer.as_mut_slice()[floats.range]);
    }

    fn copy(&self, from: BufferView<'_, CpuBuffer>, to: BufferViewMut<'_, CpuBuffer>) {
        to.buffer.as_mut_slice()[to.range].copy_from_slice(read(&from));
    }

    fn add(&self, from: BufferView<'_, CpuBuffer>, to: BufferViewMut<'_, CpuBuffer>) {
        elementwise::add(self, read(&from), &mut to.buffer.as_mut_slice()[to.range]);
    }

    fn adopt(&self, floats: &HostFloats) -> Result<CpuBuffer, AllocateError> {
        if let Some(block) = floats.shared() {
            return Ok(CpuBuffer::sharing(block.clone()));
        }
        let mut buffer = self.allocate(floats.len())?;
        buffer.as_mut_slice().copy_from_slice(floats);
        Ok(buffer)
    }

    fn share(&self, from: &CpuBuffer) -> HostFloats {
        HostFloats::sharing(from.share())
    }

    fn allocate_matrix(&self, shape: MatrixShape) -> Result<CpuMatrix, AllocateError> {
        Ok(CpuMatrix(MatrixPair::zeroed(&self.arena, shape, self.precision)?))
    }

    fn load_matrix(&self, from: BufferView<'_, CpuBuffer>, to: &mut CpuMatrix) {
        optimizer::load_matrix(self, read(&from), &mut to.0);
    }
}

impl TensorTransfer for CpuBackend {
    fn begin_download(&self, from: &mut CpuBuffer) -> PendingFloats {
        self.share(from).into()
    }
}

impl Offload for CpuBackend {
    type OffloadBuffer = Infallible;

    fn reserve_offload(&self, _bytes: u64) -> Result<Option<Infallible>, AllocateError> {
        Ok(None)
    }

    fn offload(&self, _parts: &mut [&mut CpuBuffer], host: &mut Infallible, _start: u64) {
        match *host {}
    }

    fn reload(&self, host: &mut Infallible, _start: u64, _parts: &mut [&mut CpuBuffer]) {
        match *host {}
    }
}

/// An operation is done when it returns.
impl DeviceClock for CpuBackend {}
