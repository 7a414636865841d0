//! `pause` and `resume`.

use std::io::Write;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiRequest, JobPhaseStatus, JobStatus, escape};
use zbelastic_wording::{CommandError, CommandFailure};

use super::reach::connect;
use crate::args::ClientArgs;

/// Runs `pause`.
///
/// # Errors
/// If the cluster refuses, or `out` cannot be written; so for all that follow.
pub fn pause(args: &ClientArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    change_job(ApiRequest::Pause, &mut connect(args)?, out)
}

/// Runs `resume`.
///
/// # Errors
/// As [`pause`].
pub fn resume(args: &ClientArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    change_job(ApiRequest::Resume, &mut connect(args)?, out)
}

fn change_job(
    request: ApiRequest,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let job = client.change_job(request).map_err(CommandFailure::from)?;
    writeln!(out, "{}", job_line(&job))?;
    Ok(())
}

/// How a run stands, in a line.
#[must_use]
pub fn job_line(job: &JobStatus) -> String {
    let phase = match &job.phase {
        JobPhaseStatus::Running => "runs".to_owned(),
        JobPhaseStatus::Waiting { reason } => format!("waits ({})", escape(reason)),
        JobPhaseStatus::Paused => "is paused".to_owned(),
        JobPhaseStatus::Done => "is done".to_owned(),
        JobPhaseStatus::Stopped => "is stopped".to_owned(),
        JobPhaseStatus::Halted { reason } => format!("is halted ({})", escape(reason)),
    };
    let JobStatus { name, config, step, step_count, .. } = job;
    format!("run {} {} {phase} after step {step} of {step_count}", escape(name), config.short())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::{self, scripted};
    use zbelastic_api::{ApiAnswer, ApiRefusal, RunAbsence, WrongState};
    use zbelastic_wording::FailureCode;

    #[test]
    fn commands_print_how_the_run_stands() {
        let job = JobStatus { phase: JobPhaseStatus::Paused, ..sample::job() };
        let (mut client, requests) = scripted(vec![Ok(ApiAnswer::Job(Box::new(job)))]);
        let mut out = Vec::new();
        change_job(ApiRequest::Pause, &mut client, &mut out).expect("paused");
        let expected = "run tiny abababababab is paused after step 1280 of 10000\n";
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
        assert_eq!(*requests.borrow(), [ApiRequest::Pause]);
    }

    #[test]
    fn without_a_run_there_is_nothing_to_hold() {
        let refusal = ApiRefusal::WrongState(WrongState::NoRun { was: RunAbsence::Never });
        let (mut client, _) = scripted(vec![Ok(ApiAnswer::Refused(refusal))]);
        let ended = change_job(ApiRequest::Resume, &mut client, &mut Vec::new());
        let Err(CommandError::Failed(failure)) = ended else { panic!("refused") };
        assert_eq!(failure.code, FailureCode::WrongState);
        assert!(failure.to_string().contains("zbelastic run CONFIG"), "{failure}");
    }
}
