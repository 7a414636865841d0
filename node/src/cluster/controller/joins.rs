//! Joiners with tokens: admitted once the use of their token is agreed on.
//!
//! The proof is checked here, where the channel ends; whether the token is good is decided by the
//! log, so that a token for one use admits one node whichever controller leads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use zbelastic_api::EventKind;
use zbelastic_consensus::access::{
    AccessChange, AccessOutcome, AccessRefusal, AccessRole, Credential, TokenId,
};
use zbelastic_consensus::core::{CommandOutcome, CoreRefusal, OperatorCommand};
use zbelastic_consensus::state::EntryRefusal;
use zbelastic_identity::{
    CertificateLife, ControllerContact, Credentials, IssuedCertificate, JoinAnswer, JoinAttempt,
    JoinGrant, JoinRefusal, JoinReply, PeerIdentity, PeerRole, RequestedKey, TokenVerifier,
    UnixSeconds,
};
use zbelastic_policy::renewal::{CertificateStatus, RenewalAction, RenewalWatch};
use zbelastic_transport::RequestReply;
use zbelastic_types::{Digest, NodeId};

use super::answers::token_role;
use super::{ControllerCompletion, ControllerNode};
use crate::cluster::journal::now_s;
use crate::cluster::renewal::renew_admin_if_due;
use crate::cluster::wire::{self, NodeAnswer, NodeRequest};

/// Joins that wait for the log at once: as many as the transport lets wait for a decision.
const JOINS_MAX: usize = 1024;
/// Refusals written to the journal before they are counted instead.
const REFUSALS_LOGGED_MAX: u32 = 16;
/// Ticks until one more refusal may be written: strangers do not fill the disk.
const REFUSAL_TICKS: u32 = 100;
/// Ticks until a joiner is answered that nothing can be decided: many elections and commits. A
/// joiner that sends the request again with the same key is answered from the log if that decided
/// meanwhile.
const JOIN_TICKS_MAX: u32 = 1000;
/// Ticks between two checks of the administrator's certificate, which is renewed days before it
/// ends: an hour.
const ADMIN_LOOK_TICKS: u32 = 360_000;

/// Joins that wait for the log, by the digest of the joiner's key.
#[derive(Default)]
pub(super) struct PendingJoins {
    pending: BTreeMap<Digest, PendingJoin>,
    refusals: RefusalLog,
    /// Ticks since the administrator's certificate was checked.
    admin_ticks: u32,
    renewal: RenewalWatch,
}

/// Which refusals are written to the journal.
#[derive(Default)]
struct RefusalLog {
    /// Lines written lately; one less each [`REFUSAL_TICKS`].
    written: u32,
    ticks: u32,
    /// Refusals since the last line, that have none.
    unwritten: u64,
}

impl RefusalLog {
    fn handle_tick(&mut self) {
        self.ticks += 1;
        if self.ticks == REFUSAL_TICKS {
            self.ticks = 0;
            self.written = self.written.saturating_sub(1);
        }
    }

    /// The line to be written for a refusal, if there may be one.
    fn line(&mut self, refusal: &JoinRefusal) -> Option<String> {
        if self.written == REFUSALS_LOGGED_MAX {
            self.unwritten += 1;
            return None;
        }
        self.written += 1;
        let others = match std::mem::take(&mut self.unwritten) {
            0 => String::new(),
            others => format!(", nor were {others} others before"),
        };
        Some(format!("join refused: {refusal}{others}"))
    }
}

struct PendingJoin {
    attempt: JoinAttempt,
    reply: JoinReply,
    index: u64,
    ticks: u32,
}

impl PendingJoins {
    /// Time passes: a joiner that waited too long is refused.
    pub(super) fn handle_tick(&mut self) {
        self.refusals.handle_tick();
        self.pending.values_mut().for_each(|join| join.ticks += 1);
        let is_late = |(_, join): &(&Digest, &PendingJoin)| join.ticks > JOIN_TICKS_MAX;
        while let Some(key) = self.pending.iter().find(is_late).map(|(key, _)| *key) {
            let join = self.pending.remove(&key).expect("found above");
            join.reply.answer(JoinAnswer::Refused(JoinRefusal::NotReady));
        }
    }
}

