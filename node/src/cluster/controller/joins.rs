//! Joiners with tokens: admitted once the use of their token is agreed on.
//!
//! The proof is checked here, where the channel ends; whether the token is good is decided by the
//! log, so that a token for one use admits one node whichever controller leads.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use zbelastic_consensus::access::{
    AccessChange, AccessRefusal, AccessRegistry, AccessRole, TokenId, TokenRecord,
};
use zbelastic_consensus::core::{CommandOutcome, CoreRefusal, OperatorCommand};
use zbelastic_consensus::state::{EntryRefusal, State};
use zbelastic_identity::{
    CertificateLife, ControllerContact, JoinAnswer, JoinAttempt, JoinGrant, JoinRefusal, JoinReply,
    PeerRole, TokenVerifier, UnixSeconds,
};
use zbelastic_types::{Digest, NodeId};

use super::certificates::{ControllerCertificates, peer_role};
use super::ports::ControllerPorts;
use super::status::addresses_of;
use crate::cluster::peer_directory::PeerDirectory;

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

/// Joins that wait for the log, by the digest of the joiner's key.
#[derive(Default)]
pub(super) struct PendingJoins {
    pending: BTreeMap<Digest, PendingJoin>,
    refusals: RefusalLog,
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
    /// Index and term of the entry proposed for it.
    entry: (u64, u64),
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

    /// A joiner, or a member with an expired certificate, requests a certificate.
    pub(super) fn handle_join(
        &mut self,
        (attempt, reply): (JoinAttempt, JoinReply),
        (ports, directory): (&mut ControllerPorts, &PeerDirectory),
        certificates: &ControllerCertificates,
    ) {
        let refusal = if attempt.is_of_member() {
            match renew_for_member(&attempt, (ports, directory), certificates) {
                Ok(grant) => return reply.answer(JoinAnswer::Granted(grant)),
                Err(refusal) => refusal,
            }
        } else {
            match self.propose_join(&attempt, ports, directory) {
                Ok(entry) => {
                    let key = Digest(attempt.key_digest().0);
                    let join = PendingJoin { attempt, reply, entry, ticks: 0 };
                    self.pending.insert(key, join);
                    return;
                }
                Err(refusal) => refusal,
            }
        };
        if let Some(line) = self.refusals.line(&refusal) {
            ports.journal.log(line);
        }
        reply.answer(JoinAnswer::Refused(refusal));
    }

    fn propose_join(
        &self,
        attempt: &JoinAttempt,
        ports: &mut ControllerPorts,
        directory: &PeerDirectory,
    ) -> Result<(u64, u64), JoinRefusal> {
        if !ports.leads() {
            return Err(not_leader(ports, directory));
        }
        if self.pending.len() >= JOINS_MAX {
            return Err(JoinRefusal::NotReady);
        }
        let token = TokenId(attempt.token.0);
        let record = ports.state().access().tokens().get(&token);
        let record = record.ok_or(JoinRefusal::TokenUnknown { token: attempt.token })?;
        attempt.check_proof(&TokenVerifier::from_bytes(record.terms.verifier))?;
        let at_s = UnixSeconds::now().0;
        let change = AccessChange::TokenUsed {
            token,
            key: Digest(attempt.key_digest().0),
            name: attempt.name.as_str().to_owned(),
            role: access_role(attempt.role),
            at_s,
            expires_at_s: at_s + CertificateLife::of(attempt.role).0,
        };
        match ports.propose(OperatorCommand::Access(change)) {
            Ok(CommandOutcome::Proposed { index, term }) => Ok((index, term)),
            Ok(CommandOutcome::Noted) => Err(JoinRefusal::NotReady),
            Err(CoreRefusal::NotLeader { .. }) => Err(not_leader(ports, directory)),
            Err(CoreRefusal::Access(refusal)) => {
                Err(join_refusal(&refusal, attempt, ports.state().access()))
            }
            Err(_) => Err(JoinRefusal::NotReady),
        }
    }

