//! Where passes lie while they are offloaded: in memory that the device copies by itself, beside
//! its work, or in a second store that stores and returns floats while the stage waits.

use std::collections::BTreeMap;

use zbelastic_kernels::{AllocateError, Backend};
use zbelastic_schedule::Pass;
use zbelastic_types::{Bytes, ChunkIndex};

use super::chunk_workspace::{ChunkWorkspace, MicrobatchSlice};
use super::slots::SlotPool;
use super::stash_store::{MemoryStashStore, StashStore, StashStoreError};
use crate::model::{download_parts, upload_parts};
use crate::plan::OffloadClaim;

/// Slots for offloaded passes of one length over a chunk, each known by its first byte.
pub(super) struct OffloadSlots {
    slots: SlotPool<u64, MicrobatchSlice>,
    /// Numbers that one slot holds.
    len: usize,
}

/// Where passes lie while they are offloaded.
pub(super) enum OffloadTarget<B: Backend> {
    /// The device's own way. Slots are as many as the plan claims, and do not move.
    Device { buffer: B::OffloadBuffer, pools: BTreeMap<(ChunkIndex, usize), OffloadSlots> },
    /// A second store that stores and returns floats.
    Store(Box<dyn StashStore>),
}

impl<B: Backend> OffloadTarget<B> {
    /// The device's own way, if it has one and something leaves; else the host's memory.
    pub(super) fn of_device(backend: &B, claimed: &[OffloadClaim]) -> Result<Self, AllocateError> {
        let bytes = claimed.iter().map(OffloadClaim::bytes).sum::<Bytes>();
        let buffer = if bytes > Bytes(0) { backend.reserve_offload(bytes.0)? } else { None };
        let Some(buffer) = buffer else {
            return Ok(Self::Store(Box::new(MemoryStashStore::new(floats_of(claimed)))));
        };
        let mut pools = BTreeMap::new();
        let mut start = 0;
        for claim in claimed {
            let starts = (0..u64::from(claim.count)).map(|i| start + i * claim.pass_bytes.0);
            let slots = SlotPool::new(starts.collect());
            pools.insert(
                (claim.chunk, claim.slice_len),
                OffloadSlots { slots, len: claim.pass_len },
            );
            start += claim.bytes().0;
        }
        assert_eq!(start, bytes.0, "as many bytes as the plan claims");
        Ok(Self::Device { buffer, pools })
    }

    /// A second store made for the plan's claims, as floats.
    pub(super) fn in_store(
        make: impl FnOnce(Bytes) -> Box<dyn StashStore>,
        claimed: &[OffloadClaim],
    ) -> Self {
        Self::Store(make(floats_of(claimed)))
    }

    /// OFFLOAD of a pass over slices of this length.
    pub(super) fn offload(
        &mut self,
        backend: &B,
        workspace: &mut ChunkWorkspace<B>,
        (pass, slice_len): (Pass, usize),
    ) -> Result<(), StashStoreError> {
        let part = (pass.microbatch, pass.slice);
        match self {
            Self::Device { buffer, pools } => {
                let mut parts = workspace.offload_parts(backend, part);
                let pool = pools.get_mut(&(pass.chunk, slice_len)).expect("claimed by the plan");
                let len: usize = parts.iter().map(|buffer| backend.len(buffer)).sum();
                assert!(len <= pool.len, "{len} numbers leave, the plan claims {}", pool.len);
                let start = *pool.slots.acquire(part);
                backend.offload(&mut parts, buffer, start);
            }
            Self::Store(store) => {
                let floats = download_parts(backend, &mut workspace.offload_parts(backend, part));
                store.put(pass, &floats)?;
            }
        }
        workspace.release_offloaded(part);
        Ok(())
    }

    /// RELOAD of such a pass.
    pub(super) fn reload(
        &mut self,
        backend: &B,
        workspace: &mut ChunkWorkspace<B>,
        (pass, slice_len): (Pass, usize),
    ) -> Result<(), StashStoreError> {
        let part = (pass.microbatch, pass.slice);
        match self {
            Self::Device { buffer, pools } => {
                let pool = pools.get_mut(&(pass.chunk, slice_len)).expect("claimed by the plan");
                let start = *pool.slots.get(part);
                workspace.acquire_reloaded(part);
                backend.reload(buffer, start, &mut workspace.offload_parts(backend, part));
                // The next offload into this slot comes after this copy: the device orders
                // them.
                pool.slots.release(part);
            }
            Self::Store(store) => {
                let floats = store.take(pass)?;
                workspace.acquire_reloaded(part);
                upload_parts(backend, &floats, &mut workspace.offload_parts(backend, part));
            }
        }
        Ok(())
    }

    /// The turn was dropped: nothing is offloaded any more.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Device { pools, .. } => {
                pools.values_mut().for_each(|pool| pool.slots.release_all());
            }
            Self::Store(store) => store.clear(),
        }
    }
}

/// The bytes of a store of floats.
fn floats_of(claimed: &[OffloadClaim]) -> Bytes {
    claimed.iter().map(|claim| Bytes::of_f32(claim.pass_len) * u64::from(claim.count)).sum()
}
