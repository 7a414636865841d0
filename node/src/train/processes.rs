//! `train` as a cluster of processes on this machine: a controller, and a process for each worker
//! that a person can kill. Whichever ends is started again, and what it held comes from the others;
//! the run ends with the same bits.
//!
//! It is the cluster of `init`, `join` and `run`, certificates and all: nothing here has a road of
//! its own. The processes' folders lie in the run folder, so that the same command with the same
//! `--out` goes on with a run that was interrupted.

mod children;
mod follow;
mod model;
mod retold;
mod standstill;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_trainer::digest::StateDigest;
use zbelastic_types::Bytes;

use super::coordinator::Outcome;
use super::machines::Sharing;
use super::prepare::Prepared;
use crate::api::client::{ApiClient, ApiError};
use crate::api::{
    Answer, CorpusDescription, DataHeld, HexDigest, MemberRole, MemberStanding, PIECE_BYTES_MAX,
    Request, Status, TokenRequest,
};
use crate::cluster::document::{DataName, JobDocument};
use crate::cluster::exchange;
use crate::data_folder::DataFolder;
use crate::failure::{Detail, Failure, FailureCode};
use children::{Children, WorkerMachines};
use follow::{Ended, Observe, Wishes, follow};
use model::{ModelSource, ModelWriter, WrittenModel};
use standstill::{STANDSTILL, Standstill};

pub use follow::Told;

/// How often the cluster is asked whether something is there yet.
const ASK_PAUSE: Duration = Duration::from_millis(30);
/// A token is used within this.
const TOKEN_S: u64 = 3600;

/// What is trained, as the cluster is told.
pub struct Submission {
    /// The job.
    pub document: JobDocument,
    /// Its text, and the weights that it begins with.
    pub data: Vec<Vec<u8>>,
}

/// Trains in processes whose folders lie in `folder`. `observe` is told what happens, and may end
/// the run after the step under way by breaking.
///
/// # Errors
/// If the cluster does not come to be, says no, or does not get to the end.
pub fn train(
    prepared: &Prepared,
    submission: &Submission,
    folder: &Path,
    observe: Observe<'_>,
) -> Result<Outcome, Failure> {
    let devices = prepared.machines.indices();
    let workers = WorkerMachines {
        threads: prepared.job.threads,
        memory: prepared
            .machines
            .share(prepared.worker_count, Sharing::Processes)
            .filter(|_| !devices.is_empty()),
        devices,
    };
    let mut children = Children::new(folder, workers)?;
    children.start_controller()?;
    let mut client = connect(&children.controller(), children.address())?;
    ask_until(&mut children, &mut client, "the controller", leads)?;
    for number in 1..=prepared.worker_count {
        let token = if children.is_new(number) {
            Some(ask_until(&mut children, &mut client, "the controller", create_token)?)
        } else {
            None
        };
        children.start_worker(number, token)?;
    }
    let count = prepared.worker_count as usize;
    ask_until(&mut children, &mut client, "all workers", |client| present(client, count))?;
    let status = client.status().ok();
    let steps_before = status.and_then(|status| status.job).map_or(0, |job| job.step);
    let accepted = submit(submission, &mut client)?;
    let began = Instant::now();
    let wishes = Wishes {
        interrupt: &prepared.job.interrupt,
        reads_held_out: prepared.text.held_out_windows > 0,
        bubble_planned: prepared.plan.bubble(),
    };
    let mut writer = ModelWriter::new(ModelSource {
        address: children.address(),
        controller: children.controller(),
        model: prepared.config.model.clone(),
        folder: folder.to_owned(),
    });
    let ended = follow(accepted, &wishes, (&mut children, &mut client), &mut writer, observe)?;
    let timed = (steps_before, began.elapsed());
    finish(ended, timed, writer, (&mut children, &mut client))
}

fn connect(controller: &DataFolder, address: String) -> Result<ApiClient<'static>, Failure> {
    Ok(ApiClient::new(vec![address], exchange(controller)?))
}

/// What came of a question.
enum Asked<T> {
    /// It is there.
    There(T),
    /// It is not there yet, but so much of it is.
    Partly(usize),
}

