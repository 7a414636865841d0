//! `train` as a cluster of processes on this machine: a controller, and a process for each worker
//! that a person can kill. Whichever ends is started again, and the layers it held come from the
//! others; the run ends with the same bits.
//!
//! It is the cluster of `init`, `join` and `run`, certificates and all: nothing here has a path of
//! its own. The processes' folders lie in the run folder, so that the same command with the same
//! `--out` goes on with a run that was interrupted.

mod children;
mod follow;
mod mirror_wait;
mod model;
mod poll_pace;
mod stall;
mod superseded;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ApiRequest, CorpusDescription, HexDigest, JobPhaseStatus, MemberRole,
    MemberState, OriginStatus, RunStatus, StatusReport, TokenRequest, TokenRole, WrongState,
};
use zbelastic_consensus::job::RunOrigin;
use zbelastic_local::coordinator::{RunOutcome, TrainedWeights};
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_types::{Bytes, RunId, Step};
use zbelastic_ui::PageObserver;
use zbelastic_wire::document::JobDocument;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::events::BranchEvent;
use super::folder::{RunStart, begin_branch};
use super::prepare::PreparedRun;
use super::run_devices::DeviceSharing;
use crate::blob::Blob;
use crate::command_connection::exchange;
use crate::live_page::{ObservationSink, ObservedCluster, ObserverThread, observe_in_thread};
use crate::run_files::{CONFIG, MODEL};
use crate::span_exporter::{SpanCollector, SpanExporter};
use children::{ChildProcesses, WorkerDevices};
use follow::{FollowOptions, FollowOutcome, RunObserver, follow};
use mirror_wait::await_mirror;
use model::{ModelSource, ModelWriter, WrittenModel};
use poll_pace::POLL_PAUSE;
use stall::{STALL_TIMEOUT, StallTimer};
use superseded::remove_superseded;

pub use follow::ClusterRunEvent;

/// A token is used within this.
const TOKEN_S: u64 = 3600;

/// The job, as it is submitted to the cluster.
pub struct JobSubmission {
    /// Configuration of the job.
    pub document: JobDocument,
    /// Its text or the shards of its stores, and the weights that it begins with.
    pub data: Vec<Blob>,
}

impl JobSubmission {
    /// The data with this hash.
    fn blob_of(&self, hash: HexDigest) -> Result<&Blob, CommandFailure> {
        let found = self.data.iter().find(|blob| HexDigest(blob.name.hash) == hash);
        found.ok_or_else(|| {
            let what = format!("the controller wants {hash}, which is not here");
            CommandFailure::new(FailureCode::Internal, what)
        })
    }
}

/// Where a run of processes lies, and how it begins.
#[derive(Clone, Copy, Debug)]
pub struct RunLocation<'a> {
    /// The run folder; the processes' folders lie in it.
    pub folder: &'a Path,
    /// The configuration that its folder holds once the run has begun.
    pub config: &'a str,
    /// How it begins there.
    pub start: RunStart,
}

/// The run that another run continues.
struct ParentRun {
    name: String,
    /// Steps sealed at its last checkpoint and the digest of the state there, if it has one.
    checkpoint: Option<(u64, Option<HexDigest>)>,
}

/// Who receives what the cluster of the processes answers.
pub struct ProcessObservers {
    pub page: Option<PageObserver>,
    pub collector: Option<SpanCollector>,
}

