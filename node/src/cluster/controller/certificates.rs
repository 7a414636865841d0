//! Certificates that a controller issues by its authority: its own, its administrator's, and those
//! of members.

use std::path::PathBuf;
use std::sync::Arc;

use zbelastic_consensus::access::{AccessChange, AccessRole, Credential};
use zbelastic_consensus::core::{Core, OperatorCommand};
use zbelastic_identity::{
    AuthorityFault, CertificateLife, ClusterAuthority, Credentials, IssuedCertificate, JoinAttempt,
    JoinRefusal, PeerIdentity, PeerRole, RequestedKey, UnixSeconds,
};
use zbelastic_policy::renewal::{AdminRenewal, CertificateStatus, RenewalAction, RenewalWatch};
use zbelastic_types::{Digest, NodeId};

use super::ports::{ControllerCompletion, ControllerPorts, ControllerTasks};
use crate::cluster::authority::{CredentialsWritten, OwnCredentials};
use crate::cluster::journal::Journal;
use crate::cluster::renewal::renew_admin_if_due;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_policy::renewal::CredentialsChange;

/// The authority of a controller, its own certificate, and when that is renewed.
pub(super) struct ControllerCertificates {
    me: NodeId,
    folder: NodeDataFolder,
    authority: Arc<ClusterAuthority>,
    /// A renewal may wait until others are written.
    pub(super) credentials: OwnCredentials<()>,
    renewal: RenewalWatch,
    admin: AdminRenewal,
}

impl ControllerCertificates {
    pub(super) fn new(
        (me, folder): (NodeId, NodeDataFolder),
        authority: Arc<ClusterAuthority>,
        credentials: Credentials,
    ) -> Self {
        let credentials = OwnCredentials::new(credentials, folder.identity());
        let (renewal, admin) = Default::default();
        Self { me, folder, authority, credentials, renewal, admin }
    }

    /// The authority that issues here.
    pub(super) fn authority(&self) -> &ClusterAuthority {
        &self.authority
    }

    /// The folder of the authority's key.
    pub(super) fn authority_folder(&self) -> PathBuf {
        self.folder.identity().join("authority")
    }

    /// The certificate of this controller, and the authorities that it trusts.
    pub(super) const fn credentials(&self) -> &Credentials {
        self.credentials.used()
    }

    /// Another authority issues from now on.
    pub(super) fn set_authority(&mut self, authority: Arc<ClusterAuthority>) {
        self.authority = authority;
    }

    /// A controller has the authority, and renews its own certificate long before it ends. One that
    /// failed is not tried at the next tick: it writes to a disk.
    pub(super) fn handle_tick(&mut self, tasks: &ControllerTasks, journal: &mut Journal) {
        if self.admin.handle_tick() {
            self.begin_admin_renewal(tasks);
        }
        let credentials = self.credentials.used();
        let status = || {
            let now = UnixSeconds::now();
            let window = credentials.window();
            CertificateStatus { now, window, is_replaced: false, is_untrusted: false }
        };
        match self.renewal.handle_tick(status) {
            RenewalAction::Wait => {}
            RenewalAction::RequestFromController | RenewalAction::RequestAsJoiner => {
                self.renew_own(tasks, journal);
            }
        }
    }

    /// Another certificate for this controller, by the authority that issues now.
    pub(super) fn renew_own(&mut self, tasks: &ControllerTasks, journal: &mut Journal) {
        if self.credentials.admit(()).is_none() {
            return;
        }
        let key = self.credentials.used().key().requested();
        let issued = self.issue((&key, PeerRole::Controller), self.me, UnixSeconds::now());
        let renewed = issued.map_err(|error| error.to_string()).and_then(|issued| {
            self.credentials.used().renewed(issued.chain).map_err(|error| error.to_string())
        });
        match renewed {
            Ok(renewed) => self.credentials.write(renewed, CredentialsChange::Renewed, tasks),
            Err(why) => journal.warn(CredentialsChange::Renewed.failure(&why)),
        }
    }

    /// Other credentials were written, or could not be: the administrator's follow. Once a change of
    /// authority is over, connections of members are by certificates of the new one, or end with those
    /// of the old one.
    pub(super) fn handle_written(
        &mut self,
        written: CredentialsWritten,
        (tasks, journal): (&ControllerTasks, &mut Journal),
    ) {
        let ports = (tasks.transport(), &mut *journal);
        let (used, postponed) = self.credentials.handle_written(written, ports);
        if used.is_some() {
            self.renew_admin(tasks);
        }
        if used == Some(CredentialsChange::Authorities { is_over: true }) {
            tasks.transport().close_clients();
        }
        if postponed.is_some() {
            self.renew_own(tasks, journal);
        }
    }

    /// Renews the administrator's certificate in this folder if it is due, because authorities changed.
    pub(super) fn renew_admin(&mut self, tasks: &ControllerTasks) {
        if self.admin.request() {
            self.begin_admin_renewal(tasks);
        }
    }

