//! Requests of clients and of members, answered.

use std::sync::Arc;

use zbelastic_consensus::access::{AccessChange, AccessRegistry, AuthorityChange, TokenId};
use zbelastic_consensus::core::{CommandOutcome, CoreRefusal, OperatorCommand};
use zbelastic_consensus::job::{JobChange, JobSpec};
use zbelastic_consensus::state::{EntryRefusal, State};
use zbelastic_identity::{PeerIdentity, SpkiPin, UnixSeconds};
use zbelastic_policy::authority::RotationRequest;
use zbelastic_policy::pending_commands::TooManyCommands;
use zbelastic_transport::RequestReply;
use zbelastic_types::{Digest, NodeId, RunId, Step};
use zbelastic_wire::{self as wire, NodeAnswer, NodeMessage, NodeRequest};

use super::ControllerNode;
use super::authority_files::AuthorityMade;
use super::checkpoints::{answer_collect, backup, collect_all, export, export_subtree, verify};
use super::command_answer::CommandAnswer;
use super::data::{fetch_data_of, has_data};
use super::runs::is_over;
use super::status::{addresses_of, controller_addresses};
use super::submission::{SubmittedJob, SubmittedRun, run_start};
use super::tokens::NewToken;
use super::uploads::UploadWriteResult;
use crate::cluster::requests;
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ApiRequest, ChangeSummary, ResourceKind, RunAbsence, TokenCreated,
    TokenRequest, WrongState, decode_request, token_info, token_infos,
};

/// How a request proceeds.
enum RequestOutcome {
    /// It is answered now.
    Answer(ApiAnswer),
    /// A command is proposed for it, and answered when that is applied.
    Command(OperatorCommand, CommandAnswer),
    /// A run is submitted again when its data is compared.
    Compare(SubmittedRun),
}

impl From<ApiAnswer> for RequestOutcome {
    fn from(answer: ApiAnswer) -> Self {
        Self::Answer(answer)
    }
}

impl From<ApiRefusal> for RequestOutcome {
    fn from(refusal: ApiRefusal) -> Self {
        Self::Answer(ApiAnswer::Refused(refusal))
    }
}

/// Answers a request, now or when what it waits for is there.
fn finish(node: &mut ControllerNode, outcome: RequestOutcome, reply: RequestReply) {
    match outcome {
        RequestOutcome::Answer(answer) => requests::reply(reply, &answer),
        RequestOutcome::Command(command, answer) => {
            node.propose_command(command, (reply, answer));
        }
        RequestOutcome::Compare(run) => {
            if let Err((_, reply)) = node.uncompared.push((run, reply)) {
                let what = TooManyCommands.to_string();
                refuse(reply, ApiRefusal::OutOfResource { what });
            }
        }
    }
}

impl ControllerNode {
    pub(super) fn handle_request(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        if let Some(request) = NodeRequest::decode(bytes) {
            return self.answer_node(from, request, reply);
        }
        let request = match decode_request(bytes) {
            Ok(request) => request,
            Err(error) => {
                let what = error.to_string();
                return refuse(reply, ApiRefusal::Malformed { what });
            }
        };
        match requests::authorize(&mut self.ports.journal, from, &request) {
            Ok(()) if requests::needs_leader(&request) && self.view().awaits_leader() => {
                if let Err((_, reply)) = self.leaderless.push((request, reply)) {
                    requests::reply(reply, &self.view().no_quorum());
                }
            }
            Ok(()) => self.answer(request, reply),
            Err(refusal) => refuse(reply, refusal),
        }
    }

    /// A tick passed: answers commands that waited for a leader, and those that waited too long or whose
    /// entries another leader's took the places of.
    pub(super) fn answer_waiting(&mut self) {
        let awaits_leader = self.view().awaits_leader();
        for (request, reply) in self.leaderless.handle_tick(awaits_leader) {
            self.answer(request, reply);
        }
        for (run, reply) in self.uncompared.handle_tick(self.ports.data_fetches.is_busy()) {
            let outcome = self.submit_run(run, false);
            finish(self, outcome, reply);
        }
        if let Some(reply) = self.commands.handle_tick() {
            requests::reply(reply, &self.view().no_quorum());
        }
        for reply in self.commands.take_behind(self.ports.state().applied()) {
            requests::reply(reply, &self.view().redirect());
        }
    }