/// Trains in processes with folders in `location`. `observers` receive what their cluster answers;
/// `observe` is called with each event, and may end the run after the step under way by breaking.
///
/// # Errors
/// If the cluster does not come to be, refuses, or does not get to the end.
pub fn train(
    prepared: &PreparedRun,
    submission: &JobSubmission,
    location: RunLocation<'_>,
    observers: ProcessObservers,
    observe: RunObserver<'_>,
) -> Result<RunOutcome, CommandFailure> {
    let devices = prepared.devices.indices();
    let workers = WorkerDevices {
        threads: prepared.job.threads,
        memory: prepared
            .devices
            .share(prepared.worker_count, DeviceSharing::Processes)
            .filter(|_| !devices.is_empty()),
        devices,
        stores: prepared.text.folders(),
    };
    let RunLocation { folder, config, start: run_start } = location;
    let mut children = ChildProcesses::new(folder, workers)?;
    children.start_controller()?;
    let mut client = connect(&children.controller(), children.address())?;
    poll_until(&mut children, &mut client, "the controller", leads)?;
    let observer = observer(&children, prepared, observers)?;
    for number in 1..=prepared.worker_count {
        let token = if children.is_new(number) {
            Some(poll_until(&mut children, &mut client, "the controller", create_token)?)
        } else {
            None
        };
        children.start_worker(number, token)?;
    }
    let count = prepared.worker_count as usize;
    poll_until(&mut children, &mut client, "all workers", |client| present(client, count))?;
    let parent = parent_of(run_start, submission, &mut client)?;
    let steps_before = match &parent {
        Some(parent) => parent.checkpoint.map_or(0, |(step, _)| step),
        None => client.status().ok().and_then(|status| status.job).map_or(0, |job| job.step),
    };
    let from = parent.as_ref().and_then(|parent| parent.checkpoint.map(|_| parent.name.clone()));
    let accepted = submit(submission, from, &mut client)?;
    let config_before = match run_start {
        RunStart::ResumedFromCheckpoint | RunStart::Branched => {
            Some(begin_branch(folder, config, steps_before)?)
        }
        RunStart::New | RunStart::Resumed => None,
    };
    if run_start == RunStart::Branched {
        prepared.tokenizer.replace(&folder.join(MODEL))?;
    }
    if let Some(ParentRun { name, checkpoint }) = parent {
        remove_superseded(&name, &mut client);
        let digest = checkpoint.and_then(|(_, digest)| digest).map(|digest| digest.to_string());
        // A command that was killed behind the end of its run goes on by the same configuration.
        let config = config_before.unwrap_or_else(|| CONFIG.to_owned());
        let branch = BranchEvent { step: steps_before, digest, config };
        // A failure to print shows again with the next event.
        let _ = observe(ClusterRunEvent::Branch(branch));
    }
    let began = Instant::now();
    let options = FollowOptions {
        interrupt: &prepared.job.interrupt,
        reads_held_out: prepared.text.held_out_windows() > 0,
        bubble_planned: prepared.plan.bubble(),
    };
    let mut writer = ModelWriter::new(ModelSource {
        address: children.address(),
        controller: children.controller(),
        model: prepared.config.model.clone(),
        special_ids: prepared.special_ids.clone(),
        folder: folder.to_owned(),
    });
    let ended = follow(accepted, &options, (&mut children, &mut client), &mut writer, observe)?;
    let timed = (steps_before, began.elapsed());
    if let Some(observer) = observer {
        observer.finish();
    }
    let mirror = prepared.config.checkpoint.mirror.as_deref();
    finish(ended, timed, (writer, mirror), (&mut children, &mut client), observe)
}

/// Observes the processes for a page and a collector of traces, if there is one of them. Yields the
/// thread if it has traces to send to the end.
fn observer(
    children: &ChildProcesses,
    prepared: &PreparedRun,
    ProcessObservers { page, collector }: ProcessObservers,
) -> Result<Option<ObserverThread>, CommandFailure> {
    let start = |collector| SpanExporter::start(collector, &prepared.name);
    let exporter = collector.map(start).transpose()?;
    if page.is_none() && exporter.is_none() {
        return Ok(None);
    }
    let addresses = vec![children.address()];
    let folder = children.controller();
    let history = folder.events();
    let cluster = ObservedCluster { folder, addresses, history };
    let nobody = || ObservationSink { send: Box::new(|_| true), lanes_wanted: Box::new(|| None) };
    let sink = page.map_or_else(nobody, ObservationSink::from);
    // Traces are sent to the end; a page needs nothing more.
    let has_traces = exporter.is_some();
    Ok(Some(observe_in_thread(cluster, sink, exporter)?).filter(|_| has_traces))
}

fn connect(
    controller: &NodeDataFolder,
    address: String,
) -> Result<ApiClient<'static>, CommandFailure> {
    Ok(ApiClient::new(vec![address], exchange(controller)?))
}

