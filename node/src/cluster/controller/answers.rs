//! Requests of clients, answered.

use std::sync::Arc;

use zbelastic_consensus::access::{
    AccessChange, AccessRefusal, AccessRole, TokenId, TokenRecord, TokenTerms,
};
use zbelastic_consensus::core::{CoreRefusal, OperatorCommand};
use zbelastic_consensus::job::{JobChange, JobPhase, JobRefusal, JobSpec};
use zbelastic_consensus::member::MembershipStatus;
use zbelastic_consensus::run::run_name_of;
use zbelastic_consensus::state::EntryRefusal;
use zbelastic_transport::identity::JoinToken;
use zbelastic_transport::{PeerIdentity, PeerRole, RequestReply};
use zbelastic_types::{Digest, NodeId, RunId, Step};

use super::ControllerNode;
use super::pending_commands::AppliedAnswer;
use crate::api::{
    ApiAnswer, ApiRefusal, ApiRequest, ChangeSummary, CorpusDescription, EVENTS_MAX, EventPage,
    ResourceKind, RunAbsence, RunAccepted, RunDisposition, TokenCreated, TokenInfo, TokenRequest,
    TokenRole, WrongState, decode_request,
};
use crate::cluster::document::{DataName, DocumentError, JobDocument};
use crate::cluster::journal::now_s;
use crate::cluster::requests;
use crate::cluster::wire::NodeRequest;
use crate::config::{RunConfig, WeightSource, check_cluster_can_run, load_document};
use crate::failure::CommandFailure;

impl ControllerNode {
    pub(super) fn handle_request(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        if let Some(request) = NodeRequest::decode(bytes) {
            return self.answer_node(from, request, reply);
        }
        let request = match decode_request(bytes) {
            Ok(request) => request,
            Err(error) => {
                let what = error.to_string();
                return self.reply(reply, &ApiAnswer::Refused(ApiRefusal::Malformed { what }));
            }
        };
        if let Err(refusal) = requests::authorize(&mut self.journal, from, &request) {
            return self.reply(reply, &ApiAnswer::Refused(refusal));
        }
        self.answer(request, reply);
    }

    pub(super) fn reply(&self, reply: RequestReply, answer: &ApiAnswer) {
        requests::reply(reply, answer);
    }

    fn answer(&mut self, request: ApiRequest, reply: RequestReply) {
        let answer = match request {
            ApiRequest::Status => ApiAnswer::Status(Box::new(self.status())),
            ApiRequest::Events { from_sequence, max } => self.events(from_sequence, max),
            ApiRequest::Logs { node, from_sequence, max } => self.logs(node, from_sequence, max),
            ApiRequest::TokenList => self.tokens(),
            ApiRequest::RunList => ApiAnswer::Runs(self.runs()),
            ApiRequest::RunRemove { name, run } => {
                return self.remove_run(name, RunId(run), reply);
            }
            ApiRequest::CheckpointList { run } => self.list_checkpoints(run.as_deref()),
            ApiRequest::CheckpointShow { run, step } => self.checkpoint(run.as_deref(), step),
            ApiRequest::CheckpointVerify { run, step, layer } => {
                return self.verify(run.as_deref(), (step, layer), reply);
            }
            ApiRequest::CheckpointExport { run, step, layer, offset } => {
                return self.export(run.as_deref(), (step, layer), offset, reply);
            }
            ApiRequest::CheckpointSubtree { run, step, layer, subtree } => {
                return self.export_subtree(run.as_deref(), (step, layer), subtree, reply);
            }
            ApiRequest::CheckpointCollect => return self.collect_all(reply),
            ApiRequest::Trace { offset } => self.trace(offset),
            ApiRequest::ClusterInfo => ApiAnswer::Cluster(Box::new(self.cluster_info())),
            ApiRequest::ClusterRotateCa { force } => return self.rotate_authority(force, reply),
            ApiRequest::ClusterBackup { digest, offset } => self.backup(digest, offset),
            ApiRequest::PutData { hash, offset, bytes } => {
                return self.put_data(hash, offset, bytes, reply);
            }
            ApiRequest::TokenCreate(request) => return self.create_token(request, reply),
            ApiRequest::TokenRevoke { id, with_nodes } => {
                return self.revoke_token(&id, with_nodes, reply);
            }
            ApiRequest::NodeDrain { node } => return self.drain(node, reply),
            ApiRequest::NodeRemove { node, force } => return self.remove(node, force, reply),
            ApiRequest::Run { document, corpus, weights, name, from } => {
                return self.run_job(&document, (corpus, weights), (name, from), reply);
            }
            ApiRequest::Pause => return self.change_job(JobChange::Pause, reply),
            ApiRequest::Resume => return self.change_job(JobChange::Continue, reply),
            ApiRequest::Stop => return self.change_job(JobChange::Stop, reply),
            ApiRequest::CheckpointRestore { step } => return self.restore(step, reply),
        };
        self.reply(reply, &answer);
    }