    /// A member sent a request.
    fn answer_node(&mut self, from: PeerIdentity, request: NodeRequest, reply: RequestReply) {
        let answer = match request {
            NodeRequest::Renew { request } => {
                match self.certificates.renew_chain(from, &request, &mut self.ports.core) {
                    Ok(chain) => {
                        let roots = self.certificates.credentials().roots().iter();
                        let roots = roots.map(|part| part.to_vec()).collect();
                        NodeAnswer::Renewed { chain, roots }
                    }
                    Err(why) => {
                        let node = from.node;
                        let text = format!("node {node}'s certificate is not renewed: {why}");
                        self.ports.journal.log(text);
                        NodeAnswer::Refused { why }
                    }
                }
            }
            NodeRequest::Collect(_) | NodeRequest::CollectWithAsides(_) => {
                let checkpoint_thread = self.ports.tasks.checkpoint_thread().clone();
                return answer_collect(from, request, checkpoint_thread, reply);
            }
            NodeRequest::AuthorityKey { key } => {
                self.rotation.answer_key((from, key), self.ports.state(), &self.certificates)
            }
        };
        reply.answer(wire::encode(&answer));
    }

    fn answer(&mut self, request: ApiRequest, reply: RequestReply) {
        let outcome = match request {
            ApiRequest::Status => ApiAnswer::Status(Box::new(self.view().status())).into(),
            ApiRequest::Events { from_sequence, max } => {
                requests::events(&self.ports.journal, (from_sequence, max)).into()
            }
            ApiRequest::Logs { node, from_sequence, max } => {
                self.logs(node, from_sequence, max).into()
            }
            ApiRequest::TokenList => {
                ApiAnswer::Tokens(token_infos(self.ports.state().access())).into()
            }
            ApiRequest::RunList => ApiAnswer::Runs(self.view().runs()).into(),
            ApiRequest::RunRemove { name, run } => self.remove_run(name, RunId(run)),
            ApiRequest::CheckpointList { run } => {
                self.view().list_checkpoints(run.as_deref()).into()
            }
            ApiRequest::CheckpointShow { run, step } => {
                self.view().checkpoint(run.as_deref(), step).into()
            }
            ApiRequest::CheckpointVerify { run, step, layer } => {
                match self.ports.runs().piece(run.as_deref(), (step, layer)) {
                    Ok(piece) => return verify((step, layer), piece, (&self.ports, reply)),
                    Err(refusal) => refusal.into(),
                }
            }
            ApiRequest::CheckpointExport { run, step, layer, offset } => {
                self.exports.note_read();
                match self.ports.runs().piece(run.as_deref(), (step, layer)) {
                    Ok(piece) => {
                        return export(piece, offset, &mut self.exports, (&self.ports, reply));
                    }
                    Err(refusal) => refusal.into(),
                }
            }
            ApiRequest::CheckpointSubtree { run, step, layer, subtree } => {
                self.exports.note_read();
                match self.ports.runs().piece(run.as_deref(), (step, layer)) {
                    Ok(piece) => {
                        let known = self.pieces.moments().value(piece, subtree);
                        return export_subtree((piece, subtree), known, (&self.ports, reply));
                    }
                    Err(refusal) => refusal.into(),
                }
            }
            ApiRequest::CheckpointCollect => {
                if self.ports.leads() {
                    return collect_all(&self.ports, reply);
                }
                self.view().redirect().into()
            }
            ApiRequest::Trace { offset, from } => {
                self.trace.piece(&self.run_log, offset, from).into()
            }
            ApiRequest::ClusterInfo => self.cluster_info().into(),
            ApiRequest::ClusterRotateCa { .. } if !self.ports.leads() => {
                self.view().redirect().into()
            }
            ApiRequest::ClusterRotateCa { force } => {
                match self.rotation.request(force, self.ports.state()) {
                    RotationRequest::Make => {
                        let (ports, certificates) = (&self.ports, &self.certificates);
                        return self.rotation.make(force, Some(reply), ports, certificates);
                    }
                    RotationRequest::Force { key } => {
                        let change = AccessChange::Authority(AuthorityChange::Forced { key });
                        let command = OperatorCommand::Access(change);
                        RequestOutcome::Command(command, CommandAnswer::Rotation)
                    }
                    RotationRequest::UnderWay => self.rotation.answer(self.ports.state()).into(),
                    RotationRequest::Making => {
                        let what = "another authority is being made; `zbelastic cluster info` \
                                    shows the change once it is announced";
                        let summary = ChangeSummary { what: what.to_owned(), nodes: Vec::new() };
                        ApiAnswer::Done(summary).into()
                    }
                    RotationRequest::Busy => {
                        let what = "keys of authorities are being written; request it again";
                        ApiRefusal::Internal { what: what.to_owned() }.into()
                    }
                }
            }
            ApiRequest::ClusterBackup { digest, offset } => {
                backup(self.ports.state(), digest, offset).into()
            }
            ApiRequest::PutData { hash, offset, bytes } => {
                match self.uploads.put((hash, offset), bytes) {
                    Ok(write) => return write.begin(&self.ports.tasks, reply),
                    Err(refusal) => refusal.into(),
                }
            }
            ApiRequest::TokenCreate(request) => {
                create_token(request, self.certificates.authority().pin(), self.ports.state())
            }
            ApiRequest::TokenRevoke { id, with_nodes } => {
                revoke_token(id, with_nodes, self.ports.state().access())
            }
            ApiRequest::NodeDrain { node } => {
                let what = format!("node {node} is to drain");
                let summary = ChangeSummary { what, nodes: vec![node] };
                RequestOutcome::Command(OperatorCommand::Drain(node), CommandAnswer::Done(summary))
            }
            ApiRequest::NodeRemove { node, force } => self.remove_node(node, force),
            ApiRequest::Run { document, corpus, weights, name, from } => {
                let job = SubmittedJob::Own { document, corpus, weights };
                self.submit_run(SubmittedRun { job, name, from }, true)
            }
            ApiRequest::RunContinue { from, changes, name } => {
                let job = SubmittedJob::Changed { changes };
                self.submit_run(SubmittedRun { job, name, from: Some(from) }, true)
            }
            ApiRequest::Pause => change_job(JobChange::Pause),
            ApiRequest::Resume => change_job(JobChange::Continue),
            ApiRequest::Stop => change_job(JobChange::Stop),
            ApiRequest::CheckpointRestore { step } => RequestOutcome::Command(
                OperatorCommand::Restore { to: Step(step) },
                CommandAnswer::Job,
            ),
        };
        finish(self, outcome, reply);
    }

