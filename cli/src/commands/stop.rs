//! `stop`: the run is paused, the version that it is paused at becomes a checkpoint, then it ends.

use std::io::Write;
use std::thread;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{ApiRefusal, ApiRequest, JobPhaseStatus, JobStatus, MemberState, StatusReport};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use super::job::job_line;
use super::reach::{confirm, connect};
use super::run::is_passing;
use crate::args::StopArgs;
use crate::event_poller::FOLLOW_PAUSE;

/// Polls in a row without one more durable layer until the run ends with the checkpoint before: a
/// minute, with the pause between two polls.
const STILL_POLLS_MAX: u32 = 240;
/// Polls that one without an answer counts for: it takes seconds where a pause takes a quarter of one.
const UNANSWERED_POLLS: u32 = 8;

/// Runs `stop`.
///
/// # Errors
/// If the order is not confirmed, if the cluster refuses, or if `out` cannot be written.
pub fn stop(args: &StopArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut client = connect(&args.client)?;
    let consequence = match args.now {
        true => "the run ends for good; only the checkpoint that it has already is kept",
        false => "the run ends for good; what it has trained is kept as its last checkpoint",
    };
    confirm(args.yes, consequence)?;
    if !args.now {
        keep_last_version(&mut client, out, &mut || thread::sleep(FOLLOW_PAUSE))?;
    }
    end(&mut client, out)
}

fn end(client: &mut ApiClient<'_>, out: &mut dyn Write) -> Result<(), CommandError> {
    let job = client.change_job(ApiRequest::Stop).map_err(CommandFailure::from)?;
    writeln!(out, "{}\n{}", job_line(&job), kept_line(&job))?;
    Ok(())
}

/// Pauses the run, and waits until the version that it is paused at is durable. A run that cannot
/// be paused is halted or over, and one whose version nobody writes is not waited for: it ends with
/// the checkpoint that it has.
fn keep_last_version(
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
    pause: &mut dyn FnMut(),
) -> Result<(), CommandError> {
    let step = match client.change_job(ApiRequest::Pause) {
        Ok(job) if is_kept(&job) => return Ok(()),
        Ok(job) => job.step,
        Err(ApiError::Refused(ApiRefusal::WrongState(_))) => return Ok(()),
        Err(error) => return Err(CommandFailure::from(error).into()),
    };
    let (mut durable, mut still, mut last) = (None, 0, AwaitedLayers::Unknown);
    while still < STILL_POLLS_MAX {
        last = match client.status() {
            Ok(status) => awaited_layers(&status),
            Err(error) if is_passing(&error) => AwaitedLayers::Unknown,
            Err(error) => return Err(CommandFailure::from(error).into()),
        };
        match last {
            AwaitedLayers::None => return Ok(()),
            AwaitedLayers::Durable(layers) if durable != Some(layers) => {
                if durable.is_none() {
                    writeln!(
                        out,
                        "paused after step {step}, which is being kept; `stop --now` ends it without"
                    )?;
                    out.flush()?;
                }
                (durable, still) = (Some(layers), 0);
            }
            AwaitedLayers::Durable(_) | AwaitedLayers::Resumed => still += 1,
            AwaitedLayers::Unknown => still += UNANSWERED_POLLS,
        }
        pause();
    }
    if last == AwaitedLayers::Resumed {
        let what = "the run goes on: it was resumed, and is not stopped";
        return Err(CommandFailure::new(FailureCode::WrongState, what).into());
    }
    Ok(())
}

/// What is left to be written of the version that a run is paused at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedLayers {
    /// It is kept, or nobody writes it.
    None,
    /// So many of its layers are durable.
    Durable(u32),
    /// The node that answered has it running: it has not applied the pause yet, or a resumption
    /// behind it.
    Resumed,
    /// No node answered.
    Unknown,
}