    fn events(&self, from: u64, max: u32) -> ApiAnswer {
        let max = max.min(EVENTS_MAX) as usize;
        let (first_sequence, next_sequence, events) = self.journal.events(from, max);
        ApiAnswer::Events(EventPage {
            log: self.journal.number(),
            first_sequence,
            next_sequence,
            events,
        })
    }

    fn logs(&self, node: Option<NodeId>, from: u64, max: u32) -> ApiAnswer {
        let node = node.unwrap_or(self.setup.node);
        if node != self.setup.node {
            let addresses = self.addresses_of(node);
            return ApiAnswer::Redirect { addresses };
        }
        requests::logs(&self.journal, node, (from, max))
    }

    /// Where a member is reached.
    pub(super) fn addresses_of(&self, node: NodeId) -> Vec<String> {
        let member = self.core.state().members().get(&node);
        member.map_or_else(Vec::new, |member| member.contact.addresses.clone())
    }

    /// The answer of a controller that does not lead: a redirect to the leader, or that there is no
    /// quorum.
    pub(super) fn redirect(&self) -> ApiAnswer {
        match self.core.status().leader {
            Some(leader) if leader != self.setup.node => {
                ApiAnswer::Redirect { addresses: self.addresses_of(leader) }
            }
            Some(_) | None => self.no_quorum(),
        }
    }

    fn tokens(&self) -> ApiAnswer {
        let tokens = self.core.state().access().tokens();
        ApiAnswer::Tokens(tokens.iter().map(|(id, token)| token_info(*id, token)).collect())
    }

    fn create_token(&mut self, request: TokenRequest, reply: RequestReply) {
        let (role, token_role) = match request.role {
            TokenRole::Controller => (AccessRole::Controller, PeerRole::Controller),
            TokenRole::Worker => (AccessRole::Worker, PeerRole::Worker),
            TokenRole::Operator => (AccessRole::Operator, PeerRole::Operator),
            TokenRole::Viewer => (AccessRole::Viewer, PeerRole::Viewer),
        };
        let token = JoinToken::create(token_role, self.authority.pin());
        let id = TokenId(token.id().0);
        let terms = TokenTerms {
            role,
            verifier: token.verifier().to_bytes(),
            authority: Digest(self.authority.pin().0),
            expires_at_s: now_s().saturating_add(request.ttl_s),
            uses_max: request.uses,
            is_ephemeral: request.ephemeral,
            note: request.note.unwrap_or_default(),
        };
        let text = token.reveal();
        let addresses = self.controller_addresses();
        let command =
            OperatorCommand::Access(AccessChange::TokenMade { token: id, terms, at_s: now_s() });
        let outcome: AppliedAnswer = Box::new(move |controller| {
            let tokens = controller.core.state().access().tokens();
            let Some(info) = tokens.get(&id).map(|token| token_info(id, token)) else {
                return not_found(ResourceKind::Token, id.to_string());
            };
            ApiAnswer::Token(TokenCreated { token: text, info, addresses })
        });
        self.propose_command(command, reply, outcome);
    }

    /// Where controllers are reached.
    pub(super) fn controller_addresses(&self) -> Vec<String> {
        let controllers = self.core.state().controllers();
        controllers.flat_map(|node| self.addresses_of(node)).collect()
    }

