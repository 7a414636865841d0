//! Requests that a worker answers: what it logged. All others are redirected to the controllers.

use zbelastic_transport::{PeerIdentity, Reply};

use super::Worker;
use crate::api::{Answer, Request, decode_request};
use crate::cluster::questions;

impl Worker {
    pub(super) fn answer(&mut self, from: PeerIdentity, bytes: &[u8], reply: Reply) {
        // A request that cannot be decoded gets no answer.
        let Ok(request) = decode_request(bytes) else { return drop(reply) };
        let own = self.setup.node;
        let answer = if let Request::Logs { node, from_sequence, max } = request
            && node.is_none_or(|node| node == own)
        {
            match questions::check(&mut self.journal, from, &request) {
                Ok(()) => questions::logs(&self.journal, own, (from_sequence, max)),
                Err(refusal) => Answer::Refused(refusal),
            }
        } else {
            let controllers = self.setup.home.controllers.values().flatten();
            let addresses = controllers.map(ToString::to_string).collect();
            Answer::Redirect { addresses }
        };
        questions::reply(reply, &answer);
    }
}