    fn logs(&self, node: Option<NodeId>, from: u64, max: u32) -> ApiAnswer {
        let node = node.unwrap_or(self.ports.me);
        if node != self.ports.me {
            return ApiAnswer::Redirect { addresses: addresses_of(self.ports.state(), node) };
        }
        requests::logs(&self.ports.journal, node, (from, max))
    }

    fn cluster_info(&self) -> ApiAnswer {
        let authority = Digest(self.certificates.authority().pin().0);
        let rotation = self.rotation.status(self.ports.state());
        ApiAnswer::Cluster(Box::new(self.view().cluster_info(authority, rotation)))
    }

    fn remove_node(&self, node: NodeId, force: bool) -> RequestOutcome {
        let member = self.ports.state().members().get(&node);
        if let Some(member) = member.filter(|member| member.is_live() && !force) {
            let state = WrongState::NodeLive { name: member.contact.name.clone() };
            return ApiRefusal::WrongState(state).into();
        }
        let summary = ChangeSummary { what: format!("node {node} is removed"), nodes: vec![node] };
        RequestOutcome::Command(OperatorCommand::Remove(node), CommandAnswer::Done(summary))
    }

    fn remove_run(&self, name: String, run: RunId) -> RequestOutcome {
        let view = self.ports.runs().find(Some(&name)).filter(|view| view.spec.run == run);
        let Some(view) = view else { return not_found(ResourceKind::Run, name).into() };
        if !is_over(view.phase) {
            return ApiRefusal::WrongState(WrongState::RunLive { name }).into();
        }
        let summary = ChangeSummary { what: format!("run {name} is removed"), nodes: Vec::new() };
        let command = OperatorCommand::Job(JobChange::Remove(run));
        RequestOutcome::Command(command, CommandAnswer::Done(summary))
    }