    fn revoke_token(&mut self, id: &str, with_nodes: bool, reply: RequestReply) {
        let Ok(number) = u64::from_str_radix(id, 16) else {
            return self.reply(reply, &not_found(ResourceKind::Token, id.to_owned()));
        };
        let token = TokenId(number);
        let command = OperatorCommand::Access(AccessChange::TokenRevoked { token });
        let what = format!("token {token} is revoked");
        // Once it is revoked no node is admitted with it any more: a use on its way would be missed
        // before.
        let revoked = move |controller: &mut Self| {
            let nodes = if with_nodes { controller.remove_joined_with(token) } else { Vec::new() };
            ApiAnswer::Done(ChangeSummary { what, nodes })
        };
        self.propose_command(command, reply, Box::new(revoked));
    }

    fn remove_joined_with(&mut self, token: TokenId) -> Vec<NodeId> {
        let credentials = self.core.state().access().credentials().iter();
        let of_token = credentials.filter(|(_, credential)| credential.token == Some(token));
        let nodes: Vec<NodeId> = of_token.map(|(node, _)| *node).collect();
        for node in &nodes {
            // A node that is removed already stays removed.
            let _ = self.core.execute_command(OperatorCommand::Remove(*node));
        }
        nodes
    }

    fn drain(&mut self, node: NodeId, reply: RequestReply) {
        let summary = ChangeSummary { what: format!("node {node} is to drain"), nodes: vec![node] };
        self.propose_command(
            OperatorCommand::Drain(node),
            reply,
            Box::new(|_| ApiAnswer::Done(summary)),
        );
    }

    fn remove(&mut self, node: NodeId, force: bool, reply: RequestReply) {
        let member = self.core.state().members().get(&node);
        if let Some(member) = member.filter(|member| member.is_live() && !force) {
            let state = WrongState::NodeLive { name: member.contact.name.clone() };
            return self.reply(reply, &ApiAnswer::Refused(ApiRefusal::WrongState(state)));
        }
        let summary = ChangeSummary { what: format!("node {node} is removed"), nodes: vec![node] };
        self.propose_command(
            OperatorCommand::Remove(node),
            reply,
            Box::new(|_| ApiAnswer::Done(summary)),
        );
    }

    fn change_job(&mut self, change: JobChange, reply: RequestReply) {
        self.propose_command(
            OperatorCommand::Job(change),
            reply,
            Box::new(|controller| controller.job_answer()),
        );
    }

    fn restore(&mut self, step: u64, reply: RequestReply) {
        let command = OperatorCommand::Restore { to: Step(step) };
        self.propose_command(command, reply, Box::new(|controller| controller.job_answer()));
    }

    fn job_answer(&self) -> ApiAnswer {
        match self.job_status() {
            Some(job) => ApiAnswer::Job(Box::new(job)),
            None => ApiAnswer::Refused(ApiRefusal::WrongState(WrongState::NoRun {
                was: RunAbsence::Never,
            })),
        }
    }

    fn run_job(
        &mut self,
        document: &str,
        data: (CorpusDescription, Option<CorpusDescription>),
        (name, from): (Option<String>, Option<String>),
        reply: RequestReply,
    ) {
        if !self.leads() {
            let answer = self.redirect();
            return self.reply(reply, &answer);
        }
        let submitted = submitted_document(document, data).and_then(|job| self.branched(job, from));
        let submitted = submitted.and_then(|job| self.with_run_name(job, name));
        let (job, spec) = match submitted {
            Ok(submitted) => submitted,
            Err(refusal) => return self.reply(reply, &ApiAnswer::Refused(refusal)),
        };
        // Nothing travels for a run that is refused.
        let is_known =
            self.core.state().job().is_some_and(|current| current.spec.config == spec.config);
        let start = JobChange::Start(Arc::new(spec.clone()));
        if let Err(refusal) = self.core.state().training().check_job(&start)
            && !is_known
        {
            let refusal = self.job_refusal(&refusal);
            return self.reply(reply, &ApiAnswer::Refused(refusal));
        }
        let data = std::iter::once(job.text).chain(job.weights);
        if let Some(missing) = self.missing_data(data) {
            return self.reply(reply, &ApiAnswer::DataWanted(missing));
        }
        self.begin_run(spec, reply);
    }

