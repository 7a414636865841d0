//! Joiners whose handshake is done: those that wait for the node's decision, and those that are
//! idle, because they sent no request yet or were answered and do not hang up. Idle ones are
//! evicted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::Connection;
use tokio::task::{Id, JoinError, JoinSet};
use zbelastic_identity::network_of;

use super::pending_handshakes::{CrowdLimits, most_crowded};
use crate::close_code::CloseCode;
use crate::endpoint::join::JoinerEnd;
use crate::limits::TransportLimits;

/// Whether a joiner waits for the node's decision. Its own task sets it, the [`JoinerSet`] reads
/// it.
pub(in crate::endpoint) type DecidingFlag = Arc<AtomicBool>;

/// The joiners that are there, the oldest first.
#[derive(Default)]
pub(super) struct JoinerSet {
    tasks: JoinSet<JoinerEnd>,
    slots: Vec<JoinerSlot>,
}

struct JoinerSlot {
    id: Id,
    address: IpAddr,
    is_deciding: DecidingFlag,
    connection: Connection,
    is_closing: bool,
}

impl JoinerSet {
    /// Adds one more. If too many are idle, the oldest idle one is closed: of its address, or
    /// of the address that has the most. `false` if too many wait for the node's decision.
    pub(super) fn insert<F>(
        &mut self,
        connection: &Connection,
        limits: &TransportLimits,
        serve: impl FnOnce(DecidingFlag) -> F,
    ) -> bool
    where
        F: Future<Output = JoinerEnd> + Send + 'static,
    {
        let address = network_of(connection.remote_address().ip());
        let idle: Vec<IpAddr> = self.idle().map(|slot| slot.address).collect();
        if self.slots.len() - idle.len() >= limits.joins_max {
            return false;
        }
        let crowd_limits = CrowdLimits {
            all_max: limits.joiners_idle_max,
            of_address_max: limits.joiners_idle_per_address_max,
        };
        if let Some(victim) = most_crowded(&idle, address, crowd_limits) {
            self.close_oldest_of(victim);
        }
        let is_deciding = DecidingFlag::default();
        let id = self.tasks.spawn(serve(Arc::clone(&is_deciding))).id();
        let connection = connection.clone();
        self.slots.push(JoinerSlot { id, address, is_deciding, connection, is_closing: false });
        true
    }

    fn idle(&self) -> impl Iterator<Item = &JoinerSlot> {
        let is_idle =
            |slot: &&JoinerSlot| !slot.is_closing && !slot.is_deciding.load(Ordering::Relaxed);
        self.slots.iter().filter(is_idle)
    }

    fn close_oldest_of(&mut self, address: IpAddr) {
        let oldest = self.idle().find(|slot| slot.address == address).map(|slot| slot.id);
        let mut slots = self.slots.iter_mut();
        if let Some(slot) = slots.find(|slot| Some(slot.id) == oldest) {
            slot.is_closing = true;
            slot.connection.close(CloseCode::Crowded.number().into(), &[]);
        }
    }

    /// How the next one that ends was served: nothing if its task panicked. `None` while no joiner
    /// is there. A call that is dropped before it ends loses nothing.
    pub(super) async fn next(&mut self) -> Option<Option<JoinerEnd>> {
        let ended = self.tasks.join_next_with_id().await?;
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        self.slots.retain(|slot| slot.id != id);
        Some(ended.ok().map(|(_, end)| end))
    }
}