/// The result of one poll.
enum PollResult<T> {
    Available(T),
    /// It is not there yet, but so much of it is.
    Partial(usize),
}

/// Repeats a request while more of it is there each time, and keeps the processes alive meanwhile.
fn poll_until<T>(
    children: &mut ChildProcesses,
    client: &mut ApiClient<'_>,
    what: &str,
    mut request: impl FnMut(&mut ApiClient<'_>) -> Result<PollResult<T>, ApiError>,
) -> Result<T, CommandFailure> {
    let mut stall = StallTimer::begin(Instant::now());
    loop {
        children.restart_ended()?;
        let (part, error) = match request(client) {
            Ok(PollResult::Available(found)) => return Ok(found),
            Ok(PollResult::Partial(part)) => (Some(part), None),
            Err(error) => (None, Some(error)),
        };
        if stall.observe(part, Instant::now()) > STALL_TIMEOUT {
            let mut failure = CommandFailure::new(
                FailureCode::Unreachable,
                format!("{what} did not come to be there"),
            );
            failure.details = children.last_log_lines();
            failure.details.extend(error.map(|error| FailureDetail::new(error.to_string())));
            return Err(failure);
        }
        thread::sleep(POLL_PAUSE);
    }
}

fn create_token(client: &mut ApiClient<'_>) -> Result<PollResult<String>, ApiError> {
    let request = TokenRequest {
        role: TokenRole::Worker,
        ttl_s: TOKEN_S,
        uses: 1,
        ephemeral: false,
        note: Some("train".to_owned()),
    };
    Ok(PollResult::Available(client.create_token(request)?.token))
}

/// Commands are applied by the leader, which a controller that comes back becomes after an
/// election.
fn leads(client: &mut ApiClient<'_>) -> Result<PollResult<()>, ApiError> {
    let leader = client.status()?.leader;
    Ok(if leader.is_some() { PollResult::Available(()) } else { PollResult::Partial(0) })
}

fn present(client: &mut ApiClient<'_>, count: usize) -> Result<PollResult<()>, ApiError> {
    let present = workers_present(&client.status()?);
    Ok(if present >= count { PollResult::Available(()) } else { PollResult::Partial(present) })
}

fn workers_present(status: &StatusReport) -> usize {
    let members = status.members.iter();
    let workers = members.filter(|member| member.role == MemberRole::Worker);
    workers.filter(|member| member.standing == MemberState::Present).count()
}

/// The run that this one goes on from: the newest run, which is ended unless it is over. A request
/// that would be refused afterwards is refused before that.
fn parent_of(
    run_start: RunStart,
    submission: &JobSubmission,
    client: &mut ApiClient<'_>,
) -> Result<Option<ParentRun>, CommandFailure> {
    let newest = |client: &mut ApiClient<'_>| client.runs().map(|runs| runs.into_iter().last());
    let Some(run) = newest(client)? else { return Ok(None) };
    let is_ended = match run.phase {
        JobPhaseStatus::Done | JobPhaseStatus::Stopped => true,
        JobPhaseStatus::Running
        | JobPhaseStatus::Waiting { .. }
        | JobPhaseStatus::Paused
        | JobPhaseStatus::Halted { .. } => false,
    };
    match run_start {
        RunStart::New => return Ok(None),
        // Between the end of a parent and the beginning of its branch the process may have been
        // killed.
        RunStart::Resumed if run.phase != JobPhaseStatus::Stopped => return Ok(None),
        RunStart::Resumed => {}
        RunStart::ResumedFromCheckpoint => check_same_text(&run, submission, client)?,
        RunStart::Branched => check_steps_left(&run, submission)?,
    }
    let run = if is_ended {
        run
    } else {
        match client.change_job(ApiRequest::Stop) {
            // A controller that starts again lists runs before it has applied all of its log.
            Ok(_) | Err(ApiError::Refused(ApiRefusal::WrongState(WrongState::Done))) => {}
            Err(error) => return Err(error.into()),
        }
        newest(client)?.unwrap_or(run)
    };
    let checkpoint = run.checkpoints.last().map(|step| (*step, run.digest));
    Ok(Some(ParentRun { name: run.name, checkpoint }))
}

/// Another text makes other bits, even if all keys are equal.
fn check_same_text(
    run: &RunStatus,
    submission: &JobSubmission,
    client: &mut ApiClient<'_>,
) -> Result<(), CommandFailure> {
    let Some(step) = run.checkpoints.last() else { return Ok(()) };
    let expected = client.checkpoint(*step)?.corpus;
    let found = HexDigest(submission.document.text.hash);
    if expected == found {
        return Ok(());
    }
    let what = format!("the text is another one than that of run {}", run.name);
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    let detail = FailureDetail::new(format!("hash {found}, expected {expected}")).at("data.text");
    failure.details = vec![detail.hint("with --branch it goes on over this text")];
    Err(failure)
}

fn check_steps_left(run: &RunStatus, submission: &JobSubmission) -> Result<(), CommandFailure> {
    let step = run.step;
    let step_count = submission.document.config.steps;
    if step < step_count {
        return Ok(());
    }
    Err(ApiRefusal::WrongState(WrongState::NoStepsLeft { step, step_count }).failure())
}

/// Hands the job over, with the text and weights that are requested. Yields the first event of it.
fn submit(
    submission: &JobSubmission,
    from: Option<String>,
    client: &mut ApiClient<'_>,
) -> Result<u64, CommandFailure> {
    let bytes = submission.document.encode().map_err(|error| {
        CommandFailure::usage("the configuration", vec![FailureDetail::new(error.to_string())])
    })?;
    let document = String::from_utf8(bytes).expect("JSON is UTF-8");
    let name = submission.document.text;
    let corpus = CorpusDescription { hash: HexDigest(name.hash), length: Bytes(name.length) };
    // The document names the weights.
    let request = ApiRequest::Run { document, corpus, weights: None, name: None, from };
    for _ in 0..=submission.data.len() {
        let answer = client.send(&request)?;
        if let ApiAnswer::Run(accepted) = answer {
            return Ok(accepted.events_from);
        }
        let ApiAnswer::DataWanted(held) = answer else {
            return Err(ApiError::Unexpected { request: "run", found: answer.name() }.into());
        };
        submission.blob_of(held.hash)?.upload(held, client)?;
    }
    Err(CommandFailure::new(FailureCode::Internal, "the controller wants the text for ever"))
}

fn origin(from: OriginStatus) -> RunOrigin {
    RunOrigin { run: RunId(from.run), version: Step(from.step), state: from.digest.0 }
}

/// The final state of the run, out of its last checkpoint, which is copied to its mirror if it has one;
/// the processes end.
fn finish(
    ended: FollowOutcome,
    (steps_before, elapsed): (u64, Duration),
    (writer, mirror): (ModelWriter, Option<&str>),
    (children, client): (&mut ChildProcesses, &mut ApiClient<'_>),
    observe: RunObserver<'_>,
) -> Result<RunOutcome, CommandFailure> {
    let FollowOutcome { steps_done, held_out } = ended;
    // The run is over because it is there.
    poll_until(children, client, "the last checkpoint", |client| {
        Ok(PollResult::Available(client.checkpoint(steps_done)?))
    })?;
    let WrittenModel { detail, layers } = writer.finish(steps_done, client)?;
    // The controller knows it however often the command was started again.
    let from = client.runs()?.into_iter().last().and_then(|run| run.from).map(origin);
    // A picture for people: without it the run is no less done.
    let trace = client.trace(0).ok().flatten();
    if let Some(place) = mirror {
        await_mirror(place, steps_done, (children, client), observe);
    }
    children.end();
    Ok(RunOutcome {
        steps_done,
        weights: TrainedWeights::Written(layers),
        digest: StateDigest(detail.summary.digest.0.0),
        layer_digests: detail.layers.iter().map(|layer| layer.digest.0).collect(),
        held_out,
        elapsed,
        steps_before,
        from,
        trace,
        order: None,
        notes: Vec::new(),
    })
}
