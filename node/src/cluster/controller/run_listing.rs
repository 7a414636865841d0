//! Runs and their checkpoints, as clients list them.

use zbelastic_checkpoint::CheckpointStore as _;
use zbelastic_consensus::job::{JobPhase, RunOrigin};
use zbelastic_types::{Bytes, NodeId};
use zbelastic_wire::PieceRef;
use zbelastic_wire::document::JobDocument;
use zbelastic_wire::job_store::tokenizer_of;

use super::answers::not_found;
use super::ports::holders;
use super::runs::{RetainedRun, RunCatalog, digest_of};
use super::status::StatusView;
use zbelastic_api::{
    ApiAnswer, CheckpointDetail, CheckpointStatus, HexDigest, JobPhaseStatus, LayerDetail,
    OriginStatus, ResourceKind, RunStatus,
};

impl StatusView<'_> {
    /// The runs that are kept.
    pub(super) fn catalog(&self) -> RunCatalog<'_> {
        RunCatalog::of(self.state())
    }

    pub(super) fn runs(&self) -> Vec<RunStatus> {
        let mut runs: Vec<RunStatus> =
            self.catalog().all().map(|view| self.run_status(&view)).collect();
        runs.reverse();
        runs
    }

    fn run_status(&self, view: &RetainedRun<'_>) -> RunStatus {
        let state = self.state();
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
        let name = self.catalog().retained_name(run);
        OriginStatus { run: run.0, name, step: version.0, digest: HexDigest(state) }
    }

    /// Checkpoints of a run, oldest first; none of one that there is not.
    pub(super) fn checkpoints(&self, run: Option<&str>) -> Vec<CheckpointStatus> {
        let holders = holders(self.state());
        let Some(view) = self.catalog().find(run) else { return Vec::new() };
        let copies = JobDocument::of_job(view.spec)
            .map_or(0, |document| document.job.config.checkpoint.copies);
        let is_job = self.run_log.job().is_some_and(|job| job.run == view.spec.run);
        let status = view.checkpoints.iter().map(|record| CheckpointStatus {
            step: record.version.0,
            at_ms: self.run_log.checkpoint_time(record.version).filter(|_| is_job),
            bytes: view.bytes(),
            digest: digest_of(record),
            holders: holders.clone(),
            copies: copies + 1,
        });
        status.collect()
    }

    pub(super) fn list_checkpoints(&self, run: Option<&str>) -> ApiAnswer {
        match run {
            Some(name) if self.catalog().find(run).is_none() => {
                not_found(ResourceKind::Run, name.to_owned())
            }
            Some(_) | None => ApiAnswer::Checkpoints(self.checkpoints(run)),
        }
    }

    pub(super) fn checkpoint(&self, run: Option<&str>, step: u64) -> ApiAnswer {
        let summary = self.checkpoints(run).into_iter().find(|found| found.step == step);
        let view = self.catalog().find(run);
        let job = view.as_ref().and_then(|view| JobDocument::of_job(view.spec).ok());
        let (Some(summary), Some(view), Some(job)) = (summary, view, job) else {
            return not_found(ResourceKind::Checkpoint, step.to_string());
        };
        let pieces = (0..view.spec.layer_count()).filter_map(|layer| view.piece(step, layer));
        let holders_of = |piece: PieceRef| -> Vec<NodeId> {
            let record =
                self.tasks.checkpoint_thread().store().map(|store| store.record(piece.name()));
            let is_stored = matches!(record, Some(Ok(Some(_))));
            if is_stored { vec![self.facts.node] } else { Vec::new() }
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
            tokenizer: Some(HexDigest(tokenizer_of(&job.job.stores))),
            end_of_text: job.job.stores.first().and_then(|store| store.manifest.end_of_text),
            layers: layers.collect(),
        })
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
