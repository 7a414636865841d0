//! Requests that a worker answers: what it logged. All others are redirected to the controllers.

use zbelastic_api::{ApiAnswer, ApiRequest, decode_request};
use zbelastic_identity::PeerIdentity;
use zbelastic_transport::RequestReply;

use super::WorkerNode;
use crate::cluster::requests;

impl WorkerNode {
    pub(super) fn answer(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        // A request that cannot be decoded gets no answer.
        let Ok(request) = decode_request(bytes) else { return drop(reply) };
        let own = self.setup.node;
        let answer = if let ApiRequest::Logs { node, from_sequence, max } = request
            && node.is_none_or(|node| node == own)
        {
            match requests::authorize(&mut self.journal, from, &request) {
                Ok(()) => requests::logs(&self.journal, own, (from_sequence, max)),
                Err(refusal) => ApiAnswer::Refused(refusal),
            }
        } else {
            let controllers = self.setup.node_record.controllers.values().flatten();
            let addresses = controllers.map(ToString::to_string).collect();
            ApiAnswer::Redirect { addresses }
        };
        requests::reply(reply, &answer);
    }
}
