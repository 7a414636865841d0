//! Memory for the parts of frames, used again: fresh memory costs a fault a page, each with a page
//! to clear, and every step would pay it for as many floats as the one before.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::header::FLOAT_BYTES;
use super::queue::FRAME_QUEUE_BYTES;

/// The most bytes that lie in a pool unused. As many as one peer can have waiting for this process
/// under one urgency, so that such a burst finds memory when it comes again.
pub const PART_POOL_BYTES: u64 = FRAME_QUEUE_BYTES;
/// Shorter parts are allocated anew: memory that is shorter than this glibc always keeps by itself.
/// Longer memory it keeps while little of it is free at once, and gives back after a burst. Bounds
/// how many buffers lie in a pool as well.
const POOLED_BYTES_MIN: u64 = 128 << 10;
/// A part gets a buffer that is at most this many times as long as it is. Lengths of one plan come
/// again each step; more capacity would only be held and not used.
const LONGER_MAX: usize = 2;

/// Memory for parts, of all connections of a process together. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct PartPool {
    buffers: Arc<Mutex<UnusedBuffers>>,
}

/// The floats of one part of a frame. Dropped, it leaves its memory to the pool it came from.
pub struct FramePart {
    floats: Vec<f32>,
    /// None once the floats left the pool, or if they were never a pool's.
    pool: Option<PartPool>,
}

/// The unused buffers by capacity in floats, and among equal ones by how long they lie.
#[derive(Debug, Default)]
struct UnusedBuffers {
    unused: BTreeMap<(usize, u64), Vec<f32>>,
    bytes: u64,
    /// Number of buffers that were ever put back.
    returns: u64,
}

impl PartPool {
    /// An empty part with capacity for so many floats.
    pub(super) fn take(&self, floats: usize) -> FramePart {
        if bytes_of(floats) < POOLED_BYTES_MIN {
            return FramePart { floats: Vec::with_capacity(floats), pool: None };
        }
        let used = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take(floats);
        let floats = used.unwrap_or_else(|| Vec::with_capacity(floats));
        FramePart { floats, pool: Some(self.clone()) }
    }

    fn put(&self, floats: Vec<f32>) {
        let dropped = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).put(floats);
        // To give pages back needs time, during which the lock should be free.
        drop(dropped);
    }

    /// The bytes that lie unused.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

impl UnusedBuffers {
    /// The shortest buffer with that much capacity, if it is not too long for it.
    fn take(&mut self, floats: usize) -> Option<Vec<f32>> {
        let fitting = (floats, 0)..=(floats.saturating_mul(LONGER_MAX), u64::MAX);
        let (&key, _) = self.unused.range(fitting).next()?;
        self.remove(key)
    }

    fn remove(&mut self, key: (usize, u64)) -> Option<Vec<f32>> {
        let buffer = self.unused.remove(&key)?;
        self.bytes -= bytes_of(key.0);
        Some(buffer)
    }

    /// Keeps a buffer, and gives back those that do not fit: the ones that lie longest.
    fn put(&mut self, mut buffer: Vec<f32>) -> Vec<Vec<f32>> {
        buffer.clear();
        self.bytes += bytes_of(buffer.capacity());
        self.unused.insert((buffer.capacity(), self.returns), buffer);
        self.returns += 1;
        let mut dropped = Vec::new();
        while self.bytes > PART_POOL_BYTES {
            let oldest = self.unused.keys().copied().min_by_key(|&(_, returned)| returned);
            dropped.extend(oldest.and_then(|key| self.remove(key)));
        }
        dropped
    }
}

fn bytes_of(floats: usize) -> u64 {
    (floats as u64).saturating_mul(FLOAT_BYTES)
}

impl FramePart {
    /// The floats as a vector of the caller's. Their memory leaves the pool.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<f32> {
        self.pool = None;
        mem::take(&mut self.floats)
    }

    /// The vector that the floats are read into.
    pub(super) fn memory(&mut self) -> &mut Vec<f32> {
        &mut self.floats
    }
}

impl Drop for FramePart {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(mem::take(&mut self.floats));
        }
    }
}

