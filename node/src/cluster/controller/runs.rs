//! Runs that are kept, as they follow from the agreed entries: the one under way, and those that
//! ended; their checkpoints, and the pieces that stores keep of them.

use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointId, Manifest};
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::job::{Job, JobPhase, JobSpec, RunOrigin};
use zbelastic_consensus::run_record::RunRecord;
use zbelastic_consensus::state::State;
use zbelastic_policy::data::DataName;
use zbelastic_trainer::digest::state_digest;
use zbelastic_types::{Bytes, Digest, LayerId, RunId, Step};
use zbelastic_wire::document::{JobDocument, NoMoments};
use zbelastic_wire::{PieceRef, StoreReferences};

use super::checkpoints::no_layer;
use crate::cluster::recovery::CheckpointDocument;
use zbelastic_api::{ApiRefusal, EventKind, HexDigest, ResourceKind, WrongState};

/// A run that is kept.
pub(super) struct RetainedRun<'a> {
    pub(super) spec: &'a Arc<JobSpec>,
    pub(super) phase: JobPhase,
    pub(super) checkpoints: &'a [CheckpointRecord],
}

impl<'a> RetainedRun<'a> {
    fn of_job(job: &'a Job, state: &'a State) -> Self {
        Self { spec: &job.spec, phase: job.phase, checkpoints: state.checkpoints() }
    }

    fn of_ended(ended: &'a RunRecord) -> Self {
        let checkpoints = std::slice::from_ref(&ended.checkpoint);
        Self { spec: &ended.spec, phase: ended.phase, checkpoints }
    }

    fn record(&self, step: u64) -> Option<&'a CheckpointRecord> {
        self.checkpoints.iter().find(|found| found.version == Step(step))
    }

    /// The piece of a layer at a checkpoint.
    pub(super) fn piece(&self, step: u64, layer: u32) -> Option<PieceRef> {
        let record = self.record(step)?;
        let digest = *record.layers.get(layer as usize)?;
        let length = *self.spec.layer_bytes.get(layer as usize)?;
        let run = self.spec.run_of(Step(step));
        let version = Step(step);
        let layer = LayerId(layer);
        Some(PieceRef { run, version, layer, digest, length })
    }

    pub(super) fn bytes(&self) -> Bytes {
        Bytes(self.spec.layer_bytes.iter().sum())
    }
}

/// The digest of the state at a checkpoint.
pub(super) fn digest_of(record: &CheckpointRecord) -> HexDigest {
    let digest = state_digest(record.layers.iter().copied(), record.ledger.updates());
    HexDigest(Digest(digest.0))
}

/// The runs that are kept.
#[derive(Clone, Copy)]
pub(super) struct RunCatalog<'a> {
    state: &'a State,
}

impl<'a> RunCatalog<'a> {
    pub(super) const fn of(state: &'a State) -> Self {
        Self { state }
    }