    /// The renewal of the administrator's certificate ended.
    pub(super) fn handle_admin_renewal(
        &mut self,
        result: Result<(), String>,
        tasks: &ControllerTasks,
        journal: &mut Journal,
    ) {
        if self.admin.end(result.is_err()) {
            self.begin_admin_renewal(tasks);
        }
        if let Err(why) = result {
            journal.warn(format!("the administrator's certificate is not renewed: {why}"));
        }
    }

    fn begin_admin_renewal(&self, tasks: &ControllerTasks) {
        let folder = self.folder.clone();
        let authority = Arc::clone(&self.authority);
        let own = self.credentials.used().clone();
        tasks.spawn(async move {
            // A disk is read and synced beside the loop.
            let renew = move || renew_admin_if_due(&folder, &authority, &own);
            let renewed = tokio::task::spawn_blocking(renew).await;
            let result = match renewed {
                Ok(renewed) => renewed.map_err(|failure| failure.what),
                Err(error) => Err(error.to_string()),
            };
            Some(ControllerCompletion::AdminRenewal(result))
        });
    }

    /// A certificate for this key and role, under a node id.
    pub(super) fn issue(
        &self,
        (key, role): (&RequestedKey, PeerRole),
        node: NodeId,
        now: UnixSeconds,
    ) -> Result<IssuedCertificate, AuthorityFault> {
        self.authority.issue(key, role, node, now)
    }

    /// Another certificate for a member that shows one that is good: for the key that the log
    /// records a member by. An administrator's certificate is in no log, and a valid one is
    /// renewed.
    pub(super) fn renew_chain(
        &self,
        from: PeerIdentity,
        request: &[u8],
        core: &mut Core,
    ) -> Result<Vec<Vec<u8>>, String> {
        let key = RequestedKey::from_request(request).map_err(|error| error.to_string())?;
        match from.role {
            PeerRole::Admin => {}
            PeerRole::Operator | PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => {
                let digest = Digest(key.digest().0);
                let credential = core.state().access().credential(from.node);
                let credential = credential.filter(|credential| credential.key == digest);
                let credential = credential.ok_or("it has no credential for this key")?;
                if peer_role(credential.role) != from.role {
                    return Err(format!("it was admitted as {}", credential.role));
                }
            }
        }
        let issued = self.certify(from, &key, core)?;
        Ok(issued.chain.iter().map(|part| part.to_vec()).collect())
    }

    /// Another certificate for a worker after its own ended while it was off: its key identifies
    /// it.
    pub(super) fn certify_returning_member(
        &self,
        attempt: &JoinAttempt,
        ports: &mut ControllerPorts,
    ) -> Result<(PeerIdentity, IssuedCertificate), JoinRefusal> {
        let digest = Digest(attempt.key_digest().0);
        // Controllers have the authority, and command lines log in again.
        let is_its = |credential: &Credential| {
            credential.key == digest
                && credential.role == AccessRole::Worker
                && !credential.is_revoked
        };
        // Of several that a key was given, as when an answer was lost, the last is the one in its
        // folder.
        let mut credentials = ports.state().access().credentials().iter().rev();
        let node = credentials.find(|(_, credential)| is_its(credential));
        let node =
            *node.filter(|_| attempt.role == PeerRole::Worker).ok_or(JoinRefusal::NoMember)?.0;
        let cluster = ports.state().cluster();
        let peer = PeerIdentity { cluster, role: attempt.role, node };
        match self.certify(peer, &attempt.key, &mut ports.core) {
            Ok(issued) => {
                ports.journal.log(format!("node {node} is back: its certificate had ended"));
                Ok((peer, issued))
            }
            Err(why) => {
                ports.journal.warn(format!("no certificate for node {node}: {why}"));
                Err(JoinRefusal::NotReady)
            }
        }
    }

    fn certify(
        &self,
        peer: PeerIdentity,
        key: &RequestedKey,
        core: &mut Core,
    ) -> Result<IssuedCertificate, String> {
        let now = UnixSeconds::now();
        let rotation = core.state().access().rotation();
        // A certificate by the one before would have to be renewed again.
        let is_behind = rotation.is_some_and(|rotation| {
            rotation.is_issuing() && rotation.succession.key.0 != self.authority.pin().0
        });
        if is_behind {
            return Err("the authority that issues now was not received yet".to_owned());
        }
        let issued = self.issue((key, peer.role), peer.node, now);
        let issued = issued.map_err(|error| error.to_string())?;
        let at_s = now.0;
        let expires_at_s = now.0 + CertificateLife::of(peer.role).0;
        let key = Digest(key.digest().0);
        // That it holds for longer is noted if this node leads; it is in the certificate in any
        // case.
        let change = AccessChange::Renewed { node: peer.node, key, at_s, expires_at_s };
        let _ = core.execute_command(OperatorCommand::Access(change));
        Ok(issued)
    }
}

/// A role that the cluster admitted, as certificates name it.
pub(super) const fn peer_role(role: AccessRole) -> PeerRole {
    match role {
        AccessRole::Admin => PeerRole::Admin,
        AccessRole::Controller => PeerRole::Controller,
        AccessRole::Worker => PeerRole::Worker,
        AccessRole::Viewer => PeerRole::Viewer,
        AccessRole::Operator => PeerRole::Operator,
    }
}
