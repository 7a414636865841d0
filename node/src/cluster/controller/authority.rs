//! `cluster rotate-ca`: another authority takes the place of the one that issues, while the cluster
//! runs.
//!
//! What is next is decided by the state that is agreed on and by what members report; here it is
//! carried out: keys are made and fetched, certificates issued, and folders written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use zbelastic_consensus::access::{
    AccessChange, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession, TokenId,
};
use zbelastic_consensus::core::OperatorCommand;
use zbelastic_consensus::member::Role;
use zbelastic_transport::RequestReply;
use zbelastic_transport::identity::{
    AuthoritySecret, CertificateLife, ClusterAuthority, PeerIdentity, PeerRole, UnixSeconds,
};
use zbelastic_types::{Digest, NodeId};

use super::{ControllerCompletion, ControllerNode};
use crate::api::{
    ApiAnswer, ApiRefusal, ChangeSummary, ClusterInfo, EventKind, RotationProgress, RotationStatus,
};
use crate::cluster::authority::{LOOK_TICKS, is_certified, report, updated_credentials};
use crate::cluster::checkpoint_thread::hex;
use crate::cluster::journal::now_s;
use crate::cluster::wire::{self, NodeAnswer, NodeMessage, NodeRequest};

/// What a controller knows of a change of authority beside what is agreed on.
#[derive(Default)]
pub(super) struct LocalRotationState {
    /// The authority that follows, once its key is here and until it issues.
    next: Option<Arc<ClusterAuthority>>,
    /// The last report of each member.
    reports: BTreeMap<NodeId, AuthorityReport>,
    /// Ticks since the rotation was last checked.
    ticks: u32,
    /// Whether a request for the key to another controller is under way.
    is_key_requested: bool,
}

impl ControllerNode {
    /// Follows a change of authority, and takes it further if this node leads.
    pub(super) fn follow_rotation(&mut self) {
        self.rotation_state.ticks += 1;
        if self.rotation_state.ticks < LOOK_TICKS {
            return;
        }
        self.rotation_state.ticks = 0;
        let Some(rotation) = self.core.state().access().rotation().cloned() else { return };
        self.find_key(&rotation);
        self.follow_authorities(&rotation);
        if rotation.is_issuing() {
            self.issue_by_next(&rotation);
        }
        if rotation.is_under_way() {
            self.report_authority(&rotation);
            self.advance_rotation(&rotation);
        }
    }

    fn authority_folder(&self) -> PathBuf {
        self.setup.store_locations.folder().identity().join("authority")
    }

    /// The authority with this key, if it is here.
    fn authority_of(&self, key: Digest) -> Option<&ClusterAuthority> {
        let held = [Some(&self.authority), self.rotation_state.next.as_ref()].into_iter().flatten();
        held.map(|authority| &**authority).find(|authority| authority.pin().0 == key.0)
    }

    /// The key of the authority that follows is on this disk, or with another controller.
    fn find_key(&mut self, rotation: &Rotation) {
        let Succession { key, old, .. } = &rotation.succession;
        let is_next = |authority: &ClusterAuthority| authority.pin().0 == key.0;
        if is_next(&self.authority) {
            return self.find_bridge_certificate(rotation);
        }
        let is_here = self.rotation_state.next.as_deref().is_some_and(is_next);
        // The log is read from an earlier change of authority on.
        if is_here || **self.authority.certificate() != **old {
            return;
        }
        let loaded = ClusterAuthority::load_next(&self.authority_folder(), None);
        self.rotation_state.next = loaded.ok().filter(is_next).map(Arc::new);
        if self.rotation_state.next.is_none() {
            self.request_key(*key);
        }
    }

    /// A controller that joined with the new authority received nothing of the old one.
    fn find_bridge_certificate(&mut self, rotation: &Rotation) {
        if !self.authority.bridge().is_empty() {
            return;
        }
        let authority = bridged((*self.authority).clone(), rotation);
        if let Err(error) = authority.save(&self.authority_folder()) {
            return self.journal.warn(format!("the authority is not written: {error}"));
        }
        self.authority = Arc::new(authority);
        self.renew_own();
    }

    fn request_key(&mut self, key: Digest) {
        let me = self.setup.node;
        let others = self.core.state().controllers().filter(|node| *node != me);
        let holds_key = |node: &NodeId| {
            let report = self.rotation_state.reports.get(node);
            report.is_some_and(|report| report.key == key && report.has_key)
        };
        let found = others.filter(|node| self.peers.roster().is_up(*node)).find(holds_key);
        let Some(other) = found.filter(|_| !self.rotation_state.is_key_requested) else { return };
        self.rotation_state.is_key_requested = true;
        let transport = self.transport.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let request = NodeRequest::AuthorityKey { key };
            let answer = transport.request(other, request.encode()).await;
            let secret = match answer.map(|bytes| wire::decode(&bytes)) {
                Ok(Ok(NodeAnswer::AuthorityKey(secret))) => Ok(secret),
                Ok(Ok(NodeAnswer::Refused { why })) => Err(why),
                Ok(Ok(NodeAnswer::Renewed { .. } | NodeAnswer::Collected(_))) => {
                    Err("it answered something else".to_owned())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let _ = completions.send(ControllerCompletion::AuthorityKey(secret)).await;
        });
    }