    /// The use of a token was agreed on: the joiner with this key is a member under this node id.
    pub(super) fn admit(
        &mut self,
        (key, node): (Digest, NodeId),
        (ports, directory): (&mut ControllerPorts, &PeerDirectory),
        certificates: &ControllerCertificates,
    ) {
        let Some(PendingJoin { attempt, reply, .. }) = self.pending.remove(&key) else { return };
        let key = (&attempt.key, attempt.role);
        let issued = match certificates.issue(key, node, UnixSeconds::now()) {
            Ok(issued) => issued,
            Err(error) => {
                ports.journal.warn(format!("no certificate for node {node}: {error}"));
                return reply.answer(JoinAnswer::Refused(JoinRefusal::NotReady));
            }
        };
        let is_controller = attempt.role == PeerRole::Controller;
        let authority = is_controller.then(|| certificates.authority().secret());
        let state = ports.state();
        let controllers = controller_contacts(state, directory);
        let grant = JoinGrant::new(state.cluster(), node, &issued, controllers, authority);
        reply.answer(JoinAnswer::Granted(grant));
    }

    /// The entry of a join changed nothing.
    pub(super) fn refuse(
        &mut self,
        entry: (u64, u64),
        refusal: &EntryRefusal,
        access: &AccessRegistry,
    ) {
        let found = self.pending.iter().find(|(_, join)| join.entry == entry);
        let Some(key) = found.map(|(key, _)| *key) else { return };
        let PendingJoin { attempt, reply, .. } = self.pending.remove(&key).expect("found above");
        let refusal = if let EntryRefusal::Access(refusal) = refusal {
            join_refusal(refusal, &attempt, access)
        } else {
            JoinRefusal::NotReady
        };
        reply.answer(JoinAnswer::Refused(refusal));
    }
}

/// Another certificate for a member after its own ended while it was off.
fn renew_for_member(
    attempt: &JoinAttempt,
    (ports, directory): (&mut ControllerPorts, &PeerDirectory),
    certificates: &ControllerCertificates,
) -> Result<JoinGrant, JoinRefusal> {
    if !ports.leads() {
        return Err(not_leader(ports, directory));
    }
    let (peer, issued) = certificates.certify_returning_member(attempt, ports)?;
    let controllers = controller_contacts(ports.state(), directory);
    Ok(JoinGrant::new(peer.cluster, peer.node, &issued, controllers, None))
}

fn not_leader(ports: &ControllerPorts, directory: &PeerDirectory) -> JoinRefusal {
    let leader = ports.core.status().leader.filter(|leader| *leader != ports.me);
    let leader = leader.map_or_else(Vec::new, |node| sockets_of(ports.state(), directory, node));
    JoinRefusal::NotLeader { leader }
}

/// Where a member is reached, as far as names were resolved.
fn sockets_of(state: &State, directory: &PeerDirectory, node: NodeId) -> Vec<SocketAddr> {
    directory.addresses_of(node, &addresses_of(state, node))
}

fn controller_contacts(state: &State, directory: &PeerDirectory) -> Vec<ControllerContact> {
    let contact = |node: NodeId| {
        let addresses = sockets_of(state, directory, node);
        ControllerContact { node, addresses }
    };
    state.controllers().map(contact).collect()
}

/// Why the log does not admit a node, as the joiner is answered.
fn join_refusal(
    refusal: &AccessRefusal,
    attempt: &JoinAttempt,
    access: &AccessRegistry,
) -> JoinRefusal {
    let token = attempt.token;
    let agreed = access.tokens().get(&TokenId(token.0));
    let last = agreed.and_then(|token: &TokenRecord| token.uses.back()).map_or(0, |used| used.at_s);
    match refusal {
        AccessRefusal::UnknownToken { .. } => JoinRefusal::TokenUnknown { token },
        AccessRefusal::TokenExpired { expired_at_s, .. } => {
            JoinRefusal::TokenExpired { token, at: UnixSeconds(*expired_at_s) }
        }
        AccessRefusal::TokenUsedUp { uses_max, .. } => {
            JoinRefusal::TokenSpent { token, uses: (*uses_max).into(), at: UnixSeconds(last) }
        }
        AccessRefusal::TokenRevoked { .. } => JoinRefusal::TokenRevoked { token },
        AccessRefusal::TokenRole { expected, .. } => {
            JoinRefusal::WrongRole { token, expected: peer_role(*expected), found: attempt.role }
        }
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

const fn access_role(role: PeerRole) -> AccessRole {
    match role {
        PeerRole::Admin => AccessRole::Admin,
        PeerRole::Controller => AccessRole::Controller,
        PeerRole::Worker => AccessRole::Worker,
        PeerRole::Viewer => AccessRole::Viewer,
        PeerRole::Operator => AccessRole::Operator,
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
