//! A slice that tasks write to in places no two of them share.

use std::marker::PhantomData;

use super::matmul::PrefetchRange;

/// Rows of floats lent to tasks piece by piece.
pub(super) struct SharedRows<'a> {
    floats: *mut f32,
    len: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: `piece` requires its caller to keep pieces apart, which is all that sharing needs.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Rows of `stride` floats.
    pub(super) fn new(floats: &'a mut [f32], stride: usize) -> Self {
        Self { floats: floats.as_mut_ptr(), len: floats.len(), stride, borrowed: PhantomData }
    }

    /// All rows, to be fetched ahead.
    pub(super) fn prefetch_range(&self) -> PrefetchRange {
        PrefetchRange::of_rows(self.floats, self.len / self.stride, self.stride)
    }

    /// `len` floats of `row` from `column` on.
    ///
    /// # Safety
    /// No two pieces alive at once overlap.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn piece(&self, row: usize, column: usize, len: usize) -> &mut [f32] {
        let start = row * self.stride + column;
        assert!(column + len <= self.stride && start + len <= self.len);
        // SAFETY: in bounds; the caller keeps pieces apart.
        unsafe { std::slice::from_raw_parts_mut(self.floats.add(start), len) }
    }
}