    pub(super) fn handle_authority_key(&mut self, secret: Result<AuthoritySecret, String>) {
        self.rotation_state.is_key_requested = false;
        let Some(rotation) = self.core.state().access().rotation().cloned() else { return };
        let key = secret.and_then(|secret| {
            let next = ClusterAuthority::from_secret(&secret).map_err(|error| error.to_string())?;
            if next.pin().0 != rotation.succession.key.0 {
                return Err("it is of another authority than the one announced".to_owned());
            }
            let next = bridged(next, &rotation);
            next.save_next(&self.authority_folder()).map_err(|error| error.to_string())?;
            Ok(next)
        });
        match key {
            Ok(next) => {
                self.rotation_state.next = Some(Arc::new(next));
                self.rotation_state.ticks = LOOK_TICKS;
            }
            Err(why) => {
                self.journal.log(format!("the new authority's key was not received: {why}"))
            }
        }
    }

    /// Another controller requests the key of the authority that follows. It is sent to controllers
    /// only.
    pub(super) fn answer_authority_key(
        &self,
        from: PeerIdentity,
        key: Digest,
        reply: RequestReply,
    ) {
        let refuse = |why: &str| NodeAnswer::Refused { why: why.to_owned() };
        let access = self.core.state().access();
        let is_controller = access.authorizes(from.node, Role::Controller);
        let answer = match self.authority_of(key) {
            Some(authority) if from.role == PeerRole::Controller && is_controller => {
                NodeAnswer::AuthorityKey(authority.secret())
            }
            Some(_) => refuse("controllers alone have an authority's key"),
            None => refuse("it is not here"),
        };
        reply.answer(wire::encode(&answer));
    }

    /// The authority that follows issues from now on here, for this controller first.
    fn issue_by_next(&mut self, rotation: &Rotation) {
        // One that is made for the next change is not agreed on yet.
        let key = rotation.succession.key.0;
        if let Some(next) = self.rotation_state.next.take_if(|next| next.pin().0 == key) {
            if let Err(error) = ClusterAuthority::succeed(&self.authority_folder()) {
                self.journal.warn(format!("the new authority is not used: {error}"));
                self.rotation_state.next = Some(next);
                return;
            }
            self.authority = next;
        }
        let is_here = self.authority.pin().0 == key;
        if is_here && !is_certified(rotation, &self.setup.credentials) {
            self.renew_own();
            self.renew_admin_when_due();
        }
    }

    fn follow_authorities(&mut self, rotation: &Rotation) {
        let Some(followed) = updated_credentials(rotation, &self.setup.credentials) else { return };
        let followed = followed.map_err(|error| error.to_string());
        match followed.and_then(|credentials| self.use_credentials(credentials)) {
            Ok(()) => self.renew_admin_when_due(),
            Err(why) => {
                return self.journal.warn(format!("another authority is not trusted: {why}"));
            }
        }
        if !rotation.is_under_way() {
            // Connections of members are by certificates of the new one, or end with those of the
            // old one.
            self.transport.close_clients();
        }
    }

    fn report_authority(&mut self, rotation: &Rotation) {
        let key = rotation.succession.key;
        let has_key = self.authority_of(key).is_some();
        let report = report(rotation, &self.setup.credentials, has_key);
        let me = self.setup.node;
        self.note_authority(me, report);
        for node in self.core.state().controllers().filter(|node| *node != me) {
            self.send_node(node, &NodeMessage::Authority(report));
        }
    }

    /// A member reports how far it is. Reports of others are dropped.
    pub(super) fn note_authority(&mut self, from: NodeId, report: AuthorityReport) {
        let state = self.core.state();
        let members = state.members();
        let reports = &mut self.rotation_state.reports;
        if members.contains_key(&from) {
            reports.insert(from, report);
        }
        if reports.len() > members.len() {
            reports.retain(|node, _| members.contains_key(node));
        }
    }

    fn advance_rotation(&mut self, rotation: &Rotation) {
        if !self.leads() {
            return;
        }
        let key = rotation.succession.key;
        let change = match self
            .core
            .state()
            .membership()
            .rotation_step(&self.rotation_state.reports, now_s())
        {
            RotationStep::Nothing | RotationStep::Wait { .. } => return,
            RotationStep::Issue => {
                // As long as any client certificate that the old authority made may be valid.
                let until_s = now_s() + CertificateLife::of(PeerRole::Admin).0;
                AuthorityChange::Issues { key, until_s }
            }
            RotationStep::Retire => AuthorityChange::Retired { key },
            RotationStep::AnnounceAnew => match self.announcement(rotation.is_forced) {
                Ok(change) => change,
                Err(why) => return self.journal.warn(format!("no authority is announced: {why}")),
            },
        };
        // One that is not taken is found again at the next look, by the leader at that time.
        let _ = self.core.execute_command(OperatorCommand::Access(AccessChange::Authority(change)));
    }

