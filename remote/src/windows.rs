//! The parts of an object that are held, and how much is read at once. Nothing here asks a server.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most bytes of a request. The first byte of one comes after 10 to 100 ms (Amazon S3 User Guide,
/// "Performance design patterns"): in 0.1 s at 100 MB/s come 10 MB, so that with 4 MiB some 30 MB/s
/// are read, and a core encodes about 20. With [`WINDOWS_MAX`] and a request under way, twice while
/// it is received, an object takes up to 24 MiB of the 70 that are left of
/// [`PREPARE_BYTES_MAX`](zbelastic_data::prepare::PREPARE_BYTES_MAX).
pub(crate) const RANGE_BYTES_MAX: usize = 4 << 20;
/// Ranges that are held. A chat's columns in a Parquet file are role, content and tools: their pages
/// are read in turn.
pub(crate) const WINDOWS_MAX: usize = 4;

/// The ranges of an object that are held, the one used last in front.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    held: VecDeque<Window>,
}

#[derive(Debug)]
struct Window {
    begin: u64,
    bytes: Bytes,
}

impl Window {
    fn end(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

impl Windows {
    /// The bytes from `offset` on, as far as they are held together.
    pub(crate) fn get(&mut self, offset: u64) -> Option<&[u8]> {
        let is_in = |window: &Window| (window.begin..window.end()).contains(&offset);
        let index = self.held.iter().position(is_in)?;
        let window = self.held.remove(index)?;
        self.held.push_front(window);
        let window = self.held.front()?;
        window.bytes.get((offset - window.begin) as usize..)
    }

    /// How many bytes to read from `offset` on, if `wanted` are needed: up to
    /// [`RANGE_BYTES_MAX`] where a reader goes on, and no more than needed where it jumps.
    pub(crate) fn bytes_to_read(&self, offset: u64, wanted: usize, len: u64) -> u64 {
        let goes_on = offset == 0 || self.held.iter().any(|window| window.end() == offset);
        let bytes = if goes_on { RANGE_BYTES_MAX } else { wanted.min(RANGE_BYTES_MAX) };
        (bytes as u64).min(len.saturating_sub(offset))
    }

    /// Holds what was read, in place of what it goes on from, or of what was used longest ago.
    pub(crate) fn put(&mut self, offset: u64, bytes: Bytes) {
        self.held.retain(|window| window.end() != offset);
        self.held.truncate(WINDOWS_MAX - 1);
        self.held.push_front(Window { begin: offset, bytes });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{RANGE_BYTES_MAX, WINDOWS_MAX, Windows};

    const MAX: u64 = RANGE_BYTES_MAX as u64;

    #[test]
    fn a_reader_that_goes_on_reads_whole_ranges_and_one_that_jumps_what_it_needs() {
        let mut windows = Windows::default();
        assert_eq!(windows.bytes_to_read(0, 1, 10), 10);
        assert_eq!(windows.bytes_to_read(0, 1, u64::MAX), MAX);
        assert_eq!(windows.bytes_to_read(7, 100, u64::MAX), 100);
        assert_eq!(windows.bytes_to_read(7, usize::MAX, u64::MAX), MAX);
        assert_eq!(windows.bytes_to_read(7, 100, 8), 1);
        windows.put(7, Bytes::from_static(b"abc"));
        assert_eq!(windows.bytes_to_read(10, 1, u64::MAX), MAX);
    }

    #[test]
    fn what_was_read_is_given_from_any_offset_within_it() {
        let mut windows = Windows::default();
        windows.put(7, Bytes::from_static(b"abc"));
        assert_eq!(windows.get(7), Some(&b"abc"[..]));
        assert_eq!(windows.get(9), Some(&b"c"[..]));
        assert_eq!(windows.get(6), None);
        assert_eq!(windows.get(10), None);
    }

    #[test]
    fn so_many_readers_go_on_beside_each_other_and_one_takes_one_place() {
        let mut windows = Windows::default();
        for step in 0..10 {
            for reader in 0..WINDOWS_MAX as u64 {
                windows.put(1000 * reader + step, Bytes::from_static(b"a"));
            }
        }
        assert_eq!(windows.held.len(), WINDOWS_MAX);
        for reader in 0..WINDOWS_MAX as u64 {
            assert!(windows.get(1000 * reader + 9).is_some(), "{reader}");
        }
        windows.put(5, Bytes::from_static(b"a"));
        assert_eq!(windows.held.len(), WINDOWS_MAX);
        assert!(windows.get(9).is_none(), "used longest ago");
    }
}
