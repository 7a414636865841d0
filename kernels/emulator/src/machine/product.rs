//! Products of matrices as cublasLt defines them: `d = alpha * op(a) * op(b) + beta * c`, all of
//! them column by column.

use super::memory::MemoryBlocks;
use super::work::InvalidAccess;

/// The type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixElement {
    F32,
    Bf16,
}

impl MatrixElement {
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A matrix in memory: `columns` of them, `rows` each, `stride` elements from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    pub element: MatrixElement,
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
}

/// A matrix and where it begins.
#[derive(Clone, Copy, Debug)]
pub struct MatrixOperand {
    pub matrix: MatrixLayout,
    pub start: u64,
    pub is_transposed: bool,
}

impl MatrixOperand {
    /// Rows and columns as the product sees them.
    pub const fn shape(&self) -> (usize, usize) {
        let MatrixLayout { rows, columns, .. } = self.matrix;
        if self.is_transposed { (columns, rows) } else { (rows, columns) }
    }

    fn bytes(&self) -> usize {
        let MatrixLayout { element, rows, columns, stride } = self.matrix;
        if columns == 0 { 0 } else { ((columns - 1) * stride + rows) * element.bytes() }
    }

    fn place(&self, row: usize, column: usize) -> usize {
        let (row, column) = if self.is_transposed { (column, row) } else { (row, column) };
        column * self.matrix.stride + row
    }

    fn get(&self, row: usize, column: usize) -> f32 {
        let index = self.place(row, column);
        // SAFETY: `form` checked that all of its bytes lie in a block.
        unsafe {
            match self.matrix.element {
                MatrixElement::F32 => *(self.start as *const f32).add(index),
                MatrixElement::Bf16 => {
                    let bits = *(self.start as *const u16).add(index);
                    f32::from_bits(u32::from(bits) << 16)
                }
            }
        }
    }

    fn set(&self, row: usize, column: usize, x: f32) {
        let index = self.place(row, column);
        // SAFETY: as above.
        unsafe {
            match self.matrix.element {
                MatrixElement::F32 => *(self.start as *mut f32).add(index) = x,
                MatrixElement::Bf16 => *(self.start as *mut u16).add(index) = rounded(x),
            }
        }
    }
}

/// To the nearest bfloat16, ties to even; a NaN stays one.
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16 | 0x40) as u16;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A product to form.
#[derive(Clone, Copy, Debug)]
pub struct EmulatedProduct {
    pub a: MatrixOperand,
    pub b: MatrixOperand,
    pub c: MatrixOperand,
    pub d: MatrixOperand,
    pub alpha: f32,
    pub beta: f32,
    /// Sums are made of so many parts, each rounded.
    pub parts: usize,
    /// Written all over before, as an algorithm may do with it: where, and how much.
    pub workspace: (u64, usize),
}

/// Bytes of the workspace that are written.
const WORKSPACE_USED_BYTES: usize = 4096;

impl EmulatedProduct {
    fn dot(&self, first: &[f32], second: &[f32]) -> f64 {
        let exact = |first: &[f32], second: &[f32]| {
            first.iter().zip(second).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        if self.parts == 1 {
            return exact(first, second);
        }
        let len = first.len().div_ceil(self.parts).max(1);
        let parts = first.chunks(len).zip(second.chunks(len));
        f64::from(parts.map(|(first, second)| exact(first, second) as f32).sum::<f32>())
    }

    /// Forms the product: summed in f64, rounded once.
    pub fn form(&self, blocks: &MemoryBlocks) -> Result<(), InvalidAccess> {
        let (start, bytes) = self.workspace;
        blocks.owner_of(start, bytes).ok_or(InvalidAccess)?;
        for matrix in [&self.a, &self.b, &self.c, &self.d] {
            blocks.owner_of(matrix.start, matrix.bytes()).ok_or(InvalidAccess)?;
        }
        // SAFETY: it lies within a block.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0xff, bytes.min(WORKSPACE_USED_BYTES)) };
        let ((rows, depth), (_, columns)) = (self.a.shape(), self.b.shape());
        let factor = |count: usize, get: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..count * depth).map(|i| get(i / depth.max(1), i % depth.max(1))).collect()
        };
        let left = factor(rows, &|row, k| self.a.get(row, k));
        let right = factor(columns, &|column, k| self.b.get(k, column));
        for column in 0..columns {
            let second = &right[column * depth..(column + 1) * depth];
            for row in 0..rows {
                let first = &left[row * depth..(row + 1) * depth];
                let mut sum = f64::from(self.alpha) * self.dot(first, second);
                // Nothing is read where nothing is added: there may be NaNs.
                if self.beta != 0.0 {
                    sum += f64::from(self.beta) * f64::from(self.c.get(row, column));
                }
                self.d.set(row, column, sum as f32);
            }
        }
        Ok(())
    }
}