    /// Makes another authority. Its key is on this disk before it is announced.
    fn announcement(&mut self, is_forced: bool) -> Result<AuthorityChange, String> {
        let now = UnixSeconds::now();
        let next = self.authority.successor(now).map_err(|error| error.to_string())?;
        next.save_next(&self.authority_folder()).map_err(|error| error.to_string())?;
        let [bridge, old] = next.bridge() else {
            return Err("it names no authority before it".to_owned());
        };
        let succession = Succession {
            key: Digest(next.pin().0),
            certificate: next.certificate().to_vec(),
            bridge: bridge.to_vec(),
            old: old.to_vec(),
        };
        self.rotation_state.next = Some(Arc::new(next));
        Ok(AuthorityChange::Announced { succession: Box::new(succession), is_forced })
    }

    /// `cluster rotate-ca`. Requested again, it answers how far the change is.
    pub(super) fn rotate_authority(&mut self, force: bool, reply: RequestReply) {
        if !self.leads() {
            let answer = self.redirect();
            return self.reply(reply, &answer);
        }
        let under_way = self.core.state().access().rotation().filter(|last| last.is_under_way());
        let change = match under_way {
            Some(last) if force && !last.is_forced => {
                Ok(AuthorityChange::Forced { key: last.succession.key })
            }
            Some(_) => {
                let answer = self.rotation_answer();
                return self.reply(reply, &answer);
            }
            None => self.announcement(force),
        };
        match change {
            Ok(change) => {
                let command = OperatorCommand::Access(AccessChange::Authority(change));
                self.propose_command(
                    command,
                    reply,
                    Box::new(|controller| controller.rotation_answer()),
                );
            }
            Err(what) => self.reply(reply, &ApiAnswer::Refused(ApiRefusal::Internal { what })),
        }
    }

    /// The change of authority is further.
    pub(super) fn note_rotation(&mut self, phase: RotationPhase, revoked: &[TokenId]) {
        self.rotation_state.ticks = LOOK_TICKS;
        self.journal.log(format!("the change of authority is {phase}"));
        for token in revoked {
            self.journal.record(EventKind::TokenRevoked { id: token.to_string() });
        }
    }

    fn rotation_answer(&self) -> ApiAnswer {
        let Some(rotation) = self.core.state().access().rotation() else {
            let what = "no change of authority".to_owned();
            return ApiAnswer::Refused(ApiRefusal::Internal { what });
        };
        let key = rotation.succession.key;
        let phase = rotation.phase;
        let tokens = self.core.state().access().tokens_beside(key).count();
        let what = format!(
            "authority {key} is {phase}; `zbelastic cluster info` shows which members it waits for\n\
             {tokens} tokens name the authority before and are revoked when it is retired: make others with \
             `zbelastic token create` once the new one issues"
        );
        let (nodes, _) = self.rotation_waits_for();
        ApiAnswer::Done(ChangeSummary { what, nodes })
    }

    /// Members that a change of authority waits for, and until which second holders of client
    /// certificates have time.
    fn rotation_waits_for(&self) -> (Vec<NodeId>, Option<u64>) {
        match self.core.state().membership().rotation_step(&self.rotation_state.reports, now_s()) {
            RotationStep::Wait { nodes, until_s } => (nodes, until_s),
            RotationStep::Nothing
            | RotationStep::AnnounceAnew
            | RotationStep::Issue
            | RotationStep::Retire => (Vec::new(), None),
        }
    }

    fn rotation_status(&self) -> Option<RotationStatus> {
        let rotation = self.core.state().access().rotation()?;
        let (nodes, until_s) = self.rotation_waits_for();
        Some(RotationStatus {
            authority: rotation.succession.key.to_string(),
            progress: match rotation.phase {
                RotationPhase::Announced => RotationProgress::Announced,
                RotationPhase::Issuing { .. } => RotationProgress::Issuing,
                RotationPhase::Retired => RotationProgress::Retired,
            },
            waits_for: nodes.into_iter().map(|node| self.name_of_member(node)).collect(),
            people_until_ms: until_s.map(|until_s| until_s * 1000),
        })
    }

    pub(super) fn cluster_info(&self) -> ClusterInfo {
        let status = self.core.status();
        let members = self.members();
        let voters: Vec<_> =
            members.into_iter().filter(|m| status.members.voters.contains(&m.id)).collect();
        ClusterInfo {
            name: self.setup.cluster_name.clone(),
            id: self.core.state().cluster().to_string(),
            founded_ms: self.setup.founded_ms,
            authority: hex(&self.authority.pin().0),
            rotation: self.rotation_status(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: self.format_status(),
            leader: status.leader,
            term: status.term,
            committed: status.commit,
            failures_tolerated: (voters.len().saturating_sub(1) / 2) as u32,
            voters,
        }
    }
}

/// An authority with what leads from it to the one before.
fn bridged(authority: ClusterAuthority, rotation: &Rotation) -> ClusterAuthority {
    let Succession { bridge, old, .. } = rotation.succession.clone();
    authority.with_bridge(vec![bridge.into(), old.into()])
}
