//! Where passes lie while they are away: in memory that the device copies by itself, beside its
//! work, or in a second store that takes and gives floats while the stage waits.

use std::collections::BTreeMap;

use zbelastic_kernels::{AllocateError, Backend};
use zbelastic_schedule::Pass;
use zbelastic_types::{Bytes, ChunkIndex};

use super::chunk_bench::{ChunkBench, Part};
use super::slots::Slots;
use super::store::{MemoryStore, SecondStore, StoreError};
use crate::model::{put_left, take_left};
use crate::plan::AwayPlaces;

/// Places for passes of one length over a chunk, each known by its first byte.
pub(super) struct Places {
    slots: Slots<u64, Part>,
    /// Numbers that one of them holds.
    len: usize,
}

/// Where passes lie while they are away.
pub(super) enum Elsewhere<B: Backend> {
    /// The device's own way. Places are as many as the plan claims, and do not move.
    Device { away: B::Away, places: BTreeMap<(ChunkIndex, usize), Places> },
    /// Anything else.
    Store(Box<dyn SecondStore>),
}

impl<B: Backend> Elsewhere<B> {
    /// The device's own way, if it has one and something leaves; else the host's memory.
    pub(super) fn of_device(backend: &B, claimed: &[AwayPlaces]) -> Result<Self, AllocateError> {
        let bytes = claimed.iter().map(AwayPlaces::bytes).sum::<Bytes>();
        let away = if bytes > Bytes(0) { backend.reserve_away(bytes.0)? } else { None };
        let Some(away) = away else {
            return Ok(Self::Store(Box::new(MemoryStore::new(floats_of(claimed)))));
        };
        let (mut places, mut start) = (BTreeMap::new(), 0);
        for claim in claimed {
            let starts = (0..u64::from(claim.count)).map(|i| start + i * claim.pass_bytes.0);
            let slots = Slots::new(starts.collect());
            places.insert((claim.chunk, claim.slice_len), Places { slots, len: claim.pass_len });
            start += claim.bytes().0;
        }
        assert_eq!(start, bytes.0, "as many bytes as the plan claims");
        Ok(Self::Device { away, places })
    }

    /// A second store made for what the plan claims, as floats.
    pub(super) fn in_store(
        make: impl FnOnce(Bytes) -> Box<dyn SecondStore>,
        claimed: &[AwayPlaces],
    ) -> Self {
        Self::Store(make(floats_of(claimed)))
    }

    /// OFFLOAD of a pass over slices of this length.
    pub(super) fn send(
        &mut self,
        backend: &B,
        bench: &mut ChunkBench<B>,
        (pass, slice_len): (Pass, usize),
    ) -> Result<(), StoreError> {
        let part = (pass.microbatch, pass.slice);
        match self {
            Self::Device { away, places } => {
                let mut left = bench.left(backend, part);
                let places = places.get_mut(&(pass.chunk, slice_len)).expect("claimed by the plan");
                let len: usize = left.iter().map(|buffer| backend.len(buffer)).sum();
                assert!(len <= places.len, "{len} numbers leave, the plan claims {}", places.len);
                let start = *places.slots.acquire(part);
                backend.send_away(&mut left, away, start);
            }
            Self::Store(store) => {
                let floats = take_left(backend, &mut bench.left(backend, part));
                store.put(pass, &floats)?;
            }
        }
        bench.depart(part);
        Ok(())
    }

    /// RELOAD of such a pass.
    pub(super) fn bring_back(
        &mut self,
        backend: &B,
        bench: &mut ChunkBench<B>,
        (pass, slice_len): (Pass, usize),
    ) -> Result<(), StoreError> {
        let part = (pass.microbatch, pass.slice);
        match self {
            Self::Device { away, places } => {
                let places = places.get_mut(&(pass.chunk, slice_len)).expect("claimed by the plan");
                let start = *places.slots.get(part);
                bench.come_back(part);
                backend.bring_back(away, start, &mut bench.left(backend, part));
                // What leaves next for this place comes after this copy: the device sees to it.
                places.slots.release(part);
            }
            Self::Store(store) => {
                let floats = store.take(pass)?;
                bench.come_back(part);
                put_left(backend, &floats, &mut bench.left(backend, part));
            }
        }
        Ok(())
    }

    /// The turn was dropped: nothing is away.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Device { places, .. } => {
                places.values_mut().for_each(|places| places.slots.release_all());
            }
            Self::Store(store) => store.clear(),
        }
    }
}

/// What a store of floats takes.
fn floats_of(claimed: &[AwayPlaces]) -> Bytes {
    claimed.iter().map(|claim| Bytes::of_f32(claim.pass_len) * u64::from(claim.count)).sum()
}