    /// Runs that are kept, newest first.
    pub(super) fn all(self) -> impl Iterator<Item = RetainedRun<'a>> {
        let job = self.state.job().map(|job| RetainedRun::of_job(job, self.state));
        job.into_iter().chain(self.state.ended().iter().rev().map(RetainedRun::of_ended))
    }

    /// The run with this name, or the newest.
    pub(super) fn find(self, name: Option<&str>) -> Option<RetainedRun<'a>> {
        self.all().find(|view| name.is_none_or(|name| view.spec.name == name))
    }

    /// The name of a run, or its number if it is not kept.
    pub(super) fn name_of(self, run: RunId) -> String {
        self.retained_name(run).unwrap_or_else(|| run.to_string())
    }

    /// The name of a run, if it is kept.
    pub(super) fn retained_name(self, run: RunId) -> Option<String> {
        self.all().find(|view| view.spec.run == run).map(|view| view.spec.name.clone())
    }

    /// A run that ended, with its kept record, that was submitted as this document but for its
    /// name.
    pub(super) fn ended_as(self, job: &JobDocument) -> Option<String> {
        let is_same = |ended: &&RunRecord| {
            JobDocument::of_job(&ended.spec).is_ok_and(|document| document.job.is_same_run(job))
        };
        self.state.ended().iter().find(is_same).map(|ended| ended.spec.name.clone())
    }

    /// A name that no run has: this one, or this one with a number.
    pub(super) fn free_name(self, name: &str) -> String {
        let is_free = |name: &str| self.find(Some(name)).is_none();
        let numbered = (2..).map(|number: u32| format!("{name}-{number}"));
        let mut names = [name.to_owned()].into_iter().chain(numbered);
        names.find(|name| is_free(name)).expect("there are fewer runs than numbers")
    }

    /// The piece of a layer at a checkpoint of the run with this name, or of the newest.
    ///
    /// # Errors
    /// If the run has no checkpoint of this step, or that no such layer.
    pub(super) fn piece(
        self,
        run: Option<&str>,
        layer: (u64, u32),
    ) -> Result<PieceRef, ApiRefusal> {
        let piece = self.find(run).and_then(|view| view.piece(layer.0, layer.1));
        piece.ok_or_else(|| no_layer(layer))
    }

    /// The pieces of the last checkpoint of each run that is over.
    pub(super) fn ended_pieces(self) -> Vec<PieceRef> {
        let over = self.all().filter(|view| is_over(view.phase));
        let pieces = over.flat_map(|view| {
            let last = view.checkpoints.last().map_or(0, |record| record.version.0);
            let layers = 0..view.spec.layer_count();
            layers.filter_map(|layer| view.piece(last, layer)).collect::<Vec<_>>()
        });
        pieces.collect()
    }

    /// A job that continues from the last checkpoint of the run with this name.
    pub(super) fn branched(
        self,
        mut job: JobDocument,
        from: Option<String>,
    ) -> Result<JobDocument, ApiRefusal> {
        let Some(name) = from else { return Ok(job) };
        let Some(parent) = self.find(Some(&name)) else {
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
        let earlier = JobDocument::of_job(parent.spec).ok().map(|named| named.job);
        let has_shape = |it: &JobDocument| it.config.model.has_shape_of(&job.config.model);
        let Some(earlier) = earlier.filter(has_shape) else {
            return Err(ApiRefusal::WrongState(WrongState::OtherModel { name }));
        };
        if earlier.config.checkpoint.folder != job.config.checkpoint.folder {
            // Nodes have one store open, and the parent's checkpoint is in that one.
            let what = format!("checkpoint.dir: another one than that of run {name}");
            return Err(ApiRefusal::Config { problems: vec![what] });
        }
        let without = |error: NoMoments| ApiRefusal::Config { problems: vec![error.to_string()] };
        job = job.with_moments_of(&earlier).map_err(without)?;
        let run = parent.spec.run_of(last.version);
        let version = last.version;
        job.from = Some(RunOrigin { run, version, state: digest_of(last).0 });
        Ok(job)
    }

    /// Checkpoints, versions that are to become some, and data that runs refer to.
    pub(super) fn references(self) -> StoreReferences {
        let data = self.data_names();
        let data = data.map(|names| names.into_iter().map(|name| name.hash).collect());
        StoreReferences { versions: self.referred_versions(), data }
    }

    /// Checkpoints of all runs, and versions that are to become some.
    pub(super) fn referred_versions(self) -> Vec<CheckpointId> {
        let state = self.state;
        let kept = state.ended().iter().map(|ended| {
            let run = ended.run();
            let version = ended.checkpoint.version;
            CheckpointId { run, version }
        });
        let mut versions: Vec<_> = kept.collect();
        let Some(job) = state.job() else {
            // Nothing of any run is newer than the beginning of the next.
            let run = state.training().runs().run_next();
            versions.push(CheckpointId { run, version: Step(0) });
            return versions;
        };
        let checkpoints = state.checkpoints().iter().map(|checkpoint| checkpoint.version);
        let pending = state.pending().iter().map(|pending| pending.version);
        let of_job = [Step(0)].into_iter().chain(checkpoints).chain(pending);
        let named = |version| CheckpointId { run: job.spec.run_of(version), version };
        versions.extend(of_job.map(named));
        versions
    }

    /// Texts and weights of all runs, unless this version cannot read the document of one.
    pub(super) fn data_names(self) -> Option<Vec<DataName>> {
        let state = self.state;
        let specs = state.ended().iter().map(|ended| &ended.spec);
        let specs = specs.chain(state.job().map(|job| &job.spec));
        let names = specs.map(|spec| Some(JobDocument::of_job(spec).ok()?.job.data()));
        Some(names.collect::<Option<Vec<_>>>()?.concat())
    }

    pub(super) fn manifest(self, version: Step) -> Option<Manifest> {
        let state = self.state;
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        let class = state.training().runs().class();
        CheckpointDocument::of(&state.job()?.spec, record, class).manifest()
    }

    /// The manifests of runs that ended.
    pub(super) fn ended_manifests(self) -> Vec<Manifest> {
        let ended = self.state.ended().iter();
        let of = |run: &RunRecord| CheckpointDocument::of(&run.spec, &run.checkpoint, run.class);
        ended.filter_map(|run| of(run).manifest()).collect()
    }

    /// The digest of the state at a version, if there is a checkpoint of it.
    pub(super) fn state_digest(self, version: Step) -> Option<HexDigest> {
        let state = self.state;
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        Some(digest_of(record))
    }

    /// An event that names the state's digest, where it is known.
    pub(super) fn with_digest(self, kind: EventKind) -> EventKind {
        if let EventKind::Done { step, digest: None } = kind {
            EventKind::Done { step, digest: self.state_digest(Step(step)) }
        } else {
            kind
        }
    }
}

/// Whether a run with this phase has ended.
pub(super) const fn is_over(phase: JobPhase) -> bool {
    match phase {
        JobPhase::Done | JobPhase::Stopped => true,
        JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => false,
    }
}
