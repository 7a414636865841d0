//! Low-rank adapters on processors.

use std::ops::Range;

use super::super::adapter::{LowRankProduct, load_adapted, scale_columns};
use super::super::buffer::CpuBuffer;
use super::{CpuBackend, CpuMatrix, read};
use crate::backend::{AdapterArithmetic, AdapterView, BufferView};

impl AdapterArithmetic for CpuBackend {
    fn load_adapted_matrix(
        &self,
        base: BufferView<'_, CpuBuffer>,
        adapters: &[AdapterView<'_, CpuBuffer>],
        matrix: &mut CpuMatrix,
    ) {
        let products = adapters.iter().map(|AdapterView { rows, rank, scale, a, b }| {
            let product = LowRankProduct { a: read(a), b: read(b), rank: *rank, scale: *scale };
            assert_eq!(product.b.len(), rows.len() * rank);
            (rows.start, product)
        });
        let products: Vec<_> = products.collect();
        load_adapted(self, read(&base), &products, &mut matrix.0);
    }

    fn scale_columns(
        &self,
        from: &CpuBuffer,
        width: usize,
        columns: Range<usize>,
        scale: f32,
        to: &mut CpuBuffer,
    ) {
        scale_columns(self, from.as_slice(), width, columns, scale, to.as_mut_slice());
    }
}
