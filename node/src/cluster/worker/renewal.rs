//! A worker's certificate is renewed long before it ends, over the connection that it vouches for.

use zbelastic_identity::{Credentials, UnixSeconds};
use zbelastic_policy::renewal::{CertificateStatus, RenewalAction};

use super::{WorkerCompletion, WorkerNode};
use crate::cluster::renewal::request_renewal;
use crate::cluster::wire::{self, NodeAnswer, NodeRequest};

impl WorkerNode {
    /// Requests a certificate that holds for longer, if two thirds of this one's time are over, or
    /// one by the authority that issues now.
    pub(super) fn renew_certificate_if_due(&mut self) {
        let credentials = &self.setup.credentials;
        let is_replaced = self.wants_certificate;
        let is_shut_out = self.is_shut_out && !self.peers.roster().is_controller_connected();
        let status = || {
            let now = UnixSeconds::now();
            let window = credentials.window();
            CertificateStatus { now, window, is_replaced, is_untrusted: is_shut_out }
        };
        match self.renewal.handle_tick(status) {
            RenewalAction::Wait => {}
            RenewalAction::RequestAsJoiner => self.request_renewal_by_key(),
            RenewalAction::RequestFromController => self.request_renewal(),
        }
    }

    fn request_renewal(&self) {
        let Some(controller) =
            self.session.controllers().into_iter().find(|n| self.peers.roster().is_up(*n))
        else {
            return;
        };
        let request =
            NodeRequest::Renew { request: self.setup.credentials.key().signing_request() };
        let transport = self.transport.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let answer = transport.request(controller, request.encode()).await;
            let chain = match answer.map(|bytes| wire::decode(&bytes)) {
                Ok(Ok(NodeAnswer::Renewed { chain, .. })) => Ok(chain),
                Ok(Ok(NodeAnswer::Refused { why })) => Err(why),
                Ok(Ok(NodeAnswer::Collected(_) | NodeAnswer::AuthorityKey(_))) => {
                    Err("it answered something else".to_owned())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let _ = completions.send(WorkerCompletion::Certificate(chain)).await;
        });
    }

    /// No controller takes a connection with a certificate that ended, or that an authority made
    /// which is retired: it was cut off for so long. They have its key.
    fn request_renewal_by_key(&self) {
        let ended = self.setup.credentials.clone();
        let name = self.setup.node_record.name.clone();
        let controllers: Vec<_> =
            self.setup.node_record.controllers.values().flatten().copied().collect();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let completion = match request_renewal(&ended, &name, controllers.into_iter()).await {
                Ok(renewed) => {
                    let chain = renewed.chain().iter().map(|part| part.to_vec());
                    WorkerCompletion::Certificate(Ok(chain.collect()))
                }
                Err(error) if error.is_no_member => WorkerCompletion::NoMember,
                Err(error) => WorkerCompletion::Certificate(Err(error.failure.what)),
            };
            let _ = completions.send(completion).await;
        });
    }

    pub(super) fn handle_certificate(&mut self, chain: Result<Vec<Vec<u8>>, String>) {
        let renewed = chain.and_then(|chain| {
            let chain = chain.into_iter().map(Into::into).collect();
            self.setup.credentials.renewed(chain).map_err(|error| error.to_string())
        });
        match renewed.and_then(|renewed| self.use_credentials(renewed)) {
            Ok(()) => {
                self.is_shut_out = false;
                self.journal.log("the certificate is renewed".to_owned());
            }
            // It is tried again, and it was begun long before the end.
            Err(why) => self.journal.warn(format!("the certificate is not renewed: {why}")),
        }
    }

    /// Uses other credentials from now on, and after the next start.
    pub(super) fn use_credentials(&mut self, credentials: Credentials) -> Result<(), String> {
        credentials.save(&self.setup.identity).map_err(|error| error.to_string())?;
        self.transport.set_credentials(credentials.clone()).map_err(|error| error.to_string())?;
        self.setup.credentials = credentials;
        Ok(())
    }
}
