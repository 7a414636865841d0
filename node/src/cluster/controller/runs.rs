//! Runs that are kept: the one under way, and those that ended.

use std::sync::Arc;

use zbelastic_api::{
    ApiAnswer, ApiRefusal, ChangeSummary, CheckpointDetail, CheckpointStatus, HexDigest,
    JobPhaseStatus, LayerDetail, OriginStatus, ResourceKind, RunStatus, WrongState,
};
use zbelastic_checkpoint::CheckpointStore as _;
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::core::OperatorCommand;
use zbelastic_consensus::job::{Job, JobChange, JobPhase, JobSpec, RunOrigin};
use zbelastic_consensus::run::RunRecord;
use zbelastic_trainer::digest::state_digest;
use zbelastic_transport::RequestReply;
use zbelastic_types::{Bytes, Digest, LayerId, NodeId, RunId, Step};

use super::ControllerNode;
use super::answers::not_found;
use crate::cluster::document::JobDocument;
use crate::cluster::wire::PieceRef;

/// A run that is kept.
pub(super) struct RetainedRun<'a> {
    spec: &'a Arc<JobSpec>,
    phase: JobPhase,
    checkpoints: &'a [CheckpointRecord],
}

impl<'a> RetainedRun<'a> {
    fn of_ended(ended: &'a RunRecord) -> Self {
        let checkpoints = std::slice::from_ref(&ended.checkpoint);
        Self { spec: &ended.spec, phase: ended.phase, checkpoints }
    }

    fn record(&self, step: u64) -> Option<&'a CheckpointRecord> {
        self.checkpoints.iter().find(|found| found.version == Step(step))
    }

    /// The piece of a layer at a checkpoint.
    fn piece(&self, step: u64, layer: u32) -> Option<PieceRef> {
        let record = self.record(step)?;
        let digest = *record.layers.get(layer as usize)?;
        let length = *self.spec.layer_bytes.get(layer as usize)?;
        let run = self.spec.run_of(Step(step));
        let version = Step(step);
        let layer = LayerId(layer);
        Some(PieceRef { run, version, layer, digest, length })
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.spec.layer_bytes.iter().sum())
    }
}

/// The digest of the state at a checkpoint.
pub(super) fn digest_of(record: &CheckpointRecord) -> HexDigest {
    let digest = state_digest(record.layers.iter().copied(), record.ledger.updates());
    HexDigest(Digest(digest.0))
}

impl ControllerNode {
    fn job_view<'a>(&'a self, job: &'a Job) -> RetainedRun<'a> {
        let checkpoints = self.core.state().checkpoints();
        RetainedRun { spec: &job.spec, phase: job.phase, checkpoints }
    }