impl ControllerNode {
    pub(super) fn handle_join(&mut self, attempt: JoinAttempt, reply: JoinReply) {
        if let Err(refusal) = self.begin_join(attempt, reply) {
            let (refusal, reply) = *refusal;
            if let Some(line) = self.pending_joins.refusals.line(&refusal) {
                self.journal.log(line);
            }
            reply.answer(JoinAnswer::Refused(refusal));
        }
    }

    fn begin_join(
        &mut self,
        attempt: JoinAttempt,
        reply: JoinReply,
    ) -> Result<(), Box<(JoinRefusal, JoinReply)>> {
        if attempt.is_of_member() {
            return match self.renew_for_member(&attempt) {
                Ok(grant) => {
                    reply.answer(JoinAnswer::Granted(grant));
                    Ok(())
                }
                Err(refusal) => Err(Box::new((refusal, reply))),
            };
        }
        match self.propose_join(&attempt) {
            Ok(index) => {
                let key = Digest(attempt.key_digest().0);
                let join = PendingJoin { attempt, reply, index, ticks: 0 };
                self.pending_joins.pending.insert(key, join);
                Ok(())
            }
            Err(refusal) => Err(Box::new((refusal, reply))),
        }
    }

    fn propose_join(&mut self, attempt: &JoinAttempt) -> Result<u64, JoinRefusal> {
        if !self.leads() {
            return Err(self.not_leader());
        }
        if self.pending_joins.pending.len() >= JOINS_MAX {
            return Err(JoinRefusal::NotReady);
        }
        let token = TokenId(attempt.token.0);
        let record = self.core.state().access().tokens().get(&token);
        let record = record.ok_or(JoinRefusal::TokenUnknown { token: attempt.token })?;
        attempt.check_proof(&TokenVerifier::from_bytes(record.terms.verifier))?;
        let at_s = now_s();
        let change = AccessChange::TokenUsed {
            token,
            key: Digest(attempt.key_digest().0),
            name: attempt.name.as_str().to_owned(),
            role: access_role(attempt.role),
            at_s,
            expires_at_s: at_s + CertificateLife::of(attempt.role).0,
        };
        match self.core.execute_command(OperatorCommand::Access(change)) {
            Ok(CommandOutcome::Proposed { index, .. }) => Ok(index),
            Ok(CommandOutcome::Noted) => Err(JoinRefusal::NotReady),
            Err(CoreRefusal::NotLeader { .. }) => Err(self.not_leader()),
            Err(CoreRefusal::Access(refusal)) => Err(self.join_refusal(&refusal, attempt)),
            Err(_) => Err(JoinRefusal::NotReady),
        }
    }

    fn not_leader(&self) -> JoinRefusal {
        let leader = self.core.status().leader.filter(|leader| *leader != self.setup.node);
        let leader = leader.map_or_else(Vec::new, |node| self.addresses_of_member(node));
        JoinRefusal::NotLeader { leader }
    }

    /// Why the log does not admit a node, as the joiner is answered.
    fn join_refusal(&self, refusal: &AccessRefusal, attempt: &JoinAttempt) -> JoinRefusal {
        let token = attempt.token;
        let agreed = self.core.state().access().tokens().get(&TokenId(token.0));
        let last = agreed.and_then(|token| token.uses.back()).map_or(0, |used| used.at_s);
        match refusal {
            AccessRefusal::UnknownToken { .. } => JoinRefusal::TokenUnknown { token },
            AccessRefusal::TokenExpired { expired_at_s, .. } => {
                JoinRefusal::TokenExpired { token, at: UnixSeconds(*expired_at_s) }
            }
            AccessRefusal::TokenUsedUp { uses_max, .. } => {
                JoinRefusal::TokenSpent { token, uses: (*uses_max).into(), at: UnixSeconds(last) }
            }
            AccessRefusal::TokenRevoked { .. } => JoinRefusal::TokenRevoked { token },
            AccessRefusal::TokenRole { expected, .. } => JoinRefusal::WrongRole {
                token,
                expected: peer_role(*expected),
                found: attempt.role,
            },
            AccessRefusal::TokenKnown { .. }
            | AccessRefusal::Uses { .. }
            | AccessRefusal::Note { .. }
            | AccessRefusal::TooManyTokens
            | AccessRefusal::Name(_)
            | AccessRefusal::Term { .. }
            | AccessRefusal::TooManyCredentials
            | AccessRefusal::NoCredential { .. }
            | AccessRefusal::Revoked { .. }
            | AccessRefusal::LastController { .. }
            | AccessRefusal::NotForgotten { .. }
            | AccessRefusal::CertificateSize { .. }
            | AccessRefusal::OtherAuthority { .. }
            | AccessRefusal::RotationPhase { .. } => JoinRefusal::NotReady,
        }
    }