    /// An authority was made: it is announced, if that is due and this node still leads.
    pub(super) fn announce_authority(&mut self, made: AuthorityMade) {
        let AuthorityMade { made, is_forced, reply } = made;
        let for_client = reply.is_some();
        let change = self.rotation.announced((made, is_forced), for_client, self.ports.state());
        let command = |change| OperatorCommand::Access(AccessChange::Authority(change));
        match (change, reply) {
            (Ok(Some(change)), Some(reply)) => {
                self.propose_command(command(change), (reply, CommandAnswer::Rotation));
            }
            // One that is not proposed is made again at the next look, by the leader at that time.
            (Ok(Some(change)), None) => drop(self.ports.propose(command(change))),
            (Ok(None), Some(reply)) => {
                requests::reply(reply, &self.rotation.answer(self.ports.state()));
            }
            (Ok(None), None) => {}
            (Err(what), Some(reply)) => refuse(reply, ApiRefusal::Internal { what }),
            (Err(why), None) => {
                self.ports.journal.warn(format!("no authority is announced: {why}"));
            }
        }
    }

    fn submit_run(&mut self, submitted: SubmittedRun, may_wait: bool) -> RequestOutcome {
        if !self.ports.leads() {
            return self.view().redirect().into();
        }
        let state = self.ports.state();
        let (job, spec) = match submitted.clone().prepare(state) {
            Ok(prepared) => prepared,
            Err(refusal) => return refusal.into(),
        };
        // Nothing travels for a run that is refused.
        let is_known = state.job().is_some_and(|current| current.spec.config == spec.config);
        let start = JobChange::Start(Arc::new(spec.clone()));
        if let Err(refusal) = state.training().check_job(&start)
            && !is_known
        {
            return self.view().job_refusal(&refusal).into();
        }
        let checkpoint_thread = self.ports.tasks.checkpoint_thread();
        let fetches = &self.ports.data_fetches;
        // Whether or not the first is here, each that is counts as new.
        let (here, missing): (Vec<_>, Vec<_>) = job
            .data()
            .into_iter()
            .partition(|name| has_data(checkpoint_thread, *name) && !fetches.is_unsound(*name));
        if let Some(missing) = missing.first() {
            return ApiAnswer::DataWanted(self.uploads.begin(*missing)).into();
        }
        let uncompared = fetches.uncompared(&here);
        if may_wait && !uncompared.is_empty() {
            for name in uncompared {
                fetch_data_of(name, self.ports.other_holders(), &mut self.ports);
            }
            return RequestOutcome::Compare(submitted);
        }
        self.begin_run(spec)
    }

    fn begin_run(&self, spec: JobSpec) -> RequestOutcome {
        let events_from = self.ports.journal.next_event();
        let (disposition, change) = run_start(self.ports.state().job(), spec);
        match change {
            None => self.view().run_accepted(disposition, events_from).into(),
            Some(change) => RequestOutcome::Command(
                OperatorCommand::Job(change),
                CommandAnswer::Run { disposition, events_from },
            ),
        }
    }

    /// Proposes a command, which is answered when it is applied.
    fn propose_command(
        &mut self,
        command: OperatorCommand,
        (reply, answer): (RequestReply, CommandAnswer),
    ) {
        if let Err(refusal) = self.commands.check_space() {
            return refuse(reply, ApiRefusal::OutOfResource { what: refusal.to_string() });
        }
        let outcome = self.ports.propose(command.clone());
        self.links.connected.note_command(&command, &outcome);
        let answer = match outcome {
            Ok(CommandOutcome::Proposed { index, term }) => {
                return self.commands.insert((index, term), (reply, answer));
            }
            Ok(CommandOutcome::Noted) => self.answer_applied(answer),
            Err(CoreRefusal::NotLeader { .. }) => self.view().redirect(),
            Err(refusal) => ApiAnswer::Refused(self.view().refusal(&refusal)),
        };
        requests::reply(reply, &answer);
    }

    /// The entry of this index and term was applied, or changed nothing.
    pub(super) fn answer_command(&mut self, entry: (u64, u64), result: Result<(), EntryRefusal>) {
        let Some((reply, answer)) = self.commands.remove(entry) else { return };
        let answer = match result {
            Ok(()) => self.answer_applied(answer),
            Err(refusal) => ApiAnswer::Refused(self.view().entry_refusal(&refusal)),
        };
        requests::reply(reply, &answer);
    }

