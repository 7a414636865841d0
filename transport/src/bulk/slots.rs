//! The memory of a fetch: one allocation, lent out chunk by chunk.

use bytes::BytesMut;

use super::wire::{chunk_bytes, chunk_count};

/// The bytes of all chunks. Who fetches a chunk has its piece, and gives it back filled or not.
#[derive(Debug)]
pub(super) struct Slots {
    pieces: Vec<Option<BytesMut>>,
}

impl Slots {
    pub(super) fn new(length: u64) -> Self {
        let all = usize::try_from(length).expect("lengths are bounded below the address space");
        let mut rest = BytesMut::zeroed(all);
        let chunks = 0..chunk_count(length);
        let pieces = chunks.map(|chunk| Some(rest.split_to(chunk_bytes(length, chunk)))).collect();
        Self { pieces }
    }

    pub(super) fn lend(&mut self, chunk: u64) -> BytesMut {
        self.pieces[index(chunk)].take().expect("a chunk is fetched by one holder at a time")
    }

    pub(super) fn put_back(&mut self, chunk: u64, piece: BytesMut) {
        let slot = &mut self.pieces[index(chunk)];
        assert!(slot.is_none(), "only what was lent comes back");
        *slot = Some(piece);
    }

    /// All bytes. The pieces are joined where they lie.
    pub(super) fn join(self) -> Vec<u8> {
        let mut all = BytesMut::new();
        for piece in self.pieces {
            all.unsplit(piece.expect("every piece is back"));
        }
        all.into()
    }
}

fn index(chunk: u64) -> usize {
    usize::try_from(chunk).expect("as many chunks as there are pieces")
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use crate::bulk::CHUNK_BYTES;

    #[test]
    fn pieces_are_joined_where_they_lie() {
        let length = 2 * CHUNK_BYTES + 1;
        let mut slots = Slots::new(length as u64);
        let mut third = slots.lend(2);
        let mut first = slots.lend(0);
        let place = first.as_ptr();
        assert_eq!((first.len(), third.len()), (CHUNK_BYTES, 1));
        first[0] = 1;
        third[0] = 3;
        slots.put_back(0, first);
        slots.put_back(2, third);
        let all = slots.join();
        assert_eq!(all.as_ptr(), place);
        assert_eq!((all[0], all[length - 1], all.len()), (1, 3, length));
    }

    #[test]
    fn nothing_is_joined_to_nothing() {
        assert_eq!(Slots::new(0).join(), Vec::<u8>::new());
    }
}