    /// The run under the requested name. Without one it is the run that was submitted so before, if
    /// that is under way or kept, and gets a name that no run has otherwise.
    fn with_run_name(
        &self,
        mut job: JobDocument,
        name: Option<String>,
    ) -> Result<(JobDocument, JobSpec), ApiRefusal> {
        let current = self.core.state().job().filter(|current| current.phase != JobPhase::Stopped);
        let current = current.and_then(|current| JobDocument::of_job(&current.spec).ok());
        let current =
            current.filter(|current| current.job.is_same_run(&job)).map(|current| current.job.name);
        job.name = match (name, current) {
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => {
                if let Some(name) = self.retained_as(&job) {
                    return Err(ApiRefusal::WrongState(WrongState::Kept { name }));
                }
                self.free_name(&job.name)
            }
        };
        let malformed = |error: DocumentError| ApiRefusal::Malformed { what: error.to_string() };
        let spec = job.spec(job.encode().map_err(malformed)?);
        Ok((job, spec))
    }

    fn begin_run(&mut self, spec: JobSpec, reply: RequestReply) {
        let events_from = self.journal.next_event();
        let job = self.core.state().job();
        let phase = job.filter(|job| job.spec.config == spec.config).map(|job| job.phase);
        match phase {
            Some(JobPhase::Running) => {
                self.accept_run(RunDisposition::Attached, events_from, reply)
            }
            Some(JobPhase::Done) => self.accept_run(RunDisposition::Done, events_from, reply),
            Some(JobPhase::Paused | JobPhase::Halted(_)) => {
                let outcome = accepted(RunDisposition::Continued, events_from);
                self.propose_command(OperatorCommand::Job(JobChange::Continue), reply, outcome);
            }
            Some(JobPhase::Stopped) | None => {
                let command = OperatorCommand::Job(JobChange::Start(Arc::new(spec)));
                self.propose_command(
                    command,
                    reply,
                    accepted(RunDisposition::Started, events_from),
                );
            }
        }
    }

    fn accept_run(&mut self, disposition: RunDisposition, events_from: u64, reply: RequestReply) {
        let answer = accepted(disposition, events_from)(self);
        self.reply(reply, &answer);
    }

    /// Why the core refuses a command, as it is answered.
    pub(super) fn refusal(&self, refusal: &CoreRefusal) -> ApiRefusal {
        if let CoreRefusal::Job(refusal) | CoreRefusal::Restore(EntryRefusal::Job(refusal)) =
            refusal
        {
            return self.job_refusal(refusal);
        }
        if let CoreRefusal::Access(refusal) = refusal {
            return self.access_refusal(refusal);
        }
        let node = match refusal {
            CoreRefusal::UnknownNode { node } => node,
            CoreRefusal::NotAWorker { node } => {
                let name = self.name_of_member(*node);
                return ApiRefusal::WrongState(WrongState::ControllerStays { name });
            }
            CoreRefusal::Draining { node } => {
                let name = self.name_of_member(*node);
                return ApiRefusal::WrongState(WrongState::Draining { name });
            }
            CoreRefusal::OtherCluster { .. }
            | CoreRefusal::Raft(_)
            | CoreRefusal::Propose(_)
            | CoreRefusal::Worker(_)
            | CoreRefusal::NotLeader { .. }
            | CoreRefusal::NotForControllers
            | CoreRefusal::WrongSender { .. }
            | CoreRefusal::Job(_)
            | CoreRefusal::Access(_)
            | CoreRefusal::Restore(_)
            | CoreRefusal::NotAVoter { .. }
            | CoreRefusal::PlanNotRequested { .. }
            | CoreRefusal::Stopped => return ApiRefusal::Malformed { what: refusal.to_string() },
        };
        let Some(member) = self.core.state().members().get(node) else {
            return ApiRefusal::NotFound { thing: ResourceKind::Node, name: node.to_string() };
        };
        let reason = match member.status {
            MembershipStatus::Lost(reason) => reason.to_string(),
            MembershipStatus::Present | MembershipStatus::Draining => String::new(),
        };
        ApiRefusal::WrongState(WrongState::NodeGone { name: member.contact.name.clone(), reason })
    }