impl From<Vec<f32>> for FramePart {
    /// Floats that are no pool's.
    fn from(floats: Vec<f32>) -> Self {
        Self { floats, pool: None }
    }
}

impl Clone for FramePart {
    /// The same floats in memory that is no pool's.
    fn clone(&self) -> Self {
        self.floats.clone().into()
    }
}

impl Deref for FramePart {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats
    }
}

impl DerefMut for FramePart {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.floats
    }
}

impl AsRef<[f32]> for FramePart {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl<T: AsRef<[f32]>> PartialEq<T> for FramePart {
    fn eq(&self, other: &T) -> bool {
        self.floats == other.as_ref()
    }
}

impl fmt::Debug for FramePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.floats.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: usize = (POOLED_BYTES_MIN / FLOAT_BYTES) as usize;

    fn address(part: &FramePart) -> *const f32 {
        part.as_ptr()
    }

    #[test]
    fn a_part_that_is_dropped_is_the_memory_of_the_next() {
        let pool = PartPool::default();
        let first = pool.take(MIN);
        let memory = address(&first);
        drop(first);
        assert_eq!(pool.unused_bytes(), POOLED_BYTES_MIN);
        let second = pool.take(MIN);
        assert_eq!((address(&second), second.len()), (memory, 0));
        assert_eq!(pool.unused_bytes(), 0);
    }

    #[test]
    fn a_part_that_became_a_vector_does_not_come_back() {
        let pool = PartPool::default();
        let mut part = pool.take(MIN);
        part.memory().extend([1.0, 2.0]);
        let memory = address(&part);
        let floats = part.into_vec();
        assert_eq!((floats.as_ptr(), &floats[..]), (memory, &[1.0, 2.0][..]));
        drop(floats);
        assert!(pool.buffers.lock().unwrap().unused.is_empty());
    }

    #[test]
    fn what_was_never_of_a_pool_does_not_go_there() {
        let pool = PartPool::default();
        drop(pool.take(MIN - 1));
        drop(FramePart::from(vec![0.0; MIN]));
        let part = pool.take(MIN);
        drop(part.clone());
        assert_eq!(pool.unused_bytes(), 0);
        drop(part);
        assert_eq!(pool.unused_bytes(), POOLED_BYTES_MIN);
    }

    #[test]
    fn a_part_gets_the_shortest_buffer_that_fits_and_none_that_is_much_longer() {
        let pool = PartPool::default();
        let parts = [4 * MIN, 2 * MIN, 3 * MIN].map(|floats| pool.take(floats));
        let addresses = parts.each_ref().map(address);
        drop(parts);
        let check = |floats: usize, expected: Option<usize>| {
            let part = pool.take(floats);
            let found = addresses.iter().position(|&known| known == address(&part));
            assert_eq!(found, expected, "{floats} floats");
            mem::forget(part.into_vec());
        };
        check(MIN - 1, None);
        check(2 * MIN - 1, Some(1));
        check(2 * MIN - 1, Some(2));
        check(2 * MIN - 1, None);
        check(2 * MIN, Some(0));
    }

    #[test]
    fn a_full_pool_lets_go_what_lies_longest() {
        let mut buffers = UnusedBuffers::default();
        let quarter = (PART_POOL_BYTES / FLOAT_BYTES / 4) as usize;
        let mut put = |floats: usize| -> Vec<usize> {
            let dropped = buffers.put(Vec::with_capacity(floats));
            assert!(buffers.bytes <= PART_POOL_BYTES);
            dropped.iter().map(Vec::capacity).collect()
        };
        for more in [3, 2, 1, 0] {
            assert_eq!(put(quarter - more), []);
        }
        assert_eq!(put(quarter), [quarter - 3]);
        assert_eq!(put(2 * quarter), [quarter - 2, quarter - 1]);
        assert_eq!(put(4 * quarter), [quarter, quarter, 2 * quarter]);
        assert_eq!(put(4 * quarter + 1), [4 * quarter, 4 * quarter + 1], "longer than all of it");
        assert_eq!((buffers.bytes, buffers.unused.len()), (0, 0));
    }
}