    /// Runs that are kept, newest first.
    fn retained_runs(&self) -> impl Iterator<Item = RetainedRun<'_>> {
        let state = self.core.state();
        let job = state.job().map(|job| self.job_view(job));
        job.into_iter().chain(state.ended().iter().rev().map(RetainedRun::of_ended))
    }

    /// The pieces of the last checkpoint of each run that is over.
    pub(super) fn ended_pieces(&self) -> Vec<PieceRef> {
        let over = self.retained_runs().filter(|view| is_over(view.phase));
        let pieces = over.flat_map(|view| {
            let last = view.checkpoints.last().map_or(0, |record| record.version.0);
            let layers = 0..view.spec.layer_count();
            layers.filter_map(|layer| view.piece(last, layer)).collect::<Vec<_>>()
        });
        pieces.collect()
    }

    /// The run with this name, or the newest.
    fn retained_run(&self, name: Option<&str>) -> Option<RetainedRun<'_>> {
        self.retained_runs().find(|view| name.is_none_or(|name| view.spec.name == name))
    }

    /// What a run is called, or its number if it is not kept.
    pub(super) fn name_of_run(&self, run: RunId) -> String {
        self.retained_name(run).unwrap_or_else(|| run.to_string())
    }

    fn retained_name(&self, run: RunId) -> Option<String> {
        self.retained_runs().find(|view| view.spec.run == run).map(|view| view.spec.name.clone())
    }

    /// A run that ended, with what is kept of it, that was submitted as this document but for its
    /// name.
    pub(super) fn retained_as(&self, job: &JobDocument) -> Option<String> {
        let state = self.core.state();
        let is_same = |ended: &&RunRecord| {
            JobDocument::of_job(&ended.spec).is_ok_and(|document| document.job.is_same_run(job))
        };
        state.ended().iter().find(is_same).map(|ended| ended.spec.name.clone())
    }

    /// A name that no run has: this one, or this one with a number.
    pub(super) fn free_name(&self, name: &str) -> String {
        let is_free = |name: &str| self.retained_run(Some(name)).is_none();
        let numbered = (2..).map(|number: u32| format!("{name}-{number}"));
        let mut names = [name.to_owned()].into_iter().chain(numbered);
        names.find(|name| is_free(name)).expect("there are fewer runs than numbers")
    }

    pub(super) fn piece(&self, run: Option<&str>, step: u64, layer: u32) -> Option<PieceRef> {
        self.retained_run(run)?.piece(step, layer)
    }

    pub(super) fn runs(&self) -> Vec<RunStatus> {
        let mut runs: Vec<RunStatus> =
            self.retained_runs().map(|view| self.run_status(&view)).collect();
        runs.reverse();
        runs
    }

    fn run_status(&self, view: &RetainedRun<'_>) -> RunStatus {
        let state = self.core.state();
        let is_job = state.job().is_some_and(|job| job.spec.run == view.spec.run);
        let last = view.checkpoints.last();
        let (phase, step) = if is_job {
            (self.phase(view.phase), state.open_turn().step.0)
        } else {
            (ended_phase(view.phase), last.map_or(0, |record| record.version.0))
        };
        RunStatus {
            run: view.spec.run.0,
            name: view.spec.name.clone(),
            config: HexDigest(view.spec.config),
            phase,
            step,
            step_count: view.spec.step_count,
            from: view.spec.from.map(|from| self.origin_status(from)),
            checkpoints: view.checkpoints.iter().map(|record| record.version.0).collect(),
            digest: last.map(digest_of),
            bytes: view.bytes(),
        }
    }

    fn origin_status(&self, from: RunOrigin) -> OriginStatus {
        let RunOrigin { run, version, state } = from;
        let name = self.retained_name(run);
        OriginStatus { run: run.0, name, step: version.0, digest: HexDigest(state) }
    }

    /// A job that continues from the last checkpoint of the run with this name.
    pub(super) fn branched(
        &self,
        mut job: JobDocument,
        from: Option<String>,
    ) -> Result<JobDocument, ApiRefusal> {
        let Some(name) = from else { return Ok(job) };
        let Some(parent) = self.retained_run(Some(&name)) else {
            return Err(ApiRefusal::NotFound { thing: ResourceKind::Run, name });
        };
        if !is_over(parent.phase) {
            return Err(ApiRefusal::WrongState(WrongState::RunLive { name }));
        }
        let Some(last) = parent.checkpoints.last() else {
            return Err(ApiRefusal::NotFound {
                thing: ResourceKind::Checkpoint,
                name: format!("of run {name}"),
            });
        };
        let config = JobDocument::of_job(parent.spec).ok().map(|config| config.job.config);
        let Some(config) = config.filter(|config| config.model == job.config.model) else {
            return Err(ApiRefusal::WrongState(WrongState::OtherModel { name }));
        };
        if config.checkpoint.folder != job.config.checkpoint.folder {
            // Nodes have one store open, and the parent's checkpoint is in that one.
            let what = format!("checkpoint.dir: another one than that of run {name}");
            return Err(ApiRefusal::Config { problems: vec![what] });
        }
        let run = parent.spec.run_of(last.version);
        let version = last.version;
        job.from = Some(RunOrigin { run, version, state: digest_of(last).0 });
        Ok(job)
    }

    /// Checkpoints of a run, oldest first; none of one that there is not.
    pub(super) fn checkpoints(&self, run: Option<&str>) -> Vec<CheckpointStatus> {
        let holders = self.holders();
        let Some(view) = self.retained_run(run) else { return Vec::new() };
        let copies = JobDocument::of_job(view.spec)
            .map_or(0, |document| document.job.config.checkpoint.copies);
        let times = &self.run_log.checkpoint_times;
        let is_job = self.run_log.job().is_some_and(|job| job.run == view.spec.run);
        let status = view.checkpoints.iter().map(|record| CheckpointStatus {
            step: record.version.0,
            at_ms: times.get(&record.version).copied().filter(|_| is_job),
            bytes: view.bytes(),
            digest: digest_of(record),
            holders: holders.clone(),
            copies: copies + 1,
        });
        status.collect()
    }

    pub(super) fn list_checkpoints(&self, run: Option<&str>) -> ApiAnswer {
        match run {
            Some(name) if self.retained_run(run).is_none() => {
                not_found(ResourceKind::Run, name.to_owned())
            }
            Some(_) | None => ApiAnswer::Checkpoints(self.checkpoints(run)),
        }
    }

    pub(super) fn checkpoint(&self, run: Option<&str>, step: u64) -> ApiAnswer {
        let summary = self.checkpoints(run).into_iter().find(|found| found.step == step);
        let view = self.retained_run(run);
        let job = view.as_ref().and_then(|view| JobDocument::of_job(view.spec).ok());
        let (Some(summary), Some(view), Some(job)) = (summary, view, job) else {
            return not_found(ResourceKind::Checkpoint, step.to_string());
        };
        let pieces = (0..view.spec.layer_count()).filter_map(|layer| view.piece(step, layer));
        let holders_of = |piece: PieceRef| -> Vec<NodeId> {
            let record = self.checkpoint_thread.store().map(|store| store.record(piece.name()));
            let is_stored = matches!(record, Some(Ok(Some(_))));
            if is_stored { vec![self.setup.node] } else { Vec::new() }
        };
        let layers = pieces.map(|piece| LayerDetail {
            layer: piece.layer.0,
            digest: HexDigest(piece.digest),
            bytes: Bytes(piece.length),
            holders: holders_of(piece),
        });
        ApiAnswer::Checkpoint(CheckpointDetail {
            summary,
            document: job.job.toml.clone(),
            corpus: HexDigest(job.job.text.hash),
            layers: layers.collect(),
        })
    }

    pub(super) fn remove_run(&mut self, name: String, run: RunId, reply: RequestReply) {
        let view = self.retained_run(Some(&name)).filter(|view| view.spec.run == run);
        let Some(view) = view else {
            return self.reply(reply, &not_found(ResourceKind::Run, name));
        };
        if !is_over(view.phase) {
            let refusal = ApiRefusal::WrongState(WrongState::RunLive { name });
            return self.reply(reply, &ApiAnswer::Refused(refusal));
        }
        let command = OperatorCommand::Job(JobChange::Remove(view.spec.run));
        let summary = ChangeSummary { what: format!("run {name} is removed"), nodes: Vec::new() };
        self.propose_command(command, reply, Box::new(|_| ApiAnswer::Done(summary)));
    }
}

const fn is_over(phase: JobPhase) -> bool {
    match phase {
        JobPhase::Done | JobPhase::Stopped => true,
        JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => false,
    }
}

fn ended_phase(phase: JobPhase) -> JobPhaseStatus {
    match phase {
        JobPhase::Done => JobPhaseStatus::Done,
        JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) | JobPhase::Stopped => {
            JobPhaseStatus::Stopped
        }
    }
}