fn awaited_layers(status: &StatusReport) -> AwaitedLayers {
    let Some(job) = status.job.as_ref().filter(|job| !is_kept(job)) else {
        return AwaitedLayers::None;
    };
    if job.phase != JobPhaseStatus::Paused {
        return AwaitedLayers::Resumed;
    }
    let is_there = |id| {
        let member = status.members.iter().find(|member| member.id == id)?;
        Some(!matches!(member.standing, MemberState::Lost { .. }))
    };
    let stages = status.plan.as_ref().map(|plan| &plan.stages[..]).unwrap_or_default();
    let is_whole = !stages.is_empty() && stages.iter().all(|id| is_there(*id) == Some(true));
    let saving = job.saving.filter(|_| is_whole);
    saving.map_or(AwaitedLayers::None, |saving| AwaitedLayers::Durable(saving.layers_durable))
}

/// Whether nothing is left to be written of the version that a run is at.
fn is_kept(job: &JobStatus) -> bool {
    job.phase.is_over() || job.step <= job.digest_step.unwrap_or(0)
}

/// What is kept of a run that ended, and how it goes on.
fn kept_line(job: &JobStatus) -> String {
    match (job.digest_step, job.step) {
        (None, 0) => "nothing of it is kept: no step was sealed".to_owned(),
        (None, step) => format!("nothing of it is kept: none of its {step} steps is durable"),
        (Some(kept), step) if kept < step => {
            format!("the checkpoint of step {kept} is kept; the steps behind it were not durable")
        }
        (Some(kept), _) => {
            let JobStatus { name, .. } = job;
            format!(
                "the checkpoint of step {kept} is kept: `zbelastic run --from {name}` goes on from it"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::client::ClientError;
    use zbelastic_api::sample::{self, scripted};
    use zbelastic_api::{ApiAnswer, SavingStatus, WrongState};

    type Scripted = Result<ApiAnswer, ClientError>;

    fn job(phase: JobPhaseStatus, kept: Option<u64>, durable: Option<u32>) -> JobStatus {
        let saving =
            durable.map(|layers_durable| SavingStatus { step: 1280, layers_durable, layers: 10 });
        JobStatus { phase, digest_step: kept, saving, ..sample::job() }
    }

    fn paused(kept: u64, durable: Option<u32>) -> JobStatus {
        job(JobPhaseStatus::Paused, Some(kept), durable)
    }

    fn answer(job: JobStatus) -> Scripted {
        Ok(ApiAnswer::Job(Box::new(job)))
    }

    fn status(job: JobStatus) -> Scripted {
        Ok(ApiAnswer::Status(Box::new(StatusReport { job: Some(job), ..sample::status() })))
    }

    /// What it prints, the names of its requests, and how often it pauses.
    fn stopped(mut answers: Vec<Scripted>, kept: u64) -> (String, Vec<&'static str>, u32) {
        answers.push(answer(job(JobPhaseStatus::Stopped, Some(kept), None)));
        let (mut client, requests) = scripted(answers);
        let mut out = Vec::new();
        let mut pauses = 0;
        keep_last_version(&mut client, &mut out, &mut || pauses += 1).expect("it comes to its end");
        end(&mut client, &mut out).expect("it ends");
        let names = requests.borrow().iter().map(ApiRequest::name).collect();
        (String::from_utf8(out).expect("UTF-8"), names, pauses)
    }

    #[test]
    fn a_run_ends_once_the_version_that_it_is_paused_at_is_durable() {
        let answers = vec![
            answer(paused(1200, Some(0))),
            status(paused(1200, Some(0))),
            Err(ClientError::Broken { reason: "reset".to_owned() }),
            status(paused(1200, Some(9))),
            status(paused(1280, None)),
        ];
        let (text, names, pauses) = stopped(answers, 1280);
        assert_eq!(names, ["pause", "status", "status", "status", "status", "stop"]);
        assert_eq!(pauses, 3);
        assert!(text.starts_with("paused after step 1280, which is being kept"), "{text}");
        assert!(
            text.contains("\nthe checkpoint of step 1280 is kept: `zbelastic run --from "),
            "{text}"
        );
    }

    #[test]
    fn a_version_that_is_kept_already_is_not_waited_for() {
        let (text, names, _) = stopped(vec![answer(paused(1280, None))], 1280);
        assert_eq!(names, ["pause", "stop"]);
        assert!(text.starts_with("run tiny abababababab is stopped"), "{text}");
    }

    /// A halted run holds what is not trusted, and no pause.
    #[test]
    fn a_run_that_cannot_be_paused_ends_all_the_same() {
        let halted = WrongState::Halted { reason: "nodes disagree".to_owned() };
        let refused = Ok(ApiAnswer::Refused(ApiRefusal::WrongState(halted)));
        let (text, names, _) = stopped(vec![refused], 1200);
        assert_eq!(names, ["pause", "stop"]);
        assert!(text.contains("the checkpoint of step 1200 is kept; the steps behind"), "{text}");
    }

    #[test]
    fn a_version_that_nobody_writes_is_waited_for_as_long_as_layers_become_durable() {
        let mut answers = vec![answer(paused(1200, Some(0)))];
        let polls = 3 + STILL_POLLS_MAX;
        answers.extend((0..polls).map(|poll| status(paused(1200, Some((1 + poll).min(3))))));
        let (text, _, pauses) = stopped(answers, 1200);
        assert_eq!(pauses, polls);
        assert!(text.contains("is stopped"), "{text}");
        // A stage of its plan is lost, or it was given up.
        let mut lost = StatusReport { job: Some(paused(1200, Some(1))), ..sample::status() };
        assert_eq!(awaited_layers(&lost), AwaitedLayers::Durable(1));
        lost.job = Some(paused(1200, None));
        assert_eq!(awaited_layers(&lost), AwaitedLayers::None);
        lost.job = Some(paused(1200, Some(1)));
        lost.members[2].standing = MemberState::Lost { reason: "connection closed".to_owned() };
        assert_eq!(awaited_layers(&lost), AwaitedLayers::None);
        lost.plan = None;
        assert_eq!(awaited_layers(&lost), AwaitedLayers::None);
    }

    /// A follower that answers behind the leader's loss may not have applied the pause yet.
    #[test]
    fn a_run_that_a_follower_has_running_is_waited_for_and_one_that_was_resumed_is_not_stopped() {
        let running = || status(job(JobPhaseStatus::Running, Some(1200), None));
        let answers = vec![answer(paused(1200, Some(0))), running(), status(paused(1280, None))];
        let (_, names, _) = stopped(answers, 1280);
        assert_eq!(names, ["pause", "status", "status", "stop"]);
        let mut answers = vec![answer(paused(1200, Some(0)))];
        answers.extend((0..STILL_POLLS_MAX).map(|_| running()));
        let (mut client, _) = scripted(answers);
        let ended = keep_last_version(&mut client, &mut Vec::new(), &mut || {});
        let Err(CommandError::Failed(failure)) = ended else { panic!("it goes on") };
        assert_eq!(failure.code, FailureCode::WrongState);
    }

    #[test]
    fn a_pause_that_is_not_answered_stops_nothing() {
        let broken = ClientError::Broken { reason: "reset".to_owned() };
        let (mut client, requests) = scripted(vec![Err(broken)]);
        keep_last_version(&mut client, &mut Vec::new(), &mut || {}).expect_err("it is not known");
        assert_eq!(requests.borrow().len(), 1);
    }

    #[test]
    fn what_is_kept_is_said() {
        let line =
            |kept, step| kept_line(&JobStatus { step, ..job(JobPhaseStatus::Stopped, kept, None) });
        assert_eq!(line(None, 0), "nothing of it is kept: no step was sealed");
        assert_eq!(line(None, 19), "nothing of it is kept: none of its 19 steps is durable");
        assert!(line(Some(100), 100).starts_with("the checkpoint of step 100 is kept: `"));
        assert!(line(Some(100), 108).contains("step 100 is kept; the steps behind it"));
    }
}
