//! A run that a client submits: its job, and the work to be done for it.

use std::sync::Arc;

use zbelastic_consensus::job::{Job, JobChange, JobPhase, JobSpec};
use zbelastic_consensus::state::State;
use zbelastic_wire::document::{DataName, DocumentError, JobDocument, default_run_name};

use super::runs::RunCatalog;
use zbelastic_api::{ApiRefusal, CorpusDescription, ResourceKind, RunDisposition, WrongState};
use zbelastic_config::{
    WeightSource, check_cluster_can_run, check_no_island, load_changed, load_document,
};
use zbelastic_wording::CommandFailure;

/// A run as a client submits it.
#[derive(Clone)]
pub(super) struct SubmittedRun {
    pub(super) job: SubmittedJob,
    /// The name of the run, if the client chose one.
    pub(super) name: Option<String>,
    /// The run that it continues, from its last checkpoint.
    pub(super) from: Option<String>,
}

/// What a submitted run trains.
#[derive(Clone)]
pub(super) enum SubmittedJob {
    Own {
        /// A configuration, or a complete document.
        document: String,
        corpus: CorpusDescription,
        weights: Option<CorpusDescription>,
    },
    /// What the run that it continues trains, but for some keys.
    Changed {
        /// The keys, as TOML.
        changes: String,
    },
}

impl SubmittedRun {
    /// The job that the run would be, and its specification for the log.
    ///
    /// # Errors
    /// If the document cannot be run by a cluster, or the run would not be another one.
    pub(super) fn prepare(self, state: &State) -> Result<(JobDocument, JobSpec), ApiRefusal> {
        let Self { job, name, from } = self;
        let runs = RunCatalog::of(state);
        let job = match job {
            SubmittedJob::Own { document, corpus, weights } => {
                submitted_document(&document, (corpus, weights))?
            }
            SubmittedJob::Changed { changes } => changed_job(runs, from.as_deref(), &changes)?,
        };
        let job = runs.branched(job, from)?;
        with_run_name(job, name, state)
    }
}

/// The work for a run that may begin: whether its job is agreed on already, and if it is not
/// running, the change to propose.
pub(super) fn run_start(job: Option<&Job>, spec: JobSpec) -> (RunDisposition, Option<JobChange>) {
    match job.filter(|job| job.spec.config == spec.config).map(|job| job.phase) {
        Some(JobPhase::Running) => (RunDisposition::Attached, None),
        Some(JobPhase::Done) => (RunDisposition::Done, None),
        Some(JobPhase::Paused | JobPhase::Halted(_)) => {
            (RunDisposition::Continued, Some(JobChange::Continue))
        }
        Some(JobPhase::Stopped) | None => {
            (RunDisposition::Started, Some(JobChange::Start(Arc::new(spec))))
        }
    }
}

/// The run under the requested name. Without one it is the run that was submitted so before, if
/// that is under way or kept, and gets a name that no run has otherwise.
fn with_run_name(
    mut job: JobDocument,
    name: Option<String>,
    state: &State,
) -> Result<(JobDocument, JobSpec), ApiRefusal> {
    let current = state.job().filter(|current| current.phase != JobPhase::Stopped);
    let current = current.and_then(|current| JobDocument::of_job(&current.spec).ok());
    let current =
        current.filter(|current| current.job.is_same_run(&job)).map(|current| current.job.name);
    job.name = match (name, current) {
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => {
            let runs = RunCatalog::of(state);
            if let Some(name) = runs.ended_as(&job) {
                return Err(ApiRefusal::WrongState(WrongState::Kept { name }));
            }
            runs.free_name(&job.name)
        }
    };
    let malformed = |error: DocumentError| ApiRefusal::Malformed { what: error.to_string() };
    let spec = job.spec(job.encode().map_err(malformed)?);
    Ok((job, spec))
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

/// The job of a run that is kept, with these changes.
fn changed_job(
    runs: RunCatalog<'_>,
    from: Option<&str>,
    changes: &str,
) -> Result<JobDocument, ApiRefusal> {
    let kept = runs.find(from);
    let Some(kept) = kept else {
        let name = from.unwrap_or_default().to_owned();
        return Err(ApiRefusal::NotFound { thing: ResourceKind::Run, name });
    };
    let malformed = |error: DocumentError| ApiRefusal::Malformed { what: error.to_string() };
    let job = JobDocument::of_job(kept.spec).map_err(malformed)?.job;
    let changed = load_changed("the run's configuration", &job.toml, changes)
        .and_then(|changed| check_cluster_can_run(&changed.config).map(|()| changed.config))
        .and_then(|config| check_no_island(&config, "--from").map(|()| config));
    Ok(job.over_same_data(changed.map_err(|failure| config_refusal(&failure))?))
}

fn config_refusal(failure: &CommandFailure) -> ApiRefusal {
    let problems = failure.details.iter().map(|detail| detail.what.clone()).collect();
    ApiRefusal::Config { problems }
}