/// Asks again and again while more of it is there each time, and keeps the processes alive meanwhile.
fn ask_until<T>(
    children: &mut Children,
    client: &mut ApiClient<'_>,
    what: &str,
    mut ask: impl FnMut(&mut ApiClient<'_>) -> Result<Asked<T>, ApiError>,
) -> Result<T, Failure> {
    let mut standstill = Standstill::begin(Instant::now());
    loop {
        children.look_after()?;
        let (part, error) = match ask(client) {
            Ok(Asked::There(found)) => return Ok(found),
            Ok(Asked::Partly(part)) => (Some(part), None),
            Err(error) => (None, Some(error)),
        };
        if standstill.look(part, Instant::now()) > STANDSTILL {
            let mut failure =
                Failure::new(FailureCode::Unreachable, format!("{what} did not come to be there"));
            failure.details = children.last_words();
            failure.details.extend(error.map(|error| Detail::new(error.to_string())));
            return Err(failure);
        }
        thread::sleep(ASK_PAUSE);
    }
}

fn create_token(client: &mut ApiClient<'_>) -> Result<Asked<String>, ApiError> {
    let request = TokenRequest {
        role: MemberRole::Worker,
        ttl_s: TOKEN_S,
        uses: 1,
        ephemeral: false,
        note: Some("train".to_owned()),
    };
    Ok(Asked::There(client.create_token(request)?.token))
}

/// Orders are taken by who leads, which a controller that comes back does after an election.
fn leads(client: &mut ApiClient<'_>) -> Result<Asked<()>, ApiError> {
    let leader = client.status()?.leader;
    Ok(if leader.is_some() { Asked::There(()) } else { Asked::Partly(0) })
}

fn present(client: &mut ApiClient<'_>, count: usize) -> Result<Asked<()>, ApiError> {
    let present = workers_present(&client.status()?);
    Ok(if present >= count { Asked::There(()) } else { Asked::Partly(present) })
}

fn workers_present(status: &Status) -> usize {
    let members = status.members.iter();
    let workers = members.filter(|member| member.role == MemberRole::Worker);
    workers.filter(|member| member.standing == MemberStanding::Present).count()
}

/// Hands the job over, and what it needs as far as it is wanted. Yields the first event of it.
fn submit(submission: &Submission, client: &mut ApiClient<'_>) -> Result<u64, Failure> {
    let bytes = submission.document.encode().map_err(|error| {
        Failure::usage("the configuration", vec![Detail::new(error.to_string())])
    })?;
    let document = String::from_utf8(bytes).expect("JSON is UTF-8");
    let name = submission.document.text;
    let corpus = CorpusDescription { hash: HexDigest(name.hash), length: Bytes(name.length) };
    // The document names the weights.
    let request = Request::Run { document, corpus, weights: None, name: None };
    for _ in 0..=submission.data.len() {
        let answer = client.ask(&request)?;
        if let Answer::Run(accepted) = answer {
            return Ok(accepted.events_from);
        }
        let Answer::DataWanted(held) = answer else {
            return Err(ApiError::Unexpected { request: "run", found: answer.name() }.into());
        };
        upload(submission, held, client)?;
    }
    Err(Failure::new(FailureCode::Internal, "the controller wants the text for ever"))
}

fn upload(
    submission: &Submission,
    held: DataHeld,
    client: &mut ApiClient<'_>,
) -> Result<(), Failure> {
    let DataHeld { hash, held } = held;
    let wanted = |bytes: &&Vec<u8>| HexDigest(DataName::of(bytes).hash) == hash;
    let bytes = submission.data.iter().find(wanted).ok_or_else(|| {
        Failure::new(
            FailureCode::Internal,
            format!("the controller wants {hash}, which is not here"),
        )
    })?;
    let mut offset = held as usize;
    while offset < bytes.len() {
        let end = bytes.len().min(offset + PIECE_BYTES_MAX);
        let bytes = bytes[offset..end].to_vec();
        client.put_data(Request::PutData { hash, offset: offset as u64, bytes })?;
        offset = end;
    }
    Ok(())
}

/// What the run ended with, out of its last checkpoint; the processes end.
fn finish(
    ended: Ended,
    (steps_before, elapsed): (u64, Duration),
    writer: ModelWriter,
    (children, client): (&mut Children, &mut ApiClient<'_>),
) -> Result<Outcome, Failure> {
    let Ended { steps_done, held_out } = ended;
    // The run is over because it is there.
    ask_until(children, client, "the last checkpoint", |client| {
        Ok(Asked::There(client.checkpoint(steps_done)?))
    })?;
    let WrittenModel { detail, layers } = writer.finish(steps_done, client)?;
    // A picture for people: without it the run is no less done.
    let trace = client.trace().ok().flatten();
    children.end();
    Ok(Outcome {
        steps_done,
        layers,
        is_written: true,
        digest: StateDigest(detail.summary.digest.0.0),
        held_out,
        elapsed,
        steps_before,
        trace,
        order: None,
        notes: Vec::new(),
    })
}
