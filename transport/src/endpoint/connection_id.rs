//! Connection ids of QUIC.

use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of an id: so many that two processes at one port, one after the other, share none.
const ID_BYTES: usize = 8;

/// Draws ids. The default generator of QUIC's library has a key of its own in each process, and
/// drops packets with an id that another process gave out: the process after a restart could not
/// answer them with a stateless reset.
#[derive(Debug)]
pub(super) struct RandomConnectionIds;

impl ConnectionIdGenerator for RandomConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        SystemRandom::new().fill(&mut id).expect("the machine has random numbers");
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