    /// The tokens or credentials that the cluster agreed on changed.
    pub(super) fn note_access(&mut self, outcome: &AccessOutcome) {
        match outcome {
            AccessOutcome::LetIn { key, node, .. } => self.admit(*key, *node),
            AccessOutcome::TokenMade { token } => {
                let terms = self.core.state().access().tokens().get(token).map(|t| t.terms.role);
                if let Some(role) = terms.map(token_role) {
                    self.journal.record(EventKind::TokenCreated { id: token.to_string(), role });
                }
            }
            AccessOutcome::TokenRevoked { token } => {
                self.journal.record(EventKind::TokenRevoked { id: token.to_string() });
            }
            AccessOutcome::Revoked { node } | AccessOutcome::Forgotten { node } => {
                self.transport.ban(*node);
            }
            AccessOutcome::Authority { phase, revoked } => self.note_rotation(*phase, revoked),
            AccessOutcome::Renewed { .. } => {}
        }
    }

    fn admit(&mut self, key: Digest, node: NodeId) {
        let Some(PendingJoin { attempt, reply, .. }) = self.pending_joins.pending.remove(&key)
        else {
            return;
        };
        let now = UnixSeconds::now();
        let issued = match self.authority.issue(&attempt.key, attempt.role, node, now) {
            Ok(issued) => issued,
            Err(error) => {
                self.journal.warn(format!("no certificate for node {node}: {error}"));
                return reply.answer(JoinAnswer::Refused(JoinRefusal::NotReady));
            }
        };
        let authority = (attempt.role == PeerRole::Controller).then(|| self.authority.secret());
        let cluster = self.core.state().cluster();
        let controllers = self.controller_contacts();
        let grant = JoinGrant::new(cluster, node, &issued, controllers, authority);
        reply.answer(JoinAnswer::Granted(grant));
    }

    /// A controller has the authority, and renews its own certificate long before it ends. One that
    /// failed is not tried at the next tick: it writes to a disk.
    pub(super) fn renew_own_if_due(&mut self) {
        self.pending_joins.admin_ticks += 1;
        if self.pending_joins.admin_ticks == ADMIN_LOOK_TICKS {
            self.pending_joins.admin_ticks = 0;
            self.renew_admin_when_due();
        }
        let credentials = &self.setup.credentials;
        let status = || {
            let now = UnixSeconds::now();
            let window = credentials.window();
            CertificateStatus { now, window, is_replaced: false, is_untrusted: false }
        };
        match self.pending_joins.renewal.handle_tick(status) {
            RenewalAction::Wait => {}
            RenewalAction::RequestFromController | RenewalAction::RequestAsJoiner => {
                self.renew_own()
            }
        }
    }

    /// Another certificate for this controller, by the authority that issues now.
    pub(super) fn renew_own(&mut self) {
        let credentials = &self.setup.credentials;
        let now = UnixSeconds::now();
        let key = credentials.key().requested();
        let issued = self.authority.issue(&key, PeerRole::Controller, self.setup.node, now);
        let renewed = issued.map_err(|error| error.to_string()).and_then(|issued| {
            credentials.renewed(issued.chain).map_err(|error| error.to_string())
        });
        if let Err(why) = renewed.and_then(|renewed| self.use_credentials(renewed)) {
            self.journal.warn(format!("the certificate is not renewed: {why}"));
        }
    }

