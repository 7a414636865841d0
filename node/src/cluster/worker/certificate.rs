//! A worker's certificate: renewed long before it ends, over the connection that it vouches for. A
//! worker trusts the authorities that the cluster agreed to trust, and reports its progress with
//! that.

use std::path::PathBuf;

use zbelastic_identity::{Credentials, UnixSeconds};
use zbelastic_policy::renewal::{CertificateStatus, RenewalAction, RenewalWatch};
use zbelastic_policy::roster::Roster;
use zbelastic_wire::{self as wire, NodeAnswer, NodeMessage, NodeRequest};

use super::ports::{WorkerCompletion, WorkerPorts, WorkerTasks};
use crate::cluster::authority::{CredentialsWritten, LOOK_TICKS, OwnCredentials};
use crate::cluster::journal::Journal;
use crate::cluster::renewal::request_renewal;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_policy::authority::{is_certified, report, updated_credentials};
use zbelastic_policy::renewal::CredentialsChange;

/// The certificate of a worker, and when it is renewed.
pub(super) struct WorkerCertificate {
    /// The chain of a certificate may wait until others are written.
    credentials: OwnCredentials<Vec<Vec<u8>>>,
    renewal: RenewalWatch,
    /// Ticks since the authorities to trust were looked at.
    authority_ticks: u32,
    /// Whether another authority issues than the one that made the certificate.
    is_replaced: bool,
    /// Whether a controller does not trust the authority that made the certificate.
    is_untrusted: bool,
}

impl WorkerCertificate {
    /// `folder` holds the node record, the certificate and the key.
    pub(super) fn new(credentials: Credentials, folder: PathBuf) -> Self {
        Self {
            credentials: OwnCredentials::new(credentials, folder),
            renewal: RenewalWatch::default(),
            authority_ticks: 0,
            is_replaced: false,
            is_untrusted: false,
        }
    }

    /// A controller refused a connection: it does not trust the authority any more.
    pub(super) fn note_untrusted(&mut self) {
        self.is_untrusted = true;
        self.renewal.check_now();
    }

    /// Follows a change of authority: the agreed state travels with the addresses of members.
    pub(super) fn follow_rotation(&mut self, ports: &mut WorkerPorts) {
        self.authority_ticks += 1;
        if self.authority_ticks < LOOK_TICKS {
            return;
        }
        self.authority_ticks = 0;
        let contacts = ports.session.contacts().clone();
        let Some(rotation) = &contacts.rotation else { return };
        let is_writing = self.credentials.is_writing();
        let change = CredentialsChange::Authorities { is_over: !rotation.is_under_way() };
        let updated =
            updated_credentials(rotation, self.credentials.used()).filter(|_| !is_writing);
        match updated {
            Some(Ok(credentials)) => self.credentials.write(credentials, change, &ports.tasks),
            Some(Err(error)) => ports.journal.warn(change.failure(&error)),
            None => {}
        }
        self.is_replaced =
            rotation.is_issuing() && !is_certified(rotation, self.credentials.used());
        if self.is_replaced {
            self.renewal.check_soon();
        }
        if rotation.is_under_way() {
            let report = report(rotation, self.credentials.used(), false);
            ports.send_to_controllers(&NodeMessage::Authority(report));
        }
    }

    /// Requests a certificate that holds for longer, if two thirds of this one's time are over, or
    /// one by the authority that issues now.
    pub(super) fn renew_if_due(
        &mut self,
        ports: &WorkerPorts,
        roster: &Roster,
        record: &NodeRecord,
    ) {
        let credentials = self.credentials.used();
        let is_replaced = self.is_replaced;
        let is_untrusted = self.is_untrusted && !roster.is_controller_connected();
        let status = || {
            let now = UnixSeconds::now();
            let window = credentials.window();
            CertificateStatus { now, window, is_replaced, is_untrusted }
        };
        match self.renewal.handle_tick(status) {
            RenewalAction::Wait => {}
            RenewalAction::RequestAsJoiner => self.request_by_key(&ports.tasks, record),
            RenewalAction::RequestFromController => self.request(ports, roster),
        }
    }

    fn request(&self, ports: &WorkerPorts, roster: &Roster) {
        let mut controllers = ports.session.controllers().into_iter();
        let Some(controller) = controllers.find(|node| roster.is_up(*node)) else { return };
        let request =
            NodeRequest::Renew { request: self.credentials.used().key().signing_request() };
        let transport = ports.tasks.transport().clone();
        ports.tasks.spawn(async move {
            let answer = transport.request(controller, request.encode()).await;
            WorkerCompletion::Certificate(match answer.map(|bytes| wire::decode(&bytes)) {
                Ok(Ok(NodeAnswer::Renewed { chain, .. })) => Ok(chain),
                Ok(Ok(NodeAnswer::Refused { why })) => Err(why),
                Ok(Ok(
                    NodeAnswer::Collected(_)
                    | NodeAnswer::CollectedWithAsides(_)
                    | NodeAnswer::AuthorityKey(_),
                )) => Err("it answered something else".to_owned()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            })
        });
    }

    /// No controller accepts a connection with a certificate that ended, or that an authority made
    /// which is retired: it was cut off for so long. They have its key.
    fn request_by_key(&self, tasks: &WorkerTasks, record: &NodeRecord) {
        let ended = self.credentials.used().clone();
        let name = record.name.clone();
        let controllers: Vec<_> = record.controllers.values().flatten().copied().collect();
        tasks.spawn(async move {
            match request_renewal(&ended, &name, controllers.into_iter()).await {
                Ok(renewed) => {
                    let chain = renewed.chain().iter().map(|part| part.to_vec());
                    WorkerCompletion::Certificate(Ok(chain.collect()))
                }
                Err(error) if error.is_no_member => WorkerCompletion::NoMember,
                Err(error) => WorkerCompletion::Certificate(Err(error.failure.what)),
            }
        });
    }

    /// A certificate that was requested arrived, or not.
    pub(super) fn handle_certificate(
        &mut self,
        chain: Result<Vec<Vec<u8>>, String>,
        (tasks, journal): (&WorkerTasks, &mut Journal),
    ) {
        let change = CredentialsChange::Renewed;
        let chain = match chain {
            Ok(chain) => self.credentials.admit(chain),
            Err(why) => return journal.warn(change.failure(&why)),
        };
        // It is used once what is being written is.
        let Some(chain) = chain else { return };
        match self.credentials.used().renewed(chain.into_iter().map(Into::into).collect()) {
            Ok(renewed) => self.credentials.write(renewed, change, tasks),
            Err(error) => journal.warn(change.failure(&error)),
        }
    }

    /// Other credentials were written, or could not be.
    pub(super) fn handle_written(
        &mut self,
        written: CredentialsWritten,
        (tasks, journal): (&WorkerTasks, &mut Journal),
    ) {
        let ports = (tasks.transport(), &mut *journal);
        let (used, postponed) = self.credentials.handle_written(written, ports);
        match used {
            Some(CredentialsChange::Renewed) => {
                self.is_untrusted = false;
                journal.log("the certificate is renewed".to_owned());
            }
            Some(CredentialsChange::Authorities { .. }) => {
                journal.log("the authorities that this node trusts have changed".to_owned());
            }
            None => {}
        }
        if let Some(chain) = postponed {
            self.handle_certificate(Ok(chain), (tasks, journal));
        }
    }
}
