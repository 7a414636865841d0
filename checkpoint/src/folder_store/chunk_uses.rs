//! Which chunks may not be removed though no record names them, so that neither writing nor removal
//! waits for the other.
//!
//! ```text
//!   a writer:   use the chunk, look for its file, write it if it is missing, commit the record, unuse it
//!   a removal:  condemn chunks that nobody uses, read which of them records name and spare those,
//!               remove the file of each that is still condemned
//! ```
//!
//! A writer's use ends the condemnation of a chunk, and the file of a condemned one is removed under
//! the same lock. So a writer that used a chunk first finds its file and keeps it, and one that came
//! later finds none and writes it again. A record that was committed before chunks were condemned is
//! read after that; a later one is of a writer that used its chunks meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use crate::names::ChunkHash;

/// Chunks of transfers that are kept from removal at most, 4 TiB of them. Those beyond it are not
/// protected until their record is there; a transfer that loses some fetches them again.
const UNDER_WAY_MAX: usize = 1 << 20;

/// Chunks that are in use by writers, and those that are being removed.
#[derive(Debug, Default)]
pub(super) struct ChunkUses {
    /// Locked only to read or to record, and while one file is removed.
    state: Mutex<UseState>,
    /// Held by a removal: there is one at a time.
    removal: Mutex<()>,
}

#[derive(Debug, Default)]
struct UseState {
    /// Chunks that came from elsewhere for a record that is not there yet.
    arrived: BTreeSet<ChunkHash>,
    /// Chunks of pieces that are being written, and by how many writers.
    written: BTreeMap<ChunkHash, usize>,
    condemned: BTreeSet<ChunkHash>,
}

impl ChunkUses {
    fn state(&self) -> MutexGuard<'_, UseState> {
        self.state.lock().expect("nothing panics under the lock")
    }

    /// Begins to write a piece, none of whose chunks is in use yet.
    pub(super) const fn begin_write(&self) -> PieceWrite<'_> {
        PieceWrite { uses: self, chunks: BTreeSet::new() }
    }

    /// A chunk comes from elsewhere: it is in use until its record is there or is given up.
    pub(super) fn note_arrival(&self, hash: ChunkHash) {
        let mut state = self.state();
        state.condemned.remove(&hash);
        if state.arrived.len() < UNDER_WAY_MAX {
            state.arrived.insert(hash);
        }
    }

    /// The record of chunks that came from elsewhere is there, or is given up.
    pub(super) fn end_arrivals<'a>(&self, chunks: impl IntoIterator<Item = &'a ChunkHash>) {
        let mut state = self.state();
        for hash in chunks {
            state.arrived.remove(hash);
        }
    }

    /// Chunks in use.
    pub(super) fn under_way(&self) -> BTreeSet<ChunkHash> {
        let state = self.state();
        state.arrived.iter().chain(state.written.keys()).copied().collect()
    }

    /// Begins to remove those of `chunks` that nobody uses, once no other removal is under way.
    pub(super) fn begin_removal(&self, chunks: BTreeSet<ChunkHash>) -> ChunkRemoval<'_> {
        let alone = self.removal.lock().expect("no removal panics");
        let mut state = self.state();
        let UseState { arrived, written, condemned } = &mut *state;
        *condemned = chunks;
        condemned.retain(|hash| !arrived.contains(hash) && !written.contains_key(hash));
        ChunkRemoval { uses: self, _alone: alone }
    }
}

/// A piece that is being written, whose chunks stay until this value is dropped.
pub(super) struct PieceWrite<'a> {
    uses: &'a ChunkUses,
    chunks: BTreeSet<ChunkHash>,
}

impl PieceWrite<'_> {
    /// Uses a chunk, before its file is looked for. Returns whether this piece did not before.
    pub(super) fn add(&mut self, hash: ChunkHash) -> bool {
        if !self.chunks.insert(hash) {
            return false;
        }
        let mut state = self.uses.state();
        state.condemned.remove(&hash);
        *state.written.entry(hash).or_default() += 1;
        true
    }

    /// The chunks in use by this piece.
    pub(super) const fn chunks(&self) -> &BTreeSet<ChunkHash> {
        &self.chunks
    }
}

impl Drop for PieceWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.uses.state();
        for hash in &self.chunks {
            if let Some(count) = state.written.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    state.written.remove(hash);
                }
            }
        }
    }
}

/// A removal of chunks. What is still condemned is spared when this value is dropped.
pub(super) struct ChunkRemoval<'a> {
    uses: &'a ChunkUses,
    _alone: MutexGuard<'a, ()>,
}

impl ChunkRemoval<'_> {
    /// Records name these chunks.
    pub(super) fn spare<'a>(&self, named: impl IntoIterator<Item = &'a ChunkHash>) {
        let mut state = self.uses.state();
        for hash in named {
            state.condemned.remove(hash);
        }
    }

    /// Removes a chunk by `remove`, unless a writer uses it by now or a record names it.
    pub(super) fn remove<T>(&self, hash: ChunkHash, remove: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.uses.state();
        state.condemned.remove(&hash).then(remove)
    }
}

impl Drop for ChunkRemoval<'_> {
    fn drop(&mut self) {
        self.uses.state().condemned.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(number: u8) -> ChunkHash {
        ChunkHash::of(&[number])
    }

    #[test]
    fn a_chunk_is_removed_only_if_nobody_began_to_use_it() {
        let uses = ChunkUses::default();
        let mut before = uses.begin_write();
        assert!(before.add(chunk(1)) && !before.add(chunk(1)));
        uses.note_arrival(chunk(2));
        let removal = uses.begin_removal((1..=6).map(chunk).collect());
        removal.spare(&[chunk(3)]);
        let mut during = uses.begin_write();
        assert!(during.add(chunk(4)));
        uses.note_arrival(chunk(5));
        let removed = (1..=6).filter_map(|number| removal.remove(chunk(number), || number));
        assert_eq!(removed.collect::<Vec<_>>(), [6]);
        assert_eq!(removal.remove(chunk(6), || ()), None, "once");
        drop(removal);
        assert_eq!(uses.under_way(), [1, 2, 4, 5].map(chunk).into());
        // Two write it: it is in use until both have ended.
        assert!(during.add(chunk(1)));
        drop(before);
        assert_eq!(uses.begin_removal([chunk(1)].into()).remove(chunk(1), || ()), None);
        drop(during);
        uses.end_arrivals(&[chunk(2), chunk(5)]);
        assert_eq!(uses.under_way(), BTreeSet::new());
        assert_eq!(uses.begin_removal([chunk(1)].into()).remove(chunk(1), || ()), Some(()));
    }
}