    pub(super) fn entry_refusal(&self, refusal: &EntryRefusal) -> ApiRefusal {
        if let EntryRefusal::Job(refusal) = refusal {
            self.job_refusal(refusal)
        } else if let EntryRefusal::Access(refusal) = refusal {
            self.access_refusal(refusal)
        } else {
            ApiRefusal::Malformed { what: refusal.to_string() }
        }
    }

    /// The name of a member.
    pub(super) fn name_of_member(&self, node: NodeId) -> String {
        let member = self.core.state().members().get(&node);
        member.map_or_else(|| node.to_string(), |member| member.contact.name.clone())
    }

    fn access_refusal(&self, refusal: &AccessRefusal) -> ApiRefusal {
        match refusal {
            AccessRefusal::LastController { node } => {
                let name = self.name_of_member(*node);
                ApiRefusal::WrongState(WrongState::LastController { name })
            }
            AccessRefusal::TokenRevoked { token } => {
                ApiRefusal::WrongState(WrongState::TokenRevoked { id: token.to_string() })
            }
            AccessRefusal::UnknownToken { token } => {
                ApiRefusal::NotFound { thing: ResourceKind::Token, name: token.to_string() }
            }
            AccessRefusal::NoCredential { node } => {
                ApiRefusal::NotFound { thing: ResourceKind::Node, name: node.to_string() }
            }
            AccessRefusal::Revoked { node } => ApiRefusal::WrongState(WrongState::NodeGone {
                name: self.name_of_member(*node),
                reason: "it was removed".to_owned(),
            }),
            AccessRefusal::TooManyTokens | AccessRefusal::TooManyCredentials => {
                ApiRefusal::OutOfResource { what: refusal.to_string() }
            }
            AccessRefusal::TokenKnown { .. }
            | AccessRefusal::TokenExpired { .. }
            | AccessRefusal::TokenUsedUp { .. }
            | AccessRefusal::TokenRole { .. }
            | AccessRefusal::Uses { .. }
            | AccessRefusal::Note { .. }
            | AccessRefusal::Name(_)
            | AccessRefusal::Term { .. }
            | AccessRefusal::NotForgotten { .. }
            | AccessRefusal::CertificateSize { .. }
            | AccessRefusal::OtherAuthority { .. }
            | AccessRefusal::RotationPhase { .. } => {
                ApiRefusal::Malformed { what: refusal.to_string() }
            }
        }
    }

    fn job_refusal(&self, refusal: &JobRefusal) -> ApiRefusal {
        let state = match refusal {
            JobRefusal::Missing => WrongState::NoRun { was: RunAbsence::Never },
            JobRefusal::Stopped => WrongState::NoRun { was: RunAbsence::Stopped },
            JobRefusal::Done => WrongState::Done,
            JobRefusal::NameTaken { name } => WrongState::NameTaken { name: name.clone() },
            JobRefusal::TooManyRuns => {
                return ApiRefusal::OutOfResource { what: refusal.to_string() };
            }
            JobRefusal::NoRun { run } => {
                return ApiRefusal::NotFound { thing: ResourceKind::Run, name: run.to_string() };
            }
            JobRefusal::OtherModel { run } => {
                WrongState::OtherModel { name: self.name_of_run(*run) }
            }
            JobRefusal::NoStepsLeft { version, step_count } => {
                WrongState::NoStepsLeft { step: version.0, step_count: *step_count }
            }
            JobRefusal::Needed { name } => WrongState::RunNeeded { by: name.clone() },
            JobRefusal::NotHeld => WrongState::NotPaused,
            JobRefusal::Halted { reason } => WrongState::Halted { reason: reason.to_string() },
            JobRefusal::UnderWay | JobRefusal::Same => match self.job_status() {
                Some(job) => WrongState::OtherRun {
                    config: job.config,
                    step: job.step,
                    step_count: job.step_count,
                },
                None => WrongState::Starting,
            },
            JobRefusal::Size { .. }
            | JobRefusal::Document { .. }
            | JobRefusal::Workers { .. }
            | JobRefusal::Zero { .. }
            | JobRefusal::Stages { .. }
            | JobRefusal::Replays { .. }
            | JobRefusal::LayerBytes { .. }
            | JobRefusal::Copies { .. }
            | JobRefusal::Every { .. }
            | JobRefusal::Origin { .. }
            | JobRefusal::Name { .. } => {
                return ApiRefusal::Malformed { what: refusal.to_string() };
            }
        };
        ApiRefusal::WrongState(state)
    }
}

