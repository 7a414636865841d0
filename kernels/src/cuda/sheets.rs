//! Sheets of memory that a device copies results to: made when they are needed, and used again when
//! whoever read them has given them back.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::device::{Address, Device};
use super::pinned::Pinned;
use super::recorder::Recorder;

/// Memory for one result.
pub(super) struct Sheet<D: Device> {
    memory: Pinned<D>,
    bytes: u64,
}

impl<D: Device> Sheet<D> {
    /// Where it begins.
    pub(super) fn start(&self) -> Address {
        self.memory.at(0, self.bytes)
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The sheets of a backend for one kind of results. All of them are written in one stream, so that a sheet
/// that comes back unread is written again behind the copy that nobody waited for.
pub(super) struct Sheets<D: Device> {
    /// Most sheets, and bytes of all of them.
    limits: (usize, u64),
    made: Cell<(usize, u64)>,
    free: RefCell<Vec<Sheet<D>>>,
    returned: Receiver<Sheet<D>>,
    home: SyncSender<Sheet<D>>,
}

impl<D: Device> Sheets<D> {
    pub(super) fn new(limits: (usize, u64)) -> Self {
        let (home, returned) = sync_channel(limits.0);
        Self { limits, made: Cell::new((0, 0)), free: RefCell::default(), returned, home }
    }

    /// A sheet of so many bytes; none if there is none left, or the host has no such memory.
    pub(super) fn take(&self, device: &Arc<Recorder<D>>, bytes: u64) -> Option<Sheet<D>> {
        let mut free = self.free.borrow_mut();
        free.extend(self.returned.try_iter());
        if let Some(place) = free.iter().position(|sheet| sheet.bytes == bytes) {
            return Some(free.swap_remove(place));
        }
        let (count, taken) = self.made.get();
        if !has_room((count, taken), self.limits, bytes) {
            return None;
        }
        let memory = Pinned::new(device, bytes).ok()?;
        self.made.set((count + 1, taken + bytes));
        Some(Sheet { memory, bytes })
    }

    /// Where sheets come back to. Where the backend is gone their memory is given back, which waits for
    /// copies.
    pub(super) fn home(&self) -> SyncSender<Sheet<D>> {
        self.home.clone()
    }
}

/// Whether one more sheet of so many bytes is within the limits.
const fn has_room(
    (count, taken): (usize, u64),
    (count_max, bytes_max): (usize, u64),
    bytes: u64,
) -> bool {
    count < count_max && bytes <= bytes_max - taken
}

#[cfg(test)]
mod tests {
    use super::has_room;

    #[test]
    fn sheets_are_limited_by_number_and_by_bytes() {
        assert!(has_room((1, 60), (2, 100), 40));
        assert!(!has_room((1, 60), (2, 100), 41));
        assert!(!has_room((2, 60), (2, 100), 1));
    }
}