    /// Uses other credentials from now on, and after the next start.
    pub(super) fn use_credentials(&mut self, credentials: Credentials) -> Result<(), String> {
        credentials
            .save(&self.setup.store_locations.folder().identity())
            .map_err(|error| error.to_string())?;
        self.transport.set_credentials(credentials.clone()).map_err(|error| error.to_string())?;
        self.setup.credentials = credentials;
        Ok(())
    }

    /// Renews the administrator's certificate in this folder if it is due, however long the
    /// controller runs.
    pub(super) fn renew_admin_when_due(&self) {
        let locations = self.setup.store_locations.clone();
        let authority = Arc::clone(&self.authority);
        let completions = self.completions.clone();
        let own = self.setup.credentials.clone();
        tokio::spawn(async move {
            // A disk is read and synced beside the loop.
            let renew = move || renew_admin_if_due(locations.folder(), &authority, &own);
            let renewed = tokio::task::spawn_blocking(renew).await;
            if let Ok(Err(failure)) = renewed {
                let _ = completions.send(ControllerCompletion::AdminNotRenewed(failure.what)).await;
            }
        });
    }

    /// A member sent a request.
    pub(super) fn answer_node(
        &mut self,
        from: PeerIdentity,
        request: NodeRequest,
        reply: RequestReply,
    ) {
        let request = match request {
            NodeRequest::Renew { request } => request,
            NodeRequest::Collect(referred) => return self.answer_collect(from, referred, reply),
            NodeRequest::AuthorityKey { key } => {
                return self.answer_authority_key(from, key, reply);
            }
        };
        let answer = match self.renewed_chain(from, &request) {
            Ok(chain) => {
                let roots = self.setup.credentials.roots().iter().map(|part| part.to_vec());
                NodeAnswer::Renewed { chain, roots: roots.collect() }
            }
            Err(why) => {
                self.journal.log(format!("node {}'s certificate is not renewed: {why}", from.node));
                NodeAnswer::Refused { why }
            }
        };
        reply.answer(wire::encode(&answer));
    }

    /// Another certificate for a member that shows one that is good: for the key that the log
    /// records a member by. An administrator's certificate is in no log, and a valid one is
    /// renewed.
    fn renewed_chain(
        &mut self,
        from: PeerIdentity,
        request: &[u8],
    ) -> Result<Vec<Vec<u8>>, String> {
        let key = RequestedKey::from_request(request).map_err(|error| error.to_string())?;
        match from.role {
            PeerRole::Admin => {}
            PeerRole::Operator | PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => {
                let digest = Digest(key.digest().0);
                let credential = self.core.state().access().credential(from.node);
                let credential = credential.filter(|credential| credential.key == digest);
                let credential = credential.ok_or("it has no credential for this key")?;
                if peer_role(credential.role) != from.role {
                    return Err(format!("it was admitted as {}", credential.role));
                }
            }
        }
        let issued = self.certify(from, &key)?;
        Ok(issued.chain.iter().map(|part| part.to_vec()).collect())
    }

    /// Another certificate for a member whose own ended while it was off: the key identifies it.
    fn renew_for_member(&mut self, attempt: &JoinAttempt) -> Result<JoinGrant, JoinRefusal> {
        if !self.leads() {
            return Err(self.not_leader());
        }
        let state = self.core.state();
        let digest = Digest(attempt.key_digest().0);
        // Controllers have the authority, and command lines log in again.
        let is_its = |credential: &Credential| {
            credential.key == digest
                && credential.role == AccessRole::Worker
                && !credential.is_revoked
        };
        // Of several that a key was given, as when an answer was lost, the last is the one in its
        // folder.
        let node =
            state.access().credentials().iter().rev().find(|(_, credential)| is_its(credential));
        let node =
            *node.filter(|_| attempt.role == PeerRole::Worker).ok_or(JoinRefusal::NoMember)?.0;
        let peer = PeerIdentity { cluster: state.cluster(), role: attempt.role, node };
        let issued = self.certify(peer, &attempt.key).map_err(|why| {
            self.journal.warn(format!("no certificate for node {node}: {why}"));
            JoinRefusal::NotReady
        })?;
        self.journal.log(format!("node {node} is back: its certificate had ended"));
        Ok(JoinGrant::new(peer.cluster, node, &issued, self.controller_contacts(), None))
    }