    fn answer_applied(&mut self, answer: CommandAnswer) -> ApiAnswer {
        match answer {
            CommandAnswer::Done(summary) => ApiAnswer::Done(summary),
            CommandAnswer::TokenCreated { id, text, addresses } => {
                let tokens = self.ports.state().access().tokens();
                match tokens.get(&id).map(|token| token_info(id, token)) {
                    Some(info) => ApiAnswer::Token(TokenCreated { token: text, info, addresses }),
                    None => not_found(ResourceKind::Token, id.to_string()),
                }
            }
            // Once it is revoked no node is admitted with it any more: a use on its way would be
            // missed before.
            CommandAnswer::TokenRevoked { token, with_nodes } => {
                let what = format!("token {token} is revoked");
                let access = self.ports.state().access();
                let nodes = if with_nodes { access.joined_with(token) } else { Vec::new() };
                for node in &nodes {
                    // A node that is removed already stays removed.
                    let _ = self.ports.propose(OperatorCommand::Remove(*node));
                }
                ApiAnswer::Done(ChangeSummary { what, nodes })
            }
            CommandAnswer::Job => match self.view().job_status() {
                Some(job) => ApiAnswer::Job(Box::new(job)),
                None => ApiAnswer::Refused(ApiRefusal::WrongState(WrongState::NoRun {
                    was: RunAbsence::Never,
                })),
            },
            CommandAnswer::Run { disposition, events_from } => {
                self.view().run_accepted(disposition, events_from)
            }
            CommandAnswer::Rotation => self.rotation.answer(self.ports.state()),
        }
    }

    /// A piece of an upload was written, or not.
    pub(super) fn handle_upload_write(&mut self, result: UploadWriteResult) {
        let UploadWriteResult { hash, after, outcome, reply } = result;
        let (whole, answer) = self.uploads.note_written((hash, after), outcome);
        if let Some(name) = whole {
            self.ports.data_fetches.note_uploaded(name);
            let others = self.ports.other_controllers();
            self.ports.outbox.send_to_all(others, &NodeMessage::KeepData(name));
        }
        requests::reply(reply, &answer);
    }
}

/// `token create`: its text goes to whoever requests it, and a verifier into the log.
fn create_token(request: TokenRequest, authority: SpkiPin, state: &State) -> RequestOutcome {
    let NewToken { id, text, change } = NewToken::create(request, authority, UnixSeconds::now().0);
    let addresses = controller_addresses(state);
    let answer = CommandAnswer::TokenCreated { id, text, addresses };
    RequestOutcome::Command(OperatorCommand::Access(change), answer)
}

fn revoke_token(id: String, with_nodes: bool, access: &AccessRegistry) -> RequestOutcome {
    let Ok(number) = u64::from_str_radix(&id, 16) else {
        return not_found(ResourceKind::Token, id).into();
    };
    let token = TokenId(number);
    // What a token was is forgotten in the end, and those who joined with it are still let in.
    if access.is_spent_with_nodes(token) {
        return match access.joined_with(token)[..] {
            [node, ..] if with_nodes => RequestOutcome::Command(
                OperatorCommand::Access(AccessChange::Revoked { node }),
                CommandAnswer::TokenRevoked { token, with_nodes },
            ),
            [..] => ApiRefusal::WrongState(WrongState::TokenRevoked { id }).into(),
        };
    }
    let command = OperatorCommand::Access(AccessChange::TokenRevoked { token });
    RequestOutcome::Command(command, CommandAnswer::TokenRevoked { token, with_nodes })
}

fn change_job(change: JobChange) -> RequestOutcome {
    RequestOutcome::Command(OperatorCommand::Job(change), CommandAnswer::Job)
}

pub(super) fn not_found(thing: ResourceKind, name: String) -> ApiAnswer {
    ApiAnswer::Refused(ApiRefusal::NotFound { thing, name })
}

fn refuse(reply: RequestReply, refusal: ApiRefusal) {
    requests::reply(reply, &ApiAnswer::Refused(refusal));
}
