//! A worker's certificate is renewed long before it ends, over the connection that it vouches for.

use zbelastic_transport::identity::UnixSeconds;

use super::{Arrived, Worker};
use crate::cluster::renewal::renewed;
use crate::cluster::wire::{self, NodeAnswer, NodeRequest};

/// Ticks between two looks at the certificate, and two attempts to renew it: a minute.
const LOOK_TICKS: u32 = 6000;

impl Worker {
    /// Asks for a certificate that holds for longer, if two thirds of this one's time are over.
    pub(super) fn look_at_certificate(&mut self) {
        if self.renewal_ticks > 0 {
            self.renewal_ticks -= 1;
            return;
        }
        self.renewal_ticks = LOOK_TICKS;
        let credentials = &self.setup.credentials;
        if UnixSeconds::now() < credentials.window().renew_after() {
            return;
        }
        if UnixSeconds::now() > credentials.window().not_after {
            return self.ask_at_the_door();
        }
        let Some(controller) = self.seat.controllers().into_iter().find(|n| self.peers.is_up(*n))
        else {
            return;
        };
        let request = NodeRequest::Renew { request: credentials.key().signing_request() };
        let (transport, arrivals) = (self.transport.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let answer = transport.request(controller, request.encode()).await;
            let chain = match answer.map(|bytes| wire::decode(&bytes)) {
                Ok(Ok(NodeAnswer::Renewed { chain })) => Ok(chain),
                Ok(Ok(NodeAnswer::Refused { why })) => Err(why),
                Ok(Ok(NodeAnswer::Collected(_))) => Err("it answered something else".to_owned()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let _ = arrivals.send(Arrived::Certificate(chain)).await;
        });
    }

    /// No controller takes a connection with a certificate that ended: it was cut off for so long. They know
    /// its key.
    fn ask_at_the_door(&self) {
        let (ended, name) = (self.setup.credentials.clone(), self.setup.home.name.clone());
        let controllers: Vec<_> = self.setup.home.controllers.values().flatten().copied().collect();
        let arrivals = self.arrivals.clone();
        tokio::spawn(async move {
            let arrived = match renewed(&ended, &name, controllers.into_iter()).await {
                Ok(renewed) => {
                    let chain = renewed.chain().iter().map(|part| part.to_vec());
                    Arrived::Certificate(Ok(chain.collect()))
                }
                Err(not) if not.is_no_member => Arrived::NoMember,
                Err(not) => Arrived::Certificate(Err(not.failure.what)),
            };
            let _ = arrivals.send(arrived).await;
        });
    }

    pub(super) fn handle_certificate(&mut self, chain: Result<Vec<Vec<u8>>, String>) {
        let renewed = chain.and_then(|chain| {
            let chain = chain.into_iter().map(Into::into).collect();
            let renewed = self.setup.credentials.renewed(chain).map_err(|e| e.to_string())?;
            renewed.save(&self.setup.identity).map_err(|error| error.to_string())?;
            self.transport.set_credentials(renewed.clone()).map_err(|error| error.to_string())?;
            Ok(renewed)
        });
        match renewed {
            Ok(credentials) => {
                self.setup.credentials = credentials;
                self.journal.log("the certificate is renewed".to_owned());
            }
            // It is tried again, and it was begun long before the end.
            Err(why) => self.journal.warn(format!("the certificate is not renewed: {why}")),
        }
    }
}