    fn certify(
        &mut self,
        peer: PeerIdentity,
        key: &RequestedKey,
    ) -> Result<IssuedCertificate, String> {
        let now = UnixSeconds::now();
        let rotation = self.core.state().access().rotation();
        // A certificate by the one before would have to be renewed again.
        let is_behind = rotation.is_some_and(|rotation| {
            rotation.is_issuing() && rotation.succession.key.0 != self.authority.pin().0
        });
        if is_behind {
            return Err("the authority that issues now was not received yet".to_owned());
        }
        let issued = self.authority.issue(key, peer.role, peer.node, now);
        let issued = issued.map_err(|error| error.to_string())?;
        let at_s = now.0;
        let expires_at_s = now.0 + CertificateLife::of(peer.role).0;
        let key = Digest(key.digest().0);
        // That it holds for longer is noted if this node leads; it is in the certificate in any
        // case.
        let change = AccessChange::Renewed { node: peer.node, key, at_s, expires_at_s };
        let _ = self.core.execute_command(OperatorCommand::Access(change));
        Ok(issued)
    }

    fn addresses_of_member(&self, node: NodeId) -> Vec<SocketAddr> {
        self.peers.addresses_of(node, &self.addresses_of(node))
    }

    fn controller_contacts(&self) -> Vec<ControllerContact> {
        let controllers = self.core.state().controllers();
        let contact =
            |node: NodeId| ControllerContact { node, addresses: self.addresses_of_member(node) };
        controllers.map(contact).collect()
    }

    /// The entry of a join changed nothing.
    pub(super) fn refuse_join(&mut self, index: u64, refusal: &EntryRefusal) {
        let found = self.pending_joins.pending.iter().find(|(_, join)| join.index == index);
        let Some(key) = found.map(|(key, _)| *key) else { return };
        let PendingJoin { attempt, reply, .. } =
            self.pending_joins.pending.remove(&key).expect("found above");
        let refusal = if let EntryRefusal::Access(refusal) = refusal {
            self.join_refusal(refusal, &attempt)
        } else {
            JoinRefusal::NotReady
        };
        reply.answer(JoinAnswer::Refused(refusal));
    }
}

const fn access_role(role: PeerRole) -> AccessRole {
    match role {
        PeerRole::Admin => AccessRole::Admin,
        PeerRole::Controller => AccessRole::Controller,
        PeerRole::Worker => AccessRole::Worker,
        PeerRole::Viewer => AccessRole::Viewer,
        PeerRole::Operator => AccessRole::Operator,
    }
}

const fn peer_role(role: AccessRole) -> PeerRole {
    match role {
        AccessRole::Admin => PeerRole::Admin,
        AccessRole::Controller => PeerRole::Controller,
        AccessRole::Worker => PeerRole::Worker,
        AccessRole::Viewer => PeerRole::Viewer,
        AccessRole::Operator => PeerRole::Operator,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_identity::JoinRefusal;

    use super::{REFUSAL_TICKS, REFUSALS_LOGGED_MAX, RefusalLog};

    #[test]
    fn a_flood_of_refusals_is_counted_instead_of_written() {
        let mut log = RefusalLog::default();
        for _ in 0..REFUSALS_LOGGED_MAX {
            assert!(log.line(&JoinRefusal::NotReady).is_some());
        }
        for _ in 0..5000 {
            assert_eq!(log.line(&JoinRefusal::NotReady), None);
        }
        (0..REFUSAL_TICKS).for_each(|_| log.handle_tick());
        let line = log.line(&JoinRefusal::NotReady).unwrap();
        assert!(line.ends_with("nor were 5000 others before"), "{line}");
        assert_eq!(log.line(&JoinRefusal::NotReady), None);
    }
}