/// The job that was submitted: a configuration with the hash of its text, or a complete document.
fn submitted_document(
    document: &str,
    (corpus, weights): (CorpusDescription, Option<CorpusDescription>),
) -> Result<JobDocument, ApiRefusal> {
    if document.trim_start().starts_with('{') {
        let job = JobDocument::decode(document.as_bytes());
        let job = job.map_err(|error| ApiRefusal::Malformed { what: error.to_string() })?;
        check_cluster_can_run(&job.config).map_err(|failure| config_refusal(&failure))?;
        if job.from.is_some() {
            // The log records from what a run continues, and the submitted request names it.
            let what = "a document that names itself what it continues from".to_owned();
            return Err(ApiRefusal::Malformed { what });
        }
        return Ok(job);
    }
    let loaded = load_document("the submitted configuration", document)
        .and_then(|loaded| check_cluster_can_run(&loaded.config).map(|()| loaded))
        .map_err(|failure| config_refusal(&failure))?;
    if let WeightSource::HuggingFace { folder } = &loaded.config.weights {
        let what = format!("model.from_hf = {} is a folder of another machine", folder.display());
        return Err(ApiRefusal::Config { problems: vec![what] });
    }
    let name = |data: CorpusDescription| DataName { hash: data.hash.0, length: data.length.0 };
    let config = loaded.config;
    let toml = document.to_owned();
    let mut job = JobDocument::new(default_run_name(&config), config, toml, name(corpus));
    job.weights = weights.map(name);
    Ok(job)
}

fn config_refusal(failure: &CommandFailure) -> ApiRefusal {
    let problems = failure.details.iter().map(|detail| detail.what.clone()).collect();
    ApiRefusal::Config { problems }
}

/// What a run is called that has no other name: by its model's size.
fn default_run_name(config: &RunConfig) -> String {
    let family = format!("{:?}", config.model.family).to_lowercase();
    run_name_of(&format!("{family}-{}x{}", config.model.blocks, config.model.width))
}

fn accepted(disposition: RunDisposition, events_from: u64) -> AppliedAnswer {
    Box::new(move |controller| match controller.job_status() {
        Some(job) => ApiAnswer::Run(RunAccepted { disposition, events_from, job }),
        None => ApiAnswer::Refused(ApiRefusal::WrongState(WrongState::Starting)),
    })
}

pub(super) fn not_found(thing: ResourceKind, name: String) -> ApiAnswer {
    ApiAnswer::Refused(ApiRefusal::NotFound { thing, name })
}

/// What a token admits, as the API names it. No token admits an administrator.
pub(super) const fn token_role(role: AccessRole) -> TokenRole {
    match role {
        AccessRole::Controller => TokenRole::Controller,
        AccessRole::Worker => TokenRole::Worker,
        AccessRole::Operator | AccessRole::Admin => TokenRole::Operator,
        AccessRole::Viewer => TokenRole::Viewer,
    }
}

fn token_info(id: TokenId, token: &TokenRecord) -> TokenInfo {
    let terms = &token.terms;
    TokenInfo {
        id: id.to_string(),
        role: token_role(terms.role),
        created_ms: token.made_at_s * 1000,
        expires_ms: terms.expires_at_s * 1000,
        uses: terms.uses_max,
        used: token.used,
        ephemeral: terms.is_ephemeral,
        revoked: token.is_revoked,
        note: Some(terms.note.clone()).filter(|note| !note.is_empty()),
    }
}
